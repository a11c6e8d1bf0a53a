"""Runs in isolated processes: their outcomes, and how they are ended, with real processes in a real worker."""

import asyncio
import contextlib
import importlib
import itertools
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import structs

from tenure import JobCancelledError, JobFailedError, JobStalled, State, TaskOptions, Tenure, UsageError
from tenure.clock import SystemClock
from tenure.core.job import JobDetail, Owner, StallTerms
from tenure.core.lease import Lease
from tenure.core.outcome import Interrupted, Stalled
from tenure.core.settlement import settlement
from tenure.processes.exit_status import OomKills
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import ClaimRequest
from tenure.worker.active_runs import ActiveRun, ActiveRuns
from tenure.worker.isolation.isolated_run import IsolatedRun, IsolationSettings
from tenure.worker.isolation.process_pool import PoolWaiter, ProcessPool
from tenure_testing.conformance.helpers import new_job
from tests import records

pytestmark = pytest.mark.system

COUNT = itertools.count()


@pytest.fixture
def mod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the module of handlers, under a name that no other test has used."""
    name = f"isolation_app_{os.getpid()}_{next(COUNT)}"
    shutil.copy(Path(__file__).with_name("isolation_app.py"), tmp_path / f"{name}.py")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield importlib.import_module(name)
    del sys.modules[name]


async def detail_of(app: Tenure, job_id: str) -> JobDetail:
    """Return the full record of a job."""
    return await records.detail_of(app.job(job_id))


async def over(app: Tenure, job_id: str, *, within: float = 30) -> JobDetail:
    """Wait until a job does not run any more and waits only for its due time; return its full record."""
    async with asyncio.timeout(within):
        # The storage is what changes.
        while await app.job(job_id).state() in (State.WAITING, State.ACTIVE):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return await detail_of(app, job_id)


async def began(app: Tenure, job_id: str, *, within: float = 30) -> None:
    """Wait until a handler has reported this progress."""
    async with asyncio.timeout(within):
        while (await detail_of(app, job_id)).job.progress is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def took(detail: JobDetail) -> float:
    """Return the seconds of a job's only run, as recorded."""
    [run] = detail.runs
    assert run.end is not None
    return (run.end - run.start) / 1_000_000


async def test_plain_functions_and_coroutines_run_in_a_reused_process(mod: Any) -> None:
    async with mod.app, mod.app.worker(concurrency=1):
        assert await (await mod.plus.enqueue(1, 2)).result(timeout=30) == 9
        first = await (await mod.where.enqueue()).result(timeout=30)
        second = await (await mod.where.enqueue()).result(timeout=30)
        given = await (await mod.provided.enqueue(7)).result(timeout=30)

    pid = first[0]
    assert pid != os.getpid()
    assert first[:2] == (pid, pid)
    assert second[:2] == (pid, pid)
    assert given == f"7: connection of {pid}"
    assert not children()


async def test_progress_and_logs_of_an_isolated_run_are_stored(mod: Any) -> None:
    async with mod.app, mod.app.worker():
        job = await mod.telling.enqueue()
        await job.result(timeout=30)
        detail = await detail_of(mod.app, job.id)

    assert (detail.job.progress, detail.job.progress_note) == (0.5, "half")
    assert [(line.message, line.fields) for line in detail.log] == [("so far", {"seen": "yes"})]


async def test_data_and_progress_objects_are_kept_for_the_next_isolated_run(mod: Any) -> None:
    async with mod.app, mod.app.worker():
        job = await mod.keeping.enqueue()

        assert await job.result(timeout=30) == [1, 2]
        assert await job.data() == {"runs": [1, 2]}
        assert (await job.info()).job.progress == {"run": 2}


