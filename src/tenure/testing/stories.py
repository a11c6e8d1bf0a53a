"""What the witness of a simulated world knows of each job, and how it tells of one."""

from dataclasses import dataclass, field

from tenure.core.job import JobRecord, Ref


@dataclass(eq=False)
class RunStory:
    """A run as the witness saw it: when it was claimed, last heard of, last gave a sign (virtual seconds).

    `signed`: as the storage must take it. `gave_sign`: when the handler gave it, however late its beat arrived.
    """

    number: int
    fence: int
    owner: str
    claimed: float
    heard: float
    signed: float
    gave_sign: float
    taken: int | None = None
    """The fence under which a reaper holds it, if one does."""

    reason: str = ""
    exclusive: bool = False
    """Whether its holder has said that it holds an exclusive right."""

    holders: list[str] = field(default_factory=list[str])


@dataclass(eq=False)
class Story:
    """What the witness knows of one job."""

    ref: Ref
    fence: int = 0
    run: RunStory | None = None
    runs: dict[int, RunStory] = field(default_factory=dict[int, RunStory])
    accepted: list[int] = field(default_factory=list[int])
    ends: int = 0
    starts: int = 0
    cancels: int = 0
    deleted: bool = False
    quarantined: bool = False
    """Whether its latest run was put back into quarantine."""

    put_back_used: bool = False
    """Whether a counted put-back was free since its last charge or end, so that the next one must be charged."""

    unknown: int = 0
    """How many of its runs were put back by a worker that did not know its task."""

    recovered: int = 0
    """The number of the run that was put back for a stall, if its latest was."""


def shown(job: JobRecord | None) -> str:
    """Say where a job stands."""
    if job is None:
        return "no such job"
    return (
        f"{job.ref.id} {job.state} fence {job.fence} owner {job.owner} starts {job.starts} failures {job.failures} "
        f"stalls {job.stalls} releases {job.releases} lease {job.lease_until} suspect {job.suspect_until}"
        f"{' quarantined' if job.quarantined else ''}"
    )
