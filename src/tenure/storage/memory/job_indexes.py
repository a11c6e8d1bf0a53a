"""Where the model keeps its jobs: each record once, and in exactly the indexes that its state puts it in.

There is one door, `replace`. Whoever moves a job through it moves it in every index and takes or frees its slots; whom
that lets back in line is seen to in the same step, by `let_in`. A slot is an active job, never a number.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import TypeVar

from msgspec import structs

from tenure.core.deduplication import may_be_come_to, merge_name
from tenure.core.job import JobRecord, MergeKey, RateKey, Ref
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.order import Fairness, came_at, place
from tenure.core.rate import (
    RateReservation,
    free,
    heeded,
    is_of_task,
    opens_at,
    regained,
    retuned,
    taken,
    taken_if_open,
)
from tenure.storage.protocol import (
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
    """Jobs in the order of a number: a score, a due time, the end of a lease."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, Ref]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[int, Ref]]:
        return iter(self._entries)

    def add(self, at: int, ref: Ref) -> None:
        """Put a job in its place."""
        insort(self._entries, (at, ref))

    def drop(self, at: int, ref: Ref) -> None:
        """Take a job out; it must be there."""
        place = bisect_left(self._entries, (at, ref))
        if place == len(self._entries) or self._entries[place] != (at, ref):
            raise LookupError(f"{ref} is not indexed at {at}")
        del self._entries[place]

    def first(self, limit: int, *, until: int | None = None) -> list[Ref]:
        """Return the first jobs in order, those beyond `until` left out."""
        found = self._entries[: max(limit, 0)]
        return [ref for at, ref in found if until is None or at <= until]

    def beyond(self, at: int, limit: int) -> list[Ref]:
        """Return the first jobs in order of those beyond a number."""
        behind = bisect_right(self._entries, at, key=lambda entry: entry[0])
        return [ref for _, ref in self._entries[behind : behind + max(limit, 0)]]

    @property
    def head(self) -> int | None:
        """The first job's number."""
        return self._entries[0][0] if self._entries else None


@dataclass
class QueueIndexes:
    """What is indexed of one queue."""

    ready: OrderedJobs = field(default_factory=OrderedJobs)
    delayed: OrderedJobs = field(default_factory=OrderedJobs)
    parked: dict[str, OrderedJobs] = field(default_factory=dict[str, OrderedJobs])
    over: dict[State, OrderedJobs] = field(default_factory=lambda: {state: OrderedJobs() for state in sorted(TERMINAL)})
    fairness: Fairness | None = None
    tenants: dict[tuple[int, str], dict[Ref, None]] = field(default_factory=dict[tuple[int, str], dict[Ref, None]])
    """Who waits of each priority and tenant, those without a key left out."""
    opening: dict[str, int] = field(default_factory=dict[str, int])
    """When each rate that jobs are parked under lets one start."""
    unfinished: int = 0
    discarded: int = 0


@dataclass
class KeyState:
    """A key of a queue: its limit, who holds it, and how many unfinished jobs name it (without any it is forgotten)."""

    limit: int
    holders: dict[Ref, None] = field(default_factory=dict[Ref, None])
    named: int = 0

    @property
    def free(self) -> int:
        """How many more may start."""
        return max(0, self.limit - len(self.holders))


