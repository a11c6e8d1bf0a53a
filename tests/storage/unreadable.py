"""Checks that a damaged job record stops no verb, no other job and no sweep, on any storage."""

from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any

from tenure.core.events import JobFailed
from tenure.core.job import JobDetail, Key, NewJob, Owner, RateKey, RecordedError, Ref, unreadable_record
from tenure.core.lane import Lane
from tenure.core.lease import Lease
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.outcome import Interrupted, Outcome, Raised, Returned, Unreadable
from tenure.core.settlement import Settlement, settlement
from tenure.maintenance.lost_runs import settle_stalled
from tenure.storage.protocol import (
    CancelJob,
    ClaimRequest,
    DeleteJob,
    LeaseRenewal,
    Query,
    RedriveJob,
    RenewRequest,
    Storage,
    SweepRequest,
    WorkerInfo,
)
from tenure.testing import ManualClock

BAD, GOOD = Ref("q", "bad"), Ref("q", "good")
STATES = ("waiting", "again", "delayed", "active", "raised", "lost", "completed")
"""The states of the job when it is damaged. `again`: it waits for its second run. `active`: its run is settled
afterwards. `raised`: its run is settled with an exception. `lost`: its worker sends nothing more."""
SECOND = 1_000_000

ME = Owner("00000000000000aa", "me", "here", 1)
REAPER = Owner("00000000000000bb", "reaper", "here", 2)

Damage = Callable[[], Awaitable[None]]


def job(ref: Ref, *, delay: int = 0, plain: bool = False) -> NewJob:
    """Return a job with many options, or a plain one."""
    common: dict[str, Any] = {"queue": ref.queue, "id": ref.id, "task": "t", "payload": b"[]", "delay": delay}
    if plain:
        return NewJob(**common)
    return NewJob(
        **common,
        headers={"a": "b"},
        tags=("tag",),
        keys=(Key("k", 5),),
        rates=(RateKey("r", 1000, 100),),
        ttl=3600 * SECOND,
        timeout=60 * SECOND,
    )


def some_of(cases: Iterable[str]) -> list[tuple[str, str]]:
    """Return each case with three of the states: waiting, active, and another in turn."""
    others = [state for state in STATES if state not in ("waiting", "active")]
    return [
        (case, state)
        for number, case in enumerate(cases)
        for state in ("waiting", "active", others[number % len(others)])
    ]


async def check_others_continue(
    storage: Storage, clock: ManualClock, state: str, damage: Damage, *, plain: bool = False
) -> tuple[JobDetail | None, list[JobFailed]]:
    """Damage one of two jobs in this state, call every verb, and return the damaged job and the failure events."""
    held = await _create_in_state(storage, state, plain=plain)
    await damage()

    await _read_all(storage)
    if state == "lost":
        held = {}
    elif held:
        renewals = tuple(LeaseRenewal(lease.ref, lease.fence) for lease in held.values())
        pulse = await storage.renew(RenewRequest(ME, renewals, worker=WorkerInfo(("q",), 10)))
        assert GOOD not in [ref for ref, _ in pulse.lost]
    else:
        clock.advance(11)
        held = await _claimed(storage)
        assert (GOOD in held) == (state != "completed")
    await _settle(storage, held, raised=BAD if state == "raised" else None)
    await _read_all(storage)

    clock.advance(600)
    await _sweep(storage, clock)
    await _read_all(storage)

    good, bad = await storage.get([GOOD, BAD])
    assert good is not None
    assert good.job.state is State.COMPLETED
    failed = [event for event in (await storage.events(limit=1000)).events if isinstance(event, JobFailed)]
    for revision in (CancelJob(BAD), RedriveJob(BAD), CancelJob(BAD), DeleteJob(BAD)):
        await storage.revise([revision])
    await storage.enqueue([job(BAD)])
    return bad, failed


