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
    WINDOW_LIMIT,
    WORKER_KEPT,
    queue_topic,
)
from tenure.storage.sql import concurrency_keys, fair_queue, rates
from tenure.storage.sql.claim import promote
from tenure.storage.sql.enqueue import holder
from tenure.storage.sql.retention import forget_plain
from tenure.storage.sql.revise import redrive
from tenure.storage.sql.rows import Garbled, Row
from tenure.storage.sql.settings import recorded, setting
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sql.transitions import drop, expire, the_job

_MISNAMED = ("sweep.misnamed_waiting", "sweep.misnamed_delayed")

_encode = msgspec.json.Encoder().encode
_place = msgspec.json.Decoder(tuple[str, str]).decode

LOOKS = 500
"""How many counters a sweep examines for jobs past retention."""

_WHENEVER = (1 << 63) - 1


def set_aside(tx: Transaction) -> None:
    """Fail the jobs that no other query finds: their state is unreadable, or they wait in a queue whose name is."""
    found = [seq for (seq,) in tx.all("sweep.stateless", {"limit": SWEEP_LIMIT})]
    found += [seq for statement in _MISNAMED for queue, seq in tx.all(statement) if type(queue) is Garbled]
    for seq in found[:SWEEP_LIMIT]:
        # Reading the record repairs it.
        the_job(tx, seq)
    concurrency_keys.release_freed(tx)


def suspect(tx: Transaction, grace: int, resumed_at: int | None) -> int:
    """Mark expired leases as suspect, and leases that end further ahead than their length."""
    found = _doubtful(tx)
    for seq in found:
        job = the_job(tx, seq)
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
        if recorded(tx, job.queue, "suspected"):
            tx.record(suspected(job, tx.now))
    concurrency_keys.release_freed(tx)
    tx.run("sweep.recall", {"now": tx.now, "grace": grace})
    return len(found)


def expire_aged(tx: Transaction) -> int:
    """Expire the jobs that are too old to start."""
    expired = 0
    for (seq,) in tx.all("sweep.aged", {"now": tx.now, "limit": EXPIRE_LIMIT}):
        if expired >= EXPIRE_LIMIT:
            break
        # Read the record only now: the end of one job may have released the next.
        expired += expire(tx, seq, the_job(tx, seq))
    concurrency_keys.release_freed(tx)
    return expired


def promote_due(tx: Transaction) -> int:
    """Promote the jobs that fell due."""
    promoted = 0
    for (queue,) in tx.all("tally.queues_delayed"):
        for (seq,) in tx.all("sweep.unreachable", {"queue": queue, "limit": SWEEP_LIMIT}):
            # Reading the record repairs it: the job is then due, and its next run fails.
            the_job(tx, seq)
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
    row = tx.one("sweep.looked_at")
    at, after = ("", "") if row is None else _place(row[0])
    looks, last = LOOK_LIMIT, ("", "")
    for queue in queues:
        # A claim looks at ready jobs first, and one of them may be waiting for the same place.
        if queue < at or not looks or tx.one("sweep.lined", {"queue": queue}) == (1,):
            continue
        behind = {"queue": queue, "after": after if queue == at else "", "paused": PAUSED, "limit": looks}
        names = [name for (name,) in tx.all("sweep.parked_under", behind)]
        looks -= len(names)
        if Garbled in map(type, names):
            names = _mend_name(tx, queue, after if queue == at else "", names)
        unparked += sum(_look_at(tx, queue, name) for name in names)
        if names:
            last = queue, names[-1]
    if not looks:
        tx.run("sweep.look_on", {"value": _encode(last).decode()})
    elif at:
        tx.run("sweep.look_on", {"value": _encode(("", "")).decode()})
    return unparked


def _mend_name(tx: Transaction, queue: str, after: str, names: list[str]) -> list[str]:
    """Repair the first job that is parked under a name that is not valid text; return the names before it."""
    good = list(takewhile(lambda name: type(name) is not Garbled, names))
    for (seq,) in tx.all("sweep.parked_behind", {"queue": queue, "after": good[-1] if good else after}):
        the_job(tx, seq)
    return good


def _look_at(tx: Transaction, queue: str, under: str) -> int:
    if not under.startswith(RATE):
        return concurrency_keys.unpark(tx, queue, under)
    return concurrency_keys.release_allowed(tx, queue, under) if rates.opens_at(tx, queue) <= tx.now else 0


def redrive_due(tx: Transaction) -> int:
    """Redrive the jobs whose rule is due."""
    due = tx.all("sweep.redrivable", {"now": tx.now, "limit": SWEEP_LIMIT})
    for (seq,) in due:
        job = the_job(tx, seq)
        if holder(tx, job) is None:
            redrive(tx, seq, job, by="rule", by_rule=True)
        else:
            # An unfinished job of the same unique key has replaced this one.
            tx.run("sweep.give_up", {"seq": seq})
            tx.count_move(job.queue, left="ruled")
    return len(due)


