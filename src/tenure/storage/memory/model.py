"""The executable specification of a storage, in plain dicts and sorted lists. Read this first.

Nothing here waits or takes a lock; each method is one atomic step. `MemoryStorage` adds a lock, and the conformance
suite verifies that every other storage behaves the same. The layers of the model stand in files of their own.
"""

from collections.abc import Mapping, Sequence

from msgspec import structs

from tenure.clock import Clock
from tenure.core.decision import Decision, Finish, PutBack, RunEnd, Suspend
from tenure.core.document import read_progress
from tenure.core.duration import moment
from tenure.core.events import (
    QueueLimited,
    QueuePaused,
    QueueResumed,
)
from tenure.core.figures import FiguresDelta
from tenure.core.job import (
    CollectKey,
    DebounceKey,
    JobRecord,
    LogLine,
    LogPosition,
    Owner,
    RateKey,
    Ref,
    RunRecord,
)
from tenure.core.lane import Lane, LaneClaims
from tenure.core.lease import (
    Lease,
    lease_end,
    renewed_limits,
)
from tenure.core.lifecycle import State
from tenure.core.order import score_at
from tenure.core.partition import PartitionState
from tenure.core.rate import limit_name
from tenure.core.retention import RetentionRules
from tenure.core.settlement import Settlement, handed_back, uses_queue_retention, when_cancelling
from tenure.core.transition import (
    begun,
    claimed,
    is_expired,
    progressed,
    refused,
)
from tenure.storage.memory.reading import ModelReads
from tenure.storage.memory.sweep import LastBeat
from tenure.storage.names import PAUSED, QUEUE_RATE, job_topic, owner_topic, queue_topic, unknown_place
from tenure.storage.requests import (
    CLAIM_LIMIT,
    LOG_LINES_KEPT,
    LOOK_LIMIT,
    PROMOTE_LIMIT,
    RUNS_KEPT,
    SCAN_LIMIT,
    CancelRequest,
    ClaimRequest,
    ExchangeResult,
    LeaseRenewal,
    RenewRequest,
    RenewResult,
    SettlementResult,
)
from tenure.storage.revisions import Settings, Target


class Model(ModelReads):
    """A storage without waiting: this is its top layer, the hot path of the workers and the settings.

    The layers below: reads, sweeps, revisions, schedules, waits, enqueue, state.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._created = clock.now()

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
            if renewal.steps:
                self._add_steps(job, renewal.steps, now)
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
            self._workers[beat.owner.id] = LastBeat(beat, known.started if known else now, now, announced=announced)
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
                    if not isinstance(job.merge, DebounceKey | CollectKey) and not self._is_kept(job, now):
                        self._drop(job)

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

    def _holds(self, job: JobRecord, owner: str, fence: int) -> bool:
        """Return True if the owner's run under this fence is the job's current one. Every write is guarded by this."""
        return job.state is State.ACTIVE and job.fence == fence and job.owner == owner
