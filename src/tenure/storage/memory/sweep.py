"""The model's sweeps: the leader's term, reclaimed leases, and all that time alone changes."""

from dataclasses import dataclass

from msgspec import structs

from tenure.clock import Clock
from tenure.core.events import (
    LeadershipAcquired,
    LeadershipLost,
)
from tenure.core.job import (
    JobRecord,
    Owner,
    StallReason,
)
from tenure.core.lane import LaneClaims
from tenure.core.leadership import Term
from tenure.core.lease import (
    Lease,
    grace_end,
    longest_lease,
)
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.retention import RetentionRules
from tenure.core.transition import (
    is_expired,
    reclaimed,
    silence,
    stall_reason,
    suspected,
)
from tenure.storage.memory.revise import RevisionRules
from tenure.storage.names import QUEUE_RATE, RATE, queue_topic
from tenure.storage.requests import (
    CHORE_LIMITS,
    EXPIRE_LIMIT,
    PROMOTE_LIMIT,
    SWEEP_LIMIT,
    TRIM_LIMIT,
    WORKER_KEPT,
    ReclaimResult,
    RenewRequest,
    StalledLease,
    SweepRequest,
    SweepResult,
)
from tenure.storage.revisions import Target


@dataclass
class LastBeat:
    """A worker's last beat, and when it arrived."""

    beat: RenewRequest
    started: int
    at: int
    died: bool = False
    announced: int = 0
    """The number of the last event that the worker reported."""


