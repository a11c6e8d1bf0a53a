"""Encodes the requests of sweep, look, resign and reclaim for their scripts, and decodes the answers."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from tenure.core.job import Owner
from tenure.core.leadership import Term
from tenure.core.lease import Lease
from tenure.storage.protocol import CHORE_LIMITS, ReclaimResult, StalledLease, SweepRequest, SweepResult
from tenure.storage.redis.records import RequestEncoder, decode_record, decode_ref
from tenure.storage.redis.revise import decode_schedule


class _Sweep(Struct, omit_defaults=True, kw_only=True):
    owner: str
    scope: str
    term: int | None = None
    every: int
    grace: int
    max_skip: int | None = None
    chore: int
    done: int


class SweepPart(Struct, frozen=True):
    """One call's part of a sweep. `next`: the chore to continue with, and how much of it is done; None at the end.

    `skip`: microseconds for which the leader may skip the partition from now on.
    """

    swept: SweepResult
    next: tuple[int, int] | None = None
    skip: int = 0


BEGIN = 1, 0
"""The place where a sweep begins: the first chore."""


class _Resign(Struct):
    scope: str
    owner: str
    epoch: int


class _Reclaim(Struct):
    dead: str
    owner: str
    most: int


def encode_sweep(bid: SweepRequest, scope: str, place: tuple[int, int]) -> list[bytes]:
    """Return the request to elect the sweeper unless another one leads, and to do the chores from `place` on."""
    chore, done = place
    return RequestEncoder().finish(
        _Sweep(
            owner=bid.owner.id,
            scope=scope,
            term=bid.term,
            every=bid.every,
            grace=bid.grace,
            max_skip=bid.max_skip or None,
            chore=chore,
            done=done,
        ),
    )


def decode_sweep(reply: Any, bid: SweepRequest, scope: str) -> SweepPart:
    """Return what one call did."""
    if reply[0] is not None:
        return SweepPart(SweepResult(retry_in=reply[0]))
    _, epoch, stalled, did, more, troubles, due, next_tick, now, chore, done, skip = reply
    swept = SweepResult(
        () if bid.term is None else (Term(scope, bid.owner.id, epoch, bid.term),),
        None,
        tuple(_stalled_lease(*taken) for taken in stalled),
        dict(zip(CHORE_LIMITS, did, strict=True)),
        more=bool(more),
        troubles=tuple(trouble.decode() for trouble in troubles),
        due=tuple(decode_schedule(body) for body in due),
        next_tick=next_tick,
        now=now,
    )
    return SweepPart(swept, None if chore is None else (chore, done), skip)


def join_parts(parts: Sequence[SweepResult], *, more: bool = False) -> SweepResult:
    """Return the parts of a sweep as one; `more`: the sweep was not finished."""
    last = parts[-1]
    return SweepResult(
        last.terms,
        None,
        tuple(lease for part in parts for lease in part.stalled),
        {chore: sum(part.did[chore] for part in parts) for chore in CHORE_LIMITS},
        more=more or any(part.more for part in parts),
        troubles=tuple(trouble for part in parts for trouble in part.troubles),
        due=last.due,
        next_tick=last.next_tick,
        now=last.now,
    )


def encode_reclaim(dead: str, owner: Owner, most: int) -> list[bytes]:
    """Return the request to take over a dead owner's jobs, at most `most` of them."""
    return RequestEncoder().finish(_Reclaim(dead, owner.id, most))


def decode_reclaim(reply: Any, *, known: int) -> ReclaimResult:
    """Return the jobs that were taken. `known`: the number of jobs that the caller got from earlier answers."""
    stalled, more, had = reply
    return ReclaimResult(tuple(_stalled_lease(*taken) for taken in stalled), more=bool(more), incomplete=had > known)


def encode_resign(term: Term) -> list[bytes]:
    """Return the request to give up a term."""
    return RequestEncoder().finish(_Resign(term.scope, term.owner, term.epoch))


def _stalled_lease(
    ref: bytes, body: bytes, payload: bytes, reason: bytes, owner: bytes, silent_for: int
) -> StalledLease:
    word: Any = reason.decode()
    return StalledLease(
        Lease(decode_record(decode_ref(ref), body, payload)), word, owner.decode(errors="replace"), silent_for
    )
