"""Conformance tests of rates: never more starts than a rate allows, no delay for other jobs, and no start wasted."""

from collections.abc import Sequence
from itertools import cycle, pairwise

import pytest

from tenure.clock import SECOND
from tenure.core.job import Key, NewJob, Owner, RateKey, Ref
from tenure.core.lifecycle import State
from tenure.core.outcome import Interrupted, Returned
from tenure.storage.protocol import (
    PROMOTE_LIMIT,
    SCAN_LIMIT,
    CancelJob,
    DeleteJob,
    RescheduleJob,
    Settings,
    Storage,
    Target,
    queue_topic,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    MS,
    QUEUE,
    Conformance,
    claim,
    claim_one,
    counted,
    enqueue,
    glance,
    new_job,
    order,
    record,
    settle,
    start,
    states,
    sweep_all,
)
from tenure_testing.conformance.notices import woken_by

SLOW = RateKey("slow", SECOND)
SLOWER = RateKey("slower", 4 * SECOND)
TENTH = RateKey("tenth", 100 * MS)


class RatesConformance(Conformance):
    """Never more starts than a rate allows, with any number of claimers; no delay for others, and no start wasted."""

    async def test_starts_are_an_interval_apart(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *paced(6, SLOW))
        begun = clock.now()
        started = await run(storage, clock, 10)

        assert [name for _, name in started] == [f"job-{number}" for number in range(6)]
        # A rate may be one interval ahead, and not a microsecond more.
        assert [at - begun for at, _ in started] == [0, 1, *(n * SECOND + 1 for n in (1, 2, 3, 4))]

    async def test_as_many_jobs_as_the_burst_start_at_once_after_an_idle_time(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, *paced(20, RateKey("r", SECOND, 3)))

        assert len(await claim(storage)) == 3
        assert len(await run(storage, clock, 3)) == 3
        clock.advance(1000)
        assert len(await claim(storage)) == 3

    @pytest.mark.fault("W-N18")
    async def test_no_window_exceeds_the_rate_by_more_than_one_with_twenty_claimers(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        claimers = [Owner(f"{number:016x}", f"w{number}") for number in range(1, 21)]
        await enqueue(storage, *paced(700, TENTH))
        started = await run(storage, clock, 60, claimers, poll=7 * MS)
        instants = [at for at, _ in started]
        within = [sum(at <= other < at + SECOND for other in instants) for at in instants]

        assert max(within) <= 11
        assert abs(len(instants) - 600) <= 6
        assert len({name for _, name in started}) == len(started)

    async def test_the_next_due_is_when_the_rate_opens(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *paced(4, SLOW))
        await claim(storage)
        clock.advance(0.000_001)
        answer = await order(storage, ALICE, room=10)

        assert (len(answer.leases), answer.left, answer.next_due) == (1, False, SECOND)

        clock.advance(0.25)
        answer = await order(storage, BOB, room=10)

        assert (answer.leases, answer.left, answer.next_due) == ((), False, 3 * SECOND // 4)

    @pytest.mark.fault("W-N12")
    async def test_claims_that_find_no_job_use_up_no_time_of_a_rate(self, storage: Storage, clock: ManualClock) -> None:
        limited = RateKey("r", SECOND, 3)
        await enqueue(storage, *paced(1, limited, prefix="early"))
        await claim(storage)
        clock.advance(60)
        for _ in range(50):
            assert await claim(storage) == []
        await enqueue(storage, *paced(9, limited))

        assert len(await claim(storage)) == 3

        for _ in range(50):
            assert await claim(storage) == []
        clock.advance(1)

        assert len(await claim(storage)) == 1

    async def test_a_job_that_waits_for_a_rate_holds_no_slot(self, storage: Storage, clock: ManualClock) -> None:
        key = (Key("k"),)
        first, _, other = await enqueue(
            storage,
            new_job("first", rates=(SLOWER,)),
            new_job("waits", rates=(SLOWER,), keys=key),
            new_job("other", keys=key),
        )

        assert [lease.ref for lease in await claim(storage)] == [first, other]

    async def test_a_job_that_waits_for_a_slot_takes_no_time_of_a_rate(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await start(storage, new_job("holder", keys=(Key("k"),)))
        await enqueue(storage, new_job("waits", rates=(SLOW,), keys=(Key("k"),)), new_job("free", rates=(SLOW,)))

        assert [lease.ref.id for lease in await claim(storage)] == ["free"]

    async def test_a_job_that_waits_for_a_rate_does_not_hold_up_others(self, storage: Storage) -> None:
        await enqueue(storage, *paced(SCAN_LIMIT - 5, SLOW), new_job("free"))

        assert [lease.ref.id for lease in await claim(storage)] == ["job-000", "free"]
        assert (await glance(storage)).parked == SCAN_LIMIT - 6

    async def test_a_later_job_starts_after_the_parked_jobs_of_its_rate(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, *paced(3, SLOW))
        await claim(storage)
        clock.advance(2)
        await enqueue(storage, *paced(2, SLOW, prefix="later"))

        assert [lease.ref.id for lease in await claim(storage)] == ["job-1"]
        assert [name for _, name in await run(storage, clock, 5)] == ["job-2", "later-0", "later-1"]

    async def test_the_job_with_the_best_score_of_a_rate_starts_first(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, *paced(3, SLOWER))
        await claim(storage)
        await enqueue(storage, new_job("urgent", rates=(SLOWER,), boost=60 * SECOND))

        assert [name for _, name in await run(storage, clock, 20)] == ["urgent", "job-1", "job-2"]

    async def test_all_rates_of_a_job_must_allow_it(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *paced(3, SLOW, SLOWER, prefix="both"), *paced(4, SLOW, prefix="one"))
        begun = clock.now()
        started = [(at - begun, name) for at, name in await run(storage, clock, 12)]

        assert [at for at, name in started if name.startswith("both")] == [0, 1, 4 * SECOND + 1]
        # A job that waits for the slower rate uses no time of the other rate meanwhile.
        assert [at for at, name in started if name.startswith("one")] == [n * SECOND + 1 for n in (1, 2, 3, 5)]

    async def test_each_queue_has_its_own_rates(self, storage: Storage) -> None:
        await enqueue(storage, *paced(2, SLOWER), *paced(2, SLOWER, queue="other"))

        assert len((await order(storage, ALICE, QUEUE, "other", room=10)).leases) == 2

    async def test_a_second_run_takes_time_of_its_rate_again(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("job", rates=(SLOW,)))
        await settle(storage, ALICE, lease, Interrupted("shutdown"))
        clock.advance(0.000_001)
        again = await claim_one(storage)
        await settle(storage, ALICE, again, Interrupted("shutdown"))

        assert await claim(storage) == []
        assert (await order(storage, ALICE, room=1)).next_due == SECOND

        clock.advance(1)

        assert (await claim_one(storage)).ref == lease.ref

    async def test_a_released_job_that_leaves_the_queue_releases_the_next(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        refs = await enqueue(storage, *paced(3, SLOWER))
        await claim(storage)
        clock.advance(4)
        # The caller has no free room, but enough time has passed: the next job is ready.
        answer = await order(storage, ALICE, room=0)

        assert (answer.leases, answer.left) == ((), True)

        await storage.revise([CancelJob(refs[1])])

        assert (await record(storage, refs[2])).parked_under is None
        assert [lease.ref for lease in await claim(storage)] == [refs[2]]

    async def test_each_released_job_that_leaves_the_queue_releases_one_other(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        burst = RateKey("r", SECOND, 10)
        await enqueue(storage, *paced(11, burst, prefix="early"))
        for _ in range(2):
            await claim(storage)
            clock.advance(0.000_001)
        refs = await enqueue(storage, *paced(40, burst))
        await claim(storage)
        assert (await glance(storage)).parked == 40
        clock.advance(20)
        await order(storage, ALICE, room=0)
        parked = [(await glance(storage)).parked]
        for gone in ((0,), (1,), (2, 3, 4)):
            await storage.revise([CancelJob(refs[number]) for number in gone])
            parked.append((await glance(storage)).parked)

        assert parked == [30, 29, 28, 25]

    async def test_claims_without_room_release_only_jobs_that_could_have_started(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, *paced(6, SLOWER))
        await claim(storage)
        clock.advance(5)
        answers = [await order(storage, ALICE, room=0) for _ in range(5)]

        assert {(answer.left, answer.next_due) for answer in answers} == {(True, 1)}
        assert (await glance(storage)).parked == 4

        clock.advance(0.000_001)
        for _ in range(3):
            await order(storage, ALICE, room=0)
            clock.advance(1)

        assert (await glance(storage)).parked == 3

    async def test_an_open_rate_of_a_job_does_not_wake_a_closed_queue(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, *paced(6, SLOW))
        await claim(storage)
        await storage.tune(Target("queue", QUEUE), Settings(rate=RateKey("queue", 60 * SECOND)))
        await enqueue(storage, new_job("a", boost=60 * SECOND), new_job("b", boost=60 * SECOND))
        assert len(await claim(storage)) == 1
        clock.advance(0.000_001)
        assert len(await claim(storage)) == 1
        clock.advance(3)
        answers = [await order(storage, ALICE, room=5) for _ in range(5)]

        assert all(answer.next_due for answer in answers)
        assert (await glance(storage)).parked >= 3

    async def test_a_sweep_releases_the_jobs_that_their_rate_allows(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *paced(5, RateKey("r", SECOND, 2)))
        await claim(storage)
        assert (await glance(storage)).parked == 3
        clock.advance(10)
        hints = storage.notices([queue_topic(QUEUE)])
        await woken_by(storage, hints, lambda: sweep_all(storage))
        hints.close()

        assert (await glance(storage)).parked == 1
        assert len(await claim(storage)) == 2

    async def test_a_job_that_waits_for_a_rate_expires_in_time(self, storage: Storage, clock: ManualClock) -> None:
        slow = (RateKey("slow", 60 * SECOND),)
        await enqueue(storage, new_job("first", rates=slow), new_job("second", rates=slow, ttl=5 * SECOND))
        await claim(storage)
        clock.advance(6)
        await sweep_all(storage)

        assert await states(storage) == {"first": State.ACTIVE, "second": State.EXPIRED}
        assert (await order(storage, ALICE, room=1)).next_due is None

    async def test_a_clock_set_back_delays_no_job_by_more_than_the_burst(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await sweep_all(storage)
        await enqueue(storage, *paced(4, SLOW))
        await claim(storage)
        clock.step_wall(-86_400)
        await sweep_all(storage)

        assert [name for _, name in await run(storage, clock, 3)] == ["job-1", "job-2", "job-3"]

    async def test_a_queues_rate_holds_for_all_its_jobs_and_parks_none(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.tune(Target("queue", QUEUE), Settings(rate=RateKey("queue", SECOND, 2)))
        await enqueue(storage, new_job("a"), new_job("b", task="send"), new_job("c"), new_job("d"))
        answer = await order(storage, ALICE, room=10)

        assert [lease.ref.id for lease in answer.leases] == ["a", "b"]
        assert (answer.left, answer.next_due) == (False, 1)
        assert (await glance(storage)).parked == 0

        clock.advance(0.000_001)

        assert [lease.ref.id for lease in await claim(storage)] == ["c"]

        answer = await order(storage, ALICE, room=10)

        assert (answer.leases, answer.left, answer.next_due) == ((), False, SECOND)

        clock.advance(1)

        assert [lease.ref.id for lease in await claim(storage)] == ["d"]

    @pytest.mark.parametrize("look", ["claims", "sweeps"])
    async def test_the_rate_of_a_job_releases_it_only_while_its_queues_rate_is_open(
        self, storage: Storage, clock: ManualClock, look: str
    ) -> None:
        await enqueue(storage, *paced(5, RateKey("r", SECOND, 2)))
        await claim(storage)
        await storage.tune(Target("queue", QUEUE), Settings(rate=RateKey("queue", 60 * SECOND)))
        await start(storage, new_job("a", boost=SECOND))
        clock.advance(0.000_001)
        await start(storage, new_job("b", boost=SECOND))
        clock.advance(20)
        for _ in range(5):
            answer = await order(storage, ALICE, room=10)
            assert (answer.leases, answer.left, answer.next_due) == ((), False, 40 * SECOND)
            if look == "sweeps":
                await sweep_all(storage)

        # One job was released while the queue was open.
        assert (await glance(storage)).parked == 2

        clock.advance(40)

        assert [lease.ref.id for lease in await claim(storage)] == ["job-2"]

    async def test_a_claim_releases_a_bounded_number_of_jobs_and_the_next_continues(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        tenants = PROMOTE_LIMIT + 20
        for of in ("first", "second", "third"):
            await enqueue(
                storage,
                *(new_job(f"{of}-{n:03}", rates=(RateKey(f"key:{n:03}", 60 * SECOND),)) for n in range(tenants)),
            )
        while (await order(storage, ALICE, room=128)).left:
            pass
        clock.advance(0.000_001)
        for _ in range(2):
            await claim(storage)
        assert (await glance(storage)).parked == tenants
        clock.advance(60)
        seen: list[tuple[bool, int | None, int]] = []
        for _ in range(3):
            answer = await order(storage, ALICE, room=0)
            seen.append((answer.left, answer.next_due, (await glance(storage)).parked))

        assert seen == [(True, 0, 20), (True, None, 0), (True, None, 0)]

    async def test_a_rate_without_waiting_jobs_sets_no_next_due(self, storage: Storage, clock: ManualClock) -> None:
        refs = await enqueue(storage, *paced(4, SLOW))
        await claim(storage)
        await storage.revise([CancelJob(refs[1]), RescheduleJob(refs[2], delay=60 * SECOND)])

        assert (await order(storage, ALICE, room=1)).next_due == 1

        await storage.revise([DeleteJob(refs[3])])

        assert (await order(storage, ALICE, room=1)).next_due == 60 * SECOND

    @pytest.mark.parametrize("fast", [TENTH, RateKey("slower", 100 * MS, 5)])
    async def test_a_faster_rate_with_the_same_name_keeps_the_pace_of_slower_jobs(
        self, storage: Storage, clock: ManualClock, fast: RateKey
    ) -> None:
        fast = RateKey(SLOWER.name, fast.interval, fast.burst)
        await enqueue(storage, *paced(20, SLOWER, prefix="slow"), *paced(20, fast, prefix="fast"))
        started = [name for _, name in await run(storage, clock, 20)]

        assert sum(name.startswith("slow") for name in started) in (5, 6)

    async def test_a_slower_rate_with_the_same_name_delays_jobs_of_the_faster(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        fast = RateKey(SLOWER.name, 100 * MS)
        await enqueue(storage, *paced(4, fast, prefix="fast"))
        await claim(storage)
        await start(storage, new_job("slow", rates=(SLOWER,), boost=SECOND))
        clock.advance(1)
        answers = [await order(storage, ALICE, room=10) for _ in range(2)]

        # Both rates are used up now. The next job may start when a tenth of a second of their time is left.
        assert [(answer.leases, answer.next_due) for answer in answers] == [((), 3 * SECOND + 1)] * 2

    async def test_a_rate_set_for_a_task_replaces_the_rates_of_its_jobs(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        brought = (RateKey("task:add", SECOND), RateKey("task/60000000:add", 60 * SECOND))
        await enqueue(storage, *paced(6, *brought), *paced(2, SLOWER, prefix="other"))
        for _ in range(3):
            await claim(storage)
            clock.advance(1)
        assert (await record(storage, Ref(QUEUE, "job-2"))).parked_under == "rate:task/60000000:add"
        hints = storage.notices([queue_topic(QUEUE)])
        await woken_by(
            storage, hints, lambda: storage.tune(Target("task", "add"), Settings(rate=RateKey("task:add", 0)))
        )
        hints.close()

        assert [lease.ref.id for lease in await claim(storage)] == [f"job-{number}" for number in (2, 3, 4, 5)]

    async def test_delayed_jobs_become_due_in_a_queue_with_a_closed_rate(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.tune(Target("queue", QUEUE), Settings(rate=RateKey("queue", 60 * SECOND)))
        await enqueue(storage, new_job("first"), new_job("second"), new_job("delayed", delay=2 * SECOND))
        await claim(storage)
        clock.advance(3)
        await claim(storage)

        assert await counted(storage) == {State.ACTIVE: 2, State.WAITING: 1}

    async def test_the_rate_set_for_a_task_precedes_the_rates_of_its_jobs(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        brought = RateKey("task:add", SECOND)
        await enqueue(storage, *paced(5, brought))
        await storage.tune(Target("task", "add"), Settings(rate=RateKey("task:add", 60 * SECOND)))
        await claim(storage)
        clock.advance(2)

        assert len(await claim(storage)) == 1
        assert await claim(storage) == []

        await storage.tune(Target("task", "add"), Settings(rate=RateKey("task:add", 0)))

        # An interval of zero means no limit. It overrides the rates that the jobs bring along.
        assert len(await claim(storage)) == 3

    async def test_the_rate_set_for_a_task_applies_to_jobs_without_a_rate(self, storage: Storage) -> None:
        await storage.tune(Target("task", "send"), Settings(rate=RateKey("task:send", SECOND)))
        await enqueue(storage, *(new_job(f"s-{n}", task="send") for n in range(3)), new_job("add"))

        assert [lease.ref.id for lease in await claim(storage)] == ["s-0", "add"]

    async def test_a_survey_lists_the_rates_set_for_tasks(self, storage: Storage) -> None:
        assert (await storage.survey()).task_rates == {}

        await storage.tune(Target("task", "send"), Settings(rate=RateKey("task:send", SECOND, 2)))
        await storage.tune(Target("task", "add"), Settings(rate=RateKey("task:add", 0)))
        await storage.tune(Target("task", "other"), Settings(paused=True))
        await storage.tune(Target("queue", QUEUE), Settings(rate=RateKey("queue", SECOND)))

        assert list((await storage.survey()).task_rates.items()) == [
            ("add", RateKey("task:add", 0)),
            ("send", RateKey("task:send", SECOND, 2)),
        ]

    async def test_a_changed_rate_of_a_task_applies_at_once(self, storage: Storage, clock: ManualClock) -> None:
        await storage.tune(Target("task", "add"), Settings(rate=RateKey("task:add", 3600 * SECOND)))
        await enqueue(storage, *(new_job(f"job-{n}") for n in range(8)))
        await claim(storage)
        clock.advance(0.000_001)
        await claim(storage)
        assert (await order(storage, ALICE, room=8)).next_due == 3600 * SECOND
        hints = storage.notices([queue_topic(QUEUE)])
        faster = Settings(rate=RateKey("task:add", SECOND))
        await woken_by(storage, hints, lambda: storage.tune(Target("task", "add"), faster))
        hints.close()

        assert [name for _, name in await run(storage, clock, 3)] == ["job-2", "job-3", "job-4", "job-5"]

    async def test_a_changed_rate_of_a_queue_applies_at_once(self, storage: Storage, clock: ManualClock) -> None:
        await storage.tune(Target("queue", QUEUE), Settings(rate=RateKey("queue", 3600 * SECOND)))
        await enqueue(storage, *(new_job(f"job-{n}") for n in range(4)))
        await claim(storage)
        clock.advance(0.000_001)
        await claim(storage)
        assert await claim(storage) == []
        hints = storage.notices([queue_topic(QUEUE)])
        lifted = Settings(rate=RateKey("queue", 0))
        await woken_by(storage, hints, lambda: storage.tune(Target("queue", QUEUE), lifted))
        hints.close()

        assert len(await claim(storage)) == 2

    async def test_the_rates_of_a_queue_and_its_tasks_hold_together(self, storage: Storage, clock: ManualClock) -> None:
        await storage.tune(Target("queue", QUEUE), Settings(rate=RateKey("queue", SECOND)))
        await enqueue(storage, *paced(3, SLOWER), new_job("free"))

        assert [name for _, name in await run(storage, clock, 3)] == ["job-0", "job-1", "free"]

    async def test_past_starts_are_forgotten_after_an_idle_time(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *paced(3, RateKey("r", SECOND, 2)))
        await claim(storage)
        clock.advance(60)
        await sweep_all(storage)
        await enqueue(storage, *paced(3, RateKey("r", SECOND, 2), prefix="more"))

        assert [lease.ref.id for lease in await claim(storage)] == ["job-2", "more-0"]

    async def test_a_job_keeps_the_rates_of_its_enqueue(self, storage: Storage) -> None:
        ref, *_ = await enqueue(storage, new_job("job", rates=(SLOW, SLOWER)))

        assert (await record(storage, ref)).rates == (SLOW, SLOWER)

    async def test_a_paused_queue_sets_no_next_due(self, storage: Storage) -> None:
        await enqueue(storage, *paced(2, SLOWER))
        lease, *_ = await claim(storage)
        await storage.tune(Target("queue", QUEUE), Settings(paused=True))
        await settle(storage, ALICE, lease, Returned(b""))

        assert (await order(storage, ALICE, room=1)).next_due is None
        assert (await record(storage, Ref(QUEUE, "job-1"))).parked_under == "rate:slower"


def paced(count: int, *rates: RateKey, prefix: str = "job", queue: str = QUEUE) -> list[NewJob]:
    """Return jobs that share these rates, named in their order."""
    digits = len(str(count - 1))
    return [new_job(f"{prefix}-{number:0{digits}}", queue=queue, rates=rates) for number in range(count)]


async def run(
    storage: Storage, clock: ManualClock, seconds: int, claimers: Sequence[Owner] = (ALICE,), *, poll: int | None = None
) -> list[tuple[int, str]]:
    """Claim for some seconds, with the claimers in turn, and return which job started when.

    The next claim comes at the `next_due` of the last answer, or after `poll` microseconds.
    """
    started: list[tuple[int, str]] = []
    end = clock.now() + seconds * SECOND
    for claimer in cycle(claimers):
        answer = await order(storage, claimer, room=10)
        started += [(clock.now(), lease.ref.id) for lease in answer.leases]
        wait = answer.next_due if poll is None else poll
        if wait is None or clock.now() + wait > end:
            break
        clock.advance(wait / SECOND)
    assert all(earlier <= later for (earlier, _), (later, _) in pairwise(started))
    return started
