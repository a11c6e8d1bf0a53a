"""Calls collected in one job, as a user sees it: which calls share a job, when it starts, and what a crash loses."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tenure import (
    Cancel,
    Collect,
    Inject,
    JobCollected,
    JobFailedError,
    Retry,
    Router,
    State,
    Tenure,
    Unique,
    UsageError,
)
from tests.flow.conftest import FAST, Harness, RunScenario
from tests.records import record_of


@dataclass
class Doc:
    tenant: str
    number: int = 0


def indexing(app: Tenure, batches: list[list[Doc]], *, collect: Collect | None = None, **options: Any) -> Any:
    @app.task(name="index", collect=collect or Collect(), **options)
    async def index(docs: list[Doc]) -> int:
        batches.append(docs)
        return len(docs)

    return index


@pytest.mark.fault("W-T21")
def test_calls_are_collected_until_the_delay_passes_without_one(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        batches: list[list[Doc]] = []
        app = harness.app(timing=FAST)
        index = indexing(app, batches, collect=Collect(delay="1s"))
        await harness.start(app.worker())
        jobs: list[Any] = []
        for number in range(5):
            jobs.append(await index.enqueue(Doc("a", number)))
            await asyncio.sleep(0.5)
        results = [await job.result() for job in jobs]

        assert [job.action for job in jobs] == ["created", *["collected"] * 4]
        assert {job.id for job in jobs} == {jobs[0].id}
        assert results == [5] * 5
        assert batches == [[Doc("a", number) for number in range(5)]]
        assert 3 <= harness.now < 3.6

    run_scenario(scenario)


def test_a_full_batch_starts_at_once_and_the_next_call_begins_another(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        batches: list[list[Doc]] = []
        app = harness.app(timing=FAST)
        index = indexing(app, batches, collect=Collect(delay="10s", max_size=3, max_wait="20s"))
        await harness.start(app.worker())
        jobs = await app.enqueue_many(index.call(Doc("a", number)) for number in range(7))
        for job in jobs[:6]:
            await job.result()

        assert harness.now < 1
        assert sorted(len(batch) for batch in batches) == [3, 3]
        assert await jobs[6].result() == 1
        assert harness.now >= 10

    run_scenario(scenario)


def test_a_batch_starts_after_max_wait_at_the_latest(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        batches: list[list[Doc]] = []
        app = harness.app(timing=FAST)
        index = indexing(app, batches, collect=Collect(delay="1s", max_wait="4s"))
        await harness.start(app.worker())
        first = await index.enqueue(Doc("a"))
        for _ in range(8):
            await asyncio.sleep(0.6)
            await index.enqueue(Doc("a"))

        assert await first.result(timeout=0) == 7
        assert len(batches) == 1

    run_scenario(scenario)


def test_a_key_made_of_the_item_separates_the_batches(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        batches: list[list[Doc]] = []
        app = harness.app(timing=FAST)
        index = indexing(app, batches, collect=Collect("{item.tenant}"))
        loner = indexing(harness.app(timing=FAST), batches, collect=Collect(_no_key_for_b))
        jobs = await app.enqueue_many(index.call(Doc(tenant)) for tenant in "abab")
        alone = [await loner.enqueue(Doc("b", number)) for number in (1, 2)]
        await harness.start(app.worker())
        for job in [*jobs, *alone]:
            await job.result()

        assert sorted(batches, key=str) == [
            *([Doc("a"), Doc("a")], [Doc("b"), Doc("b")], [Doc("b", 1)], [Doc("b", 2)]),
        ]
        assert [job.action for job in alone] == ["created", "created"]

    run_scenario(scenario)


def _no_key_for_b(item: Doc) -> str | None:
    return None if item.tenant == "b" else item.tenant


def test_the_collected_calls_of_a_key_can_be_listed(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        index = indexing(app, [], collect=Collect("{item.tenant}", delay="5s", max_size=3, max_wait="60s"))
        nothing = await index.collected("a")
        first = await index.enqueue(Doc("a", 1))
        await asyncio.sleep(2)
        await index.enqueue(Doc("a", 2))
        await index.enqueue(Doc("b", 9))
        batch = await index.collected("a")
        await index.enqueue(Doc("a", 3))
        full = await index.collected("a")
        await index.enqueue(Doc("a", 4))
        next_one = await index.collected("a")
        elsewhere = await index.collected("a", queue="elsewhere")

        assert nothing is full is elsewhere is None
        assert (batch.id, batch.queue, batch.count) == (first.id, "default", 2)
        assert batch.items == [Doc("a", 1), Doc("a", 2)]
        assert (batch.due - batch.began).total_seconds() == pytest.approx(7)
        assert next_one.items == [Doc("a", 4)]

    run_scenario(scenario)


def test_a_killed_worker_loses_no_collected_call(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        seen: list[list[int]] = []

        @app.task(name="slow", collect=Collect())
        async def slow(numbers: list[int]) -> int:
            seen.append(numbers)
            await asyncio.sleep(5)
            return sum(numbers)

        jobs = await app.enqueue_many(slow.call(number) for number in range(4))
        node = await harness.start(app.worker(reaper=False), "victim")
        await asyncio.sleep(3)
        harness.loop.kill(node)
        late = await slow.enqueue(100)
        await harness.start(app.worker())
        results = [await job.result() for job in jobs]

        assert late.action == "created"
        assert results == [6] * 4
        assert await late.result() == 100
        assert seen.count([0, 1, 2, 3]) == 2

    run_scenario(scenario)


def test_a_failed_batch_is_retried_whole_and_accepts_no_more_calls(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        tries: list[list[int]] = []

        @app.task(name="flaky", collect=Collect(), retry=Retry(base="5s", jitter=False))
        async def flaky(numbers: list[int]) -> str:
            tries.append(numbers)
            if len(tries) == 1:
                raise ValueError
            return "done"

        first, second = await app.enqueue_many([flaky.call(1), flaky.call(2)])
        await harness.start(app.worker())
        await asyncio.sleep(3)
        resting, third = await first.state(), await flaky.enqueue(3)
        await second.result()

        assert resting is State.DELAYED
        assert third.id != first.id
        assert tries.count([1, 2]) == 2

    run_scenario(scenario)


def test_an_unreadable_item_fails_the_batch_and_drops_nothing(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        old, new = harness.app(timing=FAST), harness.app(timing=FAST)

        @old.task(name="index", collect=Collect())
        async def index(docs: list[Any]) -> None: ...

        ran: list[Any] = []
        strict = indexing(new, ran)
        good, bad = await old.enqueue_many([index.call({"tenant": "a", "number": 1}), index.call("what?")])
        with pytest.raises(UsageError, match="has collected items that cannot be decoded"):
            await strict.collected()
        await harness.start(new.worker())
        for job in (good, bad):
            with pytest.raises(JobFailedError, match="undecodable"):
                await job.result()

        assert ran == []
        assert (await record_of(good)).collected == 2

    run_scenario(scenario)


def test_jobs_from_before_a_task_collected_still_run(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        old, new = harness.app(timing=FAST), harness.app(timing=FAST)

        @old.task(name="index")
        async def index(docs: list[Doc]) -> int:
            return len(docs)

        batches: list[list[Doc]] = []
        collects = indexing(new, batches)
        before = await index.enqueue([Doc("a", 1), Doc("a", 2)])
        after = await collects.enqueue(Doc("a", 3))
        await harness.start(new.worker())

        assert (await before.result(), await after.result()) == (2, 1)

    run_scenario(scenario)


def test_items_are_upgraded_one_by_one_and_versions_never_share_a_batch(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        old, new = harness.app(timing=FAST), harness.app(timing=FAST)
        batches: list[list[Doc]] = []

        @old.task(name="index", collect=Collect())
        async def index(docs: list[str]) -> int:
            return len(docs)

        @new.task(name="index", collect=Collect(), version=2)
        async def index_2(docs: list[Doc]) -> int:
            batches.append(docs)
            return len(docs)

        @index_2.migrate(from_version=1)
        def from_names(arguments: dict[str, Any]) -> dict[str, Any]:
            return {"docs": [{"tenant": name} for name in arguments["docs"]]}

        first = await old.enqueue_many([index.call("a"), index.call("b")])
        second = await index_2.enqueue(Doc("c"))
        peeked = await index_2.collected()
        await harness.start(new.worker())
        for job in [*first, second]:
            await job.result()

        assert second.action == "created"
        assert peeked is not None
        assert peeked.items == [Doc("c")]
        assert sorted(batches, key=len) == [[Doc("c")], [Doc("a"), Doc("b")]]

    run_scenario(scenario)


def test_the_handler_is_injected_and_its_hook_gets_the_list(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        undone: list[int] = []

        async def ten() -> int:
            return 10

        @app.task(name="store", collect=Collect())
        async def store(numbers: list[int], factor: int = Inject(ten)) -> int:
            if 0 in numbers:
                raise Cancel
            return sum(numbers) * factor

        @store.on_cancel
        async def undo(numbers: list[int]) -> None:
            undone.extend(numbers)

        await harness.start(app.worker())
        assert await store.enqueue_and_wait(4) == 40
        cancelled = await app.enqueue_many([store.call(0), store.call(7)])
        await harness.until(lambda: _over(cancelled[0]))

        assert undone == [0, 7]
        assert await store([1, 2], factor=3) == 9
        with pytest.raises(UsageError, match="pass factor="):
            await store([1, 2])

    run_scenario(scenario)


def test_a_call_repeated_after_a_lost_reply_is_added_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        batches: list[list[Doc]] = []
        app = harness.app(timing=FAST)
        index = indexing(app, batches)
        calls = [index.call(Doc("a", number)) for number in range(3)]
        await app.enqueue_many(calls)
        again = await app.enqueue_many(calls)
        await harness.start(app.worker())

        assert await again[2].result() == 3
        assert [job.action for job in again] == ["duplicate"] * 3

    run_scenario(scenario)


def test_a_call_with_its_own_id_adds_one_item_if_repeated(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        batches: list[list[Doc]] = []
        app = harness.app(timing=FAST)
        index = indexing(app, batches)
        jobs: list[Any] = []
        for number in (1, 2, 2, 1):
            jobs.append(await index.options(id=f"item {number}").enqueue(Doc("a", number)))
        await harness.start(app.worker())
        await jobs[0].result()
        late = await index.options(id="item 2").enqueue(Doc("a", 2))

        assert [(job.action, job.id) for job in [*jobs, late]] == [
            *(("created", "item 1"), ("collected", "item 1"), *[("duplicate", "item 1")] * 3),
        ]
        assert batches == [[Doc("a", 1), Doc("a", 2)]]

    run_scenario(scenario)


def test_an_event_handler_gets_recorded_collected_calls(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        index = indexing(app, [], collect=Collect("{item.tenant}"))
        heard: list[JobCollected] = []
        app.on(JobCollected)(heard.append)
        await app.queue("default").record(JobCollected)
        await harness.start(app.worker())
        jobs = await app.enqueue_many(index.call(Doc("a", number)) for number in range(3))
        await jobs[0].result()
        await asyncio.sleep(1)

        assert [(event.id, event.key, event.count) for event in heard] == [
            (jobs[0].id, "index:a", 2),
            (jobs[0].id, "index:a", 3),
        ]

    run_scenario(scenario)


def test_a_router_may_have_tasks_that_collect(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        router, app = Router(prefix="search."), harness.app(timing=FAST)
        index = indexing(router, [])  # type: ignore[arg-type]  # as far as this goes, it is like an app
        app.include(router)
        await harness.start(app.worker())
        jobs = await app.enqueue_many([index.call(Doc("a")), index.call(Doc("b"))])

        assert await jobs[1].result() == 2
        assert (await record_of(jobs[0])).merge == (await record_of(jobs[1])).merge

    run_scenario(scenario)


async def _over(job: Any) -> bool:
    return await job.state() is State.CANCELLED


def takes_none() -> None: ...


def takes_two(docs: list[int], more: int) -> None: ...


def takes_a_text(docs: str) -> None: ...


def takes_the_rest(*docs: list[int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (takes_none, r"takes \(\) -> None, and a task that collects takes one list of items"),
        (takes_two, "a task that collects takes one list of items"),
        (takes_a_text, r"'docs' is <class 'str'>, and a task that collects takes one list"),
        (takes_the_rest, "a task that collects takes one list of items"),
    ],
)
def test_a_handler_that_takes_no_list_is_refused(function: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Tenure("memory://").task(collect=Collect())(function)


Attempt = Callable[[Any], object]

ATTEMPTS: list[tuple[Attempt, str]] = [
    (lambda index: index.call([Doc("a")]), r"argument 'docs\[0\]'"),
    (lambda index: index.call("a"), r"argument 'docs\[0\]': Expected `object`, got `str`"),
    (lambda index: index.call(), r"missing a required argument: 'item'; its signature is \(item\)"),
    (lambda index: index.call(Doc("a"), Doc("b")), "too many positional arguments"),
    (lambda index: index.call(object()), "argument 'docs' cannot be encoded"),
    (lambda index: index.options(delay=1), "delay and collect contradict each other"),
    (lambda index: index.options(unique=True), "unique and collect contradict each other"),
    (lambda index: index.options(ttl="1s"), "delay = 1s is not under the ttl of 1s"),
]


@pytest.mark.parametrize(("call", "message"), ATTEMPTS)
def test_a_call_that_does_not_fit_is_refused(call: Attempt, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(indexing(Tenure("memory://"), []))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unique": Unique()}, "unique and collect contradict each other"),
        ({"ttl": "1s"}, "delay = 1s is not under the ttl"),
        (
            {"collect": Collect("{docs.tenant}")},
            r"collect = '\{docs.tenant\}' names 'docs', .* of the item that a call brings; write \{item\}, or",
        ),
        ({"concurrency_key": "{docs}"}, r"concurrency_key = '\{docs\}' names 'docs', .* the item that a call brings"),
        ({"collect": "1s"}, "collect = '1s' must be a Collect; write collect=Collect"),
    ],
)
def test_unsuitable_options_are_refused_when_the_task_is_defined(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        indexing(Tenure("memory://"), [], **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Collect(delay=0), "Collect.delay"),
        (lambda: Collect(delay="20s"), "Collect.max_wait = 10s is under its delay of 20s"),
        (lambda: Collect(max_size=0), "Collect.max_size = 0 must be 1 or more"),
        (lambda: Collect(max_size=10_001), "Collect.max_size = 10001 must be 10,000 or less"),
    ],
)
def test_an_invalid_policy_is_refused_when_it_is_created(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_a_payload_that_lacks_a_collected_call_is_never_run() -> None:
    index = indexing(Tenure("memory://"), [])
    job = index.call(Doc("a")).job
    codec = index.binding.app.encoder.codec
    frame = len(job.payload).to_bytes(4, "big") + job.payload

    assert index.signature.decode_batch(codec, frame, 1) == (([Doc("a")],), {})
    with pytest.raises(ValueError, match="holds 1 of the 2 collected calls"):
        index.signature.decode_batch(codec, frame, 2)
    with pytest.raises(msgspec.DecodeError):
        index.signature.decode_batch(codec, frame[:-1] + b"?", 1)
