"""Moves the jobs, schedules and settings of one storage to another one, so that no job can run in both.

    source                                     target
    1. mark each queue: no claims, no enqueues
    2. read up to 50 jobs ───────────────────► 3. store them, and which ones, under the next number
    4. delete the jobs that the target named

A marked queue gives out no jobs, so only the copies in the target can run, from step 3 on. If the mover dies, another
one asks the target for the jobs of the latest batch, deletes these in the source, and goes on: the target names them
even if they have run and were deleted there. The number refuses a mover that was overtaken by another one.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from random import SystemRandom

from msgspec import Struct, structs

from tenure.clock import SECOND
from tenure.core.internal import INTERNAL_QUEUES
from tenure.core.job import JobDetail, JobRecord, Owner, Ref
from tenure.core.lifecycle import State
from tenure.core.move import MoveBatch, MoveMark, MoveReceipt
from tenure.core.published import PUBLISH_LIMIT
from tenure.core.schedule import Schedule
from tenure.errors import StorageError, UsageError
from tenure.ids import owner_id
from tenure.storage.moving import HoldsCalls, MoveTarget
from tenure.storage.protocol import (
    CancelJob,
    DeleteJob,
    PutSchedule,
    Query,
    QueueSurvey,
    RemoveSchedule,
    RenewRequest,
    Settings,
    Storage,
    Survey,
    Target,
    Tick,
    WorkerSurvey,
)

MOVABLE = (State.WAITING, State.DELAYED, State.FAILED)
"""The states whose jobs move. Active jobs stay with their workers, and ended ones with those who wait for them."""

AT_ONCE = 50
"""How many jobs one step moves at most: a script on Redis stores them in a few milliseconds."""

BYTES_AT_ONCE = 1 << 20
LINES_AT_ONCE = 1_000
"""One step moves no further jobs after this many bytes of payloads and data, or runs and log lines."""

PAGE = 200
BY = "tenure move"
CLOCKS_APART = 5 * SECOND


class QueueMove(Struct, frozen=True, kw_only=True):
    """The move of one queue. `waiting`, `delayed`, `failed`, `active`: the jobs that the source had at the beginning.

    `moved`: how many jobs this run has moved. `held`: jobs that stay because an active job of the source holds one of
    their concurrency keys. `known`: jobs that stay because the target knows their id, or another unfinished job there
    holds their unique key.
    """

    queue: str
    waiting: int = 0
    delayed: int = 0
    failed: int = 0
    active: int = 0
    moved: int = 0
    held: int = 0
    known: int = 0


class MoveReport(Struct, frozen=True, kw_only=True):
    """What a move did, or with `dry_run` what it would do. The addresses are without secrets.

    `schedules`: how many schedules moved. `schedules_held`: those that stay, because they must not fire while a job of
    theirs is active. `newer_calls`: committed calls of users' transactions that stay, because a newer version stored
    them during the move in a format that this one cannot read. `clock_ahead`: by how many seconds the target's clock is
    ahead of the source's: instants move as they are.
    """

    source: str
    target: str
    dry_run: bool
    queues: tuple[QueueMove, ...]
    schedules: int = 0
    schedules_held: int = 0
    newer_calls: int = 0
    clock_ahead: float = 0.0

    @property
    def complete(self) -> bool:
        """True if the source has no job, no schedule and no call left that a later run could move."""
        return not (
            self.schedules_held or self.newer_calls or any(one.active or one.held or one.known for one in self.queues)
        )


@dataclass
class _Active:
    """The active jobs of the source's queue: their concurrency keys and schedules."""

    jobs: int = 0
    keys: set[str] = field(default_factory=set[str])


def _nothing(step: str) -> None:
    """Ignore a step."""


def _no_progress(queue: str, moved: int, total: int) -> None:
    """Ignore progress."""


