"""How often jobs start, as a user sees it: across workers, by task, key and queue, set in code and at run time."""

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Unpack

import pytest

from tenure import QueueLimited, Rate, RateLimited, State, Tenure, UsageError, current_job
from tenure.core.job import RateKey
from tenure.options import TaskSettings
from tests.flow.conftest import FAST, Harness, RunScenario
from tests.records import record_of

pytestmark = pytest.mark.thorough


def calling(harness: Harness, app: Tenure, began: list[tuple[str, float]], **options: Unpack[TaskSettings]) -> Any:
    @app.task(name="call", **options)
    async def call(host: str, user: int = 0) -> None:
        began.append((host, harness.now))

    return call


def most_within(instants: Sequence[float], length: float) -> int:
    """Return how many of these sorted instants lie in one interval of this length at most."""
    return max(bisect_left(instants, at + length) - place for place, at in enumerate(instants))


@pytest.mark.fault("W-B8", "W-N18")
def test_ten_a_second_across_three_workers_is_ten_in_every_second(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        began: list[tuple[str, float]] = []
        apps = [harness.app(timing=FAST) for _ in range(3)]
        tasks = [calling(harness, app, began, rate="10/s") for app in apps]
        await apps[0].enqueue_many(tasks[0].call("a", number) for number in range(900))
        for number, app in enumerate(apps):
            await harness.start(app.worker(concurrency=20), f"w{number}")
        await asyncio.sleep(60)
        instants = [at for _, at in began if at < 60]

        assert most_within(instants, 1.0) <= 11
        assert 594 <= len(instants) <= 606

    run_scenario(scenario)


@pytest.mark.fault("W-N12")
def test_claims_that_find_nothing_use_up_no_permit(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        began: list[tuple[str, float]] = []
        app = harness.app(timing=FAST)
        task = calling(harness, app, began, rate="1/m")
        for number in range(3):
            await harness.start(app.worker(), f"w{number}")
        await asyncio.sleep(300)
        asked = harness.now
        await (await task.enqueue("a")).result()

        assert began[0][1] - asked < 0.1

    run_scenario(scenario)


def test_a_rate_by_key_applies_to_each_key_separately(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        began: list[tuple[str, float]] = []
        app = harness.app(timing=FAST)
        task = calling(harness, app, began, rate=Rate(1, per="10s", key="host:{host}", burst=2))
        jobs = await app.enqueue_many(task.call(host) for host in "aaaaabb")
        free = calling(harness, harness.app(timing=FAST), began)
        await harness.start(app.worker())
        jobs.append(await free.enqueue("free"))
        for job in jobs:
            await job.result()

        starts = {host: [round(at) for each, at in began if each == host] for host in ("a", "b", "free")}
        assert starts == {"a": [0, 0, 0, 10, 20], "b": [0, 0], "free": [0]}

    run_scenario(scenario)


def test_two_rates_limit_a_job_together(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        began: list[tuple[str, float]] = []
        app = harness.app(timing=FAST)
        task = calling(harness, app, began, rate=["6/m", Rate(2, key="{host}", burst=1)])
        await app.enqueue_many(task.call(host) for host in "abcdefghijklmnop")
        await harness.start(app.worker())
        await asyncio.sleep(35)

        assert [round(at) for _, at in began] == [0, 0, 10, 20, 30]

    run_scenario(scenario)


def test_several_limits_of_one_name_are_counted_separately(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        task = calling(harness, app, [], rate=("100/m", "10/s", Rate(5, key="h:{host}"), Rate(1, "1m", key="h:{host}")))
        rates = (await record_of(await task.enqueue("x"))).rates

        assert set(rates) == {
            RateKey("task:call", 100_000),
            RateKey("task/600000:call", 600_000),
            RateKey("key:h:x", 200_000),
            RateKey("key/60000000:h:x", 60_000_000),
        }

    run_scenario(scenario)


def test_a_queues_rate_and_a_tasks_are_set_at_run_time(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        began: list[tuple[str, float]] = []
        app = harness.app(timing=FAST)
        task = calling(harness, app, began, rate="1/m")
        await app.enqueue_many(task.call("a") for _ in range(40))
        await harness.start(app.worker(concurrency=20))

        async def counted(seconds: float) -> int:
            before = len(began)
            await asyncio.sleep(seconds)
            return len(began) - before

        assert await counted(9) == 2
        await task.set_rate("1/s", by="ops")
        assert 9 <= await counted(10) <= 11
        await app.queue("default").set_rate(Rate(1, per="5s"))
        await asyncio.sleep(5)
        assert 2 <= await counted(10) <= 3
        await task.set_rate(None)
        await app.queue("default").set_rate(None)
        assert await counted(5) > 10

    run_scenario(scenario)


def test_a_rate_that_is_set_replaces_all_of_the_task_that_have_no_key(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        began: list[tuple[str, float]] = []
        app = harness.app(timing=FAST)
        task = calling(harness, app, began, rate=["1/s", "2/h", Rate(1, per="1h", key="{host}")])
        await app.enqueue_many(task.call(host) for host in "abcdefgg")
        await harness.start(app.worker(concurrency=20))
        await asyncio.sleep(20)
        assert len(began) == 2
        await task.set_rate(None)
        await asyncio.sleep(20)

        # Two by the rate of the key, which stays.
        assert sorted(host for host, _ in began) == list("abcdefgg")
        await task.enqueue("g")
        await asyncio.sleep(20)
        assert len(began) == 8

    run_scenario(scenario)


def test_a_job_that_waits_for_its_rate_holds_no_slot(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        task = calling(harness, app, [], rate="1/h", concurrency_key="{host}")

        @app.task(name="other", concurrency_key="{host}")
        async def other(host: str) -> None: ...

        await app.enqueue_many([task.call("a"), task.call("a")])
        await harness.start(app.worker(concurrency=1))
        await (await other.enqueue("a")).result(timeout="5s")

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        ("10", 'rate = \'10\' is not a rate; write rate="10/s", "100/m" or Rate'),
        ("10 a second", "is not a rate"),
        (10, "rate = 10 is not a rate"),
        ("0/s", "Rate.max = 0 must be 1 or more; to let none start, pause"),
        ("5/0s", "Rate.per"),
        ((), r"rate = \(\) has none in it"),
        (("10/s", "600/m"), "has two rates with the same period and key"),
    ],
)
def test_an_invalid_rate_is_refused(rate: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Tenure("memory://").task(name="call", rate=rate)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rate(0), "Rate.max = 0"),
        (lambda: Rate(1, per="-1s"), "Rate.per"),
        (lambda: Rate(1, burst=0), "Rate.burst = 0"),
        (lambda: Rate(1, per="365d", burst=101), "Rate.burst = 101 takes up more than a hundred years"),
        (lambda: Rate(1, key=5), "rate = 5 must be a template"),  # type: ignore[arg-type]
    ],
)
def test_a_rate_is_checked_when_it_is_created(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


async def test_a_rate_set_for_all_jobs_must_not_have_a_key() -> None:
    app = Tenure("memory://")

    @app.task(name="call")
    async def call() -> None: ...

    with pytest.raises(UsageError, match="has a key, and what is set here holds for all"):
        await app.queue("default").set_rate(Rate(1, key="k"))
    with pytest.raises(UsageError, match="is not a rate"):
        await call.set_rate("often")
    with pytest.raises(UsageError, match=r"rate = '\{host\}' names 'host'"):
        app.task(name="other", rate=Rate(1, key="{host}"))(call.function)


def test_a_rate_is_never_faster_than_declared() -> None:
    assert (Rate(3).interval, Rate(3, per=10).interval, Rate(10**9, per="1s").interval) == (333_334, 3_333_334, 1)


def test_rate_limited_holds_back_the_queue_on_all_workers(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        began = list[float]()

        @app.task(name="call")
        async def call(number: int) -> None:
            began.append(harness.now)
            if number == 0 and current_job().run == 1:
                raise RateLimited("30s")

        await call.enqueue(0)
        workers = [harness.app() for _ in range(3)]
        for number, other in enumerate(workers):
            other.task(name="call")(call.function)
            await harness.start(other.worker(), f"w{number}")
        await harness.until(lambda: _began(began, 1))
        await asyncio.sleep(1)
        jobs = [await call.enqueue(number) for number in range(1, 6)]
        for job in jobs:
            await job.result()

        assert len(began) == 7
        assert min(began[1:]) >= began[0] + 30
        assert max(began[1:]) < began[0] + 33
        (event,) = await harness.events_of(QueueLimited)
        assert (event.queue, event.rate) == ("default", None)

    run_scenario(scenario)


async def _began(began: list[float], count: int) -> bool:
    return len(began) >= count


def test_an_operator_lifts_the_limit_of_a_queue(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="call")
        async def call(number: int) -> None:
            if number == 0:
                raise RateLimited("1h", reason="quota")

        first = await call.enqueue(0)
        await harness.start(app.worker())
        await asyncio.sleep(2)
        assert (await first.info()).job.reason == "rate_limited"
        job = await call.enqueue(1)
        await asyncio.sleep(60)
        assert (await job.info()).job.state is State.WAITING

        await app.queue("default").lift_limit(by="ops")
        await job.result()
        assert harness.now < 70

    run_scenario(scenario)
