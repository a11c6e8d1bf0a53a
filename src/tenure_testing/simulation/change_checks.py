"""Checks the changes that operators request, and those that time alone causes: expired, forgotten, redriven."""

from collections import Counter
from collections.abc import Mapping, Sequence

from tenure.core.events import (
    JobCancelled,
    JobDeleted,
    JobExpired,
    JobRedriven,
)
from tenure.core.job import JobRecord, Ref
from tenure.core.lifecycle import REDRIVABLE, TERMINAL, State
from tenure.core.transition import is_expired
from tenure.storage.protocol import (
    CancelJob,
    DeleteJob,
    RedriveJob,
    Revision,
    RevisionResult,
)
from tenure_testing.simulation.accounts import Accounts
from tenure_testing.simulation.event_checks import EventCounts
from tenure_testing.simulation.job_history import shown

BY_ITSELF = frozenset({"enqueue", "plan", "exchange", "sweep", "revise"})
"""Verbs that may find a job that has waited too long."""


class ChangeChecks:
    """Checks the changes of jobs that no worker runs, in one world."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._require = accounts.require

    def revised(
        self, revisions: Sequence[Revision], answers: Sequence[RevisionResult], before: Mapping[Ref, JobRecord]
    ) -> EventCounts:
        """Record the changes that an operator requested. Return the events that must be recorded for them."""
        expected: EventCounts = Counter()
        expired = {ref for ref, job in self._accounts.model.records.items() if job.state is State.EXPIRED}
        unfinished = {ref for ref, job in before.items() if job.state not in TERMINAL} - expired
        for revision, answer in zip(revisions, answers, strict=True):
            was, job = before.get(revision.ref), self._accounts.model.records.get(revision.ref)
            if was is None or answer.verdict in ("refused", "changed", "gone"):
                self._require(was is job, "I3", f"{revision.ref}: changed by a refused {type(revision).__name__}")
                if was is not None and isinstance(revision, RedriveJob) and was.state in REDRIVABLE:
                    self._accounts.calls.refused(was, answer, self._accounts.model.records)
                continue
            story = self._accounts.story(revision.ref)
            self._accounts.note(type(revision).__name__.lower(), revision.ref.id, answer.verdict)
            match revision:
                case CancelJob() if answer.verdict == "asked":
                    asked = job is not None and job.state is State.ACTIVE and job.cancel_at is not None
                    self._require(
                        asked and was.state is State.ACTIVE, "I11", f"{was.ref}: cancel requested: {shown(was)}"
                    )
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
                    self._accounts.calls.deleted(was)
                    unfinished.discard(was.ref)
                    expected[JobDeleted, was.ref, was.starts] += 1
                case _:
                    pass
        return expected

    def passed(
        self, verb: str, before: Mapping[Ref, JobRecord], changed: Sequence[Ref], gone: Sequence[Ref]
    ) -> EventCounts:
        """Record the changes that time alone caused in this step: expired, forgotten, and redriven by a rule."""
        expected: EventCounts = Counter()
        ruled: list[JobRecord] = []
        now = self._accounts.clock.now()
        for ref in changed:
            was, job = before.get(ref), self._accounts.model.records[ref]
            if was is None or verb not in BY_ITSELF:
                continue
            if job.state is State.EXPIRED and was.state is not State.EXPIRED:
                self._require(is_expired(job, now), "I10", f"{ref}: expired before {job.expires_at}, at {now}")
                self._accounts.story(ref).ends += 1
                expected[JobExpired, ref, job.starts] += 1
            elif verb in ("exchange", "sweep") and (was.state, job.state) == (State.FAILED, State.WAITING):
                ruled.append(was)
                expected[JobRedriven, ref, was.starts] += 1
        for ref in gone:
            was, story = before[ref], self._accounts.story(ref)
            if story.deleted:
                continue
            if verb in BY_ITSELF and was.state not in TERMINAL and was.policy.on_expire == "discard":
                self._require(is_expired(was, now), "I10", f"{ref}: discarded before {was.expires_at}, at {now}")
                story.deleted = True
                expected[JobExpired, ref, was.starts] += 1
            elif verb in ("sweep", "enqueue", "plan") and self._accounts.forgettable(was):
                story.deleted = True
        if ruled:
            over = {item.ref for item in ruled}
            unfinished = {
                ref
                for ref, job in self._accounts.model.records.items()
                if job.state not in TERMINAL and ref not in over
            }
            for was in sorted(ruled, key=lambda job: (job.redrive_at or 0, job.ref)):
                self._redriven(was, unfinished)
        return expected

    def _redriven(self, was: JobRecord, unfinished: set[Ref]) -> None:
        """Record that a job was redriven. `unfinished`: the jobs that are not over at that moment."""
        story = self._accounts.story(was.ref)
        story.ends = story.starts = story.cancels = 0
        story.quarantined = story.put_back_used = False
        self._accounts.calls.redriven(was.ref)
        for key in was.keys:
            # A key is forgotten when no unfinished job names it. Its limit then comes from the next job that names it.
            others = (self._accounts.model.records[ref] for ref in unfinished if ref.queue == was.queue)
            if not any(key.name == other.name for job in others for other in job.keys):
                self._accounts.limits[was.queue, key.name] = key.limit
        unfinished.add(was.ref)
