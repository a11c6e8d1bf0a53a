"""Conformance tests of collecting jobs: no call is lost or doubled, each call gets an answer, and none waits long."""

import pytest
from msgspec import structs

from tenure.client.signature import PAYLOAD_LIMIT
from tenure.clock import SECOND
from tenure.core.events import JobCollected, JobExpired
from tenure.core.frames import unframed
from tenure.core.job import CollectKey, DebounceKey, Key, NewJob, Policy, Ref
from tenure.core.lifecycle import State
from tenure.core.outcome import Interrupted, Rejected
from tenure.core.retention import KeepRule, RetentionRules
from tenure.storage.protocol import (
    CancelJob,
    DeleteJob,
    EnqueueResult,
    Query,
    RedriveJob,
    RescheduleJob,
    Settings,
    Storage,
    Target,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    ERROR,
    QUEUE,
    RAISED,
    REAPER,
    Conformance,
    bid,
    claim,
    claim_one,
    counted,
    enqueue,
    events_of,
    look,
    new_job,
    record,
    settle,
    stalled,
    states,
    sweep_all,
    watch,
)

COLLECTED = CollectKey("mails", 10 * SECOND, 100)
FEW = CollectKey("mails", 10 * SECOND, 3)
FIRST = Ref(QUEUE, "call-0")


