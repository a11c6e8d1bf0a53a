"""The numbers of a worker's claims: a call takes a lane that no other call is using, and the next number of that lane.

take ──► under way ──┬── answered: its leases are held
                     └── lost: the next call of the lane, or a beat, has the storage hand back the claimed jobs
"""

from collections import deque

from msgspec import structs

from tenure.core.lane import Lane


class ClaimNumbers:
    """The lanes of one worker. Each is replaced as a whole, because beats read them from another thread."""

    def __init__(self, count: int) -> None:
        self._lanes = [Lane(number, 1) for number in range(count)]
        self._free = deque(range(count))

    @property
    def all(self) -> tuple[Lane, ...]:
        """The current state of each lane."""
        return tuple(self._lanes)

    @property
    def any_lost(self) -> bool:
        """Return True if a lane that is free has lost its last answer."""
        return any(self._is_lost(number) for number in self._free)

    def take(self) -> Lane:
        """Return a free lane for a call, preferably one that has lost an answer."""
        number = next(filter(self._is_lost, self._free), self._free[0])
        self._free.remove(number)
        return self._lanes[number]

    def answered(self, lane: Lane) -> None:
        """Note that a call is over, and that the worker holds the claimed leases."""
        self._over(Lane(lane.id, lane.number + 1, lane.number))

    def lost(self, lane: Lane) -> None:
        """Note that a call is over, and that its answer will never be used."""
        self._over(structs.replace(lane, number=lane.number + 1))

    def _over(self, lane: Lane) -> None:
        self._lanes[lane.id] = lane
        self._free.append(lane.id)

    def _is_lost(self, number: int) -> bool:
        lane = self._lanes[number]
        return lane.answered < lane.number - 1
