"""Singletons and concurrency keys as a user sees them: which jobs run at the same time, and which is next."""

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import pytest

from tenure import Retry, State, Tenure, UsageError
from tenure.client.task import TaskDecorator
from tenure.core.job import Key
from tests.flow.conftest import FAST, Harness, RunScenario
from tests.records import record_of


class Gauge:
    """Counts the jobs that run at the same time by name, and records when each began."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.began: list[tuple[str, int, float]] = []
        self._now = now

    async def hold(self, name: str, number: int, seconds: float = 1.0) -> None:
        self.began.append((name, number, self._now()))
        self.running[name] += 1
        self.most[name] = max(self.most[name], self.running[name])
        await asyncio.sleep(seconds)
        self.running[name] -= 1


def keyed(app: Tenure, gauge: Gauge, **options: Any) -> Any:
    options.setdefault("concurrency_key", "account:{account}")

    defined = cast(TaskDecorator, app.task(name="charge", **options))

    @defined
    async def charge(account: str, number: int = 0) -> None:
        await gauge.hold(account, number)

    return charge


@pytest.mark.statement(68)
@pytest.mark.statement(70)
def test_a_singleton_runs_alone_across_all_workers_and_in_order(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        gauge = Gauge(lambda: harness.now)
        apps = [harness.app(timing=FAST) for _ in range(3)]
        tasks = [keyed(app, gauge, singleton=True, concurrency_key=None) for app in apps]
        jobs = [await tasks[0].enqueue("a", number) for number in range(8)]
        for number, app in enumerate(apps):
            await harness.start(app.worker(concurrency=10), f"w{number}")
        for job in jobs:
            await job.result()

        assert gauge.most["a"] == 1
        assert [number for _, number, _ in gauge.began] == list(range(8))

    run_scenario(scenario)


@pytest.mark.statement(69)
def test_the_next_job_starts_the_moment_a_slot_frees(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        gauge = Gauge(lambda: harness.now)
        one, two = harness.app(timing=FAST), harness.app(timing=FAST)
        task = keyed(one, gauge)
        keyed(two, gauge)
        jobs = [await task.enqueue("a", number) for number in range(5)]
        await harness.start(one.worker(), "one")
        await harness.start(two.worker(), "two")
        for job in jobs:
            await job.result()
        begins = [at for _, _, at in gauge.began]
        gaps = [later - earlier for earlier, later in pairwise(begins)]

        # Each runs for a second; any more time was spent waiting with a free slot.
        assert max(gaps) < 1.1

    run_scenario(scenario)


@pytest.mark.fault("W-T12", "W-N11")
@pytest.mark.statement(76)
@pytest.mark.statement(80)
def test_a_full_key_delays_only_its_own_jobs_which_run_in_order(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        gauge = Gauge(lambda: harness.now)
        app = harness.app(timing=FAST)
        task = keyed(app, gauge, concurrency_limit=2)
        crowd = [await task.enqueue("crowd", number) for number in range(150)]
        lone = await task.enqueue("lone")
        began = harness.now
        await harness.start(app.worker(concurrency=5))
        await lone.result()
        waited = harness.now - began
        for job in crowd:
            await job.result()
        order = [number for name, number, _ in gauge.began if name == "crowd"]

        assert waited < 1.2
        assert gauge.most["crowd"] == 2
        assert order == sorted(order)

    run_scenario(scenario)


@pytest.mark.statement(75)
def test_the_calls_key_and_limit_win_over_the_tasks(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        task = keyed(app, Gauge(lambda: harness.now), concurrency_limit=3)
        plain = keyed(harness.app(), Gauge(lambda: harness.now), concurrency_key=None, concurrency_limit=4)

        async def keys(job: Any) -> tuple[Key, ...]:
            return (await record_of(job)).keys

        assert await keys(await task.enqueue("a")) == (Key("account:a", 3),)
        assert await keys(await task.options(concurrency_limit=5).enqueue("a")) == (Key("account:a", 5),)
        assert await keys(await task.options(concurrency_key="{as it is}").enqueue("a")) == (Key("{as it is}", 3),)
        assert await keys(await plain.enqueue("a")) == ()
        assert await keys(await plain.options(concurrency_key="k").enqueue("a")) == (Key("k", 4),)

    run_scenario(scenario)


def test_a_key_may_come_from_a_function_of_the_arguments(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        def by_account(account: str, number: int = 0) -> str | None:
            return f"even {account}" if number % 2 == 0 else None

        task = keyed(app, Gauge(lambda: harness.now), concurrency_key=by_account)
        even, odd = await task.enqueue("a"), await task.enqueue("a", number=1)

        assert (await record_of(even)).keys == (Key("even a", 1),)
        assert (await record_of(odd)).keys == ()

    run_scenario(scenario)


def test_a_template_sees_the_defaults_and_reaches_into_its_arguments(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="ship", concurrency_key="{order[city]}/{number:03d}")
        async def ship(order: dict[str, str], number: int = 7) -> None: ...

        job = await ship.enqueue({"city": "Bern"})

        assert (await record_of(job)).keys == (Key("Bern/007", 1),)

    run_scenario(scenario)


@pytest.mark.fault("F3")
@pytest.mark.statement(72)
@pytest.mark.statement(78)
def test_the_slot_of_a_crashed_holder_is_freed_by_its_recovery(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        gauge = Gauge(lambda: harness.now)
        app = harness.app(timing=FAST)
        task = keyed(app, gauge)
        jobs = [await task.enqueue("a", number) for number in range(2)]
        node = await harness.start(app.worker(reaper=False), "victim")
        await asyncio.sleep(0.5)
        harness.loop.kill(node)
        gauge.running.clear()
        await harness.start(app.worker())
        for job in jobs:
            await job.result()

        assert gauge.most["a"] == 1
        assert [number for _, number, _ in gauge.began] == [0, 0, 1]

    run_scenario(scenario)


@pytest.mark.statement(73)
def test_a_job_that_waits_for_its_next_attempt_holds_no_slot(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(name="flaky", singleton=True, retry=Retry(base="60s", jitter=False))
        async def flaky(fails: bool) -> str:
            if fails:
                raise ValueError
            return "done"

        first, second = await flaky.enqueue(fails=True), await flaky.enqueue(fails=False)
        await harness.start(app.worker())

        assert await second.result(timeout="5s") == "done"
        assert await first.state() is State.DELAYED

    run_scenario(scenario)


@pytest.mark.statement(74)
def test_singletons_of_different_tasks_do_not_block_each_other(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        meet = asyncio.Event()

        @app.task(name="waits", singleton=True)
        async def waits() -> None:
            await meet.wait()

        @app.task(name="comes", singleton=True)
        async def comes() -> None:
            meet.set()

        first, second = await waits.enqueue(), await comes.enqueue()
        await harness.start(app.worker())
        await second.result()
        await first.result()

    run_scenario(scenario)


def test_a_job_with_two_keys_takes_both_slots_or_none(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        gauge = Gauge(lambda: harness.now)
        app = harness.app(timing=FAST)

        @app.task(name="other", concurrency_key="account:{account}")
        async def other(account: str) -> None:
            await gauge.hold(account, -1, 5)

        both = keyed(app, gauge, singleton=True)
        holder = await other.enqueue("a")
        jobs = [await both.enqueue("a", 0), await both.enqueue("b", 1)]
        await harness.start(app.worker())
        await jobs[1].result()
        # The one that waits for its account must not hold the singleton's slot meanwhile.
        assert harness.now < 3
        await jobs[0].result()
        await holder.result()

        assert gauge.most == {"a": 1, "b": 1}

    run_scenario(scenario)


def test_a_paused_task_lets_others_pass_and_continues_in_order(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        gauge = Gauge(lambda: harness.now)
        app = harness.app(timing=FAST)
        task = keyed(app, gauge, concurrency_key=None)

        @app.task(name="passes")
        async def passes() -> None: ...

        await task.pause(by="ops")
        jobs = [await task.enqueue("a", number) for number in range(6)]
        await harness.start(app.worker(concurrency=1))
        await (await passes.enqueue()).result(timeout="2s")
        survey = await harness.storage.survey()
        assert (survey.paused_tasks, gauge.began) == (("charge",), [])
        await task.resume()
        for job in jobs:
            await job.result()

        assert [number for _, number, _ in gauge.began] == list(range(6))

    run_scenario(scenario)


def test_a_singleton_may_not_be_sent_to_another_queue() -> None:
    task = keyed(Tenure("memory://"), Gauge(lambda: 0.0), singleton=True, concurrency_key=None)

    with pytest.raises(UsageError, match="is a singleton"):
        task.options(queue="elsewhere")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("account:{acount}", "names 'acount', which task 'charge' does not take; it takes account, number"),
        ("account:{", "is not a template"),
        ("{0}", "names '0'"),
        (7, "must be a template"),
        ("", "concurrency_key"),
        ("{number:>{number}}", "takes a format from an argument"),
        (asyncio.sleep, "is a coroutine function"),
        ("singleton:x", "begins with a reserved word"),
        ("paused:{account}", "begins with a reserved word"),
    ],
)
def test_an_invalid_key_is_refused_when_the_task_is_defined(key: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        keyed(Tenure("memory://"), Gauge(lambda: 0.0), concurrency_key=key)


def test_a_key_that_fails_on_its_arguments_is_refused_at_the_call() -> None:
    app = Tenure("memory://")
    lookup = keyed(app, Gauge(lambda: 0.0), concurrency_key="{account[city]}")
    empty = keyed(Tenure("memory://"), Gauge(lambda: 0.0), concurrency_key="{account}")

    with pytest.raises(UsageError, match="fails on these arguments"):
        lookup.call("a")
    with pytest.raises(UsageError, match="concurrency_key"):
        empty.call("")
    with pytest.raises(UsageError, match="begins with a reserved word"):
        empty.options(concurrency_key="singleton:charge")
    with pytest.raises(UsageError, match="concurrency_limit"):
        empty.options(concurrency_limit=0)
