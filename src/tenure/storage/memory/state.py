"""The model's state: records, runs, logs, settings, events, and the notifications to send."""

from collections.abc import Mapping

from tenure.clock import Clock
from tenure.core.events import Event, JobEvent, QueueDrained, name_of
from tenure.core.figures import TaskCounts, end_of
from tenure.core.job import JobRecord, LogLine, LogPosition, RateKey, Ref, RunRecord
from tenure.core.lifecycle import State
from tenure.core.transition import expired, expiry
from tenure.errors import StorageMovedError
from tenure.storage.memory.event_log import EventLog
from tenure.storage.memory.figures import FiguresStore
from tenure.storage.memory.job_indexes import JobIndexes
from tenure.storage.protocol import EVENTS_TOPIC, Settings, Target, job_topic, queue_topic

_NOTHING_SET = Settings()


class ModelState:
    """Records and their related data. `notified` collects the topics that each step notifies."""

    def __init__(self, clock: Clock) -> None:
        self.notified: list[str] = []
        self._clock = clock
        self._indexes = JobIndexes(
            self._task_paused, self._task_rate, lambda queue: self.notified.append(queue_topic(queue))
        )
        self._jobs = self._indexes.jobs
        self._queues = self._indexes.queues
        self._runs: dict[Ref, list[RunRecord]] = {}
        self._log: dict[Ref, list[LogLine]] = {}
        self._logged: dict[Ref, LogPosition] = {}
        """For each job, how far its log has got."""
        self._settings: dict[Target, Settings] = {}
        self._event_log = EventLog()
        self._figures = FiguresStore()

    @property
    def records(self) -> Mapping[Ref, JobRecord]:
        """Every job, for the invariant checks."""
        return self._jobs

    def _replace(self, before: JobRecord, after: JobRecord) -> None:
        self._indexes.replace(before, after)

    def _drop(self, job: JobRecord) -> None:
        self._indexes.drop(job)
        del self._runs[job.ref], self._log[job.ref]
        self._logged.pop(job.ref, None)

    def _expire(self, job: JobRecord, now: int) -> None:
        self._record(expiry(job, now), now)
        if job.policy.on_expire == "discard":
            self._drop(job)
            self._queues[job.queue].discarded += 1
        else:
            self._replace(job, expired(job, now))
        self._figures.add([TaskCounts(job.queue, job.task, end_of("expired"))], now)
        self._record_if_drained(job.queue, now)
        self.notified.append(job_topic(job.ref))

    def _is_past_retention(self, job: JobRecord, now: int) -> bool:
        """Return True if a completed job's own lifetime is over: it counts as deleted, even before a sweep."""
        return job.state is State.COMPLETED and job.kept_until is not None and job.kept_until <= now

    def _record(self, event: Event, now: int) -> None:
        self._event_log.record(event, now)
        self.notified.append(EVENTS_TOPIC)

    def _record_on_request(self, event: JobEvent, now: int) -> None:
        """Record an optional event if its queue records that type."""
        if name_of(event) in (self._setting("queue", event.queue).record or ()):
            self._record(event, now)

    def _records_more(self, queue: str) -> bool:
        """Return True if a queue records optional events. Otherwise the events of each job need not be created."""
        return bool(self._setting("queue", queue).record)

    def _record_if_drained(self, queue: str, now: int) -> None:
        recorded = self._setting("queue", queue).record or ()
        if "queue_drained" in recorded and not self._queues[queue].unfinished:
            self._record(QueueDrained(queue=queue), now)

    def _setting(self, kind: str, name: str) -> Settings:
        if not self._settings:
            return _NOTHING_SET
        return self._settings.get(Target(kind, name), _NOTHING_SET)  # type: ignore[arg-type]

    def _paused(self, queue: str) -> bool:
        return self._setting("queue", queue).closed

    def _require_here(self, queue: str) -> None:
        """Raise StorageMovedError if the jobs of a queue are moved to another storage."""
        if (moved_to := self._setting("queue", queue).moved_to) is not None:
            raise StorageMovedError(queue, moved_to)

    def _task_paused(self, task: str) -> bool:
        return bool(self._setting("task", task).paused)

    def _task_rate(self, task: str) -> RateKey | None:
        return self._setting("task", task).rate