class SweepRules(RevisionRules):
    """Does the chores that no worker asks for."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._workers: dict[str, LastBeat] = {}
        self._claims: dict[tuple[str, int], LaneClaims] = {}
        self._term: tuple[Term, int] | None = None
        self._epoch = 0
        self._swept_at: int | None = None
        self._resumed_at: int | None = None

    def sweep(self, bid: SweepRequest) -> SweepResult:
        """Elect the caller if necessary, then do one bounded turn of the chores."""
        now = self._clock.now()
        terms: tuple[Term, ...] = ()
        if bid.term is not None:
            term, retry_in = self._elect(bid.owner, bid.term, now)
            if term.owner != bid.owner.id:
                return SweepResult(retry_in=retry_in)
            terms = (term,)
        if self._swept_at is not None and now - self._swept_at > 3 * bid.every:
            self._resumed_at = now
        if self._swept_at is not None and now < self._swept_at:
            self._indexes.recheck_rates(now)
        overdue = self._indexes.suspects.first(SWEEP_LIMIT, until=now)
        stalled = [self._reclaim(self._jobs[ref], bid.owner, now) for ref in overdue]
        counts = {
            "reclaimed": len(stalled),
            "suspected": self._suspect(now, bid.grace),
            "expired": self._expire_aged(now),
            "promoted": self._promote_due(now),
            "unparked": self._unpark(now),
            "redriven": self._redrive_due(now),
            "trimmed": self._trim(now),
            "forgotten": self._event_log.trim(now),
        }
        self._delete_old_workers(now)
        self._forget_windows(now)
        self._figures.trim(now)
        self._indexes.drop_outdated(now)
        self._swept_at = now
        due, next_tick = self.due_schedules(now)
        return SweepResult(
            terms,
            None,
            tuple(stalled),
            counts,
            more=any(counts[chore] >= limit for chore, limit in CHORE_LIMITS.items()),
            due=due,
            next_tick=next_tick,
            now=now,
            outbox=self._due_entries(now),
            stale=self._find_stale_waits(now),
        )

    def next_sweep(self) -> int | None:
        """Return the first instant at which a sweep finds a job to expire, promote, redrive or recover.

        It has passed if there is such a job already. None if time alone changes no job, except by rates and retention.
        """
        indexes = self._indexes
        heads = [each.head for each in (indexes.leases, indexes.suspects, indexes.aging, indexes.redrives)]
        heads += [head for queue in self._queues.values() for head in (queue.delayed.head, queue.timers.head)]
        heads += [entry.at for entry in self._outbox.values()]
        return min((head for head in heads if head is not None), default=None)

    def _elect(self, owner: Owner, length: int, now: int) -> tuple[Term, int]:
        """Return the current leader's term, which is the owner's if possible, and how long it still lasts."""
        if self._term is not None:
            term, until = self._term
            if term.owner == owner.id and now < until:
                self._term = (structs.replace(term, length=length), now + length)
                return self._term[0], length
            # A term that ends further ahead than its length was given before the clock was set back.
            if now < until <= now + term.length:
                return term, until - now
            self._record(LeadershipLost(scope="*", owner=term.owner, epoch=term.epoch, reason="expired"), now)
        self._epoch += 1
        self._term = (Term("*", owner.id, self._epoch, length), now + length)
        self._record(LeadershipAcquired(scope="*", owner=owner.id, epoch=self._epoch), now)
        return self._term[0], length

    def resign(self, term: Term) -> None:
        """Give up this leader term and no other."""
        if self._term is not None and (self._term[0].owner, self._term[0].epoch) == (term.owner, term.epoch):
            self._term = None
            self._record(
                LeadershipLost(scope=term.scope, owner=term.owner, epoch=term.epoch, reason="resigned"),
                self._clock.now(),
            )

    def _reclaim(self, job: JobRecord, owner: Owner, now: int, reason: StallReason | None = None) -> StalledLease:
        reclaimed_job = reclaimed(job, owner.id, now)
        self._replace(job, reclaimed_job)
        return StalledLease(Lease(reclaimed_job), reason or stall_reason(job, now), job.owner or "", silence(job, now))

    def reclaim(self, dead: str, owner: Owner) -> ReclaimResult:
        """Take every active job of a dead owner, without grace."""
        now = self._clock.now()
        held = [job for job in self._jobs.values() if job.state is State.ACTIVE and job.owner == dead]
        held.sort(key=lambda job: (job.lease_until, job.ref))
        incomplete = any(job.state is State.ACTIVE and job.owner == owner.id for job in self._jobs.values())
        if dead in self._workers:
            self._workers[dead].died = True
        stalled = tuple(self._reclaim(job, owner, now, "process_died") for job in held[:SWEEP_LIMIT])
        return ReclaimResult(stalled, more=len(held) > SWEEP_LIMIT, incomplete=incomplete)

    def _suspect(self, now: int, grace: int) -> int:
        expired = self._indexes.leases.first(SWEEP_LIMIT, until=now)
        ahead = [ref for at, ref in self._indexes.leases if at > now + longest_lease(self._jobs[ref].stall)][
            :SWEEP_LIMIT
        ]
        for ref in expired + ahead:
            job = self._jobs.get(ref)
            if job is None or job.state is not State.ACTIVE:
                continue
            until = grace_end(
                now,
                terms=job.stall,
                lease_until=job.lease_until or now,
                grace=grace,
                resumed_at=self._resumed_at,
            )
            self._replace(job, structs.replace(job, suspect_until=until))
            self._record_on_request(suspected(job, now), now)
        # The clock may have been set back after the suspicion, too.
        for at, ref in list(self._indexes.suspects):
            job = self._jobs[ref]
            if at > now + max(job.stall.lease // 2, grace):
                self._replace(job, structs.replace(job, suspect_until=now + job.stall.lease // 2))
        return len(expired) + len(ahead)

    def _expire_aged(self, now: int) -> int:
        expired = 0
        for ref in self._indexes.aging.first(EXPIRE_LIMIT, until=now):
            if expired >= EXPIRE_LIMIT:
                break
            job = self._jobs.get(ref)
            if job is None or job.state not in (State.WAITING, State.DELAYED) or not is_expired(job, now):
                # The end of an earlier one has changed it.
                continue
            answers_for = self._call_count(ref)
            self._expire(job, now)
            expired += 1 if ref in self._jobs else answers_for
        self._indexes.release_freed(now)
        return expired

    def _promote_due(self, now: int) -> int:
        promoted = 0
        for _, queue in sorted((index.delayed.head or 0, queue) for queue, index in self._queues.items()):
            indexes = self._queues[queue]
            due = indexes.delayed.first(PROMOTE_LIMIT - promoted, until=now)
            for ref in due:
                job = self._jobs.get(ref)
                if job is not None and job.state is State.DELAYED:
                    self._promote(job, now)
            if due:
                self.notified.append(queue_topic(queue))
            promoted += len(due) + self._wake_due(queue, PROMOTE_LIMIT - promoted - len(due), now)
        self._indexes.release_freed(now)
        return promoted

    def _promote(self, job: JobRecord, now: int) -> None:
        if is_expired(job, now):
            self._expire(job, now)
        else:
            self._replace(job, self._indexes.promoted(job, now))

    def _queue_opens_at(self, queue: str, now: int) -> int:
        """Return when a queue's own rate and limit next allow a start."""
        rate = self._setting("queue", queue).rate
        opens_at = now if rate is None or not rate.interval else self._indexes.opens_at(queue, rate, now)
        return max(opens_at, self._indexes.limited_until(queue, QUEUE_RATE, now))

    def _unpark(self, now: int) -> int:
        unparked = 0
        for queue, name in self._indexes.parked():
            if not name.startswith(RATE):
                unparked += self._indexes.unpark(queue, name, now)
            elif self._queue_opens_at(queue, now) <= now:
                unparked += self._indexes.reopen_rate(queue, name, now)
        return unparked

    def _redrive_due(self, now: int) -> int:
        due = self._indexes.redrives.first(SWEEP_LIMIT, until=now)
        for ref in due:
            job = self._jobs.get(ref)
            if job is None or job.redrive_at is None:
                continue
            if self._holder(job, now) is None:
                self._redrive(job, now, by="rule", by_rule=True)
            else:
                # An unfinished job of the same unique key has replaced this one.
                self._replace(job, structs.replace(job, redrive_at=None))
        return len(due)

    def _trim(self, now: int) -> int:
        """Delete the jobs whose retention is over, the earliest ended first."""
        expired_refs = self._indexes.kept.first(TRIM_LIMIT, until=now)
        for queue, indexes in sorted(self._queues.items()):
            kept = self._setting("queue", queue).retention or RetentionRules()
            for state, ended in sorted(indexes.over.items()):
                keep = kept.of(state)
                surplus = 0 if keep.count is None else max(0, len(ended) - keep.count)
                # A job that ended later than now ended before the clock was set back, so it is older than it looks.
                expired_refs += (ahead := ended.beyond(now, min(surplus, TRIM_LIMIT - len(expired_refs))))
                room = TRIM_LIMIT - len(expired_refs)
                # Both lists begin with the earliest ended job, so the longer list contains the shorter.
                aged, over_count = ended.first(room, until=now - keep.age), ended.first(min(surplus - len(ahead), room))
                expired_refs += aged if len(aged) > len(over_count) else over_count
        trimmed = 0
        for ref in expired_refs:
            if trimmed >= TRIM_LIMIT:
                break
            job = self._jobs.get(ref)
            if job is None or job.state not in TERMINAL or self._is_kept(job, now):
                continue
            trimmed += self._call_count(ref)
            self._drop(job)
        return trimmed

    def _delete_old_workers(self, now: int) -> None:
        for owner in [owner for owner, last_beat in self._workers.items() if last_beat.at <= now - WORKER_KEPT]:
            self._delete_worker(owner)
        for key in [key for key, known in self._claims.items() if known.at <= now - WORKER_KEPT]:
            del self._claims[key]

    def _delete_worker(self, owner: str) -> None:
        self._workers.pop(owner, None)
        self._settings.pop(Target("worker", owner), None)
