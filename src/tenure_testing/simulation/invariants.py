"""The invariants of every simulated world, checked after each step of its storage (I1 to I19 of the protocol).

The checker does not rely on what the storage reports. It keeps its own account of each job from requests and answers,
and compares the records, the indexes and the event log with it. `soundness.py` checks single records. Separate modules
keep the accounts of calls (calls.py), ticks (ticking.py), rates (pacing.py), tenants (sharing.py) and jobs taken from
lost holders (recoveries.py).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, Literal, NoReturn, TypeVar

from tenure.clock import SECOND, Clock
from tenure.core.decision import Finish, PutBack
from tenure.core.events import (
    AnyEvent,
    JobCancelled,
    JobCollected,
    JobCompleted,
    JobDebounced,
    JobDeduplicated,
    JobDeleted,
    JobEnqueued,
    JobEvent,
    JobExpired,
    JobFailed,
    JobRedriven,
    JobReleased,
    JobRepaired,
    JobRetried,
    JobStalled,
    JobStopIgnored,
    JobThrottled,
    RunFenced,
)
from tenure.core.job import JobRecord, NewJob, Owner, RateKey, Ref, UniqueKey
from tenure.core.lane import Lane
from tenure.core.lease import Lease, longest_lease
from tenure.core.lifecycle import REDRIVABLE, TERMINAL, TRANSITIONS, State
from tenure.core.order import score_at
from tenure.core.rate import is_of_task
from tenure.core.retention import RetentionRules
from tenure.core.settlement import Settlement, handed_back
from tenure.core.transition import is_expired
from tenure.options import Timing
from tenure.storage.memory.model import Model
from tenure.storage.protocol import (
    PAUSED,
    RATE,
    RUNS_KEPT,
    UNKNOWN,
    WORKER_KEPT,
    CancelJob,
    ClaimRequest,
    DeleteJob,
    EnqueueResult,
    ExchangeResult,
    ReclaimResult,
    RedriveJob,
    RenewRequest,
    RenewResult,
    Revision,
    RevisionResult,
    Settings,
    StalledLease,
    SweepRequest,
    SweepResult,
    Target,
    knows,
    task_of_place,
    unknown_place,
)
from tenure_testing.simulation.call_checks import CallRecords
from tenure_testing.simulation.fairness_checks import FairnessChecks
from tenure_testing.simulation.fault_log import FaultLog
from tenure_testing.simulation.job_history import JobHistory, RunHistory, shown
from tenure_testing.simulation.rate_checks import RateChecks
from tenure_testing.simulation.record_checks import flaw_of_lease, may_be_forgotten, place_of, right_lease_end
from tenure_testing.simulation.recovery_checks import RecoveryChecks, SimulatedRecovery
from tenure_testing.simulation.tick_checks import TickChecks

T = TypeVar("T")

TRIP = 1.0
"""The largest difference in seconds between the travel times of a renewal and of a settlement of one run."""

READING = frozenset({"get", "find", "events", "survey"})
"""Verbs that change nothing and record no events."""

ON_CALL: dict[str, type[AnyEvent]] = {
    "enqueued": JobEnqueued,
    "deduplicated": JobDeduplicated,
    "debounced": JobDebounced,
    "collected": JobCollected,
    "throttled": JobThrottled,
}
"""The optional event that reports the fate of a call, by its name in the log."""

WISHED = tuple(
    name
    for name in NewJob.__struct_fields__
    if name in JobRecord.__struct_fields__ and name not in ("id", "payload", "run_at")
)
"""The fields that a job copies from its call.

