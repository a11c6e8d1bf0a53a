"""Many partitions as one storage: the hash of a queue's name chooses its partition, so a Cluster's nodes share queues.

Within a partition, everything works as on a single server. Requests that concern no queue go to all partitions, or to
the one that the worker's id hashes to. A schedule is stored with its job's queue, so a tick and its job are one atomic
step.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar
from zlib import crc32

from msgspec import structs

from tenure.clock import SECOND
from tenure.core.job import JobDetail, NewJob, Owner, Ref
from tenure.core.lane import Lane
from tenure.core.leadership import Term
from tenure.core.settlement import Settlement
from tenure.errors import StorageError, StorageUnavailableError
from tenure.storage.cursors import LARGEST, age_of
from tenure.storage.protocol import (
    EVENTS_END,
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
)
from tenure.storage.redis.merge_answers import (
    UNREAD,
    begins_of,
    least,
    listed,
    places_of,
    surveyed,
    swept_all,
    words_of,
    woven,
)
from tenure.storage.redis.partition import ANSWER_BYTES, Partition, weight
from tenure.storage.redis.sweep_schedule import SweepSchedule

T = TypeVar("T")
A = TypeVar("A")

REST = 4.0
"""Seconds during which an unreachable partition is not asked again, unless a sweep reaches it earlier."""


class Partitions:
    """The verbs over many partitions: sends each request to the right ones and merges their answers."""

    def __init__(
        self, cells: Sequence[Partition], start_schedule: Callable[[Sequence[Partition]], SweepSchedule]
    ) -> None:
        self._cells = tuple(cells)
        self._start_schedule = start_schedule
        self._schedules: dict[str, SweepSchedule] = {}
        self._silent: dict[Partition, tuple[float, float]] = {}
        """For each unreachable partition: when the last request to it failed, and until when it is not asked again."""

    def of(self, name: str) -> Partition:
        """Return the partition that holds a queue, or that knows a worker."""
        return self._cells[crc32(name.encode()) % len(self._cells)]

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """See `Storage.enqueue`."""
        return await self._each(jobs, lambda job: job.queue, lambda cell, some: cell.enqueue(some))

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        """See `Storage.exchange`: one step for each partition, in the order in which the claim names their queues.

        An unreachable partition does not hold up the others, and leases that they granted still reach the worker. It
        is asked again after a rest.
        """
        asked: defaultdict[Partition, list[Settlement]] = defaultdict(list)
        for settlement in settlements:
            asked[self.of(settlement.ref.queue)].append(settlement)
        orders = self._orders(order)
        lane = None if order is None else order.lane
        elsewhere: list[tuple[Partition, tuple[str, ...] | None]] = []
        for cell in self._cells:
            # Call a partition in which a claim was lost even if nothing is wanted there: the call hands the jobs back.
            lost = lane is not None and self._begin(cell, owner, lane)
            if cell not in orders and (lost or cell in asked):
                elsewhere.append((cell, () if lost else None))
        room = 0 if order is None else order.room
        tasks = None if order is None else order.tasks
        outcomes = await self._try_all(owner, elsewhere, asked, 0, lane, tasks)
        carried = 0
        waiting = list(orders.items())
        while waiting:
            # One after another, because jobs from one partition reduce the room for the next. After one is found
            # unreachable, ask the rest at once: others may be unreachable too, and the waits would add up.
            some = waiting if any(isinstance(outcome, BaseException) for outcome in outcomes) else waiting[:1]
            waiting = waiting[len(some) :]
            found = await self._try_all(owner, some, asked, room, lane, tasks)
            outcomes += found
            won = [lease for answer in found if isinstance(answer, ExchangeResult) for lease in answer.leases]
            carried += weight(won)
            room = room - len(won) if carried <= ANSWER_BYTES else 0
        answers = _some(outcomes)
        verdicts: defaultdict[tuple[Ref, int], list[SettlementResult]] = defaultdict(list)
        for answer in answers:
            for verdict in answer.verdicts:
                verdicts[verdict.ref, verdict.fence].append(verdict)
        return ExchangeResult(
            tuple(verdicts[one.ref, one.fence].pop(0) for one in settlements if verdicts[one.ref, one.fence]),
            tuple(lease for answer in answers for lease in answer.leases),
            left=any(answer.left for answer in answers),
            next_due=least(answer.next_due for answer in answers),
            seen=bool(answers) and all(answer.seen for answer in answers),
        )

    async def renew(self, beat: RenewRequest) -> RenewResult:
        """See `Storage.renew`: a partition that does not answer in time is reported and delays the others no further.

        It is asked again after a rest as long as its time limit, because a lease can be shorter than the usual rest.
        """
        within = None if beat.answer_within is None else beat.answer_within / SECOND
        # One partition keeps the worker's own record, so every beat goes there.
        home = self.of(beat.owner.id)
        if beat.last and (ended := self._schedules.pop(beat.owner.id, None)) is not None:
            ended.close()
        parts: dict[Partition, list[LeaseRenewal]] = {home: []}
        for renewal in beat.renewals:
            parts.setdefault(self.of(renewal.ref.queue), []).append(renewal)
        for cell in self._cells:
            if any(cell.lanes.lost(beat.owner, lane) is not None for lane in beat.lanes):
                parts.setdefault(cell, [])
        if beat.seen is not None and beat.worker is not None:
            # A worker must notice that a partition lost its data, even if it holds none of the jobs there.
            for queue in beat.worker.queues:
                parts.setdefault(self.of(queue), [])
        outcomes = await _outcomes(
            [
                self._ask(
                    cell,
                    cell.renew,
                    structs.replace(beat, renewals=tuple(part))
                    if cell is home
                    else RenewRequest(beat.owner, tuple(part), lanes=beat.lanes, seen=beat.seen),
                    within=within,
                    rest=REST if within is None else min(REST, within),
                )
                for cell, part in parts.items()
            ]
        )
        pulses = _some(outcomes)
        if beat.last:
            for cell in self._cells:
                cell.lanes.forget(beat.owner)
        place = {(renewal.ref, renewal.fence): number for number, renewal in enumerate(beat.renewals)}
        return RenewResult(
            tuple(sorted((lost for pulse in pulses for lost in pulse.lost), key=place.__getitem__)),
            tuple(
                sorted(
                    (asked for pulse in pulses for asked in pulse.cancelling),
                    key=lambda asked: place[asked.ref, asked.fence],
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
                structs.replace(state, place=self._cells.index(cell))
                for cell, outcome in zip(parts, outcomes, strict=True)
                if not isinstance(outcome, BaseException)
                for state in outcome.partitions
            ),
        )

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        """See `Storage.sweep`: each partition has its own leader; unreachable partitions are listed as troubles."""
        if bid.max_skip:
            told, reached = await self._schedule_of(bid.owner).turn(bid)
            for cell in reached:
                # It answered, so ask it again at once if it was unreachable before.
                self._silent.pop(cell, None)
            return told
        outcomes = await _outcomes([cell.sweep(bid) for cell in self._cells])
        for cell, outcome in zip(self._cells, outcomes, strict=True):
            if isinstance(outcome, SweepResult):
                self._silent.pop(cell, None)
        return swept_all(_some(outcomes), [f"{error}" for error in outcomes if isinstance(error, BaseException)])

    async def reclaim(self, dead: str, owner: Owner) -> ReclaimResult:
        """See `Storage.reclaim`: return the runs that some partitions gave even if others are unreachable."""
        outcomes = await _outcomes([cell.reclaim(dead, owner) for cell in self._cells])
        taken = _some(outcomes)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        stalled = tuple(lease for one in taken for lease in one.stalled)
        if errors and not stalled:
            raise errors[0]
        incomplete = bool(errors) or any(one.incomplete for one in taken)
        return ReclaimResult(stalled, more=bool(errors) or any(one.more for one in taken), incomplete=incomplete)

    async def revise(self, revisions: Sequence[Revision]) -> list[RevisionResult]:
        """See `Storage.revise`."""
        return await self._each(revisions, lambda one: one.ref.queue, lambda cell, some: cell.revise(some))

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
                        self._ask(cell, cell.plan, [RemoveSchedule(change.name)])
                        for cell in self._cells
                        if cell is not home
                    ]
                )
            else:
                answers = [answer for [answer] in await _all([cell.plan([change]) for cell in self._cells])]
                planned.append(next((one for one in answers if one.verdict != "gone"), answers[0]))
        return planned

    async def tune(self, target: Target, settings: Settings, *, by: str | None = None) -> Settings:
        """See `Storage.tune`: every partition stores the settings of a task."""
        if target.kind != "task":
            return await self.of(target.name).tune(target, settings, by=by)
        in_force = await _all([cell.tune(target, settings, by=by) for cell in self._cells])
        return in_force[0]

    async def resign(self, term: Term) -> None:
        """See `Storage.resign`."""
        await _all([cell.resign(term) for cell in self._cells if cell.scope == term.scope])

    async def get(self, refs: Sequence[Ref]) -> list[JobDetail | None]:
        """See `Storage.get`."""
        return await self._each(refs, lambda ref: ref.queue, lambda cell, some: cell.get(some))

    async def find(self, query: Query) -> Page:
        """See `Storage.find`."""
        cells = len(self._cells)
        before = [LARGEST] * cells if query.after is None else places_of(query.after, cells)
        queues = self._queues(query.queues)
        asked = [
            (cell, structs.replace(query, queues=queues.get(cell, ())), place)
            for cell, place in zip(self._cells, before, strict=True)
            if not queues or cell in queues
        ]
        found = await _all([cell.listed(part, query.limit + 1, place) for cell, part, place in asked])
        answers = {cell: some for (cell, _, _), some in zip(asked, found, strict=True)}
        return listed([answers.get(cell, ()) for cell in self._cells], before, query.limit)

    async def survey(self, queues: Sequence[str] = ()) -> Survey:
        """See `Storage.survey`: if queues are named, a partition that holds none of them may be unreachable."""
        named = self._queues(queues)
        outcomes = await _outcomes(
            [self._ask(cell, cell.surveyed, named.get(cell, ()) if queues else None) for cell in self._cells]
        )
        for cell, outcome in zip(self._cells, outcomes, strict=True):
            away = queues and cell not in named and isinstance(outcome, StorageUnavailableError)
            if isinstance(outcome, BaseException) and not away:
                raise outcome
        return surveyed(_some(outcomes))

    async def events(
        self, cursor: str | None = None, *, limit: int = 100, reader: EventReader | None = None, ref: Ref | None = None
    ) -> EventPage:
        """See `Storage.events`: merged by the times of the servers' clocks, and without a gap for each partition.

        The events of an unreachable partition follow later. For one job's events, only its own partition is asked.
        """
        words = words_of(cursor, len(self._cells))
        at_home = self.of(ref.queue) if ref is not None and reader is None and cursor != EVENTS_END else None

        begins = dict(zip(self._cells, begins_of(reader, len(self._cells)), strict=True))

        async def one(cell: Partition, word: str) -> EventPage:
            if at_home is not None and cell is not at_home:
                return EventPage((), "0" if word == UNREAD else word)
            place = None if word == UNREAD else word
            own = None if reader is None else structs.replace(reader, begin=begins[cell])

            def ask(place: str | None) -> Awaitable[EventPage]:
                return cell.events(place, limit=limit, reader=own, ref=ref)

            try:
                return await self._ask(cell, ask, place)
            except StorageUnavailableError:
                if at_home is not None:
                    raise
                # Do not keep an age in the cursor: by the time the partition is back, it would mean another instant.
                return EventPage((), EVENTS_END if age_of(place) is not None else word, incomplete=True)

        pages = await _all([one(cell, word) for cell, word in zip(self._cells, words, strict=True)])
        if all(page.incomplete for page in pages):
            raise StorageUnavailableError("no part of the storage has answered")
        return woven(pages, limit)

    async def _try_all(
        self,
        owner: Owner,
        cells: Sequence[tuple[Partition, tuple[str, ...] | None]],
        settlements: Mapping[Partition, Sequence[Settlement]],
        room: int,
        lane: Lane | None,
        tasks: dict[str, int] | None,
    ) -> list[ExchangeResult | BaseException]:
        """Exchange with several partitions at once, and divide the room evenly among them."""
        each, rest = divmod(room, max(1, len(cells)))

        async def one(place: int, cell: Partition, queues: tuple[str, ...] | None) -> ExchangeResult:
            order = None if queues is None else ClaimRequest(queues, each + (place < rest), lane, tasks)
            return await self._ask(cell, lambda order: cell.exchange(owner, settlements.get(cell, ()), order), order)

        return await _outcomes([one(place, cell, queues) for place, (cell, queues) in enumerate(cells)])

    async def _ask(
        self,
        cell: Partition,
        ask: Callable[[A], Awaitable[T]],
        what: A,
        *,
        within: float | None = None,
        rest: float = REST,
    ) -> T:
        """Send a request to a partition, unless it was unreachable a moment ago: each attempt may take seconds.

        `within`: the time limit in seconds.
        `rest`: seconds for which the partition is skipped after a failure. A missed short limit proves little, so its
        rest is short, too: callers with more time must still reach a partition that is only slow.
        """
        clock = asyncio.get_running_loop().time
        since, until = self._silent.get(cell, (-math.inf, -math.inf))
        if clock() < min(since + rest, until):
            raise _PartitionSkippedError("a part of the storage could not be reached a moment ago")
        try:
            async with asyncio.timeout(within):
                answer = await ask(what)
        except (StorageUnavailableError, TimeoutError) as error:
            self._silent[cell] = clock(), max(until, clock() + rest)
            if isinstance(error, TimeoutError):
                raise StorageUnavailableError(f"a part of the storage has not answered within {within:g} s") from None
            raise
        self._silent.pop(cell, None)
        return answer

    @staticmethod
    def _begin(cell: Partition, owner: Owner, lane: Lane) -> bool:
        """Note that a call begins in a partition; return True if an earlier call's answer may have been lost there."""
        cell.lanes.begin(owner, lane)
        return cell.lanes.lost(owner, lane) is not None

    def _schedule_of(self, owner: Owner) -> SweepSchedule:
        schedule = self._schedules.get(owner.id)
        if schedule is None:
            schedule = self._schedules[owner.id] = self._start_schedule(self._cells)
        return schedule

    def _orders(self, order: ClaimRequest | None) -> dict[Partition, tuple[str, ...]]:
        """Return the queues to claim from by partition, ordered by the first queue that each partition holds."""
        return self._queues(() if order is None else order.queues)

    def _queues(self, names: Iterable[str]) -> dict[Partition, tuple[str, ...]]:
        """Return these queues by partition, ordered by the first queue that each partition holds."""
        queues: defaultdict[Partition, list[str]] = defaultdict(list)
        for queue in names:
            queues[self.of(queue)].append(queue)
        return {cell: tuple(some) for cell, some in queues.items()}

    async def _each(
        self,
        asked: Sequence[A],
        queue: Callable[[A], str],
        ask: Callable[[Partition, Sequence[A]], Awaitable[Sequence[T]]],
    ) -> list[T]:
        """Send each item to the partition of its queue, all at once; return the answers in the order of the items."""
        places: defaultdict[Partition, list[int]] = defaultdict(list)
        for place, one in enumerate(asked):
            places[self.of(queue(one))].append(place)
        answers = await _all([ask(cell, [asked[place] for place in some]) for cell, some in places.items()])
        answered = {
            place: answer
            for some, answer_list in zip(places.values(), answers, strict=True)
            for place, answer in zip(some, answer_list, strict=True)
        }
        return [answered[place] for place in range(len(asked))]


class _PartitionSkippedError(StorageUnavailableError):
    """A partition was not asked, because it was unreachable a moment ago."""


async def _all(asked: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for every partition; return all answers, or raise the first error."""
    answers: list[T] = []
    for outcome in await _outcomes(asked):
        if isinstance(outcome, BaseException):
            raise outcome
        answers.append(outcome)
    return answers


async def _outcomes(asked: Iterable[Awaitable[T]]) -> list[T | BaseException]:
    """Return each partition's answer or error."""
    return list(await asyncio.gather(*asked, return_exceptions=True))


def _some(outcomes: Sequence[T | BaseException]) -> list[T]:
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
