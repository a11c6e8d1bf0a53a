"""Control exceptions: a handler raises one to decide the outcome of its own run. They are not errors."""

from datetime import timedelta

from tenure.core.duration import Duration, duration


class Control(Exception):
    """The base class of all control exceptions, so that a broad `except` in a handler can re-raise them."""


class RetryLater(Control):
    """Retry the job after `delay` (seconds, timedelta, or "30s"). It counts as a failure towards `max_attempts`."""

    def __init__(self, delay: Duration, reason: str | None = None) -> None:
        self.delay: timedelta = duration(delay, field="RetryLater.delay", zero=True)
        self.reason = reason
        super().__init__(reason or f"retry in {self.delay}")


class Snooze(Control):
    """Run the job again after `delay` (seconds, timedelta, or "30s"). It counts towards no limit."""

    def __init__(self, delay: Duration, reason: str | None = None) -> None:
        self.delay: timedelta = duration(delay, field="Snooze.delay", zero=True)
        self.reason = reason
        super().__init__(reason or f"snooze for {self.delay}")


class RateLimited(Control):
    """Run the job again after `retry_after`, and start nothing else under its rate before that; it counts as nothing.

    For a service that answers "too many requests": `raise RateLimited(int(response.headers["retry-after"]))`. The limit
    applies to the job's own rate: that with a key if it has one, else that of its task. If the job has no rate, the
    limit applies to its whole queue. The storage holds it for all workers. Of several limits the latest instant
    applies. `retry_after`: seconds, timedelta, or "30s".
    """

    def __init__(self, retry_after: Duration, reason: str | None = None) -> None:
        self.delay: timedelta = duration(retry_after, field="RateLimited.retry_after", zero=True)
        self.reason = reason
        super().__init__(reason or f"rate limited for {self.delay}")


class Reject(Control):
    """Fail the job at once with reason `rejected`, without a retry, even if attempts are left."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Cancel(Control):
    """End the job as `cancelled`."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
        super().__init__(reason or "cancelled by its handler")
