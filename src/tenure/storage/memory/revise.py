"""The model's revisions of jobs: cancel, redrive, delete, reschedule, and the jobs that come from another storage."""

from collections.abc import Sequence

from msgspec import structs

from tenure.clock import Clock
from tenure.core.events import (
    JobCancelled,
    JobDeleted,
    JobRedriven,
)
from tenure.core.figures import TaskCounts, end_of
from tenure.core.job import (
    JobDetail,
    JobRecord,
    LogPosition,
    Ref,
    UniqueKey,
)
from tenure.core.lifecycle import REDRIVABLE, TERMINAL, State
from tenure.core.move import MoveBatch, MoveReceipt, answers_of, as_moved
from tenure.core.order import entered_at
from tenure.core.transition import (
    redriven,
    rescheduled,
    retimed,
)
from tenure.storage.memory.schedules import ScheduleStore
from tenure.storage.names import job_topic, owner_topic, queue_topic
from tenure.storage.revisions import (
    CancelJob,
    DeleteJob,
    RedriveJob,
    RescheduleJob,
    RetainJob,
    Revision,
    RevisionResult,
)
from tenure.storage.waiting import AdvanceEntry, CancelTree, DeliverToken, SealBox, Subscribe


class RevisionRules(ScheduleStore):
    """Changes single jobs at the request of callers, and takes in jobs of another storage."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._receipts: dict[tuple[str, str], MoveReceipt] = {}
        """The latest batch of each move, by its id and the queue."""

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
        if isinstance(revision, CancelTree):
            return self._cancel_tree(job, revision, now)
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

    def _cancel_tree(self, job: JobRecord, tree: CancelTree, now: int) -> RevisionResult:
        members = self._members_of(job)
        answer = self._revise(CancelJob(tree.ref, tree.reason, tree.by), now)
        if answer.verdict == "done":
            self._cancel_members(job, members, tree.reason, tree.by)
        return answer

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
        if detail.steps:
            self._steps[job.ref] = {step.name: step for step in detail.steps}
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
        again = redriven(self._forget_failures(job), now, delay=delay, by_rule=by_rule)
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
