"""Mutants of enqueuing: unique, debounced, collected and throttled calls."""

from collections.abc import Callable

from msgspec import structs

from tenure.clock import Clock
from tenure.core.deduplication import accepts_merge, merge_name
from tenure.core.frames import framed
from tenure.core.job import CollectKey, DebounceKey, JobRecord, MergeKey, NewJob, Ref, UniqueKey
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.transition import is_expired
from tenure.storage.memory.model import Model
from tenure.storage.protocol import EnqueueResult
from tenure_testing.mutants.registry import mutant

# ── unique ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@mutant("merging")
class UniqueFreedWhileRetrying(Model):
    """A job that waits for its next attempt does not hold its unique key."""

    def _merge_target(self, new: NewJob, now: int) -> Ref | None:
        there = super()._merge_target(new, now)
        if there is not None and isinstance(new.merge, UniqueKey) and there in self._jobs:
            job = self._jobs[there]
            return None if job.state is State.DELAYED and job.failures else there
        return there


@mutant("merging")
class UniqueKeyLeaked(Model):
    """A job that is over goes on to hold its unique key."""

    def _merge_target(self, new: NewJob, now: int) -> Ref | None:
        there = super()._merge_target(new, now)
        if there is None and isinstance(new.merge, UniqueKey) and new.merge.window is None:
            there = _sharing(self, new, lambda job: job.state in TERMINAL)
        return there


@mutant("windows")
class UniqueFreedByAnother(Model):
    """A key that is held for a time is given back by whichever job of that key is deleted."""

    def _free_window(self, job: JobRecord) -> None:
        if job.merge is not None:
            self._windows.pop((job.queue, merge_name(job.merge)), None)


@mutant("windows")
class UniqueFreedAtTheEnd(Model):
    """A key that is held for a time is given back as soon as its job is over."""

    def _replace(self, before: JobRecord, after: JobRecord) -> None:
        super()._replace(before, after)
        if after.state in TERMINAL:
            self._free_window(after)


@mutant("merging")
class QueuedKeyHeldByTheActive(Model):
    """A key of the scope queued is not freed by the claim."""

    def _merge_target(self, new: NewJob, now: int) -> Ref | None:
        there = super()._merge_target(new, now)
        if there is None and isinstance(new.merge, UniqueKey) and new.merge.scope == "queued":
            there = _sharing(self, new, lambda job: job.state is State.ACTIVE)
        return there


@mutant("merging")
class RedriveOfTheSecond(Model):
    """A redrive does not ask whether another job holds the unique key."""

    def _holder(self, job: JobRecord, now: int) -> Ref | None:
        return None


@mutant("one key and long runs")
class ExpiredUnderItsRun(Model):
    """A call that comes to a running job finds it too old to start, and expires it."""

    def _key_holder(self, queue: str, key: MergeKey, now: int) -> Ref | None:
        there = self._indexes.merge_target(queue, key)
        if there is not None and there.state is State.ACTIVE and is_expired(there, now):
            self._expire(there, now)
        return super()._key_holder(queue, key, now)


# ── debounce and collect ──────────────────────────────────────────────────────────────────────────────────────────────


@mutant("merging")
class DebounceForgetsTheCall(Model):
    """A call that took the place of another is not remembered: when it comes again it makes a job of its own."""

    def _replace_call(self, new: NewJob, old: JobRecord, key: DebounceKey, now: int, offset: int) -> None:
        super()._replace_call(new, old, key, now, offset)
        del self._merged_into[new.ref]
        self._calls[old.ref].remove(new.ref)


@mutant("merging")
class DebounceKeepsTheFirst(Model):
    """A later call puts a debounced job off, and does not bring its arguments along."""

    def _replace_call(self, new: NewJob, old: JobRecord, key: DebounceKey, now: int, offset: int) -> None:
        super()._replace_call(structs.replace(new, payload=old.payload), old, key, now, offset)


@mutant("merging")
class DebounceForEver(Model):
    """A debounced job is put off again and again, whatever its longest wait."""

    def _replace_call(self, new: NewJob, old: JobRecord, key: DebounceKey, now: int, offset: int) -> None:
        super()._replace_call(new, old, structs.replace(key, max_wait=None), now, offset)


