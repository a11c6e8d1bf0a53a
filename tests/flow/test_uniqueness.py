"""Which calls create no job because one exists, as a user sees it: unique keys, their scopes, and the answers."""

import asyncio
import pickle
from dataclasses import dataclass
from typing import Any, Unpack, cast
from uuid import UUID

import msgspec
import pytest

from tenure import (
    DuplicateJobError,
    JobDeduplicated,
    Retry,
    Router,
    State,
    TaskOptions,
    Tenure,
    Throttle,
    Unique,
    UsageError,
)
from tenure.core.job import UniqueKey
from tenure.options import TaskSettings
from tests.flow.conftest import FAST, Harness, RunScenario
from tests.records import record_of


@dataclass(frozen=True)
class Tenant:
    number: int


class Foreign:
    """A class that msgspec does not know."""


def sending(app: Tenure, ran: list[Any] | None = None, **options: Unpack[TaskSettings]) -> Any:
    options.setdefault("unique", "user:{user}")

    @app.task(name="send", **options)
    async def send(user: int, text: str = "") -> str:
        if ran is not None:
            ran.append((user, text))
        return text

    return send


def key_of_user(user: int, text: str = "") -> str | None:
    return f"user {user}" if user else None


def test_a_call_whose_key_is_held_gets_the_job_that_holds_it(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        ran: list[Any] = []
        app = harness.app(timing=FAST)
        send = sending(app, ran)
        first = await send.enqueue(7, "one")
        second, other = await send.enqueue(7, "two"), await send.enqueue(8, "three")
        await harness.start(app.worker())

        assert (first.action, first.created) == ("created", True)
        assert (second.action, second.created, second.id) == ("duplicate", False, first.id)
        assert (other.action, other.id != first.id) == ("created", True)
        assert [await job.result() for job in (first, second, other)] == ["one", "one", "three"]
        assert sorted(ran) == [(7, "one"), (8, "three")]

    run_scenario(scenario)


def test_the_job_that_holds_a_key_is_found_without_a_call(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        send = sending(app)
        assert await send.unique_job(7) is None
        first = await send.enqueue(7, "one")
        other = await send.options(unique="vip").enqueue(7)

        for holder, job in ((await send.unique_job(7), first), (await send.options(unique="vip").unique_job(7), other)):
            assert holder is not None
            assert (holder.id, holder.queue) == (job.id, job.queue)
        assert await send.unique_job(8) is None
        await first.cancel()
        assert await send.unique_job(7) is None
        assert (await send.enqueue(7)).action == "created"

    run_scenario(scenario)


def test_a_key_of_queued_jobs_is_not_held_by_a_running_one(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        held: list[bool] = []

        @app.task(name="sync", unique=Unique("all", scope="queued"))
        async def sync() -> None:
            held.append(await sync.unique_job() is not None)

        job = await sync.enqueue()
        assert (await sync.unique_job()) is not None
        await harness.start(app.worker())
        await job.result()
        assert held == [False]

    run_scenario(scenario)


def test_a_call_without_a_unique_key_has_no_holder(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        send = sending(harness.app(timing=FAST))
        with pytest.raises(UsageError, match="this call of task 'send' has no unique key"):
            await send.options(unique=False).unique_job(7)

    run_scenario(scenario)


@pytest.mark.fault("W-T14")
def test_a_key_is_free_after_its_jobs_end_and_held_during_retries(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        tries = 0

        @app.task(name="flaky", unique=True, retry=Retry(base="5s", jitter=False))
        async def flaky() -> int:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise ValueError
            return tries

        job = await flaky.enqueue()
        await harness.start(app.worker())
        await asyncio.sleep(2)
        resting, again = await job.state(), await flaky.enqueue()
        await job.result()
        after = await flaky.enqueue()

        assert (resting, again.action, again.id) == (State.DELAYED, "duplicate", job.id)
        assert after.created

    run_scenario(scenario)


def test_a_queued_key_is_free_from_when_its_job_starts(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(name="slow", unique=Unique(scope="queued"))
        async def slow() -> None:
            await asyncio.sleep(5)

        first = await slow.enqueue()
        held = await slow.enqueue()
        await harness.start(app.worker(concurrency=1))
        await asyncio.sleep(1)
        second, third = await slow.enqueue(), await slow.enqueue()

        assert (held.action, held.id) == ("duplicate", first.id)
        assert (second.action, third.action, third.id) == ("created", "duplicate", second.id)

    run_scenario(scenario)


def test_a_timed_key_is_held_for_its_time_after_its_jobs_end(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        send = sending(app, unique=Unique("user:{user}", scope="5m"))
        first = await send.enqueue(7)
        await harness.start(app.worker())
        await first.result()
        await asyncio.sleep(290)
        within = await send.enqueue(7)
        await asyncio.sleep(15)
        after = await send.enqueue(7)

        assert (within.action, within.id) == ("duplicate", first.id)
        assert after.action == "created"

    run_scenario(scenario)


def test_without_a_key_equal_arguments_count_as_equal_in_any_form(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="index", unique=True)
        async def index(doc: dict[str, int], tags: set[str], weight: float = 1) -> None: ...

        @app.task(name="other", unique=True)
        async def other(doc: dict[str, int]) -> None: ...

        first = await index.enqueue({"a": 1, "b": 2}, {"x", "y", "z"})
        same = [
            await index.enqueue({"b": 2, "a": 1}, {"z", "y", "x"}),
            await index.enqueue(tags={"y", "x", "z"}, doc={"a": 1, "b": 2}),
            await index.enqueue({"a": 1, "b": 2}, {"x", "y", "z"}, 1.0),
        ]
        others = [await index.enqueue({"a": 1, "b": 3}, {"x", "y", "z"}), await other.enqueue({"a": 1, "b": 2})]

        assert {job.id for job in same} == {first.id}
        assert all(job.created for job in others)

    run_scenario(scenario)


def test_a_codec_with_random_output_does_not_hide_duplicates(run_scenario: RunScenario) -> None:
    class Salted:
        def __init__(self) -> None:
            self.salt = 0

        def encode(self, value: Any, /) -> bytes:
            self.salt += 1
            return self.salt.to_bytes(4, "big") + msgspec.json.encode(value)

        def decode(self, data: bytes, /) -> Any:
            return msgspec.json.decode(data[4:])

    async def scenario(harness: Harness) -> None:
        send = sending(harness.app(codec=Salted()), unique=True)
        first, second = await send.enqueue(7, "a"), await send.enqueue(7, "a")

        assert second.id == first.id

    run_scenario(scenario)


def test_defaults_that_cannot_be_encoded_do_not_count_for_uniqueness(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="odd", unique=True)
        async def odd(number: int, make: Any = object()) -> None: ...  # noqa: B008

        first, second = await odd.enqueue(1), await odd.enqueue(1)

        assert second.id == first.id
        assert (await odd.enqueue(2)).created

    run_scenario(scenario)


async def numbered(what: dict[int, str]) -> None: ...


async def named(what: dict[UUID, str]) -> None: ...


async def mixed(what: set[int | str]) -> None: ...


async def nested(what: list[frozenset[frozenset[int]]]) -> None: ...


async def tenants(what: set[Tenant]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "one", "same", "other"),
    [
        (numbered, {1: "a", 10: "b"}, {10: "b", 1: "a"}, {1: "a", 10: "c"}),
        (named, {UUID(int=1): "a"}, {UUID(int=1): "a"}, {UUID(int=2): "a"}),
        (mixed, {1, "a", 2, "b"}, {"b", 2, "a", 1}, {1, "a", "2", "b"}),
        (nested, [{frozenset([n]) for n in range(9)}], [{frozenset([8 - n]) for n in range(9)}], []),
        (tenants, {Tenant(n) for n in range(9)}, {Tenant(8 - n) for n in range(9)}, {Tenant(1)}),
    ],
)
def test_unordered_arguments_are_compared_by_content(handler: Any, one: Any, same: Any, other: Any) -> None:
    def key(value: Any) -> str:
        make: Any = Tenure("memory://").task(name="sort", unique=True)
        return cast(str, make(handler).call(value).job.merge.key)

    keys = [key(item) for item in (one, same, other)]

    assert keys[0] == keys[1] != keys[2]


class Pickled:
    """A codec that accepts any value, as some do."""

    def encode(self, value: Any, /) -> bytes:
        return pickle.dumps(value)

    def decode(self, data: bytes, /) -> Any:
        return pickle.loads(data)


def test_arguments_that_a_custom_codec_cannot_compare_are_refused() -> None:
    app = Tenure("memory://", codec=Pickled())

    @app.task(name="take", unique=True)
    async def take(thing: Any) -> None: ...

    keys = [cast(UniqueKey, take.call(thing).job.merge).key for thing in ({1, "a"}, {"a", 1}, {1: 1, "a": 2}, (1, 2))]

    assert keys[0] == keys[1]
    assert len({*keys}) == 3
    for thing in (Foreign(), {(1, 2): 3}):
        with pytest.raises(UsageError, match=r"'take' is unique by its arguments, and .*Unique\(key=") as raised:
            take.call(thing)
        assert isinstance(raised.value.__cause__, TypeError)
    assert take.options(unique="one").call(Foreign()).job.merge == UniqueKey("one")


def test_a_key_function_that_returns_none_makes_the_call_not_unique(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        send = sending(harness.app(), unique=key_of_user)
        guests = [await send.enqueue(0) for _ in range(2)]
        users = [await send.enqueue(1) for _ in range(2)]

        assert [job.action for job in guests] == ["created", "created"]
        assert [job.action for job in users] == ["created", "duplicate"]

    run_scenario(scenario)


def test_a_key_belongs_to_its_queue_and_two_tasks_may_share_it(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        send = sending(app)

        @app.task(name="push", unique="user:{user}")
        async def push(user: int) -> None: ...

        first, second = await send.enqueue(7), await push.enqueue(7)
        elsewhere = await push.options(queue="elsewhere").enqueue(7)

        assert (second.action, second.id) == ("duplicate", first.id)
        assert elsewhere.action == "created"

    run_scenario(scenario)


def test_a_calls_own_key_is_taken_literally_and_keeps_the_tasks_scope(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(defaults=TaskOptions(unique=Unique(scope="queued")))
        send = sending(app, unique="user:{user}")

        async def merge(**options: Any) -> Any:
            return (await record_of(await send.options(**options).enqueue(7))).merge

        assert await merge() == UniqueKey("user:7", "queued")
        assert await merge(unique="{as it is}") == UniqueKey("{as it is}", "queued")
        assert await merge(unique=Unique("k", scope="10s")) == UniqueKey("k", window=10_000_000)
        assert send.options(unique=Unique(scope="unfinished")).call(8).job.merge == UniqueKey("user:8", "unfinished")
        assert await merge(unique=False) is None

    run_scenario(scenario)


def test_a_duplicate_raises_an_error_on_request(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        send = sending(app, throw_on_duplicate=True)
        first = await send.enqueue(7)
        with pytest.raises(DuplicateJobError, match="'send'") as raised:
            await send.enqueue(7)
        with pytest.raises(DuplicateJobError):
            await send.enqueue_and_wait(7)
        quiet = await send.options(throw_on_duplicate=False).enqueue(7)
        many = await app.enqueue_many([send.call(7), send.call(8)])
        with pytest.raises(DuplicateJobError):
            await send.options(id=first.id, unique=False).enqueue(9)

        assert (raised.value.queue, raised.value.job_id) == ("default", first.id)
        assert quiet.id == first.id
        assert [job.action for job in many] == ["duplicate", "created"]

        again = pickle.loads(pickle.dumps(raised.value))
        assert (str(again), again.job_id) == (str(raised.value), first.id)

    run_scenario(scenario)


def test_a_redrive_is_refused_while_another_job_holds_the_key(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(name="fails", unique=True, retry=Retry(max_attempts=1))
        async def fails() -> None:
            raise ValueError

        worker = app.worker()
        node = await harness.start(worker)
        first = await fails.enqueue()
        await harness.until(lambda: _is(first, State.FAILED))
        await harness.stop(node, worker)
        second = await fails.enqueue()
        with pytest.raises(UsageError, match=f"job {second.id} holds its unique key"):
            await first.redrive()
        report = await app.dead.redrive()
        await second.cancel()
        await first.redrive()

        assert (report.refused, report.held) == ((first.ref,), ((first.ref, second.ref),))
        assert await first.state() is State.WAITING

    run_scenario(scenario)


def test_an_event_handler_gets_recorded_duplicates(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        send = sending(app)
        heard: list[JobDeduplicated] = []
        app.on(JobDeduplicated)(heard.append)
        await app.queue("default").record(JobDeduplicated)
        await harness.start(app.worker())
        first = await send.options(delay="1h").enqueue(7)
        second = await send.enqueue(7)
        await asyncio.sleep(1)

        assert [(event.key, event.existing_id) for event in heard] == [("user:7", first.id)]
        assert second.id == first.id

    run_scenario(scenario)


async def _is(job: Any, state: State) -> bool:
    return await job.state() is state


async def _send(user: int) -> None: ...


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unique": "user:{usr}"}, "unique = 'user:{usr}' names 'usr', which task 'send' does not take"),
        ({"unique": 7}, "unique = 7 must be a template"),
        ({"unique": ""}, "unique = ''"),
        ({"throw_on_duplicate": "yes"}, "throw_on_duplicate = 'yes' must be True or False"),
        ({"throttle": 5}, "throttle = 5 must be a Throttle; write throttle=Throttle"),
    ],
)
def test_invalid_options_are_refused_when_the_task_is_defined(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sending(Tenure("memory://"), **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Unique(scope="unfinishd"),
            r"Unique.scope = 'unfinishd' is not a duration.*or write \"unfinished\" or",
        ),
        (lambda: Unique("queued"), r"unique = 'queued' is a scope, .*; write Unique\(scope=\"queued\"\)"),
        (lambda: TaskOptions(unique="unfinished"), "unique = 'unfinished' is a scope"),
        (lambda: Unique(scope=0), "Unique.scope = 0 must be longer than zero"),
        (lambda: Unique(cast(Any, _send)), r"unique = .* is a coroutine function"),
        (lambda: Throttle(max=0, window="1m"), "Throttle.max = 0 must be 1 or more"),
        (lambda: Throttle(max=1, window=0), "Throttle.window"),
        (lambda: Throttle(max=1, window="1m", on_limit="drop"), "Throttle.on_limit = 'drop' is unknown"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_policy_is_refused_when_it_is_created(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_a_scope_is_refused_as_the_key_of_a_call() -> None:
    with pytest.raises(UsageError, match="unique = 'queued' is a scope"):
        sending(Tenure("memory://")).options(unique="queued")


def test_a_key_that_fails_on_its_arguments_names_its_option() -> None:
    send = sending(Tenure("memory://"), unique="{text[9]}")

    with pytest.raises(UsageError, match=r"unique '\{text\[9\]\}' fails on these arguments"):
        send.call(7, "short")


def test_keys_of_a_router_are_checked_early_and_get_its_prefix() -> None:
    router = Router(prefix="mail.")
    with pytest.raises(UsageError, match="names 'usr'"):
        router.task(name="bad", unique="{usr}")(_send)
    task = router.task(name="send", unique=True)(_send)
    bound = task.options(priority=1)
    app = Tenure("memory://")
    app.include(router)
    merge = bound.call(7).job.merge

    assert isinstance(merge, UniqueKey)
    assert merge.key.startswith("mail.send:")
