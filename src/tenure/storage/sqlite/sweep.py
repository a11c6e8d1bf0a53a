"""The leader's turn in SQL: the election, the reclaims, then the other chores."""

from collections.abc import Callable, Sequence

from tenure.core.events import LeadershipAcquired, LeadershipLost
from tenure.core.job import JobRecord, Owner, StallReason
from tenure.core.leadership import Term
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.schedule import Schedule
from tenure.core.transition import reclaimed, silence, stall_reason
from tenure.storage.protocol import (
    CHORE_LIMITS,
    SWEEP_LIMIT,
    ReclaimResult,
    StalledLease,
    SweepRequest,
    SweepResult,
)
from tenure.storage.sqlite import concurrency_keys, rates, schedules, sweep_steps
from tenure.storage.sqlite.rows import Row
from tenure.storage.sqlite.statements import query
from tenure.storage.sqlite.transaction import Transaction
from tenure.storage.sqlite.transitions import whole

Alive = Callable[[str], bool]
"""Returns True if the process of an owner is alive, that is, if the kernel still holds its lock."""

_LEADER = query("sweep", "leader")
_ELECT = query("sweep", "elect")
_SWEPT = query("sweep", "swept")
_VACATE = query("resign", "vacate")
_HOLDERS = query("sweep", "holders")
_WORKERS = query("sweep", "workers")
_BURY_WORKER = query("reclaim", "bury_worker")
_HELD = query("reclaim", "held")
_OVERDUE = query("sweep", "overdue")
_TAKE = query("reclaim", "take")


def sweep(step: Transaction, bid: SweepRequest, alive: Alive) -> SweepResult:
    """Elect the caller if necessary, then do one bounded turn of the chores."""
    now = step.now
    terms: tuple[Term, ...] = ()
    if bid.term is not None:
        term, retry_in = _elect(step, bid.owner, bid.term, alive)
        if term.owner != bid.owner.id:
            return SweepResult(retry_in=retry_in)
        terms = (term,)
    step.leading = True
    _, _, _, _, swept_at, resumed_at = _leader(step)
    if swept_at is not None and now - swept_at > 3 * bid.every:
        resumed_at = now
    clock_set_back = swept_at is not None and now < swept_at
    nobody: list[StalledLease] = []
    dead, no_burial = step.chore(lambda: _bury(step, bid.owner, alive), nobody)
    silent, no_reclaim = step.chore(lambda: _reclaim_overdue(step, bid.owner, SWEEP_LIMIT - len(dead)), nobody)
    stalled = dead + silent
    did, troubles = {"reclaimed": len(stalled)}, [no_burial, no_reclaim]
    if clock_set_back:
        troubles.append(step.chore(lambda: rates.look_anew(step), None)[1])
    troubles.append(step.chore(lambda: sweep_steps.set_aside(step), None)[1])
    # In the order of the protocol: an expired job is not promoted, and a redriven job is not trimmed.
    for name, chore in (
        ("suspected", lambda: sweep_steps.suspect(step, bid.grace, resumed_at)),
        ("expired", lambda: sweep_steps.expire_aged(step)),
        ("promoted", lambda: sweep_steps.promote_due(step)),
        ("unparked", lambda: sweep_steps.unpark(step)),
        ("redriven", lambda: sweep_steps.redrive_due(step)),
        ("trimmed", lambda: sweep_steps.trim(step)),
        ("forgotten", lambda: sweep_steps.forget_events(step)),
    ):
        did[name], trouble = step.chore(chore, 0)
        troubles.append(trouble)
    troubles.append(step.chore(lambda: sweep_steps.forget_workers(step), None)[1])
    troubles.append(step.chore(lambda: sweep_steps.forget_windows(step), None)[1])
    troubles.append(step.chore(lambda: sweep_steps.forget_tags(step), None)[1])
    troubles.append(step.chore(lambda: sweep_steps.forget_rates(step), None)[1])
    nothing_due: tuple[tuple[Schedule, ...], int | None] = (), None
    (due, next_tick), no_look = step.chore(lambda: schedules.due(step), nothing_due)
    troubles.append(no_look)
    step.run(_SWEPT, (now, resumed_at))
    return SweepResult(
        terms,
        None,
        tuple(stalled),
        did,
        more=any(did[name] >= limit for name, limit in CHORE_LIMITS.items()),
        troubles=tuple(filter(None, troubles)),
        due=due,
        next_tick=next_tick,
        now=now,
    )