def trim(tx: Transaction) -> int:
    """Delete the jobs whose retention is over, the earliest ended first."""
    trimmed, emptied = 0, dict[str, None]()
    for (seq,) in tx.all("sweep.outlived", {"now": tx.now, "limit": TRIM_LIMIT}):
        if trimmed >= TRIM_LIMIT:
            break
        job = the_job(tx, seq)
        trimmed += drop(tx, seq, job)
        emptied[job.queue] = None
    for queue, state, jobs in tx.all("sweep.to_trim", {"now": tx.now, "limit": LOOKS}):
        keep = (setting(tx, "queue", queue).retention or RetentionRules()).of(State(state))
        gone = _worn(tx, queue, state, keep, jobs, TRIM_LIMIT - trimmed)
        trimmed += _forget(tx, queue, state, gone, TRIM_LIMIT - trimmed)
        if trimmed >= TRIM_LIMIT:
            # There may be more such jobs: the next sweep checks this queue again.
            break
        tx.run("sweep.trimmed", {"queue": queue, "state": state, "age": min(keep.age, _WHENEVER >> 1)})
        if len(gone) == jobs:
            emptied[queue] = None
    # The counters show whether a queue has other jobs, so they must be up to date.
    tx.flush()
    tx.many("sweep.forget_queue", [{"queue": queue} for queue in emptied])
    return trimmed


def _forget(tx: Transaction, queue: str, state: str, gone: Sequence[Row], limit: int) -> int:
    """Delete jobs that ended in a state, in order, up to a limit; return how many calls were deleted with them."""
    trimmed = 0
    for merges, group in groupby(gone, itemgetter(1)):
        seqs = [seq for seq, _ in group][: limit - trimmed]
        if not merges:
            forget_plain(tx, queue, state, seqs)
            trimmed += len(seqs)
            continue
        for seq in seqs:
            if trimmed < limit:
                trimmed += drop(tx, seq, the_job(tx, seq))
    return trimmed


def forget_events(tx: Transaction) -> int:
    """Delete the oldest events."""
    row = tx.one("events.bounds")
    trimmed, last = (0, 0) if row is None else (int(row[0]), int(row[1]))
    beyond = max(0, last - trimmed - (EVENTS_KEPT.count or 0))
    looked_at = min(last, trimmed + TRIM_LIMIT)
    young = tx.one("sweep.young", {"last": looked_at, "at": tx.now - EVENTS_KEPT.age})
    aged = (looked_at if young is None else int(young[0]) - 1) - trimmed
    gone = min(max(beyond, aged), TRIM_LIMIT)
    if gone:
        tx.run("sweep.forget", {"last": trimmed + gone})
    return gone


def forget_tags(tx: Transaction) -> None:
    """Delete virtual instants of tenants that are below their queue's virtual time, or whose queue is idle."""
    room = PASSED_LIMIT - tx.run("sweep.forget_tags", {"limit": PASSED_LIMIT})
    for (queue,) in tx.all("sweep.idle_lines", {"limit": room}):
        room -= tx.run("sweep.forget_idle_tags", {"queue": queue, "limit": room})
        if room <= 0:
            return
        fair_queue.forget(tx, queue)
        room -= 1


def forget_rates(tx: Transaction) -> None:
    """Delete taken rate time that has passed, and rates without any state."""
    tx.run("sweep.forget_time", {"now": tx.now, "limit": PASSED_LIMIT})
    tx.run("sweep.forget_rates", {"limit": PASSED_LIMIT})
    tx.forget_rates()


def forget_windows(tx: Transaction) -> None:
    """Delete the key windows whose time is over."""
    tx.run("sweep.forget_windows", {"now": tx.now, "limit": WINDOW_LIMIT})


def _doubtful(tx: Transaction) -> list[int]:
    """Return the jobs with expired leases, then those whose leases end further ahead than their length."""
    out: list[Row] = []
    ahead: list[Row] = []
    for (length,) in tx.all("sweep.lengths"):
        out += tx.all("sweep.out", {"length": length, "now": tx.now, "limit": SWEEP_LIMIT})
        out += tx.all("sweep.endless", {"length": length, "limit": SWEEP_LIMIT})
        ahead += tx.all(
            "sweep.ahead", {"length": length, "until": min(tx.now + length, _WHENEVER), "limit": SWEEP_LIMIT}
        )
    return [row[3] for row in sorted(out)[:SWEEP_LIMIT] + sorted(ahead)[:SWEEP_LIMIT]]


def _worn(tx: Transaction, queue: str, state: str, keep: KeepRule, jobs: int, room: int) -> list[Row]:
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
        else tx.all("sweep.ended", {"queue": queue, "state": state, "until": _WHENEVER, "limit": rest})
    )


def forget_workers(tx: Transaction) -> None:
    """Delete records and orders of workers that have been silent for long without signing off."""
    tx.run("sweep.forget_orders", {"until": tx.now - WORKER_KEPT})
    tx.run("sweep.forget_workers", {"until": tx.now - WORKER_KEPT})
    for target in [target for target in tx.settings if target[0] == "worker"]:
        del tx.settings[target]
