"""The records by which jobs wait for each other: deliveries, the outbox, and what a storage without flows refuses.

A storage either keeps flows (`Storage.flows`), or refuses each call that needs them before it writes anything.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from tenure.core.decision import Suspend
from tenure.core.job import CollectKey, DebounceKey, JobRecord, NewJob
from tenure.core.move import MoveBatch
from tenure.core.ref import Ref
from tenure.core.settlement import Settlement
from tenure.core.waiting import DEPENDENTS_LIMIT, NEEDS_LIMIT, Dependent, JobKind, Wait, WaitToken
from tenure.errors import FlowError

NOTIFIED_AT_ONCE = 8
"""How many dependents an end notifies in its own step. An end with more of them writes an entry of the outbox."""

ENDS_AT_ONCE = 16
"""How many ends that follow from ends one step carries out. The next one is left to the outbox."""

ENTRY_PAGE = 100
"""How many dependents an entry of the outbox hands out at once."""

OUTBOX_LIMIT = 100
"""How many entries of the outbox one answer hands out."""

OUTBOX_DELAY = 2_000_000
"""How long after it was written a sweep hands out an entry of the outbox, in microseconds."""


class DeliverToken(Struct, frozen=True, tag="deliver"):
    """Put a token into the inbox of a job; a repeated one changes nothing. A signal to an ended job is refused."""

    ref: Ref
    token: WaitToken
    ended: int | None = None


class SealBox(Struct, frozen=True, tag="seal"):
    """Say how many keys a box of a job's inbox will have."""

    ref: Ref
    box: str
    total: int
    ended: int | None = None


class Subscribe(Struct, frozen=True, tag="subscribe"):
    """Add a dependent to a job. If the job has ended, the dependent is notified at once."""

    ref: Ref
    dependent: Dependent
    ended: int | None = None


class AdvanceEntry(Struct, frozen=True, tag="advance"):
    """Record how far the outbox entry of a job was carried out, if it is still the entry of this number.

    `cursor`: how many of its dependents were notified. If that is all of them, the entry is deleted. If the
    cursor rises, a sweep hands out the next page at once; else after `put_off` microseconds, because a dependent was
    out of reach.
    """

    ref: Ref
    number: int
    cursor: int
    put_off: int = OUTBOX_DELAY
    ended: int | None = None


WaitingRevision = DeliverToken | SealBox | Subscribe | AdvanceEntry
"""A change that concerns what jobs wait for. `ended`: see `Revision`."""


class OutboxEntry(Struct, frozen=True):
    """The dependents of an ended job that are yet to be notified: the next `ENTRY_PAGE` of them, after `cursor`.

    `number`: identifies the end. A job that was redriven and ended again has an entry of another number.
    """

    ref: Ref
    number: int
    completed: bool
    dependents: tuple[Dependent, ...]
    cursor: int = 0

    @property
    def deliveries(self) -> tuple[DeliverToken, ...]:
        """The tokens to deliver."""
        return tuple(
            DeliverToken(dependent.to, end_token(dependent, completed=self.completed)) for dependent in self.dependents
        )

    @property
    def done(self) -> AdvanceEntry:
        """The revision that follows when these tokens were delivered."""
        return AdvanceEntry(self.ref, self.number, self.cursor + len(self.dependents))


def end_token(dependent: Dependent, *, completed: bool) -> WaitToken:
    """Return the token that a dependent gets at the end of the job that it depends on."""
    return WaitToken(dependent.box, dependent.key, "completed" if completed else "failed")


def require_valid(jobs: Iterable[NewJob]) -> None:
    """Check the links of new jobs.

    Raises:
        FlowError: a job cannot wait as it should.
    """
    for job in jobs:
        if job.links is not None and (problem := _problem(job)) is not None:
            raise FlowError(f"the job {job.id!r} of the queue {job.queue!r} {problem}")


def require_valid_waits(settlements: Iterable[Settlement]) -> None:
    """Check what runs that are to be suspended wait for.

    Raises:
        FlowError: a run cannot wait as it should.
    """
    for settlement in settlements:
        decision = settlement.decision
        if isinstance(decision, Suspend) and (problem := _wait_problem(decision.wait)) is not None:
            raise FlowError(f"the job {settlement.ref.id!r} of the queue {settlement.ref.queue!r} {problem}")


def _problem(job: NewJob) -> str | None:
    links = job.links
    if links is None:
        return None
    if len(links.dependents) > DEPENDENTS_LIMIT:
        return f"names {len(links.dependents)} dependents, the limit is {DEPENDENTS_LIMIT}; subscribe the others"
    if links.wait is None:
        return None if links.kind is JobKind.JOB else f"is of the kind {links.kind!s}, so it must wait for something"
    if (problem := _wait_problem(links.wait)) is not None:
        return problem
    if job.delay or job.run_at is not None:
        return "waits, so it cannot start at a fixed time; add a need with a time"
    if isinstance(job.merge, DebounceKey | CollectKey):
        return "waits, so it cannot be debounced or collect calls"
    return None


def _wait_problem(wait: Wait) -> str | None:
    if not wait.needs:
        return "waits for nothing; name at least one need"
    if len(wait.needs) > NEEDS_LIMIT:
        return f"has {len(wait.needs)} needs, the limit is {NEEDS_LIMIT}; wait for a group of jobs instead"
    return None


def require_plain(
    storage: str,
    jobs: Iterable[NewJob | JobRecord] = (),
    settlements: Iterable[Settlement] = (),
    revisions: Iterable[object] = (),
) -> None:
    """Check that a call needs no flows, for a storage that does not keep them. `storage`: the kind, for the message.

    Raises:
        FlowError: a job waits or has dependents, a run is suspended, or a token is delivered.
    """
    for job in jobs:
        if job.links is not None:
            raise FlowError(
                f"the job {job.id!r} of the queue {job.queue!r} waits, or others wait for it, and {_lacks(storage)}"
            )
    for settlement in settlements:
        if isinstance(settlement.decision, Suspend):
            raise FlowError(f"the job {settlement.ref.id!r} is to be suspended, and {_lacks(storage)}")
    for revision in revisions:
        if isinstance(revision, WaitingRevision):
            raise FlowError(f"a token is for the job {revision.ref.id!r}, and {_lacks(storage)}")


def jobs_of_batch(batch: MoveBatch) -> Iterator[NewJob | JobRecord]:
    """Yield the jobs of a batch, and those of its calls."""
    yield from (detail.job for detail in batch.jobs)
    yield from (call.job for call in batch.calls)


def _lacks(storage: str) -> str:
    return f"{storage} does not keep flows yet; only memory:// does"
