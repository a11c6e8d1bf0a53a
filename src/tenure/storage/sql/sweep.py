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
from tenure.storage.sql import concurrency_keys, figures, rates, schedules, sweep_steps
from tenure.storage.sql.columns import Row
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sql.transitions import read_job

CLOCK_MARGIN = 10_000_000
"""Microseconds by which the clock may have been set back unnoticed since the sweep before. A longer step is noticed."""

Alive = Callable[[str], bool]
"""Returns True if the process of an owner is alive, that is, if the kernel still holds its lock."""


def _unknown(owner: str) -> bool:
    return True


def sweep(tx: Transaction, bid: SweepRequest, alive: Alive | None) -> SweepResult:
    """Elect the caller if necessary, then do one bounded turn of the chores.

    `alive`: None if the database cannot tell which processes live. All owners then count as alive.
    """
    now = tx.now
    terms: tuple[Term, ...] = ()
    if bid.term is not None:
        term, retry_in = _elect(tx, bid.owner, bid.term, alive or _unknown)
        if term.owner != bid.owner.id:
            return SweepResult(retry_in=retry_in)
        terms = (term,)
    tx.leading = True
    _, _, _, _, swept_at, resumed_at = _leader(tx)
    if swept_at is not None and now - swept_at > 3 * bid.every:
        resumed_at = now
    clock_set_back = swept_at is not None and now < swept_at
    none: list[StalledLease] = []
    dead, recovery_failed = none, None
    if clock_set_back:
        tx.reset_fronts()
    suspects, runs_out = _leases(tx)
    if alive is not None:
        dead, recovery_failed = tx.savepoint(lambda: _reclaim_dead(tx, bid.owner, alive), none)
    silent, reclaim_failed = none, None
    if suspects:
        silent, reclaim_failed = tx.savepoint(lambda: _reclaim_overdue(tx, bid.owner, SWEEP_LIMIT - len(dead)), none)
    stalled = dead + silent
    did, troubles = {"reclaimed": len(stalled)}, [recovery_failed, reclaim_failed]
    if clock_set_back:
        troubles.append(tx.savepoint(lambda: rates.check_all(tx), None)[1])
    troubles.append(tx.savepoint(lambda: sweep_steps.fail_unreadable(tx), None)[1])
    # In the order of the protocol: an expired job is not promoted, and a redriven job is not trimmed.
    for name, chore in (
        ("suspected", lambda: sweep_steps.suspect(tx, bid.grace, resumed_at) if suspects or runs_out else 0),
        ("expired", lambda: sweep_steps.expire_aged(tx)),
        ("promoted", lambda: sweep_steps.promote_due(tx)),
        ("unparked", lambda: sweep_steps.unpark(tx)),
        ("redriven", lambda: sweep_steps.redrive_due(tx)),
        ("trimmed", lambda: sweep_steps.trim(tx)),
        ("forgotten", lambda: sweep_steps.delete_events(tx)),
    ):
        did[name], trouble = tx.savepoint(chore, 0)
        troubles.append(trouble)
    troubles.append(tx.savepoint(lambda: sweep_steps.delete_workers(tx), None)[1])
    troubles.append(tx.savepoint(lambda: sweep_steps.delete_windows(tx), None)[1])
    troubles.append(tx.savepoint(lambda: sweep_steps.delete_tags(tx), None)[1])
    troubles.append(tx.savepoint(lambda: sweep_steps.delete_rates(tx), None)[1])
    troubles.append(tx.savepoint(lambda: figures.trim(tx), None)[1])
    troubles.append(tx.savepoint(lambda: sweep_steps.compute_fronts(tx, CLOCK_MARGIN), None)[1])
    nothing_due: tuple[tuple[Schedule, ...], int | None] = (), None
    (due, next_tick), no_look = tx.savepoint(lambda: schedules.due(tx), nothing_due)
    troubles.append(no_look)
    tx.run("sweep.swept", {"now": now, "resumed_at": resumed_at})
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


def led_by_another(tx: Transaction, bid: SweepRequest, alive: Alive | None) -> SweepResult | None:
    """Return the answer to a request that another leader's term prevents, or None if the caller may sweep."""
    owner, _, length, until, _, _ = _leader(tx)
    if bid.term is None or owner is None or owner == bid.owner.id:
        return None
    reigns = tx.now < until <= tx.now + length and (alive or _unknown)(owner)
    return SweepResult(retry_in=until - tx.now) if reigns else None


