"""Conformance tests of `enqueue`: each job is stored once, completely, and in its place in the queue."""

import pytest

from tenure.clock import SECOND
from tenure.core.job import Key, NewJob, Owner, Policy, Ref, StallTerms, UniqueKey
from tenure.core.lifecycle import State
from tenure.core.retry import Backoff
from tenure.storage.protocol import CancelJob, EnqueueResult, Query, Storage
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    RAISED,
    RETURNED,
    Conformance,
    all_events,
    beat,
    claim,
    claim_one,
    enqueue,
    look,
    new_job,
    new_jobs,
    order,
    record,
    settle,
    start,
)

STRANGE_IDS = (
    "a:b:c",
    "a/b/c",
    "../../outside",
    "..",
    ".",
    "%00 ?*[a]_{q}",
    'it\'s "quoted" -- ; DROP TABLE job',
    "two words\nand a line",
    "größer-作业-🪢",
    "x" * 1024,
)


class EnqueueConformance(Conformance):
    """Each job is stored once, completely, and in its place in the queue."""

    async def test_an_enqueued_job_is_stored_with_all_its_fields(self, storage: Storage, clock: ManualClock) -> None:
        job = NewJob(
            queue="reports",
            id="wish",
            task="reports.export",
            payload=bytes(range(256)),
            headers={"trace": "00-ab", "größe": "ü"},
            tags=("nightly", "eu"),
            delay=90 * SECOND,
            priority=3,
            boost=180 * SECOND,
            fair_key="tenant-7",
            ttl=3600 * SECOND,
            timeout=60 * SECOND,
            deadline=clock.now() + 7200 * SECOND,
            heartbeat_timeout=15 * SECOND,
            keys=(Key("customer:1", 2), Key("printer")),
            merge=UniqueKey("report:1", "queued", 5 * SECOND),
            stall=StallTerms(8 * SECOND, 4, 2 * SECOND, renewed=False, pinned=("lease", "renewed")),
            policy=Policy(
                retry=Backoff(max_attempts=7, kind="linear", base=2 * SECOND, cap=9 * SECOND, jitter=0.5),
                on_worker_lost="fail",
                on_expire="discard",
                result_ttl=60 * SECOND,
                version=3,
            ),
            schedule="nightly",
            parent="flow-1",
        )
        now = clock.now()

        assert await storage.enqueue([job]) == [EnqueueResult("created", job.ref)]

        kept = await record(storage, job.ref)

        assert kept.ref == job.ref
        assert kept.state is State.DELAYED
        for name in (
            "task",
            "payload",
            "headers",
            "tags",
            "priority",
            "boost",
            "lifo",
            "fair_key",
            "weight",
            "timeout",
            "deadline",
            "heartbeat_timeout",
            "keys",
            "rates",
            "merge",
            "stall",
            "policy",
            "schedule",
            "tick",
            "parent",
        ):
            assert getattr(kept, name) == getattr(job, name), name
        assert kept.created == now
        assert kept.run_at == now + 90 * SECOND
        assert kept.expires_at == now + 3600 * SECOND
        assert (kept.starts, kept.failures, kept.stalls, kept.releases, kept.fence) == (0, 0, 0, 0, 0)
        assert (kept.owner, kept.lease_until, kept.started, kept.finished) == (None, None, None, None)

    async def test_a_claim_returns_the_whole_job(self, storage: Storage) -> None:
        payload = bytes(range(256)) * 4096
        lease = await start(storage, new_job(payload=payload))

        assert lease.job.payload == payload
        assert lease.job == await record(storage, lease.ref)

    async def test_a_known_id_creates_no_job(self, storage: Storage) -> None:
        await enqueue(storage, new_job(payload=b"first"))
        receipts = await storage.enqueue([new_job(payload=b"second", delay=5 * SECOND)])

        assert receipts == [EnqueueResult("duplicate", new_job().ref)]
        kept = await record(storage, new_job().ref)
        assert (kept.payload, kept.state) == (b"first", State.WAITING)
        assert len(await claim(storage)) == 1

    async def test_an_enqueue_repeated_after_a_lost_reply_adds_only_what_is_missing(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(2))
        receipts = await storage.enqueue(new_jobs(4))

        assert [receipt.action for receipt in receipts] == ["duplicate", "duplicate", "created", "created"]
        assert [receipt.ref for receipt in receipts] == [job.ref for job in new_jobs(4)]
        assert len(await claim(storage)) == 4

    async def test_an_id_twice_in_one_call_creates_one_job(self, storage: Storage) -> None:
        receipts = await storage.enqueue([new_job(payload=b"first"), new_job(payload=b"second")])

        assert [receipt.action for receipt in receipts] == ["created", "duplicate"]
        assert [lease.job.payload for lease in await claim(storage)] == [b"first"]

    async def test_an_id_stays_known_while_its_job_runs_and_after_it(self, storage: Storage) -> None:
        lease = await start(storage)
        during = await storage.enqueue([new_job()])
        await settle(storage, ALICE, lease)
        after = await storage.enqueue([new_job()])

        assert [during[0].action, after[0].action] == ["duplicate", "duplicate"]
        assert await claim(storage) == []

    async def test_an_id_counts_within_its_queue_only(self, storage: Storage) -> None:
        await enqueue(storage, new_job(queue="mail", payload=b"mail"), new_job(queue="reports", payload=b"reports"))
        mail = await claim_one(storage, queue="mail")
        await settle(storage, ALICE, mail)

        assert mail.job.payload == b"mail"
        assert (await record(storage, Ref("reports", "job"))).state is State.WAITING
        assert (await claim_one(storage, queue="reports")).job.payload == b"reports"

    async def test_an_empty_enqueue_stores_nothing(self, storage: Storage) -> None:
        assert await storage.enqueue([]) == []
        assert (await storage.find(Query())).jobs == ()

    async def test_a_thousand_jobs_in_one_call_are_all_there(self, storage: Storage) -> None:
        jobs = new_jobs(1000)
        await enqueue(storage, *jobs)
        claimed: list[Ref] = []
        while leases := await claim(storage):
            claimed += [lease.ref for lease in leases]

        assert claimed == [job.ref for job in jobs]

    @pytest.mark.fault("W-T11")
    async def test_the_jobs_of_one_call_keep_their_order(self, storage: Storage) -> None:
        names = ["d", "b", "c", "a"]
        await enqueue(storage, *(new_job(name) for name in names))

        assert [lease.ref.id for lease in await claim(storage)] == names

    async def test_jobs_of_equal_score_go_by_their_ids(self, storage: Storage) -> None:
        for name in ("c", "a", "b"):
            await enqueue(storage, new_job(name))

        assert [lease.ref.id for lease in await claim(storage)] == ["a", "b", "c"]

    @pytest.mark.fault("W-T11")
    async def test_the_older_job_goes_first(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("z-older"))
        clock.advance(0.000_001)
        await enqueue(storage, new_job("a-younger"))

        assert [lease.ref.id for lease in await claim(storage)] == ["z-older", "a-younger"]

    @pytest.mark.fault("W-T10", "W-B12")
    async def test_a_boost_overtakes_jobs_that_are_older_by_less_than_it(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, new_job("old"))
        clock.advance(1)
        await enqueue(storage, new_job("middle"))
        clock.advance(59.5)
        await enqueue(storage, new_job("urgent", boost=60 * SECOND))

        # The old job has waited longer than the boost is worth, so it comes first and cannot starve.
        assert [lease.ref.id for lease in await claim(storage)] == ["old", "urgent", "middle"]

    async def test_a_negative_boost_lets_others_pass(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("idle", boost=-60 * SECOND))
        clock.advance(10)
        await enqueue(storage, new_job("usual"))

        assert [lease.ref.id for lease in await claim(storage)] == ["usual", "idle"]

    async def test_a_delayed_job_is_due_to_the_microsecond(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job(delay=5 * SECOND))
        clock.advance(4.999_999)

        assert await claim(storage) == []
        assert (await record(storage, new_job().ref)).state is State.DELAYED

        clock.advance(0.000_001)

        assert (await claim_one(storage)).job.run_at == clock.now()

    async def test_a_due_time_is_stored_unchanged(self, storage: Storage, clock: ManualClock) -> None:
        at = clock.now() + 1_234_567
        await enqueue(storage, new_job(run_at=at))

        kept = await record(storage, new_job().ref)
        assert (kept.run_at, kept.state) == (at, State.DELAYED)

        clock.advance(1.234_567)

        assert len(await claim(storage)) == 1

    async def test_a_job_for_a_past_instant_is_due_at_once(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("usual"))
        clock.advance(1)
        await enqueue(storage, new_job("past", run_at=clock.now() - 3600 * SECOND))

        # A `run_at` in the past gives no priority: the job counts from its enqueue time.
        assert [lease.ref.id for lease in await claim(storage)] == ["usual", "past"]

    async def test_a_job_due_earlier_starts_before_a_job_enqueued_later(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, new_job("z-delayed", delay=5 * SECOND))
        clock.advance(10)
        await enqueue(storage, new_job("a-later"))

        assert [lease.ref.id for lease in await claim(storage)] == ["z-delayed", "a-later"]

    async def test_many_delayed_jobs_all_become_due(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *(new_job(f"job-{number:03}", delay=SECOND) for number in range(250)))
        clock.advance(1)
        claimed: list[str] = []
        turns = 0
        while len(claimed) < 250:
            turns += 1
            answer = await order(storage, ALICE, room=128)
            claimed += [lease.ref.id for lease in answer.leases]

            assert turns < 10
            assert len(claimed) == 250 or answer.left or answer.next_due == 0

        assert claimed == [f"job-{number:03}" for number in range(250)]

    @pytest.mark.fault("W-P5", "W-P18")
    @pytest.mark.statement(120)
    @pytest.mark.parametrize("name", STRANGE_IDS, ids=range(len(STRANGE_IDS)))
    async def test_a_job_with_an_unusual_id_passes_through_all_verbs(
        self, storage: Storage, clock: ManualClock, name: str
    ) -> None:
        job = new_job(name, queue=name)
        lease = await start(storage, job)
        pulse = await beat(storage, ALICE, [lease])

        assert pulse.lost == ()
        assert await settle(storage, ALICE, lease, RAISED) == "done"

        clock.advance(1)
        again = await claim_one(storage, BOB, queue=name)

        assert await settle(storage, BOB, again, RETURNED) == "done"
        assert (await look(storage, Ref(name, name))).job.result == RETURNED.result
        assert [found.ref for found in (await storage.find(Query(queues=(name,), id=name))).jobs] == [job.ref]
        assert (await storage.revise([CancelJob(job.ref)]))[0].verdict == "refused"
        assert [getattr(event, "id", None) for event in await all_events(storage)] == [name, name]

    @pytest.mark.fault("W-P15")
    @pytest.mark.statement(120)
    async def test_ids_that_look_alike_are_different(self, storage: Storage) -> None:
        names = ["a", "A", "a ", "a:", "a/", "ä", "a\u0308", "1", "01", "1.0"]
        await enqueue(storage, *(new_job(name) for name in names))

        assert [lease.ref.id for lease in await claim(storage)] == names

    @pytest.mark.fault("W-P5")
    async def test_an_owner_of_any_name_may_claim(self, storage: Storage) -> None:
        owner = Owner("ffffffffffffffff", "größe: 'x'", "host/with:signs", 2**31 - 1)
        lease = await start(storage, owner=owner)

        run = (await look(storage, lease.ref)).runs[0]
        assert (run.owner, run.worker, run.host, run.pid) == (owner.id, owner.name, owner.host, owner.pid)
