"""A random walk over the memory model with jobs that wait, which checks its invariants after each step.

Every step is a call that a caller, a worker, an operator or a reaper may make. Answers and outbox entries are lost,
repeated and delayed at random, as in production.
"""

from collections.abc import Sequence
from random import Random
from typing import Literal

from msgspec import structs

from tenure.clock import SECOND
from tenure.core.job import JobRecord, NewJob, Owner, Policy, Ref
from tenure.core.lease import Lease
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.outcome import Cancelled, Outcome, Rejected, Returned, Snoozed, Stalled, Suspended
from tenure.core.retry import Backoff
from tenure.core.settlement import Settlement, settlement
from tenure.core.waiting import (
    Broken,
    Dependent,
    Inbox,
    JobKind,
    Links,
    Met,
    Need,
    NeedMode,
    Open,
    Skipped,
    StepRecord,
    TokenOutcome,
    Wait,
    WaitToken,
    evaluate,
)
from tenure.storage.memory.model import Model
from tenure.storage.protocol import CancelJob, ClaimRequest, DeleteJob, RedriveJob, SweepRequest
from tenure.storage.waiting import DeliverToken, OutboxEntry, SealBox, Subscribe
from tenure.testing.clock import ManualClock
from tests.core.cases import ERROR

WORKER, REAPER = Owner("worker"), Owner("reaper")
QUEUES = ("q", "r")
MODES: tuple[NeedMode, ...] = ("fail", "fail", "count", "tally", "only", "unless")
POLICY = Policy(retry=Backoff(max_attempts=1))
END = "end"
RANK = {"failed": 1, "completed": 2}


class WalkError(AssertionError):
    """An invariant does not hold."""


