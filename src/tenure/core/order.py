"""Where in line a job stands: one score, the lowest first.

A score is an instant: when the job came into line, less what its priority is worth in waiting. So whoever waits moves
forward, and only a job that is a step's worth younger overtakes. The newest-first (`lifo`) count their instants down
instead of up, and so stand before all others.

With a `fair_key` the instant is a virtual one. Each tenant's jobs stand a share apart, beginning where the line has got
to (start-time fair queueing), so a tenant with a hundred thousand jobs spreads over the line, and the first job of any
other stands at its front. Tenants are compared within one priority; a busy line's jobs without a key are one tenant.
When nobody waits any more, all of it is forgotten.
"""

from msgspec import Struct, field

FAIR_SHARE = 1_000_000
"""How far a tenant's jobs stand apart in virtual time, in microseconds, at weight 1: sixty to a step of priority."""

FAIR_WEIGHT = 1000
"""The largest weight: a thousand jobs for every one of a tenant of weight 1."""


def place(at: int, *, boost: int, lifo: bool = False) -> int:
    """Return the score of a job that comes into line at an instant."""
    return (-at if lifo else at) - boost


def came_at(score: int, *, boost: int, lifo: bool = False) -> int:
    """Return the instant at which a job of this score came into line."""
    return -(score + boost) if lifo else score + boost


def share(weight: int) -> int:
    """Return how far apart the jobs of a tenant of this weight stand."""
    return FAIR_SHARE // weight


class Fairness(Struct):
    """How far a busy line has got in virtual time.

    `front`: what the best score given out was, of a priority below 0 without what that puts a job back. `reached`: of
    each priority, the virtual instant of the latest job given out. `tags`: of each priority and tenant, that of its
    last job in line.
    """

    front: int
    reached: dict[int, int] = field(default_factory=dict[int, int])
    tags: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])

    def tag(self, key: str, *, boost: int, weight: int = 1, waits: bool = True) -> int:
        """Return the virtual instant of a tenant's next job, and remember it.

        A tenant that waits with no other has had its turns, or was taken out of line before them: it owes nothing.
        """
        last = self.tags.get((boost, key)) if waits else None
        tag = self.tags[boost, key] = next_tag(self.start(boost), last, weight)
        return tag

    def start(self, boost: int) -> int:
        """Return the virtual instant that the line has got to, for jobs of a priority."""
        return max(self.front, self.reached.get(boost, self.front))

    def given_out(self, score: int, boost: int) -> None:
        """Note that a job was given out."""
        # Not to where a low priority stands back: its next job would stand back from there again.
        self.front = max(self.front, score + min(boost, 0))
        self.reached[boost] = max(self.reached.get(boost, score + boost), score + boost)

    def forget(self) -> None:
        """Forget the tags that the line has passed: they say no more than where it has got to."""
        self.tags = {lane: tag for lane, tag in self.tags.items() if tag > self.start(lane[0])}


def next_tag(start: int, last: int | None, weight: int) -> int:
    """Return the virtual instant of a tenant's next job in a line that has got to `start`, after `last`."""
    return max(start, start if last is None else last) + share(weight)
