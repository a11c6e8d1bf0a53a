"""Conformance tests of durable handlers: steps are recorded once and kept, and signals are kept in order."""

import pytest

from tenure.clock import SECOND
from tenure.core.events import RunFenced
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.outcome import Interrupted, Rejected, Snoozed, Suspended
from tenure.core.steps import SIGNAL_BYTES, SIGNALS_LIMIT, STEP_BYTES, NewStep
from tenure.core.waiting import SLEEP, Need, StepRecord, Wait, WaitToken
from tenure.errors import FlowError
from tenure.storage.protocol import Storage
from tenure.storage.requests import LeaseRenewal, RenewRequest, RenewResult
from tenure.storage.revisions import CancelJob, DeleteJob, RedriveJob
from tenure.storage.waiting import DeliverToken
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    ERROR,
    RAISED,
    Conformance,
    bid,
    claim_one,
    enqueue,
    events_of,
    look,
    new_job,
    record,
    recover,
    settle,
    start,
)
from tenure_testing.conformance.waiting import DAY, deliver, ref_of, state_of, suspend

CHARGED = NewStep("charge", body=b"1", took=250)
REFUSED = NewStep("ship", by="failed", body=b"{}")


async def record_steps(storage: Storage, lease: Lease, *steps: NewStep) -> RenewResult:
    """Record steps of a run."""
    return await storage.renew(RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence, steps=steps),)))


async def steps_of(storage: Storage, name: str = "a") -> list[StepRecord]:
    """Return the recorded steps of a job."""
    return list((await look(storage, ref_of(name))).steps)


async def names_of(storage: Storage, name: str = "a") -> list[str]:
    """Return the names of the recorded steps of a job."""
    return [step.name for step in await steps_of(storage, name)]


def signal(id_: str, *, name: str = "approved", body: bytes | None = b"{}") -> WaitToken:
    """Return a signal."""
    return WaitToken(f"signal:{name}", id_, body=body)


def signal_need(count: int = 1, *, step: str = "approved", until: int | None = None) -> Need:
    """Return the need for the signal of this number."""
    return Need(box="signal:approved", count=count, step=step, until=until)


