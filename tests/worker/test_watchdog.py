"""A worker watches its own loop: the run that blocks it is named once, and its leases given up if that lasts long."""

import asyncio
import logging
import time

import pytest

from tenure import JobStalled, Tenure, Timing, WorkerHung
from tenure.clock import SystemClock
from tenure.core.events import Event
from tenure.testing.clock import ManualClock
from tenure.worker.active_runs import ActiveRuns
from tenure.worker.loop_lag import TICK, LoopMonitor
from tenure.worker.scoreboard import Scoreboard
from tenure.worker.watchdog import Watchdog

pytestmark = pytest.mark.system


async def test_the_blocking_job_is_logged_once_with_its_line_and_the_lag(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Tenure("memory://", timing=Timing(lease="2s"))

    @app.task
    async def hog() -> float:
        time.sleep(3.2)  # noqa: ASYNC251 - that is the point
        return 3.2

    async with app.worker():
        job = await hog.enqueue()
        await job.result()
        survey = await app.storage.survey([])
        [records] = [record.message for record in caplog.records if "blocked the event loop" in record.message]

    assert f"job {job.id} (" in records
    assert "test_watchdog.py:" in records
    assert "in hog" in records
    assert [worker.lag > 1_000_000 for worker in survey.workers] == [True]


async def test_a_task_that_a_handler_has_started_is_found_by_its_line(caplog: pytest.LogCaptureFixture) -> None:
    app = Tenure("memory://", timing=Timing(lease="2s"))

    async def part() -> None:
        time.sleep(2.2)  # noqa: ASYNC251 - that is the point

    @app.task
    async def split() -> None:
        await asyncio.gather(part())

    async with app.worker():
        await (await split.enqueue()).result()

    [records] = [record.message for record in caplog.records if "blocked the event loop" in record.message]
    assert "in part" in records


def test_a_watchdog_that_was_suspended_does_not_blame_the_loop() -> None:
    clock, events, monitor = ManualClock(), list[Event](), LoopMonitor(None)
    watchdog = Watchdog(
        monitor,
        ActiveRuns(),
        owner="feed",
        scoreboard=None,
        supervised=False,
        max_block=5.0,
        clock=clock,
        logger=logging.getLogger("tenure.tests.watchdog"),
        announce=events.append,
        claimed_at=lambda: 0.0,
    )
    clock.advance(100)
    monitor.turned(clock.uptime(), 0.0)
    watchdog.check(clock.uptime())
    # Stopped, or suspended; this thread may continue before the loop does.
    clock.advance(60)

    assert not watchdog.given_up()
    watchdog.check(clock.uptime())
    assert not watchdog.given_up()
    for _ in range(10):
        clock.advance(TICK)
        watchdog.check(clock.uptime())
    assert not events

    clock.advance(TICK)
    watchdog.check(clock.uptime())
    assert [type(event) for event in events] == [WorkerHung]
    assert watchdog.given_up()


async def test_a_loop_blocked_beyond_max_block_loses_its_leases_with_an_event() -> None:
    app = Tenure("memory://", timing=Timing(lease="1s", sweep="200ms", grace="200ms", max_block="1s"))
    runs = 0

    @app.task
    async def hog() -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            time.sleep(5)  # noqa: ASYNC251 - that is the point
        return "done"

    async with app.worker():
        job = await hog.enqueue()
        assert await job.result() == "done"
        events = (await app.storage.events(None)).events

    [hung] = [event for event in events if isinstance(event, WorkerHung)]
    assert 1.0 < hung.blocked_for < 2.5
    assert "in hog" in hung.stack
    [stalled] = [event for event in events if isinstance(event, JobStalled)]
    assert stalled.at is not None
    assert hung.at is not None
    assert hung.at < stalled.at


def test_the_lag_is_the_longest_block_since_the_last_read() -> None:
    monitor = LoopMonitor(None)
    assert (monitor.blocked(50.0), monitor.lag(50.0)) == (0.0, 0.0)

    monitor.turned(100.0, 0.25)
    monitor.turned(100.5, 0.125)

    assert monitor.lag(100.5) == 0.25
    assert monitor.lag(100.5) == 0.0
    assert monitor.lag(100.5 + TICK + 3) == 3.0

    monitor.ended()

    assert monitor.blocked(1_000.0) == 0.0


def test_the_scoreboard_holds_the_turns() -> None:
    scoreboard = Scoreboard.new(1)
    LoopMonitor(scoreboard).turned(100.0, 0.25)

    assert (scoreboard.turned_at, scoreboard.lag) == (100.0, 0.25)
    scoreboard.close()


def test_only_the_first_of_worker_and_supervisor_warns() -> None:
    scoreboard, now = Scoreboard.new(1), SystemClock().uptime()

    assert scoreboard.worker_must_warn(now)
    assert not scoreboard.supervisor_must_warn(now)
    assert scoreboard.supervisor_must_warn(now + 1)
    assert not scoreboard.worker_must_warn(now + 1)
    scoreboard.close()
