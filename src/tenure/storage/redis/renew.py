"""Encodes the keeper's beat for the renew script, and decodes the script's answer."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tenure.clock import entropy
from tenure.core.events import Event, JobEvent
from tenure.core.figures import FiguresDelta, TaskCounts
from tenure.core.job import Owner, Ref
from tenure.core.partition import IDENTITY_LOST, PartitionState
from tenure.storage.protocol import CancelRequest, LeaseRenewal, RenewRequest, RenewResult, WorkerInfo
from tenure.storage.redis.claim_numbers import EncodedLane
from tenure.storage.redis.records import RequestEncoder, encode_ref

_encode = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode


RENEWED_AT_ONCE = 250
"""Maximum number of renewals in one call: a server needs some microseconds to read each."""

REQUEST_CHARS = 500_000
"""A request takes no more renewals after this many characters of traces and data: a server reads all of it at once."""


class EncodedLogLine(Struct, omit_defaults=True, kw_only=True):
    """A log line as a script reads it; `fields` is JSON text."""

    level: str
    message: str
    fields: str | None = None
    ago: int = 0
    number: int = 0


class EncodedRenewal(Struct, omit_defaults=True, kw_only=True):
    """A renewal as a script reads it. `data`, `trace`: their places among the script's arguments."""

    ref: str
    fence: int
    sign: bool = False
    extend: bool
    exclusive: bool = False
    ran: int | None = None
    silent: int | None = None
    progress: float | str | None = None
    note: str | None = None
    data: int | None = None
    data_number: int = 0
    log: list[EncodedLogLine] | None = None
    trace: int | None = None


class EncodedBeatEvent(Struct, omit_defaults=True):
    """An event of a beat: the place of its body among the arguments, and its job; or what a delta has counted."""

    body: int = 0
    ref: str | None = None
    counted: tuple[TaskCounts, ...] | None = None


class EncodedSeen(Struct, omit_defaults=True):
    """What an owner last saw of a partition, as a script reads it."""

    identity: str | None = None
    created: int | None = None
    last_event: int | None = None
    last_event_at: int = 0


class _Renew(Struct, omit_defaults=True, kw_only=True):
    owner: Owner
    renewals: list[EncodedRenewal]
    worker: WorkerInfo | None = None
    events: list[EncodedBeatEvent]
    last: bool = False
    first_event: int | None = None
    lanes: list[EncodedLane] | None = None
    seen: EncodedSeen | None = None
    layout: str | None = None
    fresh: str | None = None


def encode_renew(beat: RenewRequest, scope: str, layout: str, lanes: Sequence[EncodedLane] = ()) -> list[bytes]:
    """Return the request to extend leases, to record their owner, and to hand back jobs of lost claims.

    `scope`: the partition's name. `layout`: the text to write if the partition has to be created.
    `lanes`: the lanes in which a claim's answer may have been lost.
    """
    has_seen = beat.seen is not None
    encoder = RequestEncoder()
    return encoder.finish(
        _Renew(
            owner=beat.owner,
            renewals=[_encode_renewal(renewal, encoder) for renewal in beat.renewals],
            worker=beat.worker,
            events=[_encode_event(event, encoder) for event in beat.events],
            last=beat.last,
            first_event=beat.first_event,
            lanes=list(lanes) or None,
            seen=_encode_seen(beat.seen or (), scope) if has_seen else None,
            layout=layout if has_seen else None,
            fresh=new_identity() if has_seen else None,
        )
    )


def first_batch(renewals: Sequence[LeaseRenewal]) -> tuple[LeaseRenewal, ...]:
    """Return the first of these renewals: as many as fit into a request that does not block the server for long."""
    size = 0
    for number, renewal in enumerate(renewals):
        if size > REQUEST_CHARS or number == RENEWED_AT_ONCE:
            return tuple(renewals[:number])
        size += len(renewal.trace or "") + len(renewal.data or b"")
    return tuple(renewals)


def decode_renew(reply: Any, beat: RenewRequest, scope: str) -> tuple[RenewResult, int, bool]:
    """Return the result, how many renewals the script had time for, and whether runs are left to be handed back."""
    answer: tuple[list[int], list[tuple[int, bytes | None]], list[bytes], int, int, Any] = reply
    lost, cancelling, orders, renewed, left, state = answer
    names = [(renewal.ref, renewal.fence) for renewal in beat.renewals]
    result = RenewResult(
        tuple(names[place - 1] for place in lost),
        tuple(_cancel_request(names[place - 1], reason) for place, reason in cancelling),
        tuple(order.decode() for order in orders),
        partitions=() if state is None else (_partition_state(scope, *state),),
    )
    return result, renewed, bool(left)


def new_identity() -> str:
    """Return a random identity for a partition that may have to be created."""
    return f"{entropy().getrandbits(64):016x}"


def _encode_seen(states: Sequence[PartitionState], scope: str) -> EncodedSeen:
    for state in states:
        if state.partition == scope:
            return EncodedSeen(state.identity or None, state.created or None, state.last_event, state.last_event_at)
    return EncodedSeen()


def _partition_state(
    scope: str, identity: bytes, last_event: int, last_event_at: int, continues: int, identity_restored: int
) -> PartitionState:
    name, _, created = identity.decode(errors="replace").partition(" ")
    return PartitionState(
        scope,
        name,
        int(created) if created.isdecimal() else 0,
        last_event,
        last_event_at,
        continues=bool(continues),
        trouble=IDENTITY_LOST if identity_restored else "",
    )


def _encode_renewal(renewal: LeaseRenewal, encoder: RequestEncoder) -> EncodedRenewal:
    return EncodedRenewal(
        ref=encode_ref(renewal.ref),
        fence=renewal.fence,
        sign=renewal.sign,
        extend=renewal.extend,
        exclusive=renewal.exclusive,
        ran=renewal.ran,
        silent=renewal.silent,
        progress=renewal.progress,
        note=renewal.note,
        data=None if renewal.data is None else encoder.put(renewal.data),
        data_number=renewal.data_number,
        log=[
            EncodedLogLine(
                level=line.level,
                message=line.message,
                fields=_json(line.fields).decode() if line.fields else None,
                ago=line.ago,
                number=line.number,
            )
            for line in renewal.log
        ]
        or None,
        trace=None if renewal.trace is None else encoder.put(renewal.trace.encode()),
    )


def _encode_event(event: Event | FiguresDelta, encoder: RequestEncoder) -> EncodedBeatEvent:
    if isinstance(event, FiguresDelta):
        return EncodedBeatEvent(counted=event.counted)
    ref = encode_ref(Ref(event.queue, event.id)) if isinstance(event, JobEvent) else None
    return EncodedBeatEvent(encoder.put(_encode(event)), ref)


def _cancel_request(name: tuple[Ref, int], reason: bytes | None) -> CancelRequest:
    ref, fence = name
    return CancelRequest(ref, fence, None if reason is None else reason.decode())
