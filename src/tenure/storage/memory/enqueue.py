"""The model's enqueue: makes a new job for a call, or merges the call into an existing job."""

from collections.abc import Mapping, Sequence
from heapq import nsmallest

from msgspec import structs

from tenure.clock import Clock
from tenure.core.deduplication import Window, due_at, merge_name, throttle_name
from tenure.core.events import JobThrottled
from tenure.core.frames import framed
from tenure.core.job import CollectKey, DebounceKey, JobRecord, MergeKey, NewJob, Ref, UniqueKey
from tenure.core.lifecycle import State
from tenure.core.order import score_at
from tenure.core.transition import collecting, enqueued, is_expired, merged
from tenure.storage.memory.state import ModelState
from tenure.storage.protocol import CALLS_KEPT, WINDOW_LIMIT, EnqueueResult, job_topic, queue_topic


class EnqueueRules(ModelState):
    """Stores each call once."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._merged_into: dict[Ref, Ref] = {}
        """The id of each merged call, and the job that it was merged into."""
        self._calls: dict[Ref, list[Ref]] = {}
        self._collected: dict[Ref, list[bytes]] = {}
        """The calls that each job has collected since its record was last read: they are joined then, not at each call.
        """
        self._windows: dict[tuple[str, str], Window] = {}

    def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store each new job once."""
        for queue in {job.queue for job in jobs}:
            self._require_here(queue)
        now = self._clock.now()
        receipts = [self._enqueue(job, now, offset) for offset, job in enumerate(jobs)]
        self._deliver_immediate(now)
        self._indexes.release_freed(now)
        return receipts

    def _deliver_immediate(self, now: int) -> None:
        """Deliver the tokens that the calls of this step have caused: when all jobs of the step exist."""

    def _enqueue(self, new: NewJob, now: int, offset: int) -> EnqueueResult:
        known = self._jobs.get(self._merged_into.get(new.ref, new.ref))
        if known is not None:
            if not self._is_past_retention(known, now):
                return EnqueueResult("duplicate", known.ref)
            self._drop(known)
        existing = self._merge_target(new, now)
        if existing is not None:
            return self._merge(new, existing, now, offset)
        if (refused := self._throttled(new, now)) is not None:
            return refused
        self._create(new, known if known is not None and known.ref == new.ref else None, now, offset)
        return EnqueueResult("created", new.ref)

    def _merge_target(self, new: NewJob, now: int) -> Ref | None:
        """Return the existing job that a call is merged into, or None."""
        if new.merge is None:
            return None
        if isinstance(new.merge, UniqueKey) and new.merge.window is not None:
            window = self._window(new.queue, merge_name(new.merge), new.merge.window, now)
            return None if window is None else window.ref
        return self._key_holder(new.queue, new.merge, now)

    def _key_holder(self, queue: str, key: MergeKey, now: int) -> Ref | None:
        """Return the job that a call with this key is merged into; expire those that have waited too long."""
        while (existing := self._indexes.merge_target(queue, key)) is not None:
            # A job that has started does not expire.
            if existing.state is State.ACTIVE or not is_expired(existing, now):
                return existing.ref
            self._expire(existing, now)
        return None

    def _window(self, queue: str, name: str, length: int, now: int) -> Window | None:
        window = self._windows.get((queue, name))
        if window is None or window.until <= now:
            return None
        # A window that ends further ahead than its length began before the clock was set back.
        window.until = min(window.until, now + length)
        return window

    def _merge(self, new: NewJob, into: Ref, now: int, offset: int) -> EnqueueResult:
        collected, receipt = 0, EnqueueResult("duplicate", into)
        match new.merge:
            case DebounceKey():
                self._replace_call(new, self._jobs[into], new.merge, now, offset)
                receipt = EnqueueResult("replaced", into)
            case CollectKey():
                collected = self._collect(new, self._jobs[into], new.merge, now, offset)
                receipt = EnqueueResult("collected", into)
            case _:
                pass
        self._record_on_request(merged(new, into, collected), now)
        return receipt

    def _replace_call(self, new: NewJob, old: JobRecord, key: DebounceKey, now: int, offset: int) -> None:
        """Replace the call that a debounced job is waiting with; the job keeps its id and fence."""
        self._remember_call(new.ref, old.ref)
        calls = self._calls.pop(old.ref)
        # Its calls are kept, so that their ids still lead to the job.
        self._drop(old)
        job = structs.replace(
            _new_record(new, due_at(key, first=old.created, calls=1, now=now), now, offset),
            id=old.id,
            created=min(old.created, now),
            fence=old.fence,
            settled_fence=old.settled_fence,
        )
        self._put(job, now, offset)
        self._calls[job.ref] = calls

    def _collect(self, new: NewJob, into: JobRecord, key: CollectKey, now: int, offset: int) -> int:
        """Add a call to a collecting job; return how many calls it has now."""
        self._remember_call(new.ref, into.ref)
        frame = framed(new.payload)
        after = collecting(into, key, now, ttl=new.ttl, offset=offset, size=len(frame))
        self._collected.setdefault(into.ref, []).append(frame)
        if into.state is State.DELAYED and after.state is State.WAITING:
            after = structs.replace(after, score=self._indexes.score(after, now + offset, now))
        self._replace(into, after)
        if State.DELAYED in (into.state, after.state):
            self.notified += [queue_topic(into.queue), job_topic(into.ref)]
        return after.collected

    @property
    def records(self) -> Mapping[Ref, JobRecord]:
        """Every job, with all of its collected calls."""
        for ref in list(self._collected):
            self._with_calls(ref)
        return self._jobs

    def _with_calls(self, ref: Ref) -> JobRecord:
        """Return a job's record with all of its collected calls."""
        collected = self._collected.pop(ref, None)
        if collected is not None:
            job = self._jobs[ref]
            # The indexes do not depend on the payload.
            self._jobs[ref] = structs.replace(job, payload=b"".join((job.payload, *collected)))
        return self._jobs[ref]

    def _remember_call(self, call: Ref, job: Ref) -> None:
        self._merged_into[call] = job
        calls = self._calls.setdefault(job, [])
        calls.append(call)
        if len(calls) > CALLS_KEPT:
            del self._merged_into[calls.pop(0)]

    def _call_count(self, job: Ref) -> int:
        """Return how many calls a job answers for, including its own: all are deleted with it."""
        return 1 + len(self._calls.get(job, ()))

    def _throttled(self, new: NewJob, now: int) -> EnqueueResult | None:
        """Count a job against the window of its throttle key; return the answer of a call that finds it full."""
        throttle = new.throttle
        if throttle is None:
            return None
        name = throttle_name(throttle)
        window = self._window(new.queue, name, throttle.window, now)
        if window is None:
            self._windows[new.queue, name] = Window(now + throttle.window, 1, new.ref)
            return None
        if window.jobs < throttle.most:
            window.jobs, window.ref = window.jobs + 1, new.ref
            return None
        wait = window.until - now
        event = JobThrottled(queue=new.queue, id=new.id, task=new.task, key=throttle.key, retry_in=wait / 1_000_000)
        self._record_on_request(event, now)
        return EnqueueResult("throttled", window.ref, wait)

    def _create(self, new: NewJob, before: JobRecord | None, now: int, offset: int) -> None:
        run_at = new.run_at if new.run_at is not None else now + new.delay
        if isinstance(new.merge, DebounceKey | CollectKey):
            run_at = due_at(new.merge, first=now, calls=1, now=now)
        job = _new_record(new, run_at, now, offset)
        if before is not None:
            # The id's next job continues from the fence of the previous one: an outside resource may have seen that
            # fence.
            job = structs.replace(job, fence=before.fence, settled_fence=before.settled_fence)
        self._put(job, now, offset)
        if self._records_more(job.queue):
            self._record_on_request(enqueued(job), now)
        if isinstance(new.merge, UniqueKey) and new.merge.window is not None:
            self._windows[new.queue, merge_name(new.merge)] = Window(now + new.merge.window, 1, new.ref)

    def _put(self, job: JobRecord, now: int, offset: int) -> None:
        if job.state is State.WAITING:
            job = structs.replace(job, score=self._indexes.score(job, max(job.run_at, now) + offset, now))
        self._runs[job.ref] = []
        self._log[job.ref] = []
        self._indexes.add(job, now)
        self.notified.append(queue_topic(job.queue))

    def _drop(self, job: JobRecord) -> None:
        super()._drop(job)
        self._collected.pop(job.ref, None)
        for call in self._calls.pop(job.ref, ()):
            del self._merged_into[call]

    def _free_window(self, job: JobRecord) -> None:
        """Free the key window that a job holds, if it is still this job's."""
        if isinstance(job.merge, UniqueKey) and job.merge.window is not None:
            name = job.queue, merge_name(job.merge)
            if name in self._windows and self._windows[name].ref == job.ref:
                del self._windows[name]

    def _forget_windows(self, now: int) -> None:
        """Delete the key windows whose time is over, the earliest first."""
        expired = [(window.until, name) for name, window in self._windows.items() if window.until <= now]
        for _, name in nsmallest(WINDOW_LIMIT, expired):
            del self._windows[name]


