"""Numbered claims: each number claims once, and a claim whose answer was lost is handed back without a charge.

worker: call 7 ──► storage: highest seen is 7, gave out a and b ──► the answer is lost
worker: call 8, answered 6 ──► storage: 7 is over and was not answered: a and b are handed back, then 8 claims
network: call 7 once more ──► storage: 7 is not above 8: nothing is claimed
"""

from collections.abc import Iterable

from msgspec import Struct

from tenure.core.job import Ref


class Lane(Struct, frozen=True):
    """The progress of an owner's claims in one of its lanes, which has at most one call under way.

    `number`: the number of the call that carries this; in a beat, of the call that is under way or comes next. All
    calls with a lower number are over: their answers have arrived, or will never be used. `answered`: the highest
    number whose leases the owner has received.
    """

    id: int
    number: int
    answered: int = 0


class LaneClaims(Struct, frozen=True):
    """A storage's state of one lane. `runs`: the number, job and fence of each run that is not acknowledged yet.

    `at`: when the lane was last used, by the storage's clock.
    """

    highest: int = 0
    runs: tuple[tuple[int, Ref, int], ...] = ()
    at: int = 0

    def has_seen(self, lane: Lane) -> bool:
        """Return True if a call with this number, or a later one, was executed before."""
        return lane.number <= self.highest

    def lost(self, lane: Lane) -> list[tuple[Ref, int]]:
        """Return the job and fence of each run that was given out by a finished call whose answer was lost."""
        return [(ref, fence) for number, ref, fence in self.runs if lane.answered < number < lane.number]

    def finished(self, lane: Lane, now: int) -> "LaneClaims":
        """Return the state after the end of all calls below a number, and the hand-back of lost runs."""
        return LaneClaims(
            max(self.highest, lane.number - 1), tuple(run for run in self.runs if run[0] >= lane.number), now
        )

    def claimed(self, lane: Lane, runs: Iterable[tuple[Ref, int]], now: int) -> "LaneClaims":
        """Return the state after a new call and the runs that it gave out."""
        return LaneClaims(lane.number, tuple((lane.number, ref, fence) for ref, fence in runs), now)
