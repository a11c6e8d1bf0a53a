"""The checks of simulated worlds on cases at their bounds: what is just allowed and what is just too much."""

from collections.abc import Sequence

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.job import JobRecord, Ref, StallTerms
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.options import Timing
from tenure_testing.simulation.fairness_checks import FairnessChecks
from tenure_testing.simulation.fault_log import FaultLog
from tenure_testing.simulation.job_history import RunHistory
from tenure_testing.simulation.key_checks import overfull
from tenure_testing.simulation.recovery_checks import RecoveryChecks
from tenure_testing.simulation.violation import Violation
from tenure_testing.simulation.workload import Entry

HOLDER, OTHER = "holder", "other"
CLAIMED = 100.0
TIMEOUT, HEARTBEAT, LEASE = 6, 4, 20

JOB = JobRecord(
    queue="q",
    id="a",
    task="t",
    state=State.ACTIVE,
    payload=b"[]",
    score=0,
    run_at=0,
    created=0,
    stall=StallTerms(lease=LEASE * SECOND),
)
LIMITED = structs.replace(JOB, timeout=TIMEOUT * SECOND)
WATCHED = structs.replace(JOB, heartbeat_timeout=HEARTBEAT * SECOND)


def require(fine: bool, number: str, message: str) -> None:
    if not fine:
        raise Violation(f"{number}: {message}")


def recovery_checks(fault_log: FaultLog | None = None) -> RecoveryChecks:
    return RecoveryChecks(require, fault_log or FaultLog(), Timing(), overruns=frozenset(), died={}, slack=0.0)


def lost_run(reason: str, *, heard: float = CLAIMED, exclusive: bool = False, started: float = CLAIMED) -> RunHistory:
    run = RunHistory(1, 1, HOLDER, CLAIMED, started, heard, CLAIMED, CLAIMED, holders=[HOLDER, OTHER])
    run.reason, run.exclusive = reason, exclusive
    return run


# Timing(): sweep 2 s, grace 3 s, term 4 s. A lease that expired is noticed within a sweep, and reclaimed within a grace
# and another sweep.
@pytest.mark.parametrize(
    ("job", "run", "latest"),
    [
        (JOB, lost_run("lease_expired", heard=103), 103 + LEASE + 7),
        (LIMITED, lost_run("overrun", heard=103), 100 + TIMEOUT + LEASE / 4 + 7),
        (LIMITED, lost_run("overrun", heard=103, started=102), 102 + TIMEOUT + LEASE / 4 + 7),
        (LIMITED, lost_run("overrun", heard=109, exclusive=True), 109 + LEASE + 7),
        (WATCHED, lost_run("no_progress", heard=103), 100 + HEARTBEAT + 7),
        (WATCHED, lost_run("lease_expired", heard=109, exclusive=True), 109 + LEASE + 7),
    ],
    ids=["lease", "timeout", "extended timeout", "exclusive timeout", "silent", "exclusive silent"],
)
def test_a_lost_run_must_be_recovered_in_time(job: JobRecord, run: RunHistory, latest: float) -> None:
    recovery_checks().recovered(job, run, latest)

    with pytest.raises(Violation, match="I16"):
        recovery_checks().recovered(job, run, latest + 0.001)


# The lease expires at 104. The next leader sweeps when the term of 4 s has ended, and up to half a second later.
@pytest.mark.parametrize(
    ("led_at", "latest"),
    [
        (99.0, 104 + 7),  # another one leads long before the lease expires
        (103.0, 103 + 4.5 + 5),  # the lease expires in the gap: noticed after it
        (105.0, 104 + 7),  # noticed by its own last sweep, and the gap ends within the grace and a sweep
        (108.9, 108.9 + 4.5),  # its own last sweep came just before the end of the grace
        (109.0, 104 + 7),  # its own sweep had to reclaim the job
    ],
)
def test_a_lost_leader_delays_a_recovery_by_its_term(led_at: float, latest: float) -> None:
    def recovered(at: float) -> None:
        checks = recovery_checks()
        checks.led(HOLDER, led_at, 4 * SECOND)
        checks.led(OTHER, at, 4 * SECOND)
        checks.recovered(WATCHED, lost_run("no_progress"), at)

    recovered(latest)
    with pytest.raises(Violation, match="I16"):
        recovered(latest + 0.001)


def test_no_bound_holds_for_a_recovery_with_another_fault() -> None:
    fault_log = FaultLog()
    fault_log.begin("kill", OTHER, CLAIMED)
    checks = recovery_checks(fault_log)
    checks.recovered(JOB, lost_run("lease_expired"), CLAIMED + 1000)

    assert [recovery.clear for recovery in checks.all] == [False]


def handler(name: str, began: float, ended: float, place: int, limit: int) -> tuple[Entry, RunHistory]:
    run = RunHistory(1, place, HOLDER, began, began, began, began, began, place=place, limits={"red": limit})
    return Entry(Ref("q", name), "t", 1, place, HOLDER, began, ended), run


@pytest.mark.parametrize(
    ("runs", "full"),
    [
        ([handler("a", 0, 5, 1, 1), handler("b", 5, 9, 2, 1)], []),
        ([handler("a", 0, 5, 1, 1), handler("b", 4, 9, 2, 1)], ["a", "b"]),
        ([handler("a", 0, 5, 1, 1), handler("b", 4, 4, 2, 1)], ["a", "b"]),
        ([handler("a", 0, 5, 1, 1), handler("b", 4, 9, 2, 2)], []),
        # The limit was lowered before the second claim.
        ([handler("a", 0, 5, 1, 2), handler("b", 4, 9, 2, 1)], ["a", "b"]),
        # It was raised before the second claim, and the first one began later.
        ([handler("a", 6, 7, 1, 1), handler("b", 4, 9, 2, 2)], []),
    ],
    ids=["one after the other", "two", "two, one of no length", "raised", "lowered", "raised, begun late"],
)
def test_a_key_is_checked_against_its_limit_at_the_last_claim(
    runs: Sequence[tuple[Entry, RunHistory]], full: Sequence[str]
) -> None:
    found = list(overfull(runs))

    assert [(key, [entry.ref.id for entry in at_work]) for key, at_work in found] == (
        [(("q", "red"), list(full))] if full else []
    )


def waiting(name: str, tenant: str, score: int) -> JobRecord:
    return structs.replace(JOB, id=name, state=State.WAITING, fair_key=tenant, score=score)


def claim_three_of_one_tenant(other: JobRecord, *, parks: bool) -> None:
    """Claim three jobs of the tenant a, in one step, in which the waiting job of another tenant may be parked."""
    claimed = [waiting(f"a{number}", "a", 10 * number) for number in (1, 2, 3)]
    before = {job.ref: job for job in (*claimed, other)}
    after = before | {other.ref: structs.replace(other, parked_under="red") if parks else other}
    checks = FairnessChecks(require)
    checks.stand({}, before, before)
    checks.claimed([Lease(job) for job in claimed], before, after)


@pytest.mark.parametrize(
    ("score", "parks"), [(25, False), (35, True)], ids=["it waits", "it is parked after the others were claimed"]
)
def test_a_third_turn_while_another_tenant_waits_fails(score: int, parks: bool) -> None:
    with pytest.raises(Violation, match=r"I14: .* 'a' had 3 turns while 'b' waited and had 0"):
        claim_three_of_one_tenant(waiting("b", "b", score), parks=parks)


def test_a_job_parked_by_a_claim_loses_its_turn() -> None:
    claim_three_of_one_tenant(waiting("b", "b", 25), parks=True)
