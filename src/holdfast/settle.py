"""What becomes of runs that were taken from the dead and the silent: decided like any outcome, settled like any run."""

from collections.abc import Sequence
from random import Random

from holdfast.core.job import Owner
from holdfast.core.outcome import Stalled
from holdfast.core.settlement import settlement
from holdfast.storage.protocol import SETTLE_LIMIT, StalledLease, Storage


async def settle_stalled(
    storage: Storage, owner: Owner, stalled: Sequence[StalledLease], rng: Random, *, detail: str | None = None
) -> None:
    """Settle stalled runs in the name of who took them; for reapers and supervisors. `detail` goes to the history.

    Raises:
        StorageError: some may not be settled; they are reaped again when the taker's own lease has run out.
    """
    settlements = [
        settlement(one.lease, Stalled(one.reason, one.silent_for, one.owner, detail), rng) for one in stalled
    ]
    for start in range(0, len(settlements), SETTLE_LIMIT):
        await storage.exchange(owner, settlements[start : start + SETTLE_LIMIT])
