"""Conformance tests of flows: each end notifies its dependents, failures break what needs them, redrives resume it."""

from collections.abc import Awaitable, Callable

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.events import FlowBroken, JobCancelled, JobCompleted, JobDeleted, JobExpired, JobFailed, JobRedriven
from tenure.core.job import DebounceKey, NewJob, Policy, Ref, ThrottleKey, UniqueKey
from tenure.core.lifecycle import State
from tenure.core.move import MoveMark
from tenure.core.outcome import Cancelled, Interrupted, Outcome, Rejected, Suspended
from tenure.core.retention import KeepRule, RetentionRules
from tenure.core.waiting import Dependent, JobKind, Links, Need, Plan, Wait
from tenure.errors import FlowError, StorageMovedError
from tenure.maintenance.outbox import RETRY_AFTER, carry_out
from tenure.storage.protocol import (
    CancelJob,
    ClaimRequest,
    DeleteJob,
    Query,
    RedriveJob,
    Settings,
    Storage,
    Target,
)
from tenure.storage.waiting import NOTIFIED_AT_ONCE, OUTBOX_DELAY, AdvanceEntry, SealBox, Subscribe
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    ERROR,
    QUEUE,
    RAISED,
    RETURNED,
    Conformance,
    all_events,
    bid,
    claim,
    claim_one,
    counted,
    enqueue,
    events_of,
    new_job,
    record,
    recover,
    settle,
    settled,
    start,
    states,
)
from tenure_testing.conformance.waiting import (
    END,
    carry_all,
    deliver,
    linked,
    ref_of,
    state_of,
    token,
)

REJECTED = Rejected(ERROR)


async def end_next(storage: Storage, outcome: Outcome = RETURNED) -> str:
    """Claim the only job that may start, and settle it. Return its id."""
    lease = await claim_one(storage)
    assert await settle(storage, ALICE, lease, outcome) == "done"
    return lease.ref.id


async def redrive(storage: Storage, name: str) -> str:
    """Redrive a job and return the verdict."""
    (answer,) = await storage.revise([RedriveJob(ref_of(name), by="ann")])
    return answer.verdict


async def _fail(storage: Storage, _: ManualClock) -> None:
    await end_next(storage, REJECTED)


async def _stall(storage: Storage, clock: ManualClock) -> None:
    for _ in range(2):
        await claim_one(storage)
        await recover(storage, clock)


async def _cancel_run(storage: Storage, _: ManualClock) -> None:
    await end_next(storage, Cancelled())


async def _cancel(storage: Storage, _: ManualClock) -> None:
    await storage.revise([CancelJob(ref_of("a"))])


async def _expire(storage: Storage, clock: ManualClock) -> None:
    clock.advance(10)
    await storage.sweep(bid())


async def _expire_by_claim(storage: Storage, clock: ManualClock) -> None:
    clock.advance(10)
    await claim(storage)


async def _delete(storage: Storage, _: ManualClock) -> None:
    await storage.revise([DeleteJob(ref_of("a"))])


DISCARDED = Policy(on_expire="discard")

BAD_ENDS: dict[str, tuple[NewJob, Callable[[Storage, ManualClock], Awaitable[None]]]] = {
    "failed": (new_job(), _fail),
    "stalled": (new_job(), _stall),
    "cancelled in its run": (new_job(), _cancel_run),
    "cancelled": (new_job(), _cancel),
    "expired": (new_job(ttl=10 * SECOND), _expire),
    "expired by a claim": (new_job(ttl=10 * SECOND), _expire_by_claim),
    "discarded": (new_job(ttl=10 * SECOND, policy=DISCARDED), _expire),
    "deleted": (new_job(), _delete),
}
"""Every end except completion: the job, and how it ends."""


