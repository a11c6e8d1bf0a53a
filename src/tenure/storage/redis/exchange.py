"""Encodes the requests of enqueue and exchange for their scripts, and decodes the scripts' answers."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, assert_never

import msgspec
from msgspec import Struct

from tenure.core.decision import Finish, PutBack, RunEnd, Suspend
from tenure.core.events import JobCancelled, JobCompleted, JobEvent, name_of
from tenure.core.job import NewJob, Owner, Ref
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.settlement import Settlement
from tenure.errors import FlowError
from tenure.storage.protocol import ClaimRequest, EnqueueResult, ExchangeResult, SettlementResult
from tenure.storage.redis.claim_numbers import EncodedLane
from tenure.storage.redis.records import (
    EncodedJob,
    RequestEncoder,
    decode_record,
    decode_ref,
    encode_error,
    encode_fixed,
    encode_job,
    encode_ref,
    without_identity,
)

_encode = msgspec.msgpack.Encoder().encode


Place = tuple[int, int, int]
"""How far a claim has got: the number of its queue, the jobs promoted there, and the jobs examined in all."""

BEGIN: Place = (1, 0, 0)

SETTLED_AT_ONCE = 100
"""Maximum number of settlements in one call: about as many as a script has time for. More would be read for nothing."""

REQUEST_BYTES = 1_000_000
"""A request takes no more settlements after this many bytes of results: what a script leaves undone is sent again."""


class EncodedEvent(Struct, omit_defaults=True):
    """An event of a settlement: the place of its body among the arguments, its name, and whether it names an actor."""

    body: int
    name: str
    by: bool = False


class EncodedSettlement(Struct, omit_defaults=True, kw_only=True):
    """A settlement as a script reads it: `state` finishes the job; without it the job is put back `after` a delay."""

    ref: str
    fence: int
    state: str | None = None
    result: int | None = None
    error: str | None = None
    reason: str | None = None
    charge: str | None = None
    keep: int | None = None
    redrive_after: int | None = None
    fault: str | None = None
    after: int | None = None
    quarantine: bool = False
    put_back_used: bool = False
    until_known: bool = False
    ended: int
    events: list[EncodedEvent]
    limit: int | None = None


class EncodedCompletions(Struct, omit_defaults=True, kw_only=True):
    """Consecutive settlements that only complete jobs of one queue, as a script reads them."""

    queue: str
    ids: list[str]
    fences: list[int]
    ended: int
    keep: int | None
    first: int


class EncodedJobs(Struct, omit_defaults=True, kw_only=True):
    """Consecutive new jobs that differ only in their ids and payloads, as a script reads them."""

    queue: str
    fixed: int
    lease: int
    timeout: int | None
    ids: list[str]
    boost: int
    first: int


class _Enqueue(Struct):
    calls: list[EncodedJob | EncodedJobs]
    jobs: int


class _Exchange(Struct, omit_defaults=True, kw_only=True):
    owner: Owner
    settlements: list[EncodedSettlement | EncodedCompletions]
    settling: int
    queues: tuple[str, ...] = ()
    room: int | None = None
    tasks: int | None = None
    place: Place
    lane: EncodedLane | None = None


class ExchangePart(Struct, frozen=True):
    """The result of one script call of an exchange, and the place where the next call continues; None at the end."""

    exchanged: ExchangeResult
    place: Place | None


def encode_enqueue(jobs: Sequence[NewJob]) -> list[bytes]:
    """Return the request to enqueue jobs. Consecutive jobs that differ only in id and payload form one group."""
    encoder = RequestEncoder()
    calls: list[EncodedJob | EncodedJobs] = []
    latest: NewJob | None = None
    group: EncodedJobs | None = None
    for job in jobs:
        like = without_identity(job)
        if like != latest:
            latest, group = like, _group(like, encoder)
            if group is not None:
                calls.append(group)
        if group is None:
            calls.append(encode_job(job, encoder))
        else:
            group.ids.append(job.id)
            encoder.put(job.payload)
    return encoder.finish(_Enqueue(calls, len(jobs)))


def _group(like: NewJob, encoder: RequestEncoder) -> EncodedJobs | None:
    """Return an empty group for jobs like this one, or None if such jobs cannot be grouped.

    The caller adds the jobs' payloads to the request one after another.
    """
    fixed = encode_fixed(like)
    if fixed is None:
        return None
    place = encoder.put(fixed)
    return EncodedJobs(
        queue=like.queue,
        fixed=place,
        lease=like.stall.lease,
        timeout=like.timeout,
        ids=[],
        boost=like.boost,
        first=place + 1,
    )


def decode_enqueue(reply: Any, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
    """Return the result of each job."""
    if isinstance(reply, int):
        return [EnqueueResult("created", Ref(job.queue, job.id)) for job in jobs]
    return [
        EnqueueResult("created", Ref(job.queue, job.id)) if result == 0 else _enqueue_result(job.queue, *result)
        for result, job in zip(reply, jobs, strict=True)
    ]


def _enqueue_result(queue: str, action: bytes, id_: bytes, *rest: int) -> EnqueueResult:
    word: Any = action.decode()
    return EnqueueResult(word, Ref(queue, id_.decode()), *rest)


def encode_exchange(
    owner: Owner,
    settlements: Sequence[Settlement],
    order: ClaimRequest | None,
    place: Place = BEGIN,
    lane: EncodedLane | None = None,
) -> list[bytes]:
    """Return the request to settle and to claim from a place on. `lane`: the numbers of a claim that has a lane."""
    encoder = RequestEncoder()
    return encoder.finish(
        _Exchange(
            owner=owner,
            settlements=_encode_settlements(settlements, encoder),
            settling=len(settlements),
            queues=() if order is None else order.queues,
            room=None if order is None else order.room,
            tasks=None if order is None or order.tasks is None else encoder.put(_encode_tasks(order.tasks)),
            place=place,
            lane=lane,
        )
    )


_latest_tasks: tuple[dict[str, int], bytes] = {}, _encode({})


def _encode_tasks(tasks: dict[str, int]) -> bytes:
    """Return the tasks that a caller knows, as a script reads them. The latest dict's encoding is kept."""
    global _latest_tasks
    latest, encoded = _latest_tasks
    if latest is not tasks:
        encoded = _encode(tasks)
        _latest_tasks = tasks, encoded
    return encoded


