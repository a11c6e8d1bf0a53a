"""Leadership of the sweeps, as one reaper sees it: a lease on a role.

    follower ──sweep answered with a term──► leader ──answered without──► follower (superseded)
       ▲                                        │
       └──────────── trusted no longer ◄────────┘  (unreachable: no answer until its trust ran out)

The election is part of the sweep, inside the storage. So the elected leader does its work in the same step, and two
leaders do no harm. The state here only shows which reaper leads, and decides when to ask again.
"""

from random import Random

from msgspec import Struct

from tenure.core.events import Event, LeadershipAcquired, LeadershipLost

LATE = 0.5
"""A follower asks again up to this many seconds after a term has run out, so that not all ask at once.

Never more than a quarter of a sweep interval: a gap of three sweeps makes the pause guard assume that the host stood
still."""


class Term(Struct, frozen=True):
    """One term of a leader: its scope, owner and epoch. `length` in microseconds."""

    scope: str
    owner: str
    epoch: int
    length: int


class LeaderStatus(Struct, frozen=True):
    """A reaper's own role: its terms, and the uptime (seconds) until which it may trust them."""

    terms: tuple[Term, ...] = ()
    trusted_until: float = 0.0

    @property
    def leads(self) -> bool:
        """True if the reaper believes that it leads a scope."""
        return bool(self.terms)


def after_answer(
    standing: LeaderStatus, terms: tuple[Term, ...], *, asked_at: float
) -> tuple[LeaderStatus, list[Event]]:
    """Return the status and events after the storage's answer to a sweep that was sent at that uptime."""
    before = {(term.scope, term.epoch): term for term in standing.terms}
    now = {(term.scope, term.epoch): term for term in terms}
    events: list[Event] = [
        LeadershipLost(scope=term.scope, owner=term.owner, epoch=term.epoch, reason="superseded")
        for mark, term in before.items()
        if mark not in now
    ]
    events += [
        LeadershipAcquired(scope=term.scope, owner=term.owner, epoch=term.epoch)
        for mark, term in now.items()
        if mark not in before
    ]
    until = min((asked_at + term.length / 1_000_000 for term in terms), default=0.0)
    return LeaderStatus(terms, until), events


def after_failure(standing: LeaderStatus, *, at: float) -> tuple[LeaderStatus, list[Event]]:
    """Return the status and events after a failed sweep: when its trust has run out, a leader becomes a follower."""
    if not standing.leads or at < standing.trusted_until:
        return standing, []
    return _without_terms(standing, "unreachable")


def after_resignation(standing: LeaderStatus) -> tuple[LeaderStatus, list[Event]]:
    """Return the status and events after the terms were given up."""
    return _without_terms(standing, "resigned")


def next_sweep_in(every: float, retry_in: float | None, rng: Random) -> float:
    """Return the seconds until the next sweep: a leader's interval, or a follower's wait for the end of the term."""
    return every if retry_in is None else retry_in + rng.random() * min(LATE, every / 4)


def longest_skip(lease: float, every: float, term: float, grace: float) -> float:
    """Return how long a partition without leases or due jobs may be skipped; 0 if not longer than one interval.

    A lease that begins meanwhile must be watched in time, in each of these cases:

    - Half a lease, and a sweep and a grace less a term: if the leader dies together with the holder, the next leader
      sees a gap, and the pause guard keeps suspects for half a lease from then on. That is over when a job whose lease
      was not renewed is recovered anyway: after its lease, the grace and two sweeps.
    - Half a lease: the same if the leader stands still instead.
    - A lease less three sweeps: a standstill after a skip counts as a gap only from three sweeps on. So an unnoticed
      standstill lasts less than a lease, and no lease has run out by it.
    - A lease less a term and a sweep: if the leader dies together with the holder, its term lasts for the skip and for
      its own length after it. The next leader starts before the lease is out.
    """
    late = min(LATE, every / 4)
    skip = min(lease / 2 + min(0.0, every + grace - term - late), lease - max(3 * every, term + every))
    return skip if skip > every else 0.0


def _without_terms(standing: LeaderStatus, reason: str) -> tuple[LeaderStatus, list[Event]]:
    events: list[Event] = [
        LeadershipLost(
            scope=term.scope,
            owner=term.owner,
            epoch=term.epoch,
            reason="resigned" if reason == "resigned" else "unreachable",
        )
        for term in standing.terms
    ]
    return LeaderStatus(), events
