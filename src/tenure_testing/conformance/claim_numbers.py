"""Conformance tests of numbered claims: a number claims once, and a claim whose answer was lost is put back."""

from collections.abc import Sequence

from msgspec import structs

from tenure.core.events import JobCancelled, JobReleased
from tenure.core.job import Key, Owner
from tenure.core.lane import Lane
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.outcome import Interrupted
from tenure.core.settlement import Settlement
from tenure.storage.protocol import CancelJob, ClaimRequest, ExchangeResult, LeaseRenewal, RenewRequest, Storage
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    QUEUE,
    REAPER,
    Conformance,
    claim_one,
    enqueue,
    events_of,
    look,
    new_job,
    new_jobs,
    record,
    recover,
    settle,
    settled,
)


async def call(
    storage: Storage,
    number: int,
    *,
    answered: int | None = None,
    lane: int = 0,
    room: int = 1,
    owner: Owner = ALICE,
    settlements: Sequence[Settlement] = (),
    queues: tuple[str, ...] = (QUEUE,),
) -> ExchangeResult:
    """Make a numbered call. Unless `answered` is given, the call acknowledges all earlier ones."""
    place = Lane(lane, number, number - 1 if answered is None else answered)
    return await storage.exchange(owner, settlements, ClaimRequest(queues, room, place))


def ids(leases: Sequence[Lease]) -> list[str]:
    """Return the ids of the leased jobs."""
    return [lease.ref.id for lease in leases]


