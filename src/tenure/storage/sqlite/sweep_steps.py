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
from tenure.storage.sqlite import concurrency_keys, fair_queue, rates
from tenure.storage.sqlite.claim import promote
from tenure.storage.sqlite.enqueue import holder
from tenure.storage.sqlite.retention import forget_plain
from tenure.storage.sqlite.revise import redrive
from tenure.storage.sqlite.rows import Garbled, Row
from tenure.storage.sqlite.settings import recorded, setting
from tenure.storage.sqlite.statements import query
from tenure.storage.sqlite.transaction import Transaction
from tenure.storage.sqlite.transitions import drop, expire, the_job

_LENGTHS = query("sweep", "lengths")
_OUT = query("sweep", "out")
_AHEAD = query("sweep", "ahead")
_STATELESS = query("sweep", "stateless")
_MISNAMED = tuple(query("sweep", name) for name in ("misnamed_waiting", "misnamed_delayed"))
_ENDLESS = query("sweep", "endless")
_UNREACHABLE = query("sweep", "unreachable")
_SUSPECT = query("sweep", "suspect")
_RECALL = query("sweep", "recall")
_AGED = query("sweep", "aged")
_QUEUES_DELAYED = query("tally", "queues_delayed")
_QUEUES_PARKED = query("tally", "queues_parked")
_PARKED_UNDER = query("sweep", "parked_under")
_PARKED_BEHIND = query("sweep", "parked_behind")
_LOOKED_AT = query("sweep", "looked_at")
_LOOK_ON = query("sweep", "look_on")
_SETTINGS = query("survey", "settings")
_REDRIVABLE = query("sweep", "redrivable")
_GIVE_UP = query("sweep", "give_up")
_OUTLIVED = query("sweep", "outlived")
_TO_TRIM = query("sweep", "to_trim")
_TRIMMED = query("sweep", "trimmed")
_FORGET_QUEUE = query("sweep", "forget_queue")
_ENDED = query("sweep", "ended")
_ENDED_AHEAD = query("sweep", "ended_ahead")
_LINED = query("sweep", "lined")
_BOUNDS = query("events", "bounds")
_YOUNG = query("sweep", "young")
_FORGET = query("sweep", "forget")
_FORGET_TAGS = query("sweep", "forget_tags")
_IDLE_LINES = query("sweep", "idle_lines")
_FORGET_IDLE_TAGS = query("sweep", "forget_idle_tags")
_FORGET_RATES = query("sweep", "forget_rates")
_FORGET_TIME = query("sweep", "forget_time")
_FORGET_WINDOWS = query("sweep", "forget_windows")
_FORGET_WORKERS = query("sweep", "forget_workers")
_FORGET_ORDERS = query("sweep", "forget_orders")

_encode = msgspec.json.Encoder().encode
_place = msgspec.json.Decoder(tuple[str, str]).decode

LOOKS = 500
"""How many counters a sweep examines for jobs past retention."""

_WHENEVER = (1 << 63) - 1


def set_aside(step: Transaction) -> None:
    """Fail the jobs that no other query finds: their state is unreadable, or they wait in a queue whose name is."""
    found = [seq for (seq,) in step.all(_STATELESS, (SWEEP_LIMIT,))]
    found += [seq for statement in _MISNAMED for queue, seq in step.all(statement) if type(queue) is Garbled]
    for seq in found[:SWEEP_LIMIT]:
        # Reading the record repairs it.
        the_job(step, seq)
    concurrency_keys.let_in(step)


def suspect(step: Transaction, grace: int, resumed_at: int | None) -> int:
    """Mark expired leases as suspect, and leases that end further ahead than their length."""
    found = _doubtful(step)
    for seq in found:
        job = the_job(step, seq)
        if job.state is not State.ACTIVE:
            # The repair of its record has ended the job.
            continue
        until = grace_end(
            step.now,
            terms=job.stall,
            lease_until=job.lease_until or step.now,
            grace=grace,
            resumed_at=resumed_at,
        )
        step.run(_SUSPECT, (until, seq))
        if recorded(step, job.queue, "suspected"):
            step.record(suspected(job, step.now))
    concurrency_keys.let_in(step)
    step.run(_RECALL, {"now": step.now, "grace": grace})
    return len(found)


