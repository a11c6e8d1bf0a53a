"""Checks each run: who may hold it, that it ends once, what its end is charged to, and where its job goes then."""

from collections import Counter
from collections.abc import Mapping, Sequence

from tenure.clock import SECOND
from tenure.core.decision import Finish, PutBack, Suspend
from tenure.core.events import (
    RunFenced,
)
from tenure.core.job import JobRecord, Owner, Ref
from tenure.core.lane import Lane
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.order import score_at
from tenure.core.settlement import Settlement, handed_back
from tenure.storage.protocol import (
    WORKER_KEPT,
    ClaimRequest,
    ExchangeResult,
    RenewRequest,
    RenewResult,
    knows,
    unknown_place,
)
from tenure_testing.simulation.accounts import Accounts
from tenure_testing.simulation.event_checks import EventCounts, events_of
from tenure_testing.simulation.job_history import JobHistory, RunHistory, shown
from tenure_testing.simulation.order_checks import OrderChecks
from tenure_testing.simulation.record_checks import flaw_of_lease, right_lease_end

TRIP = 1.0
"""The largest difference in seconds between the travel times of a renewal and of a settlement of one run."""


class RunChecks:
    """Checks claims, renewals and settlements of one world."""

    def __init__(self, accounts: Accounts, order: OrderChecks) -> None:
        self._accounts = accounts
        self._require = accounts.require
        self._order = order
        self._claims: dict[tuple[str, int], tuple[int, list[tuple[int, Ref, int]]]] = {}
        self._claims_at: dict[tuple[str, int], int] = {}
        """When each lane was last used. `_claims` has each lane's highest number and its unacknowledged claims."""

    def exchanged(
        self,
        owner: Owner,
        settlements: Sequence[Settlement],
        order: ClaimRequest | None,
        answer: ExchangeResult,
        before: Mapping[Ref, JobRecord],
    ) -> EventCounts:
        """Record settlements and claims. Return the events that must be recorded for them."""
        expected: EventCounts = Counter()
        over: list[Ref] = []
        for sent, verdict in zip(settlements, answer.verdicts, strict=True):
            self._require((verdict.ref, verdict.fence) == (sent.ref, sent.fence), "I2", "verdicts out of order")
            self._accounts.verdicts[verdict.verdict] += 1
            job = before.get(sent.ref)
            holds = (
                job is not None
                and sent.ref not in over
                and (job.state, job.fence, job.owner) == (State.ACTIVE, sent.fence, owner.id)
            )
            match verdict.verdict:
                case "done":
                    self._require(holds, "I2", f"{sent.ref}: settled under {sent.fence} by {owner.id}: {shown(job)}")
                    over.append(sent.ref)
                    if job is not None:
                        expected.update(self._settled(job, sent))
                case "duplicate":
                    known = self._accounts.stories[sent.ref].accepted
                    self._require(sent.fence in known, "I2", f"{sent.ref}: {sent.fence} was never settled before")
                case "lost":
                    self._require(not holds, "I2", f"{sent.ref}: refused under {sent.fence}, which holds it")
                    applied = job is not None and sent.fence in self._accounts.stories[job.ref].accepted[-1:]
                    self._require(not applied, "I2", f"{sent.ref}: {sent.fence} settled it, and the verdict is lost")
                    if job is not None:
                        expected[RunFenced, sent.ref, job.starts] += 1
                case "gone":
                    self._require(job is None, "I8", f"{sent.ref}: the verdict is gone: {shown(job)}")
        lane = None if order is None else order.lane
        if lane is not None:
            highest, _ = self._claims.get((owner.id, lane.id), (0, []))
            self._require(answer.seen == (lane.number <= highest), "I19", f"{owner.id}: {lane} after {highest}")
            self._require(not answer.seen or not answer.leases, "I19", f"{owner.id}: {lane} claimed again")
            if not answer.seen:
                expected.update(self._handed_back(owner, lane, before, over))
                won = [(lane.number, lease.ref, lease.fence) for lease in answer.leases]
                self._claims[owner.id, lane.id] = lane.number, won
        for lease in answer.leases:
            self._claimed(owner, lease, order)
        self._order.claimed(answer, order, before)
        return expected

    def renewed(
        self,
        beat: RenewRequest,
        answer: RenewResult,
        before: Mapping[Ref, JobRecord],
        changed: Sequence[Ref],
        sent_ago: float,
    ) -> EventCounts:
        """Record the renewals of a beat. Return the events that must be recorded for it."""
        now = self._accounts.clock.uptime()
        lost = {(ref, fence) for ref, fence in answer.lost}
        exclusive = {item.ref: item.exclusive for item in beat.renewals if item.extend}
        for renewal in beat.renewals:
            job = before.get(renewal.ref)
            holds = job is not None and (job.state, job.fence, job.owner) == (
                State.ACTIVE,
                renewal.fence,
                beat.owner.id,
            )
            self._require(
                holds != ((renewal.ref, renewal.fence) in lost),
                "I5",
                f"{renewal.ref}: {beat.owner.id} beat under {renewal.fence}, lost should be {not holds}: {shown(job)}",
            )
            story = self._accounts.story(renewal.ref) if holds else None
            if story is not None and story.run is not None:
                story.run.heard, story.run.exclusive = now, story.run.exclusive or renewal.exclusive
                if renewal.ran is not None:
                    story.run.started = now - renewal.ran / SECOND
                if renewal.sign and renewal.silent is None:
                    story.run.signed = now
                elif renewal.silent is not None:
                    # The sign is older than the renewal that carries it, and the holder measures from the sign.
                    story.run.signed = now - renewal.silent / SECOND
                    story.run.gave_sign = max(story.run.gave_sign, story.run.signed - sent_ago)
        expected: EventCounts = Counter()
        for lane in beat.lanes:
            expected.update(self._handed_back(beat.owner, lane, before, []))
        freed = {ref for _, ref, _ in expected}
        for ref in changed:
            was, job = before[ref], self._accounts.model.records[ref]
            # A job that was put back may have released another job that waited for its slot.
            if ref in freed or (expected and was.state is State.WAITING and was.parked_under is not None):
                continue
            kept = (was.state, was.fence, was.owner, was.starts) == (job.state, job.fence, job.owner, job.starts)
            self._require(kept and job.owner == beat.owner.id, "I5", f"{ref}: changed by a beat of {beat.owner.id}")
            flaw = flaw_of_lease(was, job, self._accounts.clock.now(), exclusive=exclusive.get(ref, False))
            self._require(not flaw, "I16", f"{ref}: renewed, and {flaw}: {shown(job)}")
        return expected

    def forget_lanes(self, now: int) -> None:
        """Forget the lanes of workers that a sweep forgets."""
        # If the clock jumps ahead, a sweep forgets the lane numbers of live workers.
        for key in [key for key, at in self._claims_at.items() if at <= now - WORKER_KEPT]:
            del self._claims_at[key], self._claims[key]

    def _handed_back(
        self, owner: Owner, lane: Lane, before: Mapping[Ref, JobRecord], over: Sequence[Ref]
    ) -> EventCounts:
        """Record the put-back of a lane's unanswered claims after their calls were over (I19)."""
        expected: EventCounts = Counter()
        highest, runs = self._claims.get((owner.id, lane.id), (0, []))
        self._claims_at[owner.id, lane.id] = self._accounts.clock.now()
        for number, ref, fence in runs:
            job = before.get(ref)
            held = job is not None and (job.state, job.fence, job.owner) == (State.ACTIVE, fence, owner.id)
            if job is not None and held and ref not in over and lane.answered < number < lane.number:
                expected.update(self._settled(job, handed_back(job)))
        self._claims[owner.id, lane.id] = (
            max(highest, lane.number - 1),
            [run for run in runs if run[0] >= lane.number],
        )
        return expected

    def _settled(self, job: JobRecord, asked: Settlement) -> EventCounts:
        """Record the settlement of a run. Return the events that must be recorded for it."""
        story = self._accounts.story(job.ref)
        run, decision = story.run, asked.decision
        if run is None:
            self._accounts.fail("I5", f"{job.ref}: settled under {asked.fence} while no run of it was open")
        if isinstance(decision, Suspend):
            self._accounts.fail("I5", f"{job.ref}: suspended, and no world has handlers that wait")
        stopped = isinstance(decision, PutBack) and job.cancel_at is not None
        by_reaper = run.taken is not None
        cancelled = stopped or (isinstance(decision, Finish) and decision.state is State.CANCELLED)
        self._require(
            not by_reaper or cancelled or decision.charge == "stalls",
            "I5",
            f"{job.ref}: run {run.number} ended as {decision} by a reaper",
        )
        silent = (
            not by_reaper and asked.ended.ended == "stalled" and asked.ended.reason in ("no_progress", "lease_expired")
        )
        if silent:
            self._fell_silent(job, run, asked.ended.reason)
        if asked.limit is not None:
            accounts = self._accounts
            accounts.pacing.limited(job, accounts.rates(job), asked.limit, accounts.clock.now())
        self._limited(story, run, decision, by_reaper=by_reaper or silent, stopped=stopped)
        story.accepted.append(asked.fence)
        story.run = None
        story.cancels += cancelled
        story.quarantined = isinstance(decision, PutBack) and decision.quarantine
        stalled = isinstance(decision, PutBack) and decision.charge == "stalls" and not stopped
        story.recovered = run.number if stalled else 0
        if isinstance(decision, PutBack) and decision.until_known and not stopped:
            self._unknown(story, job)
        self._put_back(job, decision, stopped=stopped)
        self._charged(job, decision, stopped=stopped)
        if cancelled or isinstance(decision, Finish):
            story.ends += 1
            self._require(story.ends == 1, "I2", f"{job.ref}: ended {story.ends} times")
        if by_reaper:
            self._accounts.recovery_checks.recovered(job, run, self._accounts.clock.uptime())
        self._accounts.note("settled", job.id, run.number, *_words(decision, stopped=stopped))
        return Counter((kind, job.ref, job.starts) for kind in events_of(decision, stopped=stopped))

    def _fell_silent(self, job: JobRecord, run: RunHistory, reason: str | None) -> None:
        """Check that a holder charges its own run only if the run is exclusive and its handler was silent."""
        limit = job.heartbeat_timeout if reason == "no_progress" else None if job.stall.renewed else job.stall.lease
        silent_for = self._accounts.clock.uptime() - run.gave_sign
        self._require(
            run.exclusive and limit is not None and silent_for >= limit / SECOND - TRIP,
            "I5",
            f"{job.ref}: run {run.number} was charged by its holder ({reason}), silent for {silent_for:.3f} s",
        )

    def _limited(
        self, story: JobHistory, run: RunHistory, decision: Finish | PutBack, *, by_reaper: bool, stopped: bool
    ) -> None:
        """Check that only every second consecutive put-back by failed workers is charged."""
        used = story.put_back_used
        released = isinstance(decision, PutBack) and decision.charge == "releases" and not stopped
        failed = run.owner in self._accounts.failed_workers
        where = f"{story.ref}: run {run.number} ended as {decision}, its free put-back {'' if used else 'not '}used"
        story.put_back_used = isinstance(decision, PutBack) and released and decision.put_back_used
        if released:
            newly = story.put_back_used and not used
            self._require(story.put_back_used >= used, "I18", f"{where}: forgotten without a charge")
            self._require(failed or not newly, "I18", f"{where}: counted, and its worker had not failed")
            if newly:
                self._accounts.counted.append((story.ref, run.fence))
            elif decision.reason == "worker_failed":
                self._accounts.uncounted.append((story.ref, run.fence))
        elif decision.charge == "stalls" and not by_reaper:
            self._require(used and failed, "I18", f"{where}: its holder charged it with a stall")
            self._accounts.counted.append((story.ref, run.fence))

    def _claimed(self, owner: Owner, lease: Lease, order: ClaimRequest | None) -> None:
        job = lease.job
        story = self._accounts.story(job.ref)
        fits = job.starts == 1 or order is None or knows(order.tasks, job.task, job.policy.version)
        self._require(fits, "I19", f"{job.ref}: run {job.starts} was given to a worker that does not know its task")
        self._require(story.run is None, "I5", f"{job.ref}: run {job.starts} began while {story.run} was open")
        self._require(story.ends == 0, "I3", f"{job.ref}: run {job.starts} began after its end")
        self._require(job.cancel_at is None, "I11", f"{job.ref}: run {job.starts} began after it was cancelled")
        self._require(job.owner == owner.id, "I5", f"{job.ref}: claimed by {owner.id}, but its owner is {job.owner}")
        self._accounts.raise_fence(story, job.fence)
        now, at = self._accounts.clock.uptime(), self._accounts.clock.now()
        self._require(job.expires_at is None or at < job.expires_at, "I10", f"{job.ref}: began {at} beyond its time")
        paused = self._accounts.setting("queue", job.queue).paused or self._accounts.setting("task", job.task).paused
        self._require(not paused, "I14", f"{job.ref}: claimed while its queue or its task is paused")
        self._require(
            job.lease_until == right_lease_end(job, at), "I16", f"{job.ref}: its lease is wrong: {shown(job)}"
        )
        self._accounts.runs += 1
        if story.recovered:
            self._accounts.again += 1
            self._accounts.announced += (job.ref, story.recovered) in self._accounts.stalled_runs
            story.recovered = 0
        story.starts += 1
        story.run = RunHistory(job.starts, job.fence, owner.id, now, now, now, now, now, holders=[owner.id])
        story.run.place = self._accounts.runs
        story.run.limits = {key.name: self._accounts.limits[job.queue, key.name] for key in job.keys}
        story.runs[job.fence, owner.id] = story.run
        self._accounts.calls.claimed(job)
        self._accounts.pacing.started(
            job, self._accounts.rates(job, queue=True), at, len(self._accounts.fault_log.steps)
        )
        self._accounts.note("claimed", job.id, job.starts, owner.name)

    def _unknown(self, story: JobHistory, job: JobRecord) -> None:
        """Check that at most one claim of a job is wasted, and that the job then waits where only some workers look."""
        story.unknown += 1
        self._require(story.unknown == 1, "I19", f"{job.ref}: {story.unknown} claims of it were wasted")
        self._accounts.pacing.put_back(job, self._accounts.rates(job, queue=True), self._accounts.clock.now())
        after = self._accounts.model.records.get(job.ref)
        place = unknown_place(job.task, job.policy.version)
        fine = after is None or after.state is not State.WAITING or after.parked_under == place
        self._require(fine, "I19", f"{job.ref}: put back as unknown, but not parked under {place}")

    def _charged(self, job: JobRecord, decision: Finish | PutBack, *, stopped: bool) -> None:
        """Check that a run was charged to the counter that its settlement names, and to no other."""
        after = self._accounts.model.records.get(job.ref)
        if after is None:
            return  # put back, and too old to start again
        for budget in ("failures", "stalls", "releases"):
            more = getattr(after, budget) - getattr(job, budget)
            expected = decision.charge == budget and not stopped
            self._require(more == expected, "I7", f"{job.ref}: {more} more {budget} after {decision}")

    def _put_back(self, job: JobRecord, decision: Finish | PutBack, *, stopped: bool) -> None:
        """Check that a job is in the place that its put-back sets, unless it has moved on already."""
        after = self._accounts.model.records.get(job.ref)
        if stopped or isinstance(decision, Finish) or after is None or after.state is State.ACTIVE:
            return
        if decision.after:
            due = self._accounts.clock.now() + decision.after
            self._require(after.run_at == due, "I14", f"{job.ref}: put back until {due}, due at {after.run_at}")
        else:
            # No further than the current front of the queue. The front may have been forgotten, or the clock set back.
            right = job.score if job.lifo else min(job.score, score_at(self._accounts.clock.now(), boost=job.boost))
            shared = self._accounts.sharing.counts(job.queue) and not job.lifo and after.score <= job.score
            fine = shared or after.score == right
            self._require(fine, "I14", f"{job.ref}: put back from {job.score} to the score {after.score}")


def _words(decision: Finish | PutBack, *, stopped: bool) -> tuple[str, ...]:
    if stopped:
        return ("cancelled",)
    match decision:
        case Finish(state=state, reason=reason):
            return str(state), reason or ""
        case PutBack(charge=charge, reason=reason):
            return "put back", charge, reason or ""
