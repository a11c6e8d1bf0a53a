"""Merges the answers of several partitions into one: pure functions.

Each partition numbers its own jobs and events. So a cursor holds a place for each partition: numbers joined by dots.
Reading on from a cursor misses nothing in any partition, even if the servers' clocks differ. A cursor that is a single
number means that place in every partition.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from typing import TypeVar

from msgspec import structs

from tenure.core.events import AnyEvent, EventsTrimmed, at_micros
from tenure.core.fingerprint import by_frequency
from tenure.core.job import JobRecord
from tenure.storage.cursors import age_of, place_of
from tenure.storage.protocol import EVENTS_END, EventPage, EventReader, Page, Survey, SweepResult

T = TypeVar("T")

UNREAD = "-"
"""In a cursor: this partition was unreachable when it was to be read from its kept cursor or its oldest event.

`EVENTS_END` in a cursor: it was unreachable when it was to be read from its end. The next call with the cursor starts
there.
"""


def places_of(cursor: str, partitions: int) -> list[int]:
    """Return a cursor's place in each partition.

    Raises:
        ValueError: it is not a cursor of this storage.
    """
    words = cursor.split(".")
    if len(words) not in (1, partitions):
        raise ValueError(f"{cursor[:60]!r} is not a cursor of this storage; use one that it has returned")
    places = [place_of(word) for word in words]
    return places if len(places) == partitions else places * partitions


def cursor_of(places: Iterable[int | str]) -> str:
    """Return the cursor of these places, one for each partition."""
    return ".".join(map(str, places))


def event_places(cursor: str | None, partitions: int) -> list[str]:
    """Return where to read events in each partition: a number, or UNREAD or EVENTS_END if it was unreachable before.

    Raises:
        ValueError: it is not a cursor of this storage.
    """
    if not cursor or cursor == EVENTS_END or age_of(cursor) is not None:
        return [cursor or UNREAD] * partitions
    words = cursor.split(".")
    numbers = places_of(".".join("0" if word in (UNREAD, EVENTS_END) else word for word in words), partitions)
    return words if len(words) == partitions else [str(number) for number in numbers]


def reader_begins(reader: EventReader | None, partitions: int) -> list[str | None]:
    """Return where a named reader that a partition does not know begins, for each partition; None: at its end."""
    if reader is None or reader.begin is None:
        return [None] * partitions
    return [None if word in (UNREAD, EVENTS_END) else word for word in event_places(reader.begin, partitions)]


def merge_event_pages(pages: Sequence[EventPage], limit: int) -> EventPage:
    """Merge pages of events by the times of the servers' clocks; return one page with the cursor that follows it.

    `pages`: one for each partition, up to the limit; for a partition that was not asked, an empty one with its place.
    The events of one partition keep their order.
    """
    places = [_beginning(page) for page in pages]
    rows = [[event for event in page.events if not isinstance(event, EventsTrimmed)] for page in pages]
    merged: list[AnyEvent] = []
    if any(len(row) < len(page.events) for row, page in zip(rows, pages, strict=True)):
        merged.append(EventsTrimmed(oldest=cursor_of(places)))
    left = [len(row) for row in rows]
    for partition, event in _merge_rows([[(at_micros(event), event) for event in row] for row in rows], limit):
        left[partition] -= 1
        # After a partition's last event, `page.next` is used instead: it skips events that do not match.
        places[partition] = event.cursor or ""
        merged.append(structs.replace(event, cursor=cursor_of(places)))
    return EventPage(
        tuple(merged),
        cursor_of(place if unread else page.next for place, unread, page in zip(places, left, pages, strict=True)),
        incomplete=any(page.incomplete for page in pages),
    )


def merge_listings(
    found: Sequence[tuple[Sequence[tuple[int, JobRecord]], int]], before: Sequence[int], limit: int
) -> Page:
    """Return one page of the jobs of all partitions, newest first.

    `found`: each partition's newest jobs with their numbers, up to one more than the limit, and the number down to
    which it has looked; 0: at all jobs. `before`: for each partition, the number below which its jobs were asked for.
    If a partition has not looked at all jobs, a later page may have newer jobs of it than this page has of another one.
    """
    bounds = list(before)
    left = [len(row) for row, _ in found]
    jobs: list[JobRecord] = []
    rows = [[(-job.created, (made, job)) for made, job in row] for row, _ in found]
    for partition, (made, job) in _merge_rows(rows, limit):
        bounds[partition] = made
        left[partition] -= 1
        jobs.append(job)
    bounds = [
        floor if floor and not rest else bound for bound, rest, (_, floor) in zip(bounds, left, found, strict=True)
    ]
    more = any(left) or any(floor for _, floor in found)
    return Page(tuple(jobs), cursor_of(bounds) if more else None)


def merge_surveys(parts: Sequence[Survey], faults: int = 0) -> Survey:
    """Merge the surveys of all partitions. `faults`: at most this many faults.

    `swept_ago` is that of the partition whose last sweep is the oldest. Partitions without jobs and schedules do not
    count for that, unless all are empty.
    """
    used = [part for part in parts if part.schedules or any(queue.counts for queue in part.queues)]
    swept = [part.swept_ago for part in used or parts if part.swept_ago is not None]
    rates = {task: rate for part in parts for task, rate in part.task_rates.items()}
    return Survey(
        queues=tuple(sorted((queue for part in parts for queue in part.queues), key=lambda queue: queue.queue)),
        paused_tasks=tuple(sorted({task for part in parts for task in part.paused_tasks})),
        task_rates=dict(sorted(rates.items())),
        workers=tuple(
            sorted(
                (worker for part in parts for worker in part.workers),
                key=lambda worker: (worker.started, worker.owner.id),
            )
        ),
        leaders=tuple(term for part in parts for term in part.leaders),
        schedules=tuple(
            sorted((schedule for part in parts for schedule in part.schedules), key=lambda schedule: schedule.name)
        ),
        faults=tuple(sorted((fault for part in parts for fault in part.faults), key=by_frequency)[:faults]),
        swept_ago=max(swept, default=None),
        now=max(part.now for part in parts),
    )


def merge_sweeps(swept: Sequence[SweepResult], troubles: Sequence[str]) -> SweepResult:
    """Merge the sweeps of several partitions, each with its own leader. `troubles`: the errors of those that failed."""
    led = [result for result in swept if result.retry_in is None]
    did: defaultdict[str, int] = defaultdict(int)
    for result in led:
        for chore, done in result.did.items():
            did[chore] += done
    return SweepResult(
        tuple(term for result in led for term in result.terms),
        None if led else least(result.retry_in for result in swept),
        tuple(lease for result in led for lease in result.stalled),
        dict(did),
        more=any(result.more for result in led),
        troubles=(*(trouble for result in led for trouble in result.troubles), *troubles),
        due=tuple(schedule for result in led for schedule in result.due),
        next_tick=least(result.next_tick for result in led),
        # The servers' clocks differ a little. The slowest one never makes a tick due too early.
        now=min((result.now for result in led), default=0),
    )


def least(numbers: Iterable[int | None]) -> int | None:
    """Return the smallest number, ignoring None; None if there are no numbers."""
    return min((number for number in numbers if number is not None), default=None)


def _beginning(page: EventPage) -> str:
    """Return the place in its partition just before a page's first event."""
    match page.events:
        case (EventsTrimmed(oldest=oldest), *_):
            return oldest
        case (event, *_):
            # A partition numbers its events without gaps.
            return str(place_of(event.cursor or "") - 1)
        case _:
            return page.next


def _merge_rows(rows: Sequence[Sequence[tuple[int, T]]], limit: int) -> Iterator[tuple[int, T]]:
    """Merge rows: repeatedly yield the row whose first remaining entry has the lowest number, and that entry."""
    ahead = [(row[0][0], number, 0) for number, row in enumerate(rows) if row]
    heapify(ahead)
    for _ in range(limit):
        if not ahead:
            return
        _, number, at = ahead[0]
        row = rows[number]
        yield number, row[at][1]
        if at + 1 < len(row):
            heapreplace(ahead, (row[at + 1][0], number, at + 1))
        else:
            heappop(ahead)
