"""The evidence of a chaos test, with the indexes that its audit needs."""

from tenure.core.events import AnyEvent, JobStalled, LeadershipAcquired, at_micros
from tenure.core.job import JobRecord, RunRecord
from tenure_testing.chaos.records import ChaosEvidence, Deed


class EvidenceIndex:
    """The evidence with the indexes that several checks share."""

    def __init__(self, evidence: ChaosEvidence) -> None:
        self.evidence = evidence
        self.jobs: dict[str, JobRecord] = {job: detail.job for job, detail in evidence.jobs.items()}
        self.runs: dict[str, dict[int, RunRecord]] = {
            job: {run.number: run for run in detail.runs} for job, detail in evidence.jobs.items()
        }
        self.starts = [line for line in evidence.lines if line.what == "start"]
        self.ends = {(line.job, line.run): line for line in evidence.lines if line.what != "start"}
        self.began = {(line.job, line.run): line for line in reversed(self.starts)}
        self.stalled = [event for event in evidence.events if isinstance(event, JobStalled)]
        self.outages = [deed for deed in evidence.deeds if deed.effect == "outage"]
        self._pids = {run.owner: run.pid for detail in evidence.jobs.values() for run in detail.runs}
        self._reigns = [
            (self.recorded_at(event), event.owner) for event in evidence.events if isinstance(event, LeadershipAcquired)
        ]

    def out_of_reach(self, since: int, until: int) -> bool:
        """Return True if an outage of the storage overlaps this period."""
        return any(deed.overlaps(since, until) for deed in self.outages)

    def led(self, deed: Deed) -> bool:
        """Return True if a fault hit the leader at that time, or may have."""
        if deed.effect == "none" or (deed.effect == "outage" and not deed.pids):
            return False
        leader = next((owner for at, owner in reversed(self._reigns) if at <= deed.at), None)
        if leader is None:
            return True
        # An owner that never ran a job is one of the reapers.
        return self._pids[leader] in deed.pids if leader in self._pids else deed.where not in self.evidence.hosts

    def at(self, instant: int) -> int:
        """Convert an instant of the storage to an uptime."""
        return instant - self.evidence.offset

    def recorded_at(self, event: AnyEvent) -> int:
        """Return the uptime at which an event was recorded."""
        return self.at(at_micros(event))