class EndsConformance(Conformance):
    """Each end of a job notifies its dependents in the same step."""

    @pytest.mark.parametrize("end", BAD_ENDS)
    async def test_every_bad_end_is_a_failed_token(self, storage: Storage, clock: ManualClock, end: str) -> None:
        like, act = BAD_ENDS[end]
        await enqueue(storage, linked("b", after=["a"]), linked("a", to=["b"], like=like))
        await act(storage, clock)
        job = await record(storage, ref_of("b"))

        assert (job.state, job.reason) == (State.FAILED, "dependency")

    @pytest.mark.parametrize("end", BAD_ENDS)
    async def test_an_end_is_recorded_before_those_that_follow_from_it(
        self, storage: Storage, clock: ManualClock, end: str
    ) -> None:
        like, act = BAD_ENDS[end]
        await enqueue(storage, linked("b", after=["a"]), linked("a", to=["b"], like=like))
        await act(storage, clock)
        ends = (JobFailed, JobCancelled, JobExpired, JobDeleted)

        assert [event.id for event in await all_events(storage) if isinstance(event, ends)] == ["a", "b"]

    async def test_a_put_back_delivers_nothing(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, linked("b", after=["a"]), linked("a", to=["b"]))
        await end_next(storage, RAISED)
        clock.advance(1)
        await end_next(storage, Interrupted("shutdown"))
        assert await state_of(storage, "b") is State.SUSPENDED
        await end_next(storage)

        assert await state_of(storage, "b") is State.WAITING

    async def test_a_deleted_ended_job_has_delivered_before(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=["a", "x"]), linked("a", to=["b"]))
        await end_next(storage)
        await storage.revise([DeleteJob(ref_of("a"))])
        await deliver(storage, "b", token("x"))

        assert await state_of(storage, "b") is State.WAITING

    async def test_dependents_in_another_queue_are_notified(self, storage: Storage) -> None:
        waiter = structs.replace(linked("b", after=["a"]), queue="other")
        links = Links(dependents=(Dependent(Ref("other", "b"), "a", END),))
        await storage.enqueue([waiter, structs.replace(new_job("a"), links=links)])
        await end_next(storage)

        assert (await claim_one(storage, queue="other")).ref == Ref("other", "b")

    async def test_a_flow_is_stored_whole_or_not_at_all(self, storage: Storage) -> None:
        await storage.tune(Target("queue", "gone"), Settings(moved=MoveMark("memory://elsewhere", "move")))
        with pytest.raises(StorageMovedError):
            await storage.enqueue([linked("b", after=["a"]), structs.replace(linked("a", to=["b"]), queue="gone")])

        assert await counted(storage) == {}

    async def test_a_subscriber_of_an_ended_job_is_notified_at_once(self, storage: Storage) -> None:
        await settle(storage, ALICE, await start(storage, new_job("a")))
        await enqueue(storage, linked("b", after=["a"]))
        await storage.revise([Subscribe(ref_of("a"), Dependent(ref_of("b"), "a", END))])

        assert await state_of(storage, "b") is State.WAITING

    async def test_a_subscriber_of_a_living_job_is_notified_at_its_end(self, storage: Storage) -> None:
        await enqueue(storage, new_job("a"), linked("b", after=["a"]))
        subscription = Subscribe(ref_of("a"), Dependent(ref_of("b"), "a", END))
        assert [answer.verdict for answer in await storage.revise([subscription] * 2)] == ["done"] * 2
        assert await state_of(storage, "b") is State.SUSPENDED
        await end_next(storage)

        assert await state_of(storage, "b") is State.WAITING

    async def test_a_call_that_meets_a_unique_job_brings_its_dependents(self, storage: Storage) -> None:
        key = UniqueKey("k")
        await enqueue(storage, new_job("old", merge=key), linked("b", after=["a"]))
        (answer,) = await storage.enqueue([linked("a", to=["b"], like=new_job(merge=key))])
        assert answer.ref == ref_of("old")
        await end_next(storage)

        assert await state_of(storage, "b") is State.WAITING

    async def test_a_call_that_meets_only_a_window_fails_its_dependents(self, storage: Storage) -> None:
        key = UniqueKey("k", window=3600 * SECOND)
        await storage.tune(Target("queue", QUEUE), Settings(retention=RetentionRules(completed=KeepRule(0))))
        await enqueue(storage, new_job("old", merge=key), linked("b", after=["a"]))
        await end_next(storage)
        await storage.sweep(bid())
        assert await storage.get([ref_of("old")]) == [None]
        (answer,) = await storage.enqueue([linked("a", to=["b"], like=new_job(merge=key))])

        assert answer.action == "duplicate"
        assert await state_of(storage, "b") is State.FAILED

    async def test_a_waiter_may_come_after_a_call_whose_job_has_ended(self, storage: Storage) -> None:
        key = UniqueKey("k", window=3600 * SECOND)
        await enqueue(storage, new_job("old", merge=key))
        await end_next(storage)
        await storage.enqueue([linked("a", to=["b"], like=new_job(merge=key)), linked("b", after=["a"])])

        assert await state_of(storage, "b") is State.WAITING

    async def test_a_waiter_may_come_after_a_throttled_call(self, storage: Storage) -> None:
        key = ThrottleKey("k", 1, 3600 * SECOND)
        await enqueue(storage, new_job("old", throttle=key))
        (answer, _) = await storage.enqueue(
            [linked("a", to=["b"], like=new_job(throttle=key)), linked("b", after=["a"])]
        )

        assert answer.action == "throttled"
        assert await state_of(storage, "b") is State.FAILED

    async def test_a_call_that_replaces_another_brings_its_dependents(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        key = DebounceKey("k", SECOND)
        like = new_job(merge=key)
        await enqueue(storage, linked("b", after=["x"]), linked("c", after=["y"]), linked("x", to=["b"], like=like))
        (answer,) = await storage.enqueue([linked("y", to=["c"], like=like)])
        assert answer.action == "replaced"
        clock.advance(1)
        await end_next(storage)

        assert await states(storage) == {"b": State.WAITING, "c": State.WAITING, "x": State.COMPLETED}


class BreakConformance(Conformance):
    """A failure breaks what needs it, and a redrive resumes all of that."""

    async def test_a_broken_job_fails_and_names_the_failed_one(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=["a"]), linked("a", to=["b"]))
        await end_next(storage, REJECTED)
        job = await record(storage, ref_of("b"))

        assert job.error is not None
        assert (job.state, job.reason, job.starts, job.error.type) == (
            State.FAILED,
            "dependency",
            0,
            "DependencyFailedError",
        )
        assert "'a'" in job.error.message
        assert ERROR.message in job.error.message
        (event,) = [event for event in await events_of(storage, JobFailed) if event.id == "b"]
        assert event.reason == "dependency"

    async def test_a_completed_redrive_resumes_a_dependent(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=["a"]), linked("a", to=["b"]))
        await end_next(storage, REJECTED)
        assert await redrive(storage, "a") == "done"
        assert await state_of(storage, "b") is State.FAILED
        await end_next(storage)

        assert await state_of(storage, "b") is State.WAITING
        assert [event.by for event in await events_of(storage, JobRedriven) if event.id == "b"] == ["dependency"]
        assert await end_next(storage) == "b"

    async def test_a_break_goes_down_a_long_chain_and_one_redrive_resumes_all(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        names = [f"job-{number:03}" for number in range(100)]
        chain = [
            linked(name, after=names[place - 1 : place] if place else [], to=names[place + 1 : place + 2])
            for place, name in enumerate(names)
        ]
        await storage.enqueue(chain[::-1])
        await end_next(storage, REJECTED)
        await carry_all(storage, clock)
        assert await counted(storage) == {State.FAILED: 100}
        assert await redrive(storage, names[0]) == "done"

        assert [await end_next(storage) for _ in names] == names
        assert await counted(storage) == {State.COMPLETED: 100}

    async def test_one_of_two_failed_jobs_is_not_enough(self, storage: Storage) -> None:
        await enqueue(storage, linked("c", after=["a", "b"]), linked("b", to=["c"]), linked("a", to=["c"]))
        for lease in await claim(storage):
            await settle(storage, ALICE, lease, REJECTED)
        await redrive(storage, "a")
        await end_next(storage)
        assert await state_of(storage, "c") is State.FAILED
        await redrive(storage, "b")
        await end_next(storage)

        assert await state_of(storage, "c") is State.WAITING

    async def test_a_cancelled_job_is_not_resumed(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=["a"]), linked("a", to=["b"]))
        await storage.revise([CancelJob(ref_of("b"))])
        await end_next(storage)

        assert await state_of(storage, "b") is State.CANCELLED

    async def test_a_redrive_of_a_dependent_is_refused_and_names_the_cause(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=["a"]), linked("a", to=["b"]))
        await end_next(storage, REJECTED)
        (answer,) = await storage.revise([RedriveJob(ref_of("b"))])

        assert (answer.verdict, answer.state, answer.holder) == ("refused", State.FAILED, ref_of("a"))

    async def test_a_redrive_of_a_cancelled_job_with_a_broken_need_is_refused(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=["a"]), linked("a", to=["b"]))
        await storage.revise([CancelJob(ref_of("b"))])
        await end_next(storage, REJECTED)
        (answer,) = await storage.revise([RedriveJob(ref_of("b"))])

        assert (answer.verdict, answer.state, answer.holder) == ("refused", State.CANCELLED, ref_of("a"))

    async def test_a_skipped_job_runs_if_an_operator_redrives_it(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=[Need(box="a", mode="unless")]), linked("a", to=["b"]))
        await end_next(storage)
        assert (await record(storage, ref_of("b"))).reason == "skipped"
        assert await redrive(storage, "b") == "done"

        assert await end_next(storage) == "b"

    async def test_a_dependent_of_a_deleted_job_can_be_redriven(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=["a"]), linked("a", to=["b"]))
        await storage.revise([DeleteJob(ref_of("a"))])
        assert [event.id for event in await events_of(storage, JobDeleted)] == ["a"]
        assert await redrive(storage, "b") == "done"

        assert await end_next(storage) == "b"

    async def test_a_cancelled_job_that_is_redriven_waits_again(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=["a"]), linked("a", to=["b"]))
        await storage.revise([CancelJob(ref_of("b"))])
        await redrive(storage, "b")
        assert await state_of(storage, "b") is State.SUSPENDED
        await end_next(storage)

        assert await end_next(storage) == "b"

    async def test_a_redriven_job_whose_wait_is_met_runs_at_once(self, storage: Storage) -> None:
        await enqueue(storage, linked("b", after=["a"]), linked("a", to=["b"]))
        await end_next(storage)
        await end_next(storage, REJECTED)
        await redrive(storage, "b")

        assert await end_next(storage) == "b"

    async def test_a_dependent_is_not_resumed_while_its_unique_key_is_held(self, storage: Storage) -> None:
        like = new_job(merge=UniqueKey("k"))
        await enqueue(storage, linked("b", after=["a"], like=like), linked("a", to=["b"]))
        await end_next(storage, REJECTED)
        await enqueue(storage, structs.replace(like, id="holder", delay=60 * SECOND))
        await redrive(storage, "a")
        await end_next(storage)

        assert await state_of(storage, "b") is State.FAILED
        (answer,) = await storage.revise([RedriveJob(ref_of("b"))])
        assert (answer.verdict, answer.holder) == ("refused", ref_of("holder"))