class Move:
    """A move from one open storage to another one.

    `while_running`: move although workers of the source live. `on_step`: called after each step that is not undone if
    the process ends: `marked`, `settings`, `received`, `deleted`, `schedule_put`, `schedule_removed`. `on_progress`:
    called with a queue, how many jobs were looked at, and how many there are.
    """

    def __init__(
        self,
        source: Storage,
        target: Storage,
        *,
        while_running: bool = False,
        on_step: Callable[[str], None] = _nothing,
        on_progress: Callable[[str, int, int], None] = _no_progress,
    ) -> None:
        self._source = source
        self._target = target
        self._while_running = while_running
        self._on_step = on_step
        self._on_progress = on_progress
        self._busy_schedules: set[str] = set()

    async def plan(self) -> MoveReport:
        """Return what a move would do, and change nothing.

        Raises:
            UsageError: the move would be refused.
            StorageError: a storage cannot be reached.
        """
        survey = await _whole_survey(self._source)
        await self._check(await self._source.survey())
        return structs.replace(
            await self._report(survey, [_counted(queue) for queue in survey.queues if _matters(queue)]),
            dry_run=True,
            schedules=len(survey.schedules),
        )

    async def run(self) -> MoveReport:
        """Move all that can be moved; safe to repeat after any error and after a kill.

        Raises:
            UsageError: workers of the source live, both are the same storage, the source or the target takes part in
                another move, or a call of a user's transaction waits there that only a newer version can read.
            StorageError: a storage cannot be reached, or another process changes the same move.
        """
        taker = await self._check(await self._source.survey())
        await self._reopen()
        mark = await self._mark(await _whole_survey(self._source))
        survey = await _whole_survey(self._source)
        queues = [await self._move_queue(survey, queue, mark, taker) for queue in survey.queues]
        moved, held = await self._move_schedules(survey.schedules)
        report = await self._report(survey, [one for one in queues if _is_shown(one)])
        # After the check, a producer of a newer version may have stored some.
        return structs.replace(
            report, schedules=moved, schedules_held=held, newer_calls=await _newer_calls(self._source)
        )

    async def _report(self, survey: Survey, queues: Sequence[QueueMove]) -> MoveReport:
        ahead = (await self._target.survey()).now - (await self._source.survey()).now
        return MoveReport(
            source=self._source.url,
            target=self._target.url,
            dry_run=False,
            queues=tuple(queues),
            clock_ahead=ahead / SECOND if abs(ahead) > CLOCKS_APART else 0.0,
        )

    # ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _check(self, survey: Survey) -> MoveTarget:
        """Return the target as one that can receive jobs, unless the move must be refused."""
        source, target = self._source, self._target
        if source.url == target.url or await _identities(source) & await _identities(target):
            raise UsageError(f"--from and --to are the same storage, {target.url}; name two different ones")
        if not isinstance(target, MoveTarget):
            raise UsageError(f"{target.url} cannot receive jobs from another storage; name a SQL storage or Redis")
        alive = [worker for worker in survey.workers if _is_alive(worker)]
        if alive and not self._while_running:
            names = ", ".join(worker.owner.name or worker.owner.id for worker in alive[:5])
            more = f" and {len(alive) - 5} more" if len(alive) > 5 else ""
            raise UsageError(
                f"workers of {source.url} are running: {names}{more}; stop them first (tenure workers stop), or move "
                "with --while-running: they finish the runs that they have and claim no more"
            )
        for queue in survey.queues:
            if (to := queue.settings.moved_to) not in (None, target.url):
                raise UsageError(
                    f"the jobs of {source.url} are moved to {to} already; finish that move first: tenure move --from "
                    f"{source.url} --to {to}"
                )
        for queue in (await _whole_survey(target)).queues:
            if (to := queue.settings.moved_to) not in (None, source.url):
                raise UsageError(f"the jobs of {target.url} are moved to {to}; move to that storage instead")
            if to is not None and (calls := await _newer_calls(target)):
                raise _newer_version(target, calls)
        if calls := await _newer_calls(source):
            raise _newer_version(source, calls)
        await self._check_waits()
        return target

    async def _check_waits(self) -> None:
        """Refuse a move of jobs that wait for others, and of jobs with links to a target that does not keep flows."""
        source, target = self._source, self._target
        if not source.flows:
            return
        queues = (await _whole_survey(source)).queues
        if suspended := sum(queue.counts.get(State.SUSPENDED, 0) for queue in queues):
            raise UsageError(
                f"{suspended} job{'s' if suspended > 1 else ''} of {source.url} wait{'' if suspended > 1 else 's'} for "
                "others and cannot move; let them end or cancel them first"
            )
        if target.flows:
            return
        for queue in queues:
            async for job in self._pages(queue.queue, MOVABLE):
                if job.links is not None:
                    raise UsageError(
                        f"the job {job.id!r} of the queue {job.queue!r} depends on others, or others on it, and "
                        f"{target.url} does not keep flows; let it end or delete it first"
                    )

    # ── marks ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _reopen(self) -> None:
        """Open the queues of the target that were moved to the source before: their jobs come back now."""
        survey = await _whole_survey(self._target)
        for queue in survey.queues:
            mark = queue.settings.moved
            if mark is None or not mark.to or not isinstance(self._source, MoveTarget):
                continue
            closed = MoveReceipt()
            while not closed.applied:
                latest = await self._source.receive(MoveBatch(mark.id, queue.queue))
                await self._delete(self._target, queue.queue, mark, latest.taken)
                # The next number refuses an earlier mover that still goes on.
                closed = await self._source.receive(MoveBatch(mark.id, queue.queue, latest.number))
            await self._target.tune(Target("queue", queue.queue), Settings(moved=MoveMark()), by=BY)
            await _readmit(self._target, queue.queue)
            self._on_step("reopened")
        for worker in survey.workers:
            await self._target.tune(Target("worker", worker.owner.id), Settings(moved=MoveMark()), by=BY)

    async def _mark(self, survey: Survey) -> MoveMark:
        """Close all queues of the source, and tell its workers where the jobs went."""
        known = (queue.settings.moved for queue in survey.queues if queue.settings.moved_to is not None)
        mark = next((mark for mark in known if mark is not None), None) or MoveMark(
            self._target.url, owner_id(SystemRandom())
        )
        names = {queue.queue for queue in survey.queues}
        names |= {schedule.job.queue for schedule in survey.schedules}
        names |= {queue for worker in survey.workers for queue in worker.queues}
        for name in sorted(names):
            await self._source.tune(Target("queue", name), Settings(moved=mark), by=BY)
            self._on_step("marked")
        for worker in survey.workers:
            if _is_alive(worker):
                await self._source.tune(Target("worker", worker.owner.id), Settings(moved=mark), by=BY)
        return mark

    # ── queues ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _move_settings(self, survey: Survey, queue: QueueSurvey) -> None:
        """Move the settings of a queue, and with those of the first queue what is stored of all tasks."""
        if queue is survey.queues[0]:
            for task in sorted({*survey.paused_tasks, *survey.task_rates}):
                paused, rate = task in survey.paused_tasks or None, survey.task_rates.get(task)
                await self._target.tune(Target("task", task), Settings(paused=paused, rate=rate), by=BY)
            names = [task.name for task in await self._source.published()]
            for first in range(0, len(names), PUBLISH_LIMIT):
                # What workers of the target have published is newer.
                some = await self._source.published(names[first : first + PUBLISH_LIMIT])
                await self._target.publish(some, renewal=True)
        own = structs.replace(queue.settings, moved=None)
        await self._target.tune(Target("queue", queue.queue), own, by=BY)
        self._on_step("settings")

    async def _move_queue(self, survey: Survey, queue: QueueSurvey, mark: MoveMark, taker: MoveTarget) -> QueueMove:
        name, counted = queue.queue, _counted(queue)
        receipt = await taker.receive(MoveBatch(mark.id, name))
        await self._delete(self._source, name, mark, receipt.taken)
        if receipt.number == 0:
            # Before the first job can start there. Later runs leave alone what was changed in the target since.
            await self._move_settings(survey, queue)
        moved = known = held = 0
        while True:
            if isinstance(self._source, HoldsCalls):
                # Calls may be merged into jobs, so the next number refuses jobs that an earlier mover still sends.
                receipt = self._accepted(name, receipt, await taker.receive(MoveBatch(mark.id, name, receipt.number)))
                await _readmit(self._source, name)
            active = await self._active(name)
            refs, some = await self._listed(name), 0
            known = held = 0
            for done in range(0, len(refs), AT_ONCE):
                found = await self._source.get(refs[done : done + AT_ONCE])
                details = [one for one in found if one is not None and one.job.state in MOVABLE]
                free = [one for one in details if not _needs(one.job, active)]
                held += len(details) - len(free)
                for batch in _batches(free):
                    sent = {one.job.id for one in batch}
                    answer = await taker.receive(MoveBatch(mark.id, name, receipt.number, tuple(batch)))
                    receipt = self._accepted(name, receipt, answer, sent)
                    self._on_step("received")
                    await self._delete(self._source, name, mark, receipt.taken)
                    self._on_step("deleted")
                    some += len(receipt.taken)
                    known += len(sent) - len(receipt.taken)
                self._on_progress(name, moved + some, moved + len(refs))
            moved += some
            if not some:
                break
        # Nothing is left to delete in the source.
        await taker.receive(MoveBatch(mark.id, name, receipt.number))
        return structs.replace(counted, active=active.jobs, moved=moved, held=held, known=known)

    def _accepted(
        self, queue: str, before: MoveReceipt, answer: MoveReceipt, sent: Set[str] = frozenset()
    ) -> MoveReceipt:
        """Return the answer to a batch, unless it shows that another mover was faster."""
        if answer.number != before.number + 1 or not sent >= set(answer.taken):
            raise StorageError(
                f"another process moves the jobs of queue {queue!r} at the same time; let it finish, or stop it and "
                "run the command again"
            )
        return answer

    async def _active(self, queue: str) -> _Active:
        found = _Active()
        async for job in self._pages(queue, (State.ACTIVE,)):
            found.jobs += 1
            found.keys |= {key.name for key in job.keys}
            if job.schedule is not None:
                self._busy_schedules.add(job.schedule)
        return found

    async def _listed(self, queue: str) -> list[Ref]:
        """Return the movable jobs of a queue, the oldest first: then listings of the target have the same order."""
        refs = [job.ref async for job in self._pages(queue, MOVABLE)]
        refs.reverse()
        return refs

    async def _pages(self, queue: str, states: tuple[State, ...]) -> AsyncIterator[JobRecord]:
        after: str | None = None
        while True:
            page = await self._source.find(Query(queues=(queue,), states=states, limit=PAGE, after=after))
            for job in page.jobs:
                yield job
            after = page.next
            if after is None:
                return

    async def _delete(self, storage: Storage, queue: str, mark: MoveMark, ids: Sequence[str]) -> None:
        """Delete jobs at their former storage, and pass on a cancellation that arrived there last."""
        refs = [Ref(queue, id_) for id_ in ids]
        results = await storage.revise([DeleteJob(ref, BY, move=mark.id) for ref in refs]) if refs else []
        other = self._target if storage is self._source else self._source
        cancelled = [CancelJob(one.ref, by=BY) for one in results if one.state is State.CANCELLED]
        if cancelled:
            await other.revise(cancelled)
        if any(one.verdict == "refused" for one in results):
            raise StorageError(
                f"the jobs of queue {queue!r} are not marked as moved by this command any more, so some may be in both "
                f"{self._source.url} and {self._target.url}; another tenure move has begun: run only that one"
            )

    # ── schedules ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _move_schedules(self, schedules: Sequence[Schedule]) -> tuple[int, int]:
        """Move schedules with their last ticks; return how many moved, and how many stay."""
        there = {schedule.name: schedule for schedule in (await self._target.survey()).schedules}
        moved = held = 0
        for schedule in schedules:
            if schedule.overlap != "allow" and schedule.name in self._busy_schedules:
                held += 1
                continue
            known = there.get(schedule.name)
            if known is None:
                # A new schedule that fires immediately would begin with a tick, so it is first put without that.
                await self._target.plan([PutSchedule(structs.replace(schedule, immediately=False))])
                if schedule.immediately:
                    await self._target.plan([PutSchedule(schedule)])
            elif known.last_tick < schedule.last_tick and known.ticks_as(schedule):
                tick = Tick(schedule.name, known.last_tick, schedule.last_tick, schedule.next_tick)
                await self._target.plan([tick])
            self._on_step("schedule_put")
            await self._source.plan([RemoveSchedule(schedule.name)])
            self._on_step("schedule_removed")
            moved += 1
        return moved, held


