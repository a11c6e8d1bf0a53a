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
    """A finished job still holds its unique key."""

    def _merge_target(self, new: NewJob, now: int) -> Ref | None:
        there = super()._merge_target(new, now)
        if there is None and isinstance(new.merge, UniqueKey) and new.merge.window is None:
            there = _sharing(self, new, lambda job: job.state in TERMINAL)
        return there


@mutant("windows")
class UniqueFreedByAnother(Model):
    """A key that is held for a period is released when any job of that key is deleted."""

    def _free_window(self, job: JobRecord) -> None:
        if job.merge is not None:
            self._windows.pop((job.queue, merge_name(job.merge)), None)


@mutant("windows")
class UniqueFreedAtTheEnd(Model):
    """A key that is held for a period is released as soon as its job is over."""

    def _replace(self, before: JobRecord, after: JobRecord) -> None:
        super()._replace(before, after)
        if after.state in TERMINAL:
            self._free_window(after)


@mutant("merging")
class QueuedKeyHeldByTheActive(Model):
    """A claim does not release a key of the scope `queued`."""

    def _merge_target(self, new: NewJob, now: int) -> Ref | None:
        there = super()._merge_target(new, now)
        if there is None and isinstance(new.merge, UniqueKey) and new.merge.scope == "queued":
            there = _sharing(self, new, lambda job: job.state is State.ACTIVE)
        return there


@mutant("merging")
class RedriveOfTheSecond(Model):
    """A redrive does not check whether another job holds the unique key."""

    def _holder(self, job: JobRecord, now: int) -> Ref | None:
        return None


@mutant("one key and long runs")
class ExpiredUnderItsRun(Model):
    """A call for the key of a running job treats that job as too old to start, and expires it."""

    def _key_holder(self, queue: str, key: MergeKey, now: int) -> Ref | None:
        there = self._indexes.merge_target(queue, key)
        if there is not None and there.state is State.ACTIVE and is_expired(there, now):
            self._expire(there, now)
        return super()._key_holder(queue, key, now)


# ── debounce and collect ──────────────────────────────────────────────────────────────────────────────────────────────


@mutant("merging")
class DebounceForgetsTheCall(Model):
    """A call that replaced another is not remembered: when it is repeated, it creates a separate job."""

    def _replace_call(self, new: NewJob, old: JobRecord, key: DebounceKey, now: int, offset: int) -> None:
        super()._replace_call(new, old, key, now, offset)
        del self._merged_into[new.ref]
        self._calls[old.ref].remove(new.ref)


@mutant("merging")
class DebounceKeepsTheFirst(Model):
    """A later call delays a debounced job but does not replace its arguments."""

    def _replace_call(self, new: NewJob, old: JobRecord, key: DebounceKey, now: int, offset: int) -> None:
        super()._replace_call(structs.replace(new, payload=old.payload), old, key, now, offset)


@mutant("merging")
class DebounceForEver(Model):
    """A debounced job is delayed without end, beyond its longest wait."""

    def _replace_call(self, new: NewJob, old: JobRecord, key: DebounceKey, now: int, offset: int) -> None:
        super()._replace_call(new, old, structs.replace(key, max_wait=None), now, offset)


@mutant("merging")
class DebounceFromTheFirst(Model):
    """A debounced job runs a delay after its first call, not after its last."""

    def _replace_call(self, new: NewJob, old: JobRecord, key: DebounceKey, now: int, offset: int) -> None:
        super()._replace_call(new, old, structs.replace(key, max_wait=key.delay), now, offset)


@mutant("merging")
class CollectDropsTheLast(Model):
    """The call that fills a batch is acknowledged but missing in the batch."""

    def _collect(self, new: NewJob, into: JobRecord, key: CollectKey, now: int, offset: int) -> int:
        calls = super()._collect(new, into, key, now, offset)
        if calls == key.max_size:
            self._collected[into.ref].pop()
        return calls


@mutant("merging")
class CollectIntoTheStarted(Model):
    """A batch that has started accepts calls, which its handler never gets."""

    def _merge_target(self, new: NewJob, now: int) -> Ref | None:
        there = super()._merge_target(new, now)
        if there is None and isinstance(new.merge, CollectKey):
            there = _sharing(self, new, lambda job: job.state is State.ACTIVE)
        return there

    def _collect(self, new: NewJob, into: JobRecord, key: CollectKey, now: int, offset: int) -> int:
        if into.state is not State.ACTIVE:
            return super()._collect(new, into, key, now, offset)
        self._remember_call(new.ref, into.ref)
        more = structs.replace(into, payload=into.payload + framed(new.payload), collected=into.collected + 1)
        self._replace(into, more)
        return more.collected


@mutant("merging")
class CollectTwice(Model):
    """A call that a batch has accepted is accepted again when it is repeated."""

    def _collect(self, new: NewJob, into: JobRecord, key: CollectKey, now: int, offset: int) -> int:
        calls = super()._collect(new, into, key, now, offset)
        del self._merged_into[new.ref]
        self._calls[into.ref].remove(new.ref)
        return calls


@mutant("merging")
class CollectBeyondItsSize(Model):
    """A batch accepts one call too many."""

    def _merge_target(self, new: NewJob, now: int) -> Ref | None:
        if isinstance(new.merge, CollectKey):
            new = structs.replace(new, merge=structs.replace(new.merge, max_size=new.merge.max_size + 1))
        return super()._merge_target(new, now)


# ── throttle ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@mutant("merging")
class ThrottledCallsCount(Model):
    """A throttled call restarts the window."""

    def _throttled(self, new: NewJob, now: int) -> EnqueueResult | None:
        refused = super()._throttled(new, now)
        if refused is not None and new.throttle is not None:
            self._windows[new.queue, f"throttle:{new.throttle.key}"].until = now + new.throttle.window
        return refused


@mutant("merging")
class ThrottledForGood(Model):
    """A full window never ends."""

    def _throttled(self, new: NewJob, now: int) -> EnqueueResult | None:
        refused = super()._throttled(new, now)
        if new.throttle is not None:
            window = self._windows[new.queue, f"throttle:{new.throttle.key}"]
            if window.jobs == new.throttle.most:
                window.until = now + new.throttle.window
        return refused


@mutant("merging")
class ThrottleCountsOneTooFew(Model):
    """A window allows one job too many."""

    def _throttled(self, new: NewJob, now: int) -> EnqueueResult | None:
        if new.throttle is not None:
            new = structs.replace(new, throttle=structs.replace(new.throttle, most=new.throttle.most + 1))
        return super()._throttled(new, now)


# ── harmless ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@mutant("", harmless=True)
class YoungestFirst(Model):
    """If several jobs could accept a call, the youngest accepts it, not the oldest."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        indexes, eldest = self._indexes, self._indexes.merge_target

        def youngest(queue: str, key: MergeKey) -> JobRecord | None:
            if isinstance(key, UniqueKey):
                return eldest(queue, key)
            sharing = [
                job
                for job in indexes.jobs.values()
                if job.queue == queue and job.merge is not None and merge_name(job.merge) == merge_name(key)
            ]
            found = [job for job in sharing if accepts_merge(job, key)]
            return max(found, key=lambda job: indexes.order[job.ref]) if found else None

        indexes.merge_target = youngest  # type: ignore[method-assign]


def _sharing(model: Model, new: NewJob, fits: Callable[[JobRecord], bool]) -> Ref | None:
    """Return a job that has the call's key and fits."""
    found = (
        ref
        for ref, job in model.records.items()
        if job.queue == new.queue and job.merge == new.merge and new.merge is not None and fits(job)
    )
    return next(found, None)
