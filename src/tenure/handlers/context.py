"""The context of a running job: its data, heartbeats, progress and log. Calls that report something never raise."""

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context, ContextVar
from datetime import datetime
from typing import Any, TypeVar, overload

from tenure.core.document import PROGRESS_LIMIT, NotADocumentError, encode_document
from tenure.core.duration import moment
from tenure.core.job import JobRecord, RecordedError, Ref
from tenure.core.public import PublicObject
from tenure.core.text import storable
from tenure.errors import PayloadTooLargeError, UsageError
from tenure.failures import text_of
from tenure.handlers.control import Cancel
from tenure.handlers.job_data import JobData
from tenure.handlers.transaction import JobTransaction

C = TypeVar("C")

OpenTransaction = Callable[[tuple[Ref, int], object], JobTransaction[Any]]
"""Returns a transaction of the run of a job and fence, with the handler's connection or None."""

LOG_WAITING = 1000
"""The most log lines that wait for the next beat. If a handler writes more in one beat, the oldest are dropped."""


SentProgress = tuple[float | str, str | None]
"""The handler's progress and an optional note. The progress is a number, or an object as JSON text."""

Line = tuple[float, str, str, dict[str, str], int]
"""A line of a job's log: the uptime when it was written, level, message, fields, and its number in the run."""


SentData = tuple[int, bytes]
"""The job's data as JSON, and how many times this run has changed them."""

Report = tuple[float | None, SentProgress | None, list[Line], SentData | None]
"""The signals of a handler between two messages: the uptime of the latest signal, progress, log lines, and data."""


class ProgressReports:
    """The handler's signals since the last beat. The handler's thread writes them, the keeper's thread takes them."""

    # Most handlers send no signal. The defaults are class attributes, so that they cost nothing per run.
    echo: Callable[[float], None] | None = None
    """Called with the uptime of each signal at once, so that the worker can watch the run."""
    last: float = -math.inf
    """The uptime of the latest signal, sent or not."""
    _at: float | None = None
    _progress: SentProgress | None = None
    _data: SentData | None = None
    _log: deque[Line] | None = None
    _in_flight: Report | None = None
    """The signals of the latest message, until its answer is known."""
    _logged: int = 0
    """The number of log lines of this run so far."""
    _changes: int = 0
    """How many times this run has changed the job's data."""

    def sign(self, at: float, progress: SentProgress | None = None, data: bytes | None = None) -> None:
        """Record a heartbeat at the given uptime, with the progress and the job's data if they changed."""
        with self.lock:
            self._at = self.last = at
            if progress is not None:
                self._progress = progress
            if data is not None:
                self._changes += 1
                self._data = self._changes, data
        # Another thread may remove the callback meanwhile.
        if (echo := self.echo) is not None:
            echo(at)

    def log(self, at: float, level: str, message: str, fields: dict[str, str]) -> None:
        """Record a log line at the given uptime; it counts as a heartbeat."""
        with self.lock:
            self._at = self.last = at
            self._logged += 1
            self._lines().append((at, level, message, fields, self._logged))
        # Another thread may remove the callback meanwhile.
        if (echo := self.echo) is not None:
            echo(at)

    @property
    def pending(self) -> bool:
        """True if a signal waits for the next message."""
        return self._at is not None or self._has_report

    @property
    def _has_report(self) -> bool:
        return self._progress is not None or self._data is not None or bool(self._log)

    def take(self, *, only_sign: bool = False) -> Report:
        """Return the waiting signals and clear them. `only_sign`: only the heartbeat; the others keep waiting."""
        if not self.pending:
            return None, None, [], None
        with self.lock:
            if only_sign and self._has_report:
                at, self._at = self._at, None
                return at, None, [], None
            report = self._at, self._progress, list(self._log or ()), self._data
            self._at = self._progress = self._log = self._data = None
            self._in_flight = report
        return report

    def recall(self) -> None:
        """Send again what a message in flight holds, because the run ends before its answer is known.

        A storage stores each log line once, by its number.
        """
        report = self._in_flight
        if report is not None:
            self.restore(report)

    def answered(self) -> None:
        """Note that the message in flight has arrived."""
        self._in_flight = None

    def restore(self, report: Report) -> None:
        """Put back signals that could not be sent, before newer ones. Of the log, keep the newest lines.

        The signals keep their own time: sending a heartbeat again must not make it look newer.
        """
        at, progress, log, data = report
        with self.lock:
            self._in_flight = None
            self._at = at if self._at is None else self._at
            self._progress = self._progress or progress
            self._data = max(self._data or (0, b""), data or (0, b"")) if self._data or data else None
            # Sort by line number: two messages of a run may be in flight and be put back in any order.
            self._log = deque(sorted((*log, *self._lines()), key=lambda line: line[-1]), maxlen=LOG_WAITING)

    @property
    def lock(self) -> threading.Lock:
        """Guards the signals of this run."""
        # setdefault is one atomic step: several threads of a handler may send their first signal at once.
        lock: threading.Lock = self.__dict__.setdefault("_lock", threading.Lock())
        return lock

    def _lines(self) -> deque[Line]:
        if self._log is None:
            self._log = deque(maxlen=LOG_WAITING)
        return self._log