def _new_record(new: NewJob, run_at: int, now: int, offset: int) -> JobRecord:
    """Return the record of a new job, the `offset`-th of its call, before it gets its place in the queue."""
    waits = new.links is not None and new.links.wait is not None
    collects = isinstance(new.merge, CollectKey)
    payload = framed(new.payload) if collects else new.payload
    return JobRecord(
        queue=new.queue,
        id=new.id,
        task=new.task,
        state=State.SUSPENDED if waits else State.DELAYED if run_at > now else State.WAITING,
        payload=payload,
        headers=new.headers,
        tags=new.tags,
        # The jobs of one call are a microsecond apart, so that they keep the order of the call.
        score=score_at(max(run_at, now) + offset, boost=new.boost, lifo=new.lifo),
        priority=new.priority,
        boost=new.boost,
        lifo=new.lifo,
        fair_key=new.fair_key,
        weight=new.weight,
        run_at=run_at,
        ttl=new.ttl,
        expires_at=now + new.ttl if new.ttl is not None and not waits else None,
        timeout=new.timeout,
        deadline=new.deadline,
        heartbeat_timeout=new.heartbeat_timeout,
        keys=new.keys,
        rates=new.rates,
        merge=new.merge,
        collected=1 if collects else 0,
        collected_bytes=len(payload) if collects else 0,
        stall=new.stall,
        policy=new.policy,
        created=now,
        schedule=new.schedule,
        tick=new.tick,
        parent=new.parent,
        links=new.links,
    )