def first_batch(settlements: Sequence[Settlement]) -> Sequence[Settlement]:
    """Return the first of these settlements: as many as one call and a slow network have time for."""
    size = 0
    for number, settlement in enumerate(settlements):
        if size > REQUEST_BYTES or number == SETTLED_AT_ONCE:
            return settlements[:number]
        if isinstance(settlement.decision, Finish):
            size += len(settlement.decision.result or b"")
    return settlements


def decode_exchange(reply: Any, settlements: Sequence[Settlement]) -> ExchangePart:
    """Return the verdict of each settlement that the script had time for, and the leases of the claimed jobs."""
    verdicts, leases, left, next_due, place, seen = reply
    words: list[Any] = ["done"] * verdicts if isinstance(verdicts, int) else [word.decode() for word in verdicts]
    won = iter(leases)
    exchanged = ExchangeResult(
        tuple(
            SettlementResult(settlement.ref, settlement.fence, word)
            for settlement, word in zip(settlements, words, strict=False)
        ),
        tuple(
            Lease(decode_record(decode_ref(ref), body, payload))
            for ref, body, payload in zip(won, won, won, strict=True)
        ),
        left=bool(left),
        next_due=next_due,
        seen=bool(seen),
    )
    return ExchangePart(exchanged, None if place is None else tuple(place))


def _encode_settlements(
    settlements: Sequence[Settlement], encoder: RequestEncoder
) -> list[EncodedSettlement | EncodedCompletions]:
    """Return settlements as a script reads them. Consecutive ones that only complete jobs of a queue form one group."""
    encoded: list[EncodedSettlement | EncodedCompletions] = []
    for (queue, keep, ended), group in groupby(settlements, _completion_group):
        if ended is None:
            encoded += [_encode_settlement(each, encoder) for each in group]
            continue
        row = list(group)
        place = encoder.put(_encode(ended))
        first = encoder.put(*[blob for each in row for blob in (_encode(each.events[0]), _result_of(each))])
        encoded.append(
            EncodedCompletions(
                queue=queue,
                ids=[each.ref.id for each in row],
                fences=[each.fence for each in row],
                ended=place,
                keep=keep,
                first=first,
            )
        )
    return encoded


_OTHERWISE = "", None, None


def _completion_group(settlement: Settlement) -> tuple[str, int | None, RunEnd | None]:
    # Every settlement comes here. A match pattern with this many parts would cost ten times as much.
    end, events = settlement.decision, settlement.events
    if (
        isinstance(end, Finish)
        and end.state is State.COMPLETED
        and end.result is not None
        and end.error is None
        and end.reason is None
        and end.charge is None
        and end.redrive_after is None
        and len(events) == 1
        and isinstance(events[0], JobCompleted)
    ):
        return settlement.ref.queue, end.keep, settlement.ended
    return _OTHERWISE


def _result_of(settlement: Settlement) -> bytes:
    return settlement.decision.result or b"" if isinstance(settlement.decision, Finish) else b""


def _encode_settlement(settlement: Settlement, encoder: RequestEncoder) -> EncodedSettlement:
    events = [_encode_event(event, encoder) for event in settlement.events]
    match settlement.decision:
        case Finish() as end:
            return EncodedSettlement(
                ref=encode_ref(settlement.ref),
                fence=settlement.fence,
                state=end.state,
                result=None if end.result is None else encoder.put(end.result),
                error=encode_error(end.error),
                reason=end.reason,
                charge=end.charge,
                keep=end.keep,
                redrive_after=end.redrive_after,
                fault=end.fault,
                ended=encoder.put(_encode(settlement.ended)),
                events=events,
            )
        case PutBack() as again:
            return EncodedSettlement(
                ref=encode_ref(settlement.ref),
                fence=settlement.fence,
                after=again.after,
                quarantine=again.quarantine,
                put_back_used=again.put_back_used,
                until_known=again.until_known,
                error=encode_error(again.error),
                reason=again.reason,
                charge=again.charge,
                ended=encoder.put(_encode(settlement.ended)),
                events=events,
                limit=settlement.limit,
            )
        case Suspend():
            raise FlowError("a run is suspended, and Redis does not keep flows yet")
        case _:
            assert_never(settlement.decision)


def _encode_event(event: JobEvent, encoder: RequestEncoder) -> EncodedEvent:
    return EncodedEvent(
        encoder.put(_encode(event)), name_of(event), isinstance(event, JobCancelled) and event.by is not None
    )
