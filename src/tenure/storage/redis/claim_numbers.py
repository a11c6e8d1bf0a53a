"""Numbers the claims that each lane of an owner sends to a partition, and tracks which of them were answered.

The owner numbers its calls, and one call may take several scripts. So a script has the number of its call times
`SCRIPTS`, plus its place among the scripts of the call. The owner knows which calls it has answers to; only this module
knows which partitions took part in an answer.
"""

from msgspec import Struct, structs

from tenure.core.job import Owner
from tenure.core.lane import Lane

SCRIPTS = 4096
"""Maximum number of scripts in one call; the next call does what is left."""


class EncodedLane(Struct, frozen=True, omit_defaults=True):
    """A lane as a script reads it; see lua/parts/claims.lua."""

    id: int
    since: int
    answered: int
    number: int | None = None


class _ClaimLane(Struct, frozen=True):
    """`sent`: the number of the last script sent. `answered`: the last one whose answer the owner has.

    `reached`: the last one that was answered in call `call`, which counts once the owner acknowledges that call.
    """

    sent: int
    answered: int
    call: int = 0
    reached: int = 0

    def answered_by(self, lane: Lane) -> int:
        """Return the last script whose answer the owner has, judged by the calls that it acknowledges."""
        return self.reached if self.call and self.call <= lane.answered else self.answered


class PartitionLanes:
    """The lanes of one partition. A lane is replaced as a whole, because beats look at it from another thread."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, int], _ClaimLane] = {}

    def begin(self, owner: Owner, lane: Lane) -> None:
        """Note that a call begins, here or in another partition. It says whether the last call is acknowledged.

        Idempotent.
        """
        known = self._known(owner, lane)
        # A repeated call does not acknowledge its own first attempt.
        if known.call < lane.number:
            self._lanes[owner.id, lane.id] = _ClaimLane(known.sent, known.answered_by(lane))

    def send(self, owner: Owner, lane: Lane, script: int) -> EncodedLane:
        """Return the lane data for a script of a call that has begun, and note that the script is sent."""
        known = self._known(owner, lane)
        number = lane.number * SCRIPTS + script
        self._lanes[owner.id, lane.id] = structs.replace(known, sent=max(known.sent, number))
        return EncodedLane(lane.id, lane.number * SCRIPTS, known.answered, number)

    def receive(self, owner: Owner, lane: Lane, script: int) -> None:
        """Note that a call has been answered, up to a script."""
        known = self._known(owner, lane)
        reached = lane.number * SCRIPTS + script
        self._lanes[owner.id, lane.id] = structs.replace(known, call=lane.number, reached=reached)

    def lost(self, owner: Owner, lane: Lane) -> EncodedLane | None:
        """Return the lane data for a beat if an answer may have been lost in a lane; None if all have arrived."""
        known = self._lanes.get((owner.id, lane.id))
        if known is None:
            return None
        since, answered = lane.number * SCRIPTS, known.answered_by(lane)
        return EncodedLane(lane.id, since, answered) if answered < known.sent < since else None

    def forget(self, owner: Owner) -> None:
        """Forget the lanes of an owner that has left."""
        for place in [place for place in self._lanes if place[0] == owner.id]:
            del self._lanes[place]

    def _known(self, owner: Owner, lane: Lane) -> _ClaimLane:
        known = self._lanes.get((owner.id, lane.id))
        # Nothing was sent here yet; about earlier calls only the owner's own acknowledgement is known.
        return known or _ClaimLane(0, (lane.answered + 1) * SCRIPTS - 1)
