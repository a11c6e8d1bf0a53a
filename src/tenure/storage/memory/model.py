"""The executable specification of a storage, in plain dicts and sorted lists. Read this first.

Nothing here waits or takes a lock; each method is one atomic step. `MemoryStorage` adds a lock, and the conformance
suite verifies that every other storage behaves the same.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from tenure.clock import Clock
from tenure.core.audit import OperatorAct
from tenure.core.decision import Decision, Finish, PutBack, RunEnd, Suspend
from tenure.core.document import read_progress
from tenure.core.duration import moment
from tenure.core.events import (
    JobCancelled,
    JobDeleted,
    JobRedriven,
    LeadershipAcquired,
    LeadershipLost,
    QueueLimited,
    QueuePaused,
    QueueResumed,
)
from tenure.core.figures import FiguresDelta, FiguresQuery, TaskCounts, end_of
from tenure.core.internal import included, includes_worker
from tenure.core.job import (
    CollectKey,
    DebounceKey,
    JobDetail,
    JobRecord,
    LogLine,
    LogPosition,
    Owner,
    RateKey,
    Ref,
    RunRecord,
    StallReason,
    UniqueKey,
)
from tenure.core.lane import Lane, LaneClaims
from tenure.core.leadership import Term
from tenure.core.lease import (
    Lease,
    grace_end,
    lease_end,
    longest_lease,
    renewed_limits,
)
from tenure.core.lifecycle import REDRIVABLE, TERMINAL, State
from tenure.core.move import MoveBatch, MoveReceipt, answers_of, as_moved
from tenure.core.order import entered_at, score_at
from tenure.core.partition import PartitionState
from tenure.core.rate import limit_name
from tenure.core.retention import KeepRule, RetentionRules
from tenure.core.settlement import Settlement, handed_back, uses_queue_retention, when_cancelling
from tenure.core.transition import (
    begun,
    claimed,
    is_expired,
    progressed,
    reclaimed,
    redriven,
    refused,
    rescheduled,
    retimed,
    silence,
    stall_reason,
    suspected,
)
from tenure.storage.cursors import place_of
from tenure.storage.memory.act_log import ActLog
from tenure.storage.memory.listing import due_page, faults_of, matches
from tenure.storage.memory.schedules import ScheduleStore
from tenure.storage.protocol import (
    CHORE_LIMITS,
    CLAIM_LIMIT,
    EVENTS_END,
    EXPIRE_LIMIT,
    LOG_LINES_KEPT,
    LOOK_LIMIT,
    PAUSED,
    PROMOTE_LIMIT,
    QUEUE_RATE,
    RATE,
    RUNS_KEPT,
    SCAN_LIMIT,
    SWEEP_LIMIT,
    TRIM_LIMIT,
    UNKNOWN,
    UNKNOWN_LOOKS,
    WORKER_KEPT,
    ActsPage,
    ActsQuery,
    CancelJob,
    CancelRequest,
    ClaimRequest,
    DeleteJob,
    EventPage,
    EventReader,
    ExchangeResult,
    LeaseRenewal,
    Page,
    Query,
    QueueSurvey,
    ReclaimResult,
    RedriveJob,
    RenewRequest,
    RenewResult,
    RescheduleJob,
    RetainJob,
    Revision,
    RevisionResult,
    Settings,
    SettlementResult,
    StalledLease,
    StartLimit,
    Survey,
    SweepRequest,
    SweepResult,
    Target,
    UnknownTask,
    WorkerSurvey,
    job_topic,
    owner_topic,
    queue_topic,
    task_of_place,
    unknown_place,
)
from tenure.storage.waiting import AdvanceEntry, DeliverToken, SealBox, Subscribe


@dataclass
class _LastBeat:
    """A worker's last beat, and when it arrived."""

    beat: RenewRequest
    started: int
    at: int
    died: bool = False
    announced: int = 0
    """The number of the last event that the worker reported."""


