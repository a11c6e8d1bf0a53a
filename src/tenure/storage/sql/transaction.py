"""A transaction: runs statements, and collects events, counters and other writes until its end.

    verbs ──"exchange.claim", values──► Transaction ──► the driver's subclass ──► the statement in the dialect's files

The verbs name a statement by its file and its name in that file. Each dialect has a statement of each such name, with
the same parameters and the same columns in its rows. Lists are JSON texts.
"""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tenure.core.events import Event, JobEvent, to_log
from tenure.core.figures import ALL_TASKS, HOURS, MINUTES, NO_COUNTS, OTHERS, TaskCounts, with_counted
from tenure.core.lane import LaneClaims
from tenure.core.lifecycle import TERMINAL
from tenure.core.order import Fairness
from tenure.core.rate import RateReservation
from tenure.core.retention import EVENTS_KEPT
from tenure.storage.protocol import EVENTS_TOPIC, Settings
from tenure.storage.sql.columns import Row
from tenure.storage.sql.lists import ByteSlices, decode_counts, json_list, json_names, json_rows

T = TypeVar("T")
Values = Mapping[str, Any]
"""The parameters of a statement by name. It ignores those that it does not have."""

Lanes = dict[tuple[str, int], LaneClaims]
"""The state of numbered claims, by owner and lane."""

NO_VALUES: Values = {}

DueWork = tuple[int | None, int | None, bool]
"""When a queue's next delayed job falls due, when its first rate with parked jobs opens, and whether jobs of unknown
tasks are parked."""

_NO_WORK: DueWork = (None, None, False)

UNKNOWN_FRONT, NO_FRONT = -(1 << 63), (1 << 63) - 1
"""For `count_move`: jobs may be at any place in their order, or are not in this order at all."""

TASKS_READ = 100
"""How many tasks' settings are read before they are needed. With more tasks that have settings, each is looked up."""


@dataclass
class KeyCounts:
    """A queue's concurrency key: its limit, how many unfinished jobs name it, and how many of them are active.

    `parked`: False if no job is parked under it. `written`: the limit and the number of jobs that name it, as stored in
    the table.
    """

    limit: int = 0
    named: int = 0
    held: int = 0
    parked: bool = True
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


def _fair_queue_state(front: int | None, opening: bool) -> FairQueueState:
    if front is None:
        return FairQueueState(None, opening)
    return FairQueueState(Fairness(front), opening, written=Fairness(front))


