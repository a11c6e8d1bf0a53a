"""What the checker of a simulated world knows about each job and its runs."""

from dataclasses import dataclass, field

from tenure.core.job import JobRecord, Ref


@dataclass(eq=False)
class RunHistory:
    """A run as the checker saw it:

    when it was claimed, was last renewed and last gave a sign of life (virtual seconds).

    `started`, `signed`: the times that the storage must assume. `gave_sign`: when the handler gave the sign, however
    late its renewal arrived. `limits`: for each of its concurrency keys, the limit in force at its claim.
    """

    number: int
    fence: int
    owner: str
    claimed: float
    started: float
    heard: float
    signed: float
    gave_sign: float
    taken: int | None = None
    """The fence under which a reaper holds the run, if one does."""

    reason: str = ""
    exclusive: bool = False
    """True if the holder has said that the run is exclusive."""

    holders: list[str] = field(default_factory=list[str])

    place: int = 0
    """Its place among all claims of the world."""

    limits: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(eq=False)
class JobHistory:
    """What the checker knows about one job."""

    ref: Ref
    fence: int = 0
    run: RunHistory | None = None
    runs: dict[tuple[int, str], RunHistory] = field(default_factory=dict[tuple[int, str], RunHistory])
    """By fence and owner: a job that was deleted and made again may get a fence twice if the clock was set back."""

    accepted: list[int] = field(default_factory=list[int])
    ends: int = 0
    starts: int = 0
    cancels: int = 0
    deleted: bool = False
    quarantined: bool = False
    """True if the latest run was put back into quarantine."""

    put_back_used: bool = False
    """True if a counted put-back was free since the last charge or end, so that the next one must be charged."""

    unknown: int = 0
    """How many runs were put back by a worker that did not know the task."""

    recovered: int = 0
    """The number of the latest run if it was put back for a stall, else 0."""


def shown(job: JobRecord | None) -> str:
    """Describe the state of a job."""
    if job is None:
        return "no such job"
    return (
        f"{job.ref.id} {job.state} fence {job.fence} owner {job.owner} starts {job.starts} failures {job.failures} "
        f"stalls {job.stalls} releases {job.releases} lease {job.lease_until} suspect {job.suspect_until}"
        f"{' quarantined' if job.quarantined else ''}"
    )
