"""Middleware: the order in which it wraps a run, what it may do there, and what it must not."""

import asyncio
from typing import Any

import pytest

from tenure import (
    JobCancelledError,
    JobFailedError,
    Proceed,
    Reject,
    Retry,
    RetryLater,
    Router,
    RunCall,
    Snooze,
    State,
    TaskOptions,
    Tenure,
    UsageError,
    current_job,
)
from tests.flow.conftest import FAST, Harness, RunScenario

ONCE = Retry(max_attempts=1)


def noting(notes: list[str], name: str) -> Any:
    """Return middleware that notes when it is entered and left."""

    async def layer(call: RunCall, proceed: Proceed) -> Any:
        notes.append(f"> {name}")
        try:
            return await proceed()
        finally:
            notes.append(f"< {name}")

    return layer


def test_the_apps_middleware_wraps_the_tasks_each_in_the_given_order(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        notes: list[str] = []

        @app.task(middleware=[noting(notes, "task 1"), noting(notes, "task 2")])
        async def task(number: int) -> int:
            notes.append("handler")
            return number

        @app.task
        async def plain(number: int) -> int:
            return number

        app.middleware(noting(notes, "app 1"))
        app.middleware(noting(notes, "app 2"))
        await harness.start(app.worker())

        assert await (await task.enqueue(7)).result() == 7
        assert notes == [
            *("> app 1", "> app 2", "> task 1", "> task 2"),
            "handler",
            *("< task 2", "< task 1", "< app 2", "< app 1"),
        ]
        notes.clear()
        assert await (await plain.enqueue(7)).result() == 7
        assert notes == ["> app 1", "> app 2", "< app 2", "< app 1"]

    run_scenario(scenario)


def test_a_tasks_own_middleware_replaces_that_of_its_router_or_defaults(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        notes: list[str] = []
        app = harness.app(defaults=TaskOptions(middleware=[noting(notes, "default")]))
        router = Router(prefix="r.", defaults=TaskOptions(middleware=[noting(notes, "router")]))

        @app.task
        async def one() -> None: ...

        @router.task
        async def two() -> None: ...

        @router.task(middleware=[])
        async def three() -> None: ...

        app.include(router)
        await harness.start(app.worker())
        for task in (one, two, three):
            await (await task.enqueue()).result()

        assert notes == ["> default", "< default", "> router", "< router"]

    run_scenario(scenario)


def test_middleware_sees_the_run_and_may_change_arguments_and_result(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        seen: list[Any] = []

        @app.middleware
        async def double(call: RunCall, proceed: Proceed) -> Any:
            seen.append((call.task, call.job.id, call.job is current_job(), call.args, dict(call.kwargs)))
            call.args = tuple(2 * arg for arg in call.args)
            call.kwargs["note"] += "!"
            return [await proceed(), "replaced"]

        @app.task(name="add")
        async def add(a: int, b: int, *, note: str) -> Any:
            return a + b, note

        await harness.start(app.worker())
        job = await add.enqueue(1, 2, note="n")

        assert await job.result() == [[6, "n!"], "replaced"]
        assert seen == [("add", job.id, True, (1, 2), {"note": "n"})]

    run_scenario(scenario)


def test_a_change_of_one_run_does_not_reach_the_next(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.middleware
        async def add_one(call: RunCall, proceed: Proceed) -> Any:
            call.args = (*call.args, 1)
            return await proceed()

        @app.task(retry=Retry(max_attempts=3, base="1s"))
        async def count(*numbers: int) -> int:
            if current_job().run < 3:
                raise ConnectionError
            return len(numbers)

        await harness.start(app.worker())

        assert await (await count.enqueue()).result() == 1

    run_scenario(scenario)


def test_middleware_that_does_not_proceed_skips_the_handler(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        calls: list[int] = []

        async def answer(call: RunCall, proceed: Proceed) -> Any:
            return "from a cache"

        @app.task(middleware=[answer])
        async def task() -> str:
            calls.append(1)
            return "made"

        await harness.start(app.worker())

        assert await (await task.enqueue()).result() == "from a cache"
        assert calls == []

    run_scenario(scenario)


def test_calling_proceed_twice_fails_the_run_and_names_the_middleware(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        calls: list[int] = []

        async def stubborn(call: RunCall, proceed: Proceed) -> Any:
            try:
                return await proceed()
            except ConnectionError:
                return await proceed()

        @app.task(middleware=[stubborn], retry=ONCE)
        async def task() -> None:
            calls.append(1)
            raise ConnectionError

        await harness.start(app.worker())
        job = await task.enqueue()

        with pytest.raises(JobFailedError, match=r"UsageError.*stubborn called proceed\(\) twice"):
            await job.result()
        assert calls == [1]

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("error", "state", "ended"),
    [
        (RetryLater("10s"), State.DELAYED, "raised"),
        (Snooze("10s"), State.DELAYED, "released"),
        (Reject("no"), State.FAILED, "rejected"),
        (ConnectionError("no"), State.DELAYED, "raised"),
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_exceptions_of_middleware_count_like_those_of_the_handler(
    run_scenario: RunScenario, error: Exception, state: State, ended: str, after: bool
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        async def raising(call: RunCall, proceed: Proceed) -> Any:
            if after:
                await proceed()
            raise error

        @app.task(middleware=[raising], retry=Retry(max_attempts=3, base="10s"))
        async def task() -> None: ...

        await harness.start(app.worker())
        job = await task.enqueue()
        await asyncio.sleep(2)
        (run,) = (await job.info()).runs

        assert (await job.state(), run.ended) == (state, ended)

    run_scenario(scenario)


def test_middleware_may_replace_an_exception_with_a_result(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.middleware
        async def spare(call: RunCall, proceed: Proceed) -> Any:
            try:
                return await proceed()
            except ConnectionError as error:
                return f"spared: {error}"

        @app.task
        async def task() -> str:
            raise ConnectionError("away")

        await harness.start(app.worker())

        assert await (await task.enqueue()).result() == "spared: away"

    run_scenario(scenario)


def test_a_cancel_passes_through_middleware_and_the_hook_runs_outside_it(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        notes: list[str] = []

        @app.middleware
        async def watch(call: RunCall, proceed: Proceed) -> Any:
            try:
                return await proceed()
            except asyncio.CancelledError:
                notes.append(f"cancelled {call.job.cancelled}")
                raise

        @app.task
        async def task() -> None:
            await asyncio.sleep(3600)

        @task.on_cancel
        async def tidy() -> None:
            notes.append("tidied")

        await harness.start(app.worker())
        job = await task.enqueue()
        await asyncio.sleep(1)
        await job.cancel("enough")

        with pytest.raises(JobCancelledError, match="enough"):
            await job.result()
        assert notes == ["cancelled True", "tidied"]

    run_scenario(scenario)


def test_the_runs_timeout_covers_middleware(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        notes: list[str] = []

        async def slow(call: RunCall, proceed: Proceed) -> Any:
            try:
                await asyncio.sleep(4)
                value = await proceed()
                await asyncio.sleep(4)
            finally:
                notes.append("left")
            return value

        @app.task(middleware=[slow], timeout="5s", retry=ONCE)
        async def task() -> None:
            notes.append("handler")

        await harness.start(app.worker())
        job = await task.enqueue()

        with pytest.raises(JobFailedError, match="timeout of 5 s"):
            await job.result()
        assert notes == ["handler", "left"]

    run_scenario(scenario)


def test_waiting_middleware_is_stopped_at_shutdown_and_its_job_released(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        notes: list[str] = []

        @app.middleware
        async def waits(call: RunCall, proceed: Proceed) -> Any:
            try:
                await asyncio.sleep(3600 if call.job.run == 1 else 0)
                return await proceed()
            finally:
                notes.append(f"left {call.job.run}")

        @app.task
        def plain() -> int:
            # Never reached in the first run: a thread does not follow virtual time.
            raise AssertionError

        worker = app.worker()
        node = await harness.start(worker)
        job = await plain.enqueue()
        await asyncio.sleep(1)
        await harness.stop(node, worker, timeout="1s")
        record = (await job.info()).job

        assert notes == ["left 1"]
        assert (record.state, record.releases, record.failures) == (State.WAITING, 1, 0)

    run_scenario(scenario)


async def test_middleware_wraps_plain_handlers_and_sets_their_context() -> None:
    app = Tenure("memory://")
    notes: list[Any] = []

    @app.middleware
    async def watch(call: RunCall, proceed: Proceed) -> Any:
        notes.append(call.args)
        call.args = (call.args[0] + 1,)
        try:
            return await proceed() * 10
        finally:
            notes.append("left")

    @app.task
    def plain(number: int) -> int:
        return number

    async with app, app.worker():
        assert await (await plain.enqueue(1)).result(timeout=10) == 20

    assert notes == [(1,), "left"]


def test_a_task_that_is_called_as_a_function_runs_no_middleware() -> None:
    app = Tenure("memory://")
    notes: list[str] = []
    app.middleware(noting(notes, "app"))

    @app.task
    def plain(number: int) -> int:
        return number

    assert plain(3) == 3
    assert notes == []


async def of_one(call: RunCall) -> None: ...


def no_coroutine(call: RunCall, proceed: Proceed) -> None: ...


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (7, "must be a coroutine function: async def layer"),
        (no_coroutine, "must be a coroutine function"),
        (of_one, "too many positional arguments; write async def layer"),
    ],
)
def test_invalid_middleware_is_refused_at_once(layer: Any, says: str) -> None:
    app = Tenure("memory://")

    with pytest.raises(UsageError, match=says):
        app.middleware(layer)
    with pytest.raises(UsageError, match=says):
        app.task(middleware=[layer])
    with pytest.raises(UsageError, match=says):
        TaskOptions(middleware=[layer])


def test_a_single_middleware_without_a_list_is_refused() -> None:
    with pytest.raises(UsageError, match=r"middleware = .* must be several, in a list"):
        TaskOptions(middleware=noting([], "one"))
