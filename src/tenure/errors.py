"""Every error Tenure raises, one class for each way of reacting to it.

TenureError
├── UsageError                    fix your code
│   ├── PayloadTooLargeError
│   ├── UnknownTaskError
│   ├── UnknownScheduleError
│   ├── DuplicateJobError
│   ├── AmbiguousJobError
│   ├── JobActiveError
│   ├── FlowError
│   └── ThrottledError
├── StorageError
│   ├── StorageUnavailableError   wait: it may come back
│   ├── StorageFullError          wait: an operator must free space
│   ├── NotDurableError           the write may be lost; repeat it with the same id
│   ├── SchemaMismatchError       stop: not a Tenure storage, or another version of it
│   └── StorageMovedError         stop: the jobs are in another storage now
├── JobError                      raised where a caller awaits a result
│   ├── JobFailedError
│   │   └── JobStalledError
│   ├── JobCancelledError
│   ├── JobExpiredError
│   └── JobNotFoundError
├── ResultTimeoutError            also a TimeoutError
└── LeaseLostError                only inside a job's own transaction

The exceptions by which a handler controls its job (`RetryLater`, `Snooze`, `Reject`, `Cancel`) are not errors. They are
in `handlers.control`.
"""

import functools
from collections.abc import Callable


class TenureError(Exception):
    """The base class of all errors that Tenure raises on purpose."""


class UsageError(TenureError):
    """A call or an option is invalid; the message names the problem and the remedy."""


class PayloadTooLargeError(UsageError):
    """The encoded arguments of a call, or the progress object or the data of a job, are larger than the limit."""

    def __init__(self, task: str, size: int, limit: int, part: str = "the arguments") -> None:
        super().__init__(
            f"{part} of {task!r} take {size:,} bytes, the limit is {limit:,}; "
            "store the data elsewhere and pass a reference to it"
        )
        self.task = task
        self.size = size
        self.limit = limit
        self.part = part

    def __reduce__(self) -> tuple[type["PayloadTooLargeError"], tuple[str, int, int, str]]:
        return type(self), (self.task, self.size, self.limit, self.part)


class UnknownTaskError(UsageError):
    """No task of this name is registered with the app."""


class UnknownScheduleError(UsageError):
    """No schedule of this name is in the storage."""


class DuplicateJobError(UsageError):
    """A job with this id or unique key already exists, and the caller asked for an error (`throw_on_duplicate`).

    `queue` and `job_id` name the existing job.
    """

    def __init__(self, task: str, queue: str, job_id: str) -> None:
        super().__init__(
            f"task {task!r}: job {job_id!r} of queue {queue!r} exists already, with the same id or unique key; use "
            "that one, app.job(error.job_id, queue=error.queue), or call without throw_on_duplicate"
        )
        self.task = task
        self.queue = queue
        self.job_id = job_id

    def __reduce__(self) -> tuple[type["DuplicateJobError"], tuple[str, str, str]]:
        return type(self), (self.task, self.queue, self.job_id)


class AmbiguousJobError(UsageError):
    """Several queues have a job with this id, and the caller named none of them; `queues` names the queues."""

    def __init__(self, job_id: str, queues: tuple[str, ...]) -> None:
        super().__init__(
            f"the id {job_id!r} is in several queues ({', '.join(queues)}); name one of them: app.job(id, queue=...), "
            "or --queue on the command line"
        )
        self.job_id = job_id
        self.queues = queues

    def __reduce__(self) -> tuple[type["AmbiguousJobError"], tuple[str, tuple[str, ...]]]:
        return type(self), (self.job_id, self.queues)


class JobActiveError(UsageError):
    """A running job cannot be deleted. `jobs`: the queue and the id of each running job; `deleted`: how many others
    the same call deleted.
    """

    def __init__(self, jobs: tuple[tuple[str, str], ...], deleted: int = 0) -> None:
        named = ", ".join(f"{job_id!r} of queue {queue!r}" for queue, job_id in jobs[:3])
        more = f" and {len(jobs) - 3} more" if len(jobs) > 3 else ""
        others = f" The other {deleted} jobs are deleted." if deleted else ""
        super().__init__(
            f"running jobs cannot be deleted: {named}{more}; cancel them first, and delete them when they have ended."
            + others
        )
        self.jobs = jobs
        self.deleted = deleted

    def __reduce__(self) -> tuple[type["JobActiveError"], tuple[tuple[tuple[str, str], ...], int]]:
        return type(self), (self.jobs, self.deleted)


