"""Encodes the keeper's beat for the renew script, and decodes the script's answer."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tenure.clock import entropy
from tenure.core.events import Event, JobEvent
from tenure.core.job import Owner, Ref
from tenure.core.partition import IDENTITY_LOST, PartitionState
from tenure.storage.protocol import CancelRequest, LeaseRenewal, RenewRequest, RenewResult, WorkerInfo
from tenure.storage.redis.claim_numbers import EncodedLane
from tenure.storage.redis.records import RequestEncoder, ref_text

_encode = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode


RENEWED_AT_ONCE = 250
"""Maximum number of renewals in one call: a server needs some microseconds to read each."""

REQUEST_CHARS = 500_000
"""A request takes no more renewals after this many characters of traces: a server reads a whole request at once."""


class EncodedLogLine(Struct, omit_defaults=True, kw_only=True):
    """A log line as a script reads it; `fields` is JSON text."""

    level: str
    message: str
    fields: str | None = None
    ago: int = 0
    number: int = 0


class EncodedRenewal(Struct, omit_defaults=True, kw_only=True):
    """A renewal as a script reads it. `trace`: its place among the script's arguments."""

    ref: str
    fence: int
    sign: bool = False
    extend: bool
    exclusive: bool = False
    ran: int | None = None
    silent: int | None = None
    progress: float | None = None
    note: str | None = None
    log: list[EncodedLogLine] | None = None
    trace: int | None = None


class BeatEvent(Struct, omit_defaults=True):
    """An event of a beat: the place of its body among the arguments, and its job."""

    body: int
    ref: str | None = None


class Seen(Struct, omit_defaults=True):
    """What an owner last saw of a partition, as a script reads it."""

    identity: str | None = None
    created: int | None = None
    last_event: int | None = None
    last_event_at: int = 0


class _Renew(Struct, omit_defaults=True, kw_only=True):
    owner: Owner
    renewals: list[EncodedRenewal]
    worker: WorkerInfo | None = None
    events: list[BeatEvent]
    last: bool = False
    first_event: int | None = None
    lanes: list[EncodedLane] | None = None
    seen: Seen | None = None
    layout: str | None = None
    fresh: str | None = None


def ask_renew(beat: RenewRequest, scope: str, layout: str, lanes: Sequence[EncodedLane] = ()) -> list[bytes]:
    """Return the request to extend leases, to record their owner, and to hand back jobs of lost claims.

    `scope`: the partition's name. `layout`: the text to write if the partition has to be created.
    `lanes`: the lanes in which a claim's answer may have been lost.
    """
    asks = beat.seen is not None
    parcel = RequestEncoder()
    return parcel.sealed(
        _Renew(
            owner=beat.owner,
            renewals=[_renewing(asked, parcel) for asked in beat.renewals],
            worker=beat.worker,
            events=[_announced(event, parcel) for event in beat.events],
            last=beat.last,
            first_event=beat.first_event,
            lanes=list(lanes) or None,
            seen=_seen(beat.seen or (), scope) if asks else None,
            layout=layout if asks else None,
            fresh=new_identity() if asks else None,
        )
    )


def at_once(renewals: Sequence[LeaseRenewal]) -> tuple[LeaseRenewal, ...]:
    """Return the first of these renewals: as many as fit into a request that does not block the server for long."""
    size = 0
    for number, asked in enumerate(renewals):
        if size > REQUEST_CHARS or number == RENEWED_AT_ONCE:
            return tuple(renewals[:number])
        size += len(asked.trace or "")
    return tuple(renewals)


def answer_renew(reply: Any, beat: RenewRequest, scope: str) -> tuple[RenewResult, int, bool]:
    """Return the result, how many renewals the script had time for, and whether runs are left to be handed back."""
    answer: tuple[list[int], list[tuple[int, bytes | None]], list[bytes], int, int, Any] = reply
    lost, cancelling, orders, renewed, left, state = answer
    asked = [(renewal.ref, renewal.fence) for renewal in beat.renewals]
    pulse = RenewResult(
        tuple(asked[place - 1] for place in lost),
        tuple(_cancelling(asked[place - 1], reason) for place, reason in cancelling),
        tuple(order.decode() for order in orders),
        partitions=() if state is None else (_state(scope, *state),),
    )
    return pulse, renewed, bool(left)


def new_identity() -> str:
    """Return a random identity for a partition that may have to be created."""
    return f"{entropy().getrandbits(64):016x}"


def _seen(states: Sequence[PartitionState], scope: str) -> Seen:
    for state in states:
        if state.partition == scope:
            return Seen(state.identity or None, state.created or None, state.last_event, state.last_event_at)
    return Seen()


def _state(
    scope: str, identity: bytes, last_event: int, last_event_at: int, continues: int, mended: int
) -> PartitionState:
    name, _, created = identity.decode(errors="replace").partition(" ")
    return PartitionState(
        scope,
        name,
        int(created) if created.isdecimal() else 0,
        last_event,
        last_event_at,
        continues=bool(continues),
        trouble=IDENTITY_LOST if mended else "",
    )


def _renewing(asked: LeaseRenewal, parcel: RequestEncoder) -> EncodedRenewal:
    return EncodedRenewal(
        ref=ref_text(asked.ref),
        fence=asked.fence,
        sign=asked.sign,
        extend=asked.extend,
        exclusive=asked.exclusive,
        ran=asked.ran,
        silent=asked.silent,
        progress=asked.progress,
        note=asked.note,
        log=[
            EncodedLogLine(
                level=line.level,
                message=line.message,
                fields=_json(line.fields).decode() if line.fields else None,
                ago=line.ago,
                number=line.number,
            )
            for line in asked.log
        ]
        or None,
        trace=None if asked.trace is None else parcel.put(asked.trace.encode()),
    )


def _announced(event: Event, parcel: RequestEncoder) -> BeatEvent:
    ref = ref_text(Ref(event.queue, event.id)) if isinstance(event, JobEvent) else None
    return BeatEvent(parcel.put(_encode(event)), ref)


def _cancelling(asked: tuple[Ref, int], reason: bytes | None) -> CancelRequest:
    ref, fence = asked
    return CancelRequest(ref, fence, None if reason is None else reason.decode())
