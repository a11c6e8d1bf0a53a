"""Dead letters, the failed jobs of all queues: finds them, groups them by fault, redrives or deletes them.

A redrive with a rate is stored at once: each job gets the time when it is due, so the caller may exit. Filters that
the storage cannot apply are applied here, page by page.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import get_args

from msgspec import Struct, structs

from tenure.background_loop import PORTAL
from tenure.client.filters import Since, condition, fault_named, in_order, instant_of, names_of, when
from tenure.client.job_info import JobInfo, RunInfo, job_info, run_info
from tenure.core.check import named, of_kind, one_of, remark, shown, whole
from tenure.core.duration import moment
from tenure.core.fingerprint import NEWEST, FaultSurvey, fingerprint, shown_error
from tenure.core.job import DeadReason, JobRecord, Ref
from tenure.core.lifecycle import State
from tenure.errors import UsageError
from tenure.options.merging import fill
from tenure.storage.protocol import DeleteJob, Query, RedriveJob, Revision, Storage

PAGE = 200
"""How many records a scan of all dead letters reads at a time."""

GROUPS_READ = 1_000
"""How many faults `groups` reads from the storage."""

BATCH = 100
"""How many jobs one storage call redrives or deletes."""

CAP = 1_000
"""The default limit of jobs for a redrive or a purge."""

GROUPS_KEPT = 10_000

REASONS: tuple[DeadReason, ...] = get_args(DeadReason)


@dataclass(frozen=True, init=False)
class DeadFilter:
    """Selects dead letters; a field that is not given selects all.

    - `queues`, `tasks`, `reasons`: the job has any of these. `tags`: the job has all of these.
    - `error`: the name of the exception's class.
    - `fingerprint`: the fault, as `app.dead.groups()` names it.
    - `since` (inclusive), `until` (exclusive): when the job failed, as aware datetimes or as durations ("2h" ago).
    """

    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    reasons: tuple[DeadReason, ...]
    error: str | None
    fingerprint: str | None
    tags: tuple[str, ...]
    since: datetime | timedelta | None
    until: datetime | timedelta | None

    def __init__(
        self,
        *,
        queues: Sequence[str] | None = None,
        tasks: Sequence[str] | None = None,
        reasons: Sequence[str] | None = None,
        error: str | None = None,
        fingerprint: str | None = None,
        tags: Sequence[str] | None = None,
        since: Since | None = None,
        until: Since | None = None,
    ) -> None:
        """Set the conditions of the filter.

        Raises:
            UsageError: a field is invalid, or `since` is not before `until`.
        """
        fill(
            self,
            queues=names_of(queues, field="queues"),
            tasks=names_of(tasks, field="tasks"),
            reasons=tuple(one_of(reason, REASONS, field="reasons") for reason in condition(reasons, field="reasons")),
            error=None if error is None else named(error, field="error"),
            fingerprint=None if fingerprint is None else fault_named(fingerprint, field="fingerprint"),
            tags=names_of(tags, field="tags"),
            since=when(since, field="since"),
            until=when(until, field="until"),
        )
        in_order(self.since, self.until, fields=("since", "until"))

    @property
    def everything(self) -> bool:
        """True if the filter selects all dead letters."""
        return self == DeadFilter()

    def query(self, now: int) -> Query:
        """Return the conditions that a storage can check as a query; `matches` checks the rest."""
        return Query(
            queues=self.queues,
            states=(State.FAILED,),
            tasks=self.tasks,
            reasons=self.reasons,
            tags=self.tags,
            fault=self.fingerprint,
            ended_after=instant_of(self.since, now),
            ended_before=instant_of(self.until, now),
            limit=PAGE,
        )

    def matches(self, job: JobRecord) -> bool:
        """Return True if the filter selects a dead letter that the query found."""
        return self.error is None or (job.error is not None and job.error.type == self.error)


class DeadLetter(Struct, frozen=True):
    """One failed job, the fingerprint of its fault, and its newest runs, at most 100."""

    job: JobInfo
    fingerprint: str
    runs: tuple[RunInfo, ...] = ()


class DeadPage(Struct, frozen=True):
    """One page of dead letters, and the cursor of the next page (None: this is the last page)."""

    letters: tuple[DeadLetter, ...] = ()
    next: str | None = None


class DeadGroup(Struct, frozen=True, kw_only=True):
    """All dead letters of one fault. `message`: of the job that failed last. `newest`: the last 5 failed jobs."""

    fingerprint: str
    task: str
    reason: str
    error: str | None
    message: str
    count: int
    first: datetime
    last: datetime
    newest: tuple[Ref, ...]


class DeadGroups(Struct, frozen=True):
    """The faults, the one with the most dead letters first, and the total number of dead letters.

    `others`: the number of dead letters whose faults are not listed because there are too many small faults.
    """

    groups: tuple[DeadGroup, ...] = ()
    total: int = 0
    others: int = 0


class DeadReport(Struct, frozen=True, kw_only=True):
    """The result of a redrive or a purge.

    - `done`: the jobs that were redriven or deleted.
    - `refused`: the jobs that were not: another caller had redriven them meanwhile, or they are in `held`.
    - `gone`: the jobs that were deleted meanwhile.
    - `held`: the refused jobs whose unique key another unfinished job holds, each with that job.
    - `left`: how many more jobs match beyond the limit.
    - `duration`: the time until the last job is due, if a rate was given.
    """

    done: tuple[Ref, ...] = ()
    refused: tuple[Ref, ...] = ()
    gone: tuple[Ref, ...] = ()
    held: tuple[tuple[Ref, Ref], ...] = ()
    left: int = 0
    duration: timedelta = timedelta(0)


class DeadLetters:
    """The dead letters of an app's storage: `app.dead`."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]]) -> None:
        self._storage = storage

    async def page(self, where: DeadFilter | None = None, *, limit: int = 50, after: str | None = None) -> DeadPage:
        """Return one page of dead letters with their runs, the newest job first.

        `after`: the cursor that the page before returned as `next`.

        Raises:
            UsageError: `where` is not a `DeadFilter`, `limit` is not a whole number of at least 1, or `after` is not a
                cursor.
            StorageError: the storage cannot be reached.
        """
        where, limit = _valid_filter(where), whole(limit, field="limit", least=1)
        storage = await self._storage()
        try:
            jobs, cursor = await _matching(storage, where, limit, after)
        except ValueError as error:
            raise UsageError(
                f"after = {shown(after)} is not a cursor; use the one at the end of the previous page"
            ) from error
        details = await storage.get([job.ref for job in jobs])
        letters = (
            DeadLetter(job_info(detail.job), fault(detail.job), tuple(run_info(run) for run in detail.runs))
            for detail in details
            # It may have been redriven or deleted since the query.
            if detail is not None and detail.job.state is State.FAILED
        )
        return DeadPage(tuple(letters), cursor)

    async def count(self, where: DeadFilter | None = None) -> int:
        """Return the number of dead letters.

        Raises:
            UsageError: `where` is not a `DeadFilter`.
            StorageError: the storage cannot be reached.
        """
        where, storage, found = _valid_filter(where), await self._storage(), 0
        if where == DeadFilter(queues=where.queues or None):
            # The storage keeps these counts.
            return sum(queue.counts.get(State.FAILED, 0) for queue in (await storage.survey(where.queues)).queues)
        async for _ in _all(storage, where):
            found += 1
        return found

    async def groups(self, where: DeadFilter | None = None) -> DeadGroups:
        """Return the dead letters grouped by fault, the fault with the most dead letters first.

        Raises:
            UsageError: `where` is not a `DeadFilter`.
            StorageError: the storage cannot be reached.
        """
        where, storage = _valid_filter(where), await self._storage()
        if not where.tags and where.since is None and where.until is None:
            survey = await storage.survey(where.queues, faults=GROUPS_READ)
            everything = where == DeadFilter(queues=where.queues or None)
            if everything or len(survey.faults) < GROUPS_READ:
                groups = _Groups()
                for fault in survey.faults:
                    if _selects(where, fault):
                        groups.add(fault)
                failed = sum(queue.counts.get(State.FAILED, 0) for queue in survey.queues)
                return groups.ranked(failed if everything else None)
        groups = _Groups()
        async for job in _all(storage, where):
            groups.add(_fault_of(job))
        return groups.ranked()

    async def redrive(
        self,
        where: DeadFilter | None = None,
        *,
        limit: int = CAP,
        rate: float | None = None,
        by: str | None = None,
    ) -> DeadReport:
        """Put dead letters back into their queues, with new budgets and a new time to live, the oldest failure first.

        `limit`: the maximum number of jobs. `rate`: jobs per second; the storage gets the due time of each job at
        once, so the caller need not stay. Repeating the call is safe: a redriven job leaves the dead letters.

        Raises:
            UsageError: an argument is invalid.
            StorageError: the storage cannot be reached. Jobs that were redriven before stay so; call again to go on.
        """
        gap, operator = gap_of(rate, field="rate"), remark(by, field="by")
        return await self._handle(
            _valid_filter(where),
            whole(limit, field="limit", least=1),
            lambda letter, index: RedriveJob(letter.ref, operator, round(gap * index), letter.finished),
            gap=gap,
        )

    async def purge(
        self,
        where: DeadFilter | None = None,
        *,
        limit: int = CAP,
        everything: bool = False,
        by: str | None = None,
    ) -> DeadReport:
        """Delete dead letters with their runs, logs and errors, permanently, the oldest failure first.

        `limit`: the maximum number of jobs. `everything`: must be True if the filter selects all dead letters.

        Raises:
            UsageError: an argument is invalid, or the filter selects everything and `everything` is not True.
            StorageError: the storage cannot be reached. Jobs that were deleted before stay so; call again to go on.
        """
        where, operator = _valid_filter(where), remark(by, field="by")
        if where.everything and everything is not True:
            raise UsageError("a purge without a filter deletes every dead letter; give one, or everything=True")
        return await self._handle(
            where,
            whole(limit, field="limit", least=1),
            lambda letter, _: DeleteJob(letter.ref, operator, letter.finished),
        )

    def page_sync(self, where: DeadFilter | None = None, *, limit: int = 50, after: str | None = None) -> DeadPage:
        """Call `page` from code without a running event loop."""
        return PORTAL.call(self.page(where, limit=limit, after=after), verb="page")

    def count_sync(self, where: DeadFilter | None = None) -> int:
        """Call `count` from code without a running event loop."""
        return PORTAL.call(self.count(where), verb="count")

    def groups_sync(self, where: DeadFilter | None = None) -> DeadGroups:
        """Call `groups` from code without a running event loop."""
        return PORTAL.call(self.groups(where), verb="groups")

    def redrive_sync(
        self,
        where: DeadFilter | None = None,
        *,
        limit: int = CAP,
        rate: float | None = None,
        by: str | None = None,
    ) -> DeadReport:
        """Call `redrive` from code without a running event loop."""
        return PORTAL.call(self.redrive(where, limit=limit, rate=rate, by=by), verb="redrive")

    def purge_sync(
        self,
        where: DeadFilter | None = None,
        *,
        limit: int = CAP,
        everything: bool = False,
        by: str | None = None,
    ) -> DeadReport:
        """Call `purge` from code without a running event loop."""
        return PORTAL.call(self.purge(where, limit=limit, everything=everything, by=by), verb="purge")

    async def _handle(
        self, where: DeadFilter, limit: int, revision: Callable[["_Chosen", int], Revision], *, gap: float = 0.0
    ) -> DeadReport:
        storage = await self._storage()
        chosen, found = await _oldest(storage, where, limit)
        done: list[Ref] = []
        refused: list[Ref] = []
        gone: list[Ref] = []
        held: list[tuple[Ref, Ref]] = []
        by_verdict = {"done": done, "refused": refused, "changed": refused, "gone": gone}
        for start in range(0, len(chosen), BATCH):
            batch = chosen[start : start + BATCH]
            # A job that was redriven since the scan is refused: it has changed since it was selected.
            for revised in await storage.revise([revision(job, len(done) + index) for index, job in enumerate(batch)]):
                by_verdict[revised.verdict].append(revised.ref)
                if revised.holder is not None:
                    held.append((revised.ref, revised.holder))
        return DeadReport(
            done=tuple(done),
            refused=tuple(refused),
            gone=tuple(gone),
            held=tuple(held),
            left=found - len(chosen),
            duration=timedelta(microseconds=gap * max(0, len(done) - 1)),
        )


