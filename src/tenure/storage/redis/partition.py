"""One partition: all keys with the same hash tag. Each verb on it is one or more calls of the verb's Lua script."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Protocol

from msgspec import structs

from tenure.clock import Clock
from tenure.core.audit import ACTS_KEPT, OperatorAct
from tenure.core.figures import FiguresCell, FiguresQuery
from tenure.core.fingerprint import FaultSurvey, by_frequency
from tenure.core.job import JobDetail, JobRecord, NewJob, Owner, Ref
from tenure.core.leadership import Term
from tenure.core.lease import Lease
from tenure.core.move import MoveBatch, MoveReceipt
from tenure.core.published import PublishedTask
from tenure.core.retention import KeepRule
from tenure.core.settlement import Settlement
from tenure.errors import StorageError, StorageMovedError, StorageUnavailableError
from tenure.storage.cursors import DuePlace, age_of, due_place, place_of
from tenure.storage.protocol import (
    CLAIM_LIMIT,
    EVENTS_END,
    SWEEP_LIMIT,
    ActsPage,
    ActsQuery,
    CancelRequest,
    Change,
    ClaimRequest,
    EnqueueResult,
    EventPage,
    EventReader,
    ExchangeResult,
    Page,
    Query,
    ReclaimResult,
    RenewRequest,
    RenewResult,
    Revision,
    RevisionResult,
    ScheduleResult,
    Settings,
    SettlementResult,
    StalledLease,
    Survey,
    SweepRequest,
    SweepResult,
    Target,
    page_of_due,
)
from tenure.storage.redis.acts import decode_acts, decode_record_act, encode_acts, encode_record_act
from tenure.storage.redis.claim_numbers import SCRIPTS, EncodedLane, PartitionLanes
from tenure.storage.redis.connections import UnconfirmedError
from tenure.storage.redis.exchange import BEGIN as FIRST
from tenure.storage.redis.exchange import decode_enqueue, decode_exchange, encode_enqueue, encode_exchange, first_batch
from tenure.storage.redis.figures import RANGES_AT_ONCE, decode_figures, encode_figures, ranges_of
from tenure.storage.redis.keytypes import WRONG_TYPE
from tenure.storage.redis.moves import decode_receive, encode_receive
from tenure.storage.redis.published_tasks import decode_all_published, encode_publish, encode_published
from tenure.storage.redis.reading import (
    GOT_AT_ONCE,
    LOOKED_AT_ONCE,
    SURVEYED_AT_ONCE,
    EventsPart,
    decode_due,
    decode_events,
    decode_find,
    decode_get,
    decode_survey,
    encode_events,
    encode_find,
    encode_get,
    encode_survey,
    queues_at_once,
    survey_of,
)
from tenure.storage.redis.renew import decode_renew, encode_renew
from tenure.storage.redis.renew import first_batch as renewed_at_once
from tenure.storage.redis.revise import decode_plan, decode_revise, decode_tune, encode_plan, encode_revise, encode_tune
from tenure.storage.redis.schema import layout_of
from tenure.storage.redis.script_library import Script, verb
from tenure.storage.redis.sweep import (
    BEGIN,
    decode_reclaim,
    decode_sweep,
    encode_reclaim,
    encode_resign,
    encode_sweep,
    join_parts,
)

REVISIONS_PER_CALL = 50
CHANGES_PER_CALL = 25
"""Maximum number of revisions, or of schedule changes, in one script call. Each of them is atomic by itself."""


ANSWER_BYTES = 8_000_000
"""A verb returns no more jobs after this many bytes of payloads: the first leases run while the last jobs arrive."""

TAKEN_BYTES = 2_000_000
"""The same limit for jobs taken from dead or silent workers. It is lower because those leases last five seconds."""


logger = logging.getLogger("tenure")

Explain = Callable[[str, StorageError], Awaitable[StorageError]]


class ScriptRunner(Protocol):
    """Runs scripts on a server; `Connections` does."""

    async def call(self, script: Script, base: str, *args: bytes | str | int, durable: bool = False) -> Any:
        """Run a script on the partition of a base key. `durable`: wait until a replica has the writes, too."""
        ...


class Partition:
    """The verbs on the keys of one hash tag.

    `scope`: what the partition's leader leads; "*" if it is the only partition.
    `layout`: as in schema.py.
    `clock`: for tests; None uses the server's time.
    `durable`: an enqueue, an exchange or a schedule change is acknowledged only when a replica has it, too.
    `explain`: adds the names of keys to an error about the types of their values.
    """

    def __init__(
        self,
        caller: ScriptRunner,
        base: str,
        *,
        scope: str = "*",
        layout: str = "",
        clock: Clock | None = None,
        durable: bool = False,
        explain: Explain | None = None,
    ) -> None:
        self.base = base
        self._explain = explain
        self.scope = scope
        self._layout = layout or layout_of(1)
        self._durable = durable
        self._caller = caller
        self._clock = clock
        self.lanes = PartitionLanes()

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """See `Storage.enqueue`."""
        return decode_enqueue(await self._call("enqueue", encode_enqueue(jobs), durable=self._durable), jobs)

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        """See `Storage.exchange`: usually one script call, more if one has no time for everything."""
        verdicts: list[SettlementResult] = []
        leases: list[Lease] = []
        place, settled, confirmed, script, seen = FIRST, 0, True, 0, False
        lane = None if order is None else order.lane
        if lane is not None:
            self.lanes.begin(owner, lane)
        while True:
            rest = settlements[settled:]
            some = first_batch(rest)
            more = None
            if order is not None and not seen and len(some) == len(rest):
                more = ClaimRequest(order.queues, min(order.room, CLAIM_LIMIT) - len(leases), tasks=order.tasks)
            numbers = None if more is None or lane is None else self.lanes.send(owner, lane, script)
            # A claim with no room only asks whether the server answers. It writes nothing that a replica must confirm.
            durable = self._durable and bool(some or (more is not None and more.room))
            try:
                reply = await self._call(
                    "exchange", encode_exchange(owner, some, more, place, numbers), durable=durable
                )
                part = decode_exchange(reply, some)
            except UnconfirmedError as error:
                part = decode_exchange(error.reply, some)
                if order is None or (part.exchanged.leases and not leases):
                    raise
                if part.exchanged.leases:
                    return ExchangeResult(tuple(verdicts), tuple(leases), left=True)
                # The settlements of this call are not acknowledged, so the caller sends them again.
                confirmed = False
            except StorageError:
                if not leases:
                    raise
                # Return the jobs claimed so far: until their leases expire, no other worker can run them.
                return ExchangeResult(tuple(verdicts), tuple(leases), left=True)
            if part.exchanged.seen:
                # This script ran before, but its answer was lost, so we do not know which jobs it claimed. The lane's
                # next call hands them back. Until then claim nothing more, because a claim would acknowledge them.
                seen = True
            elif lane is not None and numbers is not None:
                self.lanes.receive(owner, lane, script)
                script += 1
            settled += len(part.exchanged.verdicts)
            verdicts += part.exchanged.verdicts if confirmed else ()
            leases += part.exchanged.leases
            if settled == len(settlements) and (part.place is None or seen):
                return ExchangeResult(
                    tuple(verdicts),
                    tuple(leases),
                    left=part.exchanged.left,
                    next_due=part.exchanged.next_due,
                    seen=seen and not script,
                )
            if weight(leases) > ANSWER_BYTES or script == SCRIPTS:
                return ExchangeResult(tuple(verdicts), tuple(leases), left=True)
            place = part.place or place

    async def renew(self, beat: RenewRequest) -> RenewResult:
        """See `Storage.renew`: usually one script call. If it takes several, the last one records the worker."""
        lost: list[tuple[Ref, int]] = []
        cancelling: list[CancelRequest] = []
        begun = False
        while True:
            some = renewed_at_once(beat.renewals)
            part = beat if len(some) == len(beat.renewals) else RenewRequest(beat.owner, some)
            lanes = [numbers for lane in part.lanes if (numbers := self.lanes.lost(beat.owner, lane)) is not None]
            try:
                request = encode_renew(part, self.scope, self._layout, lanes)
                result, renewed, more = decode_renew(await self._call("renew", request), part, self.scope)
            except StorageUnavailableError:
                if not begun:
                    raise
                left = tuple((renewal.ref, renewal.fence) for renewal in beat.renewals)
                return RenewResult(tuple(lost), tuple(cancelling), None, left)
            begun = True
            lost += result.lost
            cancelling += result.cancelling
            if renewed == len(beat.renewals):
                if more:
                    await self._hand_back(beat.owner, lanes)
                if beat.last:
                    self.lanes.forget(beat.owner)
                return RenewResult(tuple(lost), tuple(cancelling), result.orders, partitions=result.partitions)
            beat = structs.replace(beat, renewals=beat.renewals[renewed:])

    async def _hand_back(self, owner: Owner, lanes: Sequence[EncodedLane]) -> None:
        """Hand back the rest of the jobs that lanes have lost, if one script had no time for all of them.

        If a call fails here, the next renewal or claim hands back what is left.
        """
        more, nothing = True, RenewRequest(owner)
        with suppress(StorageUnavailableError):
            while more:
                request = encode_renew(nothing, self.scope, self._layout, lanes)
                _, _, more = decode_renew(await self._call("renew", request), nothing, self.scope)

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        """See `Storage.sweep`."""
        swept, _ = await self.sweep_or_skip(bid)
        return swept

    async def sweep_or_skip(self, bid: SweepRequest, *, within: float | None = None) -> tuple[SweepResult, int]:
        """Sweep; also return for how many microseconds the leader may skip the partition from now on.

        This makes as many script calls as the limits of a sweep need; each must answer `within` that many seconds.
        """
        place: tuple[int, int] | None = BEGIN
        parts: list[SweepResult] = []
        long, skip = False, 0
        while place is not None:
            try:
                reply = await self._call_within(within, "sweep", encode_sweep(bid, self.scope, place))
                part = decode_sweep(reply, bid, self.scope)
            except StorageError:
                if not any(done.stalled for done in parts):
                    raise
                # Return the leases taken so far: until they expire, no other process can settle these runs.
                return join_parts(parts, more=True), 0
            if part.swept.retry_in is not None:
                # Another process became leader meanwhile and continues the sweep.
                return join_parts(parts, more=long) if parts else part.swept, 0
            parts.append(await self._named(part.swept))
            place, skip = part.next, part.skip
            if (
                place is not None
                and place[0] == BEGIN[0]
                and weight(lease.lease for done in parts for lease in done.stalled) > TAKEN_BYTES
            ):
                # Take no more stalled runs, but still do the other chores.
                long, place = True, (BEGIN[0] + 1, 0)
        swept = join_parts(parts, more=long)
        return swept, 0 if swept.more else skip

    async def _named(self, swept: SweepResult) -> SweepResult:
        """Return the result; if chores failed because of values of a wrong type, add a trouble that names the keys."""
        if self._explain is None or not any(WRONG_TYPE in trouble for trouble in swept.troubles):
            return swept
        error = await self._explain(self.base, StorageError(f"{WRONG_TYPE} values in keys"))
        return structs.replace(swept, troubles=(*swept.troubles, str(error)))

    async def reclaim(self, dead: str, owner: Owner) -> ReclaimResult:
        """See `Storage.reclaim`: as many script calls as its limit needs."""
        stalled: list[StalledLease] = []
        incomplete = False
        while True:
            request = encode_reclaim(dead, owner, SWEEP_LIMIT - len(stalled))
            try:
                taken = decode_reclaim(await self._call("reclaim", request), known=len(stalled))
            except StorageError:
                if not stalled:
                    raise
                return ReclaimResult(tuple(stalled), more=True, incomplete=True)
            stalled += taken.stalled
            incomplete |= taken.incomplete
            if not taken.more or len(stalled) >= SWEEP_LIMIT or weight(lease.lease for lease in stalled) > TAKEN_BYTES:
                return ReclaimResult(tuple(stalled), more=taken.more, incomplete=incomplete)

    async def resign(self, term: Term) -> None:
        """See `Storage.resign`."""
        await self._call("resign", encode_resign(term))

    async def revise(self, revisions: Sequence[Revision]) -> list[RevisionResult]:
        """See `Storage.revise`."""
        revised: list[RevisionResult] = []
        for first in range(0, len(revisions), REVISIONS_PER_CALL):
            some = revisions[first : first + REVISIONS_PER_CALL]
            revised += decode_revise(await self._call("revise", encode_revise(some)), some)
        return revised

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
        """See `Storage.plan`."""
        planned: list[ScheduleResult] = []
        for first in range(0, len(changes), CHANGES_PER_CALL):
            some = changes[first : first + CHANGES_PER_CALL]
            planned += decode_plan(await self._call("plan", encode_plan(some, first), durable=self._durable), some)
        return planned

    async def tune(
        self, target: Target, settings: Settings, *, by: str | None = None, expected: Settings | None = None
    ) -> Settings:
        """See `Storage.tune`."""
        return decode_tune(await self._call("tune", encode_tune(target, settings, by, expected)))

    async def receive(self, batch: MoveBatch) -> MoveReceipt:
        """See `MoveTarget.receive`."""
        return decode_receive(await self._call("receive", encode_receive(batch), durable=self._durable))

    async def publish(self, tasks: Sequence[PublishedTask], *, renewal: bool = False) -> None:
        """See `Storage.publish`."""
        await self._call("publish", encode_publish(tasks, renewal=renewal))

    async def published(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        """See `Storage.published`."""
        return decode_all_published(await self._call("published", encode_published(names)))

    async def get(self, refs: Sequence[Ref]) -> list[JobDetail | None]:
        """See `Storage.get`."""
        found: list[JobDetail | None] = []
        while len(found) < len(refs):
            found += decode_get(await self._call("get", encode_get(refs[len(found) : len(found) + GOT_AT_ONCE])))
        return found

    async def find(self, query: Query) -> Page:
        """See `Storage.find`."""
        if query.order == "due":
            due, bound = await self.listed_due(query, query.limit + 1)
            return page_of_due(due, query.limit, bound)
        before = None if query.after is None else place_of(query.after)
        found, floor = await self.listed(query, query.limit + 1, before)
        shown = found[: query.limit]
        end = shown[-1][0] if len(found) > len(shown) else floor
        return Page(tuple(job for _, job in shown), str(end) if end else None)

    async def listed(self, query: Query, limit: int, before: int | None) -> tuple[list[tuple[int, JobRecord]], int]:
        """Return the newest jobs that match and have a number below `before`, each with its number.

        The second value is the number down to which it has looked, because of `Query.looks`; 0: at all jobs.
        """
        newest: list[tuple[int, JobRecord]] = []
        floor = 0
        after: int | None = None
        names = list(dict.fromkeys(query.queues))
        while True:
            some, names = names[: (span := queues_at_once(query))], names[span:]
            # Jobs older than the last one of a full page cannot be on that page.
            above = max(floor - 1, newest[-1][0] if len(newest) == limit else 0)
            found, after, reached = await self._listed(query, limit, (above, before), some or None, after)
            floor = max(floor, reached)
            newest = list(islice(merge(newest, found, key=itemgetter(0), reverse=True), limit))
            if not names and after is None:
                return [(number, job) for number, job in newest if number >= floor], floor

    async def _listed(
        self,
        query: Query,
        limit: int,
        between: tuple[int, int | None],
        queues: Sequence[str] | None,
        after: int | None,
    ) -> tuple[list[tuple[int, JobRecord]], int | None, int]:
        """Return the newest jobs of some queues, after which number there are more, and how far it looked."""
        found: list[tuple[int, JobRecord]] = []
        above, before = between
        looks = query.looks
        while True:
            request = encode_find(
                query, limit=limit - len(found), queues=queues, after=after, before=before, above=above, looks=looks
            )
            part = decode_find(await self._call("find", request))
            found += part.found
            before, looks = part.looked_to, None if looks is None else looks - part.looks
            if before is None or (looks is not None and looks <= 0):
                return found, part.after, before or 0

    async def listed_due(self, query: Query, limit: int) -> tuple[list[tuple[DuePlace, JobRecord]], DuePlace | None]:
        """Return the delayed jobs that match and fall due first, each with its place.

        The second value is the place up to which it has looked, because of `Query.looks`; None: at all jobs.
        """
        first: list[tuple[DuePlace, JobRecord]] = []
        bound: DuePlace | None = None
        more: int | None = None
        names = list(dict.fromkeys(query.queues))
        while True:
            some, names = names[: (span := queues_at_once(query))], names[span:]
            place, left, calls = due_place(query.after), limit, 0
            while True:
                request = encode_find(query, limit=left, queues=some or None, after=more, due=place)
                part = decode_due(await self._call("find", request))
                calls, left = calls + 1, left - len(part.found)
                first += part.found
                if part.looked_to is None or not left:
                    break
                place = part.looked_to
                if query.looks is not None and calls * LOOKED_AT_ONCE >= query.looks:
                    bound = place if bound is None else min(bound, place)
                    break
            more = part.after
            first = sorted(first, key=itemgetter(0))[:limit]
            if not names and more is None:
                return first, bound

    async def survey(
        self, queues: Sequence[str] = (), *, faults: int = 0, figures: FiguresQuery | None = None
    ) -> Survey:
        """See `Storage.survey`."""
        found = await self.surveyed(queues or None, faults)
        if figures is None:
            return found
        cells = await self.figures([queue.queue for queue in found.queues], figures, found.now)
        return structs.replace(found, figures=tuple(sorted(cells)))

    async def figures(self, queues: Sequence[str], query: FiguresQuery, now: int) -> list[FiguresCell]:
        """Return the cells of these queues that the partition has."""
        ranges, found = ranges_of(queues, query, now), list[FiguresCell]()
        for start in range(0, len(ranges), RANGES_AT_ONCE):
            some = ranges[start : start + RANGES_AT_ONCE]
            found += decode_figures(await self._call("survey", encode_figures(query, some)), query, some)
        return found

    async def surveyed(self, queues: Sequence[str] | None, faults: int) -> Survey:
        """Return a survey of these queues, which may be none; None means all queues."""
        names = list(dict.fromkeys(queues or ()))
        after: int | None = None
        rows: list[list[Any]] = []
        whole: list[Any] = []
        found: list[FaultSurvey] = []
        now = 0
        while True:
            some, names = names[:SURVEYED_AT_ONCE], names[SURVEYED_AT_ONCE:]
            request = encode_survey(None if queues is None else some, after=after, whole=not whole, faults=faults)
            glance = decode_survey(await self._call("survey", request))
            rows += glance.rows
            found = sorted([*found, *glance.faults], key=by_frequency)[:faults]
            whole, now = whole or glance.whole, now or glance.now
            after = glance.after
            if not names and after is None:
                return survey_of(queues, rows, found, whole, now, scope=self.scope)

    async def events(
        self, cursor: str | None = None, *, limit: int = 100, reader: EventReader | None = None, ref: Ref | None = None
    ) -> EventPage:
        """See `Storage.events`."""
        if cursor == EVENTS_END:
            return EventPage((), str((await self._events(None, 0)).last))
        age = None if reader else age_of(cursor)
        after = place_of(cursor) if cursor and age is None else None if reader or age is not None else 0
        part = await self._events(after, limit, reader=reader, ref=None if reader else ref, age=age)
        events = [*part.trimmed, *part.events]
        left = limit - len(part.events)
        # A named reader gets no more than the script has lent to it.
        while left > 0 and part.next < part.last and reader is None:
            part = await self._events(part.next, left, ref=ref)
            events += [*part.trimmed, *part.events]
            left -= len(part.events)
        return EventPage(tuple(events), str(part.next))

    async def _events(
        self,
        after: int | None,
        limit: int,
        *,
        reader: EventReader | None = None,
        ref: Ref | None = None,
        age: int | None = None,
    ) -> EventsPart:
        return decode_events(await self._call("events", encode_events(after, limit, reader=reader, ref=ref, age=age)))

    async def record_act(self, act: OperatorAct, *, keep: KeepRule = ACTS_KEPT) -> OperatorAct:
        """See `Storage.record_act`."""
        return decode_record_act(await self._call("record_act", encode_record_act(act, keep), durable=self._durable))

    async def acts(self, query: ActsQuery) -> ActsPage:
        """See `Storage.acts`: without a filter one script call, else one for each 500 acts that are looked at."""
        before = None if query.after is None else place_of(query.after)
        found: list[tuple[int, OperatorAct]] = []
        while len(found) <= query.limit:
            some, before = decode_acts(
                await self._call("acts", encode_acts(query, query.limit + 1 - len(found), before))
            )
            found += some
            if before is None:
                break
        shown = found[: query.limit]
        return ActsPage(tuple(act for _, act in shown), str(shown[-1][0]) if len(found) > len(shown) else None)

    async def _call_within(self, within: float | None, name: str, arguments: Sequence[bytes]) -> Any:
        """Call a script that must answer within that many seconds; a slower server counts as unreachable."""
        try:
            async with asyncio.timeout(within):
                return await self._call(name, arguments)
        except TimeoutError:
            raise StorageUnavailableError(f"a part of the storage has not answered within {within:g} s") from None

    async def _call(self, name: str, arguments: Sequence[bytes], *, durable: bool = False) -> Any:
        now = b"" if self._clock is None else self._clock.now()
        try:
            return _answer(await self._caller.call(verb(name), self.base, now, *arguments, durable=durable))
        except UnconfirmedError as error:
            error.reply = _answer(error.reply)
            raise
        except StorageError as error:
            if self._explain is None or WRONG_TYPE not in str(error):
                raise
            raise await self._explain(self.base, error) from error


def _answer(reply: Any) -> Any:
    """Return the answer in a script's reply, and log the jobs with unreadable records that the script has repaired.

    Raises:
        StorageMovedError: the jobs of the queue are moved to another storage.
    """
    match reply:
        case [b"\0repaired", repaired, answer]:
            for ref, task, what in repaired:
                queue, _, id_ = ref.decode(errors="replace").partition("\0")
                message = "job %s (%s) in queue %s has an unreadable record: %s"
                logger.error(message, id_, task.decode(errors="replace"), queue, what.decode(errors="replace"))
            return answer
        case [b"\0moved", queue, to]:
            raise StorageMovedError(queue.decode(), to.decode())
        case _:
            return reply


def weight(leases: Iterable[Lease]) -> int:
    """Return the number of payload bytes in these leases."""
    return sum(len(lease.job.payload) for lease in leases)
