"""Reads that change nothing: job details, listings, the survey and the event log."""

from collections import defaultdict
from collections.abc import Sequence
from heapq import merge
from itertools import islice

import msgspec

from tenure.core.events import AnyEvent, EventsTrimmed
from tenure.core.job import JobDetail, Owner, Ref
from tenure.core.lifecycle import TERMINAL, State
from tenure.storage.cursors import age_of, place_of
from tenure.storage.protocol import (
    EVENT_LOAN,
    EVENTS_END,
    EventPage,
    EventReader,
    Page,
    Query,
    QueueSurvey,
    Settings,
    Survey,
    WorkerInfo,
    WorkerSurvey,
)
from tenure.storage.sqlite import rows, settings, unknown_tasks
from tenure.storage.sqlite.schedules import schedules
from tenure.storage.sqlite.statements import query
from tenure.storage.sqlite.sweep import reigning
from tenure.storage.sqlite.transaction import Transaction
from tenure.storage.sqlite.transitions import past, taken_in, whole

_JOB = query("get", "job")
_BY_SEQ = query("get", "by_seq")
_RUNS = query("get", "runs")
_LOG = query("get", "log")
_FIND = {
    name: query("find", name) for name in ("all", "named", "merging", "queues", "waiting", "delayed", "active", "over")
}
_COUNTS = query("survey", "counts")
_SETTINGS = query("survey", "settings")
_OLDEST = query("survey", "oldest")
_WORKERS = query("survey", "workers")
_BOUNDS = query("events", "bounds")
_AFTER = query("events", "after")
_OF_JOB = query("events", "of_job")
_READER = query("events", "reader")
_KEEP = query("events", "keep")

_NEWEST = 1 << 62
_NONE = Settings()

_info = msgspec.json.Decoder(WorkerInfo).decode


def get(step: Transaction, refs: Sequence[Ref]) -> list[JobDetail | None]:
    """Return each job with its runs and log."""
    return [_detail(step, ref) for ref in refs]


def find(step: Transaction, asked: Query) -> Page:
    """Return one page of records, newest first."""
    before = place_of(asked.after) if asked.after is not None else _NEWEST
    seqs = _matches(step, asked, before, asked.limit + 1)
    shown = seqs[: asked.limit]
    found = [row for seq in shown if (row := step.one(_BY_SEQ, (seq,))) is not None]
    return Page(tuple(whole(step, row) for row in found), str(shown[-1]) if len(seqs) > len(shown) else None)


def survey(step: Transaction, queues: Sequence[str]) -> Survey:
    """Return job counts, queues and workers."""
    now = step.now
    counts: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for queue, state, jobs in step.all(_COUNTS):
        counts[queue][state] = jobs
    tuned = {name: settings.decode(body) for name, body in step.all(_SETTINGS, ("queue",))}
    tasks = {name: settings.decode(body) for name, body in step.all(_SETTINGS, ("task",))}
    names = sorted(set(queues) or {*counts, *tuned})
    terms, swept_at = reigning(step)
    return Survey(
        queues=tuple(
            QueueSurvey(
                queue=name,
                counts={state: counts[name][state] for state in sorted(State) if state in counts[name]},
                oldest_waiting=_oldest(step, name),
                parked=(parked := counts[name].get("parked", 0)),
                unknown=unknown_tasks.survey(step, name) if parked else (),
                discarded=counts[name].get("discarded", 0),
                settings=tuned.get(name, _NONE),
            )
            for name in names
        ),
        paused_tasks=tuple(sorted(name for name, task in tasks.items() if task.paused)),
        task_rates={name: rate for name, task in sorted(tasks.items()) if (rate := task.rate) is not None},
        workers=tuple(_worker(row, now) for row in step.all(_WORKERS)),
        schedules=schedules(step),
        leaders=terms,
        swept_ago=now - swept_at if swept_at is not None else None,
        now=now,
    )


def events(step: Transaction, cursor: str | None, limit: int, of: Ref | None = None) -> EventPage:
    """Return what happened after the cursor."""
    if cursor == EVENTS_END:
        return EventPage((), str(_bounds(step)[1]))
    if (age := age_of(cursor)) is not None:
        return _read(step, _before(step, step.now - age), limit, of)
    return _read(step, place_of(cursor) if cursor else 0, limit, of)


def lend_events(step: Transaction, cursor: str | None, limit: int, reader: EventReader) -> EventPage:
    """Lend a named reader's next batch to this caller only, and keep the reader's cursor."""
    handled = place_of(cursor) if cursor else 0
    step.write_down()
    kept, lent_to, until, lent_upto = _place(step, reader, cursor)
    # A cursor beyond what was lent belongs to an earlier log and is meaningless in this one.
    if kept < handled <= lent_upto:
        # Handled events count as handled, even if the batch has been lent to another caller since.
        kept = handled
        step.run(_KEEP, (reader.name, kept, lent_to, until, lent_upto))
    if _lent_elsewhere(step, reader, lent_to, until):
        return EventPage((), str(kept))
    page = _read(step, kept, limit)
    lent_to, lent_upto = reader.caller if page.events else None, max(lent_upto, place_of(page.next))
    step.run(_KEEP, (reader.name, kept, lent_to, step.now + EVENT_LOAN, lent_upto))
    return page