class CollectConformance(Conformance):
    """No collected call is lost or doubled, each call gets an answer, and none waits long."""

    async def test_calls_are_collected_in_one_job_in_order_of_arrival(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        receipts = await storage.enqueue(calls(2)) + await storage.enqueue(calls(5)[2:])
        clock.advance(10)
        lease = await claim_one(storage)

        assert receipts == [EnqueueResult("created", FIRST)] + [EnqueueResult("collected", FIRST)] * 4
        assert await claim(storage) == []
        assert (lease.ref, lease.job.collected) == (FIRST, 5)
        assert unframed(lease.job.payload) == [b"0", b"1", b"2", b"3", b"4"]

    async def test_a_lookup_shows_the_calls_collected_so_far(self, storage: Storage, clock: ManualClock) -> None:
        for number, call in enumerate(calls(4)):
            await storage.enqueue([call])
            job = await record(storage, FIRST)

            assert (job.state, job.collected) == (State.DELAYED, number + 1)
            assert unframed(job.payload) == [b"%d" % earlier for earlier in range(number + 1)]

        (listed,) = (await storage.find(Query())).jobs

        assert listed == await record(storage, FIRST)

    @pytest.mark.parametrize("payload", [b"", b"\x00" * 7, bytes(range(256)) * 400])
    async def test_arguments_of_any_bytes_are_kept(self, storage: Storage, payload: bytes) -> None:
        for number in range(3):
            await storage.enqueue([new_job(f"call-{number}", merge=FEW, payload=payload)])

        assert unframed((await claim_one(storage)).job.payload) == [payload] * 3

    async def test_a_thousand_calls_are_one_job(self, storage: Storage, clock: ManualClock) -> None:
        key = CollectKey("mails", SECOND, 10_000)
        for begin in range(0, 1000, 100):
            await storage.enqueue(calls(1000, key)[begin : begin + 100])
        clock.advance(1)
        lease = await claim_one(storage)

        assert unframed(lease.job.payload) == [b"%d" % number for number in range(1000)]
        assert await counted(storage) == {State.ACTIVE: 1}

    async def test_each_call_delays_the_start(self, storage: Storage, clock: ManualClock) -> None:
        for call in calls(4):
            await storage.enqueue([call])
            clock.advance(9.999_999)

            assert await claim(storage) == []

        clock.advance(0.000_001)

        assert (await claim_one(storage)).job.collected == 4

    @pytest.mark.fault("W-T22")
    async def test_a_steady_stream_is_collected_for_the_longest_wait_at_most(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        began, key = clock.now(), CollectKey("mails", 10 * SECOND, 1000, 25 * SECOND)
        started: list[tuple[int, int]] = []
        for call in calls(30, key):
            await storage.enqueue([call])
            started += [(clock.now() - began, lease.job.collected) for lease in await claim(storage)]
            clock.advance(1)

        assert started == [(25 * SECOND, 26)]

    @pytest.mark.parametrize(
        "key", [CollectKey("mails", 2 * SECOND, 1000, 10 * SECOND), DebounceKey("mails", 2 * SECOND, 10 * SECOND)]
    )
    async def test_a_clock_set_back_does_not_extend_the_longest_wait_of_a_stream(
        self, storage: Storage, clock: ManualClock, key: CollectKey | DebounceKey
    ) -> None:
        await enqueue(storage, new_job("call-0", merge=key))
        clock.step_wall(-3600)
        began, started = clock.now(), list[int]()
        for number in range(1, 12):
            await storage.enqueue([new_job(f"call-{number}", merge=key)])
            started += [clock.now() - began for _ in await claim(storage)]
            clock.advance(1)

        assert started == [10 * SECOND]

    async def test_a_batch_with_the_maximum_number_of_calls_starts_at_once(self, storage: Storage) -> None:
        receipts = await storage.enqueue(calls(7, FEW))
        leases = await claim(storage)

        assert [receipt.action for receipt in receipts] == [*(["created", "collected", "collected"] * 2), "created"]
        assert [unframed(lease.job.payload) for lease in leases] == [[b"0", b"1", b"2"], [b"3", b"4", b"5"]]
        assert (await record(storage, Ref(QUEUE, "call-6"))).state is State.DELAYED

    async def test_a_batch_with_the_maximum_number_of_bytes_starts_at_once(self, storage: Storage) -> None:
        large = [structs.replace(call, payload=bytes(PAYLOAD_LIMIT)) for call in calls(10)]
        receipts = [(await storage.enqueue([call]))[0] for call in large]
        full, rest = [await record(storage, Ref(QUEUE, name)) for name in ("call-0", "call-8")]

        assert [receipt.action for receipt in receipts] == ["created", *["collected"] * 7, "created", "collected"]
        assert (full.state, full.collected, full.collected_bytes) == (State.WAITING, 8, 8 * (PAYLOAD_LIMIT + 4))
        assert (rest.state, rest.collected, rest.collected_bytes) == (State.DELAYED, 2, 2 * (PAYLOAD_LIMIT + 4))
        assert len((await claim_one(storage)).job.payload) == full.collected_bytes

    async def test_a_single_call_that_reaches_the_maximum_starts_at_once(self, storage: Storage) -> None:
        await storage.enqueue(calls(2, CollectKey("mails", 10 * SECOND, 1)))

        assert [lease.job.collected for lease in await claim(storage)] == [1, 1]

    @pytest.mark.fault("W-T21")
    async def test_a_lookup_of_a_collected_call_finds_its_batch(self, storage: Storage, clock: ManualClock) -> None:
        await storage.enqueue(calls(3))
        refs = [call.ref for call in calls(3)]

        assert await storage.get(refs) == [await look(storage, FIRST)] * 3

        clock.advance(10)
        await settle(storage, ALICE, await claim_one(storage))
        found = await storage.get(refs)

        assert found == [await look(storage, FIRST)] * 3
        assert found[2] is not None
        assert found[2].job.state is State.COMPLETED

    async def test_a_call_retried_after_a_lost_reply_is_collected_once(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.enqueue(calls(3))
        clock.advance(4)
        before = await record(storage, FIRST)

        assert await storage.enqueue(calls(3)) == [EnqueueResult("duplicate", FIRST)] * 3
        assert await record(storage, FIRST) == before

        clock.advance(6)
        lease = await claim_one(storage)

        assert await storage.enqueue(calls(3)) == [EnqueueResult("duplicate", FIRST)] * 3

        await settle(storage, ALICE, lease)

        assert await storage.enqueue(calls(3)) == [EnqueueResult("duplicate", FIRST)] * 3
        assert await counted(storage) == {State.COMPLETED: 1}

    async def test_an_id_twice_in_one_enqueue_is_collected_once(self, storage: Storage) -> None:
        first, second, _ = calls(3)

        assert await storage.enqueue([first, second, second, first]) == [
            EnqueueResult("created", FIRST),
            EnqueueResult("collected", FIRST),
            EnqueueResult("duplicate", FIRST),
            EnqueueResult("duplicate", FIRST),
        ]
        assert (await record(storage, FIRST)).collected == 2

    async def test_a_batch_that_has_started_collects_no_more_calls(self, storage: Storage, clock: ManualClock) -> None:
        await storage.enqueue(calls(2))
        clock.advance(10)
        lease = await claim_one(storage)
        late = calls(4)[2:]

        assert [receipt.action for receipt in await storage.enqueue(late)] == ["created", "collected"]

        await settle(storage, ALICE, lease, Interrupted("shutdown"))
        (receipt,) = await storage.enqueue([new_job("call-9", merge=COLLECTED)])
        again = await claim_one(storage, BOB)

        assert receipt == EnqueueResult("collected", late[0].ref)
        assert (again.ref, unframed(again.job.payload)) == (FIRST, [b"0", b"1"])

    async def test_no_collected_call_is_lost_when_the_run_fails_or_stalls(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.enqueue(calls(3))
        clock.advance(10)
        await settle(storage, ALICE, await claim_one(storage), RAISED)
        clock.advance(1)
        lease = await claim_one(storage)
        (taken,) = await watch(storage, clock, 26)
        verdicts = (await storage.exchange(REAPER, [stalled(taken)])).verdicts
        again = await claim_one(storage, BOB)

        assert [verdict.verdict for verdict in verdicts] == ["done"]
        assert [unframed(found.job.payload) for found in (lease, taken.lease, again)] == [[b"0", b"1", b"2"]] * 3

    async def test_a_redriven_batch_runs_with_all_its_calls(self, storage: Storage, clock: ManualClock) -> None:
        await storage.enqueue(calls(3))
        clock.advance(10)
        await settle(storage, ALICE, await claim_one(storage), Rejected(ERROR))
        await storage.revise([RedriveJob(FIRST)])

        assert unframed((await claim_one(storage)).job.payload) == [b"0", b"1", b"2"]

    async def test_a_cancelled_batch_collects_no_more_calls(self, storage: Storage, clock: ManualClock) -> None:
        await storage.enqueue(calls(2))
        await storage.revise([CancelJob(FIRST)])
        (receipt,) = await storage.enqueue([new_job("later", merge=COLLECTED, payload=b"later")])
        clock.advance(10)
        lease = await claim_one(storage)

        assert receipt == EnqueueResult("created", Ref(QUEUE, "later"))
        assert unframed(lease.job.payload) == [b"later"]
        assert unframed((await record(storage, FIRST)).payload) == [b"0", b"1"]

    @pytest.mark.parametrize("by_sweep", [False, True])
    async def test_collected_calls_are_deleted_with_their_batch(
        self, storage: Storage, clock: ManualClock, by_sweep: bool
    ) -> None:
        await storage.enqueue(calls(3, policy=Policy(result_ttl=5 * SECOND)))
        if by_sweep:
            clock.advance(10)
            await settle(storage, ALICE, await claim_one(storage))
            clock.advance(5)
            await sweep_all(storage)
        else:
            await storage.revise([DeleteJob(FIRST)])

        assert await storage.get([call.ref for call in calls(3)]) == [None] * 3
        assert [receipt.action for receipt in await storage.enqueue(calls(3))] == ["created", "collected", "collected"]
        assert unframed((await record(storage, FIRST)).payload) == [b"0", b"1", b"2"]

    async def test_an_id_with_an_expired_result_starts_a_new_batch(self, storage: Storage, clock: ManualClock) -> None:
        await storage.enqueue(calls(3, policy=Policy(result_ttl=0)))
        clock.advance(10)
        lease = await claim_one(storage)
        await settle(storage, ALICE, lease)
        receipts = await storage.enqueue(calls(2))
        clock.advance(10)
        again = await claim_one(storage)

        assert [receipt.action for receipt in receipts] == ["created", "collected"]
        assert again.fence > lease.fence
        assert unframed(again.job.payload) == [b"0", b"1"]

    async def test_each_call_extends_the_time_to_live_of_its_batch(self, storage: Storage, clock: ManualClock) -> None:
        await storage.enqueue(calls(1, ttl=15 * SECOND))
        clock.advance(9)
        await storage.enqueue(calls(2, ttl=15 * SECOND)[1:])
        clock.advance(9)

        assert await claim(storage) == []

        clock.advance(1)

        assert (await claim_one(storage)).job.collected == 2

    async def test_an_expired_batch_collects_no_more_calls(self, storage: Storage, clock: ManualClock) -> None:
        await storage.enqueue(calls(2, ttl=5 * SECOND))
        clock.advance(5)
        (receipt,) = await storage.enqueue([new_job("later", merge=COLLECTED)])

        assert receipt.action == "created"
        assert await states(storage) == {"call-0": State.EXPIRED, "later": State.DELAYED}
        assert [event.id for event in await events_of(storage, JobExpired)] == ["call-0"]

    async def test_a_due_batch_collects_until_it_starts(self, storage: Storage, clock: ManualClock) -> None:
        await storage.enqueue(calls(1, FEW))
        clock.advance(10)
        await sweep_all(storage)

        assert (await states(storage))["call-0"] is State.WAITING

        await storage.enqueue(calls(2, FEW)[1:])

        assert (await states(storage))["call-0"] is State.DELAYED
        assert await claim(storage) == []

        await storage.enqueue(calls(3, FEW)[2:])

        assert (await claim_one(storage)).job.collected == 3

    async def test_a_parked_batch_collects_and_keeps_its_place(self, storage: Storage, clock: ManualClock) -> None:
        slot, key = Key("printer"), CollectKey("mails", 0, 3)
        await enqueue(storage, new_job("holder", keys=(slot,)))
        held = await claim_one(storage)
        await storage.enqueue(calls(1, key, keys=(slot,)))
        await claim(storage)
        parked = await record(storage, FIRST)
        await storage.enqueue(calls(2, key, keys=(slot,))[1:])
        job = await record(storage, FIRST)

        assert parked.parked_under == "printer"
        assert (job.parked_under, job.score, job.collected) == ("printer", parked.score, 2)

        await settle(storage, ALICE, held)

        assert (await claim_one(storage)).ref == FIRST

    async def test_a_parked_batch_that_a_call_delays_leaves_its_place(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.tune(Target("task", "add"), Settings(paused=True))
        await storage.enqueue(calls(1, FEW))
        clock.advance(10)
        await claim(storage)
        parked = await record(storage, FIRST)
        await storage.enqueue(calls(2, FEW)[1:])
        job = await record(storage, FIRST)

        assert parked.parked_under is not None
        assert (job.state, job.parked_under) == (State.DELAYED, None)
        assert await counted(storage) == {State.DELAYED: 1}

    @pytest.mark.parametrize("kept", [True, False])
    async def test_a_sweep_deletes_a_bounded_number_of_collected_calls(
        self, storage: Storage, clock: ManualClock, kept: bool
    ) -> None:
        key, policy = CollectKey("mails", 10 * SECOND, 400), Policy(on_expire="fail" if kept else "discard")
        await storage.enqueue(calls(1200, key, ttl=SECOND, policy=policy)[:1000])
        await storage.enqueue(calls(1200, key, ttl=SECOND, policy=policy)[1000:])
        clock.advance(1)
        await storage.tune(Target("queue", QUEUE), Settings(retention=RetentionRules(expired=KeepRule(0))))
        swept = [await storage.sweep(bid()) for _ in range(4)]
        did = [turn.did["trimmed" if kept else "expired"] for turn in swept]

        assert did == ([800, 400, 0, 0] if kept else [400, 400, 400, 0])
        assert [turn.more for turn in swept] == [True, not kept, not kept, False]
        assert await storage.get([call.ref for call in calls(1200)]) == [None] * 1200

    async def test_an_operator_can_start_a_batch_early(self, storage: Storage) -> None:
        await storage.enqueue(calls(2))
        await storage.revise([RescheduleJob(FIRST, delay=0)])

        assert unframed((await claim_one(storage)).job.payload) == [b"0", b"1"]

    async def test_collected_calls_are_recorded_as_events_on_request(self, storage: Storage) -> None:
        await storage.tune(Target("queue", QUEUE), Settings(record=("collected",)))
        await storage.enqueue(calls(3))
        events = await events_of(storage, JobCollected)

        assert [(event.id, event.key, event.count) for event in events] == [
            ("call-0", "mails", 2),
            ("call-0", "mails", 3),
        ]


def calls(
    count: int,
    key: CollectKey = COLLECTED,
    *,
    ttl: int | None = None,
    keys: tuple[Key, ...] = (),
    policy: Policy | None = None,
) -> list[NewJob]:
    """Return calls of one key. Each has its number as its arguments."""
    return [
        new_job(f"call-{number}", merge=key, payload=b"%d" % number, ttl=ttl, keys=keys, policy=policy or Policy())
        for number in range(count)
    ]
