"""What a running handler knows of its job, and the signs it gives. All of these are plain calls that never raise."""

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context, ContextVar
from datetime import datetime
from typing import Any

from tenure.core.duration import moment
from tenure.core.job import JobRecord, RecordedError
from tenure.core.text import storable
from tenure.errors import UsageError
from tenure.handlers.control import Cancel

LOG_WAITING = 1000
"""Log lines that wait for the next beat; when a handler writes more in one beat, the oldest of them go."""


Progress = tuple[float, str | None]
"""How far a handler is, and a note on it."""

Line = tuple[float, str, str, dict[str, str], int]
"""A line of a job's log: the uptime it was written at, its level, its message, its fields, its number in the run."""


Said = tuple[float | None, Progress | None, list[Line]]
"""What a handler has said between two beats: at which uptime it last said anything, how far it is, what it logged."""


class Signs:
    """What a handler has said since the last beat; written by its thread, taken by the keeper's."""

    # Most handlers never say anything, and then nothing is made for it: it stands in the class that they have not.
    echo: Callable[[float], None] | None = None
    """Hears of each sign at once, for whoever watches over the run."""
    last: float = -math.inf
    """The uptime of the last sign of all, sent or not."""
    _at: float | None = None
    _progress: Progress | None = None
    _log: deque[Line] | None = None
    _logged: int = 0
    """How many lines there were in all."""

    def sign(self, at: float, progress: Progress | None = None) -> None:
        """Note a sign of life, given at that uptime, with how far the handler is."""
        with self._lock:
            self._at = self.last = at
            if progress is not None:
                self._progress = progress
        # It may be taken away from another thread.
        if (echo := self.echo) is not None:
            echo(at)

    def log(self, at: float, level: str, message: str, fields: dict[str, str]) -> None:
        """Note a line, written at that uptime; whoever writes is alive."""
        with self._lock:
            self._at = self.last = at
            self._logged += 1
            self._lines().append((at, level, message, fields, self._logged))
        # It may be taken away from another thread.
        if (echo := self.echo) is not None:
            echo(at)

    @property
    def pending(self) -> bool:
        """Whether anything waits for the next beat."""
        return self._at is not None

    def take(self) -> Said:
        """Return and forget what was said: when last, how far, the log."""
        if not self.pending:
            return None, None, []
        with self._lock:
            taken = self._at, self._progress, list(self._log or ())
            self._at = self._progress = self._log = None
        return taken

    def restore(self, taken: Said) -> None:
        """Take back what could not be sent, before what has been said since; of the log the newest lines.

        With its own time: however often it has to be sent, a sign is not younger than it is.
        """
        at, progress, log = taken
        with self._lock:
            self._at = at if self._at is None else self._at
            self._progress = self._progress or progress
            # By their numbers: two messages of a run may be under way and come back in any order.
            self._log = deque(sorted((*log, *self._lines()), key=lambda line: line[-1]), maxlen=LOG_WAITING)

    @property
    def _lock(self) -> threading.Lock:
        # In one step, for several threads of a handler may begin to speak at once.
        lock: threading.Lock = self.__dict__.setdefault("lock", threading.Lock())
        return lock

    def _lines(self) -> deque[Line]:
        if self._log is None:
            self._log = deque(maxlen=LOG_WAITING)
        return self._log


class JobLog:
    """A job's own log, kept with the job: the newest 1,000 lines, each under the fence of its run."""

    def __init__(self, write: Callable[[str, object, Mapping[str, object]], None]) -> None:
        self._write = write

    def debug(self, message: object, /, **fields: object) -> None:
        """Keep a line of level debug."""
        self._write("debug", message, fields)

    def info(self, message: object, /, **fields: object) -> None:
        """Keep a line of level info."""
        self._write("info", message, fields)

    def warning(self, message: object, /, **fields: object) -> None:
        """Keep a line of level warning."""
        self._write("warning", message, fields)

    def error(self, message: object, /, **fields: object) -> None:
        """Keep a line of level error."""
        self._write("error", message, fields)


