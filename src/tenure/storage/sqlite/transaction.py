"""One transaction at work: its statements, and what it leaves behind beside the rows it changed."""

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
"""What is known of numbered claims, by owner and lane."""

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
_MISCOUNTED = query("mend", "miscounted")
_RECOUNT_KEYS = query("mend", "recount_keys")
_FORGET_KEYS = query("mend", "forget_keys")

_NOT_TEXT = "Could not decode to UTF-8"
"""How sqlite3 begins to say that a text is not UTF-8. Nothing was changed by then, save by `exchange.complete`, which
would change the same again."""


@dataclass
class KeyCounts:
    """A key of a queue: its limit, how many unfinished jobs name it, how many of them are active.

    `written`: the limit and the number as they stand in the table.
    """

    limit: int = 0
    named: int = 0
    held: int = 0
    written: tuple[int, int] = (0, 0)

    @property
    def free(self) -> int:
        """How many more may start."""
        return max(0, self.limit - self.held) if self.named else 0


@dataclass
class FairQueueState:
    """A queue's line: how far it has got in virtual time, as far as that was looked up; None where it is not fair.

    `opening`: a rate of the queue says when it opens. `waits`: it is known that somebody waits. `tenants`: of which
    priorities and tenants that is known. `written`: what stands in the tables of all this, None where they are to be
    written anew.
    """

    fairness: Fairness | None
    opening: bool
    waits: bool = False
    tenants: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    written: Fairness | None = None


@dataclass
class RateState:
    """A rate of a queue: how far its time is taken, and when it lets the first of those parked under it start.

    `written`: the first of these as it stands in the table.
    """

    taken: RateReservation
    opens: int | None
    written: RateReservation


