"""The keeper's beat in SQL: extends leases, stores log lines and events, and updates the worker's record."""

from collections.abc import Sequence
from typing import Any

import msgspec

from tenure.core.document import read_progress
from tenure.core.events import Event
from tenure.core.figures import FiguresDelta
from tenure.core.job import JobRecord, LogPosition, Owner, Ref
from tenure.core.lease import lease_end, renewed_limits
from tenure.core.lifecycle import State
from tenure.core.partition import IDENTITY_LOST, PartitionState
from tenure.core.transition import progressed, refused
from tenure.storage.protocol import LOG_LINES_KEPT, CancelRequest, LeaseRenewal, RenewRequest, RenewResult
from tenure.storage.sql import claim_numbers, rows
from tenure.storage.sql.columns import Row, is_sane
from tenure.storage.sql.lists import json_list, json_rows, without_repeats
from tenure.storage.sql.settings import records_event, setting
from tenure.storage.sql.transaction import Transaction, Values
from tenure.storage.sql.transitions import find_job

_LOG_COLUMNS = ("seq", "line", "at", "run", "level", "message", "fields", "number")

_encode = msgspec.json.Encoder().encode


def renew(tx: Transaction, beat: RenewRequest) -> RenewResult:
    """Record that an owner is alive, and extend every lease in the request that it still holds."""
    lost: list[tuple[Ref, int]] = []
    cancelling: list[CancelRequest] = []
    for batch in without_repeats(beat.renewals):
        runs = _runs(tx, beat.owner, batch)
        pending = _PendingWrites()
        for number, renewal in enumerate(batch):
            row = runs.get(number)
            if row is not None and not is_sane(row[1:10]):
                # Reading the whole record repairs values that cannot be used in calculations.
                find_job(tx, renewal.ref)
                row = _runs(tx, beat.owner, [renewal]).get(0)
            if row is None:
                _refuse(tx, beat.owner, renewal)
                lost.append((renewal.ref, renewal.fence))
                continue
            cancel_at, cancel_reason = _extend(tx, renewal, row, pending)
            if cancel_at is not None:
                cancelling.append(CancelRequest(renewal.ref, renewal.fence, cancel_reason))
        pending.write(tx)
    for lane in beat.lanes:
        claim_numbers.hand_back(tx, beat.owner, lane)
    partitions = () if beat.seen is None else (_partition(tx, beat.seen),)
    orders = setting(tx, "worker", beat.owner.id)
    _update_worker(tx, beat, _record_events(tx, beat))
    return RenewResult(tuple(lost), tuple(cancelling), orders.orders, partitions=partitions)


class _PendingWrites:
    """The changes of a batch of renewals. Each kind is written by one statement, except what handlers have reported.

    `logs`: the renewals that bring log lines, with the seq and the run.
    """

    def __init__(self) -> None:
        self.traces: list[tuple[int, str | None]] = []
        self.extended: list[tuple[object, ...]] = []
        self.reports: list[Values] = []
        self.logs: list[tuple[int, int, LeaseRenewal]] = []

    def write(self, tx: Transaction) -> None:
        """Write the changes."""
        if (traces := json_list(self.traces)) is not None:
            tx.run("renew.trace", {"traces": traces})
        else:
            tx.many("renew.trace_one", [{"seq": seq, "trace": trace} for seq, trace in self.traces])
        if self.logs:
            _keep_logs(tx, self.logs)
        if self.extended:
            tx.run("renew.extend", {"runs": json_rows(self.extended), "now": tx.now})
        tx.many("renew.report", self.reports)


def _runs(tx: Transaction, owner: Owner, batch: Sequence[LeaseRenewal]) -> dict[int, Row]:
    """Return by number what the renewal of each current run needs."""
    listed = json_list([(renewal.ref.queue, renewal.ref.id, renewal.fence) for renewal in batch])
    if listed is not None:
        return {row[0]: row[1:] for row in tx.all("renew.runs", {"runs": listed, "owner": owner.id})}
    # An id that contains a NUL is looked up alone.
    found = [(number, renewal, find_job(tx, renewal.ref)) for number, renewal in enumerate(batch)]
    return {
        number: _row(*known)
        for number, renewal, known in found
        if known is not None
        and (known[1].state, known[1].fence, known[1].owner) == (State.ACTIVE, renewal.fence, owner.id)
    }


def _row(seq: int, job: JobRecord) -> Row:
    return (
        *(seq, job.starts, job.started, job.stall.lease, job.stall.start_grace, job.timeout, job.deadline),
        *(job.heartbeat_timeout, job.run_until, job.progress_until, job.cancel_at, job.cancel_reason),
    )


def _partition(tx: Transaction, states: Sequence[PartitionState]) -> PartitionState:
    """Return the state of the database, and write its identity again if it is missing."""
    tx.flush()
    seen = states[0] if states else PartitionState("*", "", 0)
    bounds, mended = tx.one("events.bounds"), False
    trimmed, last = bounds or (0, 0)
    while True:
        identity, created, at, seen_at = tx.one("renew.partition", {"last": last, "seen": seen.last_event}) or (
            None,
            0,
            None,
            None,
        )
        if identity is not None or not states:
            # If it is missing, another worker may have seen it and writes it again. A worker that saw nothing waits.
            break
        # A file without an identity whose log is shorter too is another file. One that never had it needs no message.
        mended = bool(seen.identity) and seen.last_event <= last
        tx.run("renew.identify", {"key": "identity", "value": seen.identity if mended else None})
        tx.run("renew.identify", {"key": "created", "value": seen.created if mended else tx.now})
    # A promoted standby may skip numbers: a log that lost its end can show a higher last number.
    continues = seen.last_event <= trimmed if seen_at is None else seen.last_event_at in (0, seen_at)
    return PartitionState(
        "*",
        "" if identity is None else str(identity),
        created or 0,
        last,
        at or 0,
        continues=continues,
        trouble=IDENTITY_LOST if mended else "",
    )


