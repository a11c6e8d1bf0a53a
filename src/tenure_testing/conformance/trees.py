"""Conformance tests of flows as a whole: cancelling one, adding to one, and one that its client has abandoned.

For a storage that cancels flows with their members; the others refuse that.
"""

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.events import JobCancelled
from tenure.core.job import NewJob
from tenure.core.lifecycle import State
from tenure.core.waiting import JobKind, Need, Plan
from tenure.errors import FlowError
from tenure.storage.protocol import Storage
from tenure.storage.revisions import CancelJob
from tenure.storage.waiting import ENTRY_PAGE, CancelTree, SealBox
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import Conformance, bid, claim_one, counted, enqueue, events_of, record, states
from tenure_testing.conformance.waiting import carry_all, deliver, linked, ref_of, token

OPEN_TTL = 600 * SECOND


def planned(job: NewJob, *names: str) -> NewJob:
    """Return a flow with these members, each after those that it needs."""
    assert job.links is not None
    plan = Plan({name: ref_of(name) for name in names})
    return structs.replace(job, links=structs.replace(job.links, plan=plan))


def open_group(name: str) -> NewJob:
    """Return a group that is abandoned if nothing is added to it for ten minutes."""
    group = linked(name, after=[Need(box="members", count=None, mode="tally")], kind=JobKind.GROUP)
    assert group.links is not None
    return structs.replace(group, links=structs.replace(group.links, open_ttl=OPEN_TTL))


class TreesConformance(Conformance):
    """A flow is cancelled with its members, and nothing is added to one that has ended."""

    async def chain(self, storage: Storage) -> None:
        """Enqueue a flow of three jobs, one after another."""
        flow = linked("f", after=[Need(box="n", count=3, mode="tally")], kind=JobKind.FLOW)
        await enqueue(
            storage,
            planned(flow, "a", "b", "c"),
            linked("c", after=["b"], flow="f"),
            linked("b", after=["a"], to=["c"], flow="f"),
            linked("a", to=["b"], flow="f"),
        )

    async def test_a_flow_is_cancelled_with_its_members(self, storage: Storage, clock: ManualClock) -> None:
        await self.chain(storage)
        (answer,) = await storage.revise([CancelTree(ref_of("f"), "not needed", "anna")])
        assert answer.verdict == "done"
        await carry_all(storage, clock)

        assert await counted(storage) == {State.CANCELLED: 4}
        cancelled = {event.id: (event.reason, event.by) for event in await events_of(storage, JobCancelled)}
        assert cancelled == dict.fromkeys(("f", "a", "b", "c"), ("not needed", "anna"))

    async def test_the_run_of_a_member_is_asked_to_stop(self, storage: Storage, clock: ManualClock) -> None:
        await self.chain(storage)
        lease = await claim_one(storage)
        await storage.revise([CancelTree(ref_of("f"))])
        await carry_all(storage, clock)

        assert (await record(storage, lease.ref)).cancel_at is not None
        assert await states(storage) == {
            "a": State.ACTIVE,
            **dict.fromkeys(("b", "c", "f"), State.CANCELLED),
        }

    async def test_a_group_in_a_flow_is_cancelled_with_its_members(self, storage: Storage, clock: ManualClock) -> None:
        members = [f"g~{number}" for number in range(1, ENTRY_PAGE + 21)]
        flow = linked("f", after=["g"], kind=JobKind.FLOW)
        group = linked("g", after=[Need(box="members", count=len(members))], to=["f"], kind=JobKind.GROUP, flow="f")
        await enqueue(storage, planned(flow, "g"), group)
        await enqueue(storage, *(linked(name, to=["g"]) for name in members))
        await storage.revise([CancelTree(ref_of("f"))])
        await carry_all(storage, clock)

        assert await counted(storage) == {State.CANCELLED: len(members) + 2}

    async def test_members_that_have_ended_stay_as_they_are(self, storage: Storage, clock: ManualClock) -> None:
        await self.chain(storage)
        await storage.revise([CancelJob(ref_of("a"), "before")])
        await storage.revise([CancelTree(ref_of("f"), "after")])
        await carry_all(storage, clock)

        assert (await record(storage, ref_of("a"))).reason == "before"
        assert (await storage.sweep(bid())).outbox == ()

    async def test_a_cancel_of_an_ended_flow_is_refused(self, storage: Storage) -> None:
        await self.chain(storage)
        await storage.revise([CancelJob(ref_of("f"))])
        (answer,) = await storage.revise([CancelTree(ref_of("f"))])

        assert answer.verdict == "refused"

    async def test_nothing_is_added_to_a_flow_that_has_ended(self, storage: Storage) -> None:
        await self.chain(storage)
        await storage.revise([CancelTree(ref_of("f"))])
        with pytest.raises(FlowError):
            await storage.enqueue([linked("plain"), linked("late", flow="f")])
        # A call that is repeated finds its jobs.
        await storage.enqueue([linked("a", to=["b"], flow="f")])

        assert set(await states(storage)) == {"a", "b", "c", "f"}

    async def test_a_flow_that_others_have_failed_takes_new_members(self, storage: Storage) -> None:
        await self.chain(storage)
        await deliver(storage, "f", *(token("n", "failed", key=name) for name in ("a", "b", "c")))
        assert (await record(storage, ref_of("f"))).state is State.FAILED
        await storage.enqueue([linked("late", flow="f")])

        assert "late" in await states(storage)

    async def test_an_abandoned_group_fails_with_its_members(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, open_group("g"))
        clock.advance(300)
        await enqueue(storage, linked("g~1", to=["g"]))
        clock.advance(599)
        await storage.sweep(bid())
        assert (await record(storage, ref_of("g"))).state is State.SUSPENDED
        clock.advance(1)
        await storage.sweep(bid())
        await carry_all(storage, clock)
        group = await record(storage, ref_of("g"))

        assert (group.state, group.reason) == (State.FAILED, "abandoned")
        assert (await record(storage, ref_of("g~1"))).state is State.CANCELLED

    async def test_a_sealed_group_is_not_abandoned(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, open_group("g"), linked("g~1", to=["g"]))
        await storage.revise([SealBox(ref_of("g"), "members", 1)])
        clock.advance(3600)
        await carry_all(storage, clock)

        assert (await record(storage, ref_of("g"))).state is State.SUSPENDED
