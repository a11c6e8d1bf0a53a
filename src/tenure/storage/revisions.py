"""The changes that callers and operators ask a storage for, and its answers: to jobs, schedules and settings."""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from tenure.core.events import OnRequest
from tenure.core.job import NewJob, RateKey, Ref, StallSetting
from tenure.core.lifecycle import State
from tenure.core.move import MoveMark
from tenure.core.retention import RetentionRules
from tenure.core.schedule import Schedule
from tenure.storage.names import CONCURRENCY, MOVED
from tenure.storage.waiting import CancelTree, WaitingRevision


class CancelJob(Struct, frozen=True, tag="cancel"):
    """Cancel a job. A job that is not active ends at once; the run of an active job is asked to stop.

    `ended`: see `Revision`.
    """

    ref: Ref
    reason: str | None = None
    by: str | None = None
    ended: int | None = None


class RedriveJob(Struct, frozen=True, tag="redrive"):
    """Put an ended job back in its queue with new budgets and a new time to live, due in `delay` microseconds.

    `ended`: see `Revision`.
    """

    ref: Ref
    by: str | None = None
    delay: int = 0
    ended: int | None = None


class DeleteJob(Struct, frozen=True, tag="delete"):
    """Delete a job that is not active. `ended`: see `Revision`.

    `move`: only while the jobs of its queue are moved to another storage by the move of this id.
    """

    ref: Ref
    by: str | None = None
    ended: int | None = None
    move: str | None = None


class RescheduleJob(Struct, frozen=True, tag="reschedule"):
    """Change the due time (microseconds from now) or the priority of a job that has not started.

    `ended`: see `Revision`.
    """

    ref: Ref
    delay: int | None = None
    priority: int | None = None
    boost: int | None = None
    by: str | None = None
    ended: int | None = None


class RetainJob(Struct, frozen=True, tag="retain"):
    """Keep a completed job with its result for `ttl` microseconds from now. This replaces any earlier lifetime.

    `ended`: see `Revision`.
    """

    ref: Ref
    ttl: int
    ended: int | None = None


Revision = CancelJob | RedriveJob | DeleteJob | RescheduleJob | RetainJob | WaitingRevision | CancelTree
"""A change of a job by an operator, or of what jobs wait for.

`ended`: apply it only if the job's end is still the one at this instant; 0: only if it has none. A caller that chose
the job from a listing sets it; otherwise it might change a job that has run again since, which it has not seen.
"""


class RevisionResult(Struct, frozen=True):
    """The result of one revision. `state`: the job's state before the revision.

    `changed`: the job's end is not `ended` of the revision, so nothing was done. `refused`: its state does not allow
    the revision. `holder`: the redrive was refused because of this job: it is unfinished and holds the unique key of
    both jobs, or it has failed and the job needs it completed.
    """

    ref: Ref
    verdict: Literal["done", "asked", "refused", "changed", "gone"]
    state: State | None = None
    holder: Ref | None = None


class PutSchedule(Struct, frozen=True, tag="put"):
    """Create a schedule, or change the schedule of that name; its progress stays as it is (`redefined`)."""

    schedule: Schedule

    @property
    def name(self) -> str:
        """The schedule's name."""
        return self.schedule.name


class PauseSchedule(Struct, frozen=True, tag="pause"):
    """Pause a schedule, or resume it at `next_tick`. Ticks that fell into the pause do not count as missed."""

    name: str
    paused: bool
    next_tick: int | None = None


class RemoveSchedule(Struct, frozen=True, tag="remove"):
    """Delete a schedule; the jobs that it has made stay."""

    name: str


class Tick(Struct, frozen=True, tag="tick"):
    """Advance a schedule to a tick and enqueue its job, if its last tick is the expected one and it is not paused.

    `job`: None if the tick makes no job. `missed`: how many ticks up to this one are skipped by this step.
    """

    name: str
    expected: int
    tick: int
    next_tick: int | None
    job: NewJob | None = None
    missed: int = 0