class JobLog:
    """A job's own log, stored with the job: the newest 1,000 lines, each with the fence of its run. Never raises.

    Positional arguments are merged into the message with `%`, as in the module logging. Keywords become fields.
    """

    def __init__(self, write: Callable[[str, object, tuple[object, ...], Mapping[str, object]], None]) -> None:
        self._write = write

    def debug(self, message: object, /, *args: object, **fields: object) -> None:
        """Add a line of level debug."""
        self._write("debug", message, args, fields)

    def info(self, message: object, /, *args: object, **fields: object) -> None:
        """Add a line of level info."""
        self._write("info", message, args, fields)

    def warning(self, message: object, /, *args: object, **fields: object) -> None:
        """Add a line of level warning."""
        self._write("warning", message, args, fields)

    def error(self, message: object, /, *args: object, **fields: object) -> None:
        """Add a line of level error."""
        self._write("error", message, args, fields)


def _note(note: object) -> str:
    """Return the note of a progress as text, even if the object cannot be made text."""
    try:
        return storable(str(note))
    except BaseException:
        return ""


def _merged(message: object, args: tuple[object, ...]) -> str:
    """Return the message with its arguments. Arguments that do not fit are appended: the line must not be lost."""
    text = str(message)
    if not args:
        return text
    try:
        # As in the module logging, a single mapping gives named values.
        return text % (args[0] if len(args) == 1 and isinstance(args[0], Mapping) and args[0] else args)
    except (TypeError, ValueError, KeyError):
        return f"{text} {args!r}"


