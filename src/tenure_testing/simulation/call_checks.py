"""Checks each call of a simulated world (I13): created, merged or refused, and the arguments its job must have."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tenure.core.deduplication import COLLECTED_LIMIT
from tenure.core.frames import framed
from tenure.core.job import CollectKey, DebounceKey, JobRecord, MergeKey, NewJob, Ref, UniqueKey
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.transition import is_expired
from tenure.storage.protocol import EnqueueResult, RevisionResult

Require = Callable[[bool, str, str], None]
"""Fails with an invariant's number and a message unless the condition is true."""

QUEUED = (State.DELAYED, State.WAITING)


@dataclass
class Span:
    """The period for which a key is held or a throttle counts: its end, the number of jobs, and the latest job."""

    until: int
    jobs: int
    ref: Ref


class CallRecords:
    """An account of all calls that uses only their requests and answers."""

    def __init__(self, require: Require) -> None:
        self._require = require
        self._contents: dict[Ref, list[bytes]] = {}
        """The arguments with which each job was acknowledged. A collecting job has those of all its calls, in order."""
        self.given: dict[tuple[Ref, int], tuple[bytes, ...]] = {}
        """The arguments that each run of a collecting job must get, by the run's fence."""
        self._takers: dict[Ref, Ref] = {}
        """The job that took in each call."""
        self._due: dict[Ref, int] = {}
        """The instant before which a job that calls have put off must not become ready."""
        self._spans: dict[tuple[str, str], Span] = {}
        self._holding = False
        """True if there ever was a unique key."""

    def answered(
        self, new: NewJob, receipt: EnqueueResult, before: Mapping[Ref, JobRecord], job: JobRecord | None, now: int
    ) -> str:
        """Record the answer to a call, and return the log's name of its fate. `job`: the job that the answer names."""
        known, taker = before.get(new.ref), self._takers.get(new.ref)
        if known is not None and _is_forgotten(known, now):
            known = None
        if taker is not None and _is_forgotten(before[taker], now):
            # A call is forgotten together with the result of the job that took it in.
            taker = None
        # A known id is answered before the storage checks how long the key is held. Only that check shortens the
        # period.
        held = self._held(new, now) if known is None and taker is None else None
        holders = [holder.ref for holder in _holders(new, before, now)] if held is None else [held]
        self._holding = self._holding or isinstance(new.merge, UniqueKey)
        match receipt.action:
            case "created":
                self._require(receipt.ref == new.ref, "I13", f"{new.ref} was created, and answered as {receipt.ref}")
                self._require(known is None, "I13", f"{new.ref} was created, and existed: {known}")
                self._require(taker is None, "I13", f"{new.ref} was created as a job, and {taker} had merged it")
                self._require(not holders, "I13", f"{new.ref} was created while {holders} held {new.merge}")
                self._made(new, job, now)
                return "enqueued"
            case "duplicate" if known is not None or taker is not None:
                mine = new.ref if known is not None else taker
                self._require(receipt.ref == mine, "I13", f"{new.ref} is {mine}, and was answered as {receipt.ref}")
                return ""
            case "duplicate":
                fine = isinstance(new.merge, UniqueKey) and receipt.ref in holders
                self._require(
                    fine, "I13", f"{new.ref} is reported as a duplicate of {receipt.ref}; {holders} hold its key"
                )
                return "deduplicated"
            case "replaced" | "collected":
                fine = known is None and taker is None and receipt.ref in holders
                self._require(fine, "I13", f"{new.ref} was merged into {receipt.ref}; {holders} could take it")
                self._takers[new.ref] = receipt.ref
                self._came_to(new, receipt, before[receipt.ref], job, now)
                return "debounced" if receipt.action == "replaced" else "collected"
            case "throttled":
                self._throttled(new, receipt, now)
                return "throttled"
            case "pending":
                raise AssertionError(f"{new.ref} belongs to no transaction")

    def _made(self, new: NewJob, job: JobRecord | None, now: int) -> None:
        for call in [call for call, taker in self._takers.items() if taker == new.ref]:
            # The calls that an earlier job of this id took in are forgotten with that job.
            del self._takers[call]
        self._contents[new.ref] = [new.payload]
        match new.merge:
            case UniqueKey(window=int() as length):
                self._spans[_span_of(new.queue, new.merge)] = Span(now + length, 1, new.ref)
            case DebounceKey() | CollectKey():
                self._put_off(new.merge, job, first=now, now=now)
            case _:
                pass
        if new.throttle is not None:
            place = new.queue, f"throttle {new.throttle.key}"
            span = self._open(place, new.throttle.window, now)
            if span is None:
                self._spans[place] = Span(now + new.throttle.window, 1, new.ref)
            else:
                span.jobs, span.ref = span.jobs + 1, new.ref
                fits = span.jobs <= new.throttle.most
                self._require(
                    fits, "I13", f"{new.ref} is number {span.jobs} in a window that allows {new.throttle.most}"
                )

    def _came_to(self, new: NewJob, receipt: EnqueueResult, was: JobRecord, job: JobRecord | None, now: int) -> None:
        living = job is not None and job.state in QUEUED and job.starts == 0
        self._require(living, "I13", f"{new.ref} was merged into {receipt.ref}, which does not wait: {job}")
        contents = self._contents[receipt.ref]
        if receipt.action == "replaced":
            contents[:] = [new.payload]
        else:
            contents.append(new.payload)
        if isinstance(new.merge, DebounceKey | CollectKey):
            self._put_off(new.merge, job, first=was.created, now=now)

    def _put_off(self, key: DebounceKey | CollectKey, job: JobRecord | None, *, first: int, now: int) -> None:
        """Check that a job waits after its latest call for as long as its key says, and not for longer."""
        if job is None:
            return
        due = now + key.delay
        if key.max_wait is not None:
            due = max(now, min(due, first + key.max_wait))
        if isinstance(key, CollectKey) and len(self._contents[job.ref]) == key.max_size:
            due = now
        self._due[job.ref] = due
        waits = job.run_at == due if job.state is State.DELAYED else due <= now
        self._require(waits, "I13", f"{job.ref} got its latest call at {now}, and is due at {job.run_at}, not {due}")

    def _throttled(self, new: NewJob, receipt: EnqueueResult, now: int) -> None:
        span = None
        if new.throttle is not None:
            span = self._open((new.queue, f"throttle {new.throttle.key}"), new.throttle.window, now)
        full = span is not None and new.throttle is not None and span.jobs >= new.throttle.most
        self._require(full, "I13", f"{new.ref} was throttled; its window has {span}")
        fine = span is not None and (receipt.ref, receipt.retry_in) == (span.ref, span.until - now)
        self._require(fine, "I13", f"{new.ref} was throttled by {receipt}; its window has {span}")

    def _held(self, new: NewJob, now: int) -> Ref | None:
        """Return the job that holds a call's key for a period."""
        if not isinstance(new.merge, UniqueKey) or new.merge.window is None:
            return None
        span = self._open(_span_of(new.queue, new.merge), new.merge.window, now)
        return None if span is None else span.ref

    def _open(self, place: tuple[str, str], length: int, now: int) -> Span | None:
        span = self._spans.get(place)
        if span is None or span.until <= now:
            return None
        # If the period ends further ahead than its length, it began before the clock was set back.
        span.until = min(span.until, now + length)
        return span

    def claimed(self, job: JobRecord) -> None:
        """Record the arguments that a run must get."""
        if isinstance(job.merge, CollectKey):
            self.given[job.ref, job.fence] = tuple(self._contents[job.ref])

    def redriven(self, ref: Ref) -> None:
        """Record that a job was redriven. Its start no longer depends on its calls."""
        self._due.pop(ref, None)

    def deleted(self, job: JobRecord) -> None:
        """Record that a job was deleted. The key that it held for a period is released."""
        if isinstance(job.merge, UniqueKey) and job.merge.window is not None:
            place = _span_of(job.queue, job.merge)
            if place in self._spans and self._spans[place].ref == job.ref:
                del self._spans[place]

    def refused(self, job: JobRecord, answer: RevisionResult, records: Mapping[Ref, JobRecord]) -> None:
        """Check that a redrive was refused only because another unfinished job holds the key."""
        holder = None if answer.holder is None else records.get(answer.holder)
        fine = holder is not None and holder.state not in TERMINAL and _names_of(holder) == _names_of(job)
        self._require(fine, "I13", f"{job.ref}: its redrive was refused for {holder}")

    def swept(self, now: int) -> None:
        """Forget the periods that are over, as a sweep does."""
        self._spans = {place: span for place, span in self._spans.items() if span.until > now}

    def hold(self, records: Mapping[Ref, JobRecord], changed: list[Ref], gone: list[Ref], now: int) -> None:
        """Check that each job waited for its calls and has the arguments of each, once; no key is held twice."""
        for ref in gone:
            self._contents.pop(ref, None)
            self._due.pop(ref, None)
        if gone and self._takers:
            self._takers = {call: taker for call, taker in self._takers.items() if taker in records}
        for ref in changed:
            job, contents = records[ref], self._contents.get(ref, [])
            if isinstance(job.merge, CollectKey):
                right = b"".join(map(framed, contents))
                fits = job.collected == len(contents) <= job.merge.max_size
                self._require(
                    fits, "I13", f"{ref} merged {len(contents)} calls, and records {job.collected}: {job.merge}"
                )
            else:
                right = b"".join(contents)
            if job.state in (State.WAITING, State.ACTIVE):
                # A job that is ready once stays ready, even if the clock is set back.
                due = self._due.pop(ref, now)
                self._require(due <= now, "I13", f"{ref} became ready at {now}, and should wait for calls until {due}")
            self._require(job.payload == right, "I13", f"{ref} has {job.payload!r}, but its calls had {right!r}")
        if not self._holding:
            return
        holders: dict[tuple[str, str], Ref] = {}
        for ref, job in records.items():
            if job.state not in TERMINAL:
                for place in _names_of(job):
                    self._require(place not in holders, "I13", f"{ref} and {holders.get(place)} both hold {place}")
                    holders[place] = ref


