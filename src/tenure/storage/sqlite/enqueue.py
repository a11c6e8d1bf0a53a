"""Enqueue in SQL: makes a new job for a call, or merges the call into an existing job."""

from collections.abc import Sequence
from itertools import islice

from msgspec import structs

from tenure.core.deduplication import GATHERED_LIMIT, Window, due_at, merge_name, throttle_name
from tenure.core.events import JobThrottled, OnRequest
from tenure.core.frames import framed
from tenure.core.job import CollectKey, DebounceKey, JobRecord, MergeKey, NewJob, Ref, UniqueKey
from tenure.core.lifecycle import State
from tenure.core.order import score_at
from tenure.core.transition import collecting, enqueued, merged
from tenure.storage.protocol import CALLS_KEPT, EnqueueResult, job_topic, queue_topic
from tenure.storage.sqlite import concurrency_keys, fair_queue, rows
from tenure.storage.sqlite.settings import recorded
from tenure.storage.sqlite.statements import query
from tenure.storage.sqlite.transaction import Transaction
from tenure.storage.sqlite.transitions import drop, expire, find_job, moved, past, taken_in, the_job

_REMEMBER = query("enqueue", "remember")
_REMEMBER_ALIKE = query("enqueue", "remember_alike")
_TAKE_BACK = query("enqueue", "take_back")
_GO_ON = query("enqueue", "go_on")
_STAY = query("enqueue", "stay")
_HOLDER = query("enqueue", "holder")
_QUEUED_HOLDER = query("enqueue", "queued_holder")
_YET_TO_START = query("enqueue", "yet_to_start")
_TAKE_IN = query("enqueue", "take_in")
_ANSWER_FOR = query("enqueue", "answer_for")
_FORGET_CALLS = query("enqueue", "forget_calls")
_GATHER = query("enqueue", "gather")
_GIVE_UP = query("enqueue", "give_up")
_WINDOW = query("enqueue", "window")
_BEGIN_WINDOW = query("enqueue", "begin_window")
_SHORTEN_WINDOW = query("enqueue", "shorten_window")
_COUNT_IN_WINDOW = query("enqueue", "count_in_window")
_FREE_WINDOW = query("revise", "free_window")

_TOLD: dict[str, OnRequest] = {"duplicate": "deduplicated", "replaced": "debounced", "gathered": "collected"}
"""The optional event for each way of merging a call into an existing job."""

TOGETHER = 16 << 20
"""The limit for the payloads that one statement inserts, in bytes: SQLite refuses values that are too large."""


def remember_all(step: Transaction, calls: Sequence[Sequence[NewJob]]) -> list[list[EnqueueResult]]:
    """Store each job of several calls once; return the results of each call.

    All calls have the same instant, so jobs of several calls are ordered by their ids, which are generated in order.
    """
    jobs = [(offset, new) for call in calls for offset, new in enumerate(call)]
    receipts: list[EnqueueResult] = []
    while (done := len(receipts)) < len(jobs):
        alike = _alike(step, jobs, done)
        if alike and _create_alike(step, alike):
            receipts += [EnqueueResult("created", new.ref) for _, new in alike]
        else:
            receipts += [remember(step, new, offset) for offset, new in alike or jobs[done : done + 1]]
    each = iter(receipts)
    return [list(islice(each, len(call))) for call in calls]


def remember(step: Transaction, new: NewJob, offset: int) -> EnqueueResult:
    """Store a call once; `offset`: its position among several calls."""
    # For a job that has no merge or throttle key, the insert itself detects a known id. This does not work for a fair
    # queue, where the job takes a virtual instant first.
    plain = new.merge is None and new.throttle is None and not _is_fair(step, new)
    if plain and _create(step, new, None, offset):
        return EnqueueResult("created", new.ref)
    known = find_job(step, new.ref)
    if known is None and (answering := taken_in(step, new.ref)) is not None:
        known = find_job(step, answering)
    if known is not None:
        if not past(known[1], step.now):
            return EnqueueResult("duplicate", known[1].ref)
        drop(step, *known)
    there = _come_to(step, new)
    if there is not None:
        return _merge(step, new, there, offset)
    if (refused := _throttled(step, new)) is not None:
        return refused
    _create(step, new, known[1] if known is not None and known[1].ref == new.ref else None, offset)
    return EnqueueResult("created", new.ref)


def holder(step: Transaction, job: JobRecord) -> Ref | None:
    """Return the unfinished job that holds this job's unique key; expire those that have waited too long."""
    return _living(step, job.queue, job.merge) if isinstance(job.merge, UniqueKey) else None


def free_window(step: Transaction, job: JobRecord) -> None:
    """Free the key window that a job holds, if it is still this job's."""
    if isinstance(job.merge, UniqueKey) and job.merge.window is not None:
        step.run(_FREE_WINDOW, (job.queue, merge_name(job.merge), job.id))


