"""Carries out entries of a storage's outbox: notifies the dependents of an ended job."""

import contextlib
from collections.abc import Sequence

from msgspec import Struct

from tenure.errors import StorageError
from tenure.storage.protocol import Storage
from tenure.storage.waiting import ENTRY_PAGE, AdvanceEntry, OutboxEntry

RETRY_AFTER = 10_000_000
"""After how many microseconds a sweep hands out an entry again that could not be carried out."""


class CarriedOut(Struct, frozen=True):
    """The result of carrying out entries. `more`: some have a next page. `troubles`: why some were put off."""

    more: bool
    troubles: tuple[str, ...]


async def carry_out(storage: Storage, entries: Sequence[OutboxEntry]) -> CarriedOut:
    """Deliver the tokens of some entries, and advance the entries only then.

    If this process dies in between, the next sweep hands out the entries again. Delivering a token twice changes
    nothing. An entry that fails does not delay the others: it is put off, and its dependents are notified later.
    """
    more, troubles = False, list[str]()
    for entry in entries:
        trouble = await _deliver(storage, entry)
        if trouble is None:
            more = more or len(entry.dependents) == ENTRY_PAGE
        else:
            troubles.append(f"the dependents of {entry.ref.id!r} in the queue {entry.ref.queue!r}: {trouble}")
            put_off = AdvanceEntry(entry.ref, entry.number, entry.cursor, put_off=RETRY_AFTER)
            with contextlib.suppress(StorageError):
                await storage.revise([put_off])
    return CarriedOut(more, tuple(troubles))


async def _deliver(storage: Storage, entry: OutboxEntry) -> str | None:
    """Deliver the tokens of one entry and advance it; return what went wrong, or None."""
    try:
        answers = await storage.revise(entry.deliveries)
        # A token for a job that is gone has no receiver.
        if len(answers) < len(entry.deliveries) or any(one.verdict not in ("done", "gone") for one in answers):
            return "not all tokens were answered"
        await storage.revise([entry.done])
    except Exception as error:
        return repr(error)
    return None
