"""Settlements in SQL: the only way out of active, guarded by fence and owner."""

from collections.abc import Sequence

from tenure.core.decision import Finish, PutBack, RunEnd, Suspend
from tenure.core.job import JobRecord, Key, Owner, Ref
from tenure.core.lifecycle import State
from tenure.core.settlement import Settlement, when_cancelling
from tenure.core.transition import refused
from tenure.errors import FlowError
from tenure.storage.protocol import SettlementResult, job_topic, queue_topic, unknown_place
from tenure.storage.sql import concurrency_keys, fair_queue, rates, rows
from tenure.storage.sql.columns import Row, is_sane
from tenure.storage.sql.lists import ByteSlices, json_list, json_rows, without_repeats
from tenure.storage.sql.retention import delete_surplus
from tenure.storage.sql.transaction import Transaction, Values
from tenure.storage.sql.transitions import find_job, job_at, record_if_drained

_COMPLETED = RunEnd("completed")


def settle(tx: Transaction, owner: Owner, settlements: Sequence[Settlement]) -> tuple[SettlementResult, ...]:
    """Apply each settlement whose run is the current one, in order."""
    verdicts: list[SettlementResult] = []
    for batch in without_repeats(settlements):
        completed = _complete(tx, owner, batch)
        runs: dict[Ref, Row] = {}
        if len(completed) < len(batch):
            runs = _runs(tx, [part.ref for part in batch if (part.ref.queue, part.ref.id) not in completed])
        pending = _PendingWrites()
        verdicts += [
            _settle(tx, owner, settlement, runs.get(settlement.ref), pending)
            if (row := completed.get((settlement.ref.queue, settlement.ref.id))) is None
            else _completed(tx, settlement, row, pending)
            for settlement in batch
        ]
        pending.write(tx, owner)
    concurrency_keys.release_freed(tx)
    delete_surplus(tx, settlements, verdicts)
    return tuple(verdicts)


class _PendingWrites:
    """The changes of a batch of settlements. Each kind is written by one statement.

    `texts`: the reasons and details that contain a NUL, which a list cannot hold. `slots`: of the runs that hold
    concurrency keys. `keys`: the keys of these runs, with the queue, and whether the job has ended.
    """

    def __init__(self) -> None:
        self.finished: list[tuple[object, ...]] = []
        self.put_back: list[tuple[object, ...]] = []
        self.texts: list[Values] = []
        self.results = ByteSlices()
        self.slots: list[concurrency_keys.Slot] = []
        self.keys: list[tuple[str, Sequence[Key], bool]] = []

    def release(self, seq: int, settlement: Settlement, keys: Sequence[Key]) -> None:
        """Free the concurrency keys of a run."""
        queue = settlement.ref.queue
        self.slots += concurrency_keys.slots_of(seq, queue, keys)
        self.keys.append((queue, keys, isinstance(settlement.decision, Finish)))

    def write(self, tx: Transaction, owner: Owner) -> None:
        """Write the changes."""
        values: dict[str, object] = {"owner": owner.id, "now": tx.now, "unreadable": rows.UNREADABLE_ERROR}
        changed = 0
        if self.finished:
            values["results"] = self.results.joined()
            changed += tx.run("exchange.finish", values | {"runs": json_rows(self.finished)})
        if self.put_back:
            changed += tx.run("exchange.put_back", values | {"runs": json_rows(self.put_back)})
        if changed != (held := len(self.finished) + len(self.put_back)):
            raise AssertionError(f"{held} runs are held, but {changed} were settled")
        tx.many("exchange.set_texts", self.texts)
        concurrency_keys.delete_slots(tx, self.slots)
        for queue, keys, ended in self.keys:
            if ended:
                concurrency_keys.count(tx, queue, keys, -1)
            concurrency_keys.mark_freed(tx, queue, keys)


def _runs(tx: Transaction, refs: Sequence[Ref]) -> dict[Ref, Row]:
    """Return what a settlement needs of each of these jobs that exists."""
    listed = json_list([(ref.queue, ref.id) for ref in refs])
    if listed is not None:
        return {refs[row[0]]: row[1:] for row in tx.all("exchange.runs", {"jobs": listed})}
    # An id that contains a NUL is looked up alone.
    found = [(ref, find_job(tx, ref)) for ref in refs]
    return {ref: _row(*job) for ref, job in found if job is not None}


def _row(seq: int, job: JobRecord) -> Row:
    return (
        *(seq, job.state.value, job.fence, job.owner, job.cancel_at, rows.text(job.keys)),
        *(job.boost, job.failures, job.stalls, job.releases, job.score),
    )


def _complete(tx: Transaction, owner: Owner, batch: Sequence[Settlement]) -> dict[Row, Row]:
    """Complete all plain completions of a batch in one statement.

    Returns by queue and id the rows of those jobs: queue, id, seq, and concurrency keys.
    """
    plain: list[tuple[object, ...]] = []
    results = ByteSlices()
    for settlement in batch:
        match settlement.decision:
            case Finish(state=State.COMPLETED, result=result, error=None, reason=None, charge=None, keep=keep) if (
                settlement.ended == _COMPLETED
            ):
                kept_until = None if keep is None else tx.now + keep
                plain.append(
                    (settlement.ref.queue, settlement.ref.id, settlement.fence, kept_until, *results.add(result))
                )
            case _:
                continue
    listed = json_list(plain)
    if listed is None:
        return {}
    values = {
        "runs": listed,
        "results": results.joined(),
        "ended": _COMPLETED.ended,
        "owner": owner.id,
        "now": tx.now,
    }
    return {row[:2]: row for row in tx.all("exchange.complete", values)}