def reclaim(tx: Transaction, dead: str, owner: Owner) -> ReclaimResult:
    """Take every active job of a dead owner, without grace."""
    held = tx.all("reclaim.held", {"owner": dead, "limit": SWEEP_LIMIT + 1})
    incomplete = tx.one("reclaim.held", {"owner": owner.id, "limit": 1}) is not None
    tx.run("reclaim.mark_dead", {"owner": dead})
    stalled = _take_all(tx, held[:SWEEP_LIMIT], owner, "process_died")
    return ReclaimResult(tuple(stalled), more=len(held) > SWEEP_LIMIT, incomplete=incomplete)


def resign(tx: Transaction, term: Term) -> None:
    """Give up this leader term and no other."""
    if tx.run("resign.vacate", {"owner": term.owner, "epoch": term.epoch}):
        tx.record(LeadershipLost(scope=term.scope, owner=term.owner, epoch=term.epoch, reason="resigned"))


def current_term(tx: Transaction) -> tuple[tuple[Term, ...], int | None]:
    """Return the term in force, and when a leader last swept."""
    owner, epoch, length, until, swept_at, _ = _leader(tx)
    return ((Term("*", owner, epoch, length),) if owner is not None and until > tx.now else ()), swept_at


def _leader(tx: Transaction) -> Row:
    row = tx.one("sweep.leader")
    if row is None:
        raise AssertionError("the schema creates the leader's row")
    return row


def _elect(tx: Transaction, bidder: Owner, length: int, alive: Alive) -> tuple[Term, int]:
    """Return the current leader's term, which is the caller's if possible, and how long it still lasts."""
    now = tx.now
    owner, epoch, term, until, _, _ = _leader(tx)
    if owner == bidder.id and now < until:
        tx.run("sweep.elect", {"owner": owner, "epoch": epoch, "length": length, "until": now + length})
        return Term("*", owner, epoch, length), length
    if owner is not None:
        # A term that ends further ahead than its length was given before the clock was set back.
        if now < until <= now + term and alive(owner):
            return Term("*", owner, epoch, term), until - now
        tx.record(LeadershipLost(scope="*", owner=owner, epoch=epoch, reason="expired"))
    epoch += 1
    tx.run("sweep.elect", {"owner": bidder.id, "epoch": epoch, "length": length, "until": now + length})
    tx.record(LeadershipAcquired(scope="*", owner=bidder.id, epoch=epoch))
    return Term("*", bidder.id, epoch, length), length


def _reclaim_dead(tx: Transaction, bidder: Owner, alive: Alive) -> list[StalledLease]:
    """Take the leases of dead owners, and mark their worker records as dead."""
    stalled: list[StalledLease] = []
    for (owner,) in tx.all("sweep.holders"):
        if owner is not None and len(stalled) < SWEEP_LIMIT and not alive(owner):
            held = tx.all("reclaim.held", {"owner": owner, "limit": SWEEP_LIMIT - len(stalled)})
            stalled += _take_all(tx, held, bidder, "process_died")
    for (owner,) in tx.all("sweep.workers"):
        if not alive(owner):
            tx.run("reclaim.mark_dead", {"owner": owner})
    return stalled


def _leases(tx: Transaction) -> tuple[bool, bool]:
    """Return whether a lease may be suspect, and whether one may have to become so."""
    suspects, runs_out, started = tx.all("sweep.leases", {"now": tx.now})[0]
    # Each job that starts later does so at a later instant, unless the clock is set back.
    tx.advance("", State.ACTIVE, (tx.now if started is None else min(started, tx.now)) - CLOCK_MARGIN)
    return bool(suspects), bool(runs_out)


def _reclaim_overdue(tx: Transaction, bidder: Owner, limit: int) -> list[StalledLease]:
    """Take the leases whose grace is over."""
    return _take_all(tx, tx.all("sweep.overdue", {"now": tx.now, "limit": limit}), bidder)


def _take_all(
    tx: Transaction, held: Sequence[Row], owner: Owner, reason: StallReason | None = None
) -> list[StalledLease]:
    """Take the leases in these rows, except those of jobs that the repair of their records has ended."""
    jobs = [(row[0], read_job(tx, row)) for row in held]
    concurrency_keys.release_freed(tx)
    return [_take(tx, seq, job, owner, reason) for seq, job in jobs if job.state is State.ACTIVE]


def _take(tx: Transaction, seq: int, job: JobRecord, owner: Owner, reason: StallReason | None) -> StalledLease:
    now = tx.now
    taken = reclaimed(job, owner.id, now)
    tx.run(
        "reclaim.take",
        {
            "fence": taken.fence,
            "owner": taken.owner,
            "heard_at": taken.heard_at,
            "lease_until": taken.lease_until,
            "seq": seq,
        },
    )
    return StalledLease(Lease(taken), reason or stall_reason(job, now), job.owner or "", silence(job, now))