def fault(job: JobRecord) -> str:
    """Return the fingerprint of the fault that made a job fail."""
    return job.fault or fingerprint(job.task, job.reason, job.error)


def gap_of(rate: object, *, field: str) -> float:
    """Return the microseconds between two jobs at a rate of jobs per second; 0 for None.

    Raises:
        UsageError: the rate is not a number from 0.001 to 1,000,000.
    """
    if rate is None:
        return 0.0
    # This form of the comparison also refuses NaN.
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0.001 <= rate <= 1_000_000:
        raise UsageError(
            f"{field} = {shown(rate)} must be a number of jobs a second, from 0.001 to 1,000,000; "
            "leave it out to put all back at once"
        )
    return 1_000_000 / rate


class _Chosen(Struct, frozen=True, order=True):
    """A selected dead letter. The time of its failure shows whether it has changed since."""

    finished: int
    ref: Ref


class _Tally:
    """The counts of one fault in all queues."""

    def __init__(self, fault: FaultSurvey) -> None:
        self.count = 0
        self._first = fault.first
        self._sample = fault
        self._newest: list[tuple[int, Ref]] = []

    def add(self, fault: FaultSurvey) -> None:
        """Count the dead letters of a queue."""
        self.count += fault.count
        self._first = min(self._first, fault.first)
        if fault.last >= self._sample.last:
            self._sample = fault
        newest = [*self._newest, *((at, Ref(fault.queue, id_)) for at, id_ in fault.newest)]
        self._newest = sorted(newest, reverse=True)[:NEWEST]

    @property
    def rank(self) -> tuple[int, int, str]:
        """A sort key: the fault with the most dead letters first."""
        return -self.count, -self._sample.last, self._sample.fault

    @property
    def group(self) -> DeadGroup:
        """The group with these counts."""
        error = self._sample.error
        return DeadGroup(
            fingerprint=self._sample.fault,
            task=self._sample.task,
            reason=self._sample.reason or "",
            error=None if error is None else error.type,
            message="" if error is None else error.message,
            count=self.count,
            first=moment(self._first),
            last=moment(self._sample.last),
            newest=tuple(ref for _, ref in self._newest),
        )


