"""What a run on a loop that is blocked is spared: limits that the loop cannot keep now, though the run may have.

A handler that has ended in time would lose its lease while the loop that has to take note of it does not turn, and one
that waits on the loop can give no sign. So whoever blocks the loop is held to its limits, and the others get room
before theirs with each renewal, until the loop turns, or is given up.
"""

from tenure.worker.loop_lag import TICK
from tenure.worker.scoreboard import Way

LATE = 0.25
"""Seconds that a loop may be late before anybody is spared anything."""


def spared(
    now: float,
    *,
    turned_at: float,
    blocks: bool,
    mute: bool,
    claimed_at: float,
    signed_at: float,
    lease: float,
    timeout: float,
    heartbeat_timeout: float,
    way: Way,
) -> tuple[float, float]:
    """Return for how long a run counts as going on, and as silent, in seconds.

    `blocks`: it is this one that blocks the loop; `mute`: nothing else goes on in the process either. Lengths are
    infinite where there is no such limit; moments are uptimes.
    """
    ran, silent = now - claimed_at, now - signed_at
    if blocks or not turned_at or now - turned_at <= TICK + LATE:
        return ran, silent
    if turned_at <= claimed_at + timeout + TICK:
        # So that a whole lease has room before its limit, or what there is.
        ran = min(ran, max(0.0, timeout - lease) if timeout < float("inf") else ran)
    if (mute or way == "loop") and turned_at <= signed_at + heartbeat_timeout + TICK:
        # The next renewal comes within a quarter of it.
        silent = min(silent, heartbeat_timeout / 2)
    return ran, silent
