"""Conformance tests of waiting jobs: tokens, the eighth state, suspended runs, and timers."""

from collections.abc import Sequence
from itertools import permutations

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.events import JobReleased
from tenure.core.job import JobRecord, Key, NewJob, Ref, ThrottleKey, UniqueKey
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.outcome import Snoozed, Suspended
from tenure.core.waiting import (
    Dependent,
    JobKind,
    Links,
    Need,
    NeedMode,
    TokenOutcome,
    Wait,
    WaitToken,
)
from tenure.errors import FlowError
from tenure.maintenance.outbox import carry_out
from tenure.storage.protocol import CancelJob, ClaimRequest, RescheduleJob, RevisionResult, Storage
from tenure.storage.waiting import DeliverToken, SealBox
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    QUEUE,
    RAISED,
    Conformance,
    apply,
    bid,
    claim,
    claim_one,
    counted,
    enqueue,
    events_of,
    look,
    new_job,
    order,
    record,
    recover,
    settle,
    settled,
    start,
)

END = "end"
"""The key of the token that a job delivers at its end."""

DAY = 86_400 * SECOND


def ref_of(name: str) -> Ref:
    """Return the identity of a job of the usual queue."""
    return Ref(QUEUE, name)


def linked(
    name: str,
    *,
    after: Sequence[str | Need] = (),
    to: Sequence[str] = (),
    any_of: bool = False,
    kind: JobKind = JobKind.JOB,
    flow: str | None = None,
    like: NewJob | None = None,
) -> NewJob:
    """Return a job that waits for others, and whose end others wait for.

    `after`: needs, or the ids of jobs. `to`: the ids of the jobs that are notified. The box of a token has the id of
    the job that it is from.
    """
    needs = tuple(Need(box=need, source=ref_of(need)) if isinstance(need, str) else need for need in after)
    links = Links(
        wait=Wait(needs, "any" if any_of else "all") if needs else None,
        dependents=tuple(Dependent(ref_of(other), name, END) for other in to),
        kind=kind,
        flow=None if flow is None else ref_of(flow),
    )
    return structs.replace(like or new_job(), id=name, links=links)


def token(box: str, outcome: TokenOutcome = "completed", *, key: str = END) -> WaitToken:
    """Return a token."""
    return WaitToken(box, key, outcome)


async def deliver(storage: Storage, to: str, *tokens: WaitToken) -> list[RevisionResult]:
    """Deliver tokens to a job of the usual queue."""
    return await storage.revise([DeliverToken(ref_of(to), one) for one in tokens])


async def state_of(storage: Storage, name: str) -> State:
    """Return the state of a job of the usual queue."""
    return (await record(storage, ref_of(name))).state


async def suspend(storage: Storage, lease: Lease, *needs: Need) -> JobRecord:
    """Suspend a run, and return the job's record after that."""
    assert await settle(storage, ALICE, lease, Suspended(Wait(needs))) == "done"
    return await record(storage, lease.ref)


async def carry_all(storage: Storage, clock: ManualClock) -> None:
    """Sweep as in production until no entry of the outbox is left."""
    for _ in range(100):
        clock.advance(2)
        swept = await storage.sweep(bid())
        if not swept.outbox:
            return
        await carry_out(storage, swept.outbox)
    raise AssertionError("a hundred sweeps, and still there are entries in the outbox")


