"""Reads that change nothing: job details, listings, the survey and the event log."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from tenure.core.events import AnyEvent, EventsTrimmed
from tenure.core.figures import FiguresQuery
from tenure.core.fingerprint import NEWEST, FaultSurvey
from tenure.core.internal import INTERNAL, included, includes_worker
from tenure.core.job import JobDetail, JobRecord, Owner, Ref
from tenure.core.lifecycle import State
from tenure.storage.cursors import DuePlace, age_of, due_place, place_of
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
    page_of_due,
)
from tenure.storage.sql import figures as figure_cells
from tenure.storage.sql import rates, rows, settings, unknown_tasks
from tenure.storage.sql.columns import Row
from tenure.storage.sql.lists import json_names, json_rows
from tenure.storage.sql.schedules import schedules
from tenure.storage.sql.sweep import current_term
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sql.transitions import is_past_lifetime, merged_into, read_job

_UNFINISHED = {State.WAITING: "find.waiting", State.DELAYED: "find.delayed", State.ACTIVE: "find.active"}
"""The statements that list the jobs of these states, of all the given queues."""

SORTED_MOST = 2_500
"""How many unfinished jobs are read and sorted for a page. More are read in order, up to a page."""

_NEWEST = 1 << 62
_NONE = Settings()

_info = msgspec.json.Decoder(WorkerInfo).decode


def get(tx: Transaction, refs: Sequence[Ref]) -> list[JobDetail | None]:
    """Return each job with its runs and log."""
    return [_detail(tx, ref) for ref in refs]


def find(tx: Transaction, query: Query) -> Page:
    """Return one page of records, in the order of the query."""
    if query.order == "due":
        return _due(tx, query)
    before = place_of(query.after) if query.after is not None else _NEWEST
    seqs, floor = _matches(tx, query, before, query.limit + 1)
    shown = seqs[: query.limit]
    ends = shown[-1] if len(seqs) > len(shown) else floor
    return Page(tuple(job for _, job in _records(tx, shown)), str(ends) if ends else None)


def _records(tx: Transaction, seqs: Sequence[int]) -> list[tuple[int, JobRecord]]:
    """Return the jobs with these seqs, in this order, each with its seq."""
    found = tx.all("get.numbered", {"seqs": json_rows(seqs)}) if seqs else []
    jobs = {row[0]: read_job(tx, row) for row in found}
    return [(seq, jobs[seq]) for seq in seqs if seq in jobs]


def _due(tx: Transaction, query: Query) -> Page:
    """Return one page of delayed jobs, the one that falls due first at the front."""
    begin = due_place(query.after)
    queues = _queues(tx, query)
    looks = _share(query, len(queues))
    values = {**_conditions(tx, query), "limit": query.limit + 1, "looks": looks, "to": _NEWEST, "last": ""}
    sources: list[dict[str, Any]] = [{**values, **_after(begin, queue)} for queue in queues]
    bounds: list[DuePlace] = []
    if looks is not None:
        for source in sources:
            if (row := tx.one("find.due_bound", source)) is not None:
                source["to"], source["last"] = row
                bounds.append((source["to"], source["queue"], source["last"]))
    found = sorted(
        ((run_at, source["queue"], id_), seq) for source in sources for run_at, id_, seq in tx.all("find.due", source)
    )[: query.limit + 1]
    places = {seq: place for place, seq in found}
    jobs = [(places[seq], job) for seq, job in _records(tx, list(places))]
    return page_of_due(jobs, query.limit, min(bounds, default=None))


def _after(place: DuePlace, queue: str) -> dict[str, Any]:
    """Return which instant and id the jobs of a queue lie behind that come after a place. Ids are not empty."""
    at, of_queue, id_ = place
    return {"queue": queue, "at": at + (queue < of_queue), "id": id_ if queue == of_queue else ""}


def survey(tx: Transaction, queues: Sequence[str], faults: int, figures: FiguresQuery | None = None) -> Survey:
    """Return job counts, queues, workers, the most frequent faults, and figures."""
    now = tx.now
    counts: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for queue, state, jobs in tx.all("survey.counts"):
        counts[queue][state] = jobs
    tuned = {name: settings.decode(body) for name, body in tx.all("survey.settings", {"kind": "queue"})}
    tasks = {name: settings.decode(body) for name, body in tx.all("survey.settings", {"kind": "task"})}
    names = sorted(set(queues) or included({*counts, *tuned}, ()))
    listed = json_names(names)
    oldest = {name: max(0, now - since) for name, since in tx.all("survey.oldest", {"queues": listed})}
    limits = rates.limits(tx, names)
    terms, swept_at = current_term(tx)
    return Survey(
        queues=tuple(
            QueueSurvey(
                queue=name,
                counts={state: counts[name][state] for state in sorted(State) if state in counts[name]},
                oldest_waiting=oldest.get(name),
                parked=(parked := counts[name].get("parked", 0)),
                unknown=unknown_tasks.survey(tx, name) if parked else (),
                discarded=counts[name].get("discarded", 0),
                settings=tuned.get(name, _NONE),
                limits=tuple(limits.get(name, ())),
            )
            for name in names
        ),
        paused_tasks=tuple(sorted(name for name, task in tasks.items() if task.paused)),
        task_rates={name: rate for name, task in sorted(tasks.items()) if (rate := task.rate) is not None},
        workers=tuple(
            worker for row in tx.all("survey.workers") if includes_worker((worker := _worker(row, now)).queues, queues)
        ),
        schedules=schedules(tx),
        faults=_faults(tx, names, faults) if faults else (),
        figures=() if figures is None else figure_cells.read(tx, names, figures),
        leaders=terms,
        swept_ago=now - swept_at if swept_at is not None else None,
        now=now,
    )


def events(tx: Transaction, cursor: str | None, limit: int, of: Ref | None = None) -> EventPage:
    """Return what happened after the cursor."""
    if cursor == EVENTS_END:
        return EventPage((), str(_bounds(tx)[1]))
    if (age := age_of(cursor)) is not None:
        return _read(tx, _before(tx, tx.now - age), limit, of)
    return _read(tx, place_of(cursor) if cursor else 0, limit, of)


def lend_events(tx: Transaction, cursor: str | None, limit: int, reader: EventReader) -> EventPage:
    """Lend a named reader's next batch to this caller only, and keep the reader's cursor."""
    handled = place_of(cursor) if cursor else 0
    tx.flush()
    kept, lent_to, until, lent_upto = _reader_state(tx, reader, cursor)
    # A cursor beyond what was lent belongs to an earlier log and is meaningless in this one.
    if kept < handled <= lent_upto:
        # Handled events count as handled, even if the batch has been lent to another caller since.
        kept = handled
        tx.run(
            "events.set_reader",
            {"name": reader.name, "cursor": kept, "lent_to": lent_to, "until": until, "lent_upto": lent_upto},
        )
    if _lent_elsewhere(tx, reader, lent_to, until):
        return EventPage((), str(kept))
    page = _read(tx, kept, limit)
    lent_to, lent_upto = reader.caller if page.events else None, max(lent_upto, place_of(page.next))
    tx.run(
        "events.set_reader",
        {"name": reader.name, "cursor": kept, "lent_to": lent_to, "until": tx.now + EVENT_LOAN, "lent_upto": lent_upto},
    )
    return page


def lend_read_only(tx: Transaction, cursor: str | None, limit: int, reader: EventReader) -> EventPage | None:
    """Return the answer to a named reader's call that changes nothing, or None if it may change something."""
    row = tx.one("events.reader", {"name": reader.name})
    if row is None:
        return None
    kept, lent_to, until, lent_upto = row
    if cursor and kept < place_of(cursor) <= lent_upto:
        return None
    if _lent_elsewhere(tx, reader, lent_to, until):
        return EventPage((), str(kept))
    page = _read(tx, kept, limit) if lent_to is None else None
    return page if page is not None and not page.events else None


