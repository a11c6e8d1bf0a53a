"""Durable handlers: steps that are recorded once, and waits that hold neither a slot nor memory.

    handler ──step──► its record? ──yes──► the recorded value
                          └─no──► the function ──► recorded under the fence ──► the recorded value
            ──wait──► its outcome? ──yes──► the recorded outcome
                          └─no──► `HandlerSuspended` unwinds the handler; when the wait is over, it runs again

This module has the API. The worker carries it out (`StepEngine`).
"""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from tenure.core.duration import Duration, duration, micros
from tenure.core.public import PublicObject
from tenure.core.retry import Backoff
from tenure.errors import UsageError
from tenure.handlers.functions import is_async

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


class StepRetry(Protocol):
    """How often and when a step is tried again; a `Retry`."""

    def rule(self) -> Backoff:
        """Return the attempts and the delays."""
        ...


@dataclass(frozen=True)
class WaitFor(Generic[T_co]):
    """Something that `first` waits for; made by `on_signal` and `on_sleep`."""

    name: str
    kind: type[T_co] | None
    """The type of a signal, which may be None."""
    pause: bool = False
    """True for a pause, False for a signal."""
    length: int | None = None
    """After how many microseconds a pause is over."""


@dataclass(frozen=True)
class StepContext:
    """The step that a function runs in; `current_step()` returns it."""

    name: str
    """Its name, with its number or its key."""
    attempt: int
    """The number of the attempt, from 1."""
    idempotency_key: str
    """A key that is the same in each attempt and in each run of the job, and for no other step or job of its queue."""


@dataclass(frozen=True)
class OpenStep:
    """A step of a run, as the worker does it."""

    context: Callable[[], StepContext]
    """Returns what `current_step()` returns in the next attempt."""
    recorded: Callable[[], tuple[Any] | None]
    """Returns the recorded value in a tuple, or None if the function is to be called; raises a recorded failure."""
    done: Callable[[object], Coroutine[Any, Any, Any]]
    """Records the value that the function returned, and returns it as it was recorded."""
    failed: Callable[[BaseException], Coroutine[Any, Any, bool]]
    """Returns True when the function is to be called again, and False if its exception is that of the handler.

    It raises `StepFailedError` if the step has no attempt left, and `HandlerSuspended` if the next one is later.
    """


@dataclass(frozen=True)
class StepEngine:
    """The steps and waits of one run, as the worker does them. Its coroutines run on the event loop of the worker."""

    open_step: Callable[[str, Callable[..., Any], str | None, StepRetry | None], Coroutine[Any, Any, OpenStep]]
    """Begins a step: its name, function, key and options."""
    in_thread: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]
    """Calls a plain function in a thread."""
    sleep: Callable[[str, int], Coroutine[Any, Any, None]]
    """Waits for some microseconds."""
    wait_signal: Callable[[str, Any, int | None], Coroutine[Any, Any, Any]]
    """Waits for the next signal of a name, of a type, for so long."""
    first: Callable[[Sequence[WaitFor[Any]]], Coroutine[Any, Any, tuple[str, Any]]]
    """Waits for the first of several waits."""
    from_thread: Callable[[Coroutine[Any, Any, Any]], Any]
    """Runs a coroutine on the loop of the worker, and waits for it in the calling thread."""


_STEP: ContextVar[StepContext | None] = ContextVar("tenure_step", default=None)


def current_step() -> StepContext:
    """Return the step that the caller runs in.

    Raises:
        UsageError: the caller does not run in a step.
    """
    step = _STEP.get()
    if step is None:
        raise UsageError("current_step() was called outside of a step")
    return step


