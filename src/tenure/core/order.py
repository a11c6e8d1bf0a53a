"""The order of a queue: each job has one score, and the lowest comes first.

A score is an instant: when the job entered the queue, less the waiting time that its priority is worth. So a waiting
job moves forward, and a later job overtakes it only if its priority is worth more than the difference in age. Jobs with
newest-first order (`lifo`) use the negative instant, so they come before all others.

With a `fair_key` the instant is a virtual one. A tenant's jobs are one share apart, and begin at the queue's current
virtual time (start-time fair queueing). So the jobs of a tenant with a hundred thousand jobs spread over the queue, and
the first job of any other tenant comes near its front. Tenants are compared within one priority. In a fair queue all
jobs without a key form one tenant. When no job waits any more, all of this is reset.
"""

from msgspec import Struct, field

FAIR_SHARE = 1_000_000
"""The distance between a tenant's jobs in virtual time, in microseconds, at weight 1: a sixtieth of a priority step."""

FAIR_WEIGHT = 1000
"""The largest weight: a thousand jobs for each job of a tenant of weight 1."""


PRIORITY_STEP = 60_000_000
"""One step of priority equals this many microseconds of waiting."""

STRICT_STEP = 10_000_000_000_000
"""One step of a strict task's priority, in microseconds: about four months, more than any waiting."""


def boost_of(priority: int, *, strict: bool) -> int:
    """Return how many microseconds a priority moves a job ahead of its time."""
    return priority * (STRICT_STEP if strict else PRIORITY_STEP)


def is_strict(priority: int, boost: int) -> bool:
    """Return True if a job with this boost has a strict priority; a job of priority 0 never has."""
    return priority != 0 and boost == boost_of(priority, strict=True)


def score_at(at: int, *, boost: int, lifo: bool = False) -> int:
    """Return the score of a job that enters its queue at an instant."""
    return (-at if lifo else at) - boost


def entered_at(score: int, *, boost: int, lifo: bool = False) -> int:
    """Return the instant at which a job of this score entered its queue."""
    return -(score + boost) if lifo else score + boost


def share(weight: int) -> int:
    """Return the distance between the jobs of a tenant of this weight."""
    return FAIR_SHARE // weight


class Fairness(Struct):
    """The virtual time that a queue has reached.

    `front`: the highest score given out; for a priority below 0, minus the delay of that priority. `reached`: by
    priority, the virtual instant of the latest job given out. `tags`: by priority and tenant, the virtual instant of
    the tenant's last job.
    """

    front: int
    reached: dict[int, int] = field(default_factory=dict[int, int])
    tags: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])

    def tag(self, key: str, *, boost: int, weight: int = 1, waits: bool = True) -> int:
        """Return the virtual instant of a tenant's next job, and remember it.

        `waits`: the tenant has another waiting job. Without one its earlier jobs have had their turns, or were removed
        before them, so they do not delay the next job.
        """
        last = self.tags.get((boost, key)) if waits else None
        tag = self.tags[boost, key] = next_tag(self.start(boost), last, weight)
        return tag

    def start(self, boost: int) -> int:
        """Return the virtual time that the queue has reached, for jobs of a priority."""
        return max(self.front, self.reached.get(boost, self.front))

    def mark_dispatched(self, score: int, boost: int) -> None:
        """Advance the virtual time, because a job was given out."""
        # The front leaves out the delay of a low priority: the next job of that priority would add it again.
        self.front = max(self.front, score + min(boost, 0))
        self.reached[boost] = max(self.reached.get(boost, score + boost), score + boost)

    def forget(self) -> None:
        """Delete the tags below the virtual time, which have no effect any more."""
        self.tags = {lane: tag for lane, tag in self.tags.items() if tag > self.start(lane[0])}


def next_tag(start: int, last: int | None, weight: int) -> int:
    """Return the virtual instant of a tenant's next job. `start`: the queue's virtual time; `last`: the tenant's."""
    return max(start, start if last is None else last) + share(weight)