def _faults(tx: Transaction, queues: Sequence[str], limit: int) -> tuple[FaultSurvey, ...]:
    """Return the faults of these queues with the most failed jobs."""
    found = tx.all("survey.faults", {"queues": json_names(queues), "limit": limit})
    newest: defaultdict[int, list[Row]] = defaultdict(list)
    for number, *job in tx.all(
        "survey.newest_of_faults", {"faults": json_rows([row[:2] for row in found]), "most": NEWEST}
    ):
        newest[number].append(tuple(job))
    return tuple(rows.fault(row, newest[number]) for number, row in enumerate(found))


def _detail(tx: Transaction, ref: Ref) -> JobDetail | None:
    row = tx.one("get.job", {"queue": ref.queue, "id": ref.id})
    if row is None and (answering := merged_into(tx, ref)) is not None:
        row = tx.one("get.job", {"queue": answering.queue, "id": answering.id})
    if row is None or is_past_lifetime(job := read_job(tx, row), tx.now):
        return None
    seq = row[0]
    log = tx.all("get.log", {"seq": seq})
    return JobDetail(
        job,
        tuple(rows.run(run) for run in tx.all("get.runs", {"seq": seq})),
        tuple(rows.log_line(line) for line in log),
        log[-1][-1] - len(log) if log else 0,
    )