class StepOptions:
    """Calls steps with options; `current_job().options(...)` returns it."""

    def __init__(self, engine: Callable[[], StepEngine], key: str | None, retry: StepRetry | None) -> None:
        self._engine, self._key, self._retry = engine, key, retry

    @overload
    async def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """See `JobContext.step`."""
        engine = self._engine()
        step = await engine.open_step(name, function, self._key, self._retry)
        if (recorded := step.recorded()) is not None:
            return recorded[0]
        called = functools.partial(function, *args, **kwargs)
        while True:
            try:
                with _inside(step.context()):
                    value = called() if is_async(function) else await engine.in_thread(called)
                    if inspect.isawaitable(value):
                        value = await value
            except BaseException as error:
                if not await step.failed(error):
                    raise
            else:
                return await step.done(value)

    def step_sync(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """See `JobContext.step_sync`."""
        engine = _outside_a_loop(self._engine(), "step")
        if is_async(function):
            raise UsageError(f"step_sync({name!r}): a plain handler cannot call a coroutine function; give a plain one")
        step: OpenStep = engine.from_thread(engine.open_step(name, function, self._key, self._retry))
        recorded: tuple[T] | None = step.recorded()
        if recorded is not None:
            return recorded[0]
        while True:
            try:
                with _inside(step.context()):
                    value = function(*args, **kwargs)
            except BaseException as error:
                if not engine.from_thread(step.failed(error)):
                    raise
            else:
                result: T = engine.from_thread(step.done(value))
                return result


@contextmanager
def _inside(context: StepContext) -> Generator[None]:
    """Make a step the current one of the calling task or thread."""
    before = _STEP.set(context)
    try:
        yield
    finally:
        _STEP.reset(before)


def in_step() -> bool:
    """Return True if the caller runs in a step; for the worker."""
    return _STEP.get() is not None


def _outside_a_loop(engine: StepEngine, verb: str) -> StepEngine:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return engine
    raise UsageError(f"{verb}_sync() would block the event loop; use `await current_job().{verb}(...)` in a coroutine")


class DurableContext(PublicObject):
    """The part of a job's context with steps and waits."""

    _open_steps: Callable[[], StepEngine] | None = None
    """Returns the engine of this run."""

    def _step_engine(self) -> StepEngine:
        if self._open_steps is None:
            raise UsageError("this job runs without a worker, so it can neither record steps nor wait")
        return self._open_steps()

    def options(self, *, key: str | None = None, retry: StepRetry | None = None) -> StepOptions:
        """Return an object whose `step` has these options.

        `key`: tells steps of one name apart by their content instead of by their order, for example
        `options(key=order_id)`: 1 to 64 visible ASCII characters without `~`. `retry`: a `Retry`: the step itself
        is tried again. A pause under 5 s takes place in the run, a longer one suspends the job. When no attempt is
        left, the failure is recorded, and this run and each later one get `StepFailedError`, until a redrive forgets
        it.
        """
        return StepOptions(self._step_engine, key, retry)

    @overload
    async def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function once, and return its recorded value in this run and in all later runs of the job.

        `name`: 1 to 64 letters, digits, `_` or `-`. The same name once more in a run is another step: `page`, `page#2`.
        `function`: a coroutine function, or a plain one, which runs in a thread. Its value is encoded as the function's
        return annotation says, and decoded again, also in the first run. If it raises, nothing is recorded: the
        exception is that of the handler, and the next run calls it again. If the worker dies before the record is
        written, the next run calls it again too; `current_step().idempotency_key` is the same then.

        Raises:
            UsageError: the name is invalid, the value cannot be encoded or is over 1 MiB, or the job has 10,000 steps
                or 16 MiB of them; or the call is in another step or in `transaction()`. The job fails as `undecodable`
                if the value is the reason.
            StepMismatchError: the record does not fit the function any more.
            LeaseLostError: the job belongs to another run; the step was not recorded.
        """
        return await self.options().step(name, function, *args, **kwargs)

    def step_sync(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `step` in a plain handler, with a plain function; it runs in the thread of the handler."""
        return self.options().step_sync(name, function, *args, **kwargs)

    async def sleep(self, name: str, length: Duration) -> None:
        """Wait for a time. The job is suspended meanwhile: it has no slot, and its handler is unwound.

        A pause under 5 s takes place in the run. The end is fixed by the first run that comes here.

        Raises:
            UsageError: the name or the duration is invalid.
        """
        await self._step_engine().sleep(name, _micros(length, "sleep"))

    def sleep_sync(self, name: str, length: Duration) -> None:
        """Call `sleep` in a plain handler."""
        engine = _outside_a_loop(self._step_engine(), "sleep")
        engine.from_thread(engine.sleep(name, _micros(length, "sleep")))

    async def wait_signal(self, name: str, kind: type[T], *, timeout: Duration | None = None) -> T:
        """Wait for the next signal of this name (`app.signal`), and return its content as a value of `kind`.

        The job is suspended meanwhile. Signals that arrived before are kept, and are read in the order of their
        arrival.

        Raises:
            WaitTimeoutError: no signal came within `timeout`. Later runs get it again, until a redrive forgets it.
            StepMismatchError: the content is not a value of `kind`.
            UsageError: the name or the duration is invalid.
        """
        value: T = await self._step_engine().wait_signal(name, kind, _timeout(timeout))
        return value

    def wait_signal_sync(self, name: str, kind: type[T], *, timeout: Duration | None = None) -> T:
        """Call `wait_signal` in a plain handler."""
        engine = _outside_a_loop(self._step_engine(), "wait_signal")
        value: T = engine.from_thread(engine.wait_signal(name, kind, _timeout(timeout)))
        return value

    def on_signal(self, name: str, kind: type[T]) -> WaitFor[T]:
        """Return a wait for the next signal of this name, for `first`."""
        return WaitFor(name, kind)

    def on_sleep(self, name: str, length: Duration) -> WaitFor[None]:
        """Return a wait for the end of a pause, for `first`."""
        return WaitFor(name, None, pause=True, length=_micros(length, "on_sleep"))

    @overload
    async def first(self, one: WaitFor[A], /) -> tuple[str, A]: ...

    @overload
    async def first(self, one: WaitFor[A], two: WaitFor[B], /) -> tuple[str, A | B]: ...

    @overload
    async def first(self, one: WaitFor[A], two: WaitFor[B], three: WaitFor[C], /) -> tuple[str, A | B | C]: ...

    @overload
    async def first(
        self, one: WaitFor[A], two: WaitFor[B], three: WaitFor[C], four: WaitFor[D], /
    ) -> tuple[str, A | B | C | D]: ...

    @overload
    async def first(self, *waits: WaitFor[Any]) -> tuple[str, Any]: ...

    async def first(self, *waits: WaitFor[Any]) -> tuple[str, Any]:
        """Wait for the first of several waits; return its name, and the content of the signal or None.

        The others are not recorded: signals that they wait for stay unread.

        Raises:
            UsageError: no wait is given, or a name is invalid.
        """
        return await self._step_engine().first(waits)

    @overload
    def first_sync(self, one: WaitFor[A], /) -> tuple[str, A]: ...

    @overload
    def first_sync(self, one: WaitFor[A], two: WaitFor[B], /) -> tuple[str, A | B]: ...

    @overload
    def first_sync(self, one: WaitFor[A], two: WaitFor[B], three: WaitFor[C], /) -> tuple[str, A | B | C]: ...

    @overload
    def first_sync(
        self, one: WaitFor[A], two: WaitFor[B], three: WaitFor[C], four: WaitFor[D], /
    ) -> tuple[str, A | B | C | D]: ...

    @overload
    def first_sync(self, *waits: WaitFor[Any]) -> tuple[str, Any]: ...

    def first_sync(self, *waits: WaitFor[Any]) -> tuple[str, Any]:
        """Call `first` in a plain handler."""
        engine = _outside_a_loop(self._step_engine(), "first")
        found: tuple[str, Any] = engine.from_thread(engine.first(waits))
        return found


def _micros(length: Duration, verb: str) -> int:
    return micros(duration(length, field=f"{verb}(length)", zero=True))


def _timeout(length: Duration | None) -> int | None:
    return None if length is None else micros(duration(length, field="wait_signal(timeout)"))