class FlowError(UsageError):
    """A flow, or a job that waits for others, is invalid, or the storage does not support it. Nothing was written."""


class ThrottledError(UsageError):
    """A call created no job, because its throttle window is used up; the next call is allowed after `retry_in` seconds.

    `key` is the throttle key built from the arguments, or None if all calls of the task share one window.
    """

    def __init__(self, task: str, key: str | None, retry_in: float, *, skipped: bool = False) -> None:
        of = "" if key is None else f" of {key!r}"
        remedy = "" if skipped else ', or let it skip such calls with Throttle(on_limit="skip")'
        super().__init__(
            f"task {task!r}: the throttle{of} is full, so this call made no job; call again in {retry_in:g} s{remedy}"
        )
        self.task = task
        self.key = key
        self.retry_in = retry_in
        self.skipped = skipped

    def __reduce__(self) -> tuple[Callable[..., "ThrottledError"], tuple[str, str | None, float]]:
        return functools.partial(type(self), skipped=self.skipped), (self.task, self.key, self.retry_in)


class StorageError(TenureError):
    """The storage could not carry out a request.

    `job_ids`: if an enqueue failed, the ids of its jobs. The jobs may be stored nevertheless; enqueueing again with the
    same ids creates no second jobs.
    """

    job_ids: tuple[str, ...] = ()


class StorageUnavailableError(StorageError):
    """The storage is out of reach or busy; it is not known whether anything was written."""


class StorageFullError(StorageError):
    """The storage has no space left; nothing was written."""


class NotDurableError(StorageError):
    """The storage made the write but did not confirm it as durable; repeating it with the same id is safe."""


class SchemaMismatchError(StorageError):
    """The storage at this URL is not a Tenure storage, or has a version that this library cannot use."""


class StorageMovedError(StorageError):
    """The jobs of this queue were moved to another storage, and nothing was written; use `moved_to` from now on.

    `moved_to`: the other storage's address, without a password.
    """

    def __init__(self, queue: str, moved_to: str) -> None:
        super().__init__(f"the jobs of queue {queue!r} were moved to {moved_to}; use that storage from now on")
        self.queue = queue
        self.moved_to = moved_to

    def __reduce__(self) -> tuple[type["StorageMovedError"], tuple[str, str]]:
        return type(self), (self.queue, self.moved_to)


class JobError(TenureError):
    """A job ended without the result that the caller waits for."""

    def __init__(self, job_id: str, message: str) -> None:
        super().__init__(message)
        self.job_id = job_id


class JobFailedError(JobError):
    """The job failed and will not be retried automatically.

    `error_type` and `traceback` are those of the last run, as text; `reason` is the dead-letter reason.
    """

    def __init__(
        self,
        job_id: str,
        message: str,
        *,
        reason: str | None = None,
        error_type: str | None = None,
        traceback: str | None = None,
    ) -> None:
        super().__init__(job_id, message)
        self.reason = reason
        self.error_type = error_type
        self.traceback = traceback


class JobStalledError(JobFailedError):
    """The job lost its worker more often than its stall budget allows; `count` is the number of stalls."""

    def __init__(
        self, job_id: str, message: str, *, count: int, reason: str | None = None, traceback: str | None = None
    ) -> None:
        super().__init__(job_id, message, reason=reason, error_type="JobStalledError", traceback=traceback)
        self.count = count


class JobCancelledError(JobError):
    """The job was cancelled; `reason` is the one given with the cancellation."""

    def __init__(self, job_id: str, message: str, *, reason: str | None = None) -> None:
        super().__init__(job_id, message)
        self.reason = reason


class JobExpiredError(JobError):
    """The job's time to live ran out before it started."""


class JobNotFoundError(JobError):
    """The storage has no such job: it was never enqueued there, was deleted, or its retention is over."""


class ResultTimeoutError(TenureError, TimeoutError):
    """The job did not end within the caller's time limit; the job itself continues, and `job_id` names it."""

    def __init__(self, job_id: str, message: str) -> None:
        super().__init__(message)
        self.job_id = job_id


class LeaseLostError(TenureError):
    """The run no longer holds its lease, so its transaction must not commit."""