Change = PutSchedule | PauseSchedule | RemoveSchedule | Tick


def jobs_of_ticks(changes: Iterable[Change]) -> list[NewJob]:
    """Return the jobs that are enqueued by the ticks among some changes."""
    return [change.job for change in changes if isinstance(change, Tick) and change.job is not None]


class ScheduleResult(Struct, frozen=True):
    """The result of a schedule change. `ref`: the job that a tick made, or the job that its call was merged into."""

    name: str
    verdict: Literal["done", "superseded", "gone"]
    ref: Ref | None = None


class Target(Struct, frozen=True):
    """The queue, task or worker that a setting applies to."""

    kind: Literal["queue", "task", "worker"]
    name: str


class Settings(Struct, frozen=True, omit_defaults=True):
    """Settings of a queue, a task or a worker that every worker must know; None leaves a field unchanged.

    `record`: which of the optional events a queue records. `rate`: how often jobs of a queue may start, or how often
    jobs of a task may start in each queue; a task's rate replaces the rates that its jobs carry.
    `lift`: end the limit that `RateLimited` has set for a rate of the queue, `QUEUE_RATE` for the queue itself, or "*"
    for the first `LOOK_LIMIT` of them. It is an action and is not stored. `concurrency`: how many jobs a worker runs at
    once; 0: as many as it was started with. `moved`: the jobs of a queue move to another storage: it gives out no
    jobs and refuses new ones. For a worker: tells it where they went.
    """

    paused: bool | None = None
    rate: RateKey | None = None
    stall: StallSetting | None = None
    retention: RetentionRules | None = None
    record: tuple[OnRequest, ...] | None = None
    quiet: bool | None = None
    stop: bool | None = None
    lift: str | None = None
    concurrency: int | None = None
    moved: MoveMark | None = None

    @property
    def closed(self) -> bool:
        """True if a queue with these settings gives out no jobs."""
        return bool(self.paused) or self.moved_to is not None

    @property
    def moved_to(self) -> str | None:
        """The address of the storage that a queue's jobs are moved to; None if they are not."""
        return None if self.moved is None else self.moved.to or None

    @property
    def orders(self) -> tuple[str, ...]:
        """The orders of a worker with these settings, as the answer to its beat names them."""
        names: tuple[str, ...] = tuple(name for name in ("quiet", "stop") if getattr(self, name))
        if self.concurrency:
            names = (*names, f"{CONCURRENCY}{self.concurrency}")
        return names if self.moved_to is None else (*names, f"{MOVED}{self.moved_to}")

    def agrees(self, expected: "Settings", change: "Settings") -> bool:
        """Return True if the fields that `change` sets have their expected values. `lift` is an action, so it has none.

        A field that is not set is the same as False.
        """
        names = [name for name in change.__struct_fields__ if name != "lift" and getattr(change, name) is not None]
        return all(_set(getattr(self, name)) == _set(getattr(expected, name)) for name in names)

    def under(self, other: "Settings") -> "Settings":
        """Return these settings with `other` laid over them; stall terms and retention are merged field by field."""
        stall = other.stall if self.stall is None or other.stall is None else self.stall.updated_with(other.stall)
        kept = other.retention
        if self.retention is not None:
            kept = self.retention if kept is None else self.retention.updated_with(kept)
        return Settings(
            paused=self.paused if other.paused is None else other.paused,
            rate=self.rate if other.rate is None else other.rate,
            stall=self.stall if stall is None else stall,
            retention=kept,
            record=self.record if other.record is None else other.record,
            quiet=self.quiet if other.quiet is None else other.quiet,
            stop=self.stop if other.stop is None else other.stop,
            concurrency=self.concurrency if other.concurrency is None else other.concurrency,
            moved=self.moved if other.moved is None else other.moved,
        )


def _set(value: object) -> object:
    return False if value is None else value
