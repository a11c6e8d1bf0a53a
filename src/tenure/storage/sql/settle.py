"""Settlements in SQL: the only way out of active, guarded by fence and owner."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from tenure.core.decision import Finish, PutBack, RunEnd, Suspend
from tenure.core.job import JobRecord, Key, Owner, Ref
from tenure.core.lifecycle import State
from tenure.core.settlement import Settlement, when_cancelling
from tenure.core.transition import refused
from tenure.core.waiting import Dependent, Links
from tenure.storage.names import job_topic, queue_topic, unknown_place
from tenure.storage.requests import SettlementResult
from tenure.storage.sql import concurrency_keys, fair_queue, rates, rows, waiting
from tenure.storage.sql.columns import Row, is_sane
from tenure.storage.sql.lists import ByteSlices, json_list, json_rows, without_repeats
from tenure.storage.sql.retention import delete_surplus
from tenure.storage.sql.transaction import End, Transaction, Values
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
        for number, settlement in enumerate(batch, 1):
            row = completed.get((settlement.ref.queue, settlement.ref.id))
            if row is None:
                verdicts.append(_settle(tx, owner, settlement, runs.get(settlement.ref), pending))
            else:
                verdicts.append(_completed(tx, settlement, row, pending))
            if pending.linked and not (number < len(batch) and _joins(pending.linked[-1], batch[number], completed)):
                # What follows from it comes before the next settlement.
                pending.write(tx, owner)
                _carry_out(tx, pending.linked)
                pending = _PendingWrites()
        pending.write(tx, owner)
    concurrency_keys.release_freed(tx)
    delete_surplus(tx, settlements, verdicts)
    return tuple(verdicts)


@dataclass(frozen=True)
class _Linked:
    """What follows from the settlement of a job with links.

    `suspended`: the seq of a job whose wait is then judged. `end`: the dependents that are then notified.
    """

    queue: str
    suspended: int | None = None
    end: End | None = None

    @property
    def only(self) -> Dependent | None:
        """The only dependent of a completed job."""
        return _only(self.end.dependents) if self.end is not None and self.end.completed else None


def _only(dependents: Sequence[Dependent]) -> Dependent | None:
    return dependents[0] if len(dependents) == 1 else None


def _joins(linked: _Linked, following: Settlement, completed: Mapping[Row, Row]) -> bool:
    """Return True if the next settlement completes a job of the same queue, and notifies only the same box, too.

    So the members of a group that complete in one call cost one evaluation of the group.
    """
    mine, row = linked.only, completed.get((following.ref.queue, following.ref.id))
    if mine is None or row is None or following.ref.queue != linked.queue or row[-1] is None:
        return False
    links: Links = row[-1]
    other = _only(links.dependents)
    return other is not None and (other.to, other.box) == (mine.to, mine.box)


def _carry_out(tx: Transaction, linked: Sequence[_Linked]) -> None:
    """Judge the job that was suspended, or notify the dependents of those that have ended."""
    first = linked[0]
    if first.suspended is not None:
        waiting.judge(tx, first.suspended, job_at(tx, first.suspended))
    if first.end is not None and len(linked) == 1:
        tx.deliveries.ends.append(first.end)
        waiting.carry_out_ends(tx)
    elif first.end is not None:
        waiting.complete_all(tx, [one.only for one in linked if one.only is not None])
    record_if_drained(tx, first.queue)


class _PendingWrites:
    """The changes of a batch of settlements. Each kind is written by one statement.

    `texts`: the reasons and details that contain a NUL, which a list cannot hold. `slots`: of the runs that hold
    concurrency keys. `keys`: the keys of these runs, with the queue, and whether the job has ended. `suspended`: the
    values of each suspension. `linked`: what follows from the last settlements, if their jobs have links.
    """

    def __init__(self) -> None:
        self.finished: list[tuple[object, ...]] = []
        self.put_back: list[tuple[object, ...]] = []
        self.texts: list[Values] = []
        self.results = ByteSlices()
        self.slots: list[concurrency_keys.Slot] = []
        self.keys: list[tuple[str, Sequence[Key], bool]] = []
        self.suspended: list[Values] = []
        self.linked: list[_Linked] = []

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
        changed += sum(tx.run("waiting.suspend", {**values, **one}) for one in self.suspended)
        if changed != (held := len(self.finished) + len(self.put_back) + len(self.suspended)):
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
        *(seq, job.state.value, job.fence, job.owner, job.cancel_at, rows.text(job.keys), rows.links_text(job.links)),
        *(job.boost, job.failures, job.stalls, job.releases, job.score),
    )


def _complete(tx: Transaction, owner: Owner, batch: Sequence[Settlement]) -> dict[Row, Row]:
    """Complete all plain completions of a batch in one statement.

    Returns by queue and id the rows of those jobs: queue, id, seq, concurrency keys, and links.
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
    return {row[:2]: (*row[:4], _links(tx, *row[2:5:2])) for row in tx.all("exchange.complete", values)}