class JobIndexes:
    """The records, and every index they stand in."""

    def __init__(
        self,
        paused: Callable[[str], bool],
        task_rate: Callable[[str], RateKey | None],
        knock: Callable[[str], None],
    ) -> None:
        self.jobs: dict[Ref, JobRecord] = {}
        self.order: dict[Ref, int] = {}
        self.lines: defaultdict[str, QueueIndexes] = defaultdict(QueueIndexes)
        self.leases = OrderedJobs()
        self.suspects = OrderedJobs()
        self.aging = OrderedJobs()
        self.kept = OrderedJobs()
        self.redrives = OrderedJobs()
        self.slots: dict[tuple[str, str], KeyState] = {}
        self.taken: dict[tuple[str, str], RateReservation] = {}
        """How far the time of each rate of a queue is taken."""
        self._paused = paused
        self._task_rate = task_rate
        self._knock = knock
        self._merging: dict[tuple[str, str], dict[Ref, None]] = {}
        self._scheduled: dict[str, dict[Ref, None]] = {}
        self._freed: Counter[tuple[str, str]] = Counter()
        self._looked_at = ("", "")
        self._made = 0

    def add(self, job: JobRecord, now: int) -> None:
        """Take in a new job; the limits of its keys hold from now on."""
        self._made += 1
        self.order[job.ref] = self._made
        self._put(None, job)
        for key in job.keys:
            slots = self.slots[job.queue, key.name]
            raised, slots.limit = key.limit > slots.limit, key.limit
            if raised:
                self.unpark(job.queue, key.name, now)

    def replace(self, before: JobRecord, after: JobRecord) -> None:
        """Put a job's new record in the place of the old one."""
        self._take_out(before)
        self._put(before, after)
        self._let_in(before, after)

    def drop(self, job: JobRecord) -> None:
        """Forget a job."""
        self._take_out(job)
        self._count(job, None)
        del self.jobs[job.ref], self.order[job.ref]
        self._let_in(job, None)

    def score(self, job: JobRecord, at: int, now: int) -> int:
        """Return the score of a job that comes into its queue's line, as if at an instant."""
        line = self.lines[job.queue]
        if not len(line.ready) and not line.parked:
            line.fairness = None
        if job.lifo:
            return place(at, boost=job.boost, lifo=True)
        if job.fair_key is not None and line.fairness is None:
            # Who comes in late makes nobody begin in the past.
            line.fairness = Fairness(max(at, now))
        if line.fairness is not None:
            key = job.fair_key or ""
            waits = job.fair_key is None or (job.boost, key) in line.tenants
            at = line.fairness.tag(key, boost=job.boost, weight=job.weight, waits=waits)
        return place(at, boost=job.boost)

    def score_again(self, job: JobRecord, now: int) -> int:
        """Return the score of a job that comes back at once: where it stood, or where the line has got to before that.

        The line may have forgotten how far it had got, or the clock may have been set back.
        """
        fairness = self.lines[job.queue].fairness
        reached = now if fairness is None else fairness.start(job.boost)
        return job.score if job.lifo else min(job.score, place(reached, boost=job.boost))

    def promoted(self, job: JobRecord, now: int) -> JobRecord:
        """Return a delayed job as it comes into line."""
        at = came_at(job.score, boost=job.boost, lifo=job.lifo)
        return structs.replace(job, state=State.WAITING, score=self.score(job, at, now))

    def full(self, job: JobRecord, now: int, tasks: Mapping[str, int] | None = None) -> str | None:
        """Return what a job must be parked under before it may start, None where all its keys and rates have room.

        `tasks`: what the caller knows. Only a job that has started before is held against it: the first start is fast.
        """
        if self._paused(job.task):
            return PAUSED + job.task
        if job.starts and not knows(tasks, job.task, job.policy.version):
            return unknown_place(job.task, job.policy.version)
        full = next((key.name for key in job.keys if not self.slots[job.queue, key.name].free), None)
        if full is None:
            opening = (RATE + rate.name for rate in self.rates(job) if self.opens_at(job.queue, rate, now) > now)
            full = next(opening, None)
        return full

    def rates(self, job: JobRecord) -> list[RateKey]:
        """Return the rates that a job's start takes time of: its own, those of its task replaced by its setting."""
        return heeded(job.rates, self._task_rate(job.task), job.task)

    def opens_at(self, queue: str, rate: RateKey, now: int) -> int:
        """Return when a rate of a queue lets the next job start."""
        return opens_at(self._taken(queue, rate), rate, now)

    def take_time(self, queue: str, rates: Iterable[RateKey], now: int) -> None:
        """Take the time of a start."""
        for rate in rates:
            self.taken[queue, rate.name] = taken(self._taken(queue, rate), rate, now)

    def give_back_time(self, queue: str, rates: Iterable[RateKey], started: int, now: int) -> None:
        """Give back the time of a start in vain, so that the next job may start that much earlier."""
        for rate in rates:
            so_far, more = self._taken(queue, rate), regained(rate, started, now)
            if so_far.until > now:
                self.taken[queue, rate.name] = RateReservation(so_far.until - more, so_far.reach)
                opening = self.lines[queue].opening
                if RATE + rate.name in opening:
                    opening[RATE + rate.name] -= more

    def known_places(self, queue: str, tasks: Mapping[str, int] | None) -> list[str]:
        """Return what jobs are parked under until a worker knows it, as far as this caller does."""
        names = (name for name in self.lines[queue].parked if name.startswith(UNKNOWN))
        return [name for name in names if knows(tasks, *task_of_place(name))]

    def first_known(self, queue: str, tasks: Mapping[str, int] | None) -> JobRecord | None:
        """Return the first job in line for a caller that knows these tasks; one parked for it comes back in line."""
        line = self.lines[queue]
        lines = [line.ready, *(line.parked[name] for name in self.known_places(queue, tasks))]
        heads = [entry for entry in (next(iter(index), None) for index in lines) if entry is not None]
        if not heads:
            return None
        job = self.jobs[min(heads)[1]]
        if job.parked_under is not None:
            self.replace(job, structs.replace(job, parked_under=None))
        return self.jobs[job.ref]

    def given_out(self, job: JobRecord) -> None:
        """Note how far a line has got in virtual time, where it counts in that."""
        fairness = self.lines[job.queue].fairness
        if fairness is not None and not job.lifo:
            fairness.given_out(job.score, job.boost)

    def park(self, job: JobRecord, under: str, now: int) -> None:
        """Take a ready job out of line until there is room."""
        self.replace(job, structs.replace(job, parked_under=under))
        if under.startswith(RATE):
            self._note_opening(job.queue, under, now)
        if under.startswith(UNKNOWN):
            self._knock(job.queue)

    def open_up(self, queue: str, now: int) -> None:
        """Let back in line whom the rates of a queue allow to start by now, no faster than they might have started.

        So many at a time, and first of those rates that have been open for the longest.
        """
        opened = nsmallest(PROMOTE_LIMIT, [(at, name) for name, at in self.lines[queue].opening.items() if at <= now])
        left = PROMOTE_LIMIT
        for _, name in opened:
            if not left:
                break
            left -= self._open(queue, name, now, limit=left)

    def open_anew(self, queue: str, name: str, now: int) -> int:
        """Let in whom a rate allows to start, whoever was let in before; return how many that were."""
        self.lines[queue].opening.pop(name, None)
        return self._open(queue, name, now)

    def look_anew(self, now: int) -> None:
        """Let the next claim look at all who wait for a rate: when it opens was told before the clock was set back."""
        for queue, line in self.lines.items():
            if any(at > now for at in line.opening.values()):
                line.opening = {name: 0 if at > now else at for name, at in line.opening.items()}
                self._knock(queue)

    def retune_queue(self, queue: str, rate: RateKey, now: int) -> None:
        """Go by the new pace of a queue's rate."""
        if (queue, rate.name) in self.taken:
            self.taken[queue, rate.name] = retuned(self.taken[queue, rate.name], rate, now)

    def retune_task(self, task: str, rate: RateKey, now: int) -> None:
        """Go by the new pace of a task's rate, and look anew at who waits for any that is its own."""
        for queue, line in self.lines.items():
            self.retune_queue(queue, rate, now)
            own = (RATE + rate for rate in _rates(line.parked) if is_of_task(rate, task))
            for name in list(own):
                self.open_anew(queue, name, now)

    def come_to(self, queue: str, key: MergeKey) -> JobRecord | None:
        """Return the job that a call with this key comes to: the eldest that may be."""
        sharing = self._merging.get((queue, merge_name(key)), {})
        found = [ref for ref in sharing if may_be_come_to(self.jobs[ref], key)]
        return self.jobs[min(found, key=self.order.__getitem__)] if found else None

    def unfinished_of(self, schedule: str) -> list[State]:
        """Return where the unfinished jobs of a schedule stand."""
        return [self.jobs[ref].state for ref in self._scheduled.get(schedule, {})]

    def forget_passed(self, now: int) -> None:
        """Forget what says no more than nothing: time that has gone by, tags that their lines have passed."""
        passed = [(taken.until, of) for of, taken in self.taken.items() if taken.until <= now]
        for _, of in nsmallest(PASSED_LIMIT, passed):
            del self.taken[of]
        for line in self.lines.values():
            if not line.unfinished:
                line.fairness = None
            elif line.fairness is not None:
                line.fairness.forget()

    def unpark(self, queue: str, name: str, now: int, *, room: int | None = None) -> int:
        """Let as many jobs back in line as have room under a key or a rate; return how many that were."""
        parked = self.lines[queue].parked.get(name)
        if parked is None:
            return 0
        let_in = parked.first(min(self._room(queue, name, parked, now) if room is None else room, PROMOTE_LIMIT))
        for ref in let_in:
            job = self.jobs[ref]
            self.replace(job, structs.replace(job, parked_under=None))
        if let_in:
            self._knock(queue)
        return len(let_in)

    def let_in(self, now: int) -> None:
        """Let others in line under the keys that were left since the last time; whoever moves jobs does so in the end.

        Once for all of them: where many leave one key in a step, each free slot is offered once. Under a rate each
        makes place for one more, for the others that it allows stand in line already.
        """
        while self._freed:
            (queue, name), left = self._freed.popitem()
            parked = self.lines[queue].parked.get(name)
            if parked is not None:
                room = self._room(queue, name, parked, now)
                self.unpark(queue, name, now, room=min(room, left) if name.startswith(RATE) else room)

    def parked(self) -> list[tuple[str, str]]:
        """Return queues and keys that jobs are parked under: those of paused tasks, and the next so many of the others.

        Each call goes on behind the last, so that all of them come round, however many there are. Where anybody stands
        in line they are left out: whoever is there is looked at first, and may be waiting for the very slot.
        """
        places = sorted((queue, name) for queue, line in self.lines.items() for name in line.parked)
        others = [
            (queue, name)
            for queue, name in places
            if not name.startswith((PAUSED, UNKNOWN))
            and not len(self.lines[queue].ready)
            and (queue, name) > self._looked_at
        ][:LOOK_LIMIT]
        self._looked_at = others[-1] if len(others) == LOOK_LIMIT else ("", "")
        return [place for place in places if place[1].startswith(PAUSED)] + others

    def indexed(self) -> Iterator[tuple[str, int, Ref]]:
        """Yield what the indexes hold: the index's name, the number a job stands there at, the job."""
        for name, line in self.lines.items():
            yield from ((f"ready {name}", at, ref) for at, ref in line.ready)
            yield from ((f"delayed {name}", at, ref) for at, ref in line.delayed)
            for key, parked in line.parked.items():
                yield from ((f"parked {name} {key}", at, ref) for at, ref in parked)
        yield from (("leases", at, ref) for at, ref in self.leases)
        yield from (("suspects", at, ref) for at, ref in self.suspects)

    # ── what all of it rests on ───────────────────────────────────────────────────────────────────────────────────

    def _room(self, queue: str, name: str, parked: OrderedJobs, now: int) -> int:
        """Return how many of those parked under a name may be let in."""
        if name.startswith(PAUSED):
            return 0 if self._paused(name.removeprefix(PAUSED)) else PROMOTE_LIMIT
        if name.startswith(RATE):
            rate = self._rate(queue, name, parked)
            return PROMOTE_LIMIT if rate is None else free(self._taken(queue, rate), rate, now)
        slots = self.slots.get((queue, name))
        return 0 if slots is None else slots.free

    def _rate(self, queue: str, name: str, parked: OrderedJobs) -> RateKey | None:
        """Return the rate that the first of those parked under it goes by, None where it has that rate no more."""
        first = self.jobs[parked.first(1)[0]]
        return next((rate for rate in self.rates(first) if RATE + rate.name == name), None)

    def _open(self, queue: str, name: str, now: int, *, limit: int = PROMOTE_LIMIT) -> int:
        """Let in whom a rate allows to start, and note when the next may be let in: when all these might have started.

        In the place of who leaves the line without starting another is let in at once.
        """
        line = self.lines[queue]
        parked = line.parked.get(name)
        rate = None if parked is None else self._rate(queue, name, parked)
        if rate is None:
            let_in = self.unpark(queue, name, now, room=limit)
            self._note_opening(queue, name, now)
            return let_in
        so_far = self._taken(queue, rate)
        if name in line.opening:
            so_far = max(so_far, taken_if_open(line.opening[name], rate))
        let_in = self.unpark(queue, name, now, room=min(free(so_far, rate, now), limit))
        self._note_opening(queue, name, now, so_far=taken(so_far, rate, now, starts=let_in))
        return let_in

    def _note_opening(self, queue: str, name: str, now: int, *, so_far: RateReservation | None = None) -> None:
        """Note when a rate lets the first of those start who are parked under it; `so_far`: with those let in."""
        line = self.lines[queue]
        parked = line.parked.get(name)
        if parked is None:
            line.opening.pop(name, None)
            return
        rate = self._rate(queue, name, parked)
        if rate is None:
            line.opening[name] = now
        else:
            line.opening[name] = opens_at(self._taken(queue, rate) if so_far is None else so_far, rate, now)

    def _taken(self, queue: str, rate: RateKey) -> RateReservation:
        return self.taken.get((queue, rate.name), RateReservation())

    def _let_in(self, before: JobRecord, after: JobRecord | None) -> None:
        """Note the keys of a job that has left a slot, or its place in line for one that may be free; so with rates.

        When the last one that was parked under a rate is gone, nobody asks any more when that opens.
        """
        line = self.lines[before.queue]
        if before.parked_under is not None and before.parked_under not in line.parked:
            line.opening.pop(before.parked_under, None)
        left_the_line = _left_the_line(before, after)
        if _left_a_slot(before, after) or left_the_line:
            self._freed.update((before.queue, key.name) for key in before.keys)
        if left_the_line:
            self._freed.update((before.queue, RATE + rate.name) for rate in self.rates(before))

    def _put(self, before: JobRecord | None, job: JobRecord) -> None:
        self.jobs[job.ref] = job
        for index, at in self._places(job):
            index.add(at, job.ref)
        self._count(before, job)

    def _take_out(self, job: JobRecord) -> None:
        for index, at in self._places(job):
            index.drop(at, job.ref)
        line = self.lines[job.queue]
        if job.parked_under is not None and not len(line.parked[job.parked_under]):
            del line.parked[job.parked_under]

    def _places(self, job: JobRecord) -> Iterator[tuple[OrderedJobs, int]]:
        """Yield the indexes that the job's state puts it in, and its number there."""
        line = self.lines[job.queue]
        match job.state:
            case State.WAITING if job.parked_under is not None:
                yield line.parked.setdefault(job.parked_under, OrderedJobs()), job.score
            case State.WAITING:
                yield line.ready, job.score
            case State.DELAYED:
                yield line.delayed, job.run_at
            case State.ACTIVE if job.suspect_until is not None:
                yield self.suspects, job.suspect_until
            case State.ACTIVE:
                yield self.leases, job.lease_until or 0
            case State.COMPLETED if job.kept_until is not None:
                yield self.kept, job.kept_until
            case State.FAILED if job.redrive_at is not None:
                # Retention must not take what a rule has yet to put back.
                yield self.redrives, job.redrive_at
            case _:
                yield line.over[job.state], job.finished or 0
        if job.expires_at is not None and job.state in (State.WAITING, State.DELAYED):
            yield self.aging, job.expires_at

    def _count(self, before: JobRecord | None, after: JobRecord | None) -> None:
        """Keep the slots and the number of the unfinished in step with one job's move."""
        job = after or before
        if job is None:
            return
        more = _unfinished(after) - _unfinished(before)
        self.lines[job.queue].unfinished += more
        if job.merge is not None:
            _group(self._merging, (job.queue, merge_name(job.merge)), job.ref, inside=_unfinished(after))
        for waits, one in ((False, before), (True, after)):
            if one is not None and one.state is State.WAITING and one.fair_key is not None and not one.lifo:
                _group(self.lines[one.queue].tenants, (one.boost, one.fair_key), one.ref, inside=waits)
        if job.schedule is not None:
            _group(self._scheduled, job.schedule, job.ref, inside=_unfinished(after))
        for key in job.keys:
            place = job.queue, key.name
            slots = self.slots.setdefault(place, KeyState(key.limit))
            slots.named += more
            if after is not None and after.state is State.ACTIVE:
                slots.holders[job.ref] = None
            else:
                slots.holders.pop(job.ref, None)
            if not slots.named:
                del self.slots[place]


def _group(groups: dict[G, dict[Ref, None]], name: G, ref: Ref, *, inside: bool) -> None:
    """See that a job is in a group or not; a group without jobs is forgotten."""
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


def _left_a_slot(before: JobRecord, after: JobRecord | None) -> bool:
    return before.state is State.ACTIVE and (after is None or after.state is not State.ACTIVE)


def _left_the_line(before: JobRecord, after: JobRecord | None) -> bool:
    return _in_line(before) and not (after is not None and (_in_line(after) or after.state is State.ACTIVE))


def _in_line(job: JobRecord) -> bool:
    return job.state is State.WAITING and job.parked_under is None
