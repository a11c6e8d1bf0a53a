"""Settlements in SQL: the only way out of active, guarded by fence and owner."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from tenure.core.decision import Finish, PutBack, RunEnd
from tenure.core.job import Key, Owner, Ref
from tenure.core.lifecycle import State
from tenure.core.settlement import Settlement, when_cancelling
from tenure.core.transition import refused
from tenure.storage.protocol import SettlementResult, job_topic, queue_topic, unknown_place
from tenure.storage.sql import concurrency_keys, fair_queue, rates, rows
from tenure.storage.sql.columns import Row, is_sane
from tenure.storage.sql.lists import ByteSlices, json_list
from tenure.storage.sql.retention import delete_surplus
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sql.transitions import find_job, job_at, record_if_drained

_COMPLETED = RunEnd("completed")


def settle(tx: Transaction, owner: Owner, settlements: Sequence[Settlement]) -> tuple[SettlementResult, ...]:
    """Apply each settlement whose run is the current one, in order."""
    verdicts: list[SettlementResult] = []
    for batch in _without_repeats(settlements):
        completed = _complete(tx, owner, batch)
        pending = _PendingWrites()
        verdicts += [
            _completed(tx, settlement)
            if (settlement.ref.queue, settlement.ref.id) in completed
            else _settle(tx, owner, settlement, pending)
            for settlement in batch
        ]
        pending.write(tx)
    concurrency_keys.release_freed(tx)
    delete_surplus(tx, settlements, verdicts)
    return tuple(verdicts)


class _PendingWrites:
    """The changes of a batch of settlements, written statement by statement."""

    def __init__(self) -> None:
        self.finished: list[dict[str, Any]] = []
        self.put_back: list[dict[str, Any]] = []

    def write(self, tx: Transaction) -> None:
        changed = tx.many("exchange.finish", self.finished) + tx.many("exchange.put_back", self.put_back)
        if changed != (held := len(self.finished) + len(self.put_back)):
            raise AssertionError(f"{held} runs are held, but {changed} were settled")


def _without_repeats(settlements: Sequence[Settlement]) -> Iterator[list[Settlement]]:
    """Yield batches of settlements in which no job occurs twice: a later one must see the earlier one's effect."""
    if len({settlement.ref for settlement in settlements}) == len(settlements):
        yield list(settlements)
        return
    batch: list[Settlement] = []
    named: set[Ref] = set()
    for settlement in settlements:
        if settlement.ref in named:
            yield batch
            batch, named = [], set()
        batch.append(settlement)
        named.add(settlement.ref)
    if batch:
        yield batch


def _complete(tx: Transaction, owner: Owner, batch: Sequence[Settlement]) -> Collection[Row]:
    """Complete all plain completions of a batch in one statement; return the queues and ids of those jobs."""
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
        return ()
    values = {
        "runs": listed,
        "results": results.joined(),
        "ended": _COMPLETED.ended,
        "owner": owner.id,
        "now": tx.now,
    }
    return set(tx.all("exchange.complete", values))


def _completed(tx: Transaction, settlement: Settlement) -> SettlementResult:
    """Record the counts, events and notifications of a completion that the statement has written."""
    queue = settlement.ref.queue
    tx.count_move(queue, left="active", to="completed")
    if isinstance(settlement.decision, Finish) and settlement.decision.keep is not None:
        tx.count_move(queue, to="kept")
    tx.topics.append(job_topic(settlement.ref))
    return _record_events(tx, settlement)


def _settle(tx: Transaction, owner: Owner, settlement: Settlement, pending: _PendingWrites) -> SettlementResult:
    row = tx.one("exchange.run", {"queue": settlement.ref.queue, "id": settlement.ref.id})
    if row is None:
        return SettlementResult(settlement.ref, settlement.fence, "gone")
    seq, state, fence, holder, cancel_at, named, boost = row[:7]
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
        boost, keys = job.boost, job.keys
    _collect(tx, owner, settlement, seq, boost, pending)
    if keys:
        _release_keys(tx, settlement, keys)
    return _record_events(tx, settlement)


def _keys(named: str | None) -> Sequence[Key] | None:
    """Return the keys that a row names, None if they are unreadable."""
    try:
        return rows.keys(str(named)) if named else ()
    except rows.UNREADABLE:
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
    tx: Transaction, owner: Owner, settlement: Settlement, seq: int, boost: int, pending: _PendingWrites
) -> None:
    ref, charge = settlement.ref, settlement.decision.charge
    values: dict[str, Any] = {
        "now": tx.now,
        "failures": charge == "failures",
        "stalls": charge == "stalls",
        "releases": charge == "releases",
        "ended": settlement.ended.ended,
        "why": settlement.ended.reason,
        "detail": settlement.ended.detail,
        "seq": seq,
        "fence": settlement.fence,
        "owner": owner.id,
        "error": rows.error_text(settlement.decision.error),
        "reason": settlement.decision.reason,
        "unreadable": rows.UNREADABLE_ERROR,
    }
    match settlement.decision:
        case Finish(state=state, result=result, keep=keep, redrive_after=redrive_after):
            tx.count_move(ref.queue, left="active", to=state.value)
            if keep is not None and state is State.COMPLETED:
                tx.count_move(ref.queue, to="kept")
            if redrive_after is not None and state is State.FAILED:
                tx.count_move(ref.queue, to="ruled")
            values["state"] = state.value
            values["result"] = result
            values["kept_until"] = None if keep is None else tx.now + keep
            values["redrive_at"] = None if redrive_after is None else tx.now + redrive_after
            pending.finished.append(values)
        case PutBack(after=after, quarantine=quarantine, put_back_used=put_back_used, until_known=until_known):
            tx.count_move(ref.queue, left="active", to="delayed" if after else "waiting")
            values["parked_under"] = _park_until_known(tx, ref) if until_known else None
            tx.topics.append(queue_topic(ref.queue))
            values["after"] = after
            values["reached"] = tx.now if after else fair_queue.reached(tx, ref.queue, boost)
            values["quarantine"] = quarantine
            values["put_back_used"] = put_back_used
            pending.put_back.append(values)
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


def _release_keys(tx: Transaction, settlement: Settlement, keys: Sequence[Key]) -> None:
    """Free the concurrency keys of a run."""
    ref = settlement.ref
    concurrency_keys.release(tx, ref.queue, ref.id, keys)
    if isinstance(settlement.decision, Finish):
        concurrency_keys.count(tx, ref.queue, keys, -1)
    concurrency_keys.mark_freed(tx, ref.queue, keys)
