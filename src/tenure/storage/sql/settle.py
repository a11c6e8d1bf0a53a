"""Settlements in SQL: the only way out of active, guarded by fence and owner."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from msgspec import MsgspecError

from tenure.core.decision import Finish, PutBack, RunEnd
from tenure.core.job import Key, Owner, Ref
from tenure.core.lifecycle import State
from tenure.core.settlement import Settlement, when_cancelling
from tenure.core.transition import refused
from tenure.storage.protocol import SettlementResult, job_topic, queue_topic, unknown_place
from tenure.storage.sql import concurrency_keys, fair_queue, rates, rows
from tenure.storage.sql.retention import forget_at_once
from tenure.storage.sql.rows import ByteSlices, Row
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sql.transitions import find_job, record_if_drained, the_job

_COMPLETED = RunEnd("completed")


def settle(tx: Transaction, owner: Owner, settlements: Sequence[Settlement]) -> tuple[SettlementResult, ...]:
    """Apply each settlement whose run is the current one, in order."""
    verdicts: list[SettlementResult] = []
    for batch in _without_repeats(settlements):
        completed = _complete(tx, owner, batch)
        page = _SettlementBatch()
        verdicts += [
            _completed(tx, asked) if (asked.ref.queue, asked.ref.id) in completed else _settle(tx, owner, asked, page)
            for asked in batch
        ]
        page.write(tx)
    concurrency_keys.release_freed(tx)
    forget_at_once(tx, settlements, verdicts)
    return tuple(verdicts)


class _SettlementBatch:
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
    if len({asked.ref for asked in settlements}) == len(settlements):
        yield list(settlements)
        return
    batch: list[Settlement] = []
    named: set[Ref] = set()
    for asked in settlements:
        if asked.ref in named:
            yield batch
            batch, named = [], set()
        batch.append(asked)
        named.add(asked.ref)
    if batch:
        yield batch


def _complete(tx: Transaction, owner: Owner, batch: Sequence[Settlement]) -> Collection[Row]:
    """Complete all plain completions of a batch in one statement; return the queues and ids of those jobs."""
    plain: list[tuple[object, ...]] = []
    results = ByteSlices()
    for asked in batch:
        match asked.decision:
            case Finish(state=State.COMPLETED, result=result, error=None, reason=None, charge=None, keep=keep) if (
                asked.ended == _COMPLETED
            ):
                kept_until = None if keep is None else tx.now + keep
                plain.append((asked.ref.queue, asked.ref.id, asked.fence, kept_until, *results.add(result)))
            case _:
                continue
    listed = rows.listed(plain)
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


def _completed(tx: Transaction, asked: Settlement) -> SettlementResult:
    """Record the counts, events and notifications of a completion that the statement has written."""
    queue = asked.ref.queue
    tx.count_move(queue, left="active", to="completed")
    if isinstance(asked.decision, Finish) and asked.decision.keep is not None:
        tx.count_move(queue, to="kept")
    tx.topics.append(job_topic(asked.ref))
    return _tell(tx, asked)


def _settle(tx: Transaction, owner: Owner, asked: Settlement, page: _SettlementBatch) -> SettlementResult:
    row = tx.one("exchange.standing", {"queue": asked.ref.queue, "id": asked.ref.id})
    if row is None:
        return SettlementResult(asked.ref, asked.fence, "gone")
    seq, state, fence, holder, cancel_at, named, boost = row[:7]
    if state != "active" or fence != asked.fence or holder != owner.id:
        return _refused(tx, owner, asked)
    if cancel_at is not None:
        asked = _when_cancelling(tx, asked)
    keys = _keys(named)
    if keys is None or not rows.is_sane(row[6:]):
        # Reading the whole record repairs values that cannot be used in calculations.
        job = the_job(tx, seq)
        boost, keys = job.boost, job.keys
    _note(tx, owner, asked, seq, boost, page)
    if keys:
        _leave(tx, asked, keys)
    return _tell(tx, asked)


def _keys(named: str | None) -> Sequence[Key] | None:
    """Return the keys that a row names, None if they are unreadable."""
    try:
        return rows.keys(str(named)) if named else ()
    except MsgspecError:
        return None


def _tell(tx: Transaction, asked: Settlement) -> SettlementResult:
    for event in asked.events:
        tx.record(event)
    record_if_drained(tx, asked.ref.queue)
    return SettlementResult(asked.ref, asked.fence, "done")


def _refused(tx: Transaction, owner: Owner, asked: Settlement) -> SettlementResult:
    found = find_job(tx, asked.ref)
    if found is None:
        return SettlementResult(asked.ref, asked.fence, "gone")
    _, job = found
    if job.settled_fence == asked.fence:
        return SettlementResult(asked.ref, asked.fence, "duplicate")
    tx.record(refused(job, owner.id, asked.fence, "settle"))
    return SettlementResult(asked.ref, asked.fence, "lost")


def _when_cancelling(tx: Transaction, asked: Settlement) -> Settlement:
    """Return the settlement that applies if the job was asked to stop."""
    found = find_job(tx, asked.ref)
    return asked if found is None else when_cancelling(asked, found[1])


def _note(tx: Transaction, owner: Owner, asked: Settlement, seq: int, boost: int, page: _SettlementBatch) -> None:
    ref, charge = asked.ref, asked.decision.charge
    values: dict[str, Any] = {
        "now": tx.now,
        "failures": charge == "failures",
        "stalls": charge == "stalls",
        "releases": charge == "releases",
        "ended": asked.ended.ended,
        "why": asked.ended.reason,
        "detail": asked.ended.detail,
        "seq": seq,
        "fence": asked.fence,
        "owner": owner.id,
        "error": rows.error_text(asked.decision.error),
        "reason": asked.decision.reason,
        "unreadable": rows.UNREADABLE_ERROR,
    }
    match asked.decision:
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
            page.finished.append(values)
        case PutBack(after=after, quarantine=quarantine, put_back_used=put_back_used, until_known=until_known):
            tx.count_move(ref.queue, left="active", to="delayed" if after else "waiting")
            values["parked_under"] = _park_until_known(tx, ref) if until_known else None
            tx.topics.append(queue_topic(ref.queue))
            values["after"] = after
            values["reached"] = tx.now if after else fair_queue.reached(tx, ref.queue, boost)
            values["quarantine"] = quarantine
            values["put_back_used"] = put_back_used
            page.put_back.append(values)
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


def _leave(tx: Transaction, asked: Settlement, keys: Sequence[Key]) -> None:
    """Free the concurrency keys of a run."""
    ref = asked.ref
    concurrency_keys.leave(tx, ref.queue, ref.id, keys)
    if isinstance(asked.decision, Finish):
        concurrency_keys.count(tx, ref.queue, keys, -1)
    concurrency_keys.offer(tx, ref.queue, keys)
