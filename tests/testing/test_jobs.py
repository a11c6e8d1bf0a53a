"""The testing kit: jobs inside a test, on a clock that the test moves."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tenure import JobStalled, JobStalledError, Retry, Stall, State, Tenure, UsageError
from tenure.core.duration import moment
from tenure.testing import JobTester


class Shop:
    """An app with tasks that note what they did."""

    def __init__(self) -> None:
        self.app = Tenure("sqlite:////nowhere/never-opened.db")
        self.sent: list[str] = []
        self.stalled: list[str] = []
        self.ticks: list[datetime] = []
        app = self.app

        @app.task(retry=Retry(max_attempts=3, base="1m", jitter=0))
        async def send(to: str, subject: str = "hello") -> str:
            self.sent.append(to)
            return f"{subject} {to}"

        @app.task
        def sign_up(to: str) -> None:
            send.enqueue_sync(to)
            send.options(delay="7d").enqueue_sync(to, subject="how are you")

        @app.task(stall=Stall(max_count=1))
        async def export(customer: int) -> int:
            return customer

        @app.cron("0 4 * * *", tz="Europe/Vienna")
        async def nightly() -> None:
            from tenure import current_job

            due = current_job().scheduled_for
            assert due is not None
            self.ticks.append(due.astimezone(UTC))

        @app.on(JobStalled)
        async def note(event: JobStalled) -> None:
            self.stalled.append(event.reason)

        self.send, self.sign_up, self.export = send, sign_up, export


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def test_a_drain_runs_a_job_and_the_jobs_that_it_enqueues(shop: Shop) -> None:
    with JobTester(shop.app) as jobs:
        await shop.sign_up.enqueue("ada")
        runs = await jobs.drain()

    assert runs == 2
    assert shop.sent == ["ada"]


async def test_travel_runs_a_delayed_job_when_it_is_due(shop: Shop) -> None:
    with JobTester(shop.app) as jobs:
        await shop.sign_up.enqueue("ada")
        await jobs.travel("167h")
        before = list(shop.sent)
        await jobs.travel("1h")
        later = jobs.enqueued(shop.send, subject="how are you")[0]
        finished = (await later.info()).job.finished

    assert before == ["ada"]
    assert shop.sent == ["ada", "ada"]
    assert finished == datetime(2026, 1, 8, tzinfo=UTC)


async def test_travel_fires_each_tick_of_a_schedule(shop: Shop) -> None:
    with JobTester(shop.app, start=datetime(2026, 3, 28, tzinfo=UTC)) as jobs:
        await jobs.travel("3d")

    # The clocks in Vienna went forward on the 29th.
    assert shop.ticks == [datetime(2026, 3, 28, 3, tzinfo=UTC)] + [
        datetime(2026, 3, day, 2, tzinfo=UTC) for day in (29, 30)
    ]


async def test_fail_next_fails_a_run_and_travel_retries_it(shop: Shop) -> None:
    with JobTester(shop.app) as jobs:
        jobs.fail_next(shop.send, ConnectionError("no route"))
        job = await shop.send.enqueue("ada")
        await jobs.drain()
        failed = await job.state()
        await jobs.travel("1m")
        detail = await job.info()

    assert failed is State.DELAYED
    assert [(run.ended, run.reason) for run in detail.runs] == [("raised", "ConnectionError"), ("completed", None)]


async def test_a_job_of_a_crashed_worker_stalls_and_runs_again(shop: Shop) -> None:
    with JobTester(shop.app) as jobs:
        jobs.crash_worker(shop.export)
        job = await shop.export.enqueue(7)
        await jobs.drain()
        detail = await job.info()
        result = await job.result(timeout=5)

    assert [run.ended for run in detail.runs] == ["stalled", "completed"]
    assert result == 7
    assert shop.stalled == ["process_died"]


async def test_a_job_whose_worker_crashes_too_often_fails(shop: Shop) -> None:
    with JobTester(shop.app) as jobs:
        jobs.crash_worker(shop.export, times=2)
        job = await shop.export.enqueue(7)
        await jobs.drain()
        with pytest.raises(JobStalledError):
            await job.result(timeout=5)


async def test_a_job_of_a_cut_off_worker_runs_again_after_its_lease(shop: Shop) -> None:
    with JobTester(shop.app) as jobs:
        jobs.cut_off(shop.send)
        job = await shop.send.enqueue("ada")
        await jobs.drain()
        cut = await job.state()
        await jobs.travel("27s")
        detail = await job.info()

    assert cut is State.ACTIVE
    assert [run.ended for run in detail.runs] == ["stalled", "completed"]
    assert shop.sent == ["ada", "ada"]
    assert shop.stalled == ["lease_expired"]


async def test_a_fault_on_travel_stalls_the_job_at_the_end_of_its_grace(shop: Shop) -> None:
    with JobTester(shop.app) as jobs:
        jobs.cut_off(shop.export)
        job = await shop.export.options(delay="1d").enqueue(7)
        await jobs.travel("24.1h")
        detail = await job.info()

    due = detail.job.created + timedelta(days=1)
    # Lease 20 s, grace 3 s.
    assert [(run.ended, run.end and run.end - due) for run in detail.runs] == [
        ("stalled", timedelta(seconds=23)),
        ("completed", timedelta(seconds=23)),
    ]


async def test_the_other_runs_of_a_cut_off_worker_continue(shop: Shop) -> None:
    ended: list[str] = []

    @shop.app.task
    async def slow() -> None:
        await asyncio.sleep(0.05)
        ended.append("slow")

    with JobTester(shop.app) as jobs:
        jobs.cut_off(shop.export)
        await slow.enqueue()
        await shop.export.enqueue(7)
        await jobs.drain()

    assert ended == ["slow"]


async def test_a_job_expires_at_its_own_instant_on_travel(shop: Shop) -> None:
    with JobTester(shop.app) as jobs:
        await shop.app.queue("default").pause()
        job = await shop.export.options(ttl="90s").enqueue(7)
        await jobs.travel("1h")
        record = (await job.info()).job

    assert record.state is State.EXPIRED
    assert record.finished == record.created + timedelta(seconds=90)


async def test_a_schedule_that_a_handler_stores_ticks_at_its_instants(shop: Shop) -> None:
    ticks: list[int] = []

    with JobTester(shop.app) as jobs:

        @shop.app.task
        async def tick() -> None:
            ticks.append(jobs.clock.now())

        @shop.app.task
        async def begin() -> None:
            await shop.app.schedules.put("often", tick.call(), every="7s")

        start = jobs.clock.now()
        await begin.options(delay="1m").enqueue()
        await jobs.travel("90s")

    assert [(at - start) / 1_000_000 for at in ticks] == [63, 70, 77, 84]


async def test_a_rate_releases_each_job_at_its_instant_on_travel(shop: Shop) -> None:
    starts: list[int] = []

    with JobTester(shop.app) as jobs:

        @shop.app.task(rate="1/m")
        async def seldom() -> None:
            starts.append(jobs.clock.now())

        for _ in range(3):
            await seldom.enqueue()
        await jobs.travel("10m")

    # The rate allows one start ahead of its interval.
    assert [at - starts[0] for at in starts] == [0, 1, 60_000_001]


@pytest.mark.thorough
async def test_waiting_for_a_job_that_no_worker_runs_is_an_error(shop: Shop) -> None:
    with JobTester(shop.app) as jobs:
        jobs.fail_next(shop.send, ConnectionError("no route"))
        job = await shop.send.enqueue("ada")
        with pytest.raises(UsageError, match=rf"job {job.id} of task '.*send' is waiting, and nothing runs now"):
            await job.result()
        await jobs.drain()
        with pytest.raises(UsageError, match=r"is delayed for another 60 s after ConnectionError: no route, and"):
            await job.result(timeout="1h")
        with pytest.raises(UsageError, match=r"is delayed for another 60 s"):
            async for _ in job.events():
                pass


@pytest.mark.thorough
async def test_a_wait_ends_with_a_drain_that_begins_later(shop: Shop) -> None:
    @shop.app.task
    async def slow() -> str:
        await asyncio.sleep(1.5)
        return "done"

    with JobTester(shop.app) as jobs:
        job = await slow.enqueue()
        result, _ = await asyncio.gather(job.result(), jobs.drain())

    assert result == "done"


async def test_enqueued_finds_jobs_by_their_arguments_including_defaults(shop: Shop) -> None:
    with JobTester(shop.app) as jobs:
        first = await shop.send.enqueue("ada")
        await shop.send.enqueue("bob", subject="news")
        found = jobs.enqueued(shop.send, subject="hello")
        everything = jobs.enqueued(shop.send)
        with pytest.raises(UsageError, match="no argument 'topic'; it has subject, to"):
            jobs.enqueued(shop.send, topic="x")

    assert [job.id for job in found] == [first.id]
    assert len(everything) == 2


async def test_expect_counts_only_what_its_block_enqueues(shop: Shop) -> None:
    with JobTester(shop.app) as jobs:
        await shop.send.enqueue("ada")
        with jobs.expect(shop.send, to="ada", times=2):
            await shop.send.enqueue("ada")
            await shop.send.enqueue("ada", subject="again")
            await shop.send.enqueue("bob")
        with (
            pytest.raises(AssertionError, match=r"expected 1 jobs .*send\(to='eve'\), found 0; .*to='bob'"),
            jobs.expect(shop.send, to="eve"),
        ):
            await shop.send.enqueue("bob")


async def test_two_tests_are_isolated_and_the_app_is_restored(shop: Shop) -> None:
    with JobTester(shop.app) as jobs:
        await shop.send.enqueue("ada")
    with JobTester(shop.app) as jobs:
        assert jobs.enqueued(shop.send) == []
        assert await jobs.drain() == 0

    assert shop.sent == []
    assert shop.app.url == "sqlite:////nowhere/never-opened.db"


def test_the_sync_variants_work_without_an_event_loop(shop: Shop) -> None:
    with JobTester(shop.app) as jobs:
        shop.sign_up.enqueue_sync("ada")
        assert jobs.drain_sync() == 2
        job = jobs.enqueued(shop.send, subject="hello")[0]
        assert job.result_sync(timeout=5) == "hello ada"
        assert jobs.travel_sync("7d") >= 1


async def test_a_memory_storage_uses_the_clock_of_its_app() -> None:
    from tenure.testing import ManualClock

    clock = ManualClock()
    app = Tenure("memory://", clock=clock)

    @app.task
    async def later() -> None: ...

    job = await later.options(delay="1h").enqueue()

    assert (await job.info()).job.created == moment(clock.now())