def _matches(tx: Transaction, query: Query, before: int, limit: int) -> tuple[list[int], int]:
    """Return the seqs of the newest matches: from the index of each queue and state, or from all jobs in order.

    The second value is the seq down to which it has looked; 0: at all jobs.
    """
    values = {**_conditions(tx, query), "before": before, "limit": limit}
    states = dict.fromkeys(query.states)
    if query.merge is None and query.id is None and query.fault is None and not states:
        return _walk(tx, query, values)
    queues = _queues(tx, query)
    values["queues"] = json_names(queues)
    if query.merge is not None:
        values |= {"merge": query.merge, "id": query.id, "states": _named([state.value for state in states])}
        return [seq for (seq,) in tx.all("find.merging", values)], 0
    if query.id is not None:
        named = tx.all("find.named", {**values, "id": query.id})
        return sorted((seq for seq, state in named if not states or state in states), reverse=True)[:limit], 0
    if query.fault is not None:
        return _of_fault(tx, query, values, len(queues)) if State.FAILED in (states or (State.FAILED,)) else ([], 0)
    over = json_rows([(queue, state.value) for queue in queues for state in states if state not in _UNFINISHED])
    looks = query.looks
    floor = 0
    unfinished = [state.value for state in states if state in _UNFINISHED]
    jobs = _count(tx, queues, unfinished)
    if looks is not None:
        # No index has the unfinished jobs of a queue in the order of their seqs: all of them would be sorted.
        if jobs > looks:
            return _walk(tx, query, values)
        share = _share(query, len(queues) * len(states))
        floor = _floor(tx, "find.floor_over", {"sources": over, "before": before, "looks": share})
    values |= {"floor": floor, "sources": over}
    if looks is None and jobs > SORTED_MOST:
        pages = [tx.all("find.live", {**values, "unfinished": json_names(unfinished)})]
    else:
        pages = [tx.all(statement, values) for state, statement in _UNFINISHED.items() if state in states]
    if any(state not in _UNFINISHED for state in states):
        pages.append(tx.all("find.over", values))
    seqs = sorted((seq for page in pages for (seq,) in page if seq >= floor), reverse=True)
    return seqs[:limit], floor


def _count(tx: Transaction, queues: Sequence[str], states: Sequence[str]) -> int:
    """Return how many jobs of these queues are in these states."""
    if not states:
        return 0
    named = frozenset(queues)
    return sum(jobs for queue, state, jobs in tx.all("survey.counts") if state in states and queue in named)


def _queues(tx: Transaction, query: Query) -> list[str]:
    """Return the queues that a query selects."""
    return list(dict.fromkeys(query.queues)) or included((queue for (queue,) in tx.all("find.queues")), ())