def _alike(step: Transaction, jobs: Sequence[tuple[int, NewJob]], begins: int) -> Sequence[tuple[int, NewJob]]:
    """Return the longest run of jobs, from a position on, that one statement can insert.

    Such jobs differ only in id, payload and headers, and need only a position in the queue. Empty for a single job: a
    list of one takes the library longer than a row.
    """
    _, first = jobs[begins]
    if first.merge is not None or first.throttle is not None or first.keys or _is_fair(step, first):
        return ()
    if recorded(step, first.queue, "enqueued"):
        return ()
    ends, size = begins + 1, len(first.payload)
    while ends < len(jobs) and size < TOGETHER:
        _, new = jobs[ends]
        if structs.replace(new, id=first.id, payload=first.payload, headers=first.headers) != first:
            break
        ends, size = ends + 1, size + len(new.payload)
    return jobs[begins:ends] if ends - begins > 1 else ()


def _create_alike(step: Transaction, alike: Sequence[tuple[int, NewJob]]) -> bool:
    """Insert similar jobs in one statement; each comes with its offset in its call.

    Returns False and inserts none if one of their ids is known.
    """
    _, first = alike[0]
    run_at = first.run_at if first.run_at is not None else step.now + first.delay
    at = max(run_at, step.now)
    payloads = rows.ByteSlices()
    calls = rows.listed(
        [
            (
                new.id,
                rows.text(new.headers),
                score_at(at + offset, boost=new.boost, lifo=new.lifo),
                *payloads.add(new.payload),
            )
            for offset, new in alike
        ]
    )
    if calls is None:
        return False
    wish = rows.common(first, run_at, step.now)
    created = step.run(_REMEMBER_ALIKE, wish | {"calls": calls, "payloads": payloads.joined()})
    if created < len(alike):
        step.run(_TAKE_BACK, (created,))
        return False
    step.moved(first.queue, to=wish["state"], jobs=created)
    step.knocked.append(queue_topic(first.queue))
    return True


def _come_to(step: Transaction, new: NewJob) -> Ref | None:
    """Return the existing job that a call is merged into, or None."""
    if new.merge is None:
        return None
    if isinstance(new.merge, UniqueKey) and new.merge.window is not None:
        window = _window(step, new.queue, merge_name(new.merge), new.merge.window)
        return None if window is None else window.ref
    return _living(step, new.queue, new.merge)


def _living(step: Transaction, queue: str, key: MergeKey) -> Ref | None:
    """Return the job that a call with this key is merged into, or None."""
    asked: dict[str, str | int] = {"queue": queue, "name": merge_name(key), "now": step.now}
    match key:
        case UniqueKey(window=int()):
            return None
        case UniqueKey(scope="queued"):
            statement = _QUEUED_HOLDER
        case UniqueKey():
            statement = _HOLDER
        case DebounceKey():
            statement = _YET_TO_START
            asked |= {"most": 1, "bytes": 1}
        case CollectKey(max_size=max_size):
            statement = _YET_TO_START
            asked |= {"most": max_size, "bytes": GATHERED_LIMIT}
    while (row := step.one(statement, asked)) is not None:
        seq, id_, too_old = row
        if type(id_) is rows.Garbled:
            # Reading the record ends the job.
            the_job(step, seq)
            continue
        if not too_old:
            return Ref(queue, id_)
        expire(step, seq, the_job(step, seq))
    return None


def _window(step: Transaction, queue: str, name: str, length: int) -> Window | None:
    row = step.one(_WINDOW, (queue, name))
    if row is None or row[0] <= step.now:
        return None
    until, jobs, id_ = row
    if until > step.now + length:
        until = step.now + length
        step.run(_SHORTEN_WINDOW, (until, queue, name))
    return Window(until, jobs, Ref(queue, id_))


def _merge(step: Transaction, new: NewJob, into: Ref, offset: int) -> EnqueueResult:
    gathered, receipt = 0, EnqueueResult("duplicate", into)
    match new.merge:
        case DebounceKey():
            _take_the_place(step, new, into, new.merge, offset)
            receipt = EnqueueResult("replaced", into)
        case CollectKey():
            gathered = _gather(step, new, into, new.merge, offset)
            receipt = EnqueueResult("gathered", into)
        case _:
            pass
    if recorded(step, into.queue, _TOLD[receipt.made]):
        step.record(merged(new, into, gathered))
    return receipt


