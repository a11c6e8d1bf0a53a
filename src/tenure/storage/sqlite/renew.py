"""The keeper's beat in SQL: extends leases, stores log lines and events, and updates the worker's record."""

from collections.abc import Sequence

import msgspec

from tenure.core.job import LogPosition, Owner, Ref
from tenure.core.lease import lease_end, renewed_limits
from tenure.core.partition import IDENTITY_LOST, PartitionState
from tenure.core.transition import progressed, refused
from tenure.storage.protocol import LOG_LINES_KEPT, CancelRequest, LeaseRenewal, RenewRequest, RenewResult
from tenure.storage.sqlite import claim_numbers, rows
from tenure.storage.sqlite.rows import Row
from tenure.storage.sqlite.settings import recorded, setting
from tenure.storage.sqlite.statements import query
from tenure.storage.sqlite.transaction import Transaction
from tenure.storage.sqlite.transitions import find_job

_STANDING = query("renew", "standing")
_EXTEND = query("renew", "extend")
_TRACE = query("renew", "trace")
_LOGGED = query("renew", "logged")
_LOG = query("renew", "log")
_TRIM_LOG = query("renew", "trim_log")
_ANNOUNCED = query("renew", "announced")
_SEEN = query("renew", "seen")
_FORGET_WORKER = query("renew", "forget_worker")
_FORGET_ORDERS = query("renew", "forget_orders")

_PARTITION = query("renew", "partition")
_BOUNDS = query("events", "bounds")
_IDENTIFY = query("renew", "identify")

_encode = msgspec.json.Encoder().encode


def renew(step: Transaction, beat: RenewRequest) -> RenewResult:
    """Record that an owner is alive, and extend every lease in the request that it still holds."""
    lost: list[tuple[Ref, int]] = []
    cancelling: list[CancelRequest] = []
    for asked in beat.renewals:
        of_run = asked.ref.queue, asked.ref.id, asked.fence, beat.owner.id
        row = step.one(_STANDING, of_run)
        if row is not None and not rows.is_sane(row[1:11]):
            # Reading the whole record repairs values that cannot be used in calculations.
            find_job(step, asked.ref)
            row = step.one(_STANDING, of_run)
        if row is None:
            _refuse(step, beat.owner, asked)
            lost.append((asked.ref, asked.fence))
            continue
        cancel_at, cancel_reason = _extend(step, asked, row)
        if cancel_at is not None:
            cancelling.append(CancelRequest(asked.ref, asked.fence, cancel_reason))
    for lane in beat.lanes:
        claim_numbers.hand_back(step, beat.owner, lane)
    partitions = () if beat.seen is None else (_partition(step, beat.seen),)
    orders = setting(step, "worker", beat.owner.id)
    _remember(step, beat, _announce(step, beat))
    told = tuple(name for name in ("quiet", "stop") if getattr(orders, name))
    return RenewResult(tuple(lost), tuple(cancelling), told, partitions=partitions)


def _partition(step: Transaction, states: Sequence[PartitionState]) -> PartitionState:
    """Return the state of the database, and write its identity again if it is missing."""
    step.write_down()
    seen = states[0] if states else PartitionState("*", "", 0)
    bounds, mended = step.one(_BOUNDS), False
    last: int = bounds[1] if bounds else 0
    while True:
        identity, created, at, seen_at = step.one(_PARTITION, (last, seen.last_event)) or (None, 0, None, None)
        if identity is not None or not states:
            # If it is missing, another worker may have seen it and writes it again. A worker that saw nothing waits.
            break
        # A file without an identity whose log is shorter too is another file. One that never had it needs no message.
        mended = bool(seen.identity) and seen.last_event <= last
        step.run(_IDENTIFY, ("identity", seen.identity if mended else None))
        step.run(_IDENTIFY, ("created", seen.created if mended else step.now))
    return PartitionState(
        "*",
        "" if identity is None else str(identity),
        created or 0,
        last,
        at or 0,
        continues=seen.last_event <= last and (not seen.last_event_at or seen_at in (None, seen.last_event_at)),
        trouble=IDENTITY_LOST if mended else "",
    )