async def claim_in_a_lane(storage: Storage, clock: ManualClock, damage: Damage, *, plain: bool = False) -> None:
    """Damage one of two jobs whose claim was not answered, and make more claims in the same lane.

    The storage hands back the jobs of such a claim. It must do so only once.
    """
    await storage.enqueue([job(BAD, plain=plain), job(GOOD, plain=plain)])
    await storage.exchange(ME, (), ClaimRequest(("q",), 10, Lane(0, 1, 0)))
    await damage()
    await storage.renew(RenewRequest(ME, worker=WorkerInfo(("q",), 10), lanes=(Lane(0, 2, 0),)))
    given: list[Ref] = []
    held: dict[Ref, Lease] = {}
    for number in range(2, 8):
        answer = await storage.exchange(ME, _ended(held), ClaimRequest(("q",), 10, Lane(0, number, number - 1)))
        held = {lease.ref: lease for lease in answer.leases}
        given += held
        renewals = tuple(LeaseRenewal(lease.ref, lease.fence) for lease in held.values())
        await storage.renew(
            RenewRequest(ME, renewals, worker=WorkerInfo(("q",), 10), lanes=(Lane(0, number + 1, number),))
        )

    assert not held
    assert given.count(BAD) <= 1
    assert given.count(GOOD) == 1
    # A job with an unreadable fence or owner cannot be assigned to that claim: its lease expires.
    clock.advance(600)
    await _sweep(storage, clock)
    good, bad = await storage.get([GOOD, BAD])
    assert good is not None
    assert good.job.state is State.COMPLETED
    assert bad is None or bad.job.state in TERMINAL


async def _create_in_state(storage: Storage, state: str, *, plain: bool) -> dict[Ref, Lease]:
    """Create two jobs in this state; return the leases that are held then."""
    delay = 10 * SECOND if state == "delayed" else 0
    await storage.enqueue([job(BAD, delay=delay, plain=plain), job(GOOD, delay=delay, plain=plain)])
    if state in ("waiting", "delayed"):
        return {}
    held = await _claimed(storage)
    assert set(held) == {BAD, GOOD}
    if state == "completed":
        await _settle(storage, held)
        return {}
    if state == "again":
        await storage.exchange(ME, [settlement(lease, Interrupted("shutdown"), Random(1)) for lease in held.values()])
        return {}
    return held


async def _sweep(storage: Storage, clock: ManualClock) -> None:
    """Sweep four times, and run all claimable jobs after each sweep."""
    for _ in range(4):
        swept = await storage.sweep(SweepRequest(REAPER, term=None))
        assert swept.troubles == ()
        await settle_stalled(storage, REAPER, swept.stalled, Random(1))
        clock.advance(10)
        await _settle(storage, await _claimed(storage))


async def _claimed(storage: Storage) -> dict[Ref, Lease]:
    answer = await storage.exchange(ME, (), ClaimRequest(("q",), 10))
    return {lease.ref: lease for lease in answer.leases}


def _ended(held: dict[Ref, Lease], raised: Ref | None = None) -> list[Settlement]:
    """Return the settlements that a worker would send: an unreadable job never runs."""

    def outcome(lease: Lease) -> Outcome:
        if lease.job.unreadable is not None:
            return Unreadable(unreadable_record(lease.job.unreadable))
        return Raised(RecordedError("ValueError", "no")) if lease.ref == raised else Returned(b"1")

    return [settlement(lease, outcome(lease), Random(1)) for lease in held.values()]


async def _settle(storage: Storage, held: dict[Ref, Lease], raised: Ref | None = None) -> None:
    answer = await storage.exchange(ME, _ended(held, raised))
    verdicts = {verdict.ref: verdict.verdict for verdict in answer.verdicts}
    assert verdicts.get(GOOD, "done") == "done"


async def _read_all(storage: Storage) -> None:
    """Call all verbs that only read."""
    await storage.get([BAD, GOOD])
    page = await storage.find(Query(queues=("q",)))
    assert GOOD in [found.ref for found in page.jobs]
    await storage.find(Query())
    await storage.find(Query(queues=("q",), id="bad"))
    await storage.find(Query(queues=("q",), tags=("tag",)))
    for state in State:
        await storage.find(Query(queues=("q",), states=(state,)))
    await storage.survey()
    await storage.events(limit=1000)
    await storage.events(limit=1000, ref=BAD)