@mutant("merging")
class DebounceFromTheFirst(Model):
    """A debounced job runs so long after its first call, not after its last."""

    def _replace_call(self, new: NewJob, old: JobRecord, key: DebounceKey, now: int, offset: int) -> None:
        super()._replace_call(new, old, structs.replace(key, max_wait=key.delay), now, offset)


@mutant("merging")
class CollectDropsTheLast(Model):
    """The call that makes a batch full is acknowledged, and not in it."""

    def _collect(self, new: NewJob, into: JobRecord, key: CollectKey, now: int, offset: int) -> int:
        calls = super()._collect(new, into, key, now, offset)
        if calls == key.max_size:
            self._gathered[into.ref].pop()
        return calls


@mutant("merging")
class CollectIntoTheStarted(Model):
    """A batch that has started takes in calls that its handler never sees."""

    def _merge_target(self, new: NewJob, now: int) -> Ref | None:
        there = super()._merge_target(new, now)
        if there is None and isinstance(new.merge, CollectKey):
            there = _sharing(self, new, lambda job: job.state is State.ACTIVE)
        return there

    def _collect(self, new: NewJob, into: JobRecord, key: CollectKey, now: int, offset: int) -> int:
        if into.state is not State.ACTIVE:
            return super()._collect(new, into, key, now, offset)
        self._remember_call(new.ref, into.ref)
        more = structs.replace(into, payload=into.payload + framed(new.payload), gathered=into.gathered + 1)
        self._replace(into, more)
        return more.gathered


@mutant("merging")
class CollectTwice(Model):
    """A call that a batch has taken in is taken in again when it comes again."""

    def _collect(self, new: NewJob, into: JobRecord, key: CollectKey, now: int, offset: int) -> int:
        calls = super()._collect(new, into, key, now, offset)
        del self._merged_into[new.ref]
        self._calls[into.ref].remove(new.ref)
        return calls


@mutant("merging")
class CollectBeyondItsSize(Model):
    """A batch takes in one call more than it may."""

    def _merge_target(self, new: NewJob, now: int) -> Ref | None:
        if isinstance(new.merge, CollectKey):
            new = structs.replace(new, merge=structs.replace(new.merge, max_size=new.merge.max_size + 1))
        return super()._merge_target(new, now)


# ── throttle ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@mutant("merging")
class ThrottledCallsCount(Model):
    """A call that is throttled begins the window anew."""

    def _throttled(self, new: NewJob, now: int) -> EnqueueResult | None:
        refused = super()._throttled(new, now)
        if refused is not None and new.throttle is not None:
            self._windows[new.queue, f"throttle:{new.throttle.key}"].until = now + new.throttle.window
        return refused


@mutant("merging")
class ThrottledForGood(Model):
    """A window that is full is never over."""

    def _throttled(self, new: NewJob, now: int) -> EnqueueResult | None:
        refused = super()._throttled(new, now)
        if new.throttle is not None:
            window = self._windows[new.queue, f"throttle:{new.throttle.key}"]
            if window.jobs == new.throttle.most:
                window.until = now + new.throttle.window
        return refused


@mutant("merging")
class ThrottleCountsOneTooFew(Model):
    """A window lets one more job be made than it may."""

    def _throttled(self, new: NewJob, now: int) -> EnqueueResult | None:
        if new.throttle is not None:
            new = structs.replace(new, throttle=structs.replace(new.throttle, most=new.throttle.most + 1))
        return super()._throttled(new, now)


# ── harmless ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@mutant("", harmless=True)
class YoungestFirst(Model):
    """Of several jobs that could take in a call, the youngest does, not the eldest."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        shelf, eldest = self._indexes, self._indexes.merge_target

        def youngest(queue: str, key: MergeKey) -> JobRecord | None:
            if isinstance(key, UniqueKey):
                return eldest(queue, key)
            sharing = [
                job
                for job in shelf.jobs.values()
                if job.queue == queue and job.merge is not None and merge_name(job.merge) == merge_name(key)
            ]
            found = [job for job in sharing if accepts_merge(job, key)]
            return max(found, key=lambda job: shelf.order[job.ref]) if found else None

        shelf.merge_target = youngest  # type: ignore[method-assign]


def _sharing(model: Model, new: NewJob, fits: Callable[[JobRecord], bool]) -> Ref | None:
    """Return a job that has the call's key and fits."""
    found = (
        ref
        for ref, job in model.records.items()
        if job.queue == new.queue and job.merge == new.merge and new.merge is not None and fits(job)
    )
    return next(found, None)
