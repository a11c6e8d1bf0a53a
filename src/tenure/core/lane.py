"""Numbered claims: a number is claimed for once, and a claim whose answer was lost is handed back uncharged.

worker: call 7 ──► storage: highest seen is 7, gave out a and b ──► the answer is lost
worker: call 8, answered 6 ──► storage: 7 is over and was not answered: a and b are handed back, then 8 claims
network: call 7 once more ──► storage: 7 is not above 8: nothing is claimed
"""

from collections.abc import Iterable

from msgspec import Struct

from tenure.core.job import Ref


class Lane(Struct, frozen=True):
    """How far an owner's claims have come in one of its lanes, in which one call at most is under way.

    `number`: of the call that carries this; in a beat, of the call that is under way or comes next. All calls with a
    lower number are over: their answers have arrived, or will never be used. `answered`: the highest number whose
    leases the owner has received.
    """

    id: int
    number: int
    answered: int = 0


class LaneClaims(Struct, frozen=True):
    """What a storage knows of one lane. `runs`: the number, job and fence of each run that is not acknowledged yet.

    `at`: when the lane was last heard of, by the storage's clock.
    """

    highest: int = 0
    runs: tuple[tuple[int, Ref, int], ...] = ()
    at: int = 0

    def has_seen(self, lane: Lane) -> bool:
        """Return True if a call with this number, or a later one, was carried out before."""
        return lane.number <= self.highest

    def lost(self, lane: Lane) -> list[tuple[Ref, int]]:
        """Return the job and fence of each run that a call gave out which is over and was not answered."""
        return [(ref, fence) for number, ref, fence in self.runs if lane.answered < number < lane.number]

    def over(self, lane: Lane, now: int) -> "LaneClaims":
        """Return what is known once all calls below a number are over, and those not answered are handed back."""
        return LaneClaims(
            max(self.highest, lane.number - 1), tuple(run for run in self.runs if run[0] >= lane.number), now
        )

    def claimed(self, lane: Lane, runs: Iterable[tuple[Ref, int]], now: int) -> "LaneClaims":
        """Return what is known after a call that has not been seen before, and the runs that it gave out."""
        return LaneClaims(lane.number, tuple((lane.number, ref, fence) for ref, fence in runs), now)
