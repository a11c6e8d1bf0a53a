"""The chores of a sweep in SQL, after the reclaims. Each is bounded, independent, and returns how many items it did."""

from collections.abc import Sequence
from itertools import groupby, takewhile
from operator import itemgetter

import msgspec

from tenure.core.lease import grace_end
from tenure.core.lifecycle import State
from tenure.core.retention import EVENTS_KEPT, KeepRule, RetentionRules
from tenure.core.transition import suspected
from tenure.storage.protocol import (
    EXPIRE_LIMIT,
    LOOK_LIMIT,
    PASSED_LIMIT,
    PAUSED,
    PROMOTE_LIMIT,
    RATE,
    SWEEP_LIMIT,
    TRIM_LIMIT,
    UNKNOWN,
    WINDOW_LIMIT,
    WORKER_KEPT,
    queue_topic,
)
from tenure.storage.sql import concurrency_keys, fair_queue, rates
from tenure.storage.sql.claim import promote
from tenure.storage.sql.columns import Row, UndecodableText
from tenure.storage.sql.enqueue import holder
from tenure.storage.sql.retention import delete_plain
from tenure.storage.sql.revise import redrive
from tenure.storage.sql.settings import records_event, setting
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sql.transitions import delete, expire, job_at

_MISNAMED = ("sweep.misnamed_waiting", "sweep.misnamed_delayed")

_encode = msgspec.json.Encoder().encode
_place = msgspec.json.Decoder(tuple[str, str]).decode

FRONT_KEPT = 60_000_000
"""How long the front of a queue is trusted, in microseconds."""

FRONTS_COMPUTED = 5
"""How many old fronts a sweep computes. Each one may read a queue from the beginning, while other writers wait."""

TRIM_QUEUES = 500
"""How many counters a sweep examines for jobs past retention."""

_NO_BOUND = (1 << 63) - 1


def fail_unreadable(tx: Transaction) -> None:
    """Fail the jobs that no other query finds: their state is unreadable, or they wait in a queue whose name is."""
    found = [seq for (seq,) in tx.all("sweep.invalid_state", {"limit": SWEEP_LIMIT})]
    found += [seq for statement in _MISNAMED for queue, seq in tx.all(statement) if type(queue) is UndecodableText]
    for seq in found[:SWEEP_LIMIT]:
        # Reading the record repairs it.
        job_at(tx, seq)
    concurrency_keys.release_freed(tx)


def suspect(tx: Transaction, grace: int, resumed_at: int | None) -> int:
    """Mark expired leases as suspect, and leases that end further ahead than their length."""
    found = _expired_leases(tx)
    for seq in found:
        job = job_at(tx, seq)
        if job.state is not State.ACTIVE:
            # The repair of its record has ended the job.
            continue
        until = grace_end(
            tx.now,
            terms=job.stall,
            lease_until=job.lease_until or tx.now,
            grace=grace,
            resumed_at=resumed_at,
        )
        tx.run("sweep.suspect", {"until": until, "seq": seq})
        if records_event(tx, job.queue, "suspected"):
            tx.record(suspected(job, tx.now))
    concurrency_keys.release_freed(tx)
    tx.run("sweep.shorten_suspicions", {"now": tx.now, "grace": grace})
    return len(found)


def expire_aged(tx: Transaction) -> int:
    """Expire the jobs that are too old to start."""
    expired = 0
    for (seq,) in tx.all("sweep.expirable", {"now": tx.now, "limit": EXPIRE_LIMIT}):
        if expired >= EXPIRE_LIMIT:
            break
        # Read the record only now: the end of one job may have released the next.
        expired += expire(tx, seq, job_at(tx, seq))
    concurrency_keys.release_freed(tx)
    return expired


def promote_due(tx: Transaction) -> int:
    """Promote the jobs that fell due, those of the queue with the longest overdue job first."""
    promoted = 0
    for (queue,) in tx.all("tally.queues_delayed"):
        for (seq,) in tx.all("sweep.unreachable", {"queue": queue, "limit": SWEEP_LIMIT}):
            # Reading the record repairs it: the job is then due, and its next run fails.
            job_at(tx, seq)
        due = promote(tx, queue, PROMOTE_LIMIT - promoted)
        if due:
            tx.topics.append(queue_topic(queue))
        promoted += due
    return promoted


