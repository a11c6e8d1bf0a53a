"""Extends limits of runs while their event loop is blocked, because the loop cannot see whether they kept the limits.

A handler that ended in time would lose its lease while its loop is blocked and cannot note the end. A handler that
waits on the loop can give no sign. So the run that blocks the loop keeps its limits. The other runs get more time with
each renewal, until the loop turns again or is given up.
"""

from tenure.worker.loop_lag import TICK
from tenure.worker.scoreboard import Way

LATE = 0.25
"""Seconds that a loop may be late before any limit is extended."""


def extended_limits(
    now: float,
    *,
    turned_at: float,
    blocks_loop: bool,
    no_thread_runs: bool,
    claimed_at: float,
    signed_at: float,
    lease: float,
    timeout: float,
    heartbeat_timeout: float,
    way: Way,
) -> tuple[float, float]:
    """Return for how many seconds a run counts as running, and as silent.

    `blocks_loop`: this run blocks the loop. `no_thread_runs`: no thread of the process runs either. Missing limits are
    infinite. Times are uptimes.
    """
    ran, silent = now - claimed_at, now - signed_at
    if blocks_loop or not turned_at or now - turned_at <= TICK + LATE:
        return ran, silent
    if turned_at <= claimed_at + timeout + TICK:
        # Leave room for a whole lease before the timeout, if the timeout is that long.
        ran = min(ran, max(0.0, timeout - lease) if timeout < float("inf") else ran)
    if (no_thread_runs or way == "loop") and turned_at <= signed_at + heartbeat_timeout + TICK:
        # The next renewal comes within a quarter of the heartbeat timeout.
        silent = min(silent, heartbeat_timeout / 2)
    return ran, silent
