"""Enqueue in SQL: makes a new job for a call, or merges the call into an existing job."""

from collections.abc import Sequence
from itertools import islice

from msgspec import structs

from tenure.core.deduplication import COLLECTED_LIMIT, Window, due_at, merge_name, throttle_name
from tenure.core.events import JobThrottled, OnRequest
from tenure.core.frames import framed
from tenure.core.job import CollectKey, DebounceKey, JobRecord, MergeKey, NewJob, Ref, UniqueKey
from tenure.core.lifecycle import State
from tenure.core.order import score_at
from tenure.core.transition import collecting, enqueued, merged
from tenure.storage.protocol import CALLS_KEPT, EnqueueResult, job_topic, queue_topic
from tenure.storage.sql import concurrency_keys, fair_queue, rows
from tenure.storage.sql.columns import UndecodableText
from tenure.storage.sql.lists import ByteSlices, json_list
from tenure.storage.sql.settings import records_event
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sql.transitions import delete, expire, find_job, is_past_lifetime, job_at, merged_into, record_move

_EVENTS: dict[str, OnRequest] = {"duplicate": "deduplicated", "replaced": "debounced", "collected": "collected"}
"""The optional event for each way of merging a call into an existing job."""

INSERT_BYTES = 16 << 20
"""The limit for the payloads that one statement inserts, in bytes: databases refuse values that are too large."""


def store_all(tx: Transaction, calls: Sequence[Sequence[NewJob]]) -> list[list[EnqueueResult]]:
    """Store each job of several calls once; return the results of each call.

    All calls have the same instant, so jobs of several calls are ordered by their ids, which are generated in order.
    """
    jobs = [(offset, new) for call in calls for offset, new in enumerate(call)]
    results: list[EnqueueResult] = []
    while (done := len(results)) < len(jobs):
        alike, differ = _alike(tx, jobs, done)
        if alike and _create_alike(tx, alike, differ=differ):
            results += [EnqueueResult("created", new.ref) for _, new in alike]
        else:
            concurrency_keys.load(tx, (new for _, new in alike))
            results += [store(tx, new, offset) for offset, new in alike or jobs[done : done + 1]]
    each = iter(results)
    return [list(islice(each, len(call))) for call in calls]


def store(tx: Transaction, new: NewJob, offset: int) -> EnqueueResult:
    """Store a call once; `offset`: its position among several calls."""
    # For a job that has no merge or throttle key, the insert itself detects a known id. This does not work for a fair
    # queue, where the job takes a virtual instant first.
    plain = new.merge is None and new.throttle is None and not _is_fair(tx, new)
    if plain and _create(tx, new, None, offset):
        return EnqueueResult("created", new.ref)
    known = find_job(tx, new.ref)
    if known is None and (answering := merged_into(tx, new.ref)) is not None:
        known = find_job(tx, answering)
    if known is not None:
        if not is_past_lifetime(known[1], tx.now):
            return EnqueueResult("duplicate", known[1].ref)
        delete(tx, *known)
    existing = _existing_job(tx, new)
    if existing is not None:
        return _merge(tx, new, existing, offset)
    if (refused := _throttled(tx, new)) is not None:
        return refused
    _create(tx, new, known[1] if known is not None and known[1].ref == new.ref else None, offset)
    return EnqueueResult("created", new.ref)


def holder(tx: Transaction, job: JobRecord) -> Ref | None:
    """Return the unfinished job that holds this job's unique key; expire those that have waited too long."""
    return _key_holder(tx, job.queue, job.merge) if isinstance(job.merge, UniqueKey) else None


def free_window(tx: Transaction, job: JobRecord) -> None:
    """Free the key window that a job holds, if it is still this job's."""
    if isinstance(job.merge, UniqueKey) and job.merge.window is not None:
        tx.run("revise.free_window", {"queue": job.queue, "name": merge_name(job.merge), "id": job.id})