def nothing_to_lend(step: Transaction, cursor: str | None, limit: int, reader: EventReader) -> EventPage | None:
    """Return the answer to a named reader's call that changes nothing, or None if it may change something."""
    row = step.one(_READER, (reader.name,))
    if row is None:
        return None
    kept, lent_to, until, lent_upto = row
    if cursor and kept < place_of(cursor) <= lent_upto:
        return None
    if _lent_elsewhere(step, reader, lent_to, until):
        return EventPage((), str(kept))
    page = _read(step, kept, limit) if lent_to is None else None
    return page if page is not None and not page.events else None


def _detail(step: Transaction, ref: Ref) -> JobDetail | None:
    row = step.one(_JOB, (ref.queue, ref.id))
    if row is None and (answering := taken_in(step, ref)) is not None:
        row = step.one(_JOB, (answering.queue, answering.id))
    if row is None or past(job := whole(step, row), step.now):
        return None
    seq = row[0]
    log = step.all(_LOG, (seq,))
    return JobDetail(
        job,
        tuple(rows.run(run) for run in step.all(_RUNS, {"seq": seq})),
        tuple(rows.log_line(line) for line in log),
        log[-1][-1] - len(log) if log else 0,
    )


def _matches(step: Transaction, asked: Query, before: int, limit: int) -> list[int]:
    """Return the seqs of the newest matches: from the index of each queue and state, or from all jobs in order."""
    values = {
        "tasks": _named(asked.tasks),
        "reasons": _named(asked.reasons),
        "tags": _named(asked.tags),
        "ended_after": asked.ended_after,
        "ended_before": asked.ended_before,
        "now": step.now,
        "before": before,
        "limit": limit,
    }
    if asked.merge is None and asked.id is None and not asked.states:
        return [seq for (seq,) in step.all(_FIND["all"], {**values, "queues": _named(asked.queues)})]
    queues = dict.fromkeys(asked.queues) if asked.queues else [queue for (queue,) in step.all(_FIND["queues"])]
    if asked.merge is not None:
        values |= {"merge": asked.merge, "id": asked.id, "states": _named([state.value for state in asked.states])}
        return sorted(
            (seq for queue in queues for (seq,) in step.all(_FIND["merging"], {**values, "queue": queue})), reverse=True
        )[:limit]
    if asked.id is not None:
        named = [
            row for queue in queues for row in step.all(_FIND["named"], {**values, "queue": queue, "id": asked.id})
        ]
        return sorted((seq for seq, state in named if not asked.states or state in asked.states), reverse=True)[:limit]
    pages = [
        [
            seq
            for (seq,) in step.all(
                _FIND["over" if state in TERMINAL else state.value], {**values, "queue": queue, "state": state.value}
            )
        ]
        for queue in queues
        for state in dict.fromkeys(asked.states)
    ]
    return list(islice(merge(*pages, reverse=True), limit))


def _named(names: Sequence[str]) -> str | None:
    return rows.names(names) if names else None


def _oldest(step: Transaction, queue: str) -> int | None:
    row = step.one(_OLDEST, (queue,))
    return None if row is None or row[0] is None else max(0, step.now - row[0])


def _worker(row: rows.Row, now: int) -> WorkerSurvey:
    owner, name, host, pid, body, started, seen_at, died = row
    info = _info(body)
    return WorkerSurvey(
        owner=Owner(owner, name, host, pid),
        queues=info.queues,
        concurrency=info.concurrency,
        active=info.active,
        started=started,
        seen_ago=max(0, now - seen_at),
        turned_ago=max(0, now - seen_at) + info.turned_ago,
        stopping=info.stopping,
        died=bool(died),
        lag=info.lag,
        memory=info.memory,
        quiet=info.quiet,
        tasks=info.tasks,
        unstopped=info.unstopped,
        why=info.why,
        alarm=info.alarm,
    )


def _place(step: Transaction, reader: EventReader, cursor: str | None) -> rows.Row:
    row = step.one(_READER, (reader.name,))
    if row is not None:
        return row
    trimmed, last = _bounds(step)
    if cursor:
        # An unknown reader with a cursor was lost together with an earlier log.
        return (trimmed, None, 0, trimmed)
    begin = last if reader.begin is None else min(place_of(reader.begin), last)
    return (begin, None, 0, begin)


def _lent_elsewhere(step: Transaction, reader: EventReader, lent_to: str | None, until: int) -> bool:
    # A loan that ends further ahead than its length was made before the clock was set back.
    return lent_to not in (None, reader.caller) and until - EVENT_LOAN <= step.now < until


def _read(step: Transaction, cursor: int, limit: int, of: Ref | None = None) -> EventPage:
    told: list[AnyEvent] = []
    trimmed, last = _bounds(step)
    # A cursor beyond the end was given out before the storage was restored to an earlier state.
    if not trimmed <= cursor <= last:
        cursor = trimmed
        told.append(EventsTrimmed(oldest=str(cursor)))
    found = step.all(_AFTER, (cursor, limit)) if of is None else step.all(_OF_JOB, (cursor, of.queue, of.id, limit))
    told += [rows.event(row) for row in found]
    # Fewer events than requested means that the whole log was read.
    looked_to = found[-1][0] if found else cursor
    return EventPage(tuple(told), str(looked_to if len(found) >= limit else max(looked_to, last)))


def _before(step: Transaction, instant: int) -> int:
    """Return the cursor of the last event before an instant, by binary search, because the log may be long."""
    low, high = _bounds(step)
    while low < high:
        middle = (low + high) // 2
        row = step.one(_AFTER, (middle, 1))
        if row is not None and row[1] < instant:
            low = row[0]
        else:
            high = middle
    return low


def _bounds(step: Transaction) -> tuple[int, int]:
    row = step.one(_BOUNDS)
    return (0, 0) if row is None else (row[0], row[1])