class JobContext(PublicObject):
    """The running job, as its handler sees it; `current_job()` returns it."""

    _internal = frozenset({"misuse", "over", "record", "stop"})

    _log: JobLog | None = None
    _data: JobData | None = None
    _stopping = False
    _cancelled: str | None = None
    over: bool = False
    """True if this run has ended; set by the worker."""
    misuse: RecordedError | None = None
    """The error of a run whose handler misused its event loop; the run fails with it. Set by the worker."""

    def __init__(
        self,
        job: JobRecord,
        signs: ProgressReports,
        uptime: Callable[[], float],
        state: Any = None,
        report: Callable[[tuple[Ref, int]], None] = lambda key: None,
        open_transaction: OpenTransaction | None = None,
    ) -> None:
        """Create the context of a run. `report` is called with the job and the fence when a report should be sent."""
        self._open_transaction = open_transaction
        self._job = job
        self._signs = signs
        self._uptime = uptime
        self._report = report
        self.state = state
        """The value that the worker's lifespan yielded; None without a lifespan."""

    @property
    def record(self) -> JobRecord:
        """The job's record as it was claimed; for the worker."""
        return self._job

    @property
    def log(self) -> JobLog:
        """The job's own log."""
        # Made on first use: most handlers log nothing, and context and log form a reference cycle.
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
        """The fencing token of this run. It rises with every run, so a resource can refuse a lower one."""
        return self._job.fence

    @property
    def run(self) -> int:
        """The number of this run, from 1."""
        return self._job.starts

    @property
    def attempt(self) -> int:
        """The number of this attempt, which `max_attempts` limits. Stalls and releases do not count."""
        return self._job.attempt

    @property
    def redelivered(self) -> bool:
        """True if an earlier run of this job has started and may have left effects."""
        return self._job.starts > 1

    @property
    def idempotency_key(self) -> str:
        """A key that is the same in every run of this job: the job's id."""
        return self._job.id

    @property
    def scheduled_for(self) -> datetime | None:
        """The schedule tick that this job was made for, in UTC; None if the job was not made by a tick."""
        return None if self._job.tick is None else moment(self._job.tick)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the job carries beyond its arguments. Jobs that its handler enqueues inherit them."""
        return self._job.headers

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that the job was enqueued with."""
        return self._job.tags

    @property
    def cancelled(self) -> bool:
        """True if this run should stop: the job was cancelled, its time is over, or its lease is lost.

        A coroutine handler is cancelled as well; a plain handler must check this itself. On a cancelled job, the
        handler decides the outcome: if it raises (`raise_if_cancelled` does), the job ends as cancelled; if it
        returns, the job is completed.
        """
        return self._stopping

    def raise_if_cancelled(self) -> None:
        """Raise `Cancel` if this run should stop; see `cancelled`.

        Raises:
            Cancel: this run should stop.
        """
        if self._stopping:
            raise Cancel(self._cancelled)

    def heartbeat(self) -> None:
        """Send a heartbeat. With the next beat it extends the lease and restarts `heartbeat_timeout`. Never raises."""
        self._signs.sign(self._uptime())

    def progress(self, value: float | Mapping[str, Any], note: object = None) -> None:
        """Report progress with an optional note; counts as a heartbeat.

        `value`: a number in a unit of your choice, or a small object with JSON values, such as
        `{"page": 3, "of": 40}`. The storage has it within 0.5 s. Call it as often as you like: only the latest value is
        sent, at most twice a second. With a number it never raises; one that is not finite counts as a heartbeat only.

        Raises:
            PayloadTooLargeError: the object takes more than 4 KiB of JSON.
            UsageError: the object is not plain JSON.
        """
        if isinstance(value, Mapping):
            text = self._progress_text(value)
            self._signs.sign(self._uptime(), (text, None if note is None else _note(note)))
            self._send_soon()
            return
        try:
            number = float(value)
            how_far = (number, None if note is None else _note(note)) if math.isfinite(number) else None
            self._signs.sign(self._uptime(), how_far)
            if how_far is not None:
                self._send_soon()
        except BaseException:
            # The value or the note may be an object whose methods raise; this call must not.
            self._signs.sign(self._uptime())

    @property
    def data(self) -> JobData:
        """The job's data: a JSON document of at most 64 KiB, which the next run finds if this one does not complete."""
        with self._signs.lock:
            if self._data is None:
                self._data = JobData(self.task, self._job.data, self._save)
        return self._data

    @overload
    def transaction(self) -> JobTransaction[Any]: ...

    @overload
    def transaction(self, connection: C) -> JobTransaction[C]: ...

    def transaction(self, connection: Any = None) -> JobTransaction[Any]:
        """Return a transaction in the queue's own database that ends with the completion of this job.

        `async with current_job().transaction() as tx:` in a coroutine, `with` in a plain function. All that the block
        writes through `tx.connection` is committed together with the completion of the job, or none of it is: if an
        exception leaves the block, if the worker dies in it, or if the job belongs to another run by then
        (`LeaseLostError`). After the block the job is completed. What follows cannot fail it, and is logged.

        On PostgreSQL the connection is a psycopg `AsyncConnection`, in a plain function a `Connection`. It is opened
        for the block, unless you give one of your own that leads to the same database. On SQLite it is a
        `sqlite3.Connection` to the queue's file. There no other process writes to the file until the block ends, so
        keep the block short.

        Raises:
            UsageError: the storage has no such transactions, the run is settled, or the connection cannot be used.
        """
        if self._open_transaction is None:
            raise UsageError("transaction(): this job runs without a worker, so no transaction can complete it")
        return self._open_transaction((self._job.ref, self._job.fence), connection)

    def save_data(self) -> None:
        """Store changes inside nested values of the data. Never raises; for the worker when the handler has ended."""
        if self._data is None:
            return
        try:
            self._data.save()
        except BaseException as error:
            # A value in the data may define its own comparison, and so raise an exception that cannot be made text.
            self.log.error(f"the last changes of the job's data are not stored: {text_of(error)}")

    def _save(self, document: bytes) -> None:
        self._signs.sign(self._uptime(), data=document)
        self._send_soon()

    def _progress_text(self, value: Mapping[str, Any]) -> str:
        try:
            body = encode_document(value)
        except NotADocumentError as error:
            raise UsageError(f"the progress of {self.task!r} must be plain JSON: {error}") from None
        if len(body) > PROGRESS_LIMIT:
            raise PayloadTooLargeError(self.task, len(body), PROGRESS_LIMIT, "the values of the progress")
        return body.decode()

    def _write(self, level: str, message: object, args: tuple[object, ...], fields: Mapping[str, object]) -> None:
        try:
            texts = {storable(str(name)): storable(str(value)) for name, value in fields.items()}
            self._signs.log(self._uptime(), level, storable(_merged(message, args)), texts)
            self._send_soon()
        except BaseException:
            # If the text cannot be made, drop the line rather than fail the handler.
            self._signs.sign(self._uptime())

    def _send_soon(self) -> None:
        self._report((self._job.ref, self._job.fence))

    def stop(self, reason: str | None) -> None:
        """Set `cancelled`, so that the handler stops; for the worker."""
        self._stopping = True
        self._cancelled = reason


_CURRENT: ContextVar[JobContext] = ContextVar("tenure_job")


def current_job() -> JobContext:
    """Return the context of the job that the caller runs in.

    It works in the handler, in functions that the handler calls, and in threads that run a copy of its context.

    Raises:
        UsageError: the caller does not run in a job.
    """
    try:
        return _CURRENT.get()
    except LookupError:
        raise UsageError("current_job() was called outside of a running job") from None


def current_record() -> JobRecord | None:
    """Return the record of the job that the caller runs in, or None; for log records."""
    job = _CURRENT.get(None)
    return None if job is None else job.record


def running_job() -> JobContext | None:
    """Return the job whose run the caller belongs to, or None outside a run and after it has ended."""
    job = _CURRENT.get(None)
    return None if job is None or job.over else job


_HANDLES_EVENT: ContextVar[bool] = ContextVar("tenure_event", default=False)


def handling_event() -> bool:
    """Return True in an event handler and in tasks that it starts."""
    return _HANDLES_EVENT.get()


def event_handler_entered() -> None:
    """Mark the calling task or context as an event handler; for the event bus."""
    _HANDLES_EVENT.set(True)


def job_of(context: Context) -> JobContext | None:
    """Return the job to which code in this context belongs, or None."""
    return context.get(_CURRENT)


def entered(context: JobContext) -> None:
    """Make this the current job of the calling task or thread; for the worker."""
    _CURRENT.set(context)
