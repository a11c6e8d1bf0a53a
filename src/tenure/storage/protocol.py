"""The contract of every storage: seventeen verbs, each one atomic step and one round trip.

A storage knows job states, guards, indexes, limits and its own clock. It does not know tasks, policies or retries: the
core decides what happens to a job after a run, and the caller passes that decision in as a settlement. Requests carry
durations; the storage adds them to its own clock. Every verb may be called from several event loops of one process, and
may be repeated after a reply was lost.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from tenure.core.audit import ACTS_KEPT, OperatorAct
from tenure.core.figures import FiguresQuery
from tenure.core.job import JobDetail, NewJob, Owner, Ref
from tenure.core.leadership import Term
from tenure.core.published import PublishedTask
from tenure.core.retention import KeepRule
from tenure.core.settlement import Settlement
from tenure.storage.queries import ActsPage, ActsQuery, EventPage, EventReader, Finding, Page, Query, Survey
from tenure.storage.requests import (
    ClaimRequest,
    EnqueueResult,
    ExchangeResult,
    ReclaimResult,
    RenewRequest,
    RenewResult,
    SettleVerdict,
    SweepRequest,
    SweepResult,
)
from tenure.storage.revisions import Change, Revision, RevisionResult, ScheduleResult, Settings, Target


class Notifications(Protocol):
    """Hints that something changed, coalesced: each iteration yields once, however many changes came in between."""

    def __aiter__(self) -> AsyncIterator[None]:
        """Return itself."""
        ...

    async def __anext__(self) -> None:
        """Wait for the next hint. Cancelling the wait loses nothing."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Storage(Protocol):
    """Stores jobs, schedules, settings and events."""

    url: str
    """Its address, without secrets."""

    shared: bool
    """True if other processes can use the same data."""

    remote: bool
    """True if a server works concurrently with its callers: it pays to send a request before the last answer."""

    async def open(self) -> None:
        """Prepare for use. Idempotent.

        Raises:
            SchemaMismatchError: the data is not Tenure's, or has another schema version; it is left unchanged.
        """
        ...

    async def close(self) -> None:
        """Release all resources. Idempotent; no acknowledged write is lost."""
        ...

    async def examine(self, *, deep: bool = True) -> list[Finding]:
        """Check for conditions that could lose or repeat jobs; each finding names its remedy.

        `deep`: also run checks that take longer the more data there is, such as an audit of all counters. Without it
        every storage answers within seconds, however much data it holds.
        """
        ...

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store each new job once. Per queue, the call stores all of its jobs or none of them.

        Guard: the (queue, id) is unknown, or its result's lifetime is over, and its unique key is free. Otherwise the
        result is `duplicate` and names the existing job. An id that was merged into another job is known, too. With a
        debounce or collect key, a call is merged into the job that holds the key, as long as that job has not started.
        A throttle key admits no more jobs than its window allows. The limit that a call brings for a concurrency key
        applies to the key from now on.

        Raises:
            StorageFullError: the storage has no room; nothing was written.
            StorageMovedError: the jobs of one of the queues are moved to another storage; nothing was written.
        """
        ...

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        """Apply each settlement whose run is still the current one, then claim jobs: one step, one round trip.

        A settlement with a limit lets nothing start under the job's own rate (`limit_name`), else in its queue, before
        that instant; of several instants the latest applies, and a new one is recorded (`QueueLimited`).

        Guard of a settlement: the job is active, and fence and owner match, even if the lease has run out. A put-back
        of a job that was asked to stop ends the job as cancelled.

        Guard of a claim: the job is due and not expired, its queue and task are not paused, all its keys have room, and
        all its rates and its queue's rate allow a start. A claim raises the fence, counts a start, takes the time of
        the job's rates and opens a run. It moves jobs that it cannot start out of the way. A job that is too old
        expires. A job without room is parked under its first full key, else under its first rate that is not open. When
        a job leaves a key, the best job that is parked under that key is released. Under a rate, passing time releases
        jobs.

        A run that is put back `until_known` costs its rates nothing: the job keeps its score and is parked under its
        task and version. If the caller knows both, its claim takes such jobs in score order with the others; it looks
        at up to `PLACE_LIMIT` task versions. A job that has started before and whose task the caller does not know is
        parked in the same way.

        If a queue has more completed jobs than `KeepRule.most`, a call that completes some also deletes a bounded
        number of the jobs that completed first (`KeepRule.deleted_at_once`). At most 256 settlements and 128 jobs a
        call.

        A claim with a lane claims nothing if its number, or a later one of this owner and lane, was seen before. Runs
        that earlier calls of the lane gave out, and that its `answered` does not cover, are handed back first: without
        a charge, as never begun, with the job's score kept. A storage deletes a lane ten minutes after its last use.
        """
        ...

    async def renew(self, beat: RenewRequest) -> RenewResult:
        """Record that an owner is alive, and extend every named lease that it still holds, even if it has run out.

        Guard: fence and owner match. A lease never extends past the run's limit or its progress deadline, unless the
        renewal says that the run is exclusive. A suspicion ends only if the new lease end lies ahead. A renewal of a
        run that the owner no longer holds is refused and recorded (`RunFenced`); it records no step either. Steps stay
        with the job through put-backs, stalls and redrives, but a redrive forgets failures (`StepRecord.is_failure`).

        The beat's events are recorded unchanged. A delta is added to the figures of the current minute and hour: to
        the cells of its tasks, and to the cell of each queue. A log line, an event or a delta that was received before,
        by its number, is skipped, and so are data with a number that is not higher than that of the stored data. At
        most 500 renewals a call. The request's lanes hand back runs as a claim's lane does, but the runs of a call that
        is still under way stay. A partition that has lost its identity gets it back from the owner's `seen` if only the
        identity is missing, and gets a new one if all data is lost.
        """
        ...

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        """Elect or renew the caller (unless it asks for no term), then run one bounded turn of the chores.

        In this order: reclaim jobs whose owner died or whose grace is over; mark expired leases as suspect; expire jobs
        that are too old to start; promote jobs that fell due; release parked jobs that have room; redrive by rule;
        trim jobs, events and figures. The record's own state guards each step, so two leaders do no harm. A chore that
        fails does not prevent the others.

        Queues are promoted in the order in which the first delayed job of each fell due, and by name where these
        instants are equal; in a queue, the job that fell due first is the first. A storage of many parts does so in
        each part.
        """
        ...

    async def reclaim(self, dead: str, owner: Owner) -> ReclaimResult:
        """Take every active job of an owner known to be dead, without grace; up to 200 a call.

        If a caller uses an owner id only for this call, it can recover the jobs of a lost answer: it reclaims them from
        that id under another one.
        """
        ...

    async def revise(self, revisions: Sequence[Revision]) -> list[RevisionResult]:
        """Cancel, redrive, delete, reschedule or retain jobs that are not active; ask an active one to stop.

        The worker of a run that is asked to stop is notified at once, on its owner's topic.
        """
        ...

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
        """Change schedules, and advance a schedule by a tick if and only if its last tick is the expected one.

        A tick's job is enqueued in the same step, unless the schedule's overlap rule forbids it: `skip` while a job of
        an earlier tick is unfinished, `queue_one` while one has yet to start. The result of a tick is recorded. At most
        100 changes a call.
        """
        ...

    async def tune(
        self, target: Target, settings: Settings, *, by: str | None = None, expected: Settings | None = None
    ) -> Settings:
        """Change settings that every worker must know; return the settings in force. Idempotent; unset fields stay.

        `expected`: the settings that the caller has read. If a field that `settings` sets is another one now, nothing
        changes (`Settings.agrees`). The caller compares the settings in force with those that it wants.

        `lift` ends limits of a queue at once; each limit that it ends is recorded.

        A worker is notified of an order at once, on its topic.
        """
        ...

    async def resign(self, term: Term) -> None:
        """Give up this leader term and no other."""
        ...

    async def publish(self, tasks: Sequence[PublishedTask], *, renewal: bool = False) -> None:
        """Store what a worker knows of its tasks, or renew it: the same digest is written once. Idempotent.

        Of what live workers publish, the highest version stays, and of equal versions the latest (`replaces`).
        `renewal`: the worker has published them before, so it replaces no equal version of a live worker. At most
        `PUBLISH_LIMIT` tasks a call. A storage forgets a task after `PUBLISHED_KEPT`, and of more than
        `PUBLISHED_MOST` tasks those that were published first.

        Raises:
            StorageFullError: the storage has no room; nothing was written.
        """
        ...

    async def get(self, refs: Sequence[Ref]) -> list[JobDetail | None]:
        """Return each job with its runs and log. None means unknown; it never means pending.

        A completed job whose own result lifetime is over is unknown, even if no sweep has deleted it yet.
        """
        ...

    async def find(self, query: Query) -> Page:
        """Return one page of records, in the order of the query. Without queues, of all but the internal ones."""
        ...

    async def published(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        """Return the tasks that workers have published, by name: those named, or all of them without their schemas."""
        ...

    async def survey(
        self, queues: Sequence[str] = (), *, faults: int = 0, figures: FiguresQuery | None = None
    ) -> Survey:
        """Return job counts, queues and workers, computed from counters; this works without any worker.

        Without names, of all queues but the internal ones, and without workers that serve only these.
        `faults`: also return up to this many faults of these queues, those with the most failed jobs. `figures`: also
        return these cells of these queues.
        """
        ...

    async def events(
        self,
        cursor: str | None = None,
        *,
        limit: int = 100,
        reader: EventReader | None = None,
        ref: Ref | None = None,
    ) -> EventPage:
        """Return what happened after the cursor, in order and without a gap; `EventsTrimmed` first if it was cut.

        With a `ref`: only events of that job.

        With a reader's name the storage keeps the cursor. The call states how far its last batch was handled, and
        reserves the next batch for this caller for five seconds (asking again renews the loan). The page is empty while
        the batch is on loan to another caller, but the stated progress counts anyway. If a reader brings a cursor but
        the storage does not know the reader, the reader was lost together with the log that the cursor belonged to. It
        then starts at the oldest event. A cursor of None starts at the kept cursor (for a new reader at
        `EventReader.begin`), or without a reader at the oldest event. `EVENTS_END` starts after the newest. Without a
        reader, a cursor of `cursors.recorded_within` starts after the last event that is older than the given age. An
        invalid cursor raises ValueError.
        """
        ...

    async def record_act(self, act: OperatorAct, *, keep: KeepRule = ACTS_KEPT) -> OperatorAct:
        """Write an operator's act into the audit log, and return the record as it is now.

        A write without a verdict asks for the act, a write with one ends it; the storage's clock stamps both. Guard:
        the id is unknown, or its record has no verdict yet (`OperatorAct.written`). A new record also deletes up to
        `TRIM_BATCH` of the oldest records that are older than `keep.age`, or that exceed `keep.count`.

        Like a settlement, this is written even if the storage refuses new jobs because its memory is full. The texts
        must be those of `core.audit.fitted`.
        """
        ...

    async def acts(self, query: ActsQuery) -> ActsPage:
        """Return one page of the audit log, newest first. An invalid cursor raises ValueError."""
        ...

    def notices(self, topics: Iterable[str]) -> Notifications:
        """Listen for hints on these topics; hints may be lost, merged or late, and promise nothing."""
        ...


class StorageTransaction(Protocol):
    """A handler's transaction in the database of the storage, which also completes the handler's job.

    Its calls block. Any thread may make them, one at a time, except the thread of the event loop that the transaction
    was made for.
    """

    @property
    def connection(self) -> Any:
        """The connection or session that the handler writes with."""
        ...

    @property
    def late_error(self) -> Exception | None:
        """The error of a hook that the library of the connection called after the commit."""
        ...

    def begin(self) -> None:
        """Begin the transaction, with a connection of its own if the handler gave none.

        Raises:
            UsageError: the handler's connection cannot be used: it leads to another database, or is in a transaction.
            StorageError: the database is out of reach.
        """
        ...

    def prepare(self) -> None:
        """Prepare the completion: from here on no other transaction may change jobs, so `complete` must follow at once.

        Raises:
            UsageError: the handler has ended the transaction itself.
            StorageError: the database is out of reach, or busy for too long.
        """
        ...

    def complete(self, beat: RenewRequest, settlement: Settlement) -> SettleVerdict:
        """Renew and settle, then commit. Nothing is committed unless the verdict is `done`.

        If the answer to the commit is lost, this asks the database whether it took place.

        Raises:
            StorageError: nothing was committed; or the message says that this cannot be found out.
        """
        ...

    def close(self) -> None:
        """Roll back what is not committed, and close a connection of its own. Idempotent; never raises."""
        ...

    def interrupt(self) -> None:
        """Make the call that waits fail, if that is possible. Any thread may call this."""
        ...

    def abandon(self) -> None:
        """Roll back if others wait for this transaction, because its handler does not end. Any thread may call this.

        The handler writes nothing more. A completion that has begun goes on.
        """
        ...


@runtime_checkable
class SupportsTransactions(Protocol):
    """A storage in whose database a handler can write: its own writes and its completion are one transaction."""

    def transaction(self, connection: object, loop: asyncio.AbstractEventLoop | None) -> StorageTransaction:
        """Return a transaction that has not begun.

        `connection`: the handler's connection or session; None: the transaction opens its own. `loop`: the event loop
        of a coroutine, where the calls of its asynchronous connection are awaited; None in a thread without one.

        Raises:
            UsageError: the storage cannot use a connection of this kind, or not here.
        """
        ...
