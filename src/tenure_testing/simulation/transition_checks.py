"""Checks records after each step: their state, counters and runs follow from their history, and indexes equal them."""

from collections.abc import Mapping

from tenure.core.job import JobRecord, Ref
from tenure.core.lifecycle import TERMINAL, TRANSITIONS, State
from tenure.storage.protocol import (
    RUNS_KEPT,
)
from tenure_testing.simulation.accounts import Accounts
from tenure_testing.simulation.job_history import shown
from tenure_testing.simulation.record_checks import place_of


class TransitionChecks:
    """Checks the changed records of one world."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._require = accounts.require

    def moved(self, verb: str, was: JobRecord | None, job: JobRecord) -> None:
        """Check that a verb may change a record in this way."""
        story = self._accounts.story(job.ref)
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
            early = verb != "revise" and due > self._accounts.clock.now()
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
        self._require(job.quarantined == marked, "I7", f"{job.ref}: its quarantine is wrong: {shown(job)}")
        used = story.put_back_used and job.state not in TERMINAL
        self._require(job.put_back_used == used, "I18", f"{job.ref}: its free put-back is wrong: {shown(job)}")
        self._require((job.state is State.ACTIVE) == (story.run is not None), "I5", f"{job.ref}: {shown(job)}")
        self._require((job.state in TERMINAL) == (story.ends == 1), "I2", f"{job.ref}: {story.ends} ends: {shown(job)}")
        if story.run is not None:
            fence = story.run.taken or story.run.fence
            self._require(
                (job.fence, job.owner) == (fence, story.run.holders[-1]), "I4", f"{job.ref}: {fence} expected"
            )
        self._kept(job)

    def indexed(self, records: Mapping[Ref, JobRecord]) -> None:
        """Check that each record is in the one index that must contain it."""
        seen: dict[Ref, tuple[str, int]] = {}
        for name, at, ref in self._accounts.model.indexed():
            if ref in seen:
                self._accounts.fail("I1", f"{ref} is in {seen[ref]} and in {name}")
            seen[ref] = name, at
        for ref, job in records.items():
            right = place_of(job)
            if seen.pop(ref, None) != right:
                self._accounts.fail("I1", f"{ref}: not at {right}")
        if seen:
            self._accounts.fail("I1", f"indexed without a record: {list(seen)}")

    def _kept(self, job: JobRecord) -> None:
        """Check that each run has its row, and that only the current run's row is open."""
        (detail,) = self._accounts.model.get([job.ref])
        if detail is None:
            self._require(self._accounts.forgettable(job), "I8", f"{job.ref}: its record cannot be read")
            return
        runs = detail.runs
        counted = len(runs) == min(job.starts, RUNS_KEPT) and (not runs or runs[-1].number == job.starts)
        self._require(counted, "I7", f"{job.ref}: {len(runs)} rows for {job.starts} starts")
        traced = [run.number for run in runs if run.end is not None and run.trace is not None]
        self._require(not traced, "I7", f"{job.ref}: the traces of the ended runs {traced} are kept")
        unended = [run.number for run in runs if run.end is None]
        expected = [job.starts] if job.state is State.ACTIVE else []
        self._require(unended == expected, "I7", f"{job.ref}: the rows of {unended} are open: {shown(job)}")
