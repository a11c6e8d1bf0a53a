"""Checks jobs that wait after each step (F1 to F15): their states follow from what has arrived, and ends are passed on.

The account uses the records, the inboxes and the outbox. It also knows which incarnation of a job each token was for: a
job that was deleted and enqueued again has an inbox of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tenure.core.events import AnyEvent, JobCancelled, JobCompleted, JobEvent, JobExpired, JobFailed
from tenure.core.job import JobRecord, Ref
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.steps import forgotten_by_redrive
from tenure.core.waiting import Broken, Dependent, Inbox, JobKind, Links, Met, Open, Skipped, StepRecord, Wait, evaluate
from tenure.storage.memory.model import Model

Require = Callable[[bool, str, str], None]

DEPENDENCY = "dependency"

END_EVENTS: dict[State, type[JobEvent]] = {
    State.COMPLETED: JobCompleted,
    State.FAILED: JobFailed,
    State.CANCELLED: JobCancelled,
    State.EXPIRED: JobExpired,
}


@dataclass(frozen=True)
class _End:
    """An end whose dependents must be notified, and the incarnation of each at that time."""

    dependents: Sequence[Dependent]
    completed: bool
    incarnations: Mapping[Ref, object]


class FlowChecks:
    """The account of the jobs of one world that wait, or that others wait for."""

    def __init__(self, require: Require, model: Model, incarnation: Callable[[Ref], object]) -> None:
        self._require = require
        self._model = model
        self._incarnation = incarnation
        self._ranks: dict[Ref, tuple[object, dict[tuple[str, str], int]]] = {}
        self._steps: dict[Ref, tuple[object, tuple[StepRecord, ...]]] = {}
        self._owed: dict[Ref, _End] = {}
        self._forced: set[Ref] = set()
        """Jobs that an operator has redriven although they were skipped, or although what they need is gone."""
        self._gone: set[Ref] = set()
        """Jobs that were deleted. A handler that runs again may enqueue such a child again."""
        self.woken = 0
        self.suspended = 0
        self.resumed = 0

    def redriven(self, was: JobRecord, now: int) -> None:
        """Note that an operator has redriven a job: it may run although its wait is broken, and forgets failures."""
        self.forgets(was.ref)
        wait = wait_of(was)
        if wait is not None and isinstance(evaluate(wait, self._inbox(was.ref), now), Broken | Skipped):
            self._forced.add(was.ref)

    def forgets(self, ref: Ref) -> None:
        """Note that a job is redriven, by an operator or a rule: its recorded failures are forgotten."""
        incarnation, steps = self._steps.get(ref, (None, ()))
        forgotten = forgotten_by_redrive(steps)
        self._steps[ref] = incarnation, tuple(step for step in steps if step.name not in forgotten)

    def started(self, job: JobRecord, now: int) -> None:
        """Check a run that begins: its wait is over, and it has a handler."""
        wait = wait_of(job)
        self._require(kind_of(job) is JobKind.JOB, "F7", f"{job.ref} has no handler, and was claimed")
        if wait is None:
            return
        verdict = evaluate(wait, self._inbox(job.ref), now)
        # A run that comes after an earlier one of the stretch needs no new verdict: a wait that time has met may be
        # open again when the clock is set back.
        fine = isinstance(verdict, Met) or job.ref in self._forced or job.starts > 1
        # The job whose failure it reacts to may have completed since this one was awakened.
        fine = fine or (isinstance(verdict, Skipped) and verdict.need.mode == "unless")
        timed = isinstance(verdict, Open) and any(need.until is not None for need in wait.needs)
        self._require(fine or timed, "F2", f"{job.ref} starts, and its wait is {verdict}")

    def stand(
        self,
        before: Mapping[Ref, JobRecord],
        changed: Sequence[Ref],
        gone: Sequence[Ref],
        recorded: Sequence[AnyEvent],
        now: int,
    ) -> None:
        """Check all jobs that wait after a step."""
        records = self._model.records
        for ref in changed:
            if records[ref].links is not None:
                self._moved(before.get(ref), records[ref], recorded)
        for ref in gone:
            was = before[ref]
            self._gone.add(ref)
            if was.links is not None and was.state not in TERMINAL:
                self._owe(ref, was.links.dependents, completed=False)
        for job in records.values():
            if job.links is not None:
                self._check(job, job.links, now)
        self._delivered()

    def rest(self) -> None:
        """Check that nothing is left to do when all jobs have ended."""
        self._require(not self._model.outbox, "F4", f"an entry is left: {self._model.outbox}")
        self._require(not self._owed, "F4", f"dependents were not notified of the ends of {list(self._owed)}")

    def _moved(self, was: JobRecord | None, job: JobRecord, recorded: Sequence[AnyEvent]) -> None:
        links = job.links or Links()
        before = None if was is None else was.state
        self._outcomes_stay(job.ref)
        self.suspended += job.state is State.SUSPENDED and before is State.ACTIVE
        self.resumed += before is State.FAILED and was is not None and was.reason == DEPENDENCY
        if job.state in TERMINAL and before not in TERMINAL:
            self._owe(job.ref, links.dependents, completed=job.state is State.COMPLETED)
            kind = END_EVENTS[job.state]
            found = any(isinstance(event, kind) and Ref(event.queue, event.id) == job.ref for event in recorded)
            self._require(found, "F15", f"{job.ref} is {job.state}, and no {kind.__name__} was recorded")
            if links.kind is not JobKind.JOB and job.state is State.COMPLETED:
                self._completed(job)
        elif job.state not in TERMINAL:
            # It was redriven, and ends again.
            self._owed.pop(job.ref, None)
        if before is State.SUSPENDED and job.state is State.WAITING:
            self.woken += 1
            self._require(job.failures == job.stalls == 0, "F13", f"{job.ref} was awakened with old budgets")
            self._outcomes_recorded(job)

    def _outcomes_recorded(self, job: JobRecord) -> None:
        """Check that a job that was awakened has the outcome of what it waited for."""
        wait = wait_of(job)
        if wait is None:
            return
        recorded = {step.name for step in self._recorded(job.ref)}
        # At that instant; a deadline awakens a job whose wait is still open.
        verdict = evaluate(wait, self._inbox(job.ref), job.run_at)
        late = job.deadline is not None and job.deadline <= job.run_at
        self._require(late or not isinstance(verdict, Open), "F2", f"{job.ref} was awakened, and its wait is open")
        outcomes = verdict.outcomes if isinstance(verdict, Met | Broken) else ()
        met = {outcome.need.step for outcome in outcomes if outcome.need.step is not None}
        # Of any need only one outcome is recorded, and another need may have been met since, in this step.
        fine = met <= recorded or (wait.want == "any" and bool(recorded))
        self._require(fine, "F9", f"{job.ref} was awakened with the outcomes of {recorded}, and {met} were met")

    def _completed(self, job: JobRecord) -> None:
        """Check that no member of a group that has completed is left or has failed."""
        wait = wait_of(job)
        verdict = Met() if wait is None else evaluate(wait, self._inbox(job.ref), job.finished or 0)
        self._require(isinstance(verdict, Met), "F10", f"{job.ref} has completed, and its wait is {verdict}")
        if wait is None or not any(need.mode == "tally" for need in wait.needs):
            return
        for member in self._model.records.values():
            if member.links is not None and any(one.to == job.ref for one in member.links.dependents):
                done = member.state is State.COMPLETED or member.ref in self._gone
                self._require(done, "F10", f"{job.ref} has completed, and its member {member.ref} is {member.state}")

    def _check(self, job: JobRecord, links: Links, now: int) -> None:
        inbox = self._inbox(job.ref)
        if links.wait is not None:
            if job.state is State.SUSPENDED:
                verdict = evaluate(links.wait, inbox, now)
                due = links.wake_at is not None and links.wake_at <= now
                self._require(isinstance(verdict, Open) or due, "F1", f"{job.ref} is suspended, and it is {verdict}")
                self._require(job.owner is None and job.lease_until is None, "F1", f"{job.ref} is suspended and owned")
            elif job.state is State.FAILED and job.reason == DEPENDENCY:
                # Time alone resumes no job.
                verdict = evaluate(links.wait, inbox, job.finished or now)
                self._require(isinstance(verdict, Broken), "F6", f"{job.ref} failed by a dependency; it is {verdict}")
        self._inbox_rises(job.ref, inbox)

    def _inbox_rises(self, ref: Ref, inbox: Inbox) -> None:
        """Check that no token of a job has fallen or is counted twice, and that no outcome has changed."""
        incarnation = self._incarnation(ref)
        known, ranks = self._ranks.get(ref, (None, {}))
        if known is not incarnation:
            ranks = {}
        for name, box in inbox.boxes.items():
            for key in (*box.failed, *box.completed):
                rank = 2 if key in box.completed else 1
                self._require(rank >= ranks.get((name, key), 0), "F3", f"{ref}: {name}/{key} has fallen to {rank}")
                ranks[name, key] = rank
        there = sum(box.arrived for box in inbox.boxes.values())
        self._require(there == len(ranks), "F3", f"{ref}: {there} tokens are counted, and {len(ranks)} have arrived")
        self._ranks[ref] = incarnation, ranks

    def _outcomes_stay(self, ref: Ref) -> None:
        incarnation, found = self._incarnation(ref), self._recorded(ref)
        of, steps = self._steps.get(ref, (None, ()))
        same = of is not incarnation or found[: len(steps)] == steps
        self._require(same, "F9", f"{ref}: an outcome has changed: {steps}, {found}")
        self._steps[ref] = incarnation, found

    def _owe(self, ref: Ref, dependents: Sequence[Dependent], *, completed: bool) -> None:
        if dependents:
            incarnations = {one.to: self._incarnation(one.to) for one in dependents}
            self._owed[ref] = _End(dependents, completed, incarnations)

    def _delivered(self) -> None:
        """Check that the dependents of each end have its token, unless an entry of the outbox is still there."""
        if not self._owed:
            return
        left = {entry.ref for entry in self._model.outbox}
        for entry in self._model.outbox:
            self._require(entry.size > 0, "F5", f"{entry.ref} has an empty entry")
        for ref, end in list(self._owed.items()):
            if ref in left:
                continue
            for one in end.dependents:
                if one.to in self._model.records and self._incarnation(one.to) is end.incarnations[one.to]:
                    rank = self._rank(one)
                    self._require(rank >= (2 if end.completed else 1), "F4", f"{one.to} was not notified of {ref}")
            del self._owed[ref]

    def _rank(self, one: Dependent) -> int:
        box = self._inbox(one.to).box(one.box)
        return 2 if one.key in box.completed else 1 if one.key in box.failed else 0

    def _inbox(self, ref: Ref) -> Inbox:
        return self._model.inboxes.get(ref, Inbox())

    def _recorded(self, ref: Ref) -> tuple[StepRecord, ...]:
        (detail,) = self._model.get([ref])
        return () if detail is None else detail.steps


def wait_of(job: JobRecord) -> Wait | None:
    """Return what a job waits for, or has waited for."""
    return None if job.links is None else job.links.wait


def kind_of(job: JobRecord) -> JobKind:
    """Return what a job is for."""
    return JobKind.JOB if job.links is None else job.links.kind
