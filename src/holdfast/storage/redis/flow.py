"""The flow of jobs on its way to and from a cell: enqueue and exchange."""

from collections.abc import Sequence
from typing import Any, assert_never

import msgspec
from msgspec import Struct

from holdfast.core.decision import Finish, PutBack, RunEnd
from holdfast.core.events import JobCancelled, JobEvent, name_of
from holdfast.core.job import NewJob, Owner, Ref
from holdfast.core.lease import Lease
from holdfast.core.settlement import Settlement
from holdfast.storage.protocol import Exchanged, Order, Receipt, Verdict
from holdfast.storage.redis.records import Parcel, error_text, record, ref_of, ref_text, wish

_encode = msgspec.msgpack.Encoder().encode


Place = tuple[int, int, int]
"""How far a claim has got: in which of its queues, how many were promoted there, how many were looked at in all."""

BEGIN: Place = (1, 0, 0)

SETTLED_AT_ONCE = 64
"""How many settlements a call brings along at most: about as many as it has time for, or it would read them in vain."""

REQUEST_BYTES = 1_000_000
"""After how many bytes of results a call settles no more: whatever it leaves undone is sent once more."""


class Told(Struct, omit_defaults=True):
    """An event that comes with a settlement: its body's place, its name, and whether it says who did it."""

    body: int
    name: str
    by: bool = False


class Settling(Struct, omit_defaults=True, kw_only=True):
    """A settlement as a script reads it: a state to finish in, or `after` to be put back."""

    ref: str
    fence: int
    state: str | None = None
    result: int | None = None
    error: str | None = None
    reason: str | None = None
    charge: str | None = None
    keep: int | None = None
    redrive_after: int | None = None
    after: int | None = None
    quarantine: bool = False
    ended: RunEnd
    events: list[Told]


class _Exchange(Struct, omit_defaults=True, kw_only=True):
    owner: Owner
    settlements: list[Settling]
    queues: tuple[str, ...] = ()
    room: int | None = None
    place: Place


class Part(Struct, frozen=True):
    """What one call made of an exchange, and where the next goes on; None at the end."""

    exchanged: Exchanged
    place: Place | None


def ask_enqueue(jobs: Sequence[NewJob]) -> list[bytes]:
    """Return the request to remember jobs."""
    parcel = Parcel()
    return parcel.sealed([wish(job, parcel) for job in jobs])


def answer_enqueue(reply: Any, jobs: Sequence[NewJob]) -> list[Receipt]:
    """Return what became of each."""
    return [
        Receipt(made.decode(), Ref(job.queue, id_.decode()), *rest)
        for (made, id_, *rest), job in zip(reply, jobs, strict=True)
    ]


def ask_exchange(
    owner: Owner, settlements: Sequence[Settlement], order: Order | None, place: Place = BEGIN
) -> list[bytes]:
    """Return the request to settle, and to claim from a place on."""
    parcel = Parcel()
    return parcel.sealed(
        _Exchange(
            owner=owner,
            settlements=[_settling(asked, parcel) for asked in settlements],
            queues=() if order is None else order.queues,
            room=None if order is None else order.room,
            place=place,
        )
    )


def at_once(settlements: Sequence[Settlement]) -> Sequence[Settlement]:
    """Return the first of these settlements, as many as one call has time for, and a slow line."""
    size = 0
    for number, asked in enumerate(settlements):
        if size > REQUEST_BYTES or number == SETTLED_AT_ONCE:
            return settlements[:number]
        if isinstance(asked.decision, Finish):
            size += len(asked.decision.result or b"")
    return settlements


def answer_exchange(reply: Any, settlements: Sequence[Settlement]) -> Part:
    """Return what became of each settlement that there was time for, and what was claimed."""
    verdicts, leases, left, next_due, place = reply
    exchanged = Exchanged(
        tuple(
            Verdict(asked.ref, asked.fence, verdict.decode())
            for asked, verdict in zip(settlements, verdicts, strict=False)
        ),
        tuple(Lease(record(ref_of(ref), body, payload)) for ref, body, payload in leases),
        left=bool(left),
        next_due=next_due,
    )
    return Part(exchanged, None if place is None else tuple(place))


def _settling(asked: Settlement, parcel: Parcel) -> Settling:
    told = [_told(event, parcel) for event in asked.events]
    match asked.decision:
        case Finish() as end:
            return Settling(
                ref=ref_text(asked.ref),
                fence=asked.fence,
                state=end.state,
                result=None if end.result is None else parcel.put(end.result),
                error=error_text(end.error),
                reason=end.reason,
                charge=end.charge,
                keep=end.keep,
                redrive_after=end.redrive_after,
                ended=asked.ended,
                events=told,
            )
        case PutBack() as again:
            return Settling(
                ref=ref_text(asked.ref),
                fence=asked.fence,
                after=again.after,
                quarantine=again.quarantine,
                error=error_text(again.error),
                reason=again.reason,
                charge=again.charge,
                ended=asked.ended,
                events=told,
            )
        case _:
            assert_never(asked.decision)


def _told(event: JobEvent, parcel: Parcel) -> Told:
    return Told(parcel.put(_encode(event)), name_of(event), isinstance(event, JobCancelled) and event.by is not None)
