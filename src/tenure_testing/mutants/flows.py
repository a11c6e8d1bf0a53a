"""Mutants of jobs that wait: the tokens, the outbox, what a verdict changes, and what resumes a job."""

from collections.abc import Sequence

from msgspec import structs

from tenure.core.decision import Suspend
from tenure.core.job import JobRecord, Ref
from tenure.core.lifecycle import State
from tenure.core.transition import redriven
from tenure.core.waiting import Broken, Inbox, Links, Met, NeedOutcome, Verdict, WaitToken, evaluate
from tenure.storage.memory.model import Model
from tenure.storage.revisions import RevisionResult
from tenure.storage.waiting import AdvanceEntry, OutboxEntry
from tenure_testing.mutants.registry import mutant


@mutant("flows")
class LosesEntries(Model):
    """Writes no entry of the outbox."""

    def _write_entry(self, end: object, now: int) -> None:
        pass


@mutant("slow carriers")
class AdvancesAnyEntry(Model):
    """Advances the latest entry of a job, also if it is for a later end."""

    def _advance_entry(self, done: AdvanceEntry, now: int) -> RevisionResult:
        latest = max((one.number for one in self.outbox if one.ref == done.ref), default=done.number)
        return super()._advance_entry(structs.replace(done, number=latest), now)


class _LastInbox(Inbox):
    """Keeps the token that came last."""

    def deliver(self, token: WaitToken) -> bool:
        box = self.boxes.get(token.box)
        if box is not None:
            box.completed.pop(token.key, None)
            box.failed.pop(token.key, None)
        return super().deliver(token)


@mutant("slow carriers")
class LastTokenWins(Model):
    """Replaces the token under a key by a later one."""

    def _inbox(self, ref: Ref) -> Inbox:
        return self._inboxes.setdefault(ref, _LastInbox())


class _CountingInbox(Inbox):
    """Counts a token each time it arrives."""

    def deliver(self, token: WaitToken) -> bool:
        return super().deliver(structs.replace(token, key=f"{token.key}+{self.box(token.box).arrived}"))


@mutant("flows")
class CountsDeliveries(Model):
    """Counts deliveries, and not keys."""

    def _inbox(self, ref: Ref) -> Inbox:
        return self._inboxes.setdefault(ref, _CountingInbox())


@mutant("flows")
class SuspendsBlindly(Model):
    """Suspends a run without a look at what has arrived."""

    def _suspend(self, job: JobRecord, freed: JobRecord, decision: Suspend, now: int) -> None:
        links = structs.replace(job.links or Links(), wait=decision.wait, wake_at=None)
        self._replace(job, structs.replace(freed, state=State.SUSPENDED, expires_at=None, links=links))


@mutant("flows")
class DeletesSilently(Model):
    """Notifies no dependent of a deleted job."""

    def _hand_over(self, job: JobRecord, *, completed: bool = False) -> None:
        if job.ref in self._jobs:
            super()._hand_over(job, completed=completed)


@mutant("flows")
class ExpiresSilently(Model):
    """Notifies no dependent of an expired job."""

    def _hand_over(self, job: JobRecord, *, completed: bool = False) -> None:
        if job.state is not State.EXPIRED:
            super()._hand_over(job, completed=completed)


@mutant("flows")
class StallsSilently(Model):
    """Notifies no dependent of a job that failed by its stalls."""

    def _hand_over(self, job: JobRecord, *, completed: bool = False) -> None:
        if job.reason != "stalled":
            super()._hand_over(job, completed=completed)


@mutant("flows")
class NeverResumes(Model):
    """Leaves a dependent failed although the job that it needs has completed since."""

    def _resume(self, job: JobRecord, now: int) -> None:
        pass


@mutant("flows")
class ResumesTooEarly(Model):
    """Resumes a dependent although another need is broken still."""

    def _resume(self, job: JobRecord, now: int) -> None:
        self._replace(job, redriven(job, now))


@mutant("flows")
class WakesInAnyState(Model):
    """Judges a job that is not suspended any more."""

    def _arrived(self, job: JobRecord, now: int) -> None:
        if job.state in (State.ACTIVE, State.WAITING) and job.links is not None and job.links.wait is not None:
            self._judge(job, now)
        else:
            super()._arrived(job, now)


@mutant("flows")
class MetUnsealed(Model):
    """Treats a box without a seal as complete."""

    def _verdict(self, job: JobRecord, now: int) -> Verdict:
        if job.links is None or job.links.wait is None:
            return super()._verdict(job, now)
        needs = tuple(structs.replace(need, count=need.count or 0) for need in job.links.wait.needs)
        return evaluate(structs.replace(job.links.wait, needs=needs), self._inbox(job.ref), now)


@mutant("flows")
class HandsOutOnce(Model):
    """Strikes an entry off when it hands it out, before its tokens are delivered."""

    def _take_written(self) -> tuple[OutboxEntry, ...]:
        return self._struck_off(super()._take_written())

    def _due_entries(self, now: int) -> tuple[OutboxEntry, ...]:
        return self._struck_off(super()._due_entries(now))

    def _struck_off(self, entries: tuple[OutboxEntry, ...]) -> tuple[OutboxEntry, ...]:
        for entry in entries:
            del self._outbox[entry.number]
        return entries


@mutant("flows")
class TimerAndTokenBothCount(Model):
    """Records the outcome of a token although time has met the need before."""

    def _arrived(self, job: JobRecord, now: int) -> None:
        super()._arrived(job, now)
        steps = self._steps.get(job.ref, {})
        verdict = self._verdict(job, now)
        for outcome in verdict.outcomes if isinstance(verdict, Met | Broken) else ():
            name = outcome.need.step
            if name is not None and name in steps and steps[name].by != outcome.by:
                steps[name] = structs.replace(steps[name], by=outcome.by)


@mutant("flows")
class ForgetsTimers(Model):
    """Records no outcome of a need that time has met."""

    def _wake(self, job: JobRecord, outcomes: Sequence[NeedOutcome], now: int) -> None:
        super()._wake(job, tuple(outcome for outcome in outcomes if outcome.by != "timer"), now)


@mutant("flows")
class KeepsBudgets(Model):
    """Awakens a job with the failures and stalls of its last stretch."""

    def _wake(self, job: JobRecord, outcomes: Sequence[NeedOutcome], now: int) -> None:
        super()._wake(job, outcomes, now)
        woken = self._jobs[job.ref]
        self._replace(woken, structs.replace(woken, failures=job.failures, stalls=job.stalls + 1))


@mutant("flows", harmless=True)
class DeliversTwice(Model):
    """Delivers everything twice, which is harmless."""

    def _hand_over(self, job: JobRecord, *, completed: bool = False) -> None:
        super()._hand_over(job, completed=completed)
        super()._hand_over(job, completed=completed)