class JobContext:
    """The running job, from within its handler."""

    _log: JobLog | None = None
    _stopping = False
    _cancelled: str | None = None
    over: bool = False
    """Whether this run has ended; set by the worker."""
    misuse: RecordedError | None = None
    """What the handler did to its event loop that makes its run fail; set by the worker."""

    def __init__(self, job: JobRecord, signs: Signs, uptime: Callable[[], float], state: Any = None) -> None:
        self._job = job
        self._signs = signs
        self._uptime = uptime
        self.state = state
        """What the lifespan of this worker has yielded, None without one."""

    @property
    def log(self) -> JobLog:
        """The job's own log."""
        # Most handlers log nothing; and each would know the other, which only a collection of garbage undoes.
        if self._log is None:
            self._log = JobLog(self._write)
        return self._log

    @property
    def id(self) -> str:
        """The job's id."""
        return self._job.id

    @property
    def queue(self) -> str:
        """The job's queue."""
        return self._job.queue

    @property
    def task(self) -> str:
        """The task's name."""
        return self._job.task

    @property
    def fence(self) -> int:
        """The fencing token of this run: rises with every run, so a resource can refuse anything lower than it saw."""
        return self._job.fence

    @property
    def run(self) -> int:
        """The number of this run, from 1."""
        return self._job.starts

    @property
    def attempt(self) -> int:
        """The attempt that this run is: what `max_attempts` bounds. Stalls and hand-backs do not count."""
        return self._job.attempt

    @property
    def redelivered(self) -> bool:
        """Whether an earlier run of this job has begun, and may have left effects."""
        return self._job.starts > 1

    @property
    def idempotency_key(self) -> str:
        """A key that is the same in every run of this job: its id."""
        return self._job.id

    @property
    def scheduled_for(self) -> datetime | None:
        """The tick of a schedule that this job was made for, in UTC; None where nothing but a caller made it."""
        return None if self._job.tick is None else moment(self._job.tick)

    @property
    def headers(self) -> Mapping[str, str]:
        """What travelled with the job beside its arguments."""
        return self._job.headers

    @property
    def tags(self) -> tuple[str, ...]:
        """The words the job was enqueued with."""
        return self._job.tags

    @property
    def cancelled(self) -> bool:
        """Whether this run shall stop: somebody cancelled the job, its time is over, or its lease is lost.

        A coroutine is cancelled as well; a plain handler has only this to go by. What it does then decides: if it
        raises (`raise_if_cancelled` does), its job is cancelled; if it returns, the work is done and the job completed.
        """
        return self._stopping

    def raise_if_cancelled(self) -> None:
        """Leave the handler if this run shall stop.

        Raises:
            Cancel: it shall.
        """
        if self._stopping:
            raise Cancel(self._cancelled)

    def heartbeat(self) -> None:
        """Give a sign of life: with the next beat it extends the lease and the progress clock. Never raises."""
        self._signs.sign(self._uptime())

    def progress(self, value: float, note: object = None) -> None:
        """Tell how far the job is, in a measure of your own; counts as a heartbeat. Never raises.

        What is no finite number counts as a heartbeat only.
        """
        try:
            told = float(value)
            how_far = (told, None if note is None else storable(str(note))) if math.isfinite(told) else None
            self._signs.sign(self._uptime(), how_far)
        except BaseException:
            # What is told may have methods of its own; these calls never raise.
            self._signs.sign(self._uptime())

    def _write(self, level: str, message: object, fields: Mapping[str, object]) -> None:
        try:
            told = {storable(str(name)): storable(str(value)) for name, value in fields.items()}
            self._signs.log(self._uptime(), level, storable(str(message)), told)
        except BaseException:
            # A log line whose text cannot be made is worth less than the handler that wrote it.
            self._signs.sign(self._uptime())

    def stop(self, reason: str | None) -> None:
        """Tell the handler that it shall stop; for the worker."""
        self._stopping = True
        self._cancelled = reason


_CURRENT: ContextVar[JobContext] = ContextVar("tenure_job")


def current_job() -> JobContext:
    """Return the job that the caller runs in: in its handler, in what that calls, and in threads it was handed to.

    Raises:
        UsageError: called from outside of a job.
    """
    try:
        return _CURRENT.get()
    except LookupError:
        raise UsageError("current_job() was called outside of a running job") from None


def running_job() -> JobContext | None:
    """Return the job whose run the caller belongs to, None outside of a run that goes on."""
    job = _CURRENT.get(None)
    return None if job is None or job.over else job


_HANDLES_EVENT: ContextVar[bool] = ContextVar("tenure_event", default=False)


def handling_event() -> bool:
    """Return True in an event handler, and in what it starts."""
    return _HANDLES_EVENT.get()


def event_handler_entered() -> None:
    """Have the calling task or context count as an event handler; for the bus."""
    _HANDLES_EVENT.set(True)


def job_of(context: Context) -> JobContext | None:
    """Return the job that what runs in this context belongs to."""
    return context.get(_CURRENT)


def entered(context: JobContext) -> None:
    """Make this the current job of the calling task or thread; for the worker."""
    _CURRENT.set(context)
