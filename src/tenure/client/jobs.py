"""The jobs of an app's storage: lists, counts, deletes and purges them."""

import copy
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

from msgspec import Struct, structs

from tenure.background_loop import PORTAL
from tenure.client.filters import Since, condition, fault_named, in_order, instant_of, names_of, when
from tenure.client.handle import Job
from tenure.client.job_info import JobInfo, job_info
from tenure.core.check import named, of_kind, one_of, remark, several, shown, whole
from tenure.core.duration import instant
from tenure.core.job import DeadReason, JobRecord, Ref
from tenure.core.lifecycle import State
from tenure.errors import JobActiveError, UsageError
from tenure.options.merging import fill
from tenure.storage.protocol import DeleteJob, Query, Storage

PAGE = 200
"""How many jobs one call of the storage reads for a listing."""

BATCH = 100
"""How many jobs one call of the storage deletes."""

CountBy = Literal["state", "queue", "task"]

_INACTIVE = tuple(state for state in State if state is not State.ACTIVE)
_REASONS: tuple[DeadReason, ...] = get_args(DeadReason)


@dataclass(frozen=True, init=False)
class JobFilter:
    """Selects jobs; a field that is not given selects all.

    - `queues`, `states`, `tasks`: the job has any of these. `tags`: the job has all of these.
    - `reasons`: why the job failed, any of these. `fingerprint`: its fault, as `app.dead.groups()` names it.
    - `key`: one of its concurrency keys. `schedule`: the schedule that made it.
    - `since` (inclusive), `until` (exclusive): when the job was enqueued.
    - `ended_since` (inclusive), `ended_until` (exclusive): when the job ended; unfinished jobs do not match.

    Times are aware datetimes, or durations, which mean how long ago by the storage's clock: `since="2h"`.
    """

    queues: tuple[str, ...]
    states: tuple[State, ...]
    tasks: tuple[str, ...]
    tags: tuple[str, ...]
    reasons: tuple[DeadReason, ...]
    fingerprint: str | None
    key: str | None
    schedule: str | None
    since: datetime | timedelta | None
    until: datetime | timedelta | None
    ended_since: datetime | timedelta | None
    ended_until: datetime | timedelta | None

    def __init__(
        self,
        *,
        queues: Sequence[str] | None = None,
        states: Sequence[State | str] | None = None,
        tasks: Sequence[str] | None = None,
        tags: Sequence[str] | None = None,
        reasons: Sequence[str] | None = None,
        fingerprint: str | None = None,
        key: str | None = None,
        schedule: str | None = None,
        since: Since | None = None,
        until: Since | None = None,
        ended_since: Since | None = None,
        ended_until: Since | None = None,
    ) -> None:
        """Set the conditions of the filter.

        Raises:
            UsageError: a field is invalid, or a range of times is empty.
        """
        fill(
            self,
            queues=names_of(queues, field="queues"),
            states=tuple(_state(state) for state in condition(states, field="states")),
            tasks=names_of(tasks, field="tasks"),
            tags=names_of(tags, field="tags"),
            reasons=tuple(one_of(reason, _REASONS, field="reasons") for reason in condition(reasons, field="reasons")),
            fingerprint=None if fingerprint is None else fault_named(fingerprint, field="fingerprint"),
            key=None if key is None else named(key, field="key"),
            schedule=None if schedule is None else named(schedule, field="schedule"),
            since=when(since, field="since"),
            until=when(until, field="until"),
            ended_since=when(ended_since, field="ended_since"),
            ended_until=when(ended_until, field="ended_until"),
        )
        in_order(self.since, self.until, fields=("since", "until"))
        in_order(self.ended_since, self.ended_until, fields=("ended_since", "ended_until"))

    @property
    def everything(self) -> bool:
        """True if the filter selects all jobs."""
        return self == JobFilter()

    @property
    def has_ages(self) -> bool:
        """True if a time of the filter counts back from the storage's clock."""
        return any(isinstance(at, timedelta) for at in (self.since, self.until, self.ended_since, self.ended_until))

    def query(self, now: int) -> Query:
        """Return the filter as a query of a storage whose clock shows `now`."""
        return Query(
            queues=self.queues,
            states=self.states,
            tasks=self.tasks,
            tags=self.tags,
            reasons=self.reasons,
            fault=self.fingerprint,
            key=self.key,
            schedule=self.schedule,
            created_after=instant_of(self.since, now),
            created_before=instant_of(self.until, now),
            ended_after=instant_of(self.ended_since, now),
            ended_before=instant_of(self.ended_until, now),
            limit=PAGE,
        )


