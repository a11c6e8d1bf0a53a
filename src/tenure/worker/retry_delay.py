"""The delay of a retry by the function of a task: `Retry(delay=...)`."""

import inspect
import logging

from tenure.core.duration import duration, micros
from tenure.core.job import JobRecord
from tenure.errors import UsageError
from tenure.failures import class_name
from tenure.options import Retry


def delay_by_function(retry: Retry, job: JobRecord, error: BaseException, logger: logging.Logger) -> int | None:
    """Return the delay before a failed job runs again, in microseconds. None: the delay that the job stores applies.

    The task's function is not called if the call has set a delay of its own, or if the job has no attempt left. A
    function that raises, or whose result is not a duration, is logged.
    """
    rule = job.policy.retry
    if retry.delay is None or rule.pinned or job.attempt >= rule.max_attempts:
        return None
    try:
        value = retry.delay(job.attempt, error)
        _close(value)
        return None if value is None else micros(duration(value, field="the result of Retry.delay", zero=True))
    except BaseException as failure:
        # The function is user code and does not await, so even a CancelledError comes from it and not from our stop.
        # The message of an error may quote the arguments of the job.
        why = str(failure) if type(failure) is UsageError else class_name(failure)
        logger.error(
            "job %s (%s): Retry.delay failed for attempt %d: %s; the default delay applies",
            *(job.id, job.task, job.attempt, why),
        )
        return None


def _close(value: object) -> None:
    """Close the coroutine of an asynchronous function, which is not a duration; otherwise Python warns about it."""
    if inspect.iscoroutine(value):
        value.close()
