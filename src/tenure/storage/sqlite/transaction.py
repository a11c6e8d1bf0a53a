"""A transaction: runs statements, and collects events, counters and other writes until its end."""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tenure.core.events import Event, JobEvent, to_log
from tenure.core.lane import LaneClaims
from tenure.core.lifecycle import TERMINAL
from tenure.core.order import Fairness
from tenure.core.rate import RateReservation
from tenure.core.retention import EVENTS_KEPT
from tenure.storage.protocol import EVENTS_TOPIC, Settings
from tenure.storage.sqlite.rows import ByteSlices, Garbled, GarbledRow, Row, garbled, listed
from tenure.storage.sqlite.statements import query

T = TypeVar("T")
Values = Sequence[Any] | Mapping[str, Any]
Lanes = dict[tuple[str, int], LaneClaims]
"""The state of numbered claims, by owner and lane."""

_RECORD = query("events", "record")
_RECORD_ONE = query("events", "record_one")
_BOUNDS = query("events", "bounds")
_FORGET_EVENTS = query("sweep", "forget")
_COUNT = query("tally", "count")
_COUNT_ENDED = query("tally", "count_ended")
_LOOK_AT_ONCE = query("tally", "look_at_once")
_UNFINISHED = query("tally", "unfinished")
_KEPT = query("tally", "kept")
_SLOTS = query("tally", "slots")
_NAME_KEY = query("tally", "name_key")
_FORGET_KEY = query("tally", "forget_key")
_LINE = query("line", "line")
_KEEP_FRONT = query("line", "keep_front")
_KEEP_REACHED = query("line", "keep_reached")
_KEEP_TAG = query("line", "keep_tag")
_RATE = query("rates", "rate")
_TAKE = query("rates", "take")
_CHORE = query("session", "chore")
_CHORE_DONE = query("session", "chore_done")
_CHORE_UNDONE = query("session", "chore_undone")

_NOT_TEXT = "Could not decode to UTF-8"
"""The start of sqlite3's error message for text that is not UTF-8. No data was changed before it, except by
`exchange.complete`, which would make the same changes again."""


@dataclass
class KeyCounts:
    """A queue's concurrency key: its limit, how many unfinished jobs name it, and how many of them are active.

    `written`: the limit and the number of jobs that name it, as stored in the table.
    """

    limit: int = 0
    named: int = 0
    held: int = 0
    written: tuple[int, int] = (0, 0)

    @property
    def free(self) -> int:
        """How many more jobs of this key may start."""
        return max(0, self.limit - self.held) if self.named else 0


@dataclass
class FairQueueState:
    """A queue's fair order, as far as it was looked up. `fairness` is None if the queue is not fair.

    `opening`: a rate of the queue has an opening time. `waits`: a job of the queue is known to wait. `tenants`: the
    priorities and tenants that are known to have waiting jobs. `written`: the values in the tables, None if all of them
    must be written again.
    """

    fairness: Fairness | None
    opening: bool
    waits: bool = False
    tenants: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    written: Fairness | None = None


@dataclass
class RateState:
    """A queue's rate: up to when its time is taken, and when it lets its first parked job start.

    `written`: the taken time as stored in the table.
    """

    taken: RateReservation
    opens: int | None
    written: RateReservation


