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
from tenure.storage.sqlite import concurrency_keys, fair_queue, rates, rows
from tenure.storage.sqlite.retention import forget_at_once
from tenure.storage.sqlite.rows import ByteSlices, Row
from tenure.storage.sqlite.statements import query
from tenure.storage.sqlite.transaction import Transaction
from tenure.storage.sqlite.transitions import find_job, tell_if_drained, the_job

_COMPLETE = query("exchange", "complete")
_STANDING = query("exchange", "standing")
_FINISH = query("exchange", "finish")
_PUT_BACK = query("exchange", "put_back")

_COMPLETED = RunEnd("completed")


def settle(step: Transaction, owner: Owner, settlements: Sequence[Settlement]) -> tuple[SettlementResult, ...]:
    """Apply each settlement whose run is the current one, in order."""
    verdicts: list[SettlementResult] = []
    for batch in _without_repeats(settlements):
        completed = _complete(step, owner, batch)
        page = _SettlementBatch()
        verdicts += [
            _completed(step, asked)
            if (asked.ref.queue, asked.ref.id) in completed
            else _settle(step, owner, asked, page)
            for asked in batch
        ]
        page.write(step)
    concurrency_keys.let_in(step)
    forget_at_once(step, settlements, verdicts)
    return tuple(verdicts)


class _SettlementBatch:
    """The changes of a batch of settlements, written statement by statement."""

    def __init__(self) -> None:
        self.finished: list[dict[str, Any]] = []
        self.put_back: list[dict[str, Any]] = []

    def write(self, step: Transaction) -> None:
        changed = step.many(_FINISH, self.finished) + step.many(_PUT_BACK, self.put_back)
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


def _complete(step: Transaction, owner: Owner, batch: Sequence[Settlement]) -> Collection[Row]:
    """Complete all plain completions of a batch in one statement; return the queues and ids of those jobs."""
    plain: list[tuple[object, ...]] = []
    results = ByteSlices()
    for asked in batch:
        match asked.decision:
            case Finish(state=State.COMPLETED, result=result, error=None, reason=None, charge=None, keep=keep) if (
                asked.ended == _COMPLETED
            ):
                kept_until = None if keep is None else step.now + keep
                plain.append((asked.ref.queue, asked.ref.id, asked.fence, kept_until, *results.add(result)))
            case _:
                continue
    listed = rows.listed(plain)
    if listed is None:
        return ()
    values = {
        "asked": listed,
        "results": results.joined(),
        "ended": _COMPLETED.ended,
        "owner": owner.id,
        "now": step.now,
    }
    return set(step.all(_COMPLETE, values))


def _completed(step: Transaction, asked: Settlement) -> SettlementResult:
    """Record the counts, events and notifications of a completion that the statement has written."""
    queue = asked.ref.queue
    step.moved(queue, left="active", to="completed")
    if isinstance(asked.decision, Finish) and asked.decision.keep is not None:
        step.moved(queue, to="kept")
    step.knocked.append(job_topic(asked.ref))
    return _tell(step, asked)


def _settle(step: Transaction, owner: Owner, asked: Settlement, page: _SettlementBatch) -> SettlementResult:
    row = step.one(_STANDING, (asked.ref.queue, asked.ref.id))
    if row is None:
        return SettlementResult(asked.ref, asked.fence, "gone")
    seq, state, fence, holder, cancel_at, named, boost = row[:7]
    if state != "active" or fence != asked.fence or holder != owner.id:
        return _refused(step, owner, asked)
    if cancel_at is not None:
        asked = _heeding_the_cancel(step, asked)
    keys = _keys(named)
    if keys is None or not rows.is_sane(row[6:]):
        # Reading the whole record repairs values that cannot be used in calculations.
        job = the_job(step, seq)
        boost, keys = job.boost, job.keys
    _note(step, owner, asked, seq, boost, page)
    if keys:
        _leave(step, asked, keys)
    return _tell(step, asked)


def _keys(named: str | None) -> Sequence[Key] | None:
    """Return the keys that a row names, None if they are unreadable."""
    try:
        return rows.keys(str(named)) if named else ()
    except MsgspecError:
        return None


def _tell(step: Transaction, asked: Settlement) -> SettlementResult:
    for event in asked.events:
        step.record(event)
    tell_if_drained(step, asked.ref.queue)
    return SettlementResult(asked.ref, asked.fence, "done")


def _refused(step: Transaction, owner: Owner, asked: Settlement) -> SettlementResult:
    found = find_job(step, asked.ref)
    if found is None:
        return SettlementResult(asked.ref, asked.fence, "gone")
    _, job = found
    if job.settled_fence == asked.fence:
        return SettlementResult(asked.ref, asked.fence, "duplicate")
    step.record(refused(job, owner.id, asked.fence, "settle"))
    return SettlementResult(asked.ref, asked.fence, "lost")


def _heeding_the_cancel(step: Transaction, asked: Settlement) -> Settlement:
    """Return the settlement that applies if the job was asked to stop."""
    found = find_job(step, asked.ref)
    return asked if found is None else when_cancelling(asked, found[1])


def _note(step: Transaction, owner: Owner, asked: Settlement, seq: int, boost: int, page: _SettlementBatch) -> None:
    ref, charge = asked.ref, asked.decision.charge
    told: dict[str, Any] = {
        "now": step.now,
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
            step.moved(ref.queue, left="active", to=state.value)
            if keep is not None and state is State.COMPLETED:
                step.moved(ref.queue, to="kept")
            if redrive_after is not None and state is State.FAILED:
                step.moved(ref.queue, to="ruled")
            told["state"] = state.value
            told["result"] = result
            told["kept_until"] = None if keep is None else step.now + keep
            told["redrive_at"] = None if redrive_after is None else step.now + redrive_after
            page.finished.append(told)
        case PutBack(after=after, quarantine=quarantine, put_back_used=put_back_used, until_known=until_known):
            step.moved(ref.queue, left="active", to="delayed" if after else "waiting")
            told["parked_under"] = _park_until_known(step, ref) if until_known else None
            step.knocked.append(queue_topic(ref.queue))
            told["after"] = after
            told["reached"] = step.now if after else fair_queue.reached(step, ref.queue, boost)
            told["quarantine"] = quarantine
            told["put_back_used"] = put_back_used
            page.put_back.append(told)
    step.knocked.append(job_topic(ref))


def _park_until_known(step: Transaction, ref: Ref) -> str:
    """Give back the time that a run took of its rates. Return the name that its job is parked under."""
    found = find_job(step, ref)
    if found is None:
        raise AssertionError(f"job {ref} is gone, though it is active")
    _, job = found
    rates.give_back(step, job)
    step.moved(ref.queue, to="parked")
    return unknown_place(job.task, job.policy.version)


def _leave(step: Transaction, asked: Settlement, keys: Sequence[Key]) -> None:
    """Free the concurrency keys of a run."""
    ref = asked.ref
    concurrency_keys.leave(step, ref.queue, ref.id, keys)
    if isinstance(asked.decision, Finish):
        concurrency_keys.count(step, ref.queue, keys, -1)
    concurrency_keys.offer(step, ref.queue, keys)