def _refuse(step: Transaction, owner: Owner, asked: LeaseRenewal) -> None:
    found = find_job(step, asked.ref)
    # A run that this owner has settled meanwhile is not fenced off: beat and settlement crossed.
    if found is not None and found[1].settled_fence != asked.fence:
        step.record(refused(found[1], owner.id, asked.fence, "renew"))


def _extend(step: Transaction, asked: LeaseRenewal, row: Row) -> Row:
    """Extend the run of this row, if requested; return when and why it was asked to stop."""
    now = step.now
    seq, run, started, lease, start_grace, timeout, deadline, heartbeat_timeout, *rest = row
    run_until, progress_until, suspect_until, progress, note, cancel_at, cancel_reason = rest
    if asked.trace is not None:
        step.run(_TRACE, (asked.trace, seq))
    if not asked.extend:
        return cancel_at, cancel_reason
    if asked.log:
        _keep_log(step, seq, run, asked)
    run_until, progress_until = renewed_limits(
        now,
        lease=lease,
        timeout=timeout,
        deadline=deadline,
        heartbeat_timeout=heartbeat_timeout,
        run_until=run_until,
        progress_until=progress_until,
        ran=asked.ran,
        silent=0 if asked.sign and asked.silent is None else asked.silent,
    )
    end = lease_end(
        now,
        lease,
        run_until=run_until,
        progress_until=progress_until,
        # A run cannot have started later than now. If it seems so, the clock was set back since.
        not_before=min(started or now, now) + start_grace,
        exclusive=asked.exclusive,
    )
    if asked.progress is not None:
        progress, note = asked.progress, asked.note
        _tell(step, asked.ref, asked.progress, note)
    suspect_until = None if end > now else suspect_until
    step.run(_EXTEND, (now, end, suspect_until, run_until, progress_until, progress, note, seq))
    return cancel_at, cancel_reason


def _tell(step: Transaction, ref: Ref, progress: float, note: str | None) -> None:
    if recorded(step, ref.queue, "progressed") and (found := find_job(step, ref)) is not None:
        step.record(progressed(found[1], progress, note))


def _keep_log(step: Transaction, seq: int, run: int, asked: LeaseRenewal) -> None:
    last = LogPosition(*(step.one(_LOGGED, (seq,)) or ()))
    new: list[Row] = []
    for line in asked.log:
        if not line.number or (run, line.number) > (last.run, last.number):
            last = last.then(run, line.number)
            fields = rows.text(line.fields)
            new.append((seq, last.lines, step.now - line.ago, run, line.level, line.message, fields, line.number))
    step.many(_LOG, new)
    if last.lines > LOG_LINES_KEPT:
        step.run(_TRIM_LOG, {"seq": seq, "kept": LOG_LINES_KEPT})


def _announce(step: Transaction, beat: RenewRequest) -> int:
    """Record the events that were not recorded before.

    Returns the number of the last event, or 0 if the events have no numbers.
    """
    first = beat.first_event
    if not beat.events or first is None:
        for event in beat.events:
            step.record(event)
        return 0
    row = step.one(_ANNOUNCED, (beat.owner.id,))
    announced: int = row[0] if row else 0
    for number, event in enumerate(beat.events, first):
        if number > announced:
            step.record(event)
    return first + len(beat.events) - 1


def _remember(step: Transaction, beat: RenewRequest, announced: int) -> None:
    owner = beat.owner
    if beat.last:
        step.run(_FORGET_WORKER, (owner.id,))
        step.run(_FORGET_ORDERS, (owner.id,))
        step.settings.pop(("worker", owner.id), None)
    elif beat.worker is not None:
        step.run(
            _SEEN,
            {
                "owner": owner.id,
                "name": owner.name,
                "host": owner.host,
                "pid": owner.pid,
                "info": _encode(beat.worker).decode(),
                "now": step.now,
                "announced": announced,
            },
        )