class GroupsConformance(Conformance):
    """A flow and a group have no handler, and end when their wait is over."""

    async def test_a_group_completes_when_its_members_have(self, storage: Storage) -> None:
        group = linked("g", after=[Need(box="members", count=2, mode="tally")], kind=JobKind.GROUP, to=["after"])
        await enqueue(storage, linked("after", after=["g"]), group)
        for number in ("1", "2"):
            assert await claim(storage) == []
            await deliver(storage, "g", token("members", key=number))

        assert await states(storage) == {"g": State.COMPLETED, "after": State.WAITING}
        assert [event.id for event in await events_of(storage, JobCompleted)] == ["g"]
        assert (await record(storage, ref_of("g"))).starts == 0

    async def test_an_empty_group_completes_at_once(self, storage: Storage) -> None:
        group = linked("g", after=[Need(box="members", count=0, mode="tally")], kind=JobKind.GROUP, to=["after"])
        await enqueue(storage, linked("after", after=["g"]), group)

        assert await states(storage) == {"g": State.COMPLETED, "after": State.WAITING}

    async def test_a_seal_completes_a_group_whose_members_have_ended(self, storage: Storage) -> None:
        await enqueue(storage, linked("g", after=[Need(box="members", count=None, mode="tally")], kind=JobKind.GROUP))
        await deliver(storage, "g", token("members", key="1"))
        await storage.revise([SealBox(ref_of("g"), "members", 1)])

        assert await state_of(storage, "g") is State.COMPLETED

    async def test_a_group_fails_after_all_and_reports_the_first_failure_once(self, storage: Storage) -> None:
        flow = linked("f", after=[Need(box="g", mode="tally", source=ref_of("g"))], kind=JobKind.FLOW)
        need = Need(box="members", count=3, mode="tally")
        await enqueue(storage, flow, linked("g", after=[need], kind=JobKind.GROUP, flow="f", to=["f"]))
        await deliver(storage, "g", token("members", "failed", key="2"), token("members", "failed", key="3"))
        assert await counted(storage) == {State.SUSPENDED: 2}
        broken = [(event.id, event.failure_cause) for event in await events_of(storage, FlowBroken)]
        assert broken == [("f", f"{QUEUE}/g~2")]
        await deliver(storage, "g", token("members", key="1"))

        assert await counted(storage) == {State.FAILED: 2}
        assert len(await events_of(storage, FlowBroken)) == 1
        job = await record(storage, ref_of("g"))
        assert job.error is not None
        assert (job.reason, "g~2" in job.error.message) == ("dependency", True)

    async def test_an_ignored_failure_breaks_no_flow(self, storage: Storage) -> None:
        await enqueue(storage, linked("f", after=[Need(box="a", mode="count")], kind=JobKind.FLOW))
        await deliver(storage, "f", token("a", "failed"))

        assert await state_of(storage, "f") is State.COMPLETED
        assert await events_of(storage, FlowBroken) == []

    async def test_a_failed_group_completes_after_the_redrive_of_its_member(self, storage: Storage) -> None:
        group = linked("g", after=[Need(box="g~1", count=1, mode="tally")], kind=JobKind.GROUP, to=["after"])
        member = linked("g~1", to=["g"])
        await enqueue(storage, linked("after", after=["g"]), group, member)
        await end_next(storage, REJECTED)
        assert await states(storage) == dict.fromkeys(("g", "g~1", "after"), State.FAILED)
        await redrive(storage, "g~1")
        await end_next(storage)

        assert await states(storage) == {"g": State.COMPLETED, "g~1": State.COMPLETED, "after": State.WAITING}

    async def test_a_failed_group_is_not_redriven_itself(self, storage: Storage) -> None:
        need = Need(box="members", count=1, mode="tally")
        await enqueue(storage, linked("g", after=[need], kind=JobKind.GROUP))
        await deliver(storage, "g", token("members", "failed", key="1"))
        (answer,) = await storage.revise([RedriveJob(ref_of("g"))])

        assert (answer.verdict, answer.holder) == ("refused", ref_of("g~1"))

    async def test_a_flow_fails_when_its_time_is_over(self, storage: Storage, clock: ManualClock) -> None:
        need = Need(box="a", mode="tally", until=clock.now() + 60 * SECOND)
        await enqueue(storage, linked("f", after=[need], kind=JobKind.FLOW))
        clock.advance(59)
        await storage.sweep(bid())
        assert await state_of(storage, "f") is State.SUSPENDED
        clock.advance(1)
        await storage.sweep(bid())
        job = await record(storage, ref_of("f"))

        assert (job.state, job.reason) == (State.FAILED, "timeout")
        await redrive(storage, "f")
        await storage.sweep(bid())
        assert await state_of(storage, "f") is State.SUSPENDED

    async def test_a_cancelled_flow_notifies_its_dependents(self, storage: Storage) -> None:
        await enqueue(
            storage,
            linked("after", after=[Need(box="f", mode="unless")]),
            linked("f", after=["a"], kind=JobKind.FLOW, to=["after"]),
        )
        await storage.revise([CancelJob(ref_of("f"))])

        assert await states(storage) == {"after": State.WAITING, "f": State.CANCELLED}

    async def test_a_plan_names_the_cause_of_a_failure(self, storage: Storage) -> None:
        flow = linked("f", after=[Need(box="nodes", count=1, mode="tally")], kind=JobKind.FLOW)
        assert flow.links is not None
        plan = Plan({"report": Ref("io", "~1/report")})
        await enqueue(storage, structs.replace(flow, links=structs.replace(flow.links, plan=plan)))
        await deliver(storage, "f", token("nodes", "failed", key="report"))

        assert [event.failure_cause for event in await events_of(storage, FlowBroken)] == ["io/~1/report"]


