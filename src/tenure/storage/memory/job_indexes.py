"""The model's jobs: each record once, and in exactly the indexes that belong to its state.

Every change of a job goes through `replace`, which updates every index and takes or frees its concurrency keys.
`let_in` releases parked jobs in the same step. A key's usage is the set of its active jobs, never a counter.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import TypeVar

from msgspec import structs

from tenure.core.deduplication import accepts_merge, merge_name
from tenure.core.job import JobRecord, MergeKey, RateKey, Ref
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.order import Fairness, entered_at, score_at
from tenure.core.rate import (
    RateReservation,
    effective_rates,
    extended,
    free,
    is_of_task,
    limit_end,
    limited,
    opens_at,
    refund,
    retuned,
    taken,
    taken_if_open,
)
from tenure.storage.protocol import (
    LIMIT,
    LOOK_LIMIT,
    PASSED_LIMIT,
    PAUSED,
    PROMOTE_LIMIT,
    RATE,
    UNKNOWN,
    knows,
    task_of_place,
    unknown_place,
)

G = TypeVar("G")


class OrderedJobs:
    """Jobs in the order of a number, such as a score, a due time, or the end of a lease."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, Ref]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[int, Ref]]:
        return iter(self._entries)

    def add(self, at: int, ref: Ref) -> None:
        """Insert a job at its position."""
        insort(self._entries, (at, ref))

    def drop(self, at: int, ref: Ref) -> None:
        """Remove a job, which must be there."""
        index = bisect_left(self._entries, (at, ref))
        if index == len(self._entries) or self._entries[index] != (at, ref):
            raise LookupError(f"{ref} is not indexed at {at}")
        del self._entries[index]

    def first(self, limit: int, *, until: int | None = None) -> list[Ref]:
        """Return the first jobs in order, without those beyond `until`."""
        end = max(limit, 0)
        if until is not None:
            if not self._entries or self._entries[0][0] > until:
                return []
            end = min(end, bisect_right(self._entries, until, key=lambda entry: entry[0]))
        return [ref for _, ref in self._entries[:end]]

    def beyond(self, at: int, limit: int) -> list[Ref]:
        """Return the first jobs in order whose number is greater than `at`."""
        index = bisect_right(self._entries, at, key=lambda entry: entry[0])
        return [ref for _, ref in self._entries[index : index + max(limit, 0)]]

    @property
    def head(self) -> int | None:
        """The number of the first job, None if there are none."""
        return self._entries[0][0] if self._entries else None


@dataclass
class QueueIndexes:
    """The indexes of one queue."""

    ready: OrderedJobs = field(default_factory=OrderedJobs)
    delayed: OrderedJobs = field(default_factory=OrderedJobs)
    timers: OrderedJobs = field(default_factory=OrderedJobs)
    parked: dict[str, OrderedJobs] = field(default_factory=dict[str, OrderedJobs])
    over: dict[State, OrderedJobs] = field(default_factory=lambda: {state: OrderedJobs() for state in sorted(TERMINAL)})
    fairness: Fairness | None = None
    tenants: dict[tuple[int, str], dict[Ref, None]] = field(default_factory=dict[tuple[int, str], dict[Ref, None]])
    """The waiting jobs of each priority and tenant, without the jobs that have no fair key."""
    opening: dict[str, int] = field(default_factory=dict[str, int])
    """For each rate that jobs are parked under: when it next lets a job start."""
    unfinished: int = 0
    discarded: int = 0


@dataclass
class KeyState:
    """The state of a concurrency key: its limit, its holders, and how many unfinished jobs name it.

    A key that no unfinished job names is deleted.
    """

    limit: int
    holders: dict[Ref, None] = field(default_factory=dict[Ref, None])
    named: int = 0

    @property
    def free(self) -> int:
        """How many more jobs of this key may start."""
        return max(0, self.limit - len(self.holders))