class JobPage(Struct, frozen=True):
    """One page of jobs, newest first, and the cursor of the next page (None: this is the last page)."""

    jobs: tuple[JobInfo, ...] = ()
    next: str | None = None


class DeleteReport(Struct, frozen=True):
    """The result of a deletion.

    - `deleted`: the jobs that it deleted.
    - `gone`: the jobs that the storage does not have.
    - `changed`: the jobs that stay, because they ended or were redriven after the listing whose row was given.
    """

    deleted: tuple[Ref, ...] = ()
    gone: tuple[Ref, ...] = ()
    changed: tuple[Ref, ...] = ()


class PurgeReport(Struct, frozen=True):
    """The result of a purge.

    - `deleted`: how many jobs it deleted.
    - `changed`: how many matching jobs stay, because they were running, or had ended since, when the purge
      came to them.
    - `complete`: False if the purge reached its limit, so that more jobs may match.
    """

    deleted: int = 0
    changed: int = 0
    complete: bool = True


class Jobs:
    """The jobs of an app's storage: `app.jobs`."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]]) -> None:
        self._storage = storage

    async def list(self, where: JobFilter | None = None, *, limit: int | None = None) -> AsyncGenerator[JobInfo]:
        """Yield the jobs that the filter selects, newest first: `async for job in app.jobs.list(...)`.

        It reads one page at a time, so a listing of millions takes little memory. Jobs that are enqueued meanwhile do
        not appear. `limit`: at most this number of jobs. To act on a job, use `app.job(job.id, queue=job.queue)`.

        Raises:
            UsageError: `where` is not a `JobFilter`, or `limit` is not a whole number of at least 1.
            StorageError: the storage cannot be reached.
        """
        left = None if limit is None else whole(limit, field="limit", least=1)
        async for page in self._pages(_valid(where), left):
            for job in page:
                yield job_info(job)

    async def page(self, where: JobFilter | None = None, *, limit: int = 50, after: str | None = None) -> JobPage:
        """Return one page of the jobs that the filter selects, newest first.

        `after`: the cursor that the page before returned as `next`. Pages neither overlap nor leave jobs out, even if
        jobs are enqueued or deleted meanwhile.

        Raises:
            UsageError: `where` is not a `JobFilter`, `limit` is not a whole number of at least 1, or `after` is not a
                cursor.
            StorageError: the storage cannot be reached.
        """
        where, limit = _valid(where), whole(limit, field="limit", least=1)
        storage = await self._storage()
        try:
            found = await storage.find(structs.replace(await _query(storage, where), limit=limit, after=after))
        except ValueError as error:
            raise UsageError(
                f"after = {shown(after)} is not a cursor; use the one at the end of the previous page"
            ) from error
        return JobPage(tuple(job_info(job) for job in found.jobs), found.next)

    async def count(self, where: JobFilter | None = None) -> int:
        """Return how many jobs the filter selects.

        A filter of queues and states is answered from the storage's counters, others by reading all jobs that match.

        Raises:
            UsageError: `where` is not a `JobFilter`.
            StorageError: the storage cannot be reached.
        """
        return sum((await self.counts("state", where)).values())

    async def counts(self, by: CountBy, where: JobFilter | None = None) -> dict[str, int]:
        """Return how many jobs the filter selects by state, queue or task; groups without a job are left out.

        By state or queue, a filter of queues and states is answered from the storage's counters. Otherwise all jobs
        that match are read.

        Raises:
            UsageError: `by` is not "state", "queue" or "task", or `where` is not a `JobFilter`.
            StorageError: the storage cannot be reached.
        """
        one_of(by, get_args(CountBy), field="by")
        where = _valid(where)
        found = Counter[str]()
        if by != "task" and where == JobFilter(queues=where.queues or None, states=where.states or None):
            for queue in (await (await self._storage()).survey(where.queues)).queues:
                for state, jobs in queue.counts.items():
                    if not where.states or state in where.states:
                        found[state.value if by == "state" else queue.queue] += jobs
        else:
            async for page in self._pages(where, None):
                found.update(str(getattr(job, by)) for job in page)
        return {name: jobs for name, jobs in sorted(found.items()) if jobs}

    async def delete(
        self, jobs: "Job[Any] | JobInfo | Ref | Iterable[Job[Any] | JobInfo | Ref]", *, by: str | None = None
    ) -> DeleteReport:
        """Delete jobs that are not running, with their runs, logs and results. `by` names the operator.

        `jobs`: handles, rows of a listing, or refs; one or many. A deleted waiting job never runs, and the unique key
        of a deleted job is free again. A job given as a row stays if it ended or was redriven after the listing.

        Raises:
            JobActiveError: one of the jobs is running; the others are deleted. Cancel it first.
            UsageError: an element is not a job, or `by` is not a string.
            StorageError: the storage cannot be reached. Some jobs may be deleted; it is safe to call again.
        """
        ends, operator = await _ends(jobs), remark(by, field="by")
        revisions = [DeleteJob(ref, operator, ended) for ref, ended in ends.items()]
        deleted: list[Ref] = []
        active: list[Ref] = []
        changed: list[Ref] = []
        gone: list[Ref] = []
        by_verdict = {"done": deleted, "gone": gone}
        storage = await self._storage()
        for start in range(0, len(revisions), BATCH):
            for result in await storage.revise(revisions[start : start + BATCH]):
                refused = active if result.state is State.ACTIVE else changed
                by_verdict.get(result.verdict, refused).append(result.ref)
        if active:
            raise JobActiveError(tuple((ref.queue, ref.id) for ref in active), deleted=len(deleted))
        return DeleteReport(tuple(deleted), tuple(gone), tuple(changed))

    async def purge(
        self,
        where: JobFilter | None = None,
        *,
        limit: int | None = None,
        everything: bool = False,
        by: str | None = None,
    ) -> PurgeReport:
        """Delete all jobs that the filter selects and that are not running, permanently, newest first.

        It deletes at most 100 jobs per call of the storage. A job that is running, or has ended since the purge read
        it, stays. A job that has failed since and waits for its next attempt is deleted, as are calls that it has
        collected since. `limit`: at most this number of jobs. `everything`: must be True if the filter selects all
        jobs.

        Raises:
            UsageError: an argument is invalid, the filter asks for active jobs, or it selects everything and
                `everything` is not True.
            StorageError: the storage cannot be reached. Jobs that were deleted before stay so; call again to go on.
        """
        where, operator = _valid(where), remark(by, field="by")
        if where.everything and everything is not True:
            raise UsageError("a purge without a filter deletes all jobs; give one, or everything=True")
        if State.ACTIVE in where.states:
            raise UsageError('states = "active": running jobs are not purged; cancel them first, or leave it out')
        left = None if limit is None else whole(limit, field="limit", least=1)
        storage, deleted, changed = await self._storage(), 0, 0
        inactive = where if where.states else _with_states(where, _INACTIVE)
        async for page in self._pages(inactive, None):
            for start in range(0, len(page), BATCH):
                batch = page[start : start + BATCH][:left]
                # With the end that was read, a job that is running or has ended since is refused.
                revisions = [DeleteJob(job.ref, operator, job.finished or 0) for job in batch]
                verdicts = Counter(result.verdict for result in await storage.revise(revisions))
                deleted += verdicts["done"]
                changed += verdicts["refused"] + verdicts["changed"]
                if left is not None:
                    left -= verdicts["done"]
                    if left <= 0:
                        return PurgeReport(deleted, changed, complete=False)
        return PurgeReport(deleted, changed)

    def list_sync(self, where: JobFilter | None = None, *, limit: int | None = None) -> Generator[JobInfo]:
        """Yield what `list` yields, from code without a running event loop."""
        left = None if limit is None else whole(limit, field="limit", least=1)
        after: str | None = None
        while left is None or left > 0:
            page = self.page_sync(where, limit=PAGE if left is None else min(PAGE, left), after=after)
            yield from page.jobs
            left = None if left is None else left - len(page.jobs)
            after = page.next
            if after is None:
                return

    def page_sync(self, where: JobFilter | None = None, *, limit: int = 50, after: str | None = None) -> JobPage:
        """Call `page` from code without a running event loop."""
        return PORTAL.call(self.page(where, limit=limit, after=after), verb="page")

    def count_sync(self, where: JobFilter | None = None) -> int:
        """Call `count` from code without a running event loop."""
        return PORTAL.call(self.count(where), verb="count")

    def counts_sync(self, by: CountBy, where: JobFilter | None = None) -> dict[str, int]:
        """Call `counts` from code without a running event loop."""
        return PORTAL.call(self.counts(by, where), verb="counts")

    def delete_sync(
        self, jobs: "Job[Any] | JobInfo | Ref | Iterable[Job[Any] | JobInfo | Ref]", *, by: str | None = None
    ) -> DeleteReport:
        """Call `delete` from code without a running event loop."""
        return PORTAL.call(self.delete(jobs, by=by), verb="delete")

    def purge_sync(
        self,
        where: JobFilter | None = None,
        *,
        limit: int | None = None,
        everything: bool = False,
        by: str | None = None,
    ) -> PurgeReport:
        """Call `purge` from code without a running event loop."""
        return PORTAL.call(self.purge(where, limit=limit, everything=everything, by=by), verb="purge")

    async def _pages(self, where: JobFilter, left: int | None) -> AsyncGenerator[Sequence[JobRecord]]:
        storage = await self._storage()
        query = await _query(storage, where)
        while True:
            page = await storage.find(query if left is None else structs.replace(query, limit=min(PAGE, left)))
            yield page.jobs
            left = None if left is None else left - len(page.jobs)
            if page.next is None or left == 0:
                return
            query = structs.replace(query, after=page.next)


async def _ends(jobs: "Job[Any] | JobInfo | Ref | Iterable[Job[Any] | JobInfo | Ref]") -> dict[Ref, int | None]:
    """Return the jobs with the end that a row shows (0: it has none), or None for handles and refs."""
    collection: object = jobs
    some = (collection,) if isinstance(collection, Job | JobInfo | Ref) else several(collection, field="jobs")
    ends: dict[Ref, int | None] = {}
    for job in some:
        if isinstance(job, Job):
            ends[await job.locate()] = None
        elif isinstance(job, JobInfo):
            ends[job.ref] = 0 if job.finished is None else instant(job.finished, field="finished")
        else:
            ends[of_kind(job, Ref, field="jobs", remedy=_JOB_REMEDY)] = None
    return ends


_JOB_REMEDY = "give handles such as app.job(id), rows of app.jobs.list(), or refs"


def _state(value: object) -> State:
    for state in State:
        if value == state:
            return state
    raise UsageError(f"states = {shown(value)} is unknown; use one of {', '.join(map(str, State))}")


def _valid(where: JobFilter | None) -> JobFilter:
    if where is None:
        return JobFilter()
    return of_kind(where, JobFilter, field="where", remedy='write JobFilter(queues=["mail"])')


def _with_states(where: JobFilter, states: tuple[State, ...]) -> JobFilter:
    narrowed = copy.copy(where)
    fill(narrowed, states=states)
    return narrowed


async def _query(storage: Storage, where: JobFilter) -> Query:
    return where.query((await storage.survey()).now if where.has_ages else 0)