def unpark(tx: Transaction) -> int:
    """Release parked jobs that have room: of tasks that are not paused, and of the next `LOOK_LIMIT` keys."""
    queues = [queue for (queue,) in tx.all("tally.queues_parked")]
    tasks = [PAUSED + task for task, _ in tx.all("survey.settings", {"kind": "task"})]
    unparked = sum(concurrency_keys.unpark(tx, queue, task) for queue in queues for task in tasks)
    row = tx.one("sweep.parked_cursor")
    at, after = ("", "") if row is None else _place(row[0])
    looks, last = LOOK_LIMIT, ("", "")
    for queue in queues:
        # A claim looks at ready jobs first, and one of them may be waiting for the same place.
        if queue < at or not looks or tx.one("sweep.has_ready", {"queue": queue}) == (1,):
            continue
        behind = {
            "queue": queue,
            "after": after if queue == at else "",
            "paused": PAUSED,
            "unknown": UNKNOWN,
            "limit": looks,
        }
        names = [name for (name,) in tx.all("sweep.parked_under", behind)]
        looks -= len(names)
        if UndecodableText in map(type, names):
            names = _repair_name(tx, queue, after if queue == at else "", names)
        unparked += sum(_unpark(tx, queue, name) for name in names)
        if names:
            last = queue, names[-1]
    if not looks:
        tx.run("sweep.set_parked_cursor", {"value": _encode(last).decode()})
    elif at:
        tx.run("sweep.set_parked_cursor", {"value": _encode(("", "")).decode()})
    return unparked


def _repair_name(tx: Transaction, queue: str, after: str, names: list[str]) -> list[str]:
    """Repair the first job that is parked under a name that is not valid text; return the names before it."""
    good = list(takewhile(lambda name: type(name) is not UndecodableText, names))
    for (seq,) in tx.all("sweep.first_parked_after", {"queue": queue, "after": good[-1] if good else after}):
        job_at(tx, seq)
    return good


def _unpark(tx: Transaction, queue: str, under: str) -> int:
    if not under.startswith(RATE):
        return concurrency_keys.unpark(tx, queue, under)
    return concurrency_keys.release_allowed(tx, queue, under) if rates.opens_at(tx, queue) <= tx.now else 0


def redrive_due(tx: Transaction) -> int:
    """Redrive the jobs whose rule is due."""
    due = tx.all("sweep.redrivable", {"now": tx.now, "limit": SWEEP_LIMIT})
    for (seq,) in due:
        job = job_at(tx, seq)
        if holder(tx, job) is None:
            redrive(tx, seq, job, by="rule", by_rule=True)
        else:
            # An unfinished job of the same unique key has replaced this one.
            tx.run("sweep.end_redrives", {"seq": seq})
            tx.count_move(job.queue, left="ruled")
    return len(due)


def trim(tx: Transaction) -> int:
    """Delete the jobs whose retention is over, the earliest ended first."""
    trimmed, emptied = 0, dict[str, None]()
    for (seq,) in tx.all("sweep.past_lifetime", {"now": tx.now, "limit": TRIM_LIMIT}):
        if trimmed >= TRIM_LIMIT:
            break
        job = job_at(tx, seq)
        trimmed += delete(tx, seq, job)
        emptied[job.queue] = None
    for queue, state, jobs in tx.all("sweep.to_trim", {"now": tx.now, "limit": TRIM_QUEUES}):
        keep = (setting(tx, "queue", queue).retention or RetentionRules()).of(State(state))
        gone = _past_retention(tx, queue, state, keep, jobs, TRIM_LIMIT - trimmed)
        trimmed += _delete(tx, queue, state, gone, TRIM_LIMIT - trimmed)
        if trimmed >= TRIM_LIMIT:
            # There may be more such jobs: the next sweep checks this queue again.
            break
        tx.run("sweep.set_trim_at", {"queue": queue, "state": state, "age": min(keep.age, _NO_BOUND >> 1)})
        if len(gone) == jobs:
            emptied[queue] = None
    # The counters show whether a queue has other jobs, so they must be up to date.
    tx.flush()
    tx.many("sweep.delete_counters", [{"queue": queue} for queue in emptied])
    return trimmed


def _delete(tx: Transaction, queue: str, state: str, gone: Sequence[Row], limit: int) -> int:
    """Delete jobs that ended in a state, in order, up to a limit; return how many calls were deleted with them."""
    trimmed = 0
    for merges, group in groupby(gone, itemgetter(1)):
        seqs = [seq for seq, *_ in group][: limit - trimmed]
        if not merges:
            delete_plain(tx, queue, state, seqs)
            trimmed += len(seqs)
            continue
        for seq in seqs:
            if trimmed < limit:
                trimmed += delete(tx, seq, job_at(tx, seq))
    return trimmed