def _alike(
    tx: Transaction, jobs: Sequence[tuple[int, NewJob]], begins: int
) -> tuple[Sequence[tuple[int, NewJob]], bool]:
    """Return the longest run of jobs, from a position on, that one statement can insert.

    Such jobs differ only in id, payload, headers, keys and start time, and need only a position in the queue. No two of
    them have the same unique key. Empty for a single job: a list of one takes the library longer than a row.
    """
    if len(jobs) - begins < 2:
        return (), False
    _, first = jobs[begins]
    unique = _unique_name(first) is not None
    if (first.merge is not None and not unique) or first.throttle is not None or _is_fair(tx, first):
        return (), False
    if records_event(tx, first.queue, "enqueued"):
        return (), False
    ends, size = begins + 1, len(first.payload)
    names = {_unique_name(first)}
    differ = unique
    while ends < len(jobs) and size < INSERT_BYTES:
        _, new = jobs[ends]
        if structs.replace(new, id=first.id, payload=first.payload, headers=first.headers) != first:
            if not _equal_except_keys(new, first):
                break
            differ = True
        if unique:
            if (name := _unique_name(new)) in names:
                break
            names.add(name)
        ends, size = ends + 1, size + len(new.payload)
    return (jobs[begins:ends] if ends - begins > 1 else ()), differ


def _unique_name(job: NewJob) -> str | None:
    return job.merge.key if isinstance(job.merge, UniqueKey) and job.merge.window is None else None


def _equal_except_keys(new: NewJob, first: NewJob) -> bool:
    """Return True if two jobs differ only in id, payload, headers, keys and start time."""
    if _unique_name(new) is None and new.merge != first.merge:
        return False
    same = structs.replace(
        new,
        id=first.id,
        payload=first.payload,
        headers=first.headers,
        keys=first.keys,
        merge=first.merge,
        delay=first.delay,
        run_at=first.run_at,
    )
    return (first.merge is None) == (new.merge is None) and same == first


def _create_alike(tx: Transaction, alike: Sequence[tuple[int, NewJob]], *, differ: bool) -> bool:
    """Insert similar jobs in one statement; each comes with its offset in its call.

    `differ`: their keys or start times differ.

    Returns False and inserts none if one of their ids is known, or one of their unique keys is held.
    """
    _, first = alike[0]
    if first.merge is not None and _is_any_held(tx, [new for _, new in alike]):
        return False
    payloads = ByteSlices()
    run_at = _run_at(tx, first)
    values = rows.new_job(first, run_at, tx.now)
    states: list[str] = []
    scores: list[int]
    if differ:
        run_ats = [_run_at(tx, new) for _, new in alike]
        states = ["delayed" if at > tx.now else "waiting" for at in run_ats]
        scores = [
            score_at(max(at, tx.now) + offset, boost=new.boost, lifo=new.lifo)
            for (offset, new), at in zip(alike, run_ats, strict=True)
        ]
        calls = json_list(
            [
                (
                    new.id,
                    rows.text(new.headers),
                    score,
                    *payloads.add(new.payload),
                    *(state, at, *rows.key_columns(new)),
                )
                for (_, new), score, at, state in zip(alike, scores, run_ats, states, strict=True)
            ]
        )
    else:
        at = max(run_at, tx.now)
        scores = [score_at(at + offset, boost=new.boost, lifo=new.lifo) for offset, new in alike]
        calls = json_list(
            [
                (new.id, rows.text(new.headers), score, *payloads.add(new.payload))
                for (_, new), score in zip(alike, scores, strict=True)
            ]
        )
    if calls is None:
        return False
    values |= {"calls": calls, "payloads": payloads.joined()}
    created = tx.run("enqueue.insert_similar" if differ else "enqueue.insert_alike", values)
    if created < len(alike):
        tx.run("enqueue.delete_last", {"jobs": created})
        return False
    delayed = states.count("delayed") if differ else created * (run_at > tx.now)
    tx.count_move(first.queue, to="delayed", jobs=delayed)
    tx.count_move(first.queue, to="waiting", jobs=created - delayed, since=min(scores))
    if differ or first.keys:
        concurrency_keys.load(tx, (new for _, new in alike))
        for _, new in alike:
            concurrency_keys.register(tx, new)
    tx.topics.append(queue_topic(first.queue))
    return True


def _run_at(tx: Transaction, new: NewJob) -> int:
    return new.run_at if new.run_at is not None else tx.now + new.delay


def _is_any_held(tx: Transaction, jobs: Sequence[NewJob]) -> bool:
    """Return True if an unfinished job holds a merge key of these jobs, which are in one queue."""
    names = json_list([merge_name(new.merge) for new in jobs if new.merge is not None])
    return names is None or tx.one("enqueue.has_holder", {"queue": jobs[0].queue, "names": names}) == (1,)


