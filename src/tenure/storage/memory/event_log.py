"""The model's event log: events in order, and the cursors of named readers."""

from dataclasses import dataclass

from tenure.core.events import AnyEvent, Event, EventsTrimmed, JobEvent, at_micros, stamped
from tenure.core.job import Ref
from tenure.core.retention import EVENTS_KEPT
from tenure.storage.cursors import age_of, place_of
from tenure.storage.protocol import EVENT_LOAN, EVENTS_END, TRIM_LIMIT, EventPage, EventReader


@dataclass
class _ReaderPosition:
    """A named reader's cursor, the end of all batches that were lent, and the caller that the next one is lent to."""

    cursor: int
    lent_upto: int
    lent_to: str | None = None
    until: int = 0


class EventLog:
    """Events with rising cursors. Cursors of deleted events are not reused."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self.readers: dict[str, _ReaderPosition] = {}
        self._trimmed = 0
        self._first_cursor = 0
        """The cursor before the first of `events`. Trimmed events are deleted from the list in large batches."""

    @property
    def last(self) -> int:
        """The cursor of the newest event ever recorded."""
        return self._first_cursor + len(self.events)

    def record(self, event: Event, now: int) -> None:
        """Append an event; if there are too many, delete the oldest."""
        cursor = self.last + 1
        self.events.append(stamped(event, cursor, now))  # type: ignore[arg-type]
        if count := EVENTS_KEPT.deleted_at_once(cursor - self._trimmed, 1):
            self._trim_to(self._trimmed + count)

    def recorded_at(self, cursor: int) -> int:
        """Return when an event was recorded, 0 if it is not in the log any more."""
        return at_micros(self._after(cursor - 1)) if self._trimmed < cursor <= self.last else 0

    def page(self, cursor: str | None, limit: int, of: Ref | None = None, *, now: int) -> EventPage:
        """Return the events after the cursor; with `of`, only those of one job."""
        if cursor == EVENTS_END:
            return EventPage((), str(self.last))
        if (age := age_of(cursor)) is not None:
            return self._read(self._before(now - age), limit, of)
        return self._read(place_of(cursor) if cursor else 0, limit, of)

    def lend(self, cursor: str | None, limit: int, reader: EventReader, now: int) -> EventPage:
        """Lend a named reader's next batch to this caller only; the cursor says how far the last batch was handled."""
        handled = place_of(cursor) if cursor else 0
        begin = self.last if reader.begin is None else min(place_of(reader.begin), self.last)
        if cursor:
            begin = self._trimmed
        kept = self.readers.setdefault(reader.name, _ReaderPosition(begin, begin))
        # Handled events count as handled, even if the batch has been lent to another caller since. A cursor beyond what
        # was lent belongs to an earlier log and is meaningless in this one.
        kept.cursor = max(kept.cursor, handled if handled <= kept.lent_upto else 0)
        # A loan that ends further ahead than its length was made before the clock was set back.
        if kept.lent_to not in (None, reader.caller) and kept.until - EVENT_LOAN <= now < kept.until:
            return EventPage((), str(kept.cursor))
        page = self._read(kept.cursor, limit)
        kept.lent_upto = max(kept.lent_upto, place_of(page.next))
        kept.lent_to = reader.caller if page.events else None
        kept.until = now + EVENT_LOAN
        return page

    def trim(self, now: int) -> int:
        """Delete a bounded number of events that are too old or exceed the limit; return the count."""
        kept = self.last - self._trimmed
        surplus = max(0, kept - (EVENTS_KEPT.count or 0))
        aged = 0
        while aged < min(kept, TRIM_LIMIT) and at_micros(self._after(self._trimmed + aged)) <= now - EVENTS_KEPT.age:
            aged += 1
        count = min(max(surplus, aged), TRIM_LIMIT)
        self._trim_to(self._trimmed + count)
        return count

    def _trim_to(self, cursor: int) -> None:
        self._trimmed = max(self._trimmed, cursor)
        if (count := self._trimmed - self._first_cursor) > len(self.events) // 10:
            del self.events[:count]
            self._first_cursor = self._trimmed

    def _after(self, cursor: int) -> AnyEvent:
        return self.events[cursor - self._first_cursor]

    def _before(self, instant: int) -> int:
        """Return the cursor of the last event that was recorded before an instant."""
        cursor = self.last
        while cursor > self._trimmed and at_micros(self._after(cursor - 1)) >= instant:
            cursor -= 1
        return cursor

    def _read(self, cursor: int, limit: int, of: Ref | None = None) -> EventPage:
        found: list[AnyEvent] = []
        # A cursor beyond the end was given out before the storage was restored to an earlier state.
        if not self._trimmed <= cursor <= self.last:
            cursor = self._trimmed
            found.append(EventsTrimmed(oldest=str(cursor)))
        matching = 0
        while matching < limit and cursor < self.last:
            event = self._after(cursor)
            cursor += 1
            if of is None or (isinstance(event, JobEvent) and (event.queue, event.id) == (of.queue, of.id)):
                found.append(event)
                matching += 1
        return EventPage(tuple(found), str(cursor))
