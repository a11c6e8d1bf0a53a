"""Calls that come too often, as a user sees it: the last one counts, or a limited number of them."""

import asyncio
import pickle
from typing import Any, Unpack

import pytest

from tenure import (
    Debounce,
    JobDebounced,
    JobNotFoundError,
    JobThrottled,
    State,
    TaskOptions,
    Tenure,
    Throttle,
    ThrottledError,
    Unique,
    UsageError,
)
from tenure.options import TaskSettings
from tests.flow.conftest import FAST, Harness, RunScenario


def saving(app: Tenure, ran: list[tuple[str, int]], **options: Unpack[TaskSettings]) -> Any:
    @app.task(name="save", **options)
    async def save(doc: str, version: int = 0) -> int:
        ran.append((doc, version))
        return version

    return save


def test_the_last_of_many_debounced_calls_runs_after_the_delay(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        ran: list[tuple[str, int]] = []
        app = harness.app(timing=FAST)
        save = saving(app, ran, debounce=Debounce("{doc}", delay="5s"))
        await harness.start(app.worker())
        jobs: list[Any] = []
        for version in range(4):
            jobs.append(await save.enqueue("a", version))
            await asyncio.sleep(2)
        other = await save.enqueue("b", 9)
        results = [await job.result() for job in jobs]

        assert [job.action for job in jobs] == ["created", *["replaced"] * 3]
        assert {job.id for job in jobs} == {jobs[0].id}
        assert results == [3] * 4
        assert 11 <= harness.now < 12
        assert await other.result() == 9
        assert ran == [("a", 3), ("b", 9)]

    run_scenario(scenario)


@pytest.mark.fault("W-T22")
def test_a_steady_stream_of_calls_runs_after_max_wait(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        ran: list[tuple[str, int]] = []
        app = harness.app(timing=FAST)
        save = saving(app, ran, debounce=Debounce(delay="5s", max_wait="20s"))
        await harness.start(app.worker())
        for version in range(39):
            await save.enqueue("a", version)
            await asyncio.sleep(1)

        # The jobs of 0 and 20 s: the call that came just as the first was due began the second, due at 40 s.
        assert [version for _, version in ran] in ([19], [20])

    run_scenario(scenario)


def test_a_call_replaces_only_a_job_that_has_not_started(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(name="slow", debounce=Debounce(delay="1s"))
        async def slow(number: int) -> int:
            await asyncio.sleep(10)
            return number

        first = await slow.enqueue(1)
        await harness.start(app.worker())
        await asyncio.sleep(2)
        second, third = await slow.enqueue(2), await slow.enqueue(3)

        assert (second.action, third.action, third.id) == ("created", "replaced", second.id)
        assert (await first.result(), await second.result()) == (1, 3)

    run_scenario(scenario)


def test_the_later_call_replaces_all_options_too(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        save = saving(app, [], debounce=Debounce(delay="5s"))
        job = await save.enqueue("a")
        await save.options(priority=7, tags=["late"]).enqueue("a", 1)
        info = (await job.info()).job

        assert (info.state, info.priority, info.tags) == (State.DELAYED, 7, ("late",))

    run_scenario(scenario)


def test_keys_of_two_tasks_never_collide_however_they_are_called(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        made: list[Any] = []
        for name, key in (("mail", "user:7"), ("mail:user", "7"), ("mail%3Auser", "7"), ("push", "user:7")):

            @app.task(name=name, debounce=Debounce(key, delay="5s"), queue="shared")
            async def handler() -> None: ...

            made.append(await handler.enqueue())

        assert [job.action for job in made] == ["created"] * 4

    run_scenario(scenario)


def test_an_event_handler_gets_recorded_debounces_and_throttles(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        save = saving(app, [], debounce=Debounce("{doc}", delay="5s"))

        @app.task(name="ring", throttle=Throttle(max=1, window="1m", on_limit="skip"))
        async def ring() -> None: ...

        debounced: list[JobDebounced] = []
        throttled: list[JobThrottled] = []
        app.on(JobDebounced)(debounced.append)
        app.on(JobThrottled)(throttled.append)
        await app.queue("default").record(JobDebounced, JobThrottled)
        await harness.start(app.worker())
        first = await save.enqueue("a")
        second = save.call("a", 1)
        await app.enqueue_many([second])
        await ring.enqueue()
        await asyncio.sleep(6)
        await ring.enqueue()
        await asyncio.sleep(1)

        assert [(event.id, event.key, event.replaced_by) for event in debounced] == [
            (first.id, "save:a", second.job.id),
        ]
        assert [(event.key, round(event.retry_in)) for event in throttled] == [("ring:", 54)]

    run_scenario(scenario)


def test_a_throttle_limits_jobs_per_window_and_raises_for_the_caller(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        ran: list[tuple[str, int]] = []
        app = harness.app(timing=FAST)
        save = saving(app, ran, throttle=Throttle("{doc}", max=2, window="1m"))
        await harness.start(app.worker())
        first, _ = await save.enqueue("a", 1), await save.enqueue("a", 2)
        await first.result()
        await asyncio.sleep(20)
        with pytest.raises(
            ThrottledError, match=r"task 'save': the throttle of 'a' is full, .* call again in"
        ) as raised:
            await save.enqueue("a", 3)
        with pytest.raises(ThrottledError):
            await save.enqueue_and_wait("a", 4)
        other = await save.enqueue("b", 5)
        await asyncio.sleep(raised.value.retry_in)
        again = await save.enqueue("a", 6)
        await again.result()

        assert other.created
        assert again.created
        assert 39 < raised.value.retry_in <= 40
        assert sorted(ran) == [("a", 1), ("a", 2), ("a", 6), ("b", 5)]

        copied = pickle.loads(pickle.dumps(raised.value))
        assert (str(copied), copied.key, copied.retry_in) == (str(raised.value), "a", raised.value.retry_in)
        assert str(copied).endswith('or let it skip such calls with Throttle(on_limit="skip")')

    run_scenario(scenario)


def test_the_handle_of_a_skipped_call_raises_throttled_error(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        save = saving(app, [], throttle=Throttle(max=1, window="1m", on_limit="skip"))
        latest, skipped = await save.enqueue("a", 1), await save.enqueue("a", 2)
        with pytest.raises(ThrottledError):
            await skipped.result()
        with pytest.raises(ThrottledError):
            await save.enqueue_and_wait("a", 3)

        assert (skipped.action, skipped.created, skipped.id) == ("throttled", False, latest.id)
        assert (latest.refusal, skipped.refusal.task, skipped.refusal.key) == (None, "save", None)
        assert str(skipped.refusal) == str(pickle.loads(pickle.dumps(skipped.refusal)))
        assert str(skipped.refusal).startswith(
            "task 'save': the throttle is full, so this call made no job; call again"
        )
        assert "on_limit" not in str(skipped.refusal)

    run_scenario(scenario)


def test_the_handle_of_a_deleted_job_ignores_a_later_throttled_call(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        save = saving(app, [], throttle=Throttle(max=1, window="1h", on_limit="skip"))
        await app.queue("default").record(JobThrottled)
        call = save.call("a", 1)
        [job] = await app.enqueue_many([call])
        await job.delete()
        [repeated] = await app.enqueue_many([call])

        assert (job.action, repeated.action) == ("created", "throttled")
        with pytest.raises(JobNotFoundError):
            await job.result()

    run_scenario(scenario)


def test_a_throttled_handle_cannot_change_the_job_of_another_caller(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        save = saving(app, [], throttle=Throttle(max=1, window="1h", on_limit="skip"))
        latest, skipped = await save.enqueue("a", 1), await save.enqueue("a", 2)
        for item in (
            *(skipped.state, skipped.info, skipped.cancel, skipped.redrive),
            *(lambda: skipped.reschedule("1h"), lambda: skipped.retain("1h"), lambda: anext(skipped.events())),
        ):
            with pytest.raises(ThrottledError) as raised:
                await item()
            assert raised.value is skipped.refusal
        before = await latest.state()
        await harness.start(app.worker())

        assert before is State.WAITING
        assert await latest.result() == 1
        assert await app.job(skipped.id, save).state() is State.COMPLETED

    run_scenario(scenario)


def test_enqueue_many_reports_each_throttled_call_and_does_not_raise(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        save = saving(app, [], throttle=Throttle(max=2, window="1m"), throw_on_duplicate=True)
        jobs = await app.enqueue_many(save.call("a", version) for version in range(4))

        assert [job.action for job in jobs] == ["created", "created", "throttled", "throttled"]
        with pytest.raises(ThrottledError):
            await jobs[3].result()

    run_scenario(scenario)


def test_a_duplicate_does_not_count_for_a_throttle(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        save = saving(harness.app(), [], unique=Unique("{doc}"), throttle=Throttle(max=2, window="1m", on_limit="skip"))
        jobs = [await save.enqueue(doc) for doc in "aaabc"]

        assert [job.action for job in jobs] == ["created", "duplicate", "duplicate", "created", "throttled"]

    run_scenario(scenario)


def _no_key(doc: str, version: int = 0) -> None: ...


def test_a_call_without_a_key_is_not_limited(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        free = saving(harness.app(), [], throttle=Throttle(_no_key, max=1, window="1m"))
        quick = saving(harness.app(), [], debounce=Debounce(_no_key, delay="1h"))
        jobs = [await task.enqueue("a") for task in (free, free, quick, quick)]

        assert [job.action for job in jobs] == ["created"] * 4
        assert [await job.state() for job in jobs] == [State.WAITING] * 4

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unique": True, "debounce": Debounce(delay=1)}, "unique and debounce contradict each other"),
        (
            {"debounce": Debounce(delay=1), "throttle": Throttle(max=1, window=1)},
            "throttle and debounce contradict each other",
        ),
        ({"debounce": Debounce("{dc}", delay=1)}, r"debounce = '\{dc\}' names 'dc', which task 'save' does not take"),
        ({"throttle": Throttle("{dc}", max=1, window=1)}, r"throttle = '\{dc\}' names 'dc'"),
        (
            {"debounce": Debounce(delay=1), "throw_on_duplicate": True},
            "throw_on_duplicate and debounce contradict each other",
        ),
        ({"throttle": True}, "throttle = True must be a Throttle"),
        ({"debounce": "5s"}, "debounce = '5s' must be a Debounce; write debounce=Debounce"),
        ({"debounce": Debounce(delay="1h"), "ttl": "1h"}, "delay = 1h is not under the ttl of 1h"),
    ],
)
def test_contradicting_options_are_refused_when_the_task_is_defined(options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        saving(Tenure("memory://"), [], **options)


def test_contradicting_options_are_refused_wherever_they_are_merged() -> None:
    save = saving(Tenure("memory://"), [], debounce=Debounce(delay=1))

    for options in ({"delay": 0}, {"run_at": None}, {"unique": True}, {"ttl": "1s"}):
        with pytest.raises(UsageError, match=r"contradict|ttl"):
            save.options(**options)
    with pytest.raises(UsageError, match="unique and debounce contradict"):
        TaskOptions(unique="k", debounce=Debounce(delay=1))
    app = Tenure("memory://", defaults=TaskOptions(unique=True))
    with pytest.raises(UsageError, match="unique and debounce contradict"):
        saving(app, [], debounce=Debounce(delay=1))
    assert saving(app, [], unique=False, debounce=Debounce(delay=1)).call("a").job.merge.delay == 1_000_000
    assert save.options(unique=False).call("a").job.merge.key == "save:"
    with pytest.raises(UsageError, match="throw_on_duplicate and debounce contradict"):
        save.options(throw_on_duplicate=True)


def test_a_task_can_switch_off_options_of_the_app() -> None:
    common = TaskOptions(
        throttle=Throttle(max=1, window="1m"), rate="1/s", fair_key="{doc}", concurrency_key="{doc}", strict=True
    )
    app = Tenure("memory://", defaults=common)
    with pytest.raises(
        UsageError, match=r"throttle and debounce contradict .* or switch the inherited one off with throttle="
    ):
        saving(app, [], debounce=Debounce(delay=1))
    with pytest.raises(UsageError, match=r"lifo and fair_key contradict .* with lifo=False or fair_key=False"):
        saving(app, [], lifo=True)

    @app.task(name="free", throttle=False, rate=False, fair_key=False, concurrency_key=False, strict=False, lifo=True)
    async def free() -> None: ...

    job = free.call().job
    assert (job.throttle, job.rates, job.fair_key, job.keys, job.lifo) == (None, (), None, (), True)
    assert saving(app, []).call("a").job.throttle is not None

    quiet = Tenure("memory://", defaults=TaskOptions(debounce=Debounce(delay=1)))
    assert saving(quiet, [], debounce=False, unique=True).options(delay=5).call("a").job.merge.key.startswith("save:")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Debounce(delay=0), "Debounce.delay = 0 must be longer than zero"),
        (lambda: Debounce(delay="5s", max_wait="1s"), "Debounce.max_wait = 1s is under its delay of 5s"),
        (lambda: Debounce(delay="5s", max_wait="soon"), "Debounce.max_wait = 'soon' is not a duration"),
        (lambda: Debounce("", delay="5s"), "debounce = ''"),
    ],
)
def test_an_invalid_policy_is_refused_when_it_is_created(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