class WaitingConformance(Conformance):
    """A job that waits is suspended until its tokens have arrived."""

    async def test_a_job_with_an_unmet_wait_is_suspended(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=["a"]))
        job = await record(storage, ref_of("b"))

        assert (job.state, job.owner, job.lease_until, job.starts) == (State.SUSPENDED, None, None, 0)
        assert await claim(storage) == []
        assert await counted(storage) == {State.SUSPENDED: 1}

    async def test_a_run_that_would_wait_for_nothing_is_not_suspended(self, storage: Storage) -> None:
        lease = await start(storage, new_job("a"))
        with pytest.raises(FlowError):
            await storage.exchange(ALICE, [settled(lease, Suspended(Wait(())))])

        assert await record(storage, lease.ref) == lease.job

    async def test_a_job_whose_wait_is_met_waits_to_start(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=[Need(box="members", count=0)]))

        assert (await claim_one(storage)).ref == ref_of("b")

    async def test_a_token_wakes_a_job(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=["a"]))
        (answer,) = await deliver(storage, "b", token("a"))

        assert (answer.verdict, answer.state) == ("done", State.SUSPENDED)
        assert (await claim_one(storage)).ref == ref_of("b")

    async def test_a_chain_runs_in_order(self, storage: Storage) -> None:
        await enqueue(storage, linked("c", after=["b"]), linked("b", after=["a"], to=["c"]), linked("a", to=["b"]))
        ran: list[str] = []
        for _ in range(3):
            lease = await claim_one(storage)
            ran.append(lease.ref.id)
            assert await settle(storage, ALICE, lease) == "done"

        assert ran == ["a", "b", "c"]
        assert await counted(storage) == {State.COMPLETED: 3}

    async def test_one_exchange_settles_a_job_and_claims_its_dependent(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=["a"]), linked("a", to=["b"]))
        lease = await claim_one(storage)
        answer = await storage.exchange(ALICE, [settled(lease)], ClaimRequest((QUEUE,), 1))

        assert [lease.ref.id for lease in answer.leases] == ["b"]

    async def test_a_repeated_flow_makes_nothing_and_keeps_its_tokens(self, storage: Storage) -> None:
        flow = [linked("c", after=["a", "b"]), linked("b", to=["c"]), linked("a", to=["c"])]
        await enqueue(storage, *flow)
        assert await settle(storage, ALICE, await _claim_named(storage, "a")) == "done"
        again = await storage.enqueue(flow)

        assert [result.action for result in again] == ["duplicate"] * 3
        await deliver(storage, "c", token("b"))
        assert await state_of(storage, "c") is State.WAITING

    async def test_a_repeated_call_delivers_the_token_of_an_ended_job(self, storage: Storage) -> None:
        await enqueue(storage, new_job("a"))
        assert await settle(storage, ALICE, await claim_one(storage)) == "done"
        await enqueue(storage, linked("b", after=["a"]))
        (again,) = await storage.enqueue([linked("a", to=["b"])])

        assert again.action == "duplicate"
        assert await state_of(storage, "b") is State.WAITING

    async def test_a_token_counts_though_it_came_before_the_wait(self, storage: Storage) -> None:
        lease = await start(storage, new_job("a"))
        await deliver(storage, "a", token("x"))
        job = await suspend(storage, lease, Need(box="x"))

        assert job.state is State.WAITING

    async def test_a_token_counts_once_however_often_it_arrives(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=[Need(box="x", count=2)]))
        answers = await deliver(storage, "b", *[token("x", key="1")] * 3)

        assert [answer.verdict for answer in answers] == ["done"] * 3
        assert await state_of(storage, "b") is State.SUSPENDED
        await deliver(storage, "b", token("x", key="2"))
        assert await state_of(storage, "b") is State.WAITING

    @pytest.mark.parametrize("outcomes", [("failed", "completed"), ("completed", "failed")])
    async def test_completed_wins_over_failed_in_any_order(
        self, storage: Storage, outcomes: tuple[TokenOutcome, TokenOutcome]
    ) -> None:
        await enqueue(storage, linked("b", after=["x", "y"]))
        await deliver(storage, "b", *(token("x", outcome) for outcome in outcomes))
        assert await state_of(storage, "b") is State.SUSPENDED
        await deliver(storage, "b", token("y"))

        assert await state_of(storage, "b") is State.WAITING

    async def test_the_order_of_tokens_does_not_matter(self, storage: Storage) -> None:
        tokens = [
            *(token("x", "failed", key="1"), token("x", key="1"), token("x", key="2")),
            *(token("y", "failed", key="1"), token("y", key="2")),
        ]
        needs = [Need(box="x", count=2), Need(box="y", count=2, mode="count")]
        for number, arranged in enumerate(permutations(tokens)):
            await enqueue(storage, linked(f"job-{number}", after=needs))
            await deliver(storage, f"job-{number}", *arranged)

        assert await counted(storage) == {State.WAITING: 120}

    async def test_a_token_for_an_unknown_job_is_dropped(self, storage: Storage) -> None:
        (answer,) = await deliver(storage, "b", token("a"))

        assert answer.verdict == "gone"

    async def test_an_open_need_is_not_met_before_its_seal(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=[Need(box="x", count=None)]))
        await deliver(storage, "b", token("x", key="1"), token("x", key="2"))

        assert await state_of(storage, "b") is State.SUSPENDED

    async def test_a_seal_meets_a_need_whose_tokens_are_all_there(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=[Need(box="x", count=None)]))
        await deliver(storage, "b", token("x", key="1"), token("x", key="2"))
        assert [result.verdict for result in await storage.revise([SealBox(ref_of("b"), "x", 2)] * 2)] == ["done"] * 2

        assert await state_of(storage, "b") is State.WAITING

    async def test_any_need_wakes_a_job_and_its_step_says_which(self, storage: Storage) -> None:
        needs = [Need(box="x", step="first"), Need(box="y", step="second")]
        await enqueue(storage, linked("b", after=needs, any_of=True))
        await deliver(storage, "b", token("y"))
        detail = await look(storage, ref_of("b"))

        assert detail.job.state is State.WAITING
        assert [(step.name, step.by) for step in detail.steps] == [("second", "completed")]

    @pytest.mark.parametrize(
        ("mode", "outcome", "state", "reason"),
        [
            ("fail", "completed", State.WAITING, None),
            ("fail", "failed", State.FAILED, "dependency"),
            ("count", "failed", State.WAITING, None),
            ("tally", "failed", State.FAILED, "dependency"),
            ("only", "completed", State.WAITING, None),
            ("only", "failed", State.CANCELLED, "skipped"),
            ("unless", "completed", State.CANCELLED, "skipped"),
            ("unless", "failed", State.WAITING, None),
        ],
    )
    async def test_the_mode_of_a_need_decides_what_an_end_does(
        self, storage: Storage, mode: NeedMode, outcome: TokenOutcome, state: State, reason: str | None
    ) -> None:
        await enqueue(storage, linked("b", after=[Need(box="a", mode=mode)]))
        await deliver(storage, "b", token("a", outcome))
        job = await record(storage, ref_of("b"))

        assert (job.state, job.reason) == (state, reason)

    async def test_a_fail_need_breaks_at_the_first_failure(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=[Need(box="x", count=5)]))
        await deliver(storage, "b", token("x", "failed", key="3"))

        assert await state_of(storage, "b") is State.FAILED

    @pytest.mark.parametrize(("mode", "state"), [("count", State.WAITING), ("tally", State.FAILED)])
    async def test_count_and_tally_wait_for_all(self, storage: Storage, mode: NeedMode, state: State) -> None:
        await enqueue(storage, linked("b", after=[Need(box="x", count=2, mode=mode)]))
        await deliver(storage, "b", token("x", "failed", key="1"))
        assert await state_of(storage, "b") is State.SUSPENDED
        await deliver(storage, "b", token("x", key="2"))

        assert await state_of(storage, "b") is state

    async def test_a_suspended_job_keeps_its_unique_key(self, storage: Storage) -> None:
        key = UniqueKey("k")
        await enqueue(storage, linked("b", after=["a"], like=new_job(merge=key)))
        (again,) = await storage.enqueue([new_job("c", merge=key)])

        assert (again.action, again.ref) == ("duplicate", ref_of("b"))

    async def test_a_suspended_job_cannot_be_rescheduled(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=["a"]))
        (answer,) = await storage.revise([RescheduleJob(ref_of("b"), delay=0)])

        assert (answer.verdict, answer.state) == ("refused", State.SUSPENDED)

    async def test_a_cancel_ends_a_suspended_job_at_once(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=["a"]))
        (answer,) = await storage.revise([CancelJob(ref_of("b"), by="ann")])
        await deliver(storage, "b", token("a"))

        assert (answer.verdict, answer.state) == ("done", State.SUSPENDED)
        assert await state_of(storage, "b") is State.CANCELLED

    async def test_the_time_to_live_counts_from_the_wake(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, linked("b", after=["a"], like=new_job(ttl=10 * SECOND)))
        clock.advance(3600)
        await storage.sweep(bid())
        await deliver(storage, "b", token("a"))
        assert (await record(storage, ref_of("b"))).expires_at == clock.now() + 10 * SECOND
        clock.advance(10)

        assert await claim(storage) == []
        assert await state_of(storage, "b") is State.EXPIRED

    @pytest.mark.parametrize(
        "job",
        [
            linked("b", after=["a"], like=new_job(delay=SECOND)),
            linked("b", after=[Need(box=f"box-{number}") for number in range(65)]),
            linked("b", to=[f"job-{number}" for number in range(65)]),
            linked("b", kind=JobKind.GROUP),
            structs.replace(new_job("b"), links=Links(wait=Wait(()))),
        ],
        ids=["delay", "needs", "dependents", "group", "nothing"],
    )
    async def test_an_invalid_wait_is_refused_and_nothing_is_stored(self, storage: Storage, job: NewJob) -> None:
        with pytest.raises(FlowError):
            await storage.enqueue([new_job("a"), job])

        assert await counted(storage) == {}

    async def test_a_throttled_call_notifies_its_dependents(self, storage: Storage) -> None:
        throttle = ThrottleKey("k", 1, DAY)
        await enqueue(storage, new_job("first", throttle=throttle), linked("b", after=["a"]))
        (answer,) = await storage.enqueue([linked("a", to=["b"], like=new_job(throttle=throttle))])

        assert answer.action == "throttled"
        assert await state_of(storage, "b") is State.FAILED