class JobIndexes:
    """The records, and every index that contains them."""

    def __init__(
        self,
        paused: Callable[[str], bool],
        task_rate: Callable[[str], RateKey | None],
        notify: Callable[[str], None],
    ) -> None:
        self.jobs: dict[Ref, JobRecord] = {}
        self.order: dict[Ref, int] = {}
        self.queues: defaultdict[str, QueueIndexes] = defaultdict(QueueIndexes)
        self.leases = OrderedJobs()
        self.suspects = OrderedJobs()
        self.aging = OrderedJobs()
        self.kept = OrderedJobs()
        self.redrives = OrderedJobs()
        self.keys: dict[tuple[str, str], KeyState] = {}
        self.reserved: dict[tuple[str, str], RateReservation] = {}
        """For each rate of a queue: up to when its time is taken."""
        self._paused = paused
        self._task_rate = task_rate
        self._notify = notify
        self._merging: dict[tuple[str, str], dict[Ref, None]] = {}
        self._scheduled: dict[str, dict[Ref, None]] = {}
        self._freed: Counter[tuple[str, str]] = Counter()
        self._last_place = ("", "")
        self._sequence = 0

    def add(self, job: JobRecord, now: int) -> None:
        """Add a job. If it is unfinished, the limits of its keys apply from now on."""
        self._sequence += 1
        self.order[job.ref] = self._sequence
        self._put(None, job)
        for key in job.keys if _unfinished(job) else ():
            key_state = self.keys[job.queue, key.name]
            raised, key_state.limit = key.limit > key_state.limit, key.limit
            if raised:
                self.unpark(job.queue, key.name, now)

    def replace(self, before: JobRecord, after: JobRecord) -> None:
        """Replace a job's record with a new one."""
        self._remove(before)
        self._put(before, after)
        self._note_freed(before, after)

    def drop(self, job: JobRecord) -> None:
        """Delete a job."""
        self._remove(job)
        self._count(job, None)
        del self.jobs[job.ref], self.order[job.ref]
        self._note_freed(job, None)

    def score(self, job: JobRecord, at: int, now: int) -> int:
        """Return the score of a job that enters its queue as if at an instant."""
        indexes = self.queues[job.queue]
        if not len(indexes.ready) and not indexes.parked:
            indexes.fairness = None
        if job.lifo:
            return score_at(at, boost=job.boost, lifo=True)
        if job.fair_key is not None and indexes.fairness is None:
            # A late arrival must not start the virtual clock in the past.
            indexes.fairness = Fairness(max(at, now))
        if indexes.fairness is not None:
            key = job.fair_key or ""
            waits = job.fair_key is None or (job.boost, key) in indexes.tenants
            at = indexes.fairness.tag(key, boost=job.boost, weight=job.weight, waits=waits)
        return score_at(at, boost=job.boost)

    def score_again(self, job: JobRecord, now: int) -> int:
        """Return the score of a job that comes back at once: its old one, or the queue's virtual time if that is lower.

        The virtual time may be lower because the queue's fair order was reset, or because the clock was set back.
        """
        fairness = self.queues[job.queue].fairness
        reached = now if fairness is None else fairness.start(job.boost)
        return job.score if job.lifo else min(job.score, score_at(reached, boost=job.boost))

    def promoted(self, job: JobRecord, now: int) -> JobRecord:
        """Return a delayed job as it enters its queue."""
        at = entered_at(job.score, boost=job.boost, lifo=job.lifo)
        return structs.replace(job, state=State.WAITING, score=self.score(job, at, now))

    def full(self, job: JobRecord, now: int, tasks: Mapping[str, int] | None = None) -> str | None:
        """Return the name that a job must be parked under, or None if all its keys and rates let it start.

        `tasks`: the tasks that the caller knows. They are checked only for a job that has started before, so that a
        first start stays fast.
        """
        if self._paused(job.task):
            return PAUSED + job.task
        if job.starts and not knows(tasks, job.task, job.policy.version):
            return unknown_place(job.task, job.policy.version)
        full = next((key.name for key in job.keys if not self.keys[job.queue, key.name].free), None)
        if full is None:
            opening = (RATE + rate.name for rate in self.rates(job) if self.opens_at(job.queue, rate, now) > now)
            full = next(opening, None)
        return full

    def rates(self, job: JobRecord) -> list[RateKey]:
        """Return the rates that a job's start takes time of; a rate set for the task replaces the task's own rates."""
        return effective_rates(job.rates, self._task_rate(job.task), job.task)

    def opens_at(self, queue: str, rate: RateKey, now: int) -> int:
        """Return when a rate of a queue lets the next job start."""
        return opens_at(self._reservation(queue, rate, now), rate, now)

    def limited_until(self, queue: str, name: str, now: int) -> int:
        """Return the instant before which a limit lets nothing start; not after now if nothing is limited."""
        limit = self.reserved.get((queue, LIMIT + name))
        return now if limit is None else limit_end(limit, now)

    def set_limit(self, queue: str, name: str, length: int, now: int) -> bool:
        """Let nothing of a rate or a queue start for some time; return False if it is limited for longer already."""
        before = self.reserved.get((queue, LIMIT + name), RateReservation())
        after = extended(before, length, now)
        if after == before:
            return False
        self.reserved[queue, LIMIT + name] = after
        opening = self.queues[queue].opening
        if RATE + name in opening:
            opening[RATE + name] = max(opening[RATE + name], after.until)
        return True

    def limits(self, queue: str, now: int) -> list[tuple[str, int]]:
        """Return the names of the limits of a queue that are in force, sorted, each with the instant of its end."""
        names = sorted(name.removeprefix(LIMIT) for of, name in self.reserved if of == queue and name.startswith(LIMIT))
        ends = [(name, self.limited_until(queue, name, now)) for name in names]
        return [(name, until) for name, until in ends if until > now]

    def lift(self, queue: str, name: str) -> None:
        """End the limit of a rate or a queue."""
        del self.reserved[queue, LIMIT + name]
        opening = self.queues[queue].opening
        if RATE + name in opening:
            # The next claim checks it.
            opening[RATE + name] = 0
        self._notify(queue)

    def take_time(self, queue: str, rates: Iterable[RateKey], now: int) -> None:
        """Take the rates' time for one start."""
        for rate in rates:
            self.reserved[queue, rate.name] = taken(self._taken(queue, rate), rate, now)

    def give_back_time(self, queue: str, rates: Iterable[RateKey], started: int, now: int) -> None:
        """Give back the time of a start that was undone, so that the next job may start that much earlier."""
        for rate in rates:
            so_far, more = self._taken(queue, rate), refund(rate, started, now)
            if so_far.until > now:
                self.reserved[queue, rate.name] = RateReservation(so_far.until - more, so_far.reach)
                opening = self.queues[queue].opening
                if RATE + rate.name in opening:
                    opening[RATE + rate.name] -= more

    def known_places(self, queue: str, tasks: Mapping[str, int] | None) -> list[str]:
        """Return the names of unknown tasks that jobs are parked under and that this caller knows."""
        parked = self.queues[queue].parked
        return [name for name in parked if name.startswith(UNKNOWN) and knows(tasks, *task_of_place(name))]

    def first_known(self, queue: str, tasks: Mapping[str, int] | None) -> JobRecord | None:
        """Return the first job for a caller that knows these tasks; release it if it is parked as unknown."""
        indexes = self.queues[queue]
        candidates = [indexes.ready, *(indexes.parked[name] for name in self.known_places(queue, tasks))]
        heads = [entry for entry in (next(iter(index), None) for index in candidates) if entry is not None]
        if not heads:
            return None
        job = self.jobs[min(heads)[1]]
        if job.parked_under is not None:
            self.replace(job, structs.replace(job, parked_under=None))
        return self.jobs[job.ref]

    def mark_dispatched(self, job: JobRecord) -> None:
        """Advance the queue's virtual time, if the job counts in it."""
        fairness = self.queues[job.queue].fairness
        if fairness is not None and not job.lifo:
            fairness.mark_dispatched(job.score, job.boost)

    def park(self, job: JobRecord, under: str, now: int) -> None:
        """Park a ready job until there is room."""
        self.replace(job, structs.replace(job, parked_under=under))
        if under.startswith(RATE):
            self._note_opening(job.queue, under, now)
        if under.startswith(UNKNOWN):
            self._notify(job.queue)

    def open_rates(self, queue: str, now: int) -> None:
        """Release the jobs that the rates of a queue allow to start by now, no faster than they could have started.

        Each call releases up to `PROMOTE_LIMIT` jobs, beginning with the rates that have been open for the longest
        time.
        """
        opened = nsmallest(PROMOTE_LIMIT, [(at, name) for name, at in self.queues[queue].opening.items() if at <= now])
        room = PROMOTE_LIMIT
        for _, name in opened:
            if not room:
                break
            room -= self._open(queue, name, now, limit=room)

    def reopen_rate(self, queue: str, name: str, now: int) -> int:
        """Release every job this rate now allows, ignoring earlier releases. Return the count."""
        self.queues[queue].opening.pop(name, None)
        return self._open(queue, name, now)

    def recheck_rates(self, now: int) -> None:
        """Let the next claim check all parked rates: their opening times were set before the clock was set back."""
        for queue, indexes in self.queues.items():
            if any(at > now for at in indexes.opening.values()):
                indexes.opening = {name: 0 if at > now else at for name, at in indexes.opening.items()}
                self._notify(queue)

    def retune_queue(self, queue: str, rate: RateKey, now: int) -> None:
        """Apply a queue rate's new pace."""
        if (queue, rate.name) in self.reserved:
            self.reserved[queue, rate.name] = retuned(self.reserved[queue, rate.name], rate, now)

    def retune_task(self, task: str, rate: RateKey, now: int) -> None:
        """Apply a task rate's new pace, and check all jobs that are parked under one of the task's own rates."""
        for queue, indexes in self.queues.items():
            self.retune_queue(queue, rate, now)
            own = (RATE + rate for rate in _rates(indexes.parked) if is_of_task(rate, task))
            for name in list(own):
                self.reopen_rate(queue, name, now)

    def merge_target(self, queue: str, key: MergeKey) -> JobRecord | None:
        """Return the oldest job that a call with this key can be merged into."""
        sharing = self._merging.get((queue, merge_name(key)), {})
        found = [ref for ref in sharing if accepts_merge(self.jobs[ref], key)]
        return self.jobs[min(found, key=self.order.__getitem__)] if found else None

    def unfinished_of(self, schedule: str) -> list[State]:
        """Return the states of a schedule's unfinished jobs."""
        return [self.jobs[ref].state for ref in self._scheduled.get(schedule, {})]

    def drop_outdated(self, now: int) -> None:
        """Delete state that has no effect any more: rate time that has passed, and tags below the virtual time."""
        passed = [(reservation.until, of) for of, reservation in self.reserved.items() if reservation.until <= now]
        for _, of in nsmallest(PASSED_LIMIT, passed):
            del self.reserved[of]
        for indexes in self.queues.values():
            if not indexes.unfinished:
                indexes.fairness = None
            elif indexes.fairness is not None:
                indexes.fairness.forget()

    def unpark(self, queue: str, name: str, now: int, *, room: int | None = None) -> int:
        """Release as many parked jobs as have room under a key or a rate; return the count."""
        parked = self.queues[queue].parked.get(name)
        if parked is None:
            return 0
        let_in = parked.first(min(self._room(queue, name, parked, now) if room is None else room, PROMOTE_LIMIT))
        for ref in let_in:
            job = self.jobs[ref]
            self.replace(job, structs.replace(job, parked_under=None))
        if let_in:
            self._notify(queue)
        return len(let_in)

    def release_freed(self, now: int) -> None:
        """Release jobs parked under keys that were freed since the last call; each step that moves jobs ends with it.

        It runs once per step: if many jobs leave one key, each free place is offered once. Under a rate, each job that
        left makes room for one more job, because the other jobs that the rate allows are ready already.
        """
        while self._freed:
            (queue, name), count = self._freed.popitem()
            parked = self.queues[queue].parked.get(name)
            if parked is not None:
                room = self._room(queue, name, parked, now)
                self.unpark(queue, name, now, room=min(room, count) if name.startswith(RATE) else room)

    def parked(self) -> list[tuple[str, str]]:
        """Return queues and keys that jobs are parked under: those of paused tasks, and the next `LOOK_LIMIT` others.

        Each call continues after the last one, so that every key is reached, however many there are. Queues with ready
        jobs are left out: a claim looks at ready jobs first, and one of them may be waiting for the same place.
        """
        places = sorted((queue, name) for queue, indexes in self.queues.items() for name in indexes.parked)
        next_places = [
            (queue, name)
            for queue, name in places
            if not name.startswith((PAUSED, UNKNOWN))
            and not len(self.queues[queue].ready)
            and (queue, name) > self._last_place
        ][:LOOK_LIMIT]
        self._last_place = next_places[-1] if len(next_places) == LOOK_LIMIT else ("", "")
        return [place for place in places if place[1].startswith(PAUSED)] + next_places

    def indexed(self) -> Iterator[tuple[str, int, Ref]]:
        """Yield the entries of the indexes: the index's name, the job's sort number in it, the job."""
        for name, indexes in self.queues.items():
            yield from ((f"ready {name}", at, ref) for at, ref in indexes.ready)
            yield from ((f"delayed {name}", at, ref) for at, ref in indexes.delayed)
            yield from ((f"timers {name}", at, ref) for at, ref in indexes.timers)
            for key, parked in indexes.parked.items():
                yield from ((f"parked {name} {key}", at, ref) for at, ref in parked)
        yield from (("leases", at, ref) for at, ref in self.leases)
        yield from (("suspects", at, ref) for at, ref in self.suspects)

    # ── helpers ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _room(self, queue: str, name: str, parked: OrderedJobs, now: int) -> int:
        """Return how many of the jobs parked under a name may be released."""
        if name.startswith(PAUSED):
            return 0 if self._paused(name.removeprefix(PAUSED)) else PROMOTE_LIMIT
        if name.startswith(RATE):
            rate = self._rate(queue, name, parked)
            return PROMOTE_LIMIT if rate is None else free(self._reservation(queue, rate, now), rate, now)
        key_state = self.keys.get((queue, name))
        return 0 if key_state is None else key_state.free

    def _rate(self, queue: str, name: str, parked: OrderedJobs) -> RateKey | None:
        """Return the rate of the first job parked under this name; None if the job does not have that rate any more."""
        first = self.jobs[parked.first(1)[0]]
        return next((rate for rate in self.rates(first) if RATE + rate.name == name), None)

    def _open(self, queue: str, name: str, now: int, *, limit: int = PROMOTE_LIMIT) -> int:
        """Release the jobs that a rate allows to start, and record when the next release may follow their starts.

        If a job leaves the queue without starting, another one is released at once in its place.
        """
        indexes = self.queues[queue]
        parked = indexes.parked.get(name)
        rate = None if parked is None else self._rate(queue, name, parked)
        if rate is None:
            let_in = self.unpark(queue, name, now, room=limit)
            self._note_opening(queue, name, now)
            return let_in
        so_far = self._reservation(queue, rate, now)
        if name in indexes.opening:
            so_far = max(so_far, taken_if_open(indexes.opening[name], rate))
        let_in = self.unpark(queue, name, now, room=min(free(so_far, rate, now), limit))
        self._note_opening(queue, name, now, so_far=taken(so_far, rate, now, starts=let_in))
        return let_in

    def _note_opening(self, queue: str, name: str, now: int, *, so_far: RateReservation | None = None) -> None:
        """Record when a rate lets its first parked job start; `so_far`: the rate's time including the released jobs."""
        indexes = self.queues[queue]
        parked = indexes.parked.get(name)
        if parked is None:
            indexes.opening.pop(name, None)
            return
        rate = self._rate(queue, name, parked)
        if rate is None:
            indexes.opening[name] = now
        else:
            so_far = self._reservation(queue, rate, now) if so_far is None else so_far
            indexes.opening[name] = opens_at(so_far, rate, now)

    def _reservation(self, queue: str, rate: RateKey, now: int) -> RateReservation:
        """Return up to when a rate's time is taken, by starts or by a limit."""
        return limited(self._taken(queue, rate), rate, self.limited_until(queue, rate.name, now), now)

    def _taken(self, queue: str, rate: RateKey) -> RateReservation:
        return self.reserved.get((queue, rate.name), RateReservation())

    def _note_freed(self, before: JobRecord, after: JobRecord | None) -> None:
        """Record the keys and rates that a job has freed, by ending its run or by leaving the queue without a start.

        When no job is parked under a rate any more, its opening time is deleted.
        """
        indexes = self.queues[before.queue]
        if before.parked_under is not None and before.parked_under not in indexes.parked:
            indexes.opening.pop(before.parked_under, None)
        left_queue = _left_queue(before, after)
        if before.keys and (_ended_run(before, after) or left_queue):
            self._freed.update((before.queue, key.name) for key in before.keys)
        if left_queue and (rates := self.rates(before)):
            self._freed.update((before.queue, RATE + rate.name) for rate in rates)

    def _put(self, before: JobRecord | None, job: JobRecord) -> None:
        ref = job.ref
        self.jobs[ref] = job
        for index, at in self._places(job):
            index.add(at, ref)
        self._count(before, job)

    def _remove(self, job: JobRecord) -> None:
        ref = job.ref
        for index, at in self._places(job):
            index.drop(at, ref)
        indexes = self.queues[job.queue]
        if job.parked_under is not None and not len(indexes.parked[job.parked_under]):
            del indexes.parked[job.parked_under]

    def _places(self, job: JobRecord) -> list[tuple[OrderedJobs, int]]:
        """Return the indexes that the job's state puts it in, with its sort number there."""
        indexes = self.queues[job.queue]
        match job.state:
            case State.WAITING if job.parked_under is not None:
                places = [(indexes.parked.setdefault(job.parked_under, OrderedJobs()), job.score)]
            case State.WAITING:
                places = [(indexes.ready, job.score)]
            case State.DELAYED:
                places = [(indexes.delayed, job.run_at)]
            case State.SUSPENDED:
                wakes_at = None if job.links is None else job.links.wake_at
                places = [] if wakes_at is None else [(indexes.timers, wakes_at)]
            case State.ACTIVE if job.suspect_until is not None:
                places = [(self.suspects, job.suspect_until)]
            case State.ACTIVE:
                places = [(self.leases, job.lease_until or 0)]
            case State.COMPLETED if job.kept_until is not None:
                places = [(self.kept, job.kept_until)]
            case State.FAILED if job.redrive_at is not None:
                # Retention must not delete a job that a rule will redrive.
                places = [(self.redrives, job.redrive_at)]
            case _:
                places = [(indexes.over[job.state], job.finished or 0)]
        if job.expires_at is not None and job.state in (State.WAITING, State.DELAYED):
            places.append((self.aging, job.expires_at))
        return places

    def _count(self, before: JobRecord | None, after: JobRecord | None) -> None:
        """Update the key holders, groups and counters for one job's change."""
        job = after or before
        if job is None:
            return
        goes_on = _unfinished(after)
        more = goes_on - _unfinished(before)
        self.queues[job.queue].unfinished += more
        if job.merge is not None:
            _group(self._merging, (job.queue, merge_name(job.merge)), job.ref, inside=goes_on)
        for waits, record in ((False, before), (True, after)):
            if record is not None and record.state is State.WAITING and record.fair_key is not None and not record.lifo:
                _group(self.queues[record.queue].tenants, (record.boost, record.fair_key), record.ref, inside=waits)
        if job.schedule is not None:
            _group(self._scheduled, job.schedule, job.ref, inside=goes_on)
        for key in job.keys:
            name = job.queue, key.name
            key_state = self.keys.setdefault(name, KeyState(key.limit))
            key_state.named += more
            if after is not None and after.state is State.ACTIVE:
                key_state.holders[job.ref] = None
            else:
                key_state.holders.pop(job.ref, None)
            if not key_state.named:
                del self.keys[name]


def _group(groups: dict[G, dict[Ref, None]], name: G, ref: Ref, *, inside: bool) -> None:
    """Add a job to a group or remove it; a group without jobs is deleted."""
    if inside:
        groups.setdefault(name, {})[ref] = None
    elif name in groups:
        groups[name].pop(ref, None)
        if not groups[name]:
            del groups[name]


def _rates(names: Iterable[str]) -> list[str]:
    """Return the rates among the names that jobs are parked under."""
    return [name.removeprefix(RATE) for name in names if name.startswith(RATE)]


def _unfinished(job: JobRecord | None) -> bool:
    return job is not None and job.state not in TERMINAL


def _ended_run(before: JobRecord, after: JobRecord | None) -> bool:
    return before.state is State.ACTIVE and (after is None or after.state is not State.ACTIVE)


def _left_queue(before: JobRecord, after: JobRecord | None) -> bool:
    return _is_ready(before) and not (after is not None and (_is_ready(after) or after.state is State.ACTIVE))


def _is_ready(job: JobRecord) -> bool:
    return job.state is State.WAITING and job.parked_under is None