Its payload and `run_at` may come from several calls and are checked apart.
"""

BY_ITSELF = frozenset({"enqueue", "plan", "exchange", "sweep", "revise"})
"""Verbs that may find a job that has waited too long."""

EventCounts = Counter[tuple[type[AnyEvent], Ref, int]]
"""How many events of a class were recorded for a run of a job."""


class Violation(AssertionError):
    """An invariant was violated."""

    @property
    def invariant(self) -> str:
        """The number of the violated invariant, or the class of an unexpected error."""
        found = re.match(r"\w+", str(self))
        return found[0] if found else "?"

    @property
    def crashed(self) -> bool:
        """True if the simulated code crashed without a violated invariant."""
        return self.__cause__ is not None and not isinstance(self.__cause__, Violation)


class InvariantChecker:
    """Sees every step of a storage in memory, and raises `Violation` at the first step that breaks an invariant."""

    def __init__(
        self,
        model: Model,
        clock: Clock,
        fault_log: FaultLog,
        timing: Timing,
        *,
        note: Callable[..., None],
        overruns: frozenset[str],
        died: Mapping[str, float],
        failed_workers: Set[str],
        slack: float,
    ) -> None:
        """Create a checker for one world.

        `overruns`: the tasks whose handlers outlive their limits. `died`: when each owner's process was killed.
        `failed_workers`: the owners whose workers failed by themselves. `slack`: the seconds that messages add to a
        bound.
        """
        self.stories: dict[Ref, JobHistory] = {}
        self.verdicts: Counter[str] = Counter()
        self.receipts: Counter[str] = Counter()
        self.stalls: list[str] = []
        self.runs = 0
        self.again = 0
        """Number of runs that began because the run before them had stalled."""

        self.announced = 0
        """Number of those runs whose stall was recorded as an event before they began."""

        self.counted: list[tuple[Ref, int]] = []
        """The runs that were put back, uncharged or as a stall, because their workers failed after they had begun."""

        self.uncounted: list[tuple[Ref, int]] = []
        """The runs that were put back because their workers failed before the runs had begun."""

        self.repaired = 0
        self.steps = 0
        self.calls = CallRecords(self._require)
        self.ticking = TickChecks(self._require)
        self.pacing = RateChecks(self._require)
        self.sharing = FairnessChecks(self._require)
        self._failed_workers = failed_workers
        self._model = model
        self._clock = clock
        self._weather = fault_log
        self._note = note
        self._recoveries = RecoveryChecks(self._require, fault_log, timing, overruns=overruns, died=died, slack=slack)
        self._cursor = 0
        self._stalled: set[tuple[Ref, int]] = set()
        self._settings: dict[Target, Settings] = {}
        self._limits: dict[tuple[str, str], int] = {}
        self._claims: dict[tuple[str, int], tuple[int, list[tuple[int, Ref, int]]]] = {}
        self._claims_at: dict[tuple[str, int], int] = {}
        """When each lane was last used. `_claims` has each lane's highest number and its unacknowledged claims."""

        self._recoverers: dict[str, str] = {}
        """The owner ids that recoveries use, each with the name of its supervisor."""

    @property
    def recoveries(self) -> list[SimulatedRecovery]:
        """The jobs that were taken from a lost holder and put back."""
        return self._recoveries.all

    def watched(self, verb: str, args: tuple[Any, ...], step: Callable[[], T], *, sent_ago: float = 0.0) -> T:
        """Run a step, and compare its effects with everything known before."""
        self.steps += 1
        before = dict(self._model.records)
        answer = step()
        records = self._model.records
        if verb in READING and before == records:
            return answer
        changed = [ref for ref, job in records.items() if before.get(ref) is not job] if before != records else []
        gone = [ref for ref in before if ref not in records]
        recorded = self._new_events()
        expected: EventCounts = Counter()
        match verb, args, answer:
            case "enqueue", (jobs,), _:
                expected = self._enqueued(dict(enumerate(jobs)), answer, before)  # type: ignore[arg-type]
            case "plan", (changes,), _:
                made = self.ticking.planned(changes, answer, before, recorded, self._clock.now())  # type: ignore[arg-type]
                created = [EnqueueResult("created", job.ref) for job in made.values()]
                expected = self._enqueued(made, created, before)
            case "exchange", (Owner() as owner, settlements, order), ExchangeResult():
                expected = self._exchanged(owner, settlements, order, answer, before)
            case "renew", (RenewRequest() as beat,), RenewResult():
                expected = self._renewed(beat, answer, before, changed, sent_ago)
            case "sweep", (SweepRequest() as bid,), SweepResult():
                self._swept(bid, answer, before, changed)
            case "reclaim", (str() as dead, Owner() as owner), ReclaimResult():
                self._reclaimed(dead, owner, answer, before)
            case "revise", (revisions,), _:
                expected = self._revised(revisions, answer, before)  # type: ignore[arg-type]
            case "tune", (Target() as target,), Settings():
                self._settings[target] = answer
            case _ if changed or gone:
                self._fail("I3", f"{verb} changed {[*changed, *gone]}, which it must not")
            case _:
                pass
        expected.update(self._passed(verb, before, changed, gone))
        self._events_are(recorded, expected, verb)
        if changed or gone:
            for ref in changed:
                was = before.get(ref)
                # A forgotten job has no past: an enqueue of its id creates a new job.
                recreated = was is not None and verb == "enqueue" and self._forgettable(was)
                self._moved(verb, None if recreated else was, records[ref])
            for ref in gone:
                self._require(self.stories[ref].deleted, "I8", f"{ref} has vanished, and no call deleted it")
            self._indexed(records)
            self.calls.hold(records, changed, gone, self._clock.now())
            self.sharing.stand(before, records, [*changed, *gone])
        return answer

    # ── each verb ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _enqueued(
        self, jobs: Mapping[int, NewJob], receipts: Sequence[EnqueueResult], before: Mapping[Ref, JobRecord]
    ) -> EventCounts:
        """Record the results of new jobs, by their places in the call.

        Return the events that must be recorded for them.
        """
        expected: EventCounts = Counter()
        there = dict(before)
        for (offset, job), receipt in zip(jobs.items(), receipts, strict=True):
            self.receipts[receipt.made] += 1
            named = self._model.records.get(receipt.ref)
            what = self.calls.answered(job, receipt, there, named, self._clock.now())
            if what in (self._setting("queue", job.queue).record or ()):
                subject = receipt.ref if what in ("debounced", "collected") else job.ref
                expected[ON_CALL[what], subject, 0] += 1
            if receipt.made in ("created", "replaced"):
                self._limits.update(((job.queue, key.name), key.limit) for key in job.keys)
                self._placed(job, named, offset)
            if receipt.made != "created":
                self._require(receipt.ref in self.stories, "I17", f"{receipt.ref} is called living and was never made")
                self._note(receipt.made, job.id, receipt.ref.id)
                continue
            known = self.stories.get(job.ref)
            # An enqueue that is repeated after the job was deleted or forgotten creates the job again.
            gone = known is None or known.deleted or self._forgettable(before[job.ref])
            self._require(gone, "I8", f"{job.ref} was made twice")
            self.ticking.made(job)
            # If the record was still there, the job continues its fences, so a late settlement of its last run is
            # recognized.
            accepted = known.accepted if known is not None and job.ref in before else []
            self.stories[job.ref] = JobHistory(job.ref, runs=known.runs if known is not None else {}, accepted=accepted)
            self._note("enqueued", job.id, job.task)
            if named is not None:
                there[job.ref] = named
        return expected

    def _placed(self, new: NewJob, job: JobRecord | None, offset: int) -> None:
        """Check that a new job equals its request, and has the right place in its queue."""
        if job is None:
            return
        other = [name for name in WISHED if getattr(job, name) != getattr(new, name)]
        self._require(not other, "I17", f"{job.ref} is not what was wished for in {other}")
        shared = new.fair_key is not None or self.sharing.counts(job.queue)
        if job.state is State.WAITING and shared and not new.lifo:
            return
        at = max(job.run_at, self._clock.now()) + offset
        right = score_at(at, boost=new.boost, lifo=new.lifo)
        self._require(job.score == right, "I14", f"{job.ref}: it came at {at}, and stands at {job.score}")

    def _exchanged(
        self,
        owner: Owner,
        settlements: Sequence[Settlement],
        order: ClaimRequest | None,
        answer: ExchangeResult,
        before: Mapping[Ref, JobRecord],
    ) -> EventCounts:
        expected: EventCounts = Counter()
        over: list[Ref] = []
        for asked, verdict in zip(settlements, answer.verdicts, strict=True):
            self._require((verdict.ref, verdict.fence) == (asked.ref, asked.fence), "I2", "verdicts out of order")
            self.verdicts[verdict.verdict] += 1
            job = before.get(asked.ref)
            holds = (
                job is not None
                and asked.ref not in over
                and (job.state, job.fence, job.owner) == (State.ACTIVE, asked.fence, owner.id)
            )
            match verdict.verdict:
                case "done":
                    self._require(holds, "I2", f"{asked.ref}: settled under {asked.fence} by {owner.id}: {shown(job)}")
                    over.append(asked.ref)
                    if job is not None:
                        expected.update(self._settled(job, asked))
                case "duplicate":
                    known = self.stories[asked.ref].accepted
                    self._require(asked.fence in known, "I2", f"{asked.ref}: {asked.fence} was never settled before")
                case "lost":
                    self._require(not holds, "I2", f"{asked.ref}: refused under {asked.fence}, which holds it")
                    applied = job is not None and asked.fence in self.stories[job.ref].accepted[-1:]
                    self._require(not applied, "I2", f"{asked.ref}: {asked.fence} settled it, and is called lost")
                    if job is not None:
                        expected[RunFenced, asked.ref, job.starts] += 1
                case "gone":
                    self._require(job is None, "I8", f"{asked.ref} is called gone: {shown(job)}")
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
        if answer.leases:
            self._ordered(answer.leases, order)
            # A job that expired or was parked may have released another job in front of those claimed before.
            if not any(
                _went_out_of_the_way(job) and before[ref] is not job for ref, job in self._model.records.items()
            ):
                self._in_order(answer.leases)
            self.sharing.claimed(answer.leases)
        if order is not None and len(answer.leases) < order.room and not answer.seen:
            self._none_left(order)
        return expected

    def _handed_back(
        self, owner: Owner, lane: Lane, before: Mapping[Ref, JobRecord], over: Sequence[Ref]
    ) -> EventCounts:
        """Record the put-back of a lane's unanswered claims after their calls were over (I19)."""
        expected: EventCounts = Counter()
        highest, runs = self._claims.get((owner.id, lane.id), (0, []))
        self._claims_at[owner.id, lane.id] = self._clock.now()
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
        story = self._story(job.ref)
        run, decision = story.run, asked.decision
        if run is None:
            self._fail("I5", f"{job.ref}: settled under {asked.fence} while no run of it was open")
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
            self._recoveries.recovered(job, run, self._clock.uptime())
        self._note("settled", job.id, run.number, *_words(decision, stopped=stopped))
        return Counter((kind, job.ref, job.starts) for kind in _announced(decision, stopped=stopped))

    def _fell_silent(self, job: JobRecord, run: RunHistory, reason: str | None) -> None:
        """Check that a holder charges its own run only if the run is exclusive and its handler was silent."""
        limit = job.heartbeat_timeout if reason == "no_progress" else None if job.stall.renewed else job.stall.lease
        silent_for = self._clock.uptime() - run.gave_sign
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
        failed = run.owner in self._failed_workers
        where = f"{story.ref}: run {run.number} ended as {decision}, its free put-back {'' if used else 'not '}used"
        story.put_back_used = isinstance(decision, PutBack) and released and decision.put_back_used
        if released:
            newly = story.put_back_used and not used
            self._require(story.put_back_used >= used, "I18", f"{where}: forgotten without a charge")
            self._require(failed or not newly, "I18", f"{where}: counted, and its worker had not failed")
            if newly:
                self.counted.append((story.ref, run.fence))
            elif decision.reason == "worker_failed":
                self.uncounted.append((story.ref, run.fence))
        elif decision.charge == "stalls" and not by_reaper:
            self._require(used and failed, "I18", f"{where}: its holder charged it with a stall")
            self.counted.append((story.ref, run.fence))

    def _claimed(self, owner: Owner, lease: Lease, order: ClaimRequest | None) -> None:
        job = lease.job
        story = self._story(job.ref)
        fits = job.starts == 1 or order is None or knows(order.tasks, job.task, job.policy.version)
        self._require(fits, "I19", f"{job.ref}: run {job.starts} was given to a worker that does not know its task")
        self._require(story.run is None, "I5", f"{job.ref}: run {job.starts} began while {story.run} was open")
        self._require(story.ends == 0, "I3", f"{job.ref}: run {job.starts} began after its end")
        self._require(job.cancel_at is None, "I11", f"{job.ref}: run {job.starts} began after it was cancelled")
        self._require(job.owner == owner.id, "I5", f"{job.ref}: claimed by {owner.id}, given to {job.owner}")
        self._rises(story, job.fence)
        now, at = self._clock.uptime(), self._clock.now()
        self._require(job.expires_at is None or at < job.expires_at, "I10", f"{job.ref}: began {at} beyond its time")
        paused = self._setting("queue", job.queue).paused or self._setting("task", job.task).paused
        self._require(not paused, "I14", f"{job.ref}: claimed while its queue or its task is paused")
        self._require(
            job.lease_until == right_lease_end(job, at), "I16", f"{job.ref}: its lease is not right: {shown(job)}"
        )
        self.runs += 1
        if story.recovered:
            self.again += 1
            self.announced += (job.ref, story.recovered) in self._stalled
            story.recovered = 0
        story.starts += 1
        story.run = RunHistory(job.starts, job.fence, owner.id, now, now, now, now, holders=[owner.id])
        story.runs[job.fence] = story.run
        self.calls.claimed(job)
        self.pacing.started(job, self._rates(job, queue=True), at, len(self._weather.steps))
        self._note("claimed", job.id, job.starts, owner.name)

    def _unknown(self, story: JobHistory, job: JobRecord) -> None:
        """Check that at most one claim of a job is wasted, and that the job then waits where only some workers look."""
        story.unknown += 1
        self._require(story.unknown == 1, "I19", f"{job.ref}: {story.unknown} claims of it were wasted")
        self.pacing.put_back(job, self._rates(job, queue=True), self._clock.now())
        after = self._model.records.get(job.ref)
        place = unknown_place(job.task, job.policy.version)
        fine = after is None or after.state is not State.WAITING or after.parked_under == place
        self._require(fine, "I19", f"{job.ref}: put back as unknown, and it is not parked under {place}")

    def _charged(self, job: JobRecord, decision: Finish | PutBack, *, stopped: bool) -> None:
        """Check that a run was charged to the counter that its settlement names, and to no other."""
        after = self._model.records.get(job.ref)
        if after is None:
            return  # put back, and too old to start again
        for budget in ("failures", "stalls", "releases"):
            more = getattr(after, budget) - getattr(job, budget)
            expected = decision.charge == budget and not stopped
            self._require(more == expected, "I7", f"{job.ref}: {more} more {budget} by {decision}")

    def _put_back(self, job: JobRecord, decision: Finish | PutBack, *, stopped: bool) -> None:
        """Check that a job is in the place that its put-back sets, unless it has moved on already."""
        after = self._model.records.get(job.ref)
        if stopped or isinstance(decision, Finish) or after is None or after.state is State.ACTIVE:
            return
        if decision.after:
            due = self._clock.now() + decision.after
            self._require(after.run_at == due, "I14", f"{job.ref}: put back until {due}, due at {after.run_at}")
        else:
            # No further than the current front of the queue. The front may have been forgotten, or the clock set back.
            right = job.score if job.lifo else min(job.score, score_at(self._clock.now(), boost=job.boost))
            shared = self.sharing.counts(job.queue) and not job.lifo and after.score <= job.score
            fine = shared or after.score == right
            self._require(fine, "I14", f"{job.ref}: put back from {job.score} to {after.score} in the line")

    def _ordered(self, leases: Sequence[Lease], order: ClaimRequest | None) -> None:
        """Check that a claim gives no more jobs than requested, and exceeds the limit of no key."""
        fits = order is not None and len(leases) <= order.room
        self._require(fits, "I14", f"{len(leases)} leases were given for {order}")
        keys = {(lease.job.queue, key.name) for lease in leases for key in lease.job.keys}
        active = Counter(
            (job.queue, key.name)
            for job in (self._model.records.values() if keys else ())
            if job.state is State.ACTIVE
            for key in job.keys
        )
        for key in keys:
            self._require(active[key] <= self._limits[key], "I6", f"{key} is held {active[key]} times")

    def _in_order(self, leases: Sequence[Lease]) -> None:
        last: dict[str, tuple[int, str]] = {}
        for lease in leases:
            place = (lease.job.score, lease.job.id)
            self._require(last.get(lease.job.queue, place) <= place, "I14", f"{lease.ref} was claimed out of order")
            last[lease.job.queue] = place
        for job in self._model.records.values():
            if job.state is State.WAITING and job.parked_under is None and job.queue in last:
                left = (job.score, job.id)
                self._require(left > last[job.queue], "I14", f"{job.ref} was left behind by one that stood behind it")

    def _none_left(self, order: ClaimRequest) -> None:
        """Check that the queues hold no job that the claim could have returned."""
        now = self._clock.now()
        for job in self._model.records.values():
            if job.queue not in order.queues or job.state is not State.WAITING:
                continue
            under = job.parked_under
            if under is not None and not (under.startswith(UNKNOWN) and knows(order.tasks, *task_of_place(under))):
                continue
            held = bool(self._setting("queue", job.queue).paused) or self._closed(job.queue, now)
            self._require(held, "I14", f"{job.ref} was left in line, and there was room")

    def _renewed(
        self,
        beat: RenewRequest,
        answer: RenewResult,
        before: Mapping[Ref, JobRecord],
        changed: Sequence[Ref],
        sent_ago: float,
    ) -> EventCounts:
        now = self._clock.uptime()
        lost = {(ref, fence) for ref, fence in answer.lost}
        exclusive = {asked.ref: asked.exclusive for asked in beat.renewals if asked.extend}
        for asked in beat.renewals:
            job = before.get(asked.ref)
            holds = job is not None and (job.state, job.fence, job.owner) == (
                State.ACTIVE,
                asked.fence,
                beat.owner.id,
            )
            self._require(
                holds != ((asked.ref, asked.fence) in lost),
                "I5",
                f"{asked.ref}: {beat.owner.id} beat under {asked.fence}, lost is {not holds} in truth: {shown(job)}",
            )
            story = self._story(asked.ref) if holds else None
            if story is not None and story.run is not None:
                story.run.heard, story.run.exclusive = now, story.run.exclusive or asked.exclusive
                if asked.sign and asked.silent is None:
                    story.run.signed = now
                elif asked.silent is not None:
                    # The sign is older than the renewal that carries it, and the holder measures from the sign.
                    story.run.signed = now - asked.silent / SECOND
                    story.run.gave_sign = max(story.run.gave_sign, story.run.signed - sent_ago)
        expected: EventCounts = Counter()
        for lane in beat.lanes:
            expected.update(self._handed_back(beat.owner, lane, before, []))
        freed = {ref for _, ref, _ in expected}
        for ref in changed:
            was, job = before[ref], self._model.records[ref]
            # A job that was put back may have released another job that waited for its slot.
            if ref in freed or (expected and was.state is State.WAITING and was.parked_under is not None):
                continue
            kept = (was.state, was.fence, was.owner, was.starts) == (job.state, job.fence, job.owner, job.starts)
            self._require(kept and job.owner == beat.owner.id, "I5", f"{ref}: moved by a beat of {beat.owner.id}")
            flaw = flaw_of_lease(was, job, self._clock.now(), exclusive=exclusive.get(ref, False))
            self._require(not flaw, "I16", f"{ref}: renewed, and {flaw}: {shown(job)}")
        return expected

    def _swept(
        self, bid: SweepRequest, answer: SweepResult, before: Mapping[Ref, JobRecord], changed: Sequence[Ref]
    ) -> None:
        now = self._clock.now()
        for stalled in answer.stalled:
            was = before[stalled.lease.ref]
            over = was.suspect_until is not None and was.suspect_until <= now
            self._require(over, "I5", f"{was.ref}: reaped before its grace was over: {shown(was)}")
            self._taken(bid.owner, stalled, was)
        taken = [stalled.lease.ref for stalled in answer.stalled]
        for ref in changed:
            was, job = before[ref], self._model.records[ref]
            if ref in taken:
                continue
            match was.state, job.state:
                case State.ACTIVE, State.ACTIVE:
                    fine = (was.fence, was.owner) == (job.fence, job.owner)
                case State.FAILED, State.WAITING:
                    fine = was.redrive_at is not None and was.redrive_at <= now
                case State.FAILED, State.FAILED:
                    # The job's rule has given up, because a later job with its key exists.
                    fine = was.redrive_at is not None and was.redrive_at <= now and isinstance(was.merge, UniqueKey)
                case State.DELAYED | State.WAITING, State.WAITING | State.EXPIRED:
                    fine = True
                case _:
                    fine = False
            self._require(fine, "I3", f"{ref}: swept from {shown(was)} to {shown(job)}")
            if job.state is State.ACTIVE:
                self._suspected(bid, was, job, now)
        if answer.retry_in is None:
            # If the clock jumps ahead, a sweep forgets the lane numbers of live workers.
            for key in [key for key, at in self._claims_at.items() if at <= now - WORKER_KEPT]:
                del self._claims_at[key], self._claims[key]
            self.calls.swept(now)
            self.pacing.swept(now)
            self.ticking.swept(answer.due, now)
        if answer.retry_in is None and not answer.more:
            self._all_swept(before, now, bid.grace)

    def _suspected(self, bid: SweepRequest, was: JobRecord, job: JobRecord, now: int) -> None:
        """Check that only expired or overlong leases are suspected, and that each suspect gets its grace."""
        longest = longest_lease(job.stall)
        out = was.lease_until is not None and not now < was.lease_until <= now + longest
        again = was.suspect_until is not None and was.suspect_until > now + max(job.stall.lease // 2, bid.grace)
        self._require(out or again, "I5", f"{job.ref}: suspected before its lease was out: {shown(was)}")
        least = min(bid.grace, job.stall.lease // 2)
        enough = job.suspect_until is not None and job.suspect_until >= now + least
        self._require(enough, "I5", f"{job.ref}: suspected without a grace: {shown(job)}")

    def _all_swept(self, before: Mapping[Ref, JobRecord], now: int, grace: int) -> None:
        """Check that a complete sweep of the leader left nothing that was due."""
        for ref, job in self._model.records.items():
            number, flaw = self._left_over(before[ref], job, now, grace)
            if flaw:
                self._fail(number, f"{ref}: {flaw} at {now}: {shown(job)}")

    def _left_over(self, was: JobRecord, job: JobRecord, now: int, grace: int) -> tuple[str, str]:
        """Return the invariant and what a complete sweep left undone for a job, or an empty text."""
        number, flaw = "I16", ""
        match job.state:
            case State.ACTIVE if job.suspect_until is None:
                if not now < (job.lease_until or 0) <= now + longest_lease(job.stall):
                    flaw = f"its lease ends at {job.lease_until}, and it is not suspected"
            case State.ACTIVE:
                if was.suspect_until is not None and was.suspect_until <= now:
                    flaw = "its grace was over, and it was not reclaimed"
                elif job.suspect_until is not None and job.suspect_until > now + max(job.stall.lease // 2, grace):
                    flaw = "its grace ends further ahead than it is long"
            case State.WAITING if job.parked_under is not None and self._has_room(job):
                flaw = f"parked under {job.parked_under}, with room"
            case State.WAITING | State.DELAYED if is_expired(job, now):
                number, flaw = "I10", f"not expired, and its time was over at {job.expires_at}"
            case State.DELAYED if job.run_at <= now:
                flaw = f"due since {job.run_at}, and not promoted"
            case State.FAILED if job.redrive_at is not None and job.redrive_at <= now:
                flaw = f"its rule was to redrive it at {job.redrive_at}"
            case _ if self._forgettable(job):
                number, flaw = "I8", "kept for longer than it must be"
            case _:
                pass
        return number, flaw

    def _has_room(self, job: JobRecord) -> bool:
        """Return True if a parked job could be ready: it has a free slot, and no ready job may take the slot."""
        name = job.parked_under or ""
        if name == PAUSED + job.task:
            return not self._setting("task", job.task).paused
        if name.startswith(UNKNOWN):
            return False
        if name.startswith(RATE):
            now = self._clock.now()
            waits = self.pacing.kept_waiting(job, self._rates(job), self._model.records, now)
            # A job's own rate releases it only once the queue's rate allows a start.
            return waits and not self._closed(job.queue, now)
        active = 0
        for other in self._model.records.values():
            if other.queue != job.queue or name not in [key.name for key in other.keys]:
                continue
            if other.state is State.WAITING and other.parked_under is None:
                return False
            active += other.state is State.ACTIVE
        return active < self._limits[job.queue, name]

    def _reclaimed(self, dead: str, owner: Owner, answer: ReclaimResult, before: Mapping[Ref, JobRecord]) -> None:
        self._recoverers[owner.id] = owner.name
        for stalled in answer.stalled:
            was = before[stalled.lease.ref]
            self._require(was.owner == dead, "I5", f"{was.ref}: taken for the death of {dead}: {shown(was)}")
            mine = self._recoverers.get(dead, owner.name) == owner.name
            self._require(mine, "I5", f"{was.ref}: taken from {dead}, a name of another supervisor's")
            self._taken(owner, stalled, was)

    def _taken(self, owner: Owner, stalled: StalledLease, was: JobRecord) -> None:
        job = stalled.lease.job
        story = self._story(job.ref)
        run = story.run
        if run is None or was.state is not State.ACTIVE:
            self._fail("I3", f"{job.ref}: reaped while no run of it was open: {shown(was)}")
        self._rises(story, job.fence)
        self._require(job.owner == owner.id, "I5", f"{job.ref}: reaped by {owner.id}, given to {job.owner}")
        self._require(was.starts == job.starts, "I7", f"{job.ref}: a reclaim counted a start")
        lost_by = next(one for one in reversed(run.holders) if one not in self._recoverers)
        self._recoveries.excused(was, run, stalled.reason, self._clock.uptime(), lost_by=lost_by)
        run.taken = job.fence
        limit = was.run_until is not None and was.run_until <= self._clock.now()
        run.reason = run.reason or ("overrun" if limit else stalled.reason)
        run.holders.append(owner.id)
        if len(run.holders) > 2:
            # The reaper was lost too. The bound for that case differs.
            run.reason = "reaper lost"
        self._note("reaped", job.id, run.number, stalled.reason)

    def _revised(
        self, revisions: Sequence[Revision], answers: Sequence[RevisionResult], before: Mapping[Ref, JobRecord]
    ) -> EventCounts:
        expected: EventCounts = Counter()
        expired = {ref for ref, job in self._model.records.items() if job.state is State.EXPIRED}
        unfinished = {ref for ref, job in before.items() if job.state not in TERMINAL} - expired
        for revision, answer in zip(revisions, answers, strict=True):
            was, job = before.get(revision.ref), self._model.records.get(revision.ref)
            if was is None or answer.verdict in ("refused", "gone"):
                self._require(was is job, "I3", f"{revision.ref}: changed by a refused {type(revision).__name__}")
                if was is not None and isinstance(revision, RedriveJob) and was.state in REDRIVABLE:
                    self.calls.refused(was, answer, self._model.records)
                continue
            story = self._story(revision.ref)
            self._note(type(revision).__name__.lower(), revision.ref.id, answer.verdict)
            match revision:
                case CancelJob() if answer.verdict == "asked":
                    asked = job is not None and job.state is State.ACTIVE and job.cancel_at is not None
                    self._require(asked and was.state is State.ACTIVE, "I11", f"{was.ref}: asked to stop: {shown(was)}")
                case CancelJob():
                    fine = job is not None and job.state is State.CANCELLED
                    self._require(fine and was.state in (State.WAITING, State.DELAYED), "I11", shown(was))
                    story.ends += 1
                    unfinished.discard(was.ref)
                    expected[JobCancelled, was.ref, was.starts] += 1
                case RedriveJob():
                    self._require(was.state in REDRIVABLE, "I3", f"{was.ref}: redriven: {shown(was)}")
                    self._redriven(was, unfinished)
                    expected[JobRedriven, was.ref, was.starts] += 1
                case DeleteJob():
                    self._require(was.state is not State.ACTIVE, "I3", f"{was.ref}: deleted: {shown(was)}")
                    story.deleted = True
                    self.calls.deleted(was)
                    unfinished.discard(was.ref)
                    expected[JobDeleted, was.ref, was.starts] += 1
                case _:
                    pass
        return expected

    def _redriven(self, was: JobRecord, unfinished: set[Ref]) -> None:
        """Record that a job was redriven. `unfinished`: the jobs that are not over at that moment."""
        story = self._story(was.ref)
        story.ends = story.starts = story.cancels = 0
        story.quarantined = story.put_back_used = False
        self.calls.redriven(was.ref)
        for key in was.keys:
            # A key is forgotten when no unfinished job names it. Its limit then comes from the next job that names it.
            others = (self._model.records[ref] for ref in unfinished if ref.queue == was.queue)
            if not any(key.name == other.name for job in others for other in job.keys):
                self._limits[was.queue, key.name] = key.limit
        unfinished.add(was.ref)

    def _passed(
        self, verb: str, before: Mapping[Ref, JobRecord], changed: Sequence[Ref], gone: Sequence[Ref]
    ) -> EventCounts:
        """Record the changes that time alone caused in this step: expired, forgotten, and redriven by a rule."""
        expected: EventCounts = Counter()
        ruled: list[JobRecord] = []
        now = self._clock.now()
        for ref in changed:
            was, job = before.get(ref), self._model.records[ref]
            if was is None or verb not in BY_ITSELF:
                continue
            if job.state is State.EXPIRED and was.state is not State.EXPIRED:
                self._require(is_expired(job, now), "I10", f"{ref}: expired before {job.expires_at}, at {now}")
                self._story(ref).ends += 1
                expected[JobExpired, ref, job.starts] += 1
            elif verb in ("exchange", "sweep") and (was.state, job.state) == (State.FAILED, State.WAITING):
                ruled.append(was)
                expected[JobRedriven, ref, was.starts] += 1
        for ref in gone:
            was, story = before[ref], self._story(ref)
            if story.deleted:
                continue
            if verb in BY_ITSELF and was.state not in TERMINAL and was.policy.on_expire == "discard":
                self._require(is_expired(was, now), "I10", f"{ref}: discarded before {was.expires_at}, at {now}")
                story.deleted = True
                expected[JobExpired, ref, was.starts] += 1
            elif verb in ("sweep", "enqueue", "plan") and self._forgettable(was):
                story.deleted = True
        if ruled:
            over = {one.ref for one in ruled}
            unfinished = {
                ref for ref, job in self._model.records.items() if job.state not in TERMINAL and ref not in over
            }
            for was in sorted(ruled, key=lambda one: (one.redrive_at or 0, one.ref)):
                self._redriven(was, unfinished)
        return expected

    # ── checks after every step ───────────────────────────────────────────────────────────────────────────────────

    def _moved(self, verb: str, was: JobRecord | None, job: JobRecord) -> None:
        story = self._story(job.ref)
        before = was.state if was is not None else None
        if was is not None and was.state in TERMINAL:
            # The sweep checks compare these changes with their rules. A completed job may be kept for longer.
            self._require(
                verb in ("revise", "sweep", "enqueue"), "I3", f"{job.ref}: left {was.state} by {verb} for {job.state}"
            )
        # In one exchange a job may be put back and claimed again, or become due and be claimed.
        direct = (before, job.state) in TRANSITIONS or verb == "exchange"
        self._require(direct or before == job.state, "I3", f"{job.ref}: went from {before} to {job.state} by {verb}")
        if was is not None and was.state is State.DELAYED and job.state in (State.WAITING, State.ACTIVE):
            due = job.run_at if verb == "enqueue" else was.run_at
            early = verb != "revise" and due > self._clock.now()
            self._require(not early, "I14", f"{job.ref}: due at {due}, and {job.state} by {verb} before that")
            moved = job.lifo and verb not in ("revise", "enqueue") and job.score != was.score
            self._require(not moved, "I14", f"{job.ref}: newest first at {was.score}, and promoted to {job.score}")
        spent = job.failures + job.stalls + job.releases + story.cancels
        ended_well = job.state is State.COMPLETED
        self._require(
            story.starts == spent + (job.state is State.ACTIVE) + ended_well,
            "I7",
            f"{job.ref}: {story.starts} starts since its redrive, {spent} spent: {shown(job)}",
        )
        self._require(job.stalls <= job.stall.max_stalls + 1, "I7", f"{job.ref}: stalled {job.stalls} times")
        self._require(job.failures <= job.policy.retry.max_attempts, "I7", f"{job.ref}: failed {job.failures} times")
        rule = job.policy.redrive
        self._require(
            job.redrives <= (rule.times if rule is not None else 0), "I7", f"{job.ref}: {job.redrives} redrives"
        )
        marked = story.quarantined and job.state not in TERMINAL
        self._require(job.quarantined == marked, "I7", f"{job.ref}: in quarantine, or not: {shown(job)}")
        used = story.put_back_used and job.state not in TERMINAL
        self._require(job.put_back_used == used, "I18", f"{job.ref}: its free put-back is used, or not: {shown(job)}")
        self._require((job.state is State.ACTIVE) == (story.run is not None), "I5", f"{job.ref}: {shown(job)}")
        self._require((job.state in TERMINAL) == (story.ends == 1), "I2", f"{job.ref}: {story.ends} ends: {shown(job)}")
        if story.run is not None:
            fence = story.run.taken or story.run.fence
            self._require(
                (job.fence, job.owner) == (fence, story.run.holders[-1]), "I4", f"{job.ref}: {fence} in truth"
            )
        self._kept(job)

    def _kept(self, job: JobRecord) -> None:
        """Check that each run has its row, and that only the current run's row is open."""
        (detail,) = self._model.get([job.ref])
        if detail is None:
            self._require(self._forgettable(job), "I8", f"{job.ref}: it is there, and cannot be read")
            return
        runs = detail.runs
        counted = len(runs) == min(job.starts, RUNS_KEPT) and (not runs or runs[-1].number == job.starts)
        self._require(counted, "I7", f"{job.ref}: {len(runs)} rows for {job.starts} starts")
        traced = [run.number for run in runs if run.end is not None and run.trace is not None]
        self._require(not traced, "I7", f"{job.ref}: the traces of {traced} are kept, which have ended")
        unended = [run.number for run in runs if run.end is None]
        expected = [job.starts] if job.state is State.ACTIVE else []
        self._require(unended == expected, "I7", f"{job.ref}: the rows of {unended} are open: {shown(job)}")

    def _indexed(self, records: Mapping[Ref, JobRecord]) -> None:
        seen: dict[Ref, tuple[str, int]] = {}
        for name, at, ref in self._model.indexed():
            if ref in seen:
                self._fail("I1", f"{ref} stands in {seen[ref]} and in {name}")
            seen[ref] = name, at
        for ref, job in records.items():
            right = place_of(job)
            if seen.pop(ref, None) != right:
                self._fail("I1", f"{ref}: not at {right}")
        if seen:
            self._fail("I1", f"indexed without a record: {list(seen)}")

    def _new_events(self) -> list[AnyEvent]:
        page = self._model.events(str(self._cursor), 10_000, None)
        for event in page.events:
            self._cursor += 1
            if isinstance(event, JobStalled):
                self.stalls.append(event.cursor)
                self._stalled.add((Ref(event.queue, event.id), event.run))
            self.repaired += isinstance(event, JobRepaired)
            self._require(event.cursor == str(self._cursor), "I15", f"after event {self._cursor - 1}: {event.cursor}")
        return list(page.events)

    def _events_are(self, recorded: Sequence[AnyEvent], expected: EventCounts, verb: str) -> None:
        if not recorded and not expected:
            return
        # The storage may or may not record a refused renewal, because the renewal may cross its settlement. Only a
        # worker knows which of its handlers ignore a stop.
        heard: EventCounts = Counter(
            (type(event), Ref(event.queue, event.id), event.run)
            for event in recorded
            if isinstance(event, JobEvent) and not (verb == "renew" and isinstance(event, RunFenced | JobStopIgnored))
        )
        self._require(
            heard == expected,
            "I15",
            f"{verb} recorded {_listed(heard - expected)}, kept back {_listed(expected - heard)}",
        )

    def _rises(self, story: JobHistory, fence: int) -> None:
        self._require(fence > story.fence, "I4", f"{story.ref}: fence {fence} was given after {story.fence}")
        story.fence = fence

    # ── helpers ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _setting(self, kind: Literal["queue", "task"], name: str) -> Settings:
        return self._settings.get(Target(kind, name), Settings())

    def _closed(self, queue: str, now: int) -> bool:
        """Return True if the queue's own rate allows no start now."""
        rate = self._setting("queue", queue).rate
        return rate is not None and not self.pacing.open(queue, rate, now)

    def _rates(self, job: JobRecord, *, queue: bool = False) -> list[RateKey]:
        """Return the rates that a start of the job uses, including its queue's own rate if `queue` is set."""
        task_rate = self._setting("task", job.task).rate
        rates = [rate for rate in job.rates if task_rate is None or not is_of_task(rate.name, job.task)]
        if task_rate is not None:
            rates.append(task_rate)
        own = self._setting("queue", job.queue).rate
        if queue and own is not None:
            rates.append(own)
        return [rate for rate in rates if rate.interval]

    def _forgettable(self, job: JobRecord) -> bool:
        kept = self._setting("queue", job.queue).retention or RetentionRules()
        return job.state in TERMINAL and may_be_forgotten(job, kept.of(job.state), self._clock.now())

    def _story(self, ref: Ref) -> JobHistory:
        if ref not in self.stories:
            self._fail("I17", f"{ref} was never enqueued")
        return self.stories[ref]

    def _require(self, fine: bool, number: str, message: str) -> None:
        if not fine:
            self._fail(number, message)

    def _fail(self, number: str, message: str) -> NoReturn:
        raise Violation(f"{number} at {self._clock.uptime():.3f} s: {message}")


def _announced(decision: Finish | PutBack, *, stopped: bool) -> Iterator[type[AnyEvent]]:
    """Yield each event that must be recorded for a settlement."""
    if stopped:
        yield JobCancelled
        return
    if decision.charge == "stalls":
        yield JobStalled
    match decision:
        case Finish(state=State.COMPLETED):
            yield JobCompleted
        case Finish(state=State.CANCELLED):
            yield JobCancelled
        case Finish():
            yield JobFailed
        case PutBack(charge="failures"):
            yield JobRetried
        case PutBack(charge="releases"):
            yield JobReleased
        case PutBack():
            pass


def _went_out_of_the_way(job: JobRecord) -> bool:
    """Return True if a job has expired, or is parked and has given up its reservation of a rate."""
    return job.state is State.EXPIRED or (job.parked_under is not None and bool(job.rates))


def _words(decision: Finish | PutBack, *, stopped: bool) -> tuple[str, ...]:
    if stopped:
        return ("cancelled",)
    match decision:
        case Finish(state=state, reason=reason):
            return str(state), reason or ""
        case PutBack(charge=charge, reason=reason):
            return "put back", charge, reason or ""


def _listed(counts: EventCounts) -> list[tuple[str, str, int]]:
    return [(kind.__name__, ref.id, run) for kind, ref, run in counts.elements()]
