"""Values injected into handlers: created once a run, in order, and closed however the run ends."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Annotated, Any

import pytest

from tenure import (
    Cancel,
    Inject,
    Job,
    JobCancelledError,
    JobContext,
    JobFailedError,
    JobStalled,
    Proceed,
    Retry,
    RunCall,
    Snooze,
    State,
    Tenure,
    Timing,
    UsageError,
    current_job,
)
from tests.flow.conftest import FAST, Harness, RunScenario

ONCE = Retry(max_attempts=1)


class Ledger:
    """What is open, and what has been opened and closed, with the exceptions thrown into it."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.opened = self.closed = 0

    def resource(self, name: str) -> Callable[[], AsyncGenerator[str]]:
        """Return an async generator function that records each opening and closing."""

        async def provider() -> AsyncGenerator[str]:
            self.opened += 1
            self.notes.append(f"+{name}")
            try:
                yield name
            except BaseException as error:
                self.notes.append(f"{name} saw {type(error).__name__}")
                raise
            finally:
                self.closed += 1
                self.notes.append(f"-{name}")

        return provider

    @property
    def all_closed(self) -> bool:
        return self.opened > 0 and self.opened == self.closed


async def ended(harness: Harness, job: Job[Any]) -> State:
    """Wait until a job is over."""

    async def over() -> bool:
        return await job.state() not in (State.ACTIVE, State.WAITING, State.DELAYED)

    await harness.until(over)
    return await job.state()


# ── what is injected ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_handler_gets_injected_values_in_addition_to_its_arguments(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        async def coroutine() -> str:
            return "coroutine"

        async def generator() -> AsyncGenerator[str]:
            yield "async generator"

        @asynccontextmanager
        async def manager() -> AsyncGenerator[str]:
            yield "async manager"

        @app.task
        async def task(
            number: int,
            one: str = Inject(coroutine),
            two: str = Inject(generator),
            *,
            three: str = Inject(manager),
            job: JobContext = Inject(current_job),
            word: str = "word",
        ) -> Any:
            return number, one, two, three, job.id, word

        await harness.start(app.worker())
        job = await task.enqueue(1, word="x")

        assert await job.result() == [1, "coroutine", "async generator", "async manager", job.id, "x"]
        assert (await (await task.enqueue(number=2)).result())[-1] == "word"

    run_scenario(scenario)