class _Groups:
    """The faults of dead letters. If there are too many, it forgets those with the fewest dead letters."""

    def __init__(self) -> None:
        self._known: dict[str, _Tally] = {}
        self._total = 0

    def add(self, fault: FaultSurvey) -> None:
        """Count the dead letters of a queue that have a fault."""
        self._total += fault.count
        self._known.setdefault(fault.fault, _Tally(fault)).add(fault)
        if len(self._known) > GROUPS_KEPT:
            kept = sorted(self._known.items(), key=lambda entry: entry[1].count)[GROUPS_KEPT // 2 :]
            self._known = dict(kept)

    def ranked(self, total: int | None = None) -> DeadGroups:
        """Return the groups, the one with the most dead letters first. `total`: of all dead letters, if known."""
        ranked = sorted(self._known.values(), key=lambda tally: tally.rank)
        listed = sum(tally.count for tally in ranked)
        # The storage may have changed between its counts.
        total = max(listed, self._total if total is None else total)
        return DeadGroups(tuple(tally.group for tally in ranked), total, total - listed)


def _selects(where: DeadFilter, fault: FaultSurvey) -> bool:
    """Return True if a filter without tags and times selects the dead letters of a fault."""
    return (
        (not where.tasks or fault.task in where.tasks)
        and (not where.reasons or fault.reason in where.reasons)
        and (where.error is None or (fault.error is not None and fault.error.type == where.error))
        and where.fingerprint in (None, fault.fault)
    )


def _fault_of(job: JobRecord) -> FaultSurvey:
    """Return the fault of a dead letter, with no other dead letter."""
    at = job.finished or job.created
    return FaultSurvey(
        queue=job.queue,
        fault=fault(job),
        count=1,
        first=at,
        last=at,
        newest=((at, job.id),),
        task=job.task,
        reason=job.reason,
        error=shown_error(job.error),
    )


async def _query(storage: Storage, where: DeadFilter) -> Query:
    relative = isinstance(where.since, timedelta) or isinstance(where.until, timedelta)
    return where.query((await storage.survey()).now if relative else 0)


async def _all(storage: Storage, where: DeadFilter) -> AsyncIterator[JobRecord]:
    """Yield all matching jobs, the newest first, with one page in memory."""
    query = await _query(storage, where)
    after: str | None = None
    while True:
        page = await storage.find(_from(query, after, PAGE))
        for job in page.jobs:
            if where.matches(job):
                yield job
        after = page.next
        if after is None:
            return


async def _matching(
    storage: Storage, where: DeadFilter, limit: int, after: str | None
) -> tuple[list[JobRecord], str | None]:
    """Return the next `limit` matching jobs, and the cursor after the last of them."""
    query = await _query(storage, where)
    found: list[JobRecord] = []
    while True:
        room = limit - len(found)
        page = await storage.find(_from(query, after, room if where.error is None else max(PAGE, room)))
        places = [index for index, job in enumerate(page.jobs) if where.matches(job)]
        if len(places) > room:
            # Only the end of a page has a cursor: read the page that ends with the last wanted job.
            page = await storage.find(_from(query, after, places[room - 1] + 1))
        found += [job for job in page.jobs if where.matches(job)]
        after = page.next
        if after is None or len(found) >= limit:
            return found, after


async def _oldest(storage: Storage, where: DeadFilter, limit: int) -> tuple[list[_Chosen], int]:
    """Return the `limit` jobs that failed first, and the number of all matches. Holds at most twice `limit` jobs."""
    chosen: list[_Chosen] = []
    found = 0
    async for job in _all(storage, where):
        found += 1
        chosen.append(_Chosen(job.finished or job.created, job.ref))
        if len(chosen) >= 2 * limit:
            chosen = sorted(chosen)[:limit]
    return sorted(chosen)[:limit], found


def _from(query: Query, after: str | None, limit: int) -> Query:
    return structs.replace(query, after=after, limit=limit)


def _valid_filter(where: DeadFilter | None) -> DeadFilter:
    if where is None:
        return DeadFilter()
    return of_kind(where, DeadFilter, field="filter", remedy='write DeadFilter(tasks=["send"])')