class Transaction:
    """The operations of one transaction, one after another.

    `now`: the instant of the current operation. `leading`: a leader's sweep is among the operations. `settings`: the
    settings that an operation has looked up or changed. `freed`: the queues and keys that jobs have left and whose
    parked jobs are not released yet, with the number of jobs that left. `lanes`: changes of numbered claims.

    Events, counters, keys, fair orders and rates are written once for all operations, at the end.
    """

    def __init__(self, connection: sqlite3.Connection, lanes: Lanes | None = None, *, mends: bool = False) -> None:
        self.now = 0
        self.mends = mends
        """True if the transaction may write. It then repairs unreadable records."""
        self.recounted: set[str] = set()
        """Queues whose counters are corrected at the end of the transaction."""
        self.leading = False
        self.knocked: list[str] = []
        self.settings: dict[tuple[str, str], Settings] = {}
        self.freed: Counter[tuple[str, str]] = Counter()
        self.lanes: Lanes = {}
        self._committed_lanes = {} if lanes is None else lanes
        self._cursor = connection.cursor()
        self._events: list[tuple[int, str | None, str | None, bytes]] = []
        self._counts: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._slots: dict[tuple[str, str], KeyCounts] = {}
        self._lines: dict[str, FairQueueState] = {}
        self._rates: dict[tuple[str, str], RateState] = {}

    def all(self, sql: str, values: Values = ()) -> list[Row]:
        """Return all rows of a statement."""
        try:
            return self._cursor.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            if not str(error).startswith(_NOT_TEXT):
                raise
            return self._garbled(sql, values)

    def one(self, sql: str, values: Values = ()) -> Row | None:
        """Return the first row of a statement; the statement runs to its end."""
        rows = self.all(sql, values)
        return rows[0] if rows else None

    def run(self, sql: str, values: Values = ()) -> int:
        """Run a statement and return how many rows it changed."""
        return self._cursor.execute(sql, values).rowcount

    def many(self, sql: str, values: Sequence[Values]) -> int:
        """Run a statement once for each set of values; return how many rows changed."""
        return self._cursor.executemany(sql, values).rowcount if values else 0

    def record(self, event: Event) -> None:
        """Add an event to the log, at the instant of this operation."""
        queue, job = (event.queue, event.id) if isinstance(event, JobEvent) else (None, None)
        self._events.append((self.now, queue, job, to_log(event)))

    def moved(self, queue: str, *, left: str | None = None, to: str | None = None, jobs: int = 1) -> None:
        """Count that this number of a queue's jobs went from one state to another."""
        if not jobs:
            return
        if left is not None:
            self._counts[queue, left] -= jobs
            if left == "waiting" and queue in self._lines:
                self._lines[queue].waits = False
                self._lines[queue].tenants.clear()
        if to is not None:
            self._counts[queue, to] += jobs

    def unfinished(self, queue: str) -> int:
        """Return the number of unfinished jobs of a queue."""
        row = self.one(_UNFINISHED, (queue,))
        noted = sum(self._counts.get((queue, state), 0) for state in ("delayed", "waiting", "active"))
        return noted if row is None else int(row[0]) + noted

    def kept(self, queue: str) -> int:
        """Return how many completed jobs of a queue are under its retention rules."""
        row = self.one(_KEPT, (queue,))
        noted = self._counts.get((queue, "completed"), 0) - self._counts.get((queue, "kept"), 0)
        return noted if row is None else int(row[0]) + noted

    def slots(self, queue: str, name: str) -> KeyCounts:
        """Return a queue's concurrency key; changes of its limit and count are written at the end."""
        known = self._slots.get((queue, name))
        if known is None:
            row = self.one(_SLOTS, {"queue": queue, "name": name})
            limit, named, held = (0, 0, 0) if row is None else row
            known = self._slots[queue, name] = KeyCounts(limit, named, held, written=(limit, named))
        return known

    def line(self, queue: str) -> FairQueueState:
        """Return a queue's fair order; its changes are written at the end."""
        known = self._lines.get(queue)
        if known is None:
            row = self.one(_LINE, {"queue": queue})
            front, opening = (None, 0) if row is None else row
            known = self._lines[queue] = FairQueueState(None, bool(opening))
            if front is not None:
                known.fairness, known.written = Fairness(front), Fairness(front)
        return known

    def rate(self, queue: str, name: str) -> RateState:
        """Return a queue's rate; changes of its taken time are written at the end."""
        known = self._rates.get((queue, name))
        if known is None:
            row = self.one(_RATE, (queue, name))
            until, reach, opens = (0, 0, None) if row is None else row
            taken = RateReservation(until, reach)
            known = self._rates[queue, name] = RateState(taken, opens, written=taken)
        return known

    def lane(self, owner: str, lane: int) -> LaneClaims:
        """Return the state of an owner's numbered claims in one lane."""
        place = owner, lane
        return self.lanes.get(place) or self._committed_lanes.get(place) or LaneClaims()

    def forget_rates(self) -> None:
        """Drop the cached rates: a statement has changed their table directly."""
        self._rates.clear()

    def chore(self, do: Callable[[], T], otherwise: T) -> tuple[T, str | None]:
        """Do one of several chores; if it fails, undo it and return `otherwise` and the error.

        A failure of the whole database (disk full, lock, damaged disk) is raised instead. All collected writes are
        flushed before the chore begins.
        """
        self.write_down()
        self._cursor.execute(_CHORE)
        try:
            answer = do()
        except Exception as error:
            if isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError:
                raise
            self._events.clear()
            self._counts.clear()
            self._slots.clear()
            self._lines.clear()
            self._rates.clear()
            self.freed.clear()
            self.recounted.clear()
            self._cursor.execute(_CHORE_UNDONE)
            self._cursor.execute(_CHORE_DONE)
            return otherwise, f"{type(error).__name__}: {error}"
        self._cursor.execute(_CHORE_DONE)
        return answer, None

    def _garbled(self, sql: str, values: Values) -> list[Row]:
        """Return all rows of a statement. A row with text that is not UTF-8 becomes a `GarbledRow`."""
        connection = self._cursor.connection
        before = connection.text_factory
        connection.text_factory = garbled
        try:
            found = self._cursor.execute(sql, values).fetchall()
        finally:
            connection.text_factory = before
        return [GarbledRow(row) if Garbled in map(type, row) else row for row in found]

    def write_down(self) -> None:
        """Write the collected changes: at the end, and before an operation that reads them."""
        if self._events:
            self.knocked.append(EVENTS_TOPIC)
            self._write_events()
            self._events.clear()
        if self._counts:
            self._write_counts()
            self._counts.clear()
        for place, slots in self._slots.items():
            if (slots.limit, slots.named) != slots.written:
                if slots.named:
                    self.run(_NAME_KEY, (*place, slots.limit, slots.named))
                else:
                    self.run(_FORGET_KEY, place)
                slots.written = (slots.limit, slots.named)
        for queue, line in self._lines.items():
            if line.fairness is not None and line.fairness != line.written:
                self._write_line(queue, line.fairness, line.written)
                line.written = deepcopy(line.fairness)

        for place, rate in self._rates.items():
            if rate.taken != rate.written:
                self.run(_TAKE, (*place, rate.taken.until, rate.taken.reach))
                rate.written = rate.taken

    def _write_counts(self) -> None:
        ended = {place: jobs for place, jobs in self._counts.items() if jobs > 0 and place[1] in TERMINAL}
        self.many(_COUNT, [(*place, jobs) for place, jobs in self._counts.items() if place not in ended])
        self.many(_COUNT_ENDED, [(*place, jobs) for place, jobs in ended.items()])
        # Failed jobs that no rule redrives any more are under their queue's retention from now on.
        unruled = [queue for (queue, state), jobs in self._counts.items() if state == "ruled" and jobs < 0]
        self.many(_LOOK_AT_ONCE, [(queue,) for queue in unruled])

    def _write_events(self) -> None:
        bodies = ByteSlices()
        told = listed([(at, queue, job, *bodies.add(body)) for at, queue, job, body in self._events])
        if told is not None:
            self._cursor.execute(_RECORD, {"told": told, "bodies": bodies.joined()})
        else:
            self.many(_RECORD_ONE, [(at, queue, job, body.decode()) for at, queue, job, body in self._events])
        self._forget_events(len(self._events))

    def _forget_events(self, recorded: int) -> None:
        """Delete the oldest events if there are too many, but not many more than were recorded."""
        row = self.one(_BOUNDS)
        oldest, last = (0, 0) if row is None else row
        surplus = EVENTS_KEPT.deleted_at_once(last - oldest, recorded)
        if surplus:
            self.run(_FORGET_EVENTS, (oldest + surplus,))

    def _write_line(self, queue: str, now: Fairness, then: Fairness | None) -> None:
        if then is None or now.front != then.front:
            self.run(_KEEP_FRONT, (queue, now.front))
        reached = now.reached.items() - ({} if then is None else then.reached).items()
        tags = now.tags.items() - ({} if then is None else then.tags).items()
        self.many(_KEEP_REACHED, [(queue, boost, at) for boost, at in reached])
        self.many(_KEEP_TAG, [(queue, *lane, tag) for lane, tag in tags])