def test_each_provider_is_called_once_per_run_after_its_dependencies(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, ledger = harness.app(), Ledger()
        pool = ledger.resource("pool")
        calls: list[int] = []

        async def connection(pool: str = Inject(pool)) -> AsyncGenerator[str]:
            calls.append(current_job().run)
            ledger.notes.append("+connection")
            yield f"{pool}.connection"
            ledger.notes.append("-connection")

        async def users(connection: str = Inject(connection), pool: str = Inject(pool)) -> str:
            return f"{connection}.users of {pool}"

        @app.task
        async def task(users: str = Inject(users), connection: str = Inject(connection)) -> Any:
            ledger.notes.append("handler")
            return users, connection

        await harness.start(app.worker())

        assert await (await task.enqueue()).result() == ["pool.connection.users of pool", "pool.connection"]
        assert ledger.notes == ["+pool", "+connection", "handler", "-connection", "-pool"]
        await (await task.enqueue()).result()
        assert calls == [1, 1]

    run_scenario(scenario)


def test_any_callable_can_be_a_provider_and_have_defaults(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        class Making:
            async def __call__(self, of: str = "object") -> str:
                return of

            async def method(self, *args: int, of: str = "method", **rest: int) -> str:
                return f"{of}{args}{rest}"

        making = Making()

        @app.task
        async def task(
            one: str = Inject(making), two: str = Inject(making.method), three: str = Inject(partial(making, "partial"))
        ) -> Any:
            return one, two, three

        await harness.start(app.worker())

        assert await (await task.enqueue()).result() == ["object", "method(){}", "partial"]

    run_scenario(scenario)


# ── closing ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("way", "saw"),
    [
        ("success", None),
        ("error", "ConnectionError"),
        ("own cancel", "CancelledError"),
        ("cancel", "CancelledError"),
        ("timeout", "CancelledError"),
        ("hand-back", "CancelledError"),
        ("forced", "CancelledError"),
        ("lost", "CancelledError"),
    ],
)
def test_opened_providers_are_closed_in_reverse_order_in_any_outcome(
    run_scenario: RunScenario, way: str, saw: str | None
) -> None:
    async def scenario(harness: Harness) -> None:
        app, ledger = harness.app(timing=FAST), Ledger()
        one, two = ledger.resource("one"), ledger.resource("two")

        @app.task(retry=ONCE, timeout="5s" if way == "timeout" else "1h", name="task")
        async def task(first: str = Inject(one), second: str = Inject(two)) -> None:
            match way:
                case "success":
                    return
                case "error":
                    raise ConnectionError
                case "own cancel":
                    raise asyncio.CancelledError
                case _:
                    await asyncio.sleep(3600 if current_job().run == 1 else 0)

        worker = app.worker(reaper=False)
        node = await harness.start(worker)
        job = await task.enqueue()
        await asyncio.sleep(1)
        if way == "cancel":
            await job.cancel()
        elif way in ("hand-back", "forced"):
            await harness.stop(node, worker, timeout="1s", force=way == "forced")
        elif way == "lost":
            # No keeper renews it, so another worker takes it over; the first learns of that once it continues.
            harness.loop.pause(node)
            other = harness.app(timing=FAST)
            other.tasks.update(app.tasks)
            await harness.start(other.worker(), "other")
            await asyncio.sleep(6)
            harness.loop.wake(node)
        if way in ("hand-back", "forced"):
            assert await job.state() is State.WAITING
        else:
            await ended(harness, job)
            await asyncio.sleep(5)

        assert ledger.all_closed
        if way != "lost":
            threw = [f"two saw {saw}"] if saw else [], [f"one saw {saw}"] if saw else []
            assert ledger.notes == ["+one", "+two", *threw[0], "-two", *threw[1], "-one"]
        else:
            assert ledger.opened == 4
            assert ledger.notes.count("one saw CancelledError") == 1

    run_scenario(scenario)


def test_many_runs_with_all_outcomes_leave_no_provider_open(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, ledger = harness.app(timing=FAST), Ledger()
        one, two = ledger.resource("one"), ledger.resource("two")

        async def brittle(first: str = Inject(one)) -> str:
            if int(current_job().idempotency_key.split()[1]) % 7 == 0:
                raise ConnectionError
            await asyncio.sleep(0.3)
            return first

        @app.task(retry=Retry(max_attempts=2, base="1s"), timeout="4s")
        async def task(number: int, brittle: str = Inject(brittle), second: str = Inject(two)) -> None:
            match number % 4:
                case 0:
                    raise ConnectionError
                case 1:
                    raise Snooze("2s")
                case 2:
                    await asyncio.sleep(3 + number % 3)
                case _:
                    return

        worker = app.worker(concurrency=20)
        node = await harness.start(worker)
        jobs = [await task.options(id=f"job {number}").enqueue(number) for number in range(200)]
        for step in range(10):
            await asyncio.sleep(0.7)
            await jobs[step * 17].cancel()
        await harness.stop(node, worker, timeout="1s")

        assert ledger.opened > 150
        assert ledger.all_closed

    run_scenario(scenario)


def test_a_provider_that_fails_to_open_fails_the_run_and_closes_others(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, ledger = harness.app(), Ledger()
        calls: list[int] = []

        async def broken() -> str:
            raise ConnectionError("no route")

        @app.task(retry=ONCE)
        async def task(one: str = Inject(ledger.resource("one")), two: str = Inject(broken)) -> None:
            calls.append(1)

        await harness.start(app.worker())
        job = await task.enqueue()

        with pytest.raises(JobFailedError, match="no route"):
            await job.result()
        assert ledger.notes == ["+one", "one saw ConnectionError", "-one"]
        assert calls == []

    run_scenario(scenario)


def test_a_provider_that_fails_to_close_fails_the_run_and_outer_ones(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, ledger = harness.app(), Ledger()

        async def uncommitted(outer: str = Inject(ledger.resource("outer"))) -> AsyncGenerator[str]:
            yield outer
            raise ConnectionError("not committed")

        @app.task(retry=ONCE)
        async def task(session: str = Inject(uncommitted)) -> str:
            return "done"

        await harness.start(app.worker())
        job = await task.enqueue()

        with pytest.raises(JobFailedError, match="not committed"):
            await job.result()
        assert ledger.notes == ["+outer", "outer saw ConnectionError", "-outer"]

    run_scenario(scenario)


def test_a_failure_to_close_after_a_failure_is_logged_and_the_first_counts(
    run_scenario: RunScenario, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(harness: Harness) -> None:
        app, ledger = harness.app(), Ledger()

        async def brittle(outer: str = Inject(ledger.resource("outer"))) -> AsyncGenerator[str]:
            try:
                yield outer
            finally:
                raise KeyError("secret")

        @app.task(retry=ONCE)
        async def task(session: str = Inject(brittle)) -> None:
            raise ConnectionError("the first")

        await harness.start(app.worker())
        job = await task.enqueue()

        with caplog.at_level(logging.ERROR), pytest.raises(JobFailedError, match="the first"):
            await job.result()
        (line,) = (await job.info()).log
        assert ledger.notes == ["+outer", "outer saw ConnectionError", "-outer"]
        assert "brittle failed while it closed: KeyError" in line.message
        assert "secret" in line.fields["traceback"]

    with caplog.at_level(logging.ERROR):
        run_scenario(scenario)

    assert "brittle of job" in caplog.text
    assert "secret" not in caplog.text


def test_a_provider_cannot_turn_a_failure_into_a_success(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        async def swallowing() -> AsyncGenerator[str]:
            try:
                yield "given"
            except ConnectionError:
                return

        @app.task(retry=ONCE)
        async def task(given: str = Inject(swallowing)) -> None:
            raise ConnectionError("away")

        await harness.start(app.worker())

        with pytest.raises(JobFailedError, match="away"):
            await (await task.enqueue()).result()

    run_scenario(scenario)


def test_the_runs_timeout_covers_the_closing_of_providers(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        notes: list[str] = []

        async def slow() -> AsyncGenerator[str]:
            yield "given"
            try:
                await asyncio.sleep(3600)
            finally:
                notes.append("cut off")

        @app.task(retry=ONCE, timeout="5s")
        async def task(given: str = Inject(slow)) -> None: ...

        await harness.start(app.worker())

        with pytest.raises(JobFailedError, match="timeout of 5 s"):
            await (await task.enqueue()).result()
        assert notes == ["cut off"]

    run_scenario(scenario)


def test_a_provider_whose_closing_is_cut_off_lets_the_rest_be_closed(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, ledger = harness.app(), Ledger()

        async def slow(outer: str = Inject(ledger.resource("outer"))) -> AsyncGenerator[str]:
            try:
                yield outer
            finally:
                await asyncio.sleep(3600)

        @app.task
        async def task(slow: str = Inject(slow)) -> None:
            await asyncio.sleep(3600)

        worker = app.worker()
        node = await harness.start(worker)
        job = await task.enqueue()
        await asyncio.sleep(1)
        await job.cancel()
        await asyncio.sleep(1)
        assert ledger.notes == ["+outer"]
        began = harness.now
        await harness.stop(node, worker, timeout=0)

        assert harness.now - began < 4
        assert ledger.notes == ["+outer", "outer saw CancelledError", "-outer"]

    run_scenario(scenario)


def test_a_plain_handler_whose_provider_is_not_ready_is_stopped_at_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, ledger = harness.app(), Ledger()

        async def slow(outer: str = Inject(ledger.resource("outer"))) -> str:
            await asyncio.sleep(3600)
            return outer

        @app.task
        def plain(slow: str = Inject(slow)) -> None: ...

        await harness.start(app.worker())
        job = await plain.enqueue()
        await asyncio.sleep(1)
        began = harness.now
        await job.cancel()

        assert await ended(harness, job) is State.CANCELLED
        assert harness.now - began < 0.2
        assert ledger.all_closed

    run_scenario(scenario)


def test_a_hook_gets_its_own_values_after_the_handlers_are_closed(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, ledger = harness.app(), Ledger()
        db = ledger.resource("db")

        @app.task
        async def task(number: int, db: str = Inject(db)) -> None:
            await asyncio.sleep(3600)

        @task.on_cancel
        async def tidy(number: int, db: str = Inject(db)) -> None:
            ledger.notes.append(f"tidied {number} in {db}")

        await harness.start(app.worker())
        job = await task.enqueue(7)
        await asyncio.sleep(1)
        await job.cancel()

        with pytest.raises(JobCancelledError):
            await job.result()
        assert ledger.notes == ["+db", "db saw CancelledError", "-db", "+db", "tidied 7 in db", "-db"]

    run_scenario(scenario)


# ── overrides ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_override_applies_wherever_it_is_requested_and_only_within(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, ledger = harness.app(), Ledger()

        async def real() -> str:
            return "real"

        async def users(db: str = Inject(real)) -> str:
            return f"users of {db}"

        async def fake(more: str = Inject(ledger.resource("more"))) -> AsyncGenerator[str]:
            yield f"fake with {more}"

        async def faker() -> str:
            return "faker"

        @app.task
        async def task(users: str = Inject(users), db: str = Inject(real)) -> Any:
            return users, db

        @task.on_cancel
        async def tidy(users: str = Inject(users), db: str = Inject(real)) -> None: ...

        await harness.start(app.worker())

        async def seen() -> Any:
            return await (await task.enqueue()).result()

        assert await seen() == ["users of real", "real"]
        with app.override(real, fake):
            assert await seen() == ["users of fake with more", "fake with more"]
            with app.override(real, faker):
                assert await seen() == ["users of faker", "faker"]
            assert await seen() == ["users of fake with more", "fake with more"]
        assert await seen() == ["users of real", "real"]
        assert ledger.all_closed

    run_scenario(scenario)


def test_an_override_applies_to_one_app_and_ends_with_an_error_too() -> None:
    app, other = Tenure("memory://"), Tenure("memory://")

    def real() -> str:
        return "real"

    def fake() -> str:
        return "fake"

    def within() -> None:
        with app.override(real, fake):
            assert app.runtime().overrides == {real: fake}
            assert other.runtime().overrides == {}
            raise KeyError

    with pytest.raises(KeyError):
        within()
    assert app.runtime().overrides == {}


def test_middleware_may_supply_an_injected_value(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        async def real() -> str:
            return "real"

        @app.middleware
        async def bring(call: Any, proceed: Any) -> Any:
            call.kwargs["db"] = "brought"
            return await proceed()

        @app.task
        async def task(db: str = Inject(real)) -> str:
            return db

        await harness.start(app.worker())

        assert await (await task.enqueue()).result() == "brought"

    run_scenario(scenario)


# ── threads ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_plain_providers_and_handler_share_one_thread_and_context() -> None:
    app = Tenure("memory://")
    threads: list[str] = []
    tenant: ContextVar[str] = ContextVar("tenant", default="unset")

    def note() -> None:
        threads.append(threading.current_thread().name)

    def plain() -> str:
        note()
        return "plain"

    def generator(plain: str = Inject(plain)) -> Generator[str]:
        note()
        token = tenant.set("tenant")
        yield f"{plain}, generator"
        tenant.reset(token)
        note()

    @contextmanager
    def manager(generator: str = Inject(generator)) -> Generator[str]:
        note()
        yield f"{generator}, manager"
        note()

    async def coroutine(manager: str = Inject(manager)) -> str:
        assert threading.current_thread() is threading.main_thread()
        return f"{manager}, coroutine"

    @app.task
    def in_thread(all_of_them: str = Inject(coroutine), once: str = Inject(plain)) -> Any:
        note()
        return all_of_them, tenant.get()

    @app.task
    async def on_loop(all_of_them: str = Inject(coroutine), once: str = Inject(plain)) -> Any:
        assert threading.current_thread() is threading.main_thread()
        return all_of_them, tenant.get()

    async with app, app.worker():
        assert await (await in_thread.enqueue()).result(timeout=10) == [
            "plain, generator, manager, coroutine",
            "tenant",
        ]
        assert (len(threads), len(set(threads))) == (6, 1)
        threads.clear()
        assert await (await on_loop.enqueue()).result(timeout=10) == ["plain, generator, manager, coroutine", "unset"]
        assert (len(threads), len(set(threads))) == (5, 1)


async def test_providers_of_an_abandoned_thread_are_closed_after_it_ends() -> None:
    # The limit counts from before the providers are called: on a busy machine a short one may expire too early.
    for timeout in (0.1, 0.5, 2.5, 12.5):
        notes = await _notes_of_a_thread_left_to_itself(timeout)
        if notes is not None:
            break

    assert notes == ["handler ended", "inner saw CancelledError", "-inner", "-outer"]


async def _notes_of_a_thread_left_to_itself(timeout: float) -> list[str] | None:
    """Return what was noted, or None if the limit expired before the handler began."""
    app = Tenure("memory://")
    begun, go, closed = threading.Event(), threading.Event(), asyncio.Event()
    notes: list[str] = []

    async def outer() -> AsyncGenerator[str]:
        try:
            yield "outer"
        finally:
            notes.append("-outer")
            closed.set()

    def inner(outer: str = Inject(outer)) -> Generator[str]:
        try:
            yield "inner"
        except asyncio.CancelledError:
            notes.append("inner saw CancelledError")
            raise
        finally:
            notes.append("-inner")

    @app.task(timeout=timeout, retry=ONCE)
    def hang(inner: str = Inject(inner)) -> None:
        begun.set()
        go.wait(30)
        notes.append("handler ended")

    async with app, app.worker():
        job = await hang.enqueue()
        with pytest.raises(JobFailedError, match=f"timeout of {timeout:g} s"):
            await job.result(timeout=30)
        if not begun.is_set():
            return None
        assert notes == []
        go.set()
        async with asyncio.timeout(10):
            await closed.wait()
    return notes


async def test_nothing_closes_under_a_thread_that_middleware_abandoned() -> None:
    app = Tenure("memory://")
    go, closed = threading.Event(), threading.Event()
    notes: list[str] = []

    def resource() -> Generator[str]:
        try:
            yield "resource"
        finally:
            notes.append("closed")
            closed.set()

    async def impatient(call: RunCall, proceed: Proceed) -> Any:
        try:
            async with asyncio.timeout(0.1):
                return await proceed()
        except TimeoutError:
            raise Cancel("too slow") from None

    @app.task(middleware=[impatient])
    def hang(resource: str = Inject(resource)) -> None:
        go.wait(30)
        notes.append("handler ended")

    @hang.on_cancel
    def tidy(resource: str = Inject(resource)) -> None:
        notes.append("tidied")

    async with app, app.worker():
        with pytest.raises(JobCancelledError, match="too slow"):
            await (await hang.enqueue()).result(timeout=10)
        assert notes == []
        go.set()
        assert await asyncio.to_thread(closed.wait, 10)

    assert notes == ["handler ended", "closed"]


async def test_a_provider_opened_while_its_run_is_stopped_is_closed() -> None:
    app = Tenure("memory://", timing=Timing.fast())
    opening, go, closed = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    calls: list[str] = []

    def slow() -> Generator[str]:
        loop.call_soon_threadsafe(opening.set)
        go.wait(30)
        try:
            yield "opened"
        finally:
            closed.set()

    @app.task
    async def task(slow: str = Inject(slow)) -> None:
        calls.append("handler")

    @task.on_cancel
    async def tidy(*_: Any, **__: Any) -> None:
        calls.append("hook")

    async with app, app.worker():
        job = await task.enqueue()
        async with asyncio.timeout(10):
            await opening.wait()
        await job.cancel()
        with pytest.raises(JobCancelledError):
            await job.result(timeout=10)
        assert not closed.is_set()
        go.set()
        assert await asyncio.to_thread(closed.wait, 10)

    assert calls == []


async def test_no_hook_cleans_up_while_a_thread_still_closes() -> None:
    app = Tenure("memory://", timing=Timing.fast())
    committing, go, closed = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    calls: list[str] = []

    def transaction() -> Generator[str]:
        yield "open"
        loop.call_soon_threadsafe(committing.set)
        go.wait(30)
        closed.set()

    @app.task
    async def task(transaction: str = Inject(transaction)) -> None:
        calls.append("handler")

    @task.on_cancel
    async def tidy(*_: Any, **__: Any) -> None:
        calls.append("hook")

    async with app, app.worker():
        job = await task.enqueue()
        async with asyncio.timeout(10):
            await committing.wait()
        await job.cancel()
        with pytest.raises(JobCancelledError):
            await job.result(timeout=10)
        assert not closed.is_set()
        go.set()
        assert await asyncio.to_thread(closed.wait, 10)

    assert calls == ["handler"]


async def test_context_variables_set_by_providers_reach_a_plain_handler() -> None:
    app = Tenure("memory://")
    first, second = ContextVar("first", default="unset"), ContextVar("second", default="unset")

    def plain() -> Generator[None]:
        token = first.set("plain")
        yield
        first.reset(token)

    async def coroutine(plain: None = Inject(plain)) -> AsyncGenerator[None]:
        token = second.set("coroutine")
        yield
        second.reset(token)

    def after(coroutine: None = Inject(coroutine)) -> str:
        return f"{first.get()} {second.get()}"

    @app.task
    def handler(after: str = Inject(after)) -> list[str]:
        return [after, first.get(), second.get()]

    async with app, app.worker():
        assert await (await handler.enqueue()).result(timeout=10) == ["plain coroutine", "plain", "coroutine"]


# ── what callers see ──────────────────────────────────────────────────────────────────────────────────────────────


def get_db() -> str:
    return "db"


def needy() -> Any:
    app = Tenure("memory://")

    @app.task(name="pay")
    async def pay(
        user: int, db: str = Inject(get_db), cents: int = 1, *, note: str = "", log: str = Inject(get_db)
    ) -> Any:
        return user, db, cents, note, log

    return pay


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((1,), {"db": "mine"}, "'db' is injected by the worker; leave it out"),
        ((1,), {"log": "mine"}, "'log' is injected by the worker"),
        ((1, "mine"), {}, "too many positional arguments; its signature is \\(user: int, \\*, cents: int = 1, note"),
        ((), {"cents": 2}, "user"),
    ],
)
def test_an_injected_argument_cannot_be_passed(args: tuple[Any, ...], kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        needy().call(*args, **kwargs)


def test_arguments_after_an_injected_one_are_passed_by_name() -> None:
    pay = needy()
    call = pay.call(1, cents=5, note="n")

    assert pay.signature.decode(pay.binding.app.encoder.codec, call.job.payload) == ((1,), {"cents": 5, "note": "n"})


def test_a_payload_cannot_set_an_injected_argument() -> None:
    app = Tenure("memory://")

    @app.task(name="pay")
    async def pay(db: str = Inject(get_db), **rest: str) -> None: ...

    for payload in ({"db": "mine"}, {"rest": {"db": "mine"}}):
        with pytest.raises(ValueError, match="db"):
            pay.signature.decode(app.codec, app.codec.encode(payload))


def test_a_direct_call_passes_injected_values_itself() -> None:
    pay = needy()

    with pytest.raises(UsageError, match=r"only a worker injects values; pass db=\.\.\., log=\.\.\."):
        asyncio.run(pay(1))
    with pytest.raises(UsageError, match=r"pass log=\.\.\.$"):
        asyncio.run(pay(1, "mine"))
    assert asyncio.run(pay(1, "mine", log="log")) == (1, "mine", 1, "", "log")
    with pytest.raises(TypeError, match="user"):
        asyncio.run(pay(db="mine"))


def test_a_key_cannot_use_an_injected_value() -> None:
    app = Tenure("memory://")

    def key(user: int) -> str:
        return f"user {user}"

    @app.task(concurrency_key=key)
    async def pay(user: int, db: str = Inject(get_db)) -> None: ...

    assert pay.call(7).job.keys[0].name == "user 7"
    with pytest.raises(UsageError, match="names 'db'"):

        @app.task(concurrency_key="{db}")
        async def other(user: int, db: str = Inject(get_db)) -> None: ...


# ── bad input ─────────────────────────────────────────────────────────────────────────────────────────────────────


def asks(user: int) -> str:
    return ""


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self) -> str:
        return ""


@pytest.mark.parametrize(
    ("provider", "says"),
    [
        ("db", r"Inject\('db'\) is not a provider; give the function itself"),
        (Inject(get_db), r"Inject\(Inject\(get_db\)\) is not a provider"),
        (asks, "the provider asks takes 'user', which has no value; write user = Inject"),
        (Unhashable(), "unhashable.*wrap it in a function"),
        (dict, "wrap it in a function that takes nothing"),
    ],
)
def test_an_invalid_provider_is_refused(provider: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Inject(provider)
    with pytest.raises(UsageError, match=says.replace("Inject\\(", "override\\(", 1)):
        Tenure("memory://").override(get_db, provider).__enter__()


def test_providers_in_a_circle_are_refused_when_the_task_is_defined() -> None:
    app = Tenure("memory://")

    def one(two: str = "") -> str:
        return two

    def two(one: str = Inject(one)) -> str:
        return one

    one.__defaults__ = (Inject(two),)

    with pytest.raises(UsageError, match=r"in a circle: .*one → .*two → .*one; break it up"):

        @app.task
        async def task(one: str = Inject(one)) -> None: ...

    assert app.tasks == {}


def test_an_override_that_depends_on_its_original_is_refused() -> None:
    app = Tenure("memory://")

    def around(db: str = Inject(get_db)) -> str:
        return db

    with pytest.raises(UsageError, match="in a circle"):
        app.override(get_db, around).__enter__()
    assert app.runtime().overrides == {}


def by_place(db: str = Inject(get_db), /) -> None: ...


def before_the_rest(db: str = Inject(get_db), *users: int) -> None: ...


def annotated(db: Annotated[str, Inject(get_db)]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (by_place, r"task '.*by_place': 'db' is injected and positional only; put it after a \*"),
        (before_the_rest, r"'db' is injected and precedes \*users; put it after that"),
        (annotated, "'db' is injected by its annotation; write db: "),
    ],
)
def test_an_injected_parameter_in_an_invalid_place_is_refused(handler: Callable[..., None], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Tenure("memory://").task(handler)


async def hears(event: Any, db: str = Inject(get_db)) -> None: ...


async def wraps(call: Any, proceed: Any, db: str = Inject(get_db)) -> None: ...


@asynccontextmanager
async def lives(app: Tenure, db: str = Inject(get_db)) -> AsyncGenerator[None]:
    yield


@pytest.mark.parametrize(
    "use",
    [
        lambda: Tenure("memory://").on(JobStalled)(hears),
        lambda: Tenure("memory://").middleware(wraps),
        lambda: Tenure("memory://", lifespan=lives),
    ],
)
def test_an_injected_default_is_refused_outside_a_run(use: Callable[[], object]) -> None:
    with pytest.raises(UsageError, match=r"'db' has Inject.*, which works in tasks, their hooks and providers only"):
        use()
