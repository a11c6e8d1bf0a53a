"""Adds the running job to every log record that is made in its run: its id, task, queue, run and fence.

A record gets the fields when it is made, so every handler and formatter of the process sees them, no matter when and by
which code logging was configured.
"""

import contextlib
import contextvars
import logging
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any

from tenure.core.job import JobRecord
from tenure.handlers.context import current_record

# Logger.makeRecord refuses an `extra` that the record has already. With this prefix, an `extra` of a handler, such as
# "task" or "job_id", does not collide.
JOB_ID, TASK, QUEUE, RUN, FENCE = "tenure_job_id", "tenure_task", "tenure_queue", "tenure_run", "tenure_fence"

STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}
"""The attributes of a log record that are not fields given as `extra`."""

Fields = dict[str, str | int]

_SUBJECT: ContextVar[Fields | None] = ContextVar("tenure_log_subject", default=None)


def log_fields(job: JobRecord) -> Fields:
    """Return the fields of log records about a run of this job."""
    return {JOB_ID: job.id, TASK: job.task, QUEUE: job.queue, RUN: job.starts, FENCE: job.fence}


@contextlib.contextmanager
def about(job: JobRecord) -> Generator[None]:
    """Give log records that are made here the fields of this job, whichever job runs."""
    token = _SUBJECT.set(log_fields(job))
    try:
        yield
    finally:
        _SUBJECT.reset(token)


class JobRecordFactory:
    """Makes log records with the process's former factory, and adds the fields of the job that the caller runs in."""

    def __init__(self, former: Any) -> None:
        self._former = former

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        """Make a record."""
        record: logging.LogRecord = self._former(*args, **kwargs)
        if (subject := _SUBJECT.get()) is not None:
            record.__dict__.update(subject)
        elif (job := current_record()) is not None:
            record.__dict__.update(log_fields(job))
        return record


def add_log_fields() -> None:
    """Give the log records of this process the fields of their jobs, from now on. Idempotent.

    A factory that other code sets later keeps the fields if it calls the factory before it, as usual.
    """
    if not contextvars.copy_context().run(_are_added):
        logging.setLogRecordFactory(JobRecordFactory(logging.getLogRecordFactory()))


def _are_added() -> bool:
    _SUBJECT.set({JOB_ID: ""})
    return hasattr(logging.makeLogRecord({}), JOB_ID)