def _take_the_place(step: Transaction, new: NewJob, into: Ref, key: DebounceKey, offset: int) -> None:
    """Replace the call that a debounced job is waiting with; the job keeps its id and fences."""
    seq, old = _there(step, into)
    step.run(_ANSWER_FOR, {"queue": into.queue, "id": new.id, "job": into.id})
    step.run(_FORGET_CALLS, {"queue": into.queue, "job": into.id, "kept": CALLS_KEPT})
    step.run(_GIVE_UP, (seq,))
    moved(step, old, None)
    _put(step, structs.replace(new, id=into.id), due_at(key, first=old.created, calls=1, now=step.now), offset)
    step.run(_GO_ON, (old.fence, old.settled_fence, into.queue, into.id))
    step.run(_STAY, (min(old.created, step.now), into.queue, into.id))


def _gather(step: Transaction, new: NewJob, into: Ref, key: CollectKey, offset: int) -> int:
    """Add a call to a collecting job; return how many calls it has now."""
    seq, job = _there(step, into)
    brought = framed(new.payload)
    after = collecting(job, key, step.now, ttl=new.ttl, offset=offset, size=len(brought))
    step.run(_TAKE_IN, (into.queue, new.id, into.id, job.gathered, brought))
    step.run(
        _GATHER,
        (
            after.state,
            after.parked_under,
            after.run_at,
            after.score if after.state is job.state else _score(step, after, after.run_at, offset),
            after.gathered,
            after.gathered_bytes,
            rows.text(after.merge),
            after.ttl,
            after.expires_at,
            after.created,
            seq,
        ),
    )
    if State.DELAYED in (job.state, after.state):
        moved(step, job, after.state)
        step.knocked += [queue_topic(into.queue), job_topic(into)]
    return after.gathered


def _there(step: Transaction, ref: Ref) -> tuple[int, JobRecord]:
    found = find_job(step, ref)
    if found is None:
        raise AssertionError(f"{ref} holds a key, but is gone")
    return found


def _throttled(step: Transaction, new: NewJob) -> EnqueueResult | None:
    """Count a job against the window of its throttle key; return the answer of a call that finds it full."""
    asked = new.throttle
    if asked is None:
        return None
    name = throttle_name(asked)
    window = _window(step, new.queue, name, asked.window)
    if window is None:
        step.run(_BEGIN_WINDOW, (new.queue, name, step.now + asked.window, new.id))
        return None
    if window.jobs < asked.most:
        step.run(_COUNT_IN_WINDOW, (new.id, new.queue, name))
        return None
    wait = window.until - step.now
    if recorded(step, new.queue, "throttled"):
        step.record(JobThrottled(queue=new.queue, id=new.id, task=new.task, key=asked.key, retry_in=wait / 1_000_000))
    return EnqueueResult("throttled", window.ref, wait)


def _create(step: Transaction, new: NewJob, before: JobRecord | None, offset: int) -> bool:
    """Insert a new job, which continues from the previous job of its id; return True if the id was new."""
    run_at = new.run_at if new.run_at is not None else step.now + new.delay
    if isinstance(new.merge, DebounceKey | CollectKey):
        run_at = due_at(new.merge, first=step.now, calls=1, now=step.now)
    if not _put(step, new, run_at, offset):
        return False
    if before is not None:
        step.run(_GO_ON, (before.fence, before.settled_fence, new.queue, new.id))
    match new.merge:
        case CollectKey():
            step.run(_TAKE_IN, (new.queue, new.id, new.id, 0, framed(new.payload)))
        case UniqueKey(window=int() as window):
            step.run(_BEGIN_WINDOW, (new.queue, merge_name(new.merge), step.now + window, new.id))
        case _:
            pass
    if recorded(step, new.queue, "enqueued"):
        step.record(enqueued(_there(step, new.ref)[1]))
    return True


def _put(step: Transaction, new: NewJob, run_at: int, offset: int) -> bool:
    """Insert a job as waiting or delayed; return True if its id was new."""
    row = rows.wished(new, run_at, step.now, _score(step, new, run_at, offset))
    queue, name, *columns = row
    if not step.run(_REMEMBER, (queue, queue, name, name, *columns)):
        return False
    step.moved(new.queue, to=row[3])
    if new.keys:
        concurrency_keys.name(step, new)
    step.knocked.append(queue_topic(new.queue))
    return True


def _score(step: Transaction, job: NewJob | JobRecord, run_at: int, offset: int) -> int:
    """Return the score of a job that enters its queue, or is delayed."""
    # The jobs of one call are a microsecond apart, so that they keep the order of the call.
    at = max(run_at, step.now) + offset
    if run_at > step.now or not _is_fair(step, job):
        return score_at(at, boost=job.boost, lifo=job.lifo)
    return fair_queue.score(step, job, at)


def _is_fair(step: Transaction, job: NewJob | JobRecord) -> bool:
    """Return True if a job may get a virtual instant when it enters its queue."""
    return job.fair_key is not None or step.line(job.queue).fairness is not None