def led_by_another(step: Transaction, bid: SweepRequest, alive: Alive) -> SweepResult | None:
    """Return the answer to a request that another leader's term prevents, or None if the caller may sweep."""
    owner, _, length, until, _, _ = _leader(step)
    if bid.term is None or owner is None or owner == bid.owner.id:
        return None
    reigns = step.now < until <= step.now + length and alive(owner)
    return SweepResult(retry_in=until - step.now) if reigns else None


def reclaim(step: Transaction, dead: str, owner: Owner) -> ReclaimResult:
    """Take every active job of a dead owner, without grace."""
    held = step.all(_HELD, {"owner": dead, "limit": SWEEP_LIMIT + 1})
    doubtful = step.one(_HELD, {"owner": owner.id, "limit": 1}) is not None
    step.run(_BURY_WORKER, (dead,))
    stalled = _taken(step, held[:SWEEP_LIMIT], owner, "process_died")
    return ReclaimResult(tuple(stalled), more=len(held) > SWEEP_LIMIT, doubtful=doubtful)


def resign(step: Transaction, term: Term) -> None:
    """Give up this leader term and no other."""
    if step.run(_VACATE, (term.owner, term.epoch)):
        step.record(LeadershipLost(scope=term.scope, owner=term.owner, epoch=term.epoch, reason="resigned"))


def reigning(step: Transaction) -> tuple[tuple[Term, ...], int | None]:
    """Return the term in force, and when a leader last swept."""
    owner, epoch, length, until, swept_at, _ = _leader(step)
    return ((Term("*", owner, epoch, length),) if owner is not None and until > step.now else ()), swept_at


def _leader(step: Transaction) -> Row:
    row = step.one(_LEADER)
    if row is None:
        raise AssertionError("the migration has put a leader's row there")
    return row


def _elect(step: Transaction, bidder: Owner, length: int, alive: Alive) -> tuple[Term, int]:
    """Return the current leader's term, which is the caller's if possible, and how long it still lasts."""
    now = step.now
    owner, epoch, given, until, _, _ = _leader(step)
    if owner == bidder.id and now < until:
        step.run(_ELECT, (owner, epoch, length, now + length))
        return Term("*", owner, epoch, length), length
    if owner is not None:
        # A term that ends further ahead than its length was given before the clock was set back.
        if now < until <= now + given and alive(owner):
            return Term("*", owner, epoch, given), until - now
        step.record(LeadershipLost(scope="*", owner=owner, epoch=epoch, reason="expired"))
    epoch += 1
    step.run(_ELECT, (bidder.id, epoch, length, now + length))
    step.record(LeadershipAcquired(scope="*", owner=bidder.id, epoch=epoch))
    return Term("*", bidder.id, epoch, length), length


def _bury(step: Transaction, bidder: Owner, alive: Alive) -> list[StalledLease]:
    """Take the leases of dead owners, and mark their worker records as dead."""
    stalled: list[StalledLease] = []
    for (owner,) in step.all(_HOLDERS):
        if owner is not None and len(stalled) < SWEEP_LIMIT and not alive(owner):
            held = step.all(_HELD, {"owner": owner, "limit": SWEEP_LIMIT - len(stalled)})
            stalled += _taken(step, held, bidder, "process_died")
    for (owner,) in step.all(_WORKERS):
        if not alive(owner):
            step.run(_BURY_WORKER, (owner,))
    return stalled


def _reclaim_overdue(step: Transaction, bidder: Owner, limit: int) -> list[StalledLease]:
    """Take the leases whose grace is over."""
    return _taken(step, step.all(_OVERDUE, (step.now, limit)), bidder)


def _taken(
    step: Transaction, held: Sequence[Row], owner: Owner, reason: StallReason | None = None
) -> list[StalledLease]:
    """Take the leases in these rows, except those of jobs that the repair of their records has ended."""
    jobs = [(row[0], whole(step, row)) for row in held]
    concurrency_keys.let_in(step)
    return [_take(step, seq, job, owner, reason) for seq, job in jobs if job.state is State.ACTIVE]


def _take(step: Transaction, seq: int, job: JobRecord, owner: Owner, reason: StallReason | None) -> StalledLease:
    now = step.now
    taken = reclaimed(job, owner.id, now)
    step.run(_TAKE, (taken.fence, taken.owner, taken.heard_at, taken.lease_until, seq))
    return StalledLease(Lease(taken), reason or stall_reason(job, now), job.owner or "", silence(job, now))
