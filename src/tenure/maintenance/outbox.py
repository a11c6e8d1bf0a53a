"""Carries out entries of a storage's outbox: notifies the dependents of an ended job."""

from collections.abc import Sequence

from tenure.storage.protocol import Storage
from tenure.storage.waiting import OutboxEntry


async def carry_out(storage: Storage, entries: Sequence[OutboxEntry]) -> None:
    """Deliver the tokens of some entries, and advance the entries only then.

    If this process dies in between, the next sweep hands out the entries again. Delivering a token twice changes
    nothing.
    """
    for entry in entries:
        await storage.revise(entry.deliveries)
        await storage.revise([entry.done])