class SuspendConformance(Conformance):
    """A run that waits is settled, and its job goes on in a later run."""

    async def test_a_suspended_run_ends_and_holds_nothing(self, storage: Storage) -> None:
        lease = await start(storage, new_job("a", keys=(Key("k"),)))
        job = await suspend(storage, lease, Need(box="x"))
        detail = await look(storage, job.ref)

        assert (job.state, job.owner, job.lease_until, job.reason) == (State.SUSPENDED, None, None, "suspended")
        assert (job.starts, job.failures, job.stalls, job.releases) == (1, 0, 0, 1)
        assert [(run.ended, run.reason) for run in detail.runs] == [("released", "suspended")]
        assert [event.reason for event in await events_of(storage, JobReleased)] == ["suspended"]

    async def test_a_suspended_job_leaves_its_concurrency_key_free(self, storage: Storage) -> None:
        lease = await start(storage, new_job("a", keys=(Key("k"),)))
        await enqueue(storage, new_job("b", keys=(Key("k"),)))
        assert await claim(storage) == []
        await suspend(storage, lease, Need(box="x"))

        assert (await claim_one(storage)).ref == ref_of("b")

    async def test_a_suspended_job_is_never_reclaimed(self, storage: Storage, clock: ManualClock) -> None:
        await suspend(storage, await start(storage, new_job("a")), Need(box="x"))

        assert await recover(storage, clock, seconds=120) == []
        assert (await storage.reclaim(ALICE.id, BOB)).stalled == ()
        assert await state_of(storage, "a") is State.SUSPENDED

    async def test_a_run_with_its_token_there_goes_back_with_its_old_score(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage, new_job("a"))
        clock.advance(60)
        await enqueue(storage, new_job("later"))
        await deliver(storage, "a", token("x"))
        job = await suspend(storage, lease, Need(box="x"))

        assert (job.state, job.score) == (State.WAITING, lease.job.score)
        assert (await claim_one(storage)).ref == ref_of("a")

    async def test_a_woken_job_comes_before_jobs_enqueued_meanwhile(self, storage: Storage, clock: ManualClock) -> None:
        await suspend(storage, await start(storage, new_job("a")), Need(box="x"))
        clock.advance(60)
        await enqueue(storage, new_job("later"))
        await deliver(storage, "a", token("x"))

        assert (await claim_one(storage)).ref == ref_of("a")

    async def test_a_suspension_under_an_old_fence_is_lost(self, storage: Storage) -> None:
        lease = await start(storage, new_job("a"))
        await settle(storage, ALICE, lease, Snoozed(0))
        again = await claim_one(storage, BOB)
        late = structs.replace(settled(lease, Suspended(Wait((Need(box="x"),)))), fence=lease.fence - 1)

        assert await apply(storage, ALICE, late) == "lost"
        assert await record(storage, ref_of("a")) == again.job

    async def test_a_repeated_suspension_is_a_duplicate(self, storage: Storage) -> None:
        lease = await start(storage, new_job("a"))
        asked = settled(lease, Suspended(Wait((Need(box="x"),))))
        assert await apply(storage, ALICE, asked) == "done"
        assert await apply(storage, ALICE, asked) == "duplicate"
        await deliver(storage, "a", token("x"))

        assert await apply(storage, ALICE, asked) == "duplicate"
        assert await state_of(storage, "a") is State.WAITING

    async def test_a_wake_gives_new_budgets_and_starts_rise(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("a"))
        await settle(storage, ALICE, lease, RAISED)
        clock.advance(1)
        await claim_one(storage)
        await recover(storage, clock)
        lease = await claim_one(storage)
        assert (lease.job.failures, lease.job.stalls) == (1, 1)
        await suspend(storage, lease, Need(box="x"))
        await deliver(storage, "a", token("x"))
        job = (await claim_one(storage)).job

        assert (job.failures, job.stalls, job.starts) == (0, 0, 4)

    async def test_a_cancelled_run_that_suspends_ends_as_cancelled(self, storage: Storage) -> None:
        lease = await start(storage, new_job("a"))
        await storage.revise([CancelJob(ref_of("a"))])
        job = await suspend(storage, lease, Need(box="x"))

        assert job.state is State.CANCELLED

    async def test_a_broken_wait_wakes_a_job_that_has_started(self, storage: Storage) -> None:
        await suspend(storage, await start(storage, new_job("a")), Need(box="x", step="child"))
        await deliver(storage, "a", token("x", "failed"))
        detail = await look(storage, ref_of("a"))

        assert detail.job.state is State.WAITING
        assert [(step.name, step.by) for step in detail.steps] == [("child", "failed")]

    async def test_a_signal_is_recorded_with_its_content(self, storage: Storage) -> None:
        await suspend(storage, await start(storage, new_job("a")), Need(box="signal:approved", step="approval"))
        await deliver(storage, "a", WaitToken("signal:approved", "message-1", body=b"yes"))
        (step,) = (await look(storage, ref_of("a"))).steps

        assert (step.name, step.run, step.by, step.body) == ("approval", 1, "completed", b"yes")

    async def test_a_signal_to_an_ended_job_is_refused(self, storage: Storage) -> None:
        await settle(storage, ALICE, await start(storage, new_job("a")))
        (answer,) = await deliver(storage, "a", WaitToken("signal:approved", "message-1", body=b"yes"))

        assert (answer.verdict, answer.state) == ("refused", State.COMPLETED)


