"""Which job is next, as a user sees it: priority, strictness, tenants that take turns, the newest first."""

import asyncio
from collections import Counter
from typing import Any, Unpack

import pytest

from tenure import Router, TaskOptions, Tenure, UsageError
from tenure.options import TaskSettings
from tests.flow.conftest import FAST, Harness, RunScenario
from tests.records import record_of


def weight_of(tenant: str, number: int = 0) -> int:
    return -1 if number < 0 else 3 if tenant == "heavy" else 1


def no_key(tenant: str, number: int = 0) -> None: ...


def listing(app: Tenure | Router, ran: list[Any], name: str = "list", **options: Unpack[TaskSettings]) -> Any:
    @app.task(name=name, **options)
    async def list_(tenant: str, number: int = 0) -> None:
        ran.append((tenant, number))

    return list_


async def worked_off(harness: Harness, app: Tenure, jobs: list[Any]) -> None:
    await harness.start(app.worker(concurrency=1))
    for job in jobs:
        await job.result()


def test_tenants_take_turns_however_many_jobs_one_of_them_has(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        ran: list[Any] = []
        app = harness.app(timing=FAST)
        task = listing(app, ran, fair_key="tenant:{tenant}")
        jobs = await app.enqueue_many(task.call("big", number) for number in range(100))
        jobs += await app.enqueue_many(task.call("small", number) for number in range(5))
        await worked_off(harness, app, jobs)

        assert max(place for place, (tenant, _) in enumerate(ran) if tenant == "small") < 12
        assert [number for tenant, number in ran if tenant == "big"] == list(range(100))

    run_scenario(scenario)


@pytest.mark.parametrize("weight", [3, weight_of])
def test_a_tenant_of_weight_three_gets_three_of_four_starts(run_scenario: RunScenario, weight: Any) -> None:
    async def scenario(harness: Harness) -> None:
        ran: list[Any] = []
        app = harness.app(timing=FAST)
        task = listing(app, ran, fair_key="{tenant}", fair_weight=weight)
        light = task.options(fair_weight=1)
        jobs: list[Any] = []
        for number in range(100):
            jobs += await app.enqueue_many([task.call("heavy", number), light.call("light", number)])
        await worked_off(harness, app, jobs)

        share = Counter(tenant for tenant, _ in ran[:80])["heavy"] / 80
        assert 0.70 <= share <= 0.80

    run_scenario(scenario)


def test_a_call_may_name_its_own_tenant_and_weight(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        task = listing(app, [], fair_key="tenant:{tenant}", fair_weight=2)
        plain = listing(harness.app(), [], fair_key=no_key)

        async def tenant(call: Any) -> tuple[str | None, int]:
            job = await record_of((await app.enqueue_many([call]))[0])
            return job.fair_key, job.weight

        assert await tenant(task.call("a")) == ("tenant:a", 2)
        assert await tenant(task.options(fair_key="{vip}", fair_weight=9).call("a")) == ("{vip}", 9)
        assert await tenant(plain.call("a")) == (None, 1)

    run_scenario(scenario)


def test_the_newest_goes_first_where_that_is_requested(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        ran: list[Any] = []
        app = harness.app(timing=FAST)
        task = listing(app, ran, lifo=True)
        jobs: list[Any] = []
        for number in range(5):
            jobs.append(await task.enqueue("a", number))
            await asyncio.sleep(1)
        jobs.append(await task.options(lifo=False).enqueue("last"))
        await worked_off(harness, app, jobs)

        assert ran == [*(("a", number) for number in range(4, -1, -1)), ("last", 0)]

    run_scenario(scenario)


@pytest.mark.thorough
def test_the_single_high_one_overtakes_ten_thousand_low_ones(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        ran: list[Any] = []
        app = harness.app(timing=FAST)
        low = listing(app, ran, priority=-1)
        await app.enqueue_many(low.call("low", number) for number in range(10_000))
        high = await low.options(priority=1).enqueue("high")
        await worked_off(harness, app, [high])

        assert ran[0] == ("high", 0)

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lifo": True, "fair_key": "{tenant}"}, "lifo and fair_key contradict each other"),
        ({"lifo": True, "strict": True}, "lifo and strict contradict each other"),
        ({"fair_weight": 3}, 'fair_weight needs a fair_key; give one, fair_key="tenant'),
        ({"lifo": 1}, "lifo = 1 must be True or False"),
        ({"fair_key": "{tenat}"}, "fair_key = '{tenat}' names 'tenat', which task 'list' does not take"),
        ({"fair_key": 3}, "fair_key = 3 must be a template"),
        ({"fair_weight": 0}, "fair_weight = 0 must be 1 or more"),
        ({"fair_weight": 1001}, "fair_weight = 1001 must be 1,000 or less"),
        ({"fair_weight": "3"}, "fair_weight = '3' must be a whole number from 1 to 1000, or a function"),
    ],
)
def test_an_invalid_order_is_refused_when_the_task_is_defined(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        listing(Tenure("memory://"), [], **options)


def test_an_invalid_order_is_refused_when_options_are_merged() -> None:
    fair = listing(Tenure("memory://"), [], fair_key="{tenant}")
    newest = listing(Tenure("memory://"), [], lifo=True)

    with pytest.raises(UsageError, match="contradict"):
        fair.options(lifo=True)
    with pytest.raises(UsageError, match="contradict"):
        newest.options(fair_key="a")
    with pytest.raises(UsageError, match="contradict"):
        listing(Tenure("memory://", defaults=TaskOptions(fair_key="{tenant}")), [], lifo=True)
    assert newest.options(fair_key="a", lifo=False).call("a").job.fair_key == "a"
    with pytest.raises(UsageError, match="lifo and strict contradict"):
        listing(Tenure("memory://"), [], strict=True).options(lifo=True)


def test_a_weight_needs_a_key_wherever_that_comes_from() -> None:
    plain = listing(Tenure("memory://"), [])
    with pytest.raises(UsageError, match="fair_weight needs a fair_key"):
        plain.options(fair_weight=3)
    assert plain.options(fair_weight=3, fair_key="a").call("b").job.weight == 3
    keyed = Tenure("memory://", defaults=TaskOptions(fair_key="{tenant}"))
    heavy = Tenure("memory://", defaults=TaskOptions(fair_weight=3))

    assert listing(keyed, [], fair_weight=3).call("a").job.weight == 3
    assert listing(heavy, []).call("a").job.weight == 1
    assert listing(heavy, [], name="fair", fair_key="{tenant}").call("a").job.weight == 3
    router = Router(defaults=TaskOptions(fair_key="{tenant}"))
    late = listing(router, [], name="late", fair_weight=3)
    bound = late.options(fair_weight=5)
    heavy.include(router)
    assert (late.call("a").job.weight, bound.call("a").job.weight) == (3, 5)


def test_an_invalid_weight_is_refused_at_the_call() -> None:
    heavy = listing(Tenure("memory://"), [], fair_key="{tenant}", fair_weight=weight_of)

    assert heavy.call("heavy", 7).job.weight == 3
    with pytest.raises(UsageError, match="fair_weight = -1"):
        heavy.call("a", -1)
    with pytest.raises(UsageError, match=r"fair_weight = 1\.5"):
        heavy.options(fair_weight=1.5)
    with pytest.raises(UsageError, match="fair_key = ''"):
        heavy.call("", 1)


def test_each_queue_of_a_worker_is_the_first_in_its_turn(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        started: list[str] = []

        @app.task(name="note")
        async def note(queue: str) -> None:
            started.append(queue)

        queues = ["one", "two", "three"]
        for queue in queues:
            await app.enqueue_many(note.options(queue=queue).call(queue) for _ in range(20))
        worker = app.worker(queues=queues, concurrency=1, prefetch=0)
        await harness.start(worker)

        async def enough() -> bool:
            return len(started) >= 12

        await harness.until(enough)

        assert {queue: started[:12].count(queue) for queue in queues} == dict.fromkeys(queues, 4)

    run_scenario(scenario)