def expire_aged(step: Transaction) -> int:
    """Expire the jobs that are too old to start."""
    expired = 0
    for (seq,) in step.all(_AGED, (step.now, EXPIRE_LIMIT)):
        if expired >= EXPIRE_LIMIT:
            break
        # Read the record only now: the end of one job may have released the next.
        expired += expire(step, seq, the_job(step, seq))
    concurrency_keys.let_in(step)
    return expired


def promote_due(step: Transaction) -> int:
    """Promote the jobs that fell due."""
    promoted = 0
    for (queue,) in step.all(_QUEUES_DELAYED):
        for (seq,) in step.all(_UNREACHABLE, (queue, SWEEP_LIMIT)):
            # Reading the record repairs it: the job is then due, and its next run fails.
            the_job(step, seq)
        due = promote(step, queue, PROMOTE_LIMIT - promoted)
        if due:
            step.knocked.append(queue_topic(queue))
        promoted += due
    return promoted


def unpark(step: Transaction) -> int:
    """Release parked jobs that have room: of tasks that are not paused, and of the next `LOOK_LIMIT` keys."""
    queues = [queue for (queue,) in step.all(_QUEUES_PARKED)]
    tasks = [PAUSED + task for task, _ in step.all(_SETTINGS, ("task",))]
    unparked = sum(concurrency_keys.unpark(step, queue, task) for queue in queues for task in tasks)
    row = step.one(_LOOKED_AT)
    at, after = ("", "") if row is None else _place(row[0])
    looks, last = LOOK_LIMIT, ("", "")
    for queue in queues:
        # A claim looks at ready jobs first, and one of them may be waiting for the same place.
        if queue < at or not looks or step.one(_LINED, (queue,)) == (1,):
            continue
        behind = {"queue": queue, "after": after if queue == at else "", "paused": PAUSED, "limit": looks}
        names = [name for (name,) in step.all(_PARKED_UNDER, behind)]
        looks -= len(names)
        if Garbled in map(type, names):
            names = _mend_name(step, queue, after if queue == at else "", names)
        unparked += sum(_look_at(step, queue, name) for name in names)
        if names:
            last = queue, names[-1]
    if not looks:
        step.run(_LOOK_ON, (_encode(last).decode(),))
    elif at:
        step.run(_LOOK_ON, (_encode(("", "")).decode(),))
    return unparked


def _mend_name(step: Transaction, queue: str, after: str, names: list[str]) -> list[str]:
    """Repair the first job that is parked under a name that is not valid text; return the names before it."""
    good = list(takewhile(lambda name: type(name) is not Garbled, names))
    for (seq,) in step.all(_PARKED_BEHIND, (queue, good[-1] if good else after)):
        the_job(step, seq)
    return good


def _look_at(step: Transaction, queue: str, under: str) -> int:
    if not under.startswith(RATE):
        return concurrency_keys.unpark(step, queue, under)
    return concurrency_keys.open_anew(step, queue, under) if rates.opens_at(step, queue) <= step.now else 0


def redrive_due(step: Transaction) -> int:
    """Redrive the jobs whose rule is due."""
    due = step.all(_REDRIVABLE, (step.now, SWEEP_LIMIT))
    for (seq,) in due:
        job = the_job(step, seq)
        if holder(step, job) is None:
            redrive(step, seq, job, by="rule", by_rule=True)
        else:
            # An unfinished job of the same unique key has replaced this one.
            step.run(_GIVE_UP, (seq,))
            step.moved(job.queue, left="ruled")
    return len(due)


def trim(step: Transaction) -> int:
    """Delete the jobs whose retention is over, the earliest ended first."""
    trimmed, emptied = 0, dict[str, None]()
    for (seq,) in step.all(_OUTLIVED, (step.now, TRIM_LIMIT)):
        if trimmed >= TRIM_LIMIT:
            break
        job = the_job(step, seq)
        trimmed += drop(step, seq, job)
        emptied[job.queue] = None
    for queue, state, jobs in step.all(_TO_TRIM, (step.now, LOOKS)):
        keep = (setting(step, "queue", queue).retention or RetentionRules()).of(State(state))
        gone = _worn(step, queue, state, keep, jobs, TRIM_LIMIT - trimmed)
        trimmed += _forget(step, queue, state, gone, TRIM_LIMIT - trimmed)
        if trimmed >= TRIM_LIMIT:
            # There may be more such jobs: the next sweep checks this queue again.
            break
        step.run(_TRIMMED, {"queue": queue, "state": state, "age": min(keep.age, _WHENEVER >> 1)})
        if len(gone) == jobs:
            emptied[queue] = None
    # The counters show whether a queue has other jobs, so they must be up to date.
    step.write_down()
    step.many(_FORGET_QUEUE, [{"queue": queue} for queue in emptied])
    return trimmed