class StepsConformance(Conformance):
    """Steps of a run are recorded under its fence, and stay with the job."""

    async def test_a_step_is_kept_and_read_back_equal_and_in_order(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("a"))
        await record_steps(storage, lease, CHARGED, REFUSED)
        first = clock.now()
        clock.advance(1)
        await record_steps(storage, lease, NewStep("pause", "sleep", "timer"))

        assert await steps_of(storage) == [
            StepRecord("charge", 1, first, "completed", b"1", "step", 250),
            StepRecord("ship", 1, first, "failed", b"{}", "step", None),
            StepRecord("pause", 1, first + SECOND, "timer", None, "sleep", None),
        ]

    async def test_the_second_record_of_a_name_changes_nothing(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("a"))
        await record_steps(storage, lease, CHARGED, NewStep("charge", body=b"2"))
        before = await steps_of(storage)
        clock.advance(1)
        await record_steps(storage, lease, NewStep("charge", by="failed"))

        assert await steps_of(storage) == before
        assert [step.body for step in before] == [b"1"]

    async def test_a_step_extends_the_lease(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("a"))
        clock.advance(10)
        assert await record_steps(storage, lease, CHARGED) == RenewResult()

        assert (await record(storage, lease.ref)).lease_until == clock.now() + lease.job.stall.lease

    async def test_a_step_of_an_older_run_is_lost_and_not_written(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("a"))
        await recover(storage, clock)
        await claim_one(storage)
        answer = await record_steps(storage, lease, CHARGED)

        assert answer.lost == ((lease.ref, lease.fence),)
        assert await steps_of(storage) == []
        assert [event.fence for event in await events_of(storage, RunFenced)] == [lease.fence]

    async def test_a_step_of_another_owner_is_lost(self, storage: Storage) -> None:
        lease = await start(storage, new_job("a"))
        renewal = LeaseRenewal(lease.ref, lease.fence, steps=(CHARGED,))
        answer = await storage.renew(RenewRequest(BOB, (renewal,)))

        assert answer.lost == ((lease.ref, lease.fence),)
        assert await steps_of(storage) == []

    async def test_a_step_after_the_settlement_is_lost(self, storage: Storage) -> None:
        lease = await start(storage, new_job("a"))
        await settle(storage, ALICE, lease)
        answer = await record_steps(storage, lease, CHARGED)

        assert answer.lost == ((lease.ref, lease.fence),)
        assert await steps_of(storage) == []

    async def test_a_run_that_is_asked_to_stop_records_its_step(self, storage: Storage) -> None:
        lease = await start(storage, new_job("a"))
        await storage.revise([CancelJob(lease.ref, reason="no more")])
        answer = await record_steps(storage, lease, CHARGED)

        assert [run.reason for run in answer.cancelling] == ["no more"]
        assert await names_of(storage) == ["charge"]

    @pytest.mark.parametrize(
        "step",
        [NewStep(""), NewStep("a b"), NewStep("a" * 65), NewStep("a#0"), NewStep("a", body=b"x" * (STEP_BYTES + 1))],
        ids=["empty", "space", "long", "number", "large"],
    )
    async def test_an_invalid_step_is_refused_and_nothing_written(self, storage: Storage, step: NewStep) -> None:
        lease = await start(storage, new_job("a"))
        with pytest.raises(FlowError):
            await record_steps(storage, lease, CHARGED, step)

        assert await steps_of(storage) == []

    async def test_the_longest_and_the_shortest_names_and_values_are_stored(self, storage: Storage) -> None:
        steps = [
            NewStep(f"{'a' * 64}#10000~99999"),
            NewStep(f"{'a' * 64}@{'k' * 64}"),
            NewStep("a", body=b"x" * STEP_BYTES),
            NewStep("empty", body=b""),
            NewStep("none"),
        ]
        await record_steps(storage, await start(storage, new_job("a")), *steps)

        stored = [(step.name, step.body) for step in await steps_of(storage)]
        assert stored == [(step.name, step.body) for step in steps]

    async def test_steps_survive_put_backs_stalls_and_suspensions(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("a"))
        await record_steps(storage, lease, CHARGED, REFUSED)
        await settle(storage, ALICE, lease, Interrupted("shutdown"))
        await settle(storage, ALICE, await claim_one(storage), Snoozed(SECOND))
        clock.advance(1)
        await settle(storage, ALICE, await claim_one(storage), RAISED)
        clock.advance(600)
        await claim_one(storage)
        await recover(storage, clock)
        await suspend(storage, await claim_one(storage), Need(box="x"))

        assert await names_of(storage) == ["charge", "ship"]

    async def test_a_later_run_adds_its_steps(self, storage: Storage) -> None:
        lease = await start(storage, new_job("a"))
        await record_steps(storage, lease, CHARGED)
        await settle(storage, ALICE, lease, Interrupted("shutdown"))
        await record_steps(storage, await claim_one(storage), NewStep("ship"))

        assert [(step.name, step.run) for step in await steps_of(storage)] == [("charge", 1), ("ship", 2)]

    async def test_a_redrive_forgets_failures_and_keeps_the_others(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("a"))
        pauses = [NewStep(name, "sleep", "timer") for name in ("pause", "charge~1", "ship~1")]
        await record_steps(storage, lease, CHARGED, *pauses, REFUSED)
        await suspend(storage, lease, signal_need(until=clock.now() + DAY))
        clock.advance(86_400)
        lease = await claim_one(storage)
        assert await names_of(storage) == ["charge", "pause", "charge~1", "ship~1", "ship", "approved"]
        await settle(storage, ALICE, lease, Rejected(ERROR))
        await storage.revise([RedriveJob(ref_of("a"))])

        # The pauses between the attempts of the failed step are forgotten, too.
        assert await names_of(storage) == ["charge", "pause", "charge~1"]
        assert (await claim_one(storage)).ref == ref_of("a")

    async def test_a_redriven_job_that_fails_at_once_may_be_redriven(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await suspend(storage, await start(storage, new_job("a")), signal_need(until=clock.now() + DAY))
        clock.advance(86_400)
        for _ in range(2):
            await settle(storage, ALICE, await claim_one(storage), Rejected(ERROR))
            await storage.revise([RedriveJob(ref_of("a"))])

        # Its wait is over, although the record of its time is gone.
        assert await state_of(storage, "a") is State.WAITING

    async def test_steps_end_with_the_job(self, storage: Storage) -> None:
        lease = await start(storage, new_job("a"))
        await record_steps(storage, lease, CHARGED)
        await settle(storage, ALICE, lease)
        assert await names_of(storage) == ["charge"]
        await storage.revise([DeleteJob(lease.ref)])
        await enqueue(storage, new_job("a"))

        assert await steps_of(storage) == []

    async def test_a_wait_records_what_kind_it_was(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("a"))
        needs = (
            Need(box=SLEEP, until=clock.now() + SECOND, step="pause"),
            signal_need(),
            Need(box="child", step="child"),
        )
        await settle(storage, ALICE, lease, Suspended(Wait(needs)))
        await deliver(storage, "a", signal("1"), WaitToken("child", "1"))
        clock.advance(1)
        await storage.sweep(bid())

        assert [(step.kind, step.by) for step in await steps_of(storage)] == [
            ("sleep", "timer"),
            ("signal", "completed"),
            ("wait", "completed"),
        ]


class SignalsConformance(Conformance):
    """The mailbox of a job keeps signals in the order of their arrival, up to a limit."""

    async def test_signals_are_read_in_the_order_of_their_arrival(self, storage: Storage) -> None:
        lease = await start(storage, new_job("a"))
        ids = ("9", "1", "10", "5")
        await deliver(storage, "a", *(signal(id_, body=id_.encode()) for id_ in ids))
        for number in range(1, 5):
            step = "approved" if number == 1 else f"approved#{number}"
            await suspend(storage, lease, signal_need(number, step=step))
            lease = await claim_one(storage)

        assert [step.body for step in await steps_of(storage)] == [b"9", b"1", b"10", b"5"]

    async def test_a_signal_waits_for_a_job_that_does_not_wait_yet(self, storage: Storage) -> None:
        await enqueue(storage, new_job("a"))
        await deliver(storage, "a", signal("1", body=b"early"))
        job = await suspend(storage, await claim_one(storage), signal_need())
        (step,) = await steps_of(storage)

        assert (job.state, step.body) == (State.WAITING, b"early")

    async def test_of_two_signals_of_one_id_the_first_counts(self, storage: Storage) -> None:
        lease = await start(storage, new_job("a"))
        answers = await deliver(storage, "a", signal("1", body=b"first"), signal("1", body=b"second"))
        await suspend(storage, lease, signal_need())
        job = await suspend(storage, await claim_one(storage), signal_need(2, step="approved#2"))

        assert [answer.verdict for answer in answers] == ["done", "done"]
        assert job.state is State.SUSPENDED
        assert [step.body for step in await steps_of(storage)] == [b"first"]

    async def test_signals_of_two_names_do_not_mix(self, storage: Storage) -> None:
        lease = await start(storage, new_job("a"))
        await deliver(storage, "a", signal("1", name="stop"))

        assert (await suspend(storage, lease, signal_need())).state is State.SUSPENDED

    async def test_a_signal_to_an_unknown_job_is_gone(self, storage: Storage) -> None:
        (answer,) = await deliver(storage, "a", signal("1"))

        assert answer.verdict == "gone"

    async def test_a_full_mailbox_refuses_and_loses_nothing(self, storage: Storage) -> None:
        lease = await start(storage, new_job("a"))
        answers = await deliver(storage, "a", *(signal(str(number)) for number in range(SIGNALS_LIMIT + 1)))
        assert [answer.verdict for answer in answers] == ["done"] * SIGNALS_LIMIT + ["refused"]
        # A repeated one and one of another name are not refused.
        answers = await deliver(storage, "a", signal("0"), signal("0", name="stop"))
        assert [answer.verdict for answer in answers] == ["done", "done"]
        await suspend(storage, lease, signal_need(SIGNALS_LIMIT))

        assert await state_of(storage, "a") is State.WAITING

    async def test_a_read_signal_makes_room_for_another_one(self, storage: Storage) -> None:
        lease = await start(storage, new_job("a"))
        await deliver(storage, "a", *(signal(str(number)) for number in range(SIGNALS_LIMIT)))
        await suspend(storage, lease, signal_need())
        answers = await deliver(storage, "a", signal("next"), signal("one too many"))

        assert [answer.verdict for answer in answers] == ["done", "refused"]

    async def test_a_signal_that_is_too_large_is_refused(self, storage: Storage) -> None:
        await start(storage, new_job("a"))
        with pytest.raises(FlowError):
            await storage.revise(
                [DeliverToken(ref_of("a"), signal("1")), DeliverToken(ref_of("a"), signal("2", body=_LARGE + b"x"))]
            )
        (answer,) = await deliver(storage, "a", signal("2", body=_LARGE))

        assert answer.verdict == "done"
        assert (await look(storage, ref_of("a"))).steps == ()


_LARGE = b"x" * SIGNAL_BYTES