def _conditions(tx: Transaction, query: Query) -> dict[str, Any]:
    """Return the parameters of the conditions of a query that all its statements check."""
    return {
        "tasks": _named(query.tasks),
        "reasons": _named(query.reasons),
        "tags": _named(query.tags),
        "owner": query.owner,
        "schedule": query.schedule,
        "fault": query.fault,
        "key": query.key,
        "created_after": query.created_after,
        "created_before": query.created_before,
        "ended_after": query.ended_after,
        "ended_before": query.ended_before,
        "now": tx.now,
    }


def _share(query: Query, sources: int) -> int | None:
    """Return at how many jobs of each source a query may look: together about `looks`, but at a page of each."""
    if query.looks is None:
        return None
    return max(min(query.limit + 1, query.looks), query.looks // max(1, sources))


def _of_fault(tx: Transaction, query: Query, values: dict[str, Any], queues: int) -> tuple[list[int], int]:
    """Return the newest matches among the failed jobs that have a fault."""
    floor = 0
    if (looks := _share(query, queues)) is not None:
        floor = _floor(tx, "find.floor_fault", {**values, "looks": looks})
    return [seq for (seq,) in tx.all("find.of_fault", {**values, "floor": floor})], floor


def _walk(tx: Transaction, query: Query, values: dict[str, Any]) -> tuple[list[int], int]:
    """Return the newest matches among all jobs, looked at in order."""
    floor = 0
    if query.looks is not None:
        floor = _floor(tx, "find.floor", {"before": values["before"], "looks": query.looks})
    names = {"queues": _named(query.queues), "states": _named([state.value for state in query.states])}
    return [seq for (seq,) in tx.all("find.all", {**values, **names, "internal": INTERNAL, "floor": floor})], floor


def _floor(tx: Transaction, statement: str, values: dict[str, Any]) -> int:
    """Return the seq of the last job that a call may look at; 0: it may look at all."""
    row = tx.one(statement, values)
    return 0 if row is None or row[0] is None else int(row[0])


def _named(names: Sequence[str]) -> str | None:
    return json_names(names) if names else None


def _worker(row: Row, now: int) -> WorkerSurvey:
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


def _reader_state(tx: Transaction, reader: EventReader, cursor: str | None) -> Row:
    row = tx.one("events.reader", {"name": reader.name})
    if row is not None:
        return row
    trimmed, last = _bounds(tx)
    if cursor:
        # An unknown reader with a cursor was lost together with an earlier log.
        return (trimmed, None, 0, trimmed)
    begin = last if reader.begin is None else min(place_of(reader.begin), last)
    return (begin, None, 0, begin)


def _lent_elsewhere(tx: Transaction, reader: EventReader, lent_to: str | None, until: int) -> bool:
    # A loan that ends further ahead than its length was made before the clock was set back.
    return lent_to not in (None, reader.caller) and until - EVENT_LOAN <= tx.now < until


def _read(tx: Transaction, cursor: int, limit: int, of: Ref | None = None) -> EventPage:
    events: list[AnyEvent] = []
    trimmed, last = _bounds(tx)
    # A cursor beyond the end was given out before the storage was restored to an earlier state.
    if not trimmed <= cursor <= last:
        cursor = trimmed
        events.append(EventsTrimmed(oldest=str(cursor)))
    found = (
        tx.all("events.after", {"cursor": cursor, "limit": limit})
        if of is None
        else tx.all("events.of_job", {"cursor": cursor, "queue": of.queue, "job": of.id, "limit": limit})
    )
    events += [rows.event(row) for row in found]
    # Fewer events than requested means that the whole log was read.
    looked_to = found[-1][0] if found else cursor
    return EventPage(tuple(events), str(looked_to if len(found) >= limit else max(looked_to, last)))


def _before(tx: Transaction, instant: int) -> int:
    """Return the cursor of the last event before an instant, by binary search, because the log may be long."""
    low, high = _bounds(tx)
    while low < high:
        middle = (low + high) // 2
        row = tx.one("events.after", {"cursor": middle, "limit": 1})
        if row is not None and row[1] < instant:
            low = row[0]
        else:
            high = middle
    return low


def _bounds(tx: Transaction) -> tuple[int, int]:
    row = tx.one("events.bounds")
    return (0, 0) if row is None else (row[0], row[1])