def _forget(step: Transaction, queue: str, state: str, gone: Sequence[Row], limit: int) -> int:
    """Delete jobs that ended in a state, in order, up to a limit; return how many calls were deleted with them."""
    trimmed = 0
    for merges, group in groupby(gone, itemgetter(1)):
        seqs = [seq for seq, _ in group][: limit - trimmed]
        if not merges:
            forget_plain(step, queue, state, seqs)
            trimmed += len(seqs)
            continue
        for seq in seqs:
            if trimmed < limit:
                trimmed += drop(step, seq, the_job(step, seq))
    return trimmed


def forget_events(step: Transaction) -> int:
    """Delete the oldest events."""
    row = step.one(_BOUNDS)
    trimmed, last = (0, 0) if row is None else (int(row[0]), int(row[1]))
    beyond = max(0, last - trimmed - (EVENTS_KEPT.count or 0))
    looked_at = min(last, trimmed + TRIM_LIMIT)
    young = step.one(_YOUNG, (looked_at, step.now - EVENTS_KEPT.age))
    aged = (looked_at if young is None else int(young[0]) - 1) - trimmed
    gone = min(max(beyond, aged), TRIM_LIMIT)
    if gone:
        step.run(_FORGET, (trimmed + gone,))
    return gone


def forget_tags(step: Transaction) -> None:
    """Delete virtual instants of tenants that are below their queue's virtual time, or whose queue is idle."""
    room = PASSED_LIMIT - step.run(_FORGET_TAGS, (PASSED_LIMIT,))
    for (queue,) in step.all(_IDLE_LINES, (room,)):
        room -= step.run(_FORGET_IDLE_TAGS, (queue, room))
        if room <= 0:
            return
        fair_queue.forget(step, queue)
        room -= 1


def forget_rates(step: Transaction) -> None:
    """Delete taken rate time that has passed, and rates without any state."""
    step.run(_FORGET_TIME, (step.now, PASSED_LIMIT))
    step.run(_FORGET_RATES, (PASSED_LIMIT,))
    step.forget_rates()


def forget_windows(step: Transaction) -> None:
    """Delete the key windows whose time is over."""
    step.run(_FORGET_WINDOWS, (step.now, WINDOW_LIMIT))


def _doubtful(step: Transaction) -> list[int]:
    """Return the jobs with expired leases, then those whose leases end further ahead than their length."""
    out: list[Row] = []
    ahead: list[Row] = []
    for (length,) in step.all(_LENGTHS):
        out += step.all(_OUT, (length, step.now, SWEEP_LIMIT))
        out += step.all(_ENDLESS, (length, SWEEP_LIMIT))
        ahead += step.all(_AHEAD, (length, min(step.now + length, _WHENEVER), SWEEP_LIMIT))
    return [row[3] for row in sorted(out)[:SWEEP_LIMIT] + sorted(ahead)[:SWEEP_LIMIT]]


def _worn(step: Transaction, queue: str, state: str, keep: KeepRule, jobs: int, room: int) -> list[Row]:
    """Return which of a queue's jobs of one end state are past retention, the earliest ended first."""
    surplus = 0 if keep.count is None else max(0, jobs - keep.count)
    # A job that ended later than now ended before the clock was set back, so it is older than it looks.
    ahead = step.all(_ENDED_AHEAD, (queue, state, step.now, min(surplus, room))) if surplus else []
    room -= len(ahead)
    aged = step.all(_ENDED, (queue, state, step.now - keep.age, room))
    rest = min(surplus - len(ahead), room)
    # Both lists begin with the earliest ended job, so the longer list contains the shorter.
    return ahead + (aged if len(aged) > rest else step.all(_ENDED, (queue, state, _WHENEVER, rest)))


def forget_workers(step: Transaction) -> None:
    """Delete records and orders of workers that have been silent for long without signing off."""
    step.run(_FORGET_ORDERS, (step.now - WORKER_KEPT,))
    step.run(_FORGET_WORKERS, (step.now - WORKER_KEPT,))
    for target in [target for target in step.settings if target[0] == "worker"]:
        del step.settings[target]