def _completed(tx: Transaction, settlement: Settlement, row: Row, pending: _PendingWrites) -> SettlementResult:
    """Record the counts, events and notifications of a completion that the statement has written."""
    queue = settlement.ref.queue
    _, _, seq, named, linked = row
    if named is not None:
        keys = _keys(named)
        # Reading the whole record repairs unreadable keys.
        pending.release(seq, settlement, job_at(tx, seq).keys if keys is None else keys)
    tx.count_move(queue, left="active", to="completed", since=tx.now)
    if isinstance(settlement.decision, Finish) and settlement.decision.keep is not None:
        tx.count_move(queue, to="kept")
    tx.topics.append(job_topic(settlement.ref))
    return _record_events(tx, settlement, _note_links(settlement, seq, linked, pending))


def _settle(
    tx: Transaction, owner: Owner, settlement: Settlement, row: Row | None, pending: _PendingWrites
) -> SettlementResult:
    if row is None:
        return SettlementResult(settlement.ref, settlement.fence, "gone")
    seq, state, fence, holder, cancel_at, named, linked, boost, *_, score = row
    if state != "active" or fence != settlement.fence or holder != owner.id:
        return _refused(tx, owner, settlement)
    if cancel_at is not None:
        settlement = _when_cancelling(tx, settlement)
    if settlement.limit is not None:
        rates.limit(tx, job_at(tx, seq), settlement.limit)
    keys = _keys(named)
    if keys is None or not is_sane(row[7:]):
        # Reading the whole record repairs values that cannot be used in calculations.
        job = job_at(tx, seq)
        boost, keys, score = job.boost, job.keys, job.score
    if isinstance(settlement.decision, Suspend):
        _collect_suspension(tx, settlement, settlement.decision, seq, pending)
    else:
        _collect(tx, settlement, settlement.decision, seq, boost, score, pending)
    if keys:
        pending.release(seq, settlement, keys)
    return _record_events(tx, settlement, _note_links(settlement, seq, _links(tx, seq, linked), pending))


def _links(tx: Transaction, seq: int, stored: str | bytes | None) -> Links | None:
    """Return the links of a job."""
    try:
        return rows.links(stored) if stored else None
    except (*rows.UNREADABLE, UnicodeDecodeError):
        # Reading the whole record repairs it.
        return job_at(tx, seq).links


def _note_links(settlement: Settlement, seq: int, links: Links | None, pending: _PendingWrites) -> bool:
    """Collect what follows from the settlement of a job with links; return False if nothing does."""
    ref, decision = settlement.ref, settlement.decision
    if isinstance(decision, Suspend):
        pending.linked.append(_Linked(ref.queue, suspended=seq))
        return True
    if links is None or not links.dependents or not isinstance(decision, Finish):
        return False
    end = End(ref, decision.state is State.COMPLETED, links.dependents)
    pending.linked.append(_Linked(ref.queue, end=end))
    return True


def _keys(named: str | bytes | None) -> Sequence[Key] | None:
    """Return the keys that a row names, None if they are unreadable."""
    try:
        return rows.keys(named if isinstance(named, bytes) else str(named)) if named else ()
    except (*rows.UNREADABLE, UnicodeDecodeError):
        return None


def _record_events(tx: Transaction, settlement: Settlement, linked: bool) -> SettlementResult:
    """Record the events of a settlement. `linked`: more follows from it, and then its queue may be drained."""
    for event in settlement.events:
        tx.record(event)
    if not linked:
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


def _collect_suspension(
    tx: Transaction, settlement: Settlement, decision: Suspend, seq: int, pending: _PendingWrites
) -> None:
    ref, ended = settlement.ref, settlement.ended
    tx.count_move(ref.queue, left="active", to="suspended")
    tx.topics.append(job_topic(ref))
    links = structs.replace(job_at(tx, seq).links or Links(), wait=decision.wait, wake_at=None)
    pending.suspended.append(
        {
            "seq": seq,
            "fence": settlement.fence,
            "reason": decision.reason,
            "links": rows.links_text(links),
            "ended": ended.ended,
            "why": ended.reason,
            "detail": ended.detail,
        }
        | {name: int(decision.charge == name) for name in ("failures", "stalls", "releases")}
    )


def _collect(
    tx: Transaction,
    settlement: Settlement,
    decision: Finish | PutBack,
    seq: int,
    boost: int,
    score: int,
    pending: _PendingWrites,
) -> None:
    ref, charge = settlement.ref, decision.charge
    run = seq, settlement.fence
    reason, cause, detail = decision.reason, settlement.ended.reason, settlement.ended.detail
    if "\0" in f"{reason}{cause}{detail}":
        pending.texts.append({"seq": seq, "reason": reason, "why": cause, "detail": detail})
        reason = cause = detail = None
    why = rows.error_text(decision.error), reason
    charged = tuple(int(charge == name) for name in ("failures", "stalls", "releases"))
    ended = settlement.ended.ended, cause, detail
    match decision:
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