class Transaction(ABC):
    """The operations of one transaction, one after another. A driver implements the abstract methods.

    `now`: the instant of the current operation. `leading`: a leader's sweep is among the operations. `settings`: the
    settings that an operation has looked up or changed. `freed`: the queues and keys that jobs have left and whose
    parked jobs are not released yet, with the number of jobs that left. `lanes`: changes of numbered claims.
    `topics`: the topics to notify after the commit.

    Events, figures, counters, keys, fair orders and rates are written once for all operations, at the end.
    """

    def __init__(self, lanes: Lanes | None = None, *, repairs: bool = False) -> None:
        self.now = 0
        self.repairs = repairs
        """True if the transaction may write. It then repairs unreadable records."""
        self.recounted: set[str] = set()
        """Queues whose counters are corrected at the end of the transaction."""
        self.leading = False
        self.topics: list[str] = []
        self.settings: dict[tuple[str, str], Settings] = {}
        self.freed: Counter[tuple[str, str]] = Counter()
        self.lanes: Lanes = {}
        self._committed_lanes = {} if lanes is None else lanes
        self._events: list[tuple[int, str | None, str | None, bytes]] = []
        self._figures: list[TaskCounts] = []
        self._counts: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._since: dict[tuple[str, str], int] = {}
        self._keys: dict[tuple[str, str], KeyCounts] = {}
        self._fair_queues: dict[str, FairQueueState] = {}
        self._rates: dict[tuple[str, str], RateState] = {}
        self._limited: set[str] | None = None
        self._may_be_limited: dict[str, bool] = {}
        self._kept: dict[str, int] = {}
        self._event_bounds: tuple[int, int] | None = None
        self.written_settings: dict[tuple[str, str], str | None] = {}
        """Settings as stored that were read before they were needed. None: there are none."""
        self.knows_all_tasks = False
        """True if the settings of all tasks that have any were read."""
        self.openings = 0
        """How many opening times of rates this transaction has changed."""
        self._due: dict[str, DueWork] = {}

    @abstractmethod
    def all(self, statement: str, values: Values = NO_VALUES) -> list[Row]:
        """Return all rows of a statement."""

    @abstractmethod
    def run(self, statement: str, values: Values = NO_VALUES) -> int:
        """Run a statement and return how many rows it changed."""

    @abstractmethod
    def many(self, statement: str, values: Sequence[Values]) -> int:
        """Run a statement once for each set of values; return how many rows changed."""

    @abstractmethod
    def is_fatal(self, error: Exception) -> bool:
        """Return True if an error concerns the whole database, for example a full disk or a lost connection."""

    def one(self, statement: str, values: Values = NO_VALUES) -> Row | None:
        """Return the first row of a statement; the statement runs to its end."""
        rows = self.all(statement, values)
        return rows[0] if rows else None

    def record(self, event: Event) -> None:
        """Add an event to the log, at the instant of this operation."""
        queue, job = (event.queue, event.id) if isinstance(event, JobEvent) else (None, None)
        self._events.append((self.now, queue, job, to_log(event)))

    def count_figures(self, counted: Iterable[TaskCounts]) -> None:
        """Add to the figures of the current minute and hour."""
        self._figures += counted

    def count_move(
        self,
        queue: str,
        *,
        left: str | None = None,
        to: str | None = None,
        jobs: int = 1,
        since: int = UNKNOWN_FRONT,
    ) -> None:
        """Count that this number of a queue's jobs went from one state to another.

        `since`: none of the jobs that are now ready has a lower score, and none that has ended did so earlier.
        """
        if not jobs:
            return
        if to == "waiting" or left == "parked":
            self.lower_front(queue, "waiting", since)
        elif to is not None and to in TERMINAL:
            self.lower_front(queue, to, since)
        if left == "ruled":
            self.lower_front(queue, "failed", UNKNOWN_FRONT)
        if to in ("delayed", "parked") or left == "delayed":
            self._due.clear()
        if left is not None:
            self._counts[queue, left] -= jobs
            if left == "waiting" and queue in self._fair_queues:
                self._fair_queues[queue].waits = False
                self._fair_queues[queue].tenants.clear()
        if to is not None:
            self._counts[queue, to] += jobs

    def lower_front(self, queue: str, state: str, since: int) -> None:
        """Record that a queue has jobs in a state from this place in their order on; `advance` has the orders."""
        self._since[queue, state] = min(since, self._since.get((queue, state), NO_FRONT))

    def advance(self, queue: str, state: str, reached: int) -> None:  # noqa: B027  # optional, as it says
        """Record where the jobs of a queue in a state begin, so that queries need not look before that place.

        `state`: 'waiting' (the ready jobs, in the order of their scores), an end state (the jobs that retention may
        delete, in the order in which they ended), or 'active' without a queue (in the order in which they started). A
        database without old row versions has no use for it.
        """

    def lower_fronts(self, since: Mapping[tuple[str, str], int]) -> None:  # noqa: B027  # as above
        """Write what `lower_front` recorded."""

    def reset_fronts(self) -> None:  # noqa: B027  # as above
        """Let all queries begin at the first job again, until sweeps have computed where the jobs begin."""

    def compute_fronts(self, began: int, margin: int, limit: int) -> None:  # noqa: B027  # as above
        """Compute from all jobs what `advance` recorded, where that was last done up to this instant, the oldest first.

        `margin`: how far the clock may have been set back unnoticed, in microseconds.
        """

    def unfinished(self, queue: str) -> int:
        """Return the number of unfinished jobs of a queue."""
        row = self.one("tally.unfinished", {"queue": queue})
        noted = sum(self._counts.get((queue, state), 0) for state in ("delayed", "waiting", "active"))
        return noted if row is None else int(row[0]) + noted

    def kept(self, queue: str) -> int:
        """Return how many completed jobs of a queue are under its retention rules."""
        noted = self._counts.get((queue, "completed"), 0) - self._counts.get((queue, "kept"), 0)
        if (known := self._kept.get(queue)) is not None:
            return known + noted
        row = self.one("tally.kept", {"queue": queue})
        return noted if row is None else int(row[0]) + noted

    def load_queues(self, queues: Iterable[str]) -> None:
        """Read in one statement what an exchange needs to know of its queues, and the settings of tasks."""
        unknown = list(dict.fromkeys(queue for queue in queues if queue not in self._kept))
        if not unknown:
            return
        tasks = 0
        values = {"queues": json_rows(unknown), "tasks": TASKS_READ}
        for number, task, body, front, limited, kept, falls_due, opening, parked, oldest, last in self.all(
            "exchange.queues", values
        ):
            if number is None:
                tasks += 1
                self.written_settings["task", task] = body
                continue
            queue = unknown[int(number)]
            self._kept[queue] = kept
            self.written_settings["queue", queue] = body
            self._fair_queues.setdefault(queue, _fair_queue_state(front, opening is not None))
            self._may_be_limited.setdefault(queue, bool(limited))
            self._due[queue] = falls_due, opening, bool(parked)
            self._event_bounds = oldest, last
        self.knows_all_tasks = tasks < TASKS_READ

    def key(self, queue: str, name: str) -> KeyCounts:
        """Return a queue's concurrency key; changes of its limit and count are written at the end."""
        known = self._keys.get((queue, name))
        if known is None:
            self.load_keys([(queue, name)])
            known = self._keys[queue, name]
        return known

    def load_keys(self, keys: Iterable[tuple[str, str]]) -> None:
        """Read several concurrency keys, each a queue and a name, in one statement; known keys are not read again."""
        unknown = list(dict.fromkeys(key for key in keys if key not in self._keys))
        for number, limit, named, held, parked in self._read_keys(unknown):
            self._keys[unknown[number]] = KeyCounts(limit, named, held, bool(parked), written=(limit, named))

    def knows_key(self, queue: str, name: str) -> bool:
        """Return True if a concurrency key has been read."""
        return (queue, name) in self._keys

    def note_parked(self, queue: str, name: str) -> None:
        """Record that a job was parked under this name, which may be a concurrency key."""
        key = self._keys.get((queue, name))
        if key is not None:
            key.parked = True

    def recount_holders(self, keys: Iterable[tuple[str, str]]) -> None:
        """Read again how many jobs hold each of these keys, which are known."""
        known = list(dict.fromkeys(keys))
        for number, _, _, held, _ in self._read_keys(known):
            self._keys[known[number]].held = held

    def _read_keys(self, keys: Sequence[tuple[str, str]]) -> list[Row]:
        if len(keys) == 1:
            # A list of one takes the library longer than a row, here and below.
            queue, name = keys[0]
            return self.all("tally.key", {"queue": queue, "name": name})
        return self.all("tally.keys", {"keys": json_rows(keys)}) if keys else []

    def due_work(self, queues: Sequence[str], listed: str) -> list[tuple[str, DueWork]]:
        """Return the due work of those queues that have any. `listed`: the queues as a JSON list."""
        if not self.recounted and all(queue in self._due for queue in queues):
            return [(queue, work) for queue in dict.fromkeys(queues) if (work := self._due[queue]) != _NO_WORK]
        return [
            (queue, (falls_due, opening, bool(unknown)))
            for queue, falls_due, opening, unknown in self.all("exchange.due_queues", {"queues": listed})
        ]

    def note_opening(self) -> None:
        """Record that an opening time of a rate has changed."""
        self.openings += 1
        self._due.clear()

    def fair_queue(self, queue: str) -> FairQueueState:
        """Return a queue's fair order; its changes are written at the end."""
        known = self._fair_queues.get(queue)
        if known is None:
            row = self.one("fair_queue.state", {"queue": queue})
            front, opening = (None, 0) if row is None else row
            known = self._fair_queues[queue] = _fair_queue_state(front, bool(opening))
        return known

    def rate(self, queue: str, name: str) -> RateState:
        """Return a queue's rate; changes of its taken time are written at the end."""
        known = self._rates.get((queue, name))
        if known is None:
            row = self.one("rates.rate", {"queue": queue, "name": name})
            until, reach, opens = (0, 0, None) if row is None else row
            taken = RateReservation(until, reach)
            known = self._rates[queue, name] = RateState(taken, opens, written=taken)
        return known

    def may_be_limited(self, queue: str) -> bool:
        """Return False if a queue has no limit of its own."""
        known = self._may_be_limited.get(queue)
        if known is None:
            if self._limited is None:
                self._limited = {queue for (queue,) in self.all("rates.limited_queues")}
            known = self._may_be_limited[queue] = queue in self._limited
        return known

    def note_limited(self, queue: str) -> None:
        """Record that a queue has a limit of its own."""
        self._may_be_limited[queue] = True

    def lane(self, owner: str, lane: int) -> LaneClaims:
        """Return the state of an owner's numbered claims in one lane."""
        place = owner, lane
        return self.lanes.get(place) or self._committed_lanes.get(place) or LaneClaims()

    def drop_rates(self) -> None:
        """Drop the cached rates: a statement has changed their table directly."""
        self._rates.clear()
        self._due.clear()

    def savepoint(self, do: Callable[[], T], otherwise: T) -> tuple[T, str | None]:
        """Run `do`; if it fails, undo its writes and return `otherwise` and the error.

        A failure of the whole database (disk full, lock, damaged disk) is raised instead. All collected writes are
        flushed before `do` runs.
        """
        self.flush()
        recounted = set(self.recounted)
        self.run("session.savepoint")
        try:
            answer = do()
        except Exception as error:
            if self.is_fatal(error):
                raise
            self._events.clear()
            self._figures.clear()
            self._counts.clear()
            self._since.clear()
            self._keys.clear()
            self._fair_queues.clear()
            self._rates.clear()
            self._limited = None
            self._may_be_limited.clear()
            self._due.clear()
            self.written_settings.clear()
            self.knows_all_tasks = False
            self.freed.clear()
            self.recounted = recounted
            self.run("session.rollback_to_savepoint")
            self.run("session.release_savepoint")
            return otherwise, f"{type(error).__name__}: {error}"
        self.run("session.release_savepoint")
        return answer, None

    def flush(self) -> None:
        """Write the collected changes: at the end, and before an operation that reads them."""
        if self._events:
            self.topics.append(EVENTS_TOPIC)
            self._write_events()
            self._events.clear()
        if self._figures:
            self._write_figures()
            self._figures.clear()
        if self._counts:
            self._write_counts()
            self._counts.clear()
        if self._since:
            # Of the states whose counters have not changed.
            self.lower_fronts(self._since)
            self._since.clear()
        if self._keys:
            self._write_keys()
        # They are in tables that other statements change too.
        self._kept.clear()
        self._event_bounds = None
        for queue, state in self._fair_queues.items():
            if state.fairness is not None and state.fairness != state.written:
                self._write_fair_queue(queue, state.fairness, state.written)
                state.written = deepcopy(state.fairness)

        for (queue, name), rate in self._rates.items():
            if rate.taken != rate.written:
                taken = rate.taken
                values = {"queue": queue, "name": name, "taken_until": taken.until, "reach": taken.reach}
                self.run("rates.set_taken", values)
                rate.written = rate.taken

    def _write_figures(self) -> None:
        queues = json_names(sorted({counted.queue for counted in self._figures}))
        tasks = json_names(sorted({ALL_TASKS, OTHERS, *(counted.task for counted in self._figures)}))
        for level in (MINUTES, HOURS):
            place = {"length": level.length, "start": level.start(self.now)}
            found = self.all("tally.figures", {**place, "queues": queues, "tasks": tasks})
            # Of other tasks only the names matter. A queue may have many.
            known = {
                (queue, task): NO_COUNTS if counts is None else decode_counts(counts) for queue, task, counts in found
            }
            changed = with_counted(known, self._figures)
            cells = [(queue, task, json_rows(counts)) for (queue, task), counts in changed.items()]
            self.run("tally.set_figures", {**place, "cells": json_rows(cells)})

    def _write_counts(self) -> None:
        counts = [
            # Where jobs have ended, the next sweep checks whether jobs are past retention.
            (queue, state, jobs, 0 if jobs > 0 and state in TERMINAL else None, self._since.pop((queue, state), None))
            for (queue, state), jobs in self._counts.items()
        ]
        if len(counts) == 1:
            names = "queue", "state", "jobs", "trim_at", "since"
            self.run("tally.count_one", dict(zip(names, counts[0], strict=True)))
        else:
            self.run("tally.count", {"counts": json_rows(counts)})
        # Failed jobs that no rule redrives any more are under their queue's retention from now on.
        unruled = [{"queue": queue} for (queue, state), jobs in self._counts.items() if state == "ruled" and jobs < 0]
        self.many("tally.trim_now", unruled)

    def _write_keys(self) -> None:
        changed = [(place, key) for place, key in self._keys.items() if (key.limit, key.named) != key.written]
        named = [(*place, key.limit, key.named) for place, key in changed if key.named]
        if len(named) == 1:
            queue, name, limit, jobs = named[0]
            self.run("tally.set_key", {"queue": queue, "name": name, "limit": limit, "named": jobs})
        elif named:
            self.run("tally.set_keys", {"keys": json_rows(named)})
        if unnamed := [place for place, key in changed if not key.named]:
            self.run("tally.delete_keys", {"keys": json_rows(unnamed)})
        for _, key in changed:
            key.written = (key.limit, key.named)

    def _write_events(self) -> None:
        bodies = ByteSlices()
        events = json_list([(at, queue, job, *bodies.add(body)) for at, queue, job, body in self._events])
        if events is not None:
            self.run("events.record", {"events": events, "bodies": bodies.joined()})
        else:
            self.many(
                "events.record_one",
                [
                    {"at": at, "queue": queue, "job": job, "body": body.decode()}
                    for at, queue, job, body in self._events
                ],
            )
        self._trim_events(len(self._events))

    def _trim_events(self, recorded: int) -> None:
        """Delete the oldest events if there are too many, but not many more than were recorded."""
        if self._event_bounds is None:
            row = self.one("events.bounds")
            oldest, last = (0, 0) if row is None else row
        else:
            oldest, last = self._event_bounds[0], self._event_bounds[1] + recorded
        surplus = EVENTS_KEPT.deleted_at_once(last - oldest, recorded)
        if surplus:
            self.run("sweep.delete_events", {"first": oldest + 1, "last": oldest + surplus})

    def _write_fair_queue(self, queue: str, now: Fairness, then: Fairness | None) -> None:
        if then is None or now.front != then.front:
            self.run("fair_queue.set_front", {"queue": queue, "front": now.front})
        reached = now.reached.items() - ({} if then is None else then.reached).items()
        tags = now.tags.items() - ({} if then is None else then.tags).items()
        self.many("fair_queue.set_reached", [{"queue": queue, "boost": boost, "at": at} for boost, at in reached])
        self.many(
            "fair_queue.set_tag",
            [{"queue": queue, "boost": boost, "key": key, "tag": tag} for (boost, key), tag in tags],
        )