async def _whole_survey(storage: Storage) -> Survey:
    """Return a survey that also has the internal queues that are in use, and all workers."""
    internal, found = await storage.survey(INTERNAL_QUEUES), await storage.survey()
    used = [queue for queue in internal.queues if any(queue.counts.values()) or queue.settings != Settings()]
    return structs.replace(found, queues=(*found.queues, *used), workers=internal.workers)


async def _readmit(storage: Storage, queue: str) -> None:
    """Make jobs of the calls that a queue keeps."""
    if isinstance(storage, HoldsCalls):
        while await storage.readmit(queue):
            continue


async def _newer_calls(storage: Storage) -> int:
    return await storage.newer_calls() if isinstance(storage, HoldsCalls) else 0


def _newer_version(storage: Storage, calls: int) -> UsageError:
    return UsageError(
        f"{calls} committed calls of users' transactions in {storage.url} were stored by a newer version of Tenure; "
        "this one cannot read them, so they would stay; run tenure move of the version of the producers"
    )


def _needs(job: JobRecord, active: _Active) -> bool:
    """Return True if an active job of the source holds a concurrency key of a job: then it may not start elsewhere."""
    return any(key.name in active.keys for key in job.keys)


def _batches(details: Sequence[JobDetail]) -> Iterator[list[JobDetail]]:
    """Yield jobs in batches that one step can store."""
    batch: list[JobDetail] = []
    size = lines = 0
    for detail in details:
        job = detail.job
        weight = len(job.payload) + len(job.data or b"")
        items = len(detail.runs) + len(detail.log)
        if batch and (size + weight > BYTES_AT_ONCE or lines + items > LINES_AT_ONCE):
            yield batch
            batch, size, lines = [], 0, 0
        batch.append(detail)
        size, lines = size + weight, lines + items
    if batch:
        yield batch


def _counted(queue: QueueSurvey) -> QueueMove:
    counts = queue.counts
    return QueueMove(
        queue=queue.queue,
        waiting=counts.get(State.WAITING, 0),
        delayed=counts.get(State.DELAYED, 0),
        failed=counts.get(State.FAILED, 0),
        active=counts.get(State.ACTIVE, 0),
    )


def _matters(queue: QueueSurvey) -> bool:
    return any(queue.counts.get(state) for state in (*MOVABLE, State.ACTIVE))


def _is_shown(queue: QueueMove) -> bool:
    return bool(queue.waiting or queue.delayed or queue.failed or queue.active or queue.moved)


def _is_alive(worker: WorkerSurvey) -> bool:
    return not worker.died and worker.seen_ago < STALE


STALE = 15 * SECOND
"""After this long without a beat, a worker does not count as alive."""


async def _identities(storage: Storage) -> set[str]:
    """Return the identities of a storage's partitions; none for a storage in memory."""
    if not storage.shared:
        return set()
    answer = await storage.renew(RenewRequest(Owner(owner_id(SystemRandom())), seen=()))
    return {state.identity for state in answer.partitions if state.identity}