class OutboxConformance(Conformance):
    """An end with many dependents leaves one entry, which is handed out until it is carried out."""

    NAMES = tuple(f"job-{number:02}" for number in range(NOTIFIED_AT_ONCE + 1))

    async def fan_out(self, storage: Storage) -> None:
        """Enqueue one job that nine others wait for."""
        await enqueue(storage, *(linked(name, after=["a"]) for name in self.NAMES), linked("a", to=self.NAMES))

    async def test_an_end_with_few_dependents_leaves_no_entry(self, storage: Storage, clock: ManualClock) -> None:
        names = self.NAMES[:NOTIFIED_AT_ONCE]
        await enqueue(storage, *(linked(name, after=["a"]) for name in names), linked("a", to=names))
        lease = await claim_one(storage)
        answer = await storage.exchange(ALICE, [settled(lease)])
        clock.advance(10)

        assert answer.outbox == ()
        assert (await storage.sweep(bid())).outbox == ()
        assert await counted(storage) == {State.COMPLETED: 1, State.WAITING: NOTIFIED_AT_ONCE}

    async def test_an_end_with_many_dependents_leaves_one_entry(self, storage: Storage) -> None:
        await self.fan_out(storage)
        lease = await claim_one(storage)
        (entry,) = (await storage.exchange(ALICE, [settled(lease)], ClaimRequest((QUEUE,), 1))).outbox
        assert await counted(storage) == {State.COMPLETED: 1, State.SUSPENDED: len(self.NAMES)}
        await carry_out(storage, [entry])

        assert await counted(storage) == {State.COMPLETED: 1, State.WAITING: len(self.NAMES)}

    async def test_a_sweep_hands_out_an_entry_until_it_is_advanced(self, storage: Storage, clock: ManualClock) -> None:
        await self.fan_out(storage)
        await end_next(storage)
        assert (await storage.sweep(bid())).outbox == ()
        clock.advance(OUTBOX_DELAY / SECOND)
        (entry,) = (await storage.sweep(bid())).outbox
        assert (await storage.sweep(bid())).outbox == (entry,)
        await storage.revise(entry.deliveries)
        await carry_out(storage, [entry])
        clock.advance(OUTBOX_DELAY / SECOND)

        assert (await storage.sweep(bid())).outbox == ()
        assert await counted(storage) == {State.COMPLETED: 1, State.WAITING: len(self.NAMES)}

    async def test_an_entry_of_a_later_end_is_not_advanced(self, storage: Storage, clock: ManualClock) -> None:
        await self.fan_out(storage)
        lease = await claim_one(storage)
        (old,) = (await storage.exchange(ALICE, [settled(lease, REJECTED)])).outbox
        await redrive(storage, "a")
        await end_next(storage)
        await carry_out(storage, [old])
        assert await counted(storage) == {State.COMPLETED: 1, State.FAILED: len(self.NAMES)}
        await carry_all(storage, clock)

        assert await counted(storage) == {State.COMPLETED: 1, State.WAITING: len(self.NAMES)}

    async def test_an_entry_is_put_off_while_its_target_is_away(self, storage: Storage, clock: ManualClock) -> None:
        await self.fan_out(storage)
        await end_next(storage)
        clock.advance(OUTBOX_DELAY / SECOND)
        (entry,) = (await storage.sweep(bid())).outbox
        await storage.revise([AdvanceEntry(entry.ref, entry.number, entry.cursor, put_off=30 * SECOND)])
        clock.advance(29)
        assert (await storage.sweep(bid())).outbox == ()
        clock.advance(1)

        assert (await storage.sweep(bid())).outbox == (entry,)

    async def test_a_job_of_the_same_id_leaves_the_entry_of_the_former(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await self.fan_out(storage)
        await storage.revise([DeleteJob(ref_of("a"))])
        others = [f"other-{number}" for number in range(NOTIFIED_AT_ONCE + 1)]
        await enqueue(storage, *(linked(name, after=["a"]) for name in others), linked("a", to=others))
        await end_next(storage)
        await carry_all(storage, clock)

        expected = {State.COMPLETED: 1, State.FAILED: len(self.NAMES), State.WAITING: len(others)}
        assert await counted(storage) == expected

    async def test_a_bad_entry_is_put_off_and_the_others_are_carried_out(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await self.fan_out(storage)
        await end_next(storage)
        clock.advance(OUTBOX_DELAY / SECOND)
        (entry,) = (await storage.sweep(bid())).outbox
        bad = structs.replace(entry, dependents=(None,))
        carried = await carry_out(storage, [bad])
        assert len(carried.troubles) == 1
        assert (await storage.sweep(bid())).outbox == ()
        clock.advance(RETRY_AFTER / SECOND)
        assert (await storage.sweep(bid())).outbox == (entry,)
        await carry_out(storage, [bad, entry])

        assert await counted(storage) == {State.COMPLETED: 1, State.WAITING: len(self.NAMES)}

    async def test_an_entry_outlives_its_deleted_job(self, storage: Storage, clock: ManualClock) -> None:
        await self.fan_out(storage)
        await storage.revise([DeleteJob(ref_of("a"))])
        await carry_all(storage, clock)

        assert await counted(storage) == {State.FAILED: len(self.NAMES)}


class NoFlowsConformance(Conformance):
    """A storage that does not keep flows refuses a call that needs them, before it writes anything."""

    @pytest.mark.parametrize("job", [linked("b", after=["a"]), linked("b", to=["a"])], ids=["wait", "dependents"])
    async def test_a_job_with_links_is_refused(self, storage: Storage, job: NewJob) -> None:
        with pytest.raises(FlowError):
            await storage.enqueue([new_job("a"), job])

        assert await counted(storage) == {}
        assert await all_events(storage) == []

    async def test_a_suspension_is_refused_and_the_run_goes_on(self, storage: Storage) -> None:
        lease = await start(storage, new_job("a"))
        with pytest.raises(FlowError):
            await storage.exchange(ALICE, [settled(lease, Suspended(Wait((Need(box="x"),))))])

        assert await record(storage, lease.ref) == lease.job
        assert await settle(storage, ALICE, lease) == "done"

    async def test_a_token_is_refused(self, storage: Storage) -> None:
        await enqueue(storage, new_job("a"))
        for revision in (
            SealBox(ref_of("a"), "x", 1),
            Subscribe(ref_of("a"), Dependent(ref_of("b"), "a", END)),
            AdvanceEntry(ref_of("a"), 1, 1),
        ):
            with pytest.raises(FlowError):
                await storage.revise([CancelJob(ref_of("a")), revision])
        with pytest.raises(FlowError):
            await deliver(storage, "a", token("x"))

        assert await state_of(storage, "a") is State.WAITING

    async def test_a_suspended_job_is_listed_nowhere(self, storage: Storage) -> None:
        await enqueue(storage, new_job("a"))

        assert (await storage.find(Query(states=(State.SUSPENDED,)))).jobs == ()
        both = await storage.find(Query(states=(State.SUSPENDED, State.WAITING)))
        assert [job.id for job in both.jobs] == ["a"]