def _refuse(tx: Transaction, owner: Owner, renewal: LeaseRenewal) -> None:
    found = find_job(tx, renewal.ref)
    # A run that this owner has settled meanwhile is not fenced off: beat and settlement crossed.
    if found is not None and found[1].settled_fence != renewal.fence:
        tx.record(refused(found[1], owner.id, renewal.fence, "renew"))


def _extend(tx: Transaction, renewal: LeaseRenewal, row: Row, pending: _PendingWrites) -> Sequence[Any]:
    """Extend the run of this row, if requested; return when and why it was asked to stop."""
    now = tx.now
    seq, run, started, lease, start_grace, timeout, deadline, heartbeat_timeout, run_until, progress_until, *cancel = (
        row
    )
    if renewal.trace is not None:
        pending.traces.append((seq, renewal.trace))
    if not renewal.extend:
        return cancel
    if renewal.log:
        pending.logs.append((seq, run, renewal))
    run_until, progress_until = renewed_limits(
        now,
        lease=lease,
        timeout=timeout,
        deadline=deadline,
        heartbeat_timeout=heartbeat_timeout,
        run_until=run_until,
        progress_until=progress_until,
        ran=renewal.ran,
        silent=0 if renewal.sign and renewal.silent is None else renewal.silent,
    )
    end = lease_end(
        now,
        lease,
        run_until=run_until,
        progress_until=progress_until,
        # A run cannot have started later than now. If it seems so, the clock was set back since.
        not_before=min(started or now, now) + start_grace,
        exclusive=renewal.exclusive,
    )
    if renewal.progress is not None:
        _record_progress(tx, renewal.ref, renewal.progress, renewal.note)
    pending.extended.append((seq, end, run_until, progress_until))
    if renewal.progress is not None or renewal.data is not None:
        pending.reports.append(
            {
                "progress": renewal.progress,
                "note": renewal.note,
                "data": renewal.data,
                "data_number": 0 if renewal.data is None else renewal.data_number,
                "seq": seq,
            }
        )
    return cancel


def _record_progress(tx: Transaction, ref: Ref, progress: float | str, note: str | None) -> None:
    if not records_event(tx, ref.queue, "progressed"):
        return
    value, found = read_progress(progress), find_job(tx, ref)
    if value is not None and found is not None:
        tx.record(progressed(found[1], value, note))


def _keep_logs(tx: Transaction, logs: Sequence[tuple[int, int, LeaseRenewal]]) -> None:
    """Store the log lines that were not stored before, and delete the oldest lines of long logs."""
    logged = tx.all("renew.logged", {"seqs": json_rows([seq for seq, _, _ in logs])})
    positions = {seq: LogPosition(*position) for seq, *position in logged}
    new: list[tuple[object, ...]] = []
    surplus: list[Values] = []
    for seq, run, renewal in logs:
        last = positions.get(seq, LogPosition())
        for line in renewal.log:
            if not line.number or (run, line.number) > (last.run, last.number):
                last = last.then(run, line.number)
                words = line.level, line.message, rows.text(line.fields)
                new.append((seq, last.lines, tx.now - line.ago, run, *words, line.number))
        if last.lines > LOG_LINES_KEPT:
            surplus.append({"seq": seq, "kept": LOG_LINES_KEPT})
    if (lines := json_list(new)) is not None:
        tx.run("renew.log", {"lines": lines})
    else:
        tx.many("renew.log_one", [dict(zip(_LOG_COLUMNS, values, strict=True)) for values in new])
    tx.many("renew.trim_log", surplus)


def _record_events(tx: Transaction, beat: RenewRequest) -> int:
    """Record the events, and add the deltas, that were not received before.

    Returns the number of the last event, or 0 if the events have no numbers.
    """
    first = beat.first_event
    if not beat.events or first is None:
        for event in beat.events:
            _record(tx, event)
        return 0
    row = tx.one("renew.announced", {"owner": beat.owner.id})
    announced: int = row[0] if row else 0
    for number, event in enumerate(beat.events, first):
        if number > announced:
            _record(tx, event)
    return first + len(beat.events) - 1


def _record(tx: Transaction, event: Event | FiguresDelta) -> None:
    if isinstance(event, FiguresDelta):
        tx.count_figures(event.counted)
    else:
        tx.record(event)


def _update_worker(tx: Transaction, beat: RenewRequest, announced: int) -> None:
    owner = beat.owner
    if beat.last:
        tx.run("renew.delete_worker", {"owner": owner.id})
        tx.run("renew.delete_commands", {"owner": owner.id})
        tx.settings.pop(("worker", owner.id), None)
    elif beat.worker is not None:
        tx.run(
            "renew.update_worker",
            {
                "owner": owner.id,
                "name": owner.name,
                "host": owner.host,
                "pid": owner.pid,
                "info": _encode(beat.worker).decode(),
                "now": tx.now,
                "announced": announced,
            },
        )