class Walk:
    """One random walk. `careless`: reapers advance entries before they deliver them."""

    def __init__(self, seed: int, model: type[Model] = Model, *, careless: bool = False) -> None:
        self.dice = Random(seed)
        self.clock = ManualClock()
        self.model = model(self.clock)
        self.careless = careless
        self.leases: list[Lease] = []
        self.sent: list[Settlement] = []
        self.entries: list[OutboxEntry] = []
        self.made = 0
        self.seen: dict[Ref, JobRecord] = {}
        self.ranks: dict[tuple[Ref, str, str], int] = {}
        self.steps: dict[Ref, tuple[StepRecord, ...]] = {}
        self.forced: set[Ref] = set()
        """The jobs that were redriven although they were skipped, or although the job that they need is gone."""

    def run(self, length: int) -> None:
        """Take a number of steps, then let everything come to rest."""
        for _ in range(length):
            self.step()
        self.rest()

    def step(self) -> None:
        """Take one step, and check the invariants."""
        actions = [
            self.enqueue,
            self.claim,
            self.settle,
            self.settle,
            self.operate,
            self.sweep,
            self.carry,
            self.signal,
        ]
        self.dice.choice([*actions, self.repeat])()
        self.check()

    # ── actions ───────────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self) -> None:
        """Enqueue a graph of one to five jobs, waiters first, or one job with many dependents."""
        names = [f"{self.made + number}" for number in range(self.dice.randint(1, 5))]
        if self.dice.random() < 0.3:
            names = [f"{self.made + number}" for number in range(11)]
        self.made += len(names)
        refs = [Ref(self.dice.choice(QUEUES), name) for name in names]
        needs: dict[Ref, list[Need]] = {ref: [] for ref in refs}
        dependents: dict[Ref, list[Dependent]] = {ref: [] for ref in refs}
        for place, ref in enumerate(refs[1:], 1):
            # In a wide graph all jobs wait for the first one.
            for source in [refs[0]] if len(refs) > 5 else self.dice.sample(refs[:place], min(place, 2)):
                needs[ref].append(Need(box=source.id, source=source, mode=self.dice.choice(MODES)))
                dependents[source].append(Dependent(ref, source.id, END))
        jobs = [self.new_job(ref, needs[ref], dependents[ref]) for ref in refs[::-1]]
        self.model.enqueue(jobs)
        if self.dice.random() < 0.2:
            self.model.enqueue(jobs)

    def new_job(self, ref: Ref, needs: list[Need], dependents: list[Dependent]) -> NewJob:
        """Return one job of a graph."""
        now = self.clock.now()
        roll = self.dice.random()
        if roll < 0.1:
            needs = [*needs, Need(box="open", count=None, mode="count", until=now + 60 * SECOND, step="opened")]
        elif roll < 0.2:
            needs = [*needs, Need(box="signal:go", until=now + self.dice.randint(1, 40) * SECOND, step="go")]
        kind = JobKind.GROUP if needs and self.dice.random() < 0.15 else JobKind.JOB
        want: Literal["all", "any"] = "any" if len(needs) > 1 and self.dice.random() < 0.2 else "all"
        links = Links(Wait(tuple(needs), want) if needs else None, tuple(dependents), kind)
        policy = structs.replace(POLICY, on_expire=self.dice.choice(("fail", "discard")))
        ttl = 20 * SECOND if self.dice.random() < 0.2 else None
        return NewJob(queue=ref.queue, id=ref.id, task="t", payload=b"", links=links, ttl=ttl, policy=policy)

    def claim(self) -> None:
        """Claim up to three jobs."""
        for lease in self.model.exchange(WORKER, order=ClaimRequest(QUEUES, 3)).leases:
            self.check_start(lease)
            self.leases.append(lease)

    def settle(self) -> None:
        """Settle one run, as its worker or, after a stall, as a reaper does."""
        if not self.leases:
            return
        lease = self.leases.pop(self.dice.randrange(len(self.leases)))
        now = self.clock.now()
        waits = (
            Need(box="signal:go", until=now + self.dice.randint(0, 30) * SECOND, step=f"go-{lease.run}"),
            Need(box="child", step=f"child-{lease.run}"),
        )
        outcomes: list[Outcome] = [
            *(Returned(b""), Returned(b""), Returned(b""), Rejected(ERROR), Snoozed(0), Cancelled()),
            *(Stalled("lease_expired"), Suspended(Wait(waits[:1])), Suspended(Wait(waits, "any"))),
        ]
        sent = settlement(lease, self.dice.choice(outcomes), self.dice)
        self.entries += self.model.exchange(WORKER, [sent]).outbox
        self.sent.append(sent)

    def repeat(self) -> None:
        """Send a settlement again, or deliver the tokens of an old entry again."""
        if self.sent:
            self.model.exchange(WORKER, [self.dice.choice(self.sent)])
        if self.entries:
            self.model.revise(self.dice.choice(self.entries).deliveries)

    def operate(self) -> None:
        """Cancel, redrive or delete some job, or subscribe one job to another."""
        refs = list(self.model.records)
        if not refs:
            return
        ref, other = self.dice.choice(refs), self.dice.choice(refs)
        failed = [ref for ref, job in self.model.records.items() if job.state is State.FAILED]
        kind = self.dice.choice(("cancel", "redrive", "redrive", "redrive", "delete", "subscribe"))
        if kind == "redrive":
            unfinished = [entry.ref for entry in self.model.outbox if entry.ref in failed]
            ref = self.dice.choice(unfinished or failed or refs)
            before = self.model.records[ref]
            (answer,) = self.model.revise([RedriveJob(ref)])
            if answer.verdict == "done" and before.reason in ("dependency", "skipped"):
                self.forced.add(ref)
        elif kind == "cancel":
            self.model.revise([CancelJob(ref)])
        elif kind == "delete":
            self.model.revise([DeleteJob(ref)])
        elif ref != other:
            self.model.revise([Subscribe(ref, Dependent(other, ref.id, END))])

    def signal(self) -> None:
        """Deliver a signal or a token of a child, or seal a box."""
        refs = list(self.model.records)
        if not refs:
            return
        ref = self.dice.choice(refs)
        name = f"{self.dice.randint(1, 3)}"
        box = self.dice.choice(("signal:go", "open", "child"))
        outcome: TokenOutcome = "completed" if box == "signal:go" else self.dice.choice(("completed", "failed"))
        self.model.revise([DeliverToken(ref, WaitToken(box, name, outcome))])
        if box == "open":
            # A box has one total for ever.
            self.model.revise([SealBox(ref, "open", 1 + len(ref.id + ref.queue) % 3)])

    def sweep(self) -> None:
        """Let some time pass, and sweep."""
        self.clock.advance(self.dice.choice((0, 0.5, 2, 5)))
        swept = self.model.sweep(SweepRequest(REAPER, term=None))
        # Its workers are alive: a lease that was taken is settled under its new fence.
        for stalled in swept.stalled:
            self.leases = [lease for lease in self.leases if lease.ref != stalled.lease.ref]
            sent = settlement(stalled.lease, Stalled(stalled.reason), self.dice)
            self.model.exchange(REAPER, [sent])
        if swept.outbox:
            self.entries += swept.outbox

    def carry(self) -> None:
        """Carry out an entry, or die on the way."""
        if not self.entries:
            return
        entry = self.dice.choice(self.entries)
        if self.careless:
            self.model.revise([entry.done])
            if self.dice.random() < 0.5:
                self.model.revise(entry.deliveries)
            return
        self.model.revise(entry.deliveries)
        if self.dice.random() < 0.7:
            self.model.revise([entry.done])

    def rest(self) -> None:
        """Run all jobs and carry out all entries, until nothing changes any more."""
        for _ in range(200):
            self.clock.advance(3)
            swept = self.model.sweep(SweepRequest(REAPER, term=None))
            for entry in swept.outbox:
                self.model.revise(entry.deliveries)
                self.model.revise([entry.done])
            self.claim()
            sent = [settlement(lease, Returned(b""), self.dice) for lease in self.leases]
            self.leases = []
            self.model.exchange(WORKER, sent)
            self.check()
            timed = any(job.links is not None and job.links.wake_at is not None for job in self.suspended())
            if not (sent or swept.outbox or timed or self.model.outbox):
                break
        self.require(not self.model.outbox, "at rest", "an entry is left in the outbox")
        for job in self.suspended():
            wait = self.wait_of(job)
            sources = [need.source for need in wait.needs if need.source is not None]
            boxes = {need.box for need in wait.needs} & {"signal:go", "open", "child"}
            alive = [ref for ref in sources if ref in self.model.records and not self.is_over(ref)]
            self.require(bool(alive or boxes), "at rest", f"{job.ref} waits for nothing that can come: {wait}")

    # ── invariants ────────────────────────────────────────────────────────────────────────────────────────────────

    def suspended(self) -> list[JobRecord]:
        """Return the suspended jobs."""
        return [job for job in self.model.records.values() if job.state is State.SUSPENDED]

    def is_over(self, ref: Ref) -> bool:
        """Return True if a job has ended."""
        return self.model.records[ref].state in TERMINAL

    @staticmethod
    def wait_of(job: JobRecord) -> Wait:
        """Return the wait of a job that has one."""
        if job.links is None or job.links.wait is None:
            raise WalkError(f"{job.ref} is suspended without a wait")
        return job.links.wait

    def require(self, holds: bool, number: str, message: str) -> None:
        """Fail if an invariant does not hold."""
        if not holds:
            raise WalkError(f"{number}: {message}")

    def check_start(self, lease: Lease) -> None:
        """Check a run that begins: its wait is over, and it has a handler."""
        job = lease.job
        if job.links is None or job.links.wait is None:
            return
        self.require(job.links.kind is JobKind.JOB, "I7", f"{job.ref} has no handler, and was claimed")
        verdict = evaluate(job.links.wait, self.inbox(job.ref), self.clock.now())
        fine = isinstance(verdict, Met) or (isinstance(verdict, Broken) and job.starts > 1) or job.ref in self.forced
        # The job whose failure it reacts to may have been redriven, and have completed, since this one was awakened.
        fine = fine or (isinstance(verdict, Skipped) and verdict.need.mode == "unless")
        self.require(fine, "I2", f"{job.ref} starts, and its wait is {verdict}")

    def check(self) -> None:
        """Check the invariants of all jobs."""
        now = self.clock.now()
        left = {entry.ref for entry in self.model.outbox}
        for lease in self.leases:
            job = self.model.records.get(lease.ref)
            held = job is not None and job.state is State.ACTIVE and job.fence == lease.fence
            self.require(held, "I12", f"{lease.ref} was taken from the worker that runs it")
        for ref, job in self.model.records.items():
            before = self.seen.get(ref)
            if job.links is not None and job.links.wait is not None:
                self.check_wait(job, before, now)
            if job.state in TERMINAL and job.links is not None and ref not in left:
                self.check_delivered(ref, job.links.dependents, completed=job.state is State.COMPLETED)
            self.check_inbox(ref)
        for ref, before in self.seen.items():
            if ref not in self.model.records and before.links is not None and ref not in left:
                self.check_delivered(ref, before.links.dependents, completed=before.state is State.COMPLETED)
        for entry in self.model.outbox:
            self.require(bool(entry.dependents), "I5", f"{entry.ref} has an empty entry")
        self.seen = dict(self.model.records)

    def check_wait(self, job: JobRecord, before: JobRecord | None, now: int) -> None:
        """Check the state of a job that waits, or has waited."""
        links, inbox = job.links, self.inbox(job.ref)
        if links is None or links.wait is None:
            return
        verdict = evaluate(links.wait, inbox, now)
        if job.state is State.SUSPENDED:
            due = links.wake_at is not None and links.wake_at <= now
            self.require(isinstance(verdict, Open) or due, "I1", f"{job.ref} is suspended, and its wait is {verdict}")
            self.require(job.owner is None and job.lease_until is None, "I1", f"{job.ref} is suspended and owned")
        if job.state is State.FAILED and job.reason == "dependency":
            # Time alone resumes no job.
            verdict = evaluate(links.wait, inbox, job.finished or now)
            self.require(isinstance(verdict, Broken), "I6", f"{job.ref} failed by a dependency, and is {verdict}")
        if before is not None and before.state is State.SUSPENDED and job.state is State.WAITING:
            self.require(job.failures == job.stalls == 0, "I13", f"{job.ref} was awakened with old budgets")
            named = {need.step for need in links.wait.needs if need.step is not None}
            recorded = {step.name for step in self.recorded(job.ref)}
            outcomes = verdict.outcomes if isinstance(verdict, Met | Broken) else ()
            met = {outcome.need.step for outcome in outcomes}
            if links.wait.want == "all":
                self.require(named & met <= recorded, "I9", f"{job.ref} was awakened without {named & met - recorded}")
            elif named:
                self.require(bool(named & recorded) or not named & met, "I9", f"{job.ref} has no outcome of {named}")

    def check_delivered(self, ref: Ref, dependents: Sequence[Dependent], *, completed: bool) -> None:
        """Check that the dependents of an ended job have its token."""
        for dependent in dependents:
            if dependent.to in self.model.records:
                rank = self.rank(dependent.to, dependent.box, dependent.key)
                self.require(rank >= (2 if completed else 1), "I4", f"{dependent.to} was not notified of {ref}")

    def inbox(self, ref: Ref) -> Inbox:
        """Return the inbox of a job."""
        return self.model.inboxes.get(ref, Inbox())

    def recorded(self, ref: Ref) -> tuple[StepRecord, ...]:
        """Return the recorded outcomes of a job."""
        (detail,) = self.model.get([ref])
        return () if detail is None else detail.steps

    def rank(self, ref: Ref, box: str, key: str) -> int:
        """Return the rank of the token under a key of a job; 0 without one."""
        there = self.inbox(ref).box(box)
        return 2 if key in there.completed else 1 if key in there.failed else 0

    def check_inbox(self, ref: Ref) -> None:
        """Check that the tokens and the steps of a job are at least those of the step before."""
        for name, box in self.inbox(ref).boxes.items():
            for key in (*box.failed, *box.completed):
                rank = self.rank(ref, name, key)
                self.require(rank >= self.ranks.get((ref, name, key), 0), "I3", f"{ref}: {name}/{key} has fallen")
                self.ranks[ref, name, key] = rank
            arrived = len({*box.failed, *box.completed})
            self.require(arrived == box.arrived, "I3", f"{ref}: {name} has {arrived} keys, and counts {box.arrived}")
        steps = self.recorded(ref)
        known = self.steps.get(ref, ())
        self.require(steps[: len(known)] == known, "I9", f"{ref}: an outcome has changed: {known}, {steps}")
        self.steps[ref] = steps
