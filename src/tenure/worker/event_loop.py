"""The event loop that handlers run on: its choice, and its protection from handlers that stop or cancel it.

The loop is uvloop if it is installed, else asyncio's. The code of a handler, and the tasks that it starts, run in a
context that holds its job. So the job that misuses the loop is known at the moment of the call:

    loop.stop()                       refused: it raises in the handler
    cancel() of the guard's task      the worker fails; that run fails, and the other runs of the loop are put back
    the same, by an event handler     the worker fails, and the runs of its loop are put back
    the same, by other code           the worker fails as in a crash: one stall for each run of the loop
"""

import asyncio
import contextlib
import os
import traceback
from collections.abc import Callable
from typing import Literal, get_args

from tenure.core.job import RecordedError
from tenure.errors import UsageError
from tenure.failures import TRACEBACK_KEPT
from tenure.handlers.context import handling_event, running_job

Loop = Literal["auto", "asyncio", "uvloop"]
LOOPS: tuple[Loop, ...] = get_args(Loop)

LOOP_VARIABLE = "TENURE_WORKER_LOOP"
"""The environment variable with the event loop of a worker process. Its isolated processes read it, too."""


def loop_runner(loop: Loop) -> asyncio.Runner:
    """Return a runner for the loop `loop`. `auto` means uvloop if it is installed.

    Raises:
        UsageError: `loop` is uvloop, which is not installed.
    """
    if loop == "asyncio":
        return asyncio.Runner()
    try:
        from uvloop import new_event_loop
    except ImportError as error:
        if loop == "auto":
            return asyncio.Runner()
        raise UsageError(
            "--loop uvloop needs uvloop, which is not installed; pip install 'tenure[uvloop]', or leave --loop out"
        ) from error
    return asyncio.Runner(loop_factory=new_event_loop)


def loop_from_environment() -> Loop:
    """Return the loop that the environment names; `auto` if it names no known one."""
    match os.environ.get(LOOP_VARIABLE):
        case "asyncio" | "uvloop" as named:
            return named
        case _:
            return "auto"


STOPPED = "a handler must not stop the event loop of its worker"
CANCELLED = "the handler cancelled every task of its event loop, those of its worker included"


class LoopGuard:
    """Waits in its own task, which is only cancelled by code that cancels every task of the loop."""

    def __init__(self) -> None:
        self.cancelled = False
        """True if every task of the loop was cancelled by code other than the worker."""
        self.known = False
        """True if the job that did this is known, or an event handler did it."""
        self._task: asyncio.Task[None] | None = None
        self._released = False

    def start(self, cancelled: Callable[[], None]) -> None:
        """Begin on the running loop. `cancelled` is called soon after every task was cancelled."""
        loop = asyncio.get_running_loop()
        refuse_stops(loop)
        self._task = asyncio.create_task(self._rest(_GuardTask(loop, self._note)), name="tenure loop guard")
        self._task.add_done_callback(lambda _: None if self._released else cancelled())

    def release(self) -> None:
        """Stop guarding."""
        self._released = True
        if self._task is not None:
            self._task.cancel()

    async def _rest(self, watched: "_GuardTask") -> None:
        await watched

    def _note(self) -> None:
        if self._released:
            return
        self.cancelled = True
        job = running_job()
        self.known = job is not None or handling_event()
        if job is not None:
            job.misuse = _error(CANCELLED)


class _GuardTask(asyncio.Future[None]):
    """Calls `on_cancel` when it is cancelled, in the context of the code that cancels it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_cancel: Callable[[], None]) -> None:
        super().__init__(loop=loop)
        self._on_cancel = on_cancel

    def cancel(self, msg: object = None) -> bool:
        self._on_cancel()
        return super().cancel(msg)


def refuse_stops(loop: asyncio.AbstractEventLoop) -> None:
    """Make `loop.stop` raise in a handler. Idempotent."""
    stop = loop.stop
    if isinstance(stop, _Stop):
        return
    # A loop that takes no attributes cannot be guarded. There, a stop is a crash of its worker.
    with contextlib.suppress(AttributeError):
        loop.stop = _Stop(stop)  # type: ignore[method-assign]


class _Stop:
    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def __call__(self) -> None:
        job = running_job()
        if job is None and not handling_event():
            self._stop()
            return
        if job is not None:
            job.misuse = _error(STOPPED)
        raise RuntimeError(STOPPED)


def _error(message: str) -> RecordedError:
    place = "".join(traceback.format_stack()[:-3])
    return RecordedError("RuntimeError", message, f"{place}RuntimeError: {message}\n"[-TRACEBACK_KEPT:])