def _completed(tx: Transaction, settlement: Settlement, row: Row, pending: _PendingWrites) -> SettlementResult:
    """Record the counts, events and notifications of a completion that the statement has written."""
    queue = settlement.ref.queue
    _, _, seq, named = row
    if named is not None:
        keys = _keys(named)
        # Reading the whole record repairs unreadable keys.
        pending.release(seq, settlement, job_at(tx, seq).keys if keys is None else keys)
    tx.count_move(queue, left="active", to="completed", since=tx.now)
    if isinstance(settlement.decision, Finish) and settlement.decision.keep is not None:
        tx.count_move(queue, to="kept")
    tx.topics.append(job_topic(settlement.ref))
    return _record_events(tx, settlement)


def _settle(
    tx: Transaction, owner: Owner, settlement: Settlement, row: Row | None, pending: _PendingWrites
) -> SettlementResult:
    if row is None:
        return SettlementResult(settlement.ref, settlement.fence, "gone")
    seq, state, fence, holder, cancel_at, named, boost, *_, score = row
    if state != "active" or fence != settlement.fence or holder != owner.id:
        return _refused(tx, owner, settlement)
    if cancel_at is not None:
        settlement = _when_cancelling(tx, settlement)
    if settlement.limit is not None:
        rates.limit(tx, job_at(tx, seq), settlement.limit)
    keys = _keys(named)
    if keys is None or not is_sane(row[6:]):
        # Reading the whole record repairs values that cannot be used in calculations.
        job = job_at(tx, seq)
        boost, keys, score = job.boost, job.keys, job.score
    _collect(tx, settlement, seq, boost, score, pending)
    if keys:
        pending.release(seq, settlement, keys)
    return _record_events(tx, settlement)


def _keys(named: str | bytes | None) -> Sequence[Key] | None:
    """Return the keys that a row names, None if they are unreadable."""
    try:
        return rows.keys(named if isinstance(named, bytes) else str(named)) if named else ()
    except (*rows.UNREADABLE, UnicodeDecodeError):
        return None


def _record_events(tx: Transaction, settlement: Settlement) -> SettlementResult:
    for event in settlement.events:
        tx.record(event)
    record_if_drained(tx, settlement.ref.queue)
    return SettlementResult(settlement.ref, settlement.fence, "done")


def _refused(tx: Transaction, owner: Owner, settlement: Settlement) -> SettlementResult:
    found = find_job(tx, settlement.ref)
    if found is None:
        return SettlementResult(settlement.ref, settlement.fence, "gone")
    _, job = found
    if job.settled_fence == settlement.fence:
        return SettlementResult(settlement.ref, settlement.fence, "duplicate")
    tx.record(refused(job, owner.id, settlement.fence, "settle"))
    return SettlementResult(settlement.ref, settlement.fence, "lost")


def _when_cancelling(tx: Transaction, settlement: Settlement) -> Settlement:
    """Return the settlement that applies if the job was settlement to stop."""
    found = find_job(tx, settlement.ref)
    return settlement if found is None else when_cancelling(settlement, found[1])


def _collect(
    tx: Transaction, settlement: Settlement, seq: int, boost: int, score: int, pending: _PendingWrites
) -> None:
    if isinstance(settlement.decision, Suspend):
        raise FlowError("a run is suspended, and SQL storages do not keep flows yet")
    ref, charge = settlement.ref, settlement.decision.charge
    run = seq, settlement.fence
    reason, cause, detail = settlement.decision.reason, settlement.ended.reason, settlement.ended.detail
    if "\0" in f"{reason}{cause}{detail}":
        pending.texts.append({"seq": seq, "reason": reason, "why": cause, "detail": detail})
        reason = cause = detail = None
    why = rows.error_text(settlement.decision.error), reason
    charged = tuple(int(charge == name) for name in ("failures", "stalls", "releases"))
    ended = settlement.ended.ended, cause, detail
    match settlement.decision:
        case Finish(state=state, result=result, keep=keep, redrive_after=redrive_after, fault=fault):
            tx.count_move(ref.queue, left="active", to=state.value, since=tx.now)
            if keep is not None and state is State.COMPLETED:
                tx.count_move(ref.queue, to="kept")
            if redrive_after is not None and state is State.FAILED:
                tx.count_move(ref.queue, to="ruled")
            kept_until = None if keep is None else tx.now + keep
            redrive_at = None if redrive_after is None else tx.now + redrive_after
            place = pending.results.add(result)
            pending.finished.append((*run, state.value, kept_until, redrive_at, *place, *why, fault, *charged, *ended))
        case PutBack(after=after, quarantine=quarantine, put_back_used=put_back_used, until_known=until_known):
            parked_under = _park_until_known(tx, ref) if until_known else None
            tx.topics.append(queue_topic(ref.queue))
            reached = tx.now if after else fair_queue.reached(tx, ref.queue, boost)
            to = "delayed" if after else "waiting"
            tx.count_move(ref.queue, left="active", to=to, since=min(score, reached - boost))
            terms = int(quarantine), int(put_back_used)
            pending.put_back.append((*run, after, parked_under, reached, *why, *charged, *terms, *ended))
    tx.topics.append(job_topic(ref))


def _park_until_known(tx: Transaction, ref: Ref) -> str:
    """Give back the time that a run took of its rates. Return the name that its job is parked under."""
    found = find_job(tx, ref)
    if found is None:
        raise AssertionError(f"job {ref} is gone, though it is active")
    _, job = found
    rates.give_back(tx, job)
    tx.count_move(ref.queue, to="parked")
    return unknown_place(job.task, job.policy.version)
