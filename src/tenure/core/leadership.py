"""Who leads the sweeping, seen from one reaper: a lease on a role.

    follower ──sweep answered with a term──► leader ──answered without──► follower (superseded)
       ▲                                        │
       └──────────── trusted no longer ◄────────┘  (unreachable: no answer until its trust ran out)

Election happens inside the sweep, in the storage, so there is no gap between being the leader and acting as one, and
two leaders do no harm. What is kept here serves only to tell people who leads and to decide when to ask again.
"""

from random import Random

from msgspec import Struct

from tenure.core.events import Event, LeadershipAcquired, LeadershipLost

LATE = 0.5
"""A follower asks again up to this many seconds after a term has run out, so that not all ask at once.

Never more than a quarter of a sweep: a gap of three sweeps makes the pause guard believe that the host stood still.
"""


class Term(Struct, frozen=True):
    """One term of office: who leads which scope, in which epoch. `length` in microseconds."""

    scope: str
    owner: str
    epoch: int
    length: int


class LeaderStatus(Struct, frozen=True):
    """What a reaper knows of its own role: its terms, and until which uptime (seconds) it may trust them."""

    terms: tuple[Term, ...] = ()
    trusted_until: float = 0.0

    @property
    def leads(self) -> bool:
        """Whether it leads anywhere, as far as it knows."""
        return bool(self.terms)


def answered(standing: LeaderStatus, terms: tuple[Term, ...], *, asked_at: float) -> tuple[LeaderStatus, list[Event]]:
    """Take in the storage's answer to a sweep that was sent at that uptime."""
    before = {(term.scope, term.epoch): term for term in standing.terms}
    now = {(term.scope, term.epoch): term for term in terms}
    told: list[Event] = [
        LeadershipLost(scope=term.scope, owner=term.owner, epoch=term.epoch, reason="superseded")
        for mark, term in before.items()
        if mark not in now
    ]
    told += [
        LeadershipAcquired(scope=term.scope, owner=term.owner, epoch=term.epoch)
        for mark, term in now.items()
        if mark not in before
    ]
    until = min((asked_at + term.length / 1_000_000 for term in terms), default=0.0)
    return LeaderStatus(terms, until), told


def unanswered(standing: LeaderStatus, *, at: float) -> tuple[LeaderStatus, list[Event]]:
    """Take in that a sweep failed: past its trust a leader is a follower, whatever the storage may think."""
    if not standing.leads or at < standing.trusted_until:
        return standing, []
    return _gone(standing, "unreachable")


def resigned(standing: LeaderStatus) -> tuple[LeaderStatus, list[Event]]:
    """Take in that the terms were given up."""
    return _gone(standing, "resigned")


def ask_again_in(every: float, retry_in: float | None, rng: Random) -> float:
    """Return the seconds until the next sweep: a leader's turn, or a follower's try after the term has run out."""
    return every if retry_in is None else retry_in + rng.random() * min(LATE, every / 4)


def longest_rest(lease: float, every: float, term: float) -> float:
    """Return for how long what has no lease and nothing due may be left alone; 0 if not for longer than between sweeps.

    A lease that begins meanwhile is to be watched in time, whatever happens:

    - half a lease: a rest that ends too late, for the leader stood still, is a gap to the pause guard, which then
      grants half a lease of grace for half a lease. Both are over when the lease is.
    - a lease less three sweeps: what stood still for less than that after a rest is no gap, so all that stood still
      unnoticed did so for less than a lease, and nothing has run out by it.
    - a lease less a term and a sweep: if the leader dies with the holder, his term stands for the rest, and for its own
      length after it; who follows him is there before the lease is out.
    """
    rest = min(lease / 2, lease - max(3 * every, term + every))
    return rest if rest > every else 0.0


def _gone(standing: LeaderStatus, reason: str) -> tuple[LeaderStatus, list[Event]]:
    told: list[Event] = [
        LeadershipLost(
            scope=term.scope,
            owner=term.owner,
            epoch=term.epoch,
            reason="resigned" if reason == "resigned" else "unreachable",
        )
        for term in standing.terms
    ]
    return LeaderStatus(), told