def _existing_job(tx: Transaction, new: NewJob) -> Ref | None:
    """Return the existing job that a call is merged into, or None."""
    if new.merge is None:
        return None
    if isinstance(new.merge, UniqueKey) and new.merge.window is not None:
        window = _window(tx, new.queue, merge_name(new.merge), new.merge.window)
        return None if window is None else window.ref
    return _key_holder(tx, new.queue, new.merge)


def _key_holder(tx: Transaction, queue: str, key: MergeKey) -> Ref | None:
    """Return the job that a call with this key is merged into, or None."""
    values: dict[str, str | int] = {"queue": queue, "name": merge_name(key), "now": tx.now}
    match key:
        case UniqueKey(window=int()):
            return None
        case UniqueKey(scope="queued"):
            statement = "enqueue.queued_holder"
        case UniqueKey():
            statement = "enqueue.holder"
        case DebounceKey():
            statement = "enqueue.unstarted_holder"
            values |= {"most": 1, "bytes": 1}
        case CollectKey(max_size=max_size):
            statement = "enqueue.unstarted_holder"
            values |= {"most": max_size, "bytes": COLLECTED_LIMIT}
    while (row := tx.one(statement, values)) is not None:
        seq, id_, too_old = row
        if type(id_) is UndecodableText:
            # Reading the record ends the job.
            job_at(tx, seq)
            continue
        if not too_old:
            return Ref(queue, id_)
        expire(tx, seq, job_at(tx, seq))
    return None


def _window(tx: Transaction, queue: str, name: str, length: int) -> Window | None:
    row = tx.one("enqueue.window", {"queue": queue, "name": name})
    if row is None or row[0] <= tx.now:
        return None
    until, jobs, id_ = row
    if until > tx.now + length:
        until = tx.now + length
        tx.run("enqueue.shorten_window", {"until": until, "queue": queue, "name": name})
    return Window(until, jobs, Ref(queue, id_))


def _merge(tx: Transaction, new: NewJob, into: Ref, offset: int) -> EnqueueResult:
    collected, result = 0, EnqueueResult("duplicate", into)
    match new.merge:
        case DebounceKey():
            _replace_call(tx, new, into, new.merge, offset)
            result = EnqueueResult("replaced", into)
        case CollectKey():
            collected = _gather(tx, new, into, new.merge, offset)
            result = EnqueueResult("collected", into)
        case _:
            pass
    if records_event(tx, into.queue, _EVENTS[result.action]):
        tx.record(merged(new, into, collected))
    return result


def _replace_call(tx: Transaction, new: NewJob, into: Ref, key: DebounceKey, offset: int) -> None:
    """Replace the call that a debounced job is waiting with; the job keeps its id and fences."""
    seq, old = _existing(tx, into)
    tx.run("enqueue.insert_replaced_call", {"queue": into.queue, "id": new.id, "job": into.id})
    tx.run("enqueue.trim_calls", {"queue": into.queue, "job": into.id, "kept": CALLS_KEPT})
    tx.run("revise.delete", {"seq": seq})
    record_move(tx, old, None)
    _insert(tx, structs.replace(new, id=into.id), due_at(key, first=old.created, calls=1, now=tx.now), offset)
    tx.run(
        "enqueue.set_fences",
        {"fence": old.fence, "settled_fence": old.settled_fence, "queue": into.queue, "id": into.id},
    )
    tx.run("enqueue.set_created", {"created": min(old.created, tx.now), "queue": into.queue, "id": into.id})


def _gather(tx: Transaction, new: NewJob, into: Ref, key: CollectKey, offset: int) -> int:
    """Add a call to a collecting job; return how many calls it has now."""
    seq, job = _existing(tx, into)
    brought = framed(new.payload)
    after = collecting(job, key, tx.now, ttl=new.ttl, offset=offset, size=len(brought))
    tx.run(
        "enqueue.insert_call",
        {"queue": into.queue, "id": new.id, "job": into.id, "place": job.collected, "payload": brought},
    )
    tx.run(
        "enqueue.collect",
        {
            "state": after.state,
            "parked_under": after.parked_under,
            "run_at": after.run_at,
            "score": after.score if after.state is job.state else _score(tx, after, after.run_at, offset),
            "collected": after.collected,
            "collected_bytes": after.collected_bytes,
            "merge": rows.text(after.merge),
            "ttl": after.ttl,
            "expires_at": after.expires_at,
            "created": after.created,
            "seq": seq,
        },
    )
    if State.DELAYED in (job.state, after.state):
        record_move(tx, job, after.state)
        tx.topics += [queue_topic(into.queue), job_topic(into)]
    return after.collected


