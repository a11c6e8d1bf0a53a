"""What a handler raises to say what shall become of its own job. None of these is an error."""

from datetime import timedelta

from tenure.core.duration import Duration, duration


class Control(Exception):
    """The common root, so that a handler's broad `except` can let all of them pass."""


class RetryLater(Control):
    """Try again after `delay` (seconds, timedelta, or "30s"); charged as a failure, bounded by `max_attempts`."""

    def __init__(self, delay: Duration, reason: str | None = None) -> None:
        self.delay: timedelta = duration(delay, field="RetryLater.delay", zero=True)
        self.reason = reason
        super().__init__(reason or f"retry in {self.delay}")


class Snooze(Control):
    """Run again after `delay` (seconds, timedelta, or "30s"); charged to no budget."""

    def __init__(self, delay: Duration, reason: str | None = None) -> None:
        self.delay: timedelta = duration(delay, field="Snooze.delay", zero=True)
        self.reason = reason
        super().__init__(reason or f"snooze for {self.delay}")


class Reject(Control):
    """Never again: the job fails at once with reason `rejected`, whatever attempts are left."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Cancel(Control):
    """Stop this job: it ends as `cancelled`."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
        super().__init__(reason or "cancelled by its handler")
