"""The outbox in SQL: ends whose dependents are yet to be notified, in pages that are read one at a time."""

import msgspec

from tenure.core.job import Ref
from tenure.core.waiting import Dependent
from tenure.storage.revisions import RevisionResult
from tenure.storage.sql.transaction import End, Transaction
from tenure.storage.waiting import ENTRY_PAGE, OUTBOX_DELAY, OUTBOX_LIMIT, AdvanceEntry, OutboxEntry

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[Dependent, ...]).decode

_ALL_PAGES = 1 << 40


def write(tx: Transaction, end: End) -> None:
    """Write an entry for an end.

    It replaces the entries of earlier failures whose dependents it notifies too: its tokens replace theirs.
    """
    dependents = frozenset(end.dependents)
    for (number,) in tx.all("waiting.failed_entries", {"queue": end.ref.queue, "id": end.ref.id}):
        if dependents.issuperset(_pages(tx, number, 0, _ALL_PAGES)):
            _delete(tx, number)
            tx.deliveries.entries = [entry for entry in tx.deliveries.entries if entry.number != number]
    values = {
        "queue": end.ref.queue,
        "id": end.ref.id,
        "completed": int(end.completed),
        "total": len(end.dependents),
        "at": tx.now + OUTBOX_DELAY,
    }
    row = tx.one("waiting.insert_entry", values)
    if row is None:
        raise AssertionError("an insert returns its row")
    number = int(row[0])
    pages = range(0, len(end.dependents), ENTRY_PAGE)
    tx.many(
        "waiting.insert_page",
        [
            {
                "number": number,
                "page": begin // ENTRY_PAGE,
                "dependents": _encode(end.dependents[begin : begin + ENTRY_PAGE]).decode(),
            }
            for begin in pages
        ],
    )
    tx.deliveries.entries.append(OutboxEntry(end.ref, number, end.completed, end.dependents[:ENTRY_PAGE]))


def advance(tx: Transaction, revision: AdvanceEntry) -> RevisionResult:
    """Record how far an entry was carried out. Another end of a job of the same id has an entry of its own."""
    row = tx.one("waiting.entry", {"number": revision.number})
    if row is None or row[:2] != (revision.ref.queue, revision.ref.id) or revision.cursor < row[3]:
        return RevisionResult(revision.ref, "gone")
    *_, total, done = row
    if revision.cursor >= total:
        _delete(tx, revision.number)
    else:
        # The next page is handed out at once.
        at = tx.now if revision.cursor > done else tx.now + revision.put_off
        tx.run("waiting.advance_entry", {"number": revision.number, "done": revision.cursor, "at": at})
    return RevisionResult(revision.ref, "done")


def due(tx: Transaction) -> tuple[OutboxEntry, ...]:
    """Return the entries that a sweep hands out, those first that have waited longest."""
    found = tx.all("waiting.due_entries", {"now": tx.now, "limit": OUTBOX_LIMIT})
    return tuple(
        OutboxEntry(Ref(queue, id_), number, bool(completed), _page(tx, number, done), done)
        for number, queue, id_, completed, done in found
    )


def written(tx: Transaction) -> tuple[OutboxEntry, ...]:
    """Return the entries that the current operation has written."""
    entries, tx.deliveries.entries = tx.deliveries.entries, []
    return tuple(entries[:OUTBOX_LIMIT])


def _page(tx: Transaction, number: int, done: int) -> tuple[Dependent, ...]:
    """Return the next dependents of an entry after those that are done."""
    first, skipped = divmod(done, ENTRY_PAGE)
    return _pages(tx, number, first, first + bool(skipped))[skipped : skipped + ENTRY_PAGE]


def _pages(tx: Transaction, number: int, first: int, last: int) -> tuple[Dependent, ...]:
    found = tx.all("waiting.pages", {"number": number, "first": first, "last": last})
    return tuple(dependent for (page,) in found for dependent in _decode(page))


def _delete(tx: Transaction, number: int) -> None:
    tx.run("waiting.delete_entry", {"number": number})
    tx.run("waiting.delete_pages", {"number": number})