def _holders(new: NewJob, before: Mapping[Ref, JobRecord], now: int) -> Iterator[JobRecord]:
    """Yield the jobs that can take in a call."""
    key = new.merge
    if key is None or (isinstance(key, UniqueKey) and key.window is not None):
        return
    for job in before.values():
        same = job.merge is not None and (job.queue, job.merge.key) == (new.queue, key.key)
        if same and type(job.merge) is type(key) and not _may_not(job, key) and not _too_old(job, now):
            yield job


def _may_not(job: JobRecord, key: MergeKey) -> bool:
    match key:
        case UniqueKey(scope="queued"):
            return job.state not in QUEUED
        case UniqueKey():
            return job.state in TERMINAL
        case DebounceKey():
            return job.starts > 0 or job.state not in QUEUED
        case CollectKey(max_size=most):
            full = job.collected >= most or job.collected_bytes >= COLLECTED_LIMIT
            return job.starts > 0 or job.state not in QUEUED or full


def _is_forgotten(job: JobRecord, now: int) -> bool:
    return job.kept_until is not None and job.kept_until <= now


def _too_old(job: JobRecord, now: int) -> bool:
    return job.state in QUEUED and is_expired(job, now)


def _names_of(job: JobRecord) -> list[tuple[str, str]]:
    """Return the key that a job holds until it is over."""
    if isinstance(job.merge, UniqueKey) and job.merge.window is None and job.merge.scope == "unfinished":
        return [(job.queue, job.merge.key)]
    return []


def _span_of(queue: str, key: UniqueKey) -> tuple[str, str]:
    return queue, f"unique {key.key}"