class ClaimNumbersConformance(Conformance):
    """A numbered call is carried out once. A claim whose answer was lost is put back uncharged."""

    async def test_a_call_that_arrives_twice_claims_once(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(3))
        first = await call(storage, 1)
        again = await call(storage, 1)
        following = await call(storage, 2)

        assert (ids(first.leases), first.seen) == (["job-0000"], False)
        assert (again.leases, again.seen, again.left) == ((), True, True)
        assert (ids(following.leases), following.seen) == (["job-0001"], False)
        assert (await record(storage, first.leases[0].ref)).state is State.ACTIVE

    async def test_a_call_that_arrives_after_a_later_one_claims_nothing(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(3))
        later = await call(storage, 3, answered=1)
        late = await call(storage, 2, answered=1)

        assert ids(later.leases) == ["job-0000"]
        assert (late.leases, late.seen) == ((), True)
        assert (await record(storage, later.leases[0].ref)).state is State.ACTIVE

    async def test_a_repeated_call_that_found_nothing_claims_nothing(self, storage: Storage) -> None:
        nothing = await call(storage, 1)
        await enqueue(storage, *new_jobs(2))
        again = await call(storage, 1)
        following = await call(storage, 2)

        assert (nothing.leases, nothing.seen) == ((), False)
        assert (again.leases, again.seen) == ((), True)
        assert ids(following.leases) == ["job-0000"]

    async def test_a_repeated_call_still_settles(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(3))
        [lease] = (await call(storage, 1)).leases
        first = await call(storage, 2, settlements=[settled(lease)])
        again = await call(storage, 2, settlements=[settled(lease)])

        assert [verdict.verdict for verdict in first.verdicts] == ["done"]
        assert [verdict.verdict for verdict in again.verdicts] == ["duplicate"]
        assert (ids(first.leases), again.leases) == (["job-0001"], ())

    async def test_calls_without_a_number_are_accepted_and_change_no_number(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(4))
        lost = await call(storage, 1)
        await claim_one(storage)
        await claim_one(storage)

        assert ids((await call(storage, 2, answered=0)).leases) == ids(lost.leases)

    async def test_the_next_call_releases_the_jobs_of_a_claim_with_a_lost_answer(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, *new_jobs(5))
        clock.advance(1)
        [kept] = (await call(storage, 1)).leases
        lost = (await call(storage, 2, room=2)).leases
        clock.advance(1)
        following = await call(storage, 3, answered=1, room=0)
        details = [await look(storage, lease.ref) for lease in lost]
        events = await events_of(storage, JobReleased)

        assert following.leases == ()
        assert (await record(storage, kept.ref)).state is State.ACTIVE
        assert [detail.job.state for detail in details] == [State.WAITING] * 2
        assert [(job.starts, job.releases, job.stalls, job.failures) for job in (detail.job for detail in details)] == [
            (1, 1, 0, 0)
        ] * 2
        assert [(job.reason, job.owner, job.lease_until) for job in (detail.job for detail in details)] == [
            ("prefetch", None, None)
        ] * 2
        assert [(run.ended, run.reason, run.end) for item in details for run in item.runs] == [
            ("released", "prefetch", clock.now())
        ] * 2
        assert [(event.id, event.run, event.reason, event.delay) for event in events] == [
            (name, 1, "prefetch", 0.0) for name in ids(lost)
        ]
        # The jobs have kept their places in the queue.
        assert ids((await call(storage, 1, owner=BOB, room=3)).leases) == [*ids(lost), "job-0003"]

    async def test_a_call_that_releases_lost_jobs_may_claim_them_again(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(2))
        [lost] = (await call(storage, 1)).leases
        [again] = (await call(storage, 2, answered=0)).leases

        assert (again.ref, again.run) == (lost.ref, 2)
        assert again.fence > lost.fence
        assert await settle(storage, ALICE, lost) == "duplicate"
        assert await settle(storage, ALICE, again) == "done"

    async def test_an_acknowledged_claim_is_not_released(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(3))
        [first] = (await call(storage, 1)).leases
        # The second call is lost, and then the third.
        lost = [*(await call(storage, 2, answered=1)).leases, *(await call(storage, 3, answered=1)).leases]
        await call(storage, 4, answered=1, room=0)

        assert ids(lost) == ["job-0001", "job-0001"]
        assert (await record(storage, first.ref)).state is State.ACTIVE
        job = await record(storage, lost[0].ref)
        assert (job.state, job.starts, job.releases, job.stalls) == (State.WAITING, 2, 2, 0)

    async def test_a_job_reclaimed_by_another_owner_is_not_released(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *new_jobs(1))
        await call(storage, 1)
        await recover(storage, clock)
        theirs = await claim_one(storage, BOB)
        await call(storage, 2, answered=0, room=0)

        assert (await record(storage, theirs.ref)).owner == BOB.id
        assert await settle(storage, BOB, theirs) == "done"

    async def test_a_job_held_by_a_reaper_under_a_new_fence_is_not_released(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(1))
        await call(storage, 1)
        [taken] = (await storage.reclaim(ALICE.id, ALICE)).stalled
        await call(storage, 2, answered=0, room=0)

        assert (await record(storage, taken.lease.ref)).fence == taken.lease.fence

    async def test_each_lane_and_each_owner_has_its_own_numbers(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(4))
        lost = await call(storage, 1)
        in_lane = await call(storage, 1, lane=1)
        other = await call(storage, 1, owner=BOB)
        await call(storage, 2, lane=1, room=0)
        await call(storage, 2, owner=BOB, room=0)
        before = [(await record(storage, answer.leases[0].ref)).state for answer in (lost, in_lane, other)]
        await call(storage, 2, answered=0, room=0)
        after = [(await record(storage, answer.leases[0].ref)).state for answer in (lost, in_lane, other)]

        assert [answer.seen for answer in (lost, in_lane, other)] == [False] * 3
        assert before == [State.ACTIVE] * 3
        assert after == [State.WAITING, State.ACTIVE, State.ACTIVE]

    async def test_a_beat_releases_the_jobs_of_a_finished_call_with_a_lost_answer(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(3))
        [held] = (await call(storage, 1)).leases
        [lost] = (await call(storage, 2)).leases
        under_way = RenewRequest(ALICE, (LeaseRenewal(held.ref, held.fence),), lanes=(Lane(0, 2, 1),))
        await storage.renew(under_way)
        before = (await record(storage, lost.ref)).state
        await storage.renew(structs.replace(under_way, lanes=(Lane(0, 3, 1),)))
        job = await record(storage, lost.ref)

        assert before is State.ACTIVE
        assert (job.state, job.releases, job.stalls, job.reason) == (State.WAITING, 1, 0, "prefetch")
        assert (await record(storage, held.ref)).state is State.ACTIVE

    async def test_a_late_beat_releases_no_job_of_an_answered_call(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(2))
        await call(storage, 1)
        [won] = (await call(storage, 2, answered=0)).leases
        # The renewal was sent when the first call was over and before the second began.
        await storage.renew(RenewRequest(ALICE, lanes=(Lane(0, 2, 0),)))

        assert (await record(storage, won.ref)).fence == won.fence

    async def test_a_call_that_arrives_after_a_beat_reported_it_over_claims_nothing(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(3))
        await call(storage, 1)
        # As far as the worker knows, the second call was lost on its way to the storage.
        await storage.renew(RenewRequest(ALICE, lanes=(Lane(0, 3, 1),)))

        late = await call(storage, 2)
        following = await call(storage, 3, answered=1)
        assert ids(following.leases) == ["job-0001"]
        # If a storage keeps no number for a call that it never received, the next call puts back what the late call
        # claimed.
        assert late.leases == () or (await record(storage, late.leases[0].ref)).releases == 1

    async def test_a_lost_claim_of_a_job_with_a_cancel_request_cancels_it(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(1))
        [lost] = (await call(storage, 1)).leases
        await storage.revise([CancelJob(lost.ref, reason="enough", by="me")])
        await call(storage, 2, answered=0)
        job = await record(storage, lost.ref)
        [cancelled] = await events_of(storage, JobCancelled)

        assert (job.state, job.releases, job.reason) == (State.CANCELLED, 0, "enough")
        assert (cancelled.reason, cancelled.by, cancelled.was) == ("enough", "me", State.ACTIVE)

    async def test_a_released_job_frees_its_concurrency_keys(self, storage: Storage) -> None:
        key = Key("key", 1)
        await enqueue(storage, new_job("a", keys=(key,)), new_job("b", keys=(key,)))
        lost = await call(storage, 1, room=2)
        nothing = await call(storage, 1, owner=BOB, room=2)
        await storage.renew(RenewRequest(ALICE, lanes=(Lane(0, 2, 0),)))
        won = await call(storage, 2, owner=BOB, room=2)

        assert (ids(lost.leases), nothing.leases) == (["a"], ())
        assert len(won.leases) == 1

    async def test_a_lost_claim_of_the_maximum_size_is_released_as_a_whole(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(128))
        lost = (await call(storage, 1, room=128)).leases
        await call(storage, 2, answered=0, room=0)
        called = [await record(storage, lease.ref) for lease in lost]
        await call(storage, 3, room=128)
        await storage.renew(RenewRequest(ALICE, lanes=(Lane(0, 4, 2),)))
        beaten = [await record(storage, lease.ref) for lease in lost]

        assert len(lost) == 128
        assert {(job.state, job.releases, job.stalls) for job in called} == {(State.WAITING, 1, 0)}
        assert {(job.state, job.releases, job.stalls) for job in beaten} == {(State.WAITING, 2, 0)}

    async def test_a_job_released_before_is_released_again_by_a_lost_claim(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(1))
        [lease] = (await call(storage, 1)).leases
        await settle(storage, ALICE, lease, Interrupted("worker_failed", begun=True))
        [lost] = (await call(storage, 2)).leases
        await call(storage, 3, answered=1, room=0)
        job = await record(storage, lost.ref)

        assert (lost.run, job.state, job.starts, job.releases) == (2, State.WAITING, 2, 2)
        # This put-back does not count among those that may loop, and does not end a series of them.
        assert job.put_back_used

    async def test_an_unknown_lane_starts_with_the_number_of_its_first_call(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(2))
        first = await call(storage, 41, answered=17)
        following = await call(storage, 42)

        assert (ids(first.leases), ids(following.leases)) == (["job-0000"], ["job-0001"])

    async def test_a_dead_workers_lost_claims_are_reclaimed_like_its_other_runs(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(1))
        [lost] = (await call(storage, 1)).leases
        [taken] = (await storage.reclaim(ALICE.id, REAPER)).stalled

        assert (taken.lease.ref, taken.reason) == (lost.ref, "process_died")