async def test_logs_of_an_isolated_process_appear_in_the_workers_log(
    mod: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with mod.app, mod.app.worker():
        job = await mod.logging_on.enqueue(0.2)
        await job.result(timeout=30)
        async with asyncio.timeout(10):
            while "still low" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    first = next(record for record in caplog.records if record.name == "shop.stock")
    assert (first.levelname, first.getMessage()) == ("ERROR", "it is low")
    assert 'raise ValueError("shown")' in caplog.text
    assert (vars(first)["row"], vars(first)["tenure_job_id"], vars(first)["tenure_run"]) == (3, job.id, 1)


async def test_an_isolated_failure_is_logged_with_type_message_and_traceback(
    mod: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with mod.app, mod.app.worker():
        with pytest.raises(JobFailedError):
            await (await mod.raising.enqueue("error")).result(timeout=30)

    record_ = [record for record in caplog.records if record.name == "tenure.jobs"]
    assert [record.getMessage().split(") ")[1].split()[0] for record in record_] == ["started,", "failed"]
    assert {vars(record)["tenure_run"] for record in record_} == {1}
    assert record_[1].exc_info is not None
    assert "ValueError: " in str(record_[1].exc_info[1])
    assert "in raising" in caplog.text


async def test_exceptions_of_an_isolated_run_have_their_usual_effect(mod: Any) -> None:
    expected: dict[str, tuple[State, str, str | None]] = {
        "error": (State.FAILED, "raised", "ValueError"),
        "reject": (State.FAILED, "rejected", "Reject"),
        "snooze": (State.DELAYED, "released", None),
        "later": (State.FAILED, "raised", "RetryLater"),
        "exit": (State.FAILED, "raised", "SystemExit"),
    }
    async with mod.app, mod.app.worker(concurrency=2):
        jobs = {how: await mod.raising.enqueue(how) for how in expected}
        details = {how: await over(mod.app, job.id) for how, job in jobs.items()}

    assert {
        how: (detail.job.state, detail.runs[-1].ended, detail.job.error.type if detail.job.error else None)
        for how, detail in details.items()
    } == expected


@pytest.mark.parametrize(
    ("how", "detail"),
    [
        ("kill", "its process was killed by signal 9 (SIGKILL), cause unknown"),
        ("exit", "its process exited with status 0"),
        ("garbage", "its message is invalid: a message of 4294967295 bytes"),
        ("nonsense", "its message is invalid: not a message"),
    ],
)
async def test_a_process_that_dies_ends_its_own_run_and_no_other(mod: Any, how: str, detail: str) -> None:
    async with mod.app, mod.app.worker(concurrency=2):
        neighbour = await mod.sleeping.enqueue(1.5)
        job = await mod.dying.enqueue(how)
        crashed = await over(mod.app, job.id)
        assert await (await mod.plus.enqueue(1, 2)).result(timeout=30) == 9
        await neighbour.result(timeout=30)
        unharmed = await detail_of(mod.app, neighbour.id)
        events = [event for event in (await mod.app.storage.events(limit=1000)).events if isinstance(event, JobStalled)]

    assert (crashed.job.state, crashed.job.reason) == (State.FAILED, "crashed")
    assert (crashed.runs[-1].ended, crashed.runs[-1].reason) == ("stalled", "process_died")
    assert detail in (crashed.runs[-1].detail or "")
    assert [(item.id, item.reason, item.post_mortem) for item in events] == [
        (job.id, "process_died", crashed.runs[-1].detail)
    ]
    assert "about to die" in (crashed.runs[-1].detail or "")
    assert len(unharmed.runs) == 1


@pytest.mark.parametrize("task", ["obeying", "ignoring", "busy", "tidy"])
async def test_a_timeout_frees_its_place_within_two_seconds(mod: Any, task: str) -> None:
    async with mod.app, mod.app.worker(concurrency=1):
        # The process exists already; how long a start takes is tested elsewhere.
        pid = (await (await mod.where.enqueue()).result(timeout=30))[0]
        job = await mod.app.tasks[f"{mod.__name__}.{task}"].enqueue()
        next_one = await mod.where.enqueue()
        timed_out = await over(mod.app, job.id)
        next_pid = (await next_one.result(timeout=30))[0]

    assert (timed_out.job.state, timed_out.job.reason) == (State.FAILED, "timeout")
    assert 0.5 <= took(timed_out) < 0.5 + 2.0
    # A run that has ended leaves no code running: a handler that does not end is killed.
    assert (next_pid == pid) == (task in ("obeying", "tidy"))
    if task == "tidy":
        assert [line.message for line in timed_out.log] == ["tidied up"]


async def test_a_process_past_its_timeout_is_killed_before_its_lease_ends(mod: Any) -> None:
    async with mod.app, mod.app.worker(concurrency=1):
        # The process exists already.
        await (await mod.where.enqueue()).result(timeout=30)
        detail = await over(mod.app, (await mod.deaf_with_a_short_lease.enqueue()).id)

    # A quarter of its lease after it.
    assert took(detail) < 0.5 + 1.0
    assert (detail.job.reason, detail.runs[0].ended) == ("timeout", "timed_out")


async def test_a_process_that_ends_by_our_sigterm_counts_as_a_timeout(mod: Any) -> None:
    async with mod.app, mod.app.worker(concurrency=1):
        # The process exists already.
        await (await mod.where.enqueue()).result(timeout=30)
        job = await mod.ending_by_sigterm.enqueue()
        detail = await over(mod.app, job.id)

    assert (detail.job.state, detail.job.reason, detail.job.stalls) == (State.FAILED, "timeout", 0)
    # Before it would have been killed.
    assert took(detail) < 0.5 + 1.75


async def test_a_cancelled_plain_handler_is_ended_with_its_process(mod: Any) -> None:
    async with mod.app, mod.app.worker():
        job = await mod.endless.enqueue()
        await began(mod.app, job.id)
        await job.cancel("enough")
        with pytest.raises(JobCancelledError, match="enough"):
            await job.result(timeout=10)
        record = (await detail_of(mod.app, job.id)).job

    assert record.finished is not None
    assert record.cancel_at is not None
    assert record.finished - record.cancel_at < 3_000_000


async def test_child_processes_of_a_handler_get_sigterm_before_sigkill(mod: Any, tmp_path: Path) -> None:
    async with mod.app, mod.app.worker():
        job = await mod.delegating.enqueue(str(tmp_path / "ended"))
        detail = await over(mod.app, job.id)

    assert detail.job.reason == "timeout"
    assert (tmp_path / "ended").read_text() == "ended\n"


async def test_a_process_with_a_blocked_loop_is_killed_and_its_run_charged(mod: Any) -> None:
    mod.app.timing = replace(mod.app.timing, max_block=timedelta(seconds=1))
    async with mod.app, mod.app.worker(concurrency=1):
        blocked = await over(mod.app, (await mod.blocking.enqueue(60)).id)
        # A run that only waits is not blocked, however long.
        await (await mod.sleeping.enqueue(4)).result(timeout=30)

    (run,) = blocked.runs
    assert (run.ended, run.reason) == ("stalled", "loop_blocked")
    assert "blocked for longer than max_block of 1s" in (run.detail or "")


async def test_a_run_that_is_lost_ends_with_its_process(mod: Any) -> None:
    async with mod.app, mod.app.worker(concurrency=1):
        job = await mod.silent.enqueue()
        detail = await over(mod.app, job.id)
        (line,) = detail.log
        pid = int(line.message.split()[-1])
        async with asyncio.timeout(5):
            while pid in children():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    assert (detail.job.state, detail.runs[-1].reason) == (State.FAILED, "no_progress")


async def test_a_lost_isolated_run_ends_although_its_worker_is_blocked(mod: Any) -> None:
    async with mod.app, mod.app.worker(concurrency=1):
        job = await mod.silent.enqueue()
        async with asyncio.timeout(30):
            while not (log := (await detail_of(mod.app, job.id)).log):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        pid = int(log[0].message.split()[-1])
        assert pid in children()
        # Its progress limit ends after a second; a sweep follows, the worker learns of it, then kills it after 1.75 s.
        time.sleep(8)  # noqa: ASYNC251 - that is the point
        ended = pid not in children()
        detail = await over(mod.app, job.id)

    assert ended
    assert [(run.ended, run.reason) for run in detail.runs] == [("stalled", "no_progress")]


async def test_the_crash_report_holds_the_position_of_the_handler(mod: Any) -> None:
    async with mod.app, mod.app.worker():
        job = await mod.last_seen_here.enqueue()
        detail = await over(mod.app, job.id)

    text = detail.runs[-1].detail or ""
    [ago] = re.findall(r"where its handler was at its last beat, ([0-9.]+) s before it died", text)

    assert "in last_seen_here\n" in text
    # The handler sent no heartbeat, but its position was read with each beat.
    assert "last sign of life 3." in text
    assert float(ago) < 2


async def test_an_earlier_out_of_memory_kill_is_not_named_as_the_cause(
    mod: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = tmp_path / "memory.events"
    counts.write_text("oom_kill 0\n")
    (tmp_path / "own").write_text("0::/\n")
    monkeypatch.setattr("tenure.worker.isolation.process_pool.OomKills", lambda: OomKills(tmp_path, tmp_path / "own"))
    monkeypatch.setattr("tenure.processes.exit_status.GRACE", 0.5)
    async with mod.app, mod.app.worker():
        job = await mod.endless.enqueue()
        await began(mod.app, job.id)
        counts.write_text("oom_kill 1\n")
        # The count is read often enough to distinguish that kill from the next.
        await asyncio.sleep(2)
        [pid] = children()
        os.kill(pid, signal.SIGKILL)
        detail = await over(mod.app, job.id)

    assert (detail.runs[-1].detail or "").startswith("its process was killed by signal 9 (SIGKILL), cause unknown\n")


async def test_a_run_without_an_exit_status_counts_as_died(mod: Any) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        async with mod.app, mod.app.worker():
            job = await mod.dying.enqueue("kill")
            detail = await over(mod.app, job.id)
    finally:
        signal.signal(signal.SIGCHLD, before)

    assert (detail.job.state, detail.job.reason) == (State.FAILED, "crashed")
    assert (detail.runs[-1].detail or "").startswith("its process ended, and its exit status is unknown\n")


async def test_a_process_that_dies_between_runs_is_replaced_uncharged(mod: Any) -> None:
    async with mod.app, mod.app.worker(concurrency=1):
        pid = (await (await mod.where.enqueue()).result(timeout=30))[0]
        os.kill(pid, signal.SIGKILL)
        job = await mod.where.enqueue()
        other = (await job.result(timeout=30))[0]
        detail = await detail_of(mod.app, job.id)

    assert other != pid
    assert detail.job.stalls == 0


async def test_a_stop_signal_to_the_whole_service_does_not_end_a_run(mod: Any) -> None:
    async with mod.app, mod.app.worker(concurrency=1):
        pid = (await (await mod.where.enqueue()).result(timeout=30))[0]
        job = await mod.sleeping.enqueue(0.5)
        while (await detail_of(mod.app, job.id)).job.state is State.WAITING:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(pid, number)
        await job.result(timeout=30)
        same = (await (await mod.where.enqueue()).result(timeout=30))[0]

    assert same == pid


async def test_the_time_of_a_run_does_not_count_while_its_process_starts(
    mod: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOT_APP_QUICK_ONLY_IN", str(os.getpid()))
    async with mod.app, mod.app.worker():
        jobs = [await mod.short.enqueue(), await mod.signing.enqueue(), await mod.renewing.enqueue()]
        details = [await over(mod.app, job.id) for job in jobs]

    # Each would end, by its timeout, its progress limit or its lease, long before a process is ready.
    assert [(detail.job.state, len(detail.runs)) for detail in details] == [(State.COMPLETED, 1)] * 3
    assert min(took(item) for item in details) > 3.5


async def test_a_process_started_for_a_run_that_never_began_serves_the_next(
    mod: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOT_APP_QUICK_ONLY_IN", str(os.getpid()))
    async with mod.app, mod.app.worker(concurrency=1):
        cancelled = await mod.where.enqueue()
        async with asyncio.timeout(10):
            while not children():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        (pid,) = children()
        await cancelled.cancel()
        with pytest.raises(JobCancelledError):
            await cancelled.result(timeout=10)
        there = (await (await mod.where.enqueue()).result(timeout=30))[0]

    assert there == pid


async def test_a_job_for_which_no_process_can_start_is_released_uncharged(
    mod: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOT_APP_FIT_ONLY_IN", str(os.getpid()))
    async with mod.app, mod.app.worker():
        job = await mod.plus.enqueue(1, 2)
        detail = await over(mod.app, job.id)
        there = await (await mod.by_default.enqueue()).result(timeout=10)

    assert (detail.job.state, detail.job.releases, detail.job.failures) == (State.DELAYED, 1, 0)
    assert detail.job.run_at - (detail.runs[-1].end or 0) >= 9_900_000
    assert "no database" in detail.log[-1].message
    assert there == os.getpid()


@pytest.mark.parametrize("name", ["tenure-isolation", "tenure-wait"])
async def test_an_isolated_job_without_a_thread_is_released_and_runs_later(
    mod: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            raise RuntimeError("can't start new thread")
        start(thread)

    async with mod.app, mod.app.worker():
        with monkeypatch.context() as short:
            short.setattr(threading.Thread, "start", refuse)
            job = await mod.plus.enqueue(1, 2)
            detail = await over(mod.app, job.id)
        await job.reschedule(0)
        value = await job.result(timeout=30)

    assert (detail.job.state, detail.job.releases, detail.job.failures) == (State.DELAYED, 1, 0)
    assert "no thread" in detail.log[-1].message
    assert value == 9
    assert not children()


async def test_a_job_fails_when_a_process_is_refused_the_third_time_in_a_row(
    mod: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("tenure-wait"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    async with mod.app, mod.app.worker():
        job = await mod.plus.enqueue(1, 2)
        for _ in range(2):
            await over(mod.app, job.id)
            await job.reschedule(0)
        detail = await over(mod.app, job.id)
        async with asyncio.timeout(10):
            while not (detail := await records.detail_of(job)).job.failures:  # noqa: ASYNC110 - the storage is what changes
                await asyncio.sleep(0.01)

    assert [run.ended for run in detail.runs] == ["released", "released", "raised"]
    assert detail.job.releases == 2
    assert caplog.text.count("restart it soon") == 1


async def test_a_process_that_stops_reading_is_killed_at_any_message_size(
    mod: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.worker.isolation.isolated_run.BEGIN_TIMEOUT", 0.5)
    roster = ProcessPool(worker="w", scoreboard=None, on_ready=lambda: None)
    roster.app = mod.app.runtime().app_location()
    slot = await roster.acquire(PoolWaiter(isolated=False))
    assert slot is not None
    slot.child.send_signal(signal.SIGSTOP)
    storage = MemoryStorage()
    await storage.enqueue([new_job(payload=b"x" * 4_000_000)])
    [lease] = (await storage.exchange(Owner("w"), (), ClaimRequest((new_job().queue,), 1))).leases
    isolated_run = IsolatedRun(ActiveRun(lease), IsolationSettings(Owner("w"), SystemClock(), 600.0, ActiveRuns()))
    async with asyncio.timeout(20):
        outcome = await isolated_run.run_in(slot, None)
    await roster.close()

    assert outcome == Interrupted("prefetch")


async def test_a_job_fails_after_three_processes_in_a_row_could_not_start(
    mod: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOT_APP_FIT_ONLY_IN", str(os.getpid()))
    async with mod.app, mod.app.worker():
        job = await mod.plus.enqueue(1, 2)
        for _ in range(2):
            assert (await over(mod.app, job.id)).job.state == State.DELAYED
            await job.reschedule(0)
        detail = await over(mod.app, job.id)

    assert [run.ended for run in detail.runs] == ["released", "released", "raised"]
    assert (detail.job.state, detail.job.failures) == (State.FAILED, 1)
    assert detail.job.error is not None
    assert detail.job.error.type == "NoProcessError"
    assert "no database" in detail.job.error.message


@pytest.mark.parametrize("supervised", [True, False])
async def test_a_quarantined_job_of_a_supervised_worker_gets_its_own_process(mod: Any, supervised: bool) -> None:
    async with mod.app:
        job = await mod.by_default.enqueue()
        # Its last worker died with it.
        dead, reaper = Owner("dead"), Owner("reaper")
        answer = await mod.app.storage.exchange(dead, [], ClaimRequest(("default",), 1))
        (taken,) = (await mod.app.storage.reclaim(dead.id, reaper)).stalled
        outcome = Stalled("process_died", 0, dead.id)
        lenient = structs.replace(taken.lease.job, stall=StallTerms(max_stalls=1))
        sent = settlement(Lease(lenient), outcome, Random(1))
        await mod.app.storage.exchange(reaper, [sent])
        async with mod.app.worker(owner_id="supervised" if supervised else None):
            pid = await job.result(timeout=30)

    assert [lease.ref.id for lease in answer.leases] == [job.id]
    assert (pid != os.getpid()) == supervised


async def test_four_quarantined_jobs_run_at_a_time_and_leave_no_process_behind(mod: Any) -> None:
    async with mod.app:
        jobs = [await mod.dozing.enqueue(0.5) for _ in range(9)]
        dead, reaper = Owner("dead"), Owner("reaper")
        await mod.app.storage.exchange(dead, [], ClaimRequest(("default",), len(jobs)))
        taken = (await mod.app.storage.reclaim(dead.id, reaper)).stalled
        lenient = [structs.replace(lease.lease.job, stall=StallTerms(max_stalls=1)) for lease in taken]
        sent = [settlement(Lease(job), Stalled("process_died", 0, dead.id), Random(1)) for job in lenient]
        await mod.app.storage.exchange(reaper, sent)
        async with mod.app.worker(owner_id="supervised", concurrency=len(jobs)):
            spans = sorted([await job.result(timeout=60) for job in jobs])
            async with asyncio.timeout(10):
                while children():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    assert len(taken) == len(jobs)
    assert os.getpid() not in {pid for _, _, pid in spans}
    # When each began, this many were running, itself included.
    running = [sum(began <= at < ended for began, ended, _ in spans) for at, _, _ in spans]
    assert max(running) <= 4


async def test_an_isolated_on_cancel_hook_runs_to_its_end(mod: Any) -> None:
    async with mod.app, mod.app.worker():
        job = await mod.cancellable.enqueue()
        await began(mod.app, job.id)
        await job.cancel()
        with pytest.raises(JobCancelledError):
            await job.result(timeout=20)
        detail = await detail_of(mod.app, job.id)

    assert [line.message for line in detail.log] == ["cleaned up"]


async def test_a_stopping_worker_releases_isolated_runs_and_leaves_no_process(mod: Any) -> None:
    async with mod.app:
        worker = mod.app.worker(drain=0)
        await worker.start()
        jobs = [await mod.endless.enqueue(), await mod.cancellable.enqueue()]
        for job in jobs:
            await began(mod.app, job.id)
        await worker.stop()
        details = [await detail_of(mod.app, job.id) for job in jobs]

    assert [(detail.job.state, detail.job.releases, detail.job.stalls) for detail in details] == [
        (State.WAITING, 1, 0)
    ] * 2
    assert not children()


async def test_an_isolated_task_of_an_unimportable_app_is_refused_at_start() -> None:
    app = Tenure("memory://")

    @app.task(name="lonely", run="process")
    def lonely() -> None: ...

    with pytest.raises(UsageError, match=r"'lonely' .* at the top of a module"):
        await app.worker().start()


async def test_a_module_that_starts_a_worker_when_loaded_gets_an_error(mod: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("GUARD", "True").replace("WAIT", "3s"))
    output = await ran(script)

    assert "the module starts a worker as it is loaded" in output


async def test_a_script_is_found_as_multiprocessing_finds_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("GUARD", '__name__ == "__main__"').replace("WAIT", "30s"))

    assert (await ran(script)).split()[-1] == "42"


SCRIPT = """
import asyncio
from tenure import Tenure

app = Tenure("memory://")

@app.task(run="process")
def answer() -> int:
    return 42

async def main() -> None:
    async with app, app.worker():
        print(await answer.options(wait="WAIT").enqueue_and_wait())

if GUARD:
    asyncio.run(main())
"""


async def ran(script: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(60):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        output, _ = await process.communicate()
    return output.decode()


BEFORE: set[int] = set()
"""The children that this process had before the current test: servers that tests of other files share."""


@pytest.fixture(autouse=True)
def earlier_children() -> None:
    """Do not count the children of earlier tests."""
    BEFORE.clear()
    BEFORE.update(children())


def children() -> list[int]:
    """Return the pids of this process's children, zombies included."""
    found = [int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if _parent(stat) == os.getpid()]
    return [pid for pid in found if pid not in BEFORE]


def _parent(stat: Path) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(stat.read_text().rpartition(")")[2].split()[1])
    return 0


@pytest.mark.slow
async def test_many_deaths_in_a_row_leave_no_zombie_and_no_descriptor(mod: Any) -> None:
    async with mod.app, mod.app.worker(concurrency=4):
        await (await mod.plus.enqueue(1, 2)).result(timeout=30)
        before = len(os.listdir("/proc/self/fd"))
        jobs = [await mod.dying.enqueue("kill") for _ in range(30)]
        for job in jobs:
            await over(mod.app, job.id, within=90)
        assert await (await mod.plus.enqueue(1, 2)).result(timeout=30) == 9
        after, living = len(os.listdir("/proc/self/fd")), len(children())

    # One of the four may not have existed before, and has its channel.
    assert after <= before + 4
    assert living <= 4
    assert not children()


def test_the_option_run_has_defaults_and_is_validated() -> None:
    app = Tenure("memory://", defaults=TaskOptions(run="process"))
    apart, here = app.task(name="apart")(lambda: None), app.task(name="here", run="auto")(lambda: None)

    assert (apart.settings.run, here.settings.run) == ("process", "auto")
    with pytest.raises(UsageError, match="run = 'thread' is unknown"):
        app.task(name="elsewhere", run="thread")(lambda: None)  # type: ignore[call-overload]  # pyright: ignore


@pytest.mark.parametrize("when", ["now", "1", "2", "3", "4"])
async def test_a_handler_that_cancels_every_task_ends_and_the_next_one_runs(mod: Any, when: str) -> None:
    async with mod.app, mod.app.worker(concurrency=1):
        job = await mod.cancelling_all.enqueue(when)
        detail = await over(mod.app, job.id, within=15)
        assert await (await mod.plus.enqueue(1, 2)).result(timeout=30) == 9

    assert detail.job.state in ((State.FAILED,) if when == "now" else (State.FAILED, State.COMPLETED))
    assert detail.job.starts == 1