def _existing(tx: Transaction, ref: Ref) -> tuple[int, JobRecord]:
    found = find_job(tx, ref)
    if found is None:
        raise AssertionError(f"{ref} holds a key, but is gone")
    return found


def _throttled(tx: Transaction, new: NewJob) -> EnqueueResult | None:
    """Count a job against the window of its throttle key; return the answer of a call that finds it full."""
    throttle = new.throttle
    if throttle is None:
        return None
    name = throttle_name(throttle)
    window = _window(tx, new.queue, name, throttle.window)
    if window is None:
        tx.run(
            "enqueue.begin_window", {"queue": new.queue, "name": name, "until": tx.now + throttle.window, "id": new.id}
        )
        return None
    if window.jobs < throttle.most:
        tx.run("enqueue.count_in_window", {"id": new.id, "queue": new.queue, "name": name})
        return None
    wait = window.until - tx.now
    if records_event(tx, new.queue, "throttled"):
        tx.record(JobThrottled(queue=new.queue, id=new.id, task=new.task, key=throttle.key, retry_in=wait / 1_000_000))
    return EnqueueResult("throttled", window.ref, wait)


def _create(tx: Transaction, new: NewJob, before: JobRecord | None, offset: int) -> bool:
    """Insert a new job, which continues from the previous job of its id; return True if the id was new."""
    run_at = _run_at(tx, new)
    if new.merge is not None and isinstance(new.merge, DebounceKey | CollectKey):
        run_at = due_at(new.merge, first=tx.now, calls=1, now=tx.now)
    if not _insert(tx, new, run_at, offset):
        return False
    if before is not None:
        _set_fences(tx, new.ref, before)
    match new.merge:
        case CollectKey():
            tx.run(
                "enqueue.insert_call",
                {"queue": new.queue, "id": new.id, "job": new.id, "place": 0, "payload": framed(new.payload)},
            )
        case UniqueKey(window=int() as window):
            tx.run(
                "enqueue.begin_window",
                {"queue": new.queue, "name": merge_name(new.merge), "until": tx.now + window, "id": new.id},
            )
        case _:
            pass
    if records_event(tx, new.queue, "enqueued"):
        tx.record(enqueued(_existing(tx, new.ref)[1]))
    return True


def _set_fences(tx: Transaction, ref: Ref, before: JobRecord) -> None:
    fences = {"fence": before.fence, "settled_fence": before.settled_fence}
    tx.run("enqueue.set_fences", fences | {"queue": ref.queue, "id": ref.id})


def _insert(tx: Transaction, new: NewJob, run_at: int, offset: int) -> bool:
    """Insert a job as waiting or delayed; return True if its id was new."""
    values = rows.new_job(new, run_at, tx.now)
    values["score"] = _score(tx, new, run_at, offset)
    if not tx.run("enqueue.insert", values):
        return False
    tx.count_move(new.queue, to=values["state"], since=values["score"])
    if new.keys:
        concurrency_keys.register(tx, new)
    tx.topics.append(queue_topic(new.queue))
    return True


def _score(tx: Transaction, job: NewJob | JobRecord, run_at: int, offset: int) -> int:
    """Return the score of a job that enters its queue, or is delayed."""
    # The jobs of one call are a microsecond apart, so that they keep the order of the call.
    at = max(run_at, tx.now) + offset
    if run_at > tx.now or not _is_fair(tx, job):
        return score_at(at, boost=job.boost, lifo=job.lifo)
    return fair_queue.score(tx, job, at)


def _is_fair(tx: Transaction, job: NewJob | JobRecord) -> bool:
    """Return True if a job may get a virtual instant when it enters its queue."""
    return job.fair_key is not None or tx.fair_queue(job.queue).fairness is not None
