"""Values for the tests of the core: a job in its run, an error, one outcome of every kind."""

from msgspec import structs

from tenure.clock import SECOND
from tenure.core.job import JobRecord, Policy, RecordedError, StallTerms
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.outcome import (
    Cancelled,
    Interrupted,
    Outcome,
    Raised,
    RateLimitHit,
    Rejected,
    Returned,
    Snoozed,
    Stalled,
    Suspended,
    TimedOut,
    Unknown,
    Unreadable,
)
from tenure.core.retry import Backoff
from tenure.core.waiting import Need, Wait

NOW = 1_767_225_600 * SECOND
ERROR = RecordedError("ValueError", "no good")
STEADY = Policy(retry=Backoff(max_attempts=3, kind="fixed", base=7 * SECOND, jitter=0.0))

ACTIVE = JobRecord(
    queue="mail",
    id="a",
    task="send",
    state=State.ACTIVE,
    payload=b"[]",
    score=NOW,
    run_at=NOW,
    created=NOW,
    started=NOW,
    owner="00000000000a11ce",
    fence=NOW + 1,
    starts=4,
    policy=STEADY,
    stall=StallTerms(max_stalls=1),
)

WAIT = Wait((Need(box="signal:approved"),))

OUTCOMES: tuple[Outcome, ...] = (
    Returned(b"3"),
    Raised(ERROR),
    TimedOut(ERROR),
    Rejected(ERROR),
    Unreadable(ERROR),
    Unknown(),
    Snoozed(10 * SECOND),
    Suspended(WAIT),
    RateLimitHit(10 * SECOND),
    Interrupted("shutdown"),
    Cancelled("enough"),
    Stalled("lease_expired"),
)


def active(
    *,
    failures: int = 0,
    stalls: int = 0,
    releases: int = 0,
    max_stalls: int = 1,
    policy: Policy = STEADY,
    cancelled: bool = False,
) -> JobRecord:
    """Return a job in its run."""
    return structs.replace(
        ACTIVE,
        failures=failures,
        stalls=stalls,
        releases=releases,
        stall=StallTerms(max_stalls=max_stalls),
        policy=policy,
        cancel_at=NOW if cancelled else None,
        cancel_reason="enough" if cancelled else None,
    )


def lease(job: JobRecord = ACTIVE) -> Lease:
    """Return the lease on a job."""
    return Lease(job)
