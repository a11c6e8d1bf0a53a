"""Many partitions as one storage: the hash of a queue's name chooses its partition, so a Cluster's nodes share queues.

Within a partition, everything works as on a single server. Requests that concern no queue go to all partitions, or to
the one that the worker's id hashes to. A schedule is stored with its job's queue, so a tick and its job are one atomic
step. The first partition keeps the audit log.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import TypeVar
from zlib import crc32

from msgspec import structs

from tenure.clock import SECOND
from tenure.core.audit import ACTS_KEPT, OperatorAct
from tenure.core.figures import FiguresQuery, summed
from tenure.core.job import JobDetail, JobRecord, NewJob, Owner, Ref
from tenure.core.lane import Lane
from tenure.core.leadership import Term
from tenure.core.move import MoveBatch, MoveReceipt
from tenure.core.published import PublishedTask
from tenure.core.retention import KeepRule
from tenure.core.settlement import Settlement
from tenure.errors import StorageError, StorageUnavailableError
from tenure.storage.cursors import LARGEST, age_of
from tenure.storage.protocol import (
    EVENTS_END,
    ActsPage,
    ActsQuery,
    Change,
    ClaimRequest,
    EnqueueResult,
    EventPage,
    EventReader,
    ExchangeResult,
    LeaseRenewal,
    Page,
    PutSchedule,
    Query,
    ReclaimResult,
    RemoveSchedule,
    RenewRequest,
    RenewResult,
    Revision,
    RevisionResult,
    ScheduleResult,
    Settings,
    SettlementResult,
    Survey,
    SweepRequest,
    SweepResult,
    Target,
    page_of_due,
)
from tenure.storage.redis.merge_answers import (
    UNREAD,
    event_places,
    least,
    merge_event_pages,
    merge_listings,
    merge_surveys,
    merge_sweeps,
    places_of,
    reader_begins,
)
from tenure.storage.redis.partition import ANSWER_BYTES, Partition, weight
from tenure.storage.redis.sweep_schedule import SweepSchedule

T = TypeVar("T")
A = TypeVar("A")

_NOTHING: tuple[Sequence[tuple[int, JobRecord]], int] = (), 0

RETRY_AFTER = 4.0
"""Seconds during which an unreachable partition is not asked again, unless a sweep reaches it earlier."""


class Partitions:
    """The verbs over many partitions: sends each request to the right ones and merges their answers."""

    def __init__(
        self, partitions: Sequence[Partition], start_schedule: Callable[[Sequence[Partition]], SweepSchedule]
    ) -> None:
        self._partitions = tuple(partitions)
        self._start_schedule = start_schedule
        self._schedules: dict[str, SweepSchedule] = {}
        self._unreachable: dict[Partition, tuple[float, float]] = {}
        """For each unreachable partition: when the last request to it failed, and until when it is not asked again."""

    def of(self, name: str) -> Partition:
        """Return the partition that holds a queue, or that knows a worker."""
        return self._partitions[crc32(name.encode()) % len(self._partitions)]

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """See `Storage.enqueue`."""
        return await self._each(jobs, lambda job: job.queue, lambda partition, some: partition.enqueue(some))

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        """See `Storage.exchange`: one step for each partition, in the order in which the claim names their queues.

        An unreachable partition does not hold up the others, and leases that they granted still reach the worker. It
        is asked again later.
        """
        settlements_of: defaultdict[Partition, list[Settlement]] = defaultdict(list)
        for settlement in settlements:
            settlements_of[self.of(settlement.ref.queue)].append(settlement)
        orders = self._queues_of_claim(order)
        lane = None if order is None else order.lane
        elsewhere: list[tuple[Partition, tuple[str, ...] | None]] = []
        for partition in self._partitions:
            # Call a partition in which a claim was lost even if nothing is wanted there: the call hands the jobs back.
            lost = lane is not None and self._begin(partition, owner, lane)
            if partition not in orders and (lost or partition in settlements_of):
                elsewhere.append((partition, () if lost else None))
        room = 0 if order is None else order.room
        tasks = None if order is None else order.tasks
        outcomes = await self._try_all(owner, elsewhere, settlements_of, 0, lane, tasks)
        carried = 0
        waiting = list(orders.items())
        while waiting:
            # One after another, because jobs from one partition reduce the room for the next. After one is found
            # unreachable, ask the rest at once: others may be unreachable too, and the waits would add up.
            some = waiting if any(isinstance(outcome, BaseException) for outcome in outcomes) else waiting[:1]
            waiting = waiting[len(some) :]
            found = await self._try_all(owner, some, settlements_of, room, lane, tasks)
            outcomes += found
            won = [lease for answer in found if isinstance(answer, ExchangeResult) for lease in answer.leases]
            carried += weight(won)
            room = room - len(won) if carried <= ANSWER_BYTES else 0
        answers = _answers(outcomes)
        verdicts: defaultdict[tuple[Ref, int], list[SettlementResult]] = defaultdict(list)
        for answer in answers:
            for verdict in answer.verdicts:
                verdicts[verdict.ref, verdict.fence].append(verdict)
        return ExchangeResult(
            tuple(
                verdicts[settlement.ref, settlement.fence].pop(0)
                for settlement in settlements
                if verdicts[settlement.ref, settlement.fence]
            ),
            tuple(lease for answer in answers for lease in answer.leases),
            left=any(answer.left for answer in answers),
            next_due=least(answer.next_due for answer in answers),
            seen=bool(answers) and all(answer.seen for answer in answers),
        )

    async def renew(self, beat: RenewRequest) -> RenewResult:
        """See `Storage.renew`: a partition that does not answer in time is reported and delays the others no further.

        It is asked again after its time limit, because a lease can be shorter than the usual wait.
        """
        within = None if beat.answer_within is None else beat.answer_within / SECOND
        # One partition keeps the worker's own record, so every beat goes there.
        home = self.of(beat.owner.id)
        if beat.last and (ended := self._schedules.pop(beat.owner.id, None)) is not None:
            ended.close()
        parts: dict[Partition, list[LeaseRenewal]] = {home: []}
        for renewal in beat.renewals:
            parts.setdefault(self.of(renewal.ref.queue), []).append(renewal)
        for partition in self._partitions:
            if any(partition.lanes.lost(beat.owner, lane) is not None for lane in beat.lanes):
                parts.setdefault(partition, [])
        if beat.seen is not None and beat.worker is not None:
            # A worker must notice that a partition lost its data, even if it holds none of the jobs there.
            for queue in beat.worker.queues:
                parts.setdefault(self.of(queue), [])
        outcomes = await _outcomes(
            [
                self._call(
                    partition,
                    partition.renew,
                    structs.replace(beat, renewals=tuple(part))
                    if partition is home
                    else RenewRequest(beat.owner, tuple(part), lanes=beat.lanes, seen=beat.seen),
                    within=within,
                    retry_after=RETRY_AFTER if within is None else min(RETRY_AFTER, within),
                )
                for partition, part in parts.items()
            ]
        )
        results = _answers(outcomes)
        if beat.last:
            for partition in self._partitions:
                partition.lanes.forget(beat.owner)
        place = {(renewal.ref, renewal.fence): number for number, renewal in enumerate(beat.renewals)}
        return RenewResult(
            tuple(sorted((lost for result in results for lost in result.lost), key=place.__getitem__)),
            tuple(
                sorted(
                    (request for result in results for request in result.cancelling),
                    key=lambda request: place[request.ref, request.fence],
                )
            ),
            None if isinstance(outcomes[0], BaseException) else outcomes[0].orders,
            tuple(
                name
                for part, outcome in zip(parts.values(), outcomes, strict=True)
                for name in (
                    [(renewal.ref, renewal.fence) for renewal in part]
                    if isinstance(outcome, BaseException)
                    else outcome.incomplete
                )
            ),
            tuple(
                structs.replace(state, place=self._partitions.index(partition))
                for partition, outcome in zip(parts, outcomes, strict=True)
                if not isinstance(outcome, BaseException)
                for state in outcome.partitions
            ),
        )

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        """See `Storage.sweep`: each partition has its own leader; unreachable partitions are listed as troubles."""
        if bid.max_skip:
            result, reached = await self._schedule_of(bid.owner).turn(bid)
            for partition in reached:
                # It answered, so ask it again at once if it was unreachable before.
                self._unreachable.pop(partition, None)
            return result
        outcomes = await _outcomes([partition.sweep(bid) for partition in self._partitions])
        for partition, outcome in zip(self._partitions, outcomes, strict=True):
            if isinstance(outcome, SweepResult):
                self._unreachable.pop(partition, None)
        return merge_sweeps(_answers(outcomes), [f"{error}" for error in outcomes if isinstance(error, BaseException)])

    async def reclaim(self, dead: str, owner: Owner) -> ReclaimResult:
        """See `Storage.reclaim`: return the runs that some partitions gave even if others are unreachable."""
        outcomes = await _outcomes([partition.reclaim(dead, owner) for partition in self._partitions])
        taken = _answers(outcomes)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        stalled = tuple(lease for result in taken for lease in result.stalled)
        if errors and not stalled:
            raise errors[0]
        incomplete = bool(errors) or any(result.incomplete for result in taken)
        return ReclaimResult(stalled, more=bool(errors) or any(result.more for result in taken), incomplete=incomplete)

    async def revise(self, revisions: Sequence[Revision]) -> list[RevisionResult]:
        """See `Storage.revise`."""
        return await self._each(
            revisions, lambda revision: revision.ref.queue, lambda partition, some: partition.revise(some)
        )

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
        """See `Storage.plan`.

        Only a put schedule names its queue, and so its partition. Other changes go to all partitions, and one of them
        knows the schedule. If a schedule's queue moves it to another partition, it leaves the old one and continues
        from now.
        """
        planned: list[ScheduleResult] = []
        for change in changes:
            if isinstance(change, PutSchedule):
                home = self.of(change.schedule.job.queue)
                # Put before removing: a crash in between leaves it twice until it is put again, but does not lose it.
                planned += await home.plan([change])
                await _all(
                    [
                        self._call(partition, partition.plan, [RemoveSchedule(change.name)])
                        for partition in self._partitions
                        if partition is not home
                    ]
                )
            else:
                results = await _all([partition.plan([change]) for partition in self._partitions])
                answers = [answer for [answer] in results]
                planned.append(next((answer for answer in answers if answer.verdict != "gone"), answers[0]))
        return planned

    async def tune(
        self, target: Target, settings: Settings, *, by: str | None = None, expected: Settings | None = None
    ) -> Settings:
        """See `Storage.tune`: every partition stores the settings of a task; the first one compares the expected."""
        if target.kind != "task":
            return await self.of(target.name).tune(target, settings, by=by, expected=expected)
        first, *others = self._partitions
        in_force = await first.tune(target, settings, by=by, expected=expected)
        if expected is None or in_force.agrees(settings, settings):
            await _all([partition.tune(target, settings, by=by) for partition in others])
        return in_force

    async def receive(self, batch: MoveBatch) -> MoveReceipt:
        """See `MoveTarget.receive`."""
        return await self.of(batch.queue).receive(batch)

    async def resign(self, term: Term) -> None:
        """See `Storage.resign`."""
        await _all([partition.resign(term) for partition in self._partitions if partition.scope == term.scope])

    async def publish(self, tasks: Sequence[PublishedTask], *, renewal: bool = False) -> None:
        """See `Storage.publish`: one partition keeps all tasks."""
        first = self._partitions[0]
        await self._call(first, partial(first.publish, renewal=renewal), tasks)

    async def published(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        """See `Storage.published`."""
        first = self._partitions[0]
        return await self._call(first, first.published, names)

    async def record_act(self, act: OperatorAct, *, keep: KeepRule = ACTS_KEPT) -> OperatorAct:
        """See `Storage.record_act`: one partition keeps the audit log, so that a page of it comes from one server."""
        log = self._partitions[0]
        return await self._call(log, partial(log.record_act, keep=keep), act)

    async def acts(self, query: ActsQuery) -> ActsPage:
        """See `Storage.acts`."""
        log = self._partitions[0]
        return await self._call(log, log.acts, query)

    async def get(self, refs: Sequence[Ref]) -> list[JobDetail | None]:
        """See `Storage.get`."""
        return await self._each(refs, lambda ref: ref.queue, lambda partition, some: partition.get(some))

    async def find(self, query: Query) -> Page:
        """See `Storage.find`."""
        if query.order == "due":
            return await self._find_due(query)
        partitions = len(self._partitions)
        before = [LARGEST] * partitions if query.after is None else places_of(query.after, partitions)
        queues = self._queues_by_partition(query.queues)
        queries = [
            (partition, structs.replace(query, queues=queues.get(partition, ())), place)
            for partition, place in zip(self._partitions, before, strict=True)
            if not queues or partition in queues
        ]
        found = await _all([partition.listed(part, query.limit + 1, place) for partition, part, place in queries])
        answers = {partition: some for (partition, _, _), some in zip(queries, found, strict=True)}
        return merge_listings([answers.get(partition, _NOTHING) for partition in self._partitions], before, query.limit)

    async def _find_due(self, query: Query) -> Page:
        queues = self._queues_by_partition(query.queues)
        found = await _all(
            [
                partition.listed_due(structs.replace(query, queues=queues.get(partition, ())), query.limit + 1)
                for partition in self._partitions
                if not queues or partition in queues
            ]
        )
        jobs = sorted((one for some, _ in found for one in some), key=itemgetter(0))
        return page_of_due(jobs, query.limit, min((bound for _, bound in found if bound is not None), default=None))

    async def survey(
        self, queues: Sequence[str] = (), *, faults: int = 0, figures: FiguresQuery | None = None
    ) -> Survey:
        """See `Storage.survey`: if queues are named, a partition that holds none of them may be unreachable."""
        named = self._queues_by_partition(queues)
        outcomes = await _outcomes(
            [
                self._call(
                    partition,
                    partial(partition.surveyed, faults=faults),
                    named.get(partition, ()) if queues else None,
                )
                for partition in self._partitions
            ]
        )
        for partition, outcome in zip(self._partitions, outcomes, strict=True):
            away = queues and partition not in named and isinstance(outcome, StorageUnavailableError)
            if isinstance(outcome, BaseException) and not away:
                raise outcome
        found = merge_surveys(_answers(outcomes), faults)
        if figures is None:
            return found
        # A delta is counted where its worker is known, so each partition may have cells of each queue.
        ask = partial(Partition.figures, query=figures, now=found.now)
        names = [queue.queue for queue in found.queues]
        cells = await _all([self._call(part, partial(ask, part), names) for part in self._partitions])
        return structs.replace(found, figures=summed(cell for some in cells for cell in some))

    async def events(
        self, cursor: str | None = None, *, limit: int = 100, reader: EventReader | None = None, ref: Ref | None = None
    ) -> EventPage:
        """See `Storage.events`: merged by the times of the servers' clocks, and without a gap for each partition.

        The events of an unreachable partition follow later. For one job's events, only its own partition is asked.
        """
        words = event_places(cursor, len(self._partitions))
        at_home = self.of(ref.queue) if ref is not None and reader is None and cursor != EVENTS_END else None

        begins = dict(zip(self._partitions, reader_begins(reader, len(self._partitions)), strict=True))

        async def page_of(partition: Partition, word: str) -> EventPage:
            if at_home is not None and partition is not at_home:
                return EventPage((), "0" if word == UNREAD else word)
            place = None if word == UNREAD else word
            own = None if reader is None else structs.replace(reader, begin=begins[partition])

            def ask(place: str | None) -> Awaitable[EventPage]:
                return partition.events(place, limit=limit, reader=own, ref=ref)

            try:
                return await self._call(partition, ask, place)
            except StorageUnavailableError:
                if at_home is not None:
                    raise
                # Do not keep an age in the cursor: by the time the partition is back, it would mean another instant.
                return EventPage((), EVENTS_END if age_of(place) is not None else word, incomplete=True)

        pages = await _all([page_of(partition, word) for partition, word in zip(self._partitions, words, strict=True)])
        if all(page.incomplete for page in pages):
            raise StorageUnavailableError("no part of the storage has answered")
        return merge_event_pages(pages, limit)

    async def _try_all(
        self,
        owner: Owner,
        partitions: Sequence[tuple[Partition, tuple[str, ...] | None]],
        settlements: Mapping[Partition, Sequence[Settlement]],
        room: int,
        lane: Lane | None,
        tasks: dict[str, int] | None,
    ) -> list[ExchangeResult | BaseException]:
        """Exchange with several partitions at once, and divide the room evenly among them."""
        each, rest = divmod(room, max(1, len(partitions)))

        async def exchange_with(place: int, partition: Partition, queues: tuple[str, ...] | None) -> ExchangeResult:
            order = None if queues is None else ClaimRequest(queues, each + (place < rest), lane, tasks)
            return await self._call(
                partition, lambda order: partition.exchange(owner, settlements.get(partition, ()), order), order
            )

        return await _outcomes(
            [exchange_with(place, partition, queues) for place, (partition, queues) in enumerate(partitions)]
        )

    async def _call(
        self,
        partition: Partition,
        ask: Callable[[A], Awaitable[T]],
        what: A,
        *,
        within: float | None = None,
        retry_after: float = RETRY_AFTER,
    ) -> T:
        """Send a request to a partition, unless it was unreachable a moment ago: each attempt may take seconds.

        `within`: the time limit in seconds.
        `retry_after`: seconds for which the partition is not asked after a failure. A missed short limit proves little,
        so this is short, too: callers with more time must still reach a partition that is only slow.
        """
        clock = asyncio.get_running_loop().time
        since, until = self._unreachable.get(partition, (-math.inf, -math.inf))
        if clock() < min(since + retry_after, until):
            raise _PartitionSkippedError("a part of the storage could not be reached a moment ago")
        try:
            async with asyncio.timeout(within):
                answer = await ask(what)
        except (StorageUnavailableError, TimeoutError) as error:
            self._unreachable[partition] = clock(), max(until, clock() + retry_after)
            if isinstance(error, TimeoutError):
                raise StorageUnavailableError(f"a part of the storage has not answered within {within:g} s") from None
            raise
        self._unreachable.pop(partition, None)
        return answer

    @staticmethod
    def _begin(partition: Partition, owner: Owner, lane: Lane) -> bool:
        """Note that a call begins in a partition; return True if an earlier call's answer may have been lost there."""
        partition.lanes.begin(owner, lane)
        return partition.lanes.lost(owner, lane) is not None

    def _schedule_of(self, owner: Owner) -> SweepSchedule:
        schedule = self._schedules.get(owner.id)
        if schedule is None:
            schedule = self._schedules[owner.id] = self._start_schedule(self._partitions)
        return schedule

    def _queues_of_claim(self, order: ClaimRequest | None) -> dict[Partition, tuple[str, ...]]:
        """Return the queues to claim from by partition, ordered by the first queue that each partition holds."""
        return self._queues_by_partition(() if order is None else order.queues)

    def _queues_by_partition(self, names: Iterable[str]) -> dict[Partition, tuple[str, ...]]:
        """Return these queues by partition, ordered by the first queue that each partition holds."""
        queues: defaultdict[Partition, list[str]] = defaultdict(list)
        for queue in names:
            queues[self.of(queue)].append(queue)
        return {partition: tuple(some) for partition, some in queues.items()}

    async def _each(
        self,
        items: Sequence[A],
        queue: Callable[[A], str],
        ask: Callable[[Partition, Sequence[A]], Awaitable[Sequence[T]]],
    ) -> list[T]:
        """Send each item to the partition of its queue, all at once; return the answers in the order of the items."""
        places: defaultdict[Partition, list[int]] = defaultdict(list)
        for place, item in enumerate(items):
            places[self.of(queue(item))].append(place)
        answers = await _all([ask(partition, [items[place] for place in some]) for partition, some in places.items()])
        answered = {
            place: answer
            for some, answer_list in zip(places.values(), answers, strict=True)
            for place, answer in zip(some, answer_list, strict=True)
        }
        return [answered[place] for place in range(len(items))]


class _PartitionSkippedError(StorageUnavailableError):
    """A partition was not asked, because it was unreachable a moment ago."""


async def _all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for every partition; return all answers, or raise the first error."""
    answers: list[T] = []
    for outcome in await _outcomes(calls):
        if isinstance(outcome, BaseException):
            raise outcome
        answers.append(outcome)
    return answers


async def _outcomes(calls: Iterable[Awaitable[T]]) -> list[T | BaseException]:
    """Return each partition's answer or error."""
    return list(await asyncio.gather(*calls, return_exceptions=True))


def _answers(outcomes: Sequence[T | BaseException]) -> list[T]:
    """Return the answers without the errors.

    Raises:
        BaseException: the first error that is not a StorageError; or the first error, if there is not one answer.
    """
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, StorageError):
            raise outcome
    answers = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    if outcomes and not answers:
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        raise errors[0]
    return answers
