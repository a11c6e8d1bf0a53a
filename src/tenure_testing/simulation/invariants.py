"""The invariants of every simulated world, checked after each step of its storage (I1 to I19 of the protocol).

The checker does not rely on what the storage reports. It keeps its own account of each job from requests and answers,
and compares the records, the indexes and the event log with it. Each subject has a module: runs, order,
sweeps, changes by operators and time, transitions of records, events, calls, ticks, rates, fairness, recoveries.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tenure.core.job import JobRecord, NewJob, Owner, Ref
from tenure.storage.protocol import (
    EnqueueResult,
    ExchangeResult,
    ReclaimResult,
    RenewRequest,
    RenewResult,
    Settings,
    SweepRequest,
    SweepResult,
    Target,
)
from tenure_testing.simulation.accounts import Accounts
from tenure_testing.simulation.change_checks import ChangeChecks
from tenure_testing.simulation.event_checks import ON_CALL, EventChecks, EventCounts
from tenure_testing.simulation.job_history import JobHistory
from tenure_testing.simulation.order_checks import OrderChecks
from tenure_testing.simulation.run_checks import RunChecks
from tenure_testing.simulation.sweep_checks import SweepChecks
from tenure_testing.simulation.transition_checks import TransitionChecks

T = TypeVar("T")

READING = frozenset({"get", "find", "events", "survey"})
"""Verbs that change nothing and record no events."""


class InvariantChecker:
    """Sees every step of a storage in memory, and raises `Violation` at the first step that breaks an invariant."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self.steps = 0
        self._require = accounts.require
        self._order = OrderChecks(accounts)
        self._runs = RunChecks(accounts, self._order)
        self._sweeps = SweepChecks(accounts)
        self._changes = ChangeChecks(accounts)
        self._transitions = TransitionChecks(accounts)
        self._events = EventChecks(accounts)

    def watched(self, verb: str, args: tuple[Any, ...], step: Callable[[], T], *, sent_ago: float = 0.0) -> T:
        """Run a step, and compare its effects with everything known before."""
        self.steps += 1
        before = dict(self._accounts.model.records)
        answer = step()
        records = self._accounts.model.records
        if verb in READING and before == records:
            return answer
        changed = [ref for ref, job in records.items() if before.get(ref) is not job] if before != records else []
        gone = [ref for ref in before if ref not in records]
        recorded = self._events.new()
        expected: EventCounts = Counter()
        match verb, args, answer:
            case "enqueue", (jobs,), _:
                expected = self._enqueued(dict(enumerate(jobs)), answer, before)  # type: ignore[arg-type]
            case "plan", (changes,), _:
                made = self._accounts.ticking.planned(changes, answer, before, recorded, self._accounts.clock.now())  # type: ignore[arg-type]
                created = [EnqueueResult("created", job.ref) for job in made.values()]
                expected = self._enqueued(made, created, before)
            case "exchange", (Owner() as owner, settlements, order), ExchangeResult():
                expected = self._runs.exchanged(owner, settlements, order, answer, before)
            case "renew", (RenewRequest() as beat,), RenewResult():
                expected = self._runs.renewed(beat, answer, before, changed, sent_ago)
            case "sweep", (SweepRequest() as bid,), SweepResult():
                self._sweeps.swept(bid, answer, before, changed)
                if answer.retry_in is None:
                    self._runs.forget_lanes(self._accounts.clock.now())
            case "reclaim", (str() as dead, Owner() as owner), ReclaimResult():
                self._sweeps.reclaimed(dead, owner, answer, before)
            case "revise", (revisions,), _:
                expected = self._changes.revised(revisions, answer, before)  # type: ignore[arg-type]
            case "tune", (Target() as target,), Settings():
                self._accounts.settings[target] = answer
            case _ if changed or gone:
                self._accounts.fail("I3", f"{verb} changed {[*changed, *gone]}, which it must not")
            case _:
                pass
        expected.update(self._changes.passed(verb, before, changed, gone))
        self._events.compare(recorded, expected, verb)
        if changed or gone:
            for ref in changed:
                was = before.get(ref)
                # A forgotten job has no past: an enqueue of its id creates a new job.
                recreated = was is not None and verb == "enqueue" and self._accounts.forgettable(was)
                self._transitions.moved(verb, None if recreated else was, records[ref])
            for ref in gone:
                self._require(self._accounts.stories[ref].deleted, "I8", f"{ref} has vanished, and no call deleted it")
            self._transitions.indexed(records)
            self._accounts.calls.hold(records, changed, gone, self._accounts.clock.now())
            self._accounts.sharing.stand(before, records, [*changed, *gone])
        return answer

    def _enqueued(
        self, jobs: Mapping[int, NewJob], receipts: Sequence[EnqueueResult], before: Mapping[Ref, JobRecord]
    ) -> EventCounts:
        """Record the results of new jobs, by their places in the call.

        Return the events that must be recorded for them.
        """
        expected: EventCounts = Counter()
        there = dict(before)
        for (offset, job), receipt in zip(jobs.items(), receipts, strict=True):
            self._accounts.receipts[receipt.action] += 1
            named = self._accounts.model.records.get(receipt.ref)
            what = self._accounts.calls.answered(job, receipt, there, named, self._accounts.clock.now())
            if what in (self._accounts.setting("queue", job.queue).record or ()):
                subject = receipt.ref if what in ("debounced", "collected") else job.ref
                expected[ON_CALL[what], subject, 0] += 1
            if receipt.action in ("created", "replaced"):
                self._accounts.limits.update(((job.queue, key.name), key.limit) for key in job.keys)
                self._order.placed(job, named, offset)
            if receipt.action != "created":
                self._require(
                    receipt.ref in self._accounts.stories,
                    "I17",
                    f"{receipt.ref} is reported as existing, and was never created",
                )
                self._accounts.note(receipt.action, job.id, receipt.ref.id)
                continue
            known = self._accounts.stories.get(job.ref)
            # An enqueue that is repeated after the job was deleted or forgotten creates the job again.
            gone = known is None or known.deleted or self._accounts.forgettable(before[job.ref])
            self._require(gone, "I8", f"{job.ref} was created twice")
            self._accounts.ticking.made(job)
            # If the record was still there, the job continues its fences, so a late settlement of its last run is
            # recognized.
            accepted = known.accepted if known is not None and job.ref in before else []
            self._accounts.stories[job.ref] = JobHistory(
                job.ref, runs=known.runs if known is not None else {}, accepted=accepted
            )
            self._accounts.note("enqueued", job.id, job.task)
            if named is not None:
                there[job.ref] = named
        return expected