def delete_events(tx: Transaction) -> int:
    """Delete the oldest events."""
    row = tx.one("events.bounds")
    trimmed, last = (0, 0) if row is None else (int(row[0]), int(row[1]))
    beyond = max(0, last - trimmed - (EVENTS_KEPT.count or 0))
    looked_at = min(last, trimmed + TRIM_LIMIT)
    examined = {"first": trimmed + 1, "last": looked_at, "at": tx.now - EVENTS_KEPT.age}
    young = tx.one("sweep.first_kept_event", examined)
    aged = (looked_at if young is None else int(young[0]) - 1) - trimmed
    gone = min(max(beyond, aged), TRIM_LIMIT)
    if gone:
        tx.run("sweep.delete_events", {"first": trimmed + 1, "last": trimmed + gone})
    return gone


def delete_tags(tx: Transaction) -> None:
    """Delete virtual instants of tenants that are below their queue's virtual time, or whose queue is idle."""
    room = PASSED_LIMIT - tx.run("sweep.delete_tags", {"limit": PASSED_LIMIT})
    for (queue,) in tx.all("sweep.idle_fair_queues", {"limit": room}):
        room -= tx.run("sweep.delete_idle_tags", {"queue": queue, "limit": room})
        if room <= 0:
            return
        fair_queue.delete(tx, queue)
        room -= 1


def delete_rates(tx: Transaction) -> None:
    """Delete taken rate time that has passed, and rates without any state."""
    tx.run("sweep.reset_rates", {"now": tx.now, "limit": PASSED_LIMIT})
    tx.run("sweep.delete_rates", {"limit": PASSED_LIMIT})
    tx.drop_rates()


def compute_fronts(tx: Transaction, margin: int) -> None:
    """Compute old fronts from all jobs. See `Transaction.compute_fronts`."""
    tx.compute_fronts(tx.now - FRONT_KEPT, margin, FRONTS_COMPUTED)


def delete_windows(tx: Transaction) -> None:
    """Delete the key windows whose time is over."""
    tx.run("sweep.delete_windows", {"now": tx.now, "limit": WINDOW_LIMIT})


def _expired_leases(tx: Transaction) -> list[int]:
    """Return the jobs with expired leases, then those whose leases end further ahead than their length."""
    out: list[Row] = []
    ahead: list[Row] = []
    for (length,) in tx.all("sweep.lengths"):
        out += tx.all("sweep.expired", {"length": length, "now": tx.now, "limit": SWEEP_LIMIT})
        out += tx.all("sweep.endless", {"length": length, "limit": SWEEP_LIMIT})
        ahead += tx.all(
            "sweep.ahead", {"length": length, "until": min(tx.now + length, _NO_BOUND), "limit": SWEEP_LIMIT}
        )
    return [row[3] for row in sorted(out)[:SWEEP_LIMIT] + sorted(ahead)[:SWEEP_LIMIT]]


def _past_retention(tx: Transaction, queue: str, state: str, keep: KeepRule, jobs: int, room: int) -> list[Row]:
    """Return which of a queue's jobs of one end state are past retention, the earliest ended first."""
    surplus = 0 if keep.count is None else max(0, jobs - keep.count)
    # A job that ended later than now ended before the clock was set back, so it is older than it looks.
    ahead = (
        tx.all("sweep.ended_ahead", {"queue": queue, "state": state, "now": tx.now, "limit": min(surplus, room)})
        if surplus
        else []
    )
    room -= len(ahead)
    aged = tx.all("sweep.ended", {"queue": queue, "state": state, "until": tx.now - keep.age, "limit": room})
    rest = min(surplus - len(ahead), room)
    # Both lists begin with the earliest ended job, so the longer list contains the shorter.
    return ahead + (
        aged
        if len(aged) > rest
        else tx.all("sweep.ended", {"queue": queue, "state": state, "until": _NO_BOUND, "limit": rest})
    )


def delete_workers(tx: Transaction) -> None:
    """Delete records and orders of workers that have been silent for long without signing off."""
    tx.run("sweep.delete_commands", {"until": tx.now - WORKER_KEPT})
    tx.run("sweep.delete_workers", {"until": tx.now - WORKER_KEPT})
    for target in [target for target in tx.settings if target[0] == "worker"]:
        del tx.settings[target]