class TimersConformance(Conformance):
    """Time alone may end a wait."""

    async def test_a_claim_wakes_a_job_at_its_time_and_no_earlier(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("a"))
        await suspend(storage, lease, Need(box="timer", until=clock.now() + 10 * SECOND))
        answer = await order(storage, ALICE, room=1)
        assert (answer.leases, answer.next_due) == ((), 10 * SECOND)
        clock.advance(9)
        assert await claim(storage) == []
        clock.advance(1)

        assert (await claim_one(storage)).ref == ref_of("a")

    async def test_a_sweep_wakes_a_job_at_its_time_and_no_earlier(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("a"))
        await suspend(storage, lease, Need(box="timer", until=clock.now() + 10 * SECOND))
        clock.advance(9)
        await storage.sweep(bid())
        assert await state_of(storage, "a") is State.SUSPENDED
        clock.advance(1)
        await storage.sweep(bid())

        assert await state_of(storage, "a") is State.WAITING

    async def test_a_wait_whose_time_has_passed_ends_at_once(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("a"))
        job = await suspend(storage, lease, Need(box="timer", until=clock.now()))

        assert job.state is State.WAITING

    @pytest.mark.parametrize("first", ["token", "timer"])
    async def test_a_timer_and_a_token_make_one_outcome(self, storage: Storage, clock: ManualClock, first: str) -> None:
        lease = await start(storage, new_job("a"))
        need = Need(box="signal:approved", until=clock.now() + 10 * SECOND, step="approval")
        await suspend(storage, lease, need)
        if first == "token":
            await deliver(storage, "a", token("signal:approved"))
        clock.advance(10)
        await storage.sweep(bid())
        await deliver(storage, "a", token("signal:approved"))
        (step,) = (await look(storage, ref_of("a"))).steps

        assert step.by == ("completed" if first == "token" else "timer")
        assert (await claim_one(storage)).job.starts == 2
        assert await claim(storage) == []

    async def test_all_needs_with_times_end_at_the_latest(self, storage: Storage, clock: ManualClock) -> None:
        now = clock.now()
        await enqueue(storage, linked("b", after=[Need(box="x"), Need(box="y", until=now + 10 * SECOND)]))
        clock.advance(10)
        await storage.sweep(bid())
        assert await state_of(storage, "b") is State.SUSPENDED
        await deliver(storage, "b", token("x"))

        assert await state_of(storage, "b") is State.WAITING

    async def test_a_need_left_with_a_time_ends_at_that_time(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, linked("b", after=[Need(box="x"), Need(box="y", until=clock.now() + 10 * SECOND)]))
        await deliver(storage, "b", token("x"))
        assert await state_of(storage, "b") is State.SUSPENDED
        clock.advance(10)

        assert (await claim_one(storage)).ref == ref_of("b")

    async def test_a_deadline_that_passes_wakes_a_suspended_job(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("a", deadline=clock.now() + 60 * SECOND))
        await suspend(storage, lease, Need(box="x"))
        assert (await order(storage, ALICE, room=1)).next_due == 60 * SECOND
        clock.advance(60)

        # Its run ends at once, as that of any job whose deadline has passed.
        assert (await claim_one(storage)).ref == ref_of("a")


async def _claim_named(storage: Storage, name: str) -> Lease:
    leases = await claim(storage)
    return next(lease for lease in leases if lease.ref.id == name)
