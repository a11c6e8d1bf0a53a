"""Routers: the parts of a large app, written without it and included in it."""

import asyncio
from typing import Any

import pytest

from tenure import JobCompleted, Proceed, Router, RunCall, Stall, TaskOptions, Tenure, UsageError, current_job
from tests.flow.conftest import Harness, RunScenario
from tests.records import record_of

Loose: Any = Router
LooseApp: Any = Tenure


def test_a_routers_tasks_and_handlers_work_as_the_apps_own_do(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        heard: list[Any] = []
        router = Router(prefix="billing.", defaults=TaskOptions(queue="billing"))

        @router.task(name="charge", timeout="5m")
        async def charge(account: int, *, cents: int = 1) -> str:
            return f"{current_job().id} {account} {cents}"

        @router.task
        async def refund(account: int) -> int:
            return -account

        @charge.on(JobCompleted)
        async def of_task(event: JobCompleted) -> None:
            heard.append(("task", event.task))

        @router.on(JobCompleted)
        async def of_app(event: JobCompleted) -> None:
            heard.append(("app", event.task))

        app = harness.app()
        app.include(router)
        await harness.start(app.worker())
        job = await charge.enqueue(7, cents=2)

        assert await job.result() == f"{job.id} 7 2"
        assert await (await refund.enqueue(7)).result() == -7
        assert (charge.name, charge.queue, refund.name, refund.queue) == (
            *("billing.charge", "billing"),
            *("billing.refund", "billing"),
        )
        assert (await record_of(job)).timeout == 300_000_000
        assert app.find_task("billing.charge") is charge

        async def all_heard() -> bool:
            return len(heard) == 3

        await harness.until(all_heard)
        assert sorted(heard) == [("app", "billing.charge"), ("app", "billing.refund"), ("task", "billing.charge")]

    run_scenario(scenario)


def test_prefixes_are_joined_and_the_inner_options_win() -> None:
    shop = Router(prefix="shop.", defaults=TaskOptions(queue="shop", priority=1, stall=Stall(max_count=5)))
    mail = Router(prefix="mail.", defaults=TaskOptions(queue="mail", stall=Stall(interval="30s")))

    @mail.task(name="send", priority=9)
    async def send() -> None: ...

    @mail.task
    async def sort() -> None: ...

    @shop.task
    async def close() -> None: ...

    shop.include(mail)
    app = Tenure("memory://", defaults=TaskOptions(queue="app", strict=True))
    app.include(shop)

    assert sorted(app.tasks) == ["shop.close", "shop.mail.send", "shop.mail.sort"]
    assert [(task.queue, task.settings.priority) for task in (send, sort, close)] == [
        *(("mail", 9), ("mail", 1)),
        ("shop", 1),
    ]
    job = send.call().job
    assert (job.task, job.queue, job.priority, job.boost) == ("shop.mail.send", "mail", 9, 9 * 10_000_000_000_000)
    assert (job.stall.lease, job.stall.max_stalls) == (30_000_000, 5)


def test_without_a_prefix_a_routers_task_is_named_as_an_apps() -> None:
    router = Router()

    @router.task
    async def plain() -> None: ...

    Tenure("memory://").include(router)

    assert plain.name.startswith("tests.flow.test_routers.")


def test_a_call_of_a_task_without_an_app_raises_an_error_with_the_remedy() -> None:
    router = Router(prefix="billing.")

    @router.task
    async def charge(account: int) -> None: ...

    for use in (charge.call, charge.options(priority=1).call):
        with pytest.raises(
            UsageError, match=r"'billing.charge' belongs to a router that no app includes yet.*app\.include"
        ):
            use(1)
    with pytest.raises(UsageError, match=r"app\.include"):
        charge.job("id")


async def test_waiting_and_pausing_are_refused_before_the_router_is_included() -> None:
    router = Router()

    @router.task(name="charge")
    async def charge() -> int:
        return 1

    for use in (charge.enqueue, charge.enqueue_and_wait, charge.pause, charge.options(delay=1).enqueue):
        with pytest.raises(UsageError, match=r"app\.include"):
            await use()

    assert await charge() == 1


def test_options_set_before_the_router_is_included_apply_in_the_app() -> None:
    router = Router(prefix="a.", defaults=TaskOptions(priority=3))

    @router.task(name="task")
    async def task() -> None: ...

    soon = task.options(delay="5s")
    with pytest.raises(UsageError, match="dely"):
        task.options(dely="5s")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Tenure("memory://", defaults=TaskOptions(queue="app")).include(router)
    job = soon.call().job

    assert (job.task, job.queue, job.delay, job.priority) == ("a.task", "app", 5_000_000, 3)


def test_additions_to_an_included_router_reach_the_app_at_once() -> None:
    app, outer, inner = Tenure("memory://"), Router(prefix="outer."), Router(prefix="inner.")
    app.include(outer)

    @outer.task
    async def first() -> None: ...

    @inner.task
    async def second() -> None: ...

    outer.include(inner)

    @inner.task
    async def third() -> None: ...

    assert sorted(app.tasks) == ["outer.first", "outer.inner.second", "outer.inner.third"]
    with pytest.raises(UsageError, match=r"'outer\.first' is defined twice"):
        outer.task(name="first")(first.function)


def test_a_router_is_included_once() -> None:
    app, other, router, inner = Tenure("memory://"), Tenure("memory://"), Router(prefix="r."), Router()
    router.include(inner)
    app.include(router)

    for twice in (app.include, other.include, Router().include):
        for included in (router, inner):
            with pytest.raises(UsageError, match=r"included already.*function that returns a new Router"):
                twice(included)


def test_routers_that_include_each_other_are_refused() -> None:
    outer, middle, inner = Router(prefix="o."), Router(prefix="m."), Router(prefix="i.")
    outer.include(middle)
    middle.include(inner)

    with pytest.raises(UsageError, match="include the inner one in the outer one"):
        inner.include(outer)
    with pytest.raises(UsageError, match="or is the same"):
        outer.include(outer)


def test_an_invalid_router_leaves_the_app_unchanged() -> None:
    app = Tenure("memory://")

    @app.task(name="r.taken")
    async def taken() -> None: ...

    outer, router = Router(), Router(prefix="r.")

    @outer.task(name="fine")
    async def fine() -> None: ...

    @router.task(name="taken")
    async def again() -> None: ...

    outer.include(router)
    with pytest.raises(UsageError, match=r"'r\.taken' is defined twice"):
        app.include(outer)
    keyed = Router(prefix="k.", defaults=TaskOptions(concurrency_key="account:{account}"))

    @keyed.task
    async def keyless() -> None: ...

    with pytest.raises(UsageError, match=r"'account', which task 'k\.keyless' does not take"):
        app.include(keyed)

    assert list(app.tasks) == ["r.taken"]
    with pytest.raises(UsageError, match="no app includes yet"):
        fine.call()
    Tenure("memory://").include(outer)
    assert fine.call().job.task == "fine"


def test_a_router_with_two_tasks_of_one_name_is_refused_at_inclusion() -> None:
    router = Router()
    router.task(name="one")(lambda: None)
    router.task(name="one")(lambda: None)

    with pytest.raises(UsageError, match="'one' is defined twice"):
        Tenure("memory://").include(router)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Loose(prefix=5), "prefix = 5 must be a text"),
        (lambda: Loose(prefix=None), "prefix = None must be a text"),
        (lambda: Loose(defaults={"queue": "mail"}), "defaults = .* must be a TaskOptions; write"),
        (lambda: Loose().task(ttt=1), "option 'ttt' is unknown"),
        (lambda: Loose().task(queue=""), "queue"),
        (lambda: Loose().task(name=""), "name"),
        (lambda: Loose().task(5), "5 cannot be called"),
        (lambda: Loose().task(Loose().task(lambda: None)), "is a task already"),
        (lambda: Loose().on(int), "is not an event class"),
        (lambda: Loose().on(JobCompleted, scope="all"), "scope"),
        (lambda: Loose().on(JobCompleted)(5), "cannot handle events"),
        (lambda: Loose().task(lambda: None).on(int), "not an event class of jobs"),
        (lambda: Loose().include(5), "router = 5 must be a Router; write"),
        (lambda: LooseApp("memory://").include(LooseApp("memory://")), "must be a Router; write"),
    ],
)
def test_bad_input_to_a_router_is_refused_at_the_call(made: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made()


def test_a_task_name_that_prefixes_make_too_long_is_refused_at_inclusion() -> None:
    router = Router(prefix="p" * 600)
    router.task(name="n" * 400)(lambda: None)
    outer = Router(prefix="o" * 600)
    outer.include(router)

    with pytest.raises(UsageError, match="1,024"):
        Tenure("memory://").include(outer)


def test_schedules_of_a_router_get_its_prefix_in_the_app(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, outer, router, runs = harness.app(), Router(prefix="shop."), Router(prefix="mail."), list[str]()

        @router.every("30s", args=["often"])
        @router.cron("0 4 * * *", name="nightly", tz="Europe/Vienna", kwargs={"what": "night"})
        @router.task(name="send")
        async def send(what: str) -> None:
            runs.append(what)

        outer.include(router)
        app.include(outer)

        @router.every("1m", name="late", queue="slow", overlap="allow")
        async def tidy() -> None:
            runs.append("tidy")

        await harness.start(app.worker())
        await asyncio.sleep(65)
        schedules = {schedule.name: schedule for schedule in (await harness.storage.survey()).schedules}

        assert sorted(schedules) == ["shop.mail.late", "shop.mail.nightly", "shop.mail.send"]
        assert schedules["shop.mail.nightly"].tz == "Europe/Vienna"
        assert (schedules["shop.mail.late"].job.task, schedules["shop.mail.late"].job.queue) == (
            "shop.mail.tidy",
            "slow",
        )
        assert set(runs) == {"often", "tidy"}

    run_scenario(scenario)


def test_middleware_of_a_router_is_between_the_apps_and_the_tasks(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, outer, inner, seen = harness.app(), Router(), Router(), list[str]()

        def named(name: str) -> Any:
            async def layer(call: RunCall, proceed: Proceed) -> Any:
                seen.append(name)
                return await proceed()

            return layer

        @inner.task(name="deep", middleware=[named("task")])
        async def deep() -> None:
            seen.append("handler")

        @outer.task(name="flat")
        async def flat() -> None:
            seen.append("handler")

        inner.middleware(named("inner"))
        outer.include(inner)
        app.include(outer)
        app.middleware(named("app"))
        outer.middleware(named("outer"))
        await harness.start(app.worker())
        await deep.enqueue_and_wait()
        assert seen == ["app", "outer", "inner", "task", "handler"]
        seen.clear()
        await flat.enqueue_and_wait()
        assert seen == ["app", "outer", "handler"]

    run_scenario(scenario)


def test_an_implementation_has_the_middleware_of_its_own_router(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, contract, handlers, seen = harness.app(), Router(), Router(), list[str]()

        @handlers.middleware
        async def layer(call: RunCall, proceed: Proceed) -> Any:
            seen.append(call.task)
            return await proceed()

        @contract.middleware
        async def other(call: RunCall, proceed: Proceed) -> Any:
            raise AssertionError("it has no handler here")

        @contract.declare(name="send")
        async def send() -> None: ...

        async def own(call: RunCall, proceed: Proceed) -> Any:
            seen.append("own")
            return await proceed()

        @contract.declare(name="sort")
        async def sort() -> None: ...

        @handlers.implement(send, middleware=[own])
        async def deliver() -> None: ...

        app.include(contract)
        app.include(handlers)

        @app.implement(sort, middleware=[own, own])
        async def sorts() -> None: ...

        await harness.start(app.worker())
        await send.enqueue_and_wait()
        await sort.enqueue_and_wait()

        assert seen == ["send", "own", "own", "own"]

    run_scenario(scenario)


def takes_one(number: int) -> None: ...


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Loose().cron("61 * * * *")(takes_one), "61"),
        (lambda: Loose().every("-1s")(takes_one), "every"),
        (lambda: Loose().every("1s", ttt=1), "option 'ttt' is unknown"),
        (lambda: Loose().every("1s", name="")(takes_one), "name"),
        (lambda: Loose().every("1s", args=5)(takes_one), "args = 5 must be several"),
        (lambda: Loose().every("1s")(takes_one), "missing a required argument: 'number'"),
        (lambda: Loose().every("1s", args=[1], grace=-1)(takes_one), "grace"),
        (lambda: Loose().every("1s", args=[1])(Loose().task(takes_one)), "not a task of <router ''>"),
        (lambda: Loose().every("1s", queue="a")(Loose().task(takes_one)), "has its options already"),
        (lambda: Loose().middleware(takes_one), "must be a coroutine function"),
    ],
)
def test_invalid_schedules_and_middleware_of_a_router_are_refused_at_once(made: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made()


def test_an_invalid_schedule_prevents_its_routers_inclusion() -> None:
    app, outer, router, second = Tenure("memory://"), Router(), Router(prefix="p."), Router()

    @app.every("1s", name="p.often")
    async def own() -> None: ...

    @second.task(name="b")
    async def other() -> None: ...

    @router.every("1s", name="seldom")
    @router.every("1s", name="often")
    @router.task(name="a")
    async def task() -> None: ...

    outer.include(second)
    outer.include(router)
    before = dict(app.tasks)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"schedule 'p\.often' is defined twice"):
            app.include(outer)
    assert app.tasks == before
    with pytest.raises(UsageError, match="no app includes"):
        other.call()

    free = Tenure("memory://")
    free.include(outer)
    assert sorted(free.tasks) == ["b", "p.a"]
    assert sorted(free.runtime().schedules) == ["p.often", "p.seldom"]


def test_arguments_that_only_the_app_can_check_prevent_the_inclusion_too() -> None:
    app, router = Tenure("memory://"), Router()

    @router.every("1s", args=["many"])
    @router.task(name="count")
    async def count(number: int) -> None: ...

    with pytest.raises(UsageError, match="'number': Expected `int`"):
        app.include(router)

    assert (app.tasks, dict(app.runtime().schedules)) == ({}, {})


def test_a_function_with_an_invalid_schedule_is_not_registered_as_a_task() -> None:
    app = Tenure("memory://")
    cron: Any = app.cron("0 4 * * *", args=[1, 2])

    with pytest.raises(UsageError, match="too many positional arguments"):
        cron(takes_one)

    assert app.tasks == {}