class Transaction:
    """The operations of one transaction, one after another; `now` is the instant of the one at work,
    `leading` says that a leader swept among them, `settings` holds those that one of them has looked up or changed,
    `freed` the queues and keys that jobs have left and nobody has been let in under yet, and how many left each,
    `lanes` what has changed of numbered claims.

    Events, counters, keys, lines and rates are written once for all of them, at the end.
    """

    def __init__(self, connection: sqlite3.Connection, lanes: Lanes | None = None, *, mends: bool = False) -> None:
        self.now = 0
        self.mends = mends
        """Whether it may write, and so mends records that cannot be read."""
        self.recounted: set[str] = set()
        """Queues whose counters are to be made right at the end of the transaction."""
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
        """Return all rows that a statement yields."""
        try:
            return self._cursor.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            if not str(error).startswith(_NOT_TEXT):
                raise
            return self._garbled(sql, values)

    def one(self, sql: str, values: Values = ()) -> Row | None:
        """Return the first row that a statement yields; the statement is run to its end."""
        rows = self.all(sql, values)
        return rows[0] if rows else None

    def run(self, sql: str, values: Values = ()) -> int:
        """Return how many rows a statement changed."""
        return self._cursor.execute(sql, values).rowcount

    def many(self, sql: str, values: Sequence[Values]) -> int:
        """Run a statement once for each set of values; return how many rows that changed."""
        return self._cursor.executemany(sql, values).rowcount if values else 0

    def record(self, event: Event) -> None:
        """Note an event for the log, at the instant of this operation."""
        queue, job = (event.queue, event.id) if isinstance(event, JobEvent) else (None, None)
        self._events.append((self.now, queue, job, to_log(event)))

    def moved(self, queue: str, *, left: str | None = None, to: str | None = None, jobs: int = 1) -> None:
        """Note that so many jobs of a queue went from one state to another."""
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
        """Return how many jobs of a queue are not over."""
        row = self.one(_UNFINISHED, (queue,))
        noted = sum(self._counts.get((queue, state), 0) for state in ("delayed", "waiting", "active"))
        return noted if row is None else int(row[0]) + noted

    def kept(self, queue: str) -> int:
        """Return how many completed jobs of a queue are kept by its terms."""
        row = self.one(_KEPT, (queue,))
        noted = self._counts.get((queue, "completed"), 0) - self._counts.get((queue, "kept"), 0)
        return noted if row is None else int(row[0]) + noted

    def slots(self, queue: str, name: str) -> KeyCounts:
        """Return a key of a queue; what is changed of its limit and number is written down with the rest."""
        known = self._slots.get((queue, name))
        if known is None:
            row = self.one(_SLOTS, {"queue": queue, "name": name})
            limit, named, held = (0, 0, 0) if row is None else row
            known = self._slots[queue, name] = KeyCounts(limit, named, held, written=(limit, named))
        return known

    def line(self, queue: str) -> FairQueueState:
        """Return a queue's line; what is changed of how far it has got is written down with the rest."""
        known = self._lines.get(queue)
        if known is None:
            row = self.one(_LINE, {"queue": queue})
            front, opening = (None, 0) if row is None else row
            known = self._lines[queue] = FairQueueState(None, bool(opening))
            if front is not None:
                known.fairness, known.written = Fairness(front), Fairness(front)
        return known

    def rate(self, queue: str, name: str) -> RateState:
        """Return a rate of a queue; what is taken of its time is written down with the rest."""
        known = self._rates.get((queue, name))
        if known is None:
            row = self.one(_RATE, (queue, name))
            until, reach, opens = (0, 0, None) if row is None else row
            taken = RateReservation(until, reach)
            known = self._rates[queue, name] = RateState(taken, opens, written=taken)
        return known

    def lane(self, owner: str, lane: int) -> LaneClaims:
        """Return what is known of the numbered claims of an owner's lane."""
        place = owner, lane
        return self.lanes.get(place) or self._committed_lanes.get(place) or LaneClaims()

    def forget_rates(self) -> None:
        """Look at rates anew from now on: what stands in the table was changed beside them."""
        self._rates.clear()

    def chore(self, do: Callable[[], T], otherwise: T) -> tuple[T, str | None]:
        """Do one chore of several; if it fails, leave no trace of it, and return `otherwise` and what went wrong.

        What fails for the whole database (no room, no lock, a broken disk) is no chore's own failure and is raised.
        What others have noted is written down before it begins.
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

    def recount(self) -> None:
        """Make the counters of those queues right; all else is written down by now."""
        for queue in sorted(self.recounted):
            for state, difference in self.all(_MISCOUNTED, {"queue": queue}):
                self.run(_COUNT, (queue, state, -difference))
            self.run(_RECOUNT_KEYS, {"queue": queue})
            self.run(_FORGET_KEYS, {"queue": queue})
        self.recounted.clear()

    def _garbled(self, sql: str, values: Values) -> list[Row]:
        """Return all rows that a statement yields. A row with text that is not UTF-8 is a `GarbledRow`."""
        connection = self._cursor.connection
        before = connection.text_factory
        connection.text_factory = garbled
        try:
            found = self._cursor.execute(sql, values).fetchall()
        finally:
            connection.text_factory = before
        return [GarbledRow(row) if Garbled in map(type, row) else row for row in found]

    def write_down(self) -> None:
        """Write what was noted: at the end, and before an operation that reads it."""
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
        # Failed jobs that a rule redrives no more are under their queue's retention from now on.
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
        """Forget the oldest events where there are too many, and not many more than were recorded."""
        row = self.one(_BOUNDS)
        oldest, last = (0, 0) if row is None else row
        surplus = EVENTS_KEPT.forgotten_at_once(last - oldest, recorded)
        if surplus:
            self.run(_FORGET_EVENTS, (oldest + surplus,))

    def _write_line(self, queue: str, now: Fairness, then: Fairness | None) -> None:
        if then is None or now.front != then.front:
            self.run(_KEEP_FRONT, (queue, now.front))
        reached = now.reached.items() - ({} if then is None else then.reached).items()
        tags = now.tags.items() - ({} if then is None else then.tags).items()
        self.many(_KEEP_REACHED, [(queue, boost, at) for boost, at in reached])
        self.many(_KEEP_TAG, [(queue, *lane, tag) for lane, tag in tags])