class Model(ScheduleStore):
    """A storage without waiting, in four layers: state, enqueue, schedules, and here all other verbs."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._workers: dict[str, _LastBeat] = {}
        self._claims: dict[tuple[str, int], LaneClaims] = {}
        self._term: tuple[Term, int] | None = None
        self._epoch = 0
        self._swept_at: int | None = None
        self._created = clock.now()
        self._resumed_at: int | None = None
        self._act_log = ActLog()
        self._receipts: dict[tuple[str, str], MoveReceipt] = {}
        """The latest batch of each move, by its id and the queue."""

    # ── the hot path and sweeps ───────────────────────────────────────────────────────────────────────────────────

    def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        """Apply each settlement whose run is the current one, then claim jobs."""
        now = self._clock.now()
        verdicts = tuple(self._settle(owner, settlement, now) for settlement in settlements)
        repeated = order is not None and order.lane is not None and self._has_seen(owner, order.lane, now)
        self._indexes.release_freed(now)
        self._trim_completed(settlements, verdicts, now)
        if order is None:
            return ExchangeResult(verdicts, outbox=self._take_written())
        leases = self._claim(owner, structs.replace(order, room=0) if repeated else order, now)
        if order.lane is not None and not repeated:
            key = owner.id, order.lane.id
            runs = [(lease.ref, lease.fence) for lease in leases]
            self._claims[key] = self._claims[key].claimed(order.lane, runs, now)
        queues = [queue for queue in order.queues if queue in self._queues and not self._paused(queue)]
        outlooks = [self._queue_outlook(queue, order.tasks, now) for queue in queues]
        dues = [due for _, due in outlooks if due is not None]
        return ExchangeResult(
            verdicts,
            tuple(leases),
            left=any(ready for ready, _ in outlooks),
            next_due=max(0, min(dues) - now) if dues else None,
            seen=repeated,
            outbox=self._take_written(),
        )

    def _has_seen(self, owner: Owner, lane: Lane, now: int) -> bool:
        """Return True if a call's number was seen before; if not, hand back runs whose answers were lost."""
        if self._claims.get((owner.id, lane.id), LaneClaims()).has_seen(lane):
            return True
        self._hand_back(owner, lane, now)
        return False

    def _hand_back(self, owner: Owner, lane: Lane, now: int) -> None:
        """Hand back the runs that a lane's finished calls gave out in answers that were lost."""
        known = self._claims.get((owner.id, lane.id), LaneClaims())
        for ref, fence in known.lost(lane):
            job = self._jobs.get(ref)
            if job is not None and self._holds(job, owner.id, fence):
                self._settle(owner, handed_back(job), now)
        self._claims[owner.id, lane.id] = known.finished(lane, now)

    def _queue_outlook(self, queue: str, tasks: Mapping[str, int] | None, now: int) -> tuple[bool, int | None]:
        """Return whether a queue has a claimable job, and when time alone will make another one claimable."""
        indexes = self._queues[queue]
        dues = [head for head in (indexes.delayed.head, indexes.timers.head) if head is not None]
        ready = bool(len(indexes.ready) or self._indexes.known_places(queue, tasks))
        if not ready and not indexes.opening:
            return False, min(dues, default=None)
        opens_at = self._queue_opens_at(queue, now)
        if indexes.opening:
            # A job's own rate releases it only once the queue's rate allows a start.
            dues.append(max(min(indexes.opening.values()), opens_at))
        if ready and opens_at > now:
            ready = False
            dues.append(opens_at)
        return ready, min(dues, default=None)

    def _settle(self, owner: Owner, settlement: Settlement, now: int) -> SettlementResult:
        job = self._jobs.get(settlement.ref)
        if job is None:
            return SettlementResult(settlement.ref, settlement.fence, "gone")
        if not self._holds(job, owner.id, settlement.fence):
            if job.settled_fence == settlement.fence:
                return SettlementResult(settlement.ref, settlement.fence, "duplicate")
            self._record(refused(job, owner.id, settlement.fence, "settle"), now)
            return SettlementResult(settlement.ref, settlement.fence, "lost")
        if job.cancel_at is not None:
            settlement = when_cancelling(settlement, job)
        if isinstance(settlement.decision, PutBack) and settlement.decision.until_known:
            self._indexes.give_back_time(job.queue, self._all_rates(job), job.started or now, now)
        if settlement.limit is not None:
            self._limit(job, settlement.limit, now)
        for event in settlement.events:
            # Before the events of the jobs that wait for this one.
            self._record(event, now)
        self._apply(job, settlement.decision, now)
        self._close_run(job, settlement.ended, now)
        self._record_if_drained(job.queue, now)
        return SettlementResult(settlement.ref, settlement.fence, "done")

    def _limit(self, job: JobRecord, length: int, now: int) -> None:
        """Let nothing start under the job's own rate, or in its queue if it has none, for some time."""
        rate = limit_name(self._indexes.rates(job))
        if self._indexes.set_limit(job.queue, rate or QUEUE_RATE, length, now):
            self._record(QueueLimited(queue=job.queue, rate=rate, until=moment(now + length), by=job.id), now)

    def _apply(self, job: JobRecord, decision: Decision, now: int) -> None:
        freed = structs.replace(
            job,
            settled_fence=job.fence,
            owner=None,
            heard_at=None,
            lease_until=None,
            suspect_until=None,
            run_until=None,
            progress_until=None,
            quarantined=isinstance(decision, PutBack) and decision.quarantine,
            put_back_used=isinstance(decision, PutBack) and decision.put_back_used,
        )
        if decision.charge is not None:
            freed = structs.replace(freed, **{decision.charge: getattr(job, decision.charge) + 1})
        match decision:
            case Finish(keep=keep, redrive_after=redrive_after):
                self._replace(
                    job,
                    structs.replace(
                        freed,
                        state=decision.state,
                        finished=now,
                        result=decision.result,
                        error=decision.error,
                        reason=decision.reason,
                        fault=decision.fault,
                        kept_until=None if keep is None else now + keep,
                        redrive_at=None if redrive_after is None else now + redrive_after,
                    ),
                )
            case PutBack(after=0, error=error, reason=reason, until_known=until_known):
                self._replace(
                    job,
                    structs.replace(
                        freed,
                        state=State.WAITING,
                        parked_under=unknown_place(job.task, job.policy.version) if until_known else None,
                        run_at=now,
                        score=self._indexes.score_again(job, now),
                        error=error or job.error,
                        reason=reason,
                    ),
                )
                self.notified.append(queue_topic(job.queue))
            case PutBack(after=after, error=error, reason=reason):
                self._replace(
                    job,
                    structs.replace(
                        freed,
                        state=State.DELAYED,
                        run_at=now + after,
                        score=score_at(now + after, boost=job.boost, lifo=job.lifo),
                        error=error or job.error,
                        reason=reason,
                    ),
                )
                self.notified.append(queue_topic(job.queue))
            case Suspend():
                self._suspend(job, freed, decision, now)
        self.notified.append(job_topic(job.ref))

    def _claim(self, owner: Owner, order: ClaimRequest, now: int) -> list[Lease]:
        leases: list[Lease] = []
        room = min(order.room, CLAIM_LIMIT)
        looks = SCAN_LIMIT
        for queue in order.queues:
            if queue not in self._queues or self._paused(queue):
                continue
            indexes = self._queues[queue]
            self._wake_due(queue, PROMOTE_LIMIT, now)
            for ref in indexes.delayed.first(PROMOTE_LIMIT, until=now):
                job = self._jobs.get(ref)
                if job is not None and job.state is State.DELAYED:
                    self._promote(job, now)
            if indexes.opening and self._queue_opens_at(queue, now) <= now:
                self._indexes.open_rates(queue, now)
            self._indexes.release_freed(now)
            while len(leases) < room and looks and self._queue_opens_at(queue, now) <= now:
                job = self._indexes.first_known(queue, order.tasks)
                if job is None:
                    break
                looks -= 1
                if is_expired(job, now):
                    self._expire(job, now)
                elif (full := self._indexes.full(job, now, order.tasks)) is not None:
                    self._indexes.park(job, full, now)
                else:
                    leases.append(self._start(self._with_calls(job.ref), owner, now))
                self._indexes.release_freed(now)
        return leases

    def _queue_opens_at(self, queue: str, now: int) -> int:
        """Return when a queue's own rate and limit next allow a start."""
        rate = self._setting("queue", queue).rate
        opens_at = now if rate is None or not rate.interval else self._indexes.opens_at(queue, rate, now)
        return max(opens_at, self._indexes.limited_until(queue, QUEUE_RATE, now))

    def _promote(self, job: JobRecord, now: int) -> None:
        if is_expired(job, now):
            self._expire(job, now)
        else:
            self._replace(job, self._indexes.promoted(job, now))

    def _start(self, job: JobRecord, owner: Owner, now: int) -> Lease:
        started = claimed(job, owner.id, now, self._setting("queue", job.queue).stall)
        self._replace(job, started)
        self._indexes.take_time(job.queue, self._all_rates(job), now)
        self._indexes.mark_dispatched(job)
        runs = self._runs[job.ref]
        runs.append(
            RunRecord(
                number=started.starts,
                fence=started.fence,
                owner=owner.id,
                worker=owner.name,
                host=owner.host,
                pid=owner.pid,
                start=now,
            )
        )
        del runs[:-RUNS_KEPT]
        if self._records_more(job.queue):
            self._record_on_request(begun(started, owner), now)
        return Lease(started)

    def _all_rates(self, job: JobRecord) -> list[RateKey]:
        """Return the rates that a start of this job takes time of, including its queue's rate."""
        queue_rate = self._setting("queue", job.queue).rate
        return [*self._indexes.rates(job), *([queue_rate] if queue_rate and queue_rate.interval else ())]

    def _close_run(self, job: JobRecord, ended: RunEnd, now: int) -> None:
        runs = self._runs[job.ref]
        if runs and runs[-1].number == job.starts:
            runs[-1] = structs.replace(
                runs[-1], end=now, ended=ended.ended, reason=ended.reason, detail=ended.detail, trace=None
            )

    def renew(self, beat: RenewRequest) -> RenewResult:
        """Record that an owner is alive, and extend every lease in the request that it still holds."""
        now = self._clock.now()
        lost: list[tuple[Ref, int]] = []
        cancelling: list[CancelRequest] = []
        for renewal in beat.renewals:
            job = self._jobs.get(renewal.ref)
            if job is None or not self._holds(job, beat.owner.id, renewal.fence):
                # A run that this owner has settled meanwhile is not fenced off: beat and settlement crossed.
                if job is not None and job.settled_fence != renewal.fence:
                    self._record(refused(job, beat.owner.id, renewal.fence, "renew"), now)
                lost.append((renewal.ref, renewal.fence))
                continue
            if renewal.trace is not None:
                self._runs[job.ref][-1] = structs.replace(self._runs[job.ref][-1], trace=renewal.trace)
            if renewal.extend:
                self._extend(job, renewal, now)
            if job.cancel_at is not None:
                cancelling.append(CancelRequest(renewal.ref, renewal.fence, job.cancel_reason))
        for lane in beat.lanes:
            self._hand_back(beat.owner, lane, now)
        self._indexes.release_freed(now)
        partitions = () if beat.seen is None else (self._partition(beat.seen),)
        orders = self._setting("worker", beat.owner.id)
        known = self._workers.get(beat.owner.id)
        announced = known.announced if known else 0
        for number, event in enumerate(beat.events, beat.first_event or 0):
            if beat.first_event is not None and number <= announced:
                continue
            announced = announced if beat.first_event is None else number
            if isinstance(event, FiguresDelta):
                self._figures.add(event.counted, now)
            else:
                self._record(event, now)
        if beat.last:
            self._delete_worker(beat.owner.id)
        elif beat.worker is not None:
            self._workers[beat.owner.id] = _LastBeat(beat, known.started if known else now, now, announced=announced)
        return RenewResult(tuple(lost), tuple(cancelling), orders.orders, partitions=partitions)

    def _partition(self, seen: Sequence[PartitionState]) -> PartitionState:
        number, at = (seen[0].last_event, seen[0].last_event_at) if seen else (0, 0)
        last = self._event_log.last
        return PartitionState(
            "*",
            "memory",
            self._created,
            last,
            self._event_log.recorded_at(last),
            continues=number <= last and at in (0, self._event_log.recorded_at(number) or at),
        )

    def _extend(self, job: JobRecord, renewal: LeaseRenewal, now: int) -> None:
        for line in renewal.log:
            lines = self._log[job.ref]
            last = self._logged.get(job.ref, LogPosition())
            if line.number and (job.starts, line.number) <= (last.run, last.number):
                continue
            self._logged[job.ref] = last.then(job.starts, line.number)
            lines.append(
                LogLine(at=now - line.ago, run=job.starts, level=line.level, message=line.message, fields=line.fields)
            )
            del lines[:-LOG_LINES_KEPT]
        run_until, progress_until = renewed_limits(
            now,
            lease=job.stall.lease,
            timeout=job.timeout,
            deadline=job.deadline,
            heartbeat_timeout=job.heartbeat_timeout,
            run_until=job.run_until,
            progress_until=job.progress_until,
            ran=renewal.ran,
            silent=0 if renewal.sign and renewal.silent is None else renewal.silent,
        )
        end = lease_end(
            now,
            job.stall.lease,
            run_until=run_until,
            progress_until=progress_until,
            # A run cannot have started later than now. If it seems so, the clock was set back since.
            not_before=min(job.started or now, now) + job.stall.start_grace,
            exclusive=renewal.exclusive,
        )
        progress = read_progress(renewal.progress)
        if progress is not None:
            self._record_on_request(progressed(job, progress, renewal.note), now)
        is_new = renewal.data is not None and renewal.data_number > job.data_number
        self._replace(
            job,
            structs.replace(
                job,
                heard_at=now,
                lease_until=end,
                suspect_until=None if end > now else job.suspect_until,
                run_until=run_until,
                progress_until=progress_until,
                progress=job.progress if progress is None else progress,
                progress_note=job.progress_note if progress is None else renewal.note,
                data=renewal.data if is_new else job.data,
                data_number=renewal.data_number if is_new else job.data_number,
            ),
        )

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

    def _reclaim(self, job: JobRecord, owner: Owner, now: int, reason: StallReason | None = None) -> StalledLease:
        reclaimed_job = reclaimed(job, owner.id, now)
        self._replace(job, reclaimed_job)
        return StalledLease(Lease(reclaimed_job), reason or stall_reason(job, now), job.owner or "", silence(job, now))

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
            if job is None or job.state not in TERMINAL:
                continue
            trimmed += self._call_count(ref)
            self._drop(job)
        return trimmed

    def _trim_completed(
        self, settlements: Sequence[Settlement], verdicts: Sequence[SettlementResult], now: int
    ) -> None:
        """If a queue has too many completed jobs, delete some of the oldest together with these completions.

        The sweeps handle the other cases: jobs that may have merged calls, and all jobs if the clock was set back,
        because then the earliest completed jobs do not come first.
        """
        if not settlements:
            return
        completed = dict[str, int]()
        for settlement, result in zip(settlements, verdicts, strict=True):
            if result.verdict == "done" and uses_queue_retention(settlement):
                queue = settlement.ref.queue
                completed[queue] = completed.get(queue, 0) + 1
        for queue, ended in completed.items():
            ended_jobs = self._queues[queue].over[State.COMPLETED]
            keep = (self._setting("queue", queue).retention or RetentionRules()).of(State.COMPLETED)
            surplus = ended_jobs.first(keep.deleted_at_once(len(ended_jobs), ended))
            if surplus and not ended_jobs.beyond(now, 1):
                for job in [self._jobs[ref] for ref in surplus]:
                    if not isinstance(job.merge, DebounceKey | CollectKey):
                        self._drop(job)

    def _delete_old_workers(self, now: int) -> None:
        for owner in [owner for owner, last_beat in self._workers.items() if last_beat.at <= now - WORKER_KEPT]:
            self._delete_worker(owner)
        for key in [key for key, known in self._claims.items() if known.at <= now - WORKER_KEPT]:
            del self._claims[key]

    def _delete_worker(self, owner: str) -> None:
        self._workers.pop(owner, None)
        self._settings.pop(Target("worker", owner), None)

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

    # ── operator actions ──────────────────────────────────────────────────────────────────────────────────────────

    def revise(self, revisions: Sequence[Revision]) -> list[RevisionResult]:
        """Cancel, redrive, delete, reschedule or retain jobs."""
        now = self._clock.now()
        revised = [self._revise(revision, now) for revision in revisions]
        self._indexes.release_freed(now)
        return revised

    def _revise(self, revision: Revision, now: int) -> RevisionResult:
        if isinstance(revision, AdvanceEntry):
            return self._advance_entry(revision, now)
        job = self._jobs.get(revision.ref)
        if job is None or self._is_past_retention(job, now):
            return RevisionResult(revision.ref, "gone")
        if revision.ended not in (None, job.finished or 0):
            return RevisionResult(job.ref, "changed", job.state)
        if isinstance(revision, DeliverToken | SealBox | Subscribe):
            return self._revise_waiting(revision, job, now)
        if isinstance(revision, DeleteJob) and revision.move is not None and not self._moves(job.queue, revision.move):
            return RevisionResult(job.ref, "refused", job.state)
        match revision:
            case CancelJob() if job.state is State.ACTIVE:
                self._request_cancel(job, revision, now)
                return RevisionResult(job.ref, "asked", job.state)
            case CancelJob() if job.state not in TERMINAL:
                self._cancel(job, revision, now)
            case RedriveJob() if job.state in REDRIVABLE and (
                (holder := self._holder(job, now) or self._missing_job(job, now)) is not None
            ):
                return RevisionResult(job.ref, "refused", job.state, holder)
            case RedriveJob(by=by, delay=delay) if job.state in REDRIVABLE:
                self._redrive(job, now, delay=delay, by=by)
            case DeleteJob(by=by) if job.state is not State.ACTIVE:
                self._drop(job)
                self._free_window(job)
                self._record(
                    JobDeleted(queue=job.queue, id=job.id, task=job.task, run=job.starts, by=by, was=job.state),
                    now,
                )
                if job.state not in TERMINAL:
                    self._record_if_drained(job.queue, now)
                    self._hand_over(job)
            case RescheduleJob() if job.state in (State.DELAYED, State.WAITING):
                self._reschedule(job, revision, now)
            case RetainJob(ttl=ttl) if job.state is State.COMPLETED:
                self._replace(job, structs.replace(job, kept_until=now + ttl))
            case _:
                return RevisionResult(job.ref, "refused", job.state)
        self.notified.append(job_topic(job.ref))
        return RevisionResult(job.ref, "done", job.state)

    def _moves(self, queue: str, move: str) -> bool:
        mark = self._setting("queue", queue).moved
        return mark is not None and mark.id == move

    def receive(self, batch: MoveBatch) -> MoveReceipt:
        """Store jobs that come from another storage, and calls that come from an outbox."""
        self._require_here(batch.queue)
        now = self._clock.now()
        known = self._receipts.get((batch.move, batch.queue), MoveReceipt())
        if batch.expected != known.number:
            return known
        taken = tuple(detail.job.id for detail in batch.jobs if self._arrive(detail, now))
        results = [self._enqueue(call.job, now, offset) for offset, call in enumerate(batch.calls)]
        self._deliver_immediate(now)
        receipt = self._receipts[batch.move, batch.queue] = MoveReceipt(
            known.number + 1,
            (*taken, *(call.name for call in batch.calls)),
            answers_of(batch.calls, ((result.action, result.ref.id, result.retry_in) for result in results)),
        )
        self._indexes.release_freed(now)
        return structs.replace(receipt, applied=True)

    def _arrive(self, detail: JobDetail, now: int) -> bool:
        job = as_moved(detail.job)
        if job.ref in self._jobs or job.ref in self._merged_into:
            return False
        if job.state not in TERMINAL and self._holder(job, now) is not None:
            return False
        if job.state is State.WAITING:
            score = self._indexes.score(job, entered_at(job.score, boost=job.boost, lifo=job.lifo), now)
            job = structs.replace(job, score=score)
        self._runs[job.ref] = list(detail.runs)
        self._log[job.ref] = list(detail.log)
        if detail.log:
            last = detail.log[-1].run
            self._logged[job.ref] = LogPosition(run=last, lines=len(detail.log) + detail.log_dropped)
        self._indexes.add(job, now)
        self.notified.append(queue_topic(job.queue))
        return True

    def _request_cancel(self, job: JobRecord, request: CancelJob, now: int) -> None:
        if job.cancel_at is None:
            self._replace(job, structs.replace(job, cancel_at=now, cancel_reason=request.reason, cancel_by=request.by))
            self.notified.append(owner_topic(job.owner or ""))

    def _cancel(self, job: JobRecord, request: CancelJob, now: int) -> None:
        self._figures.add([TaskCounts(job.queue, job.task, end_of("cancelled"))], now)
        self._record(
            JobCancelled(
                queue=job.queue,
                id=job.id,
                task=job.task,
                run=job.starts,
                reason=request.reason,
                by=request.by,
                was=job.state,
            ),
            now,
        )
        self._replace(
            job,
            structs.replace(
                job,
                state=State.CANCELLED,
                parked_under=None,
                quarantined=False,
                put_back_used=False,
                cancel_at=now,
                cancel_reason=request.reason,
                cancel_by=request.by,
                finished=now,
                reason=request.reason,
            ),
        )
        self._record_if_drained(job.queue, now)

    def _redrive(self, job: JobRecord, now: int, *, delay: int = 0, by: str | None, by_rule: bool = False) -> None:
        if self._redrive_waiting(job, by, now):
            return
        again = redriven(job, now, delay=delay, by_rule=by_rule)
        if again.state is State.WAITING:
            again = structs.replace(again, score=self._indexes.score(again, again.run_at, now))
        self._replace(job, again)
        self._record(JobRedriven(queue=job.queue, id=job.id, task=job.task, run=job.starts, by=by, was=job.state), now)
        self.notified += [queue_topic(job.queue), job_topic(job.ref)]

    def _holder(self, job: JobRecord, now: int) -> Ref | None:
        """Return the unfinished job that holds this job's unique key."""
        return self._key_holder(job.queue, job.merge, now) if isinstance(job.merge, UniqueKey) else None

    def _reschedule(self, job: JobRecord, request: RescheduleJob, now: int) -> None:
        after = retimed(job, now, delay=request.delay, priority=request.priority, boost=request.boost)
        if request.delay is not None and after.state is State.WAITING:
            after = structs.replace(after, score=self._indexes.score(after, now, now))
        self._replace(job, after)
        self._record_on_request(rescheduled(after, request.by), now)
        self.notified.append(queue_topic(job.queue))

    def tune(
        self, target: Target, settings: Settings, by: str | None = None, expected: Settings | None = None
    ) -> Settings:
        """Merge settings into those in force, if these are the expected ones."""
        now = self._clock.now()
        if expected is not None and not self._setting(target.kind, target.name).agrees(expected, settings):
            return self._setting(target.kind, target.name)
        if target.kind == "queue" and settings.lift is not None:
            self._lift(target.name, settings.lift, by, now)
        before = self._setting(target.kind, target.name)
        after = before.under(settings)
        if after == before:
            return after
        self._settings[target] = after
        if target.kind == "worker":
            self.notified.append(owner_topic(target.name))
        if target.kind == "queue" and bool(before.paused) != bool(after.paused):
            kind = QueuePaused if after.paused else QueueResumed
            self._record(kind(queue=target.name, by=by), now)
            self.notified.append(queue_topic(target.name))
        if target.kind == "task" and before.paused and not after.paused:
            for queue in list(self._queues):
                self._indexes.unpark(queue, PAUSED + target.name, now)
        if after.rate is not None and before.rate != after.rate:
            retune = self._indexes.retune_task if target.kind == "task" else self._indexes.retune_queue
            retune(target.name, after.rate, now)
            self.notified += [queue_topic(queue) for queue in self._queues]
        return after

    def _lift(self, queue: str, name: str, by: str | None, now: int) -> None:
        limits = [limit for limit, _ in self._indexes.limits(queue, now) if name in (limit, "*")]
        for limit in limits[:LOOK_LIMIT]:
            self._indexes.lift(queue, limit)
            self._record(QueueLimited(queue=queue, rate=None if limit == QUEUE_RATE else limit, by=by), now)

    def resign(self, term: Term) -> None:
        """Give up this leader term and no other."""
        if self._term is not None and (self._term[0].owner, self._term[0].epoch) == (term.owner, term.epoch):
            self._term = None
            self._record(
                LeadershipLost(scope=term.scope, owner=term.owner, epoch=term.epoch, reason="resigned"),
                self._clock.now(),
            )

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, refs: Sequence[Ref]) -> list[JobDetail | None]:
        """Return each job with its runs and log."""
        now = self._clock.now()
        found: list[JobDetail | None] = []
        for ref in refs:
            # The id of a merged call names the job that it was merged into.
            ref = self._merged_into.get(ref, ref)
            job = self._jobs.get(ref)
            gone = job is None or self._is_past_retention(job, now)
            found.append(None if gone else self._detail(ref))
        return found

    def _detail(self, ref: Ref) -> JobDetail:
        log = tuple(self._log[ref])
        dropped = self._logged.get(ref, LogPosition()).lines - len(log)
        steps = tuple(self._steps.get(ref, {}).values())
        return JobDetail(self._with_calls(ref), tuple(self._runs[ref]), log, dropped, steps)

    def find(self, query: Query) -> Page:
        """Return one page of records, in the order of the query."""
        now = self._clock.now()
        if query.order == "due":
            return due_page(self._jobs.values(), query)
        before = place_of(query.after) if query.after is not None else None
        order = [
            (number, ref) for ref, number in reversed(self._indexes.order.items()) if before is None or number < before
        ]
        looked = order[: None if query.id is not None or query.merge is not None else query.looks]
        found = [
            (number, self._jobs[ref])
            for number, ref in looked
            if not self._is_past_retention(self._jobs[ref], now) and matches(self._jobs[ref], query)
        ][: query.limit + 1]
        page = found[: query.limit]
        end = page[-1][0] if len(found) > len(page) else looked[-1][0] if len(order) > len(looked) else None
        return Page(tuple(self._with_calls(job.ref) for _, job in page), None if end is None else str(end))

    def survey(self, queues: Sequence[str] = (), faults: int = 0, figures: FiguresQuery | None = None) -> Survey:
        """Return job counts, queues, workers, the most frequent faults, and figures."""
        now = self._clock.now()
        counts: defaultdict[str, defaultdict[State, int]] = defaultdict(lambda: defaultdict(int))
        for job in self._jobs.values():
            counts[job.queue][job.state] += 1
        tuned = {target.name for target in self._settings if target.kind == "queue"}
        spoiled = {name for name, indexes in self._queues.items() if indexes.discarded}
        names = sorted(included({*counts, *tuned, *spoiled}, ()) if not queues else set(queues))
        tasks = {target.name: setting for target, setting in self._settings.items() if target.kind == "task"}
        return Survey(
            queues=tuple(
                QueueSurvey(
                    queue=name,
                    counts=dict(sorted(counts[name].items())),
                    oldest_waiting=self._oldest(name, now),
                    parked=sum(map(len, self._queues[name].parked.values())) if name in self._queues else 0,
                    unknown=self._unknown(name, now),
                    discarded=self._queues[name].discarded if name in self._queues else 0,
                    settings=self._setting("queue", name),
                    limits=tuple(
                        StartLimit(None if limit == QUEUE_RATE else limit, until)
                        for limit, until in self._indexes.limits(name, now)[:LOOK_LIMIT]
                    ),
                )
                for name in names
            ),
            paused_tasks=tuple(sorted(name for name, task in tasks.items() if task.paused)),
            task_rates={name: rate for name, task in sorted(tasks.items()) if (rate := task.rate) is not None},
            workers=tuple(
                WorkerSurvey(
                    owner=worker.beat.owner,
                    queues=worker.beat.worker.queues,
                    concurrency=worker.beat.worker.concurrency,
                    active=worker.beat.worker.active,
                    started=worker.started,
                    seen_ago=max(0, now - worker.at),
                    turned_ago=max(0, now - worker.at) + worker.beat.worker.turned_ago,
                    stopping=worker.beat.worker.stopping,
                    died=worker.died,
                    lag=worker.beat.worker.lag,
                    memory=worker.beat.worker.memory,
                    quiet=worker.beat.worker.quiet,
                    tasks=worker.beat.worker.tasks,
                    unstopped=worker.beat.worker.unstopped,
                    why=worker.beat.worker.why,
                    alarm=worker.beat.worker.alarm,
                )
                for worker in self._workers.values()
                if worker.beat.worker is not None and includes_worker(worker.beat.worker.queues, queues)
            ),
            schedules=tuple(self._schedules[name] for name in sorted(self._schedules)),
            faults=faults_of(self._jobs.values(), names, faults),
            figures=() if figures is None else self._figures.read(names, figures, now),
            leaders=(self._term[0],) if self._term is not None and self._term[1] > now else (),
            swept_ago=now - self._swept_at if self._swept_at is not None else None,
            now=now,
        )

    def _unknown(self, queue: str, now: int) -> tuple[UnknownTask, ...]:
        if queue not in self._queues:
            return ()
        parked = sorted((name, index) for name, index in self._queues[queue].parked.items() if name.startswith(UNKNOWN))
        found: list[UnknownTask] = []
        for name, index in parked[:LOOK_LIMIT]:
            since = min(self._jobs[ref].run_at for ref in index.first(UNKNOWN_LOOKS))
            found.append(UnknownTask(*task_of_place(name), max(0, now - since)))
        return tuple(found)

    def _oldest(self, queue: str, now: int) -> int | None:
        if queue not in self._queues:
            return None
        indexes = self._queues[queue]
        waiting = [ref for index in (indexes.ready, *indexes.parked.values()) for _, ref in index]
        return max((max(0, now - self._jobs[ref].run_at) for ref in waiting), default=None)

    def events(
        self, cursor: str | None, limit: int, reader: EventReader | None = None, of: Ref | None = None
    ) -> EventPage:
        """Return what happened after the cursor."""
        if reader is None or cursor == EVENTS_END:
            return self._event_log.page(cursor, limit, of, now=self._clock.now())
        return self._event_log.lend(cursor, limit, reader, self._clock.now())

    def record_act(self, act: OperatorAct, keep: KeepRule) -> OperatorAct:
        """Write an operator's act into the audit log."""
        return self._act_log.record(act, keep, self._clock.now())

    def acts(self, query: ActsQuery) -> ActsPage:
        """Return one page of the audit log."""
        return self._act_log.page(query)

    def indexed(self) -> Iterator[tuple[str, int, Ref]]:
        """Yield the entries of the indexes: the index's name, the job's sort number in it, the job."""
        return self._indexes.indexed()

    # ── helpers ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _holds(self, job: JobRecord, owner: str, fence: int) -> bool:
        """Return True if the owner's run under this fence is the job's current one. Every write is guarded by this."""
        return job.state is State.ACTIVE and job.fence == fence and job.owner == owner
