"""How workers end: by a stop signal, replaced one by one, recycled, with new code; and the messages to systemd."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tenure import Tenure
from tenure.clock import SECOND
from tenure.core.events import JobCompleted, JobFailed, JobReleased, JobRetried, JobStalled, WorkerDied
from tenure.core.job import Ref
from tenure.core.lifecycle import State
from tests.amounts import amount, cases, on_redis
from tests.system.worker_fleet import WorkerFleet, by_job, timing_of

pytestmark = pytest.mark.system

USUAL = {"lease": "20s", "sweep": "2s", "grace": "3s"}

FETCHING = 0.1
"""Seconds after a SIGTERM in which a run may still begin."""


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def here(request: pytest.FixtureRequest, make_fleet: Callable[..., WorkerFleet]) -> WorkerFleet:
    """Return a worker fleet on each storage."""
    return make_fleet(**USUAL, **({"url": request.getfixturevalue("redis_url")} if request.param == "redis" else {}))


async def lateness(seconds: float) -> float:
    """Return by how much this machine delays a sleep, at worst, within this many seconds."""
    worst, end = 0.0, time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        await asyncio.sleep(0.005)
        worst = max(worst, time.monotonic() - now - 0.005)
    return worst


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.statement(94, 96, 98)
@pytest.mark.parametrize(
    ("here", "processes"),
    cases(
        [("sqlite", "the supervisor"), on_redis("all of them")],
        more=[("sqlite", "all of them"), on_redis("the supervisor")],
    ),
    indirect=["here"],
)
async def test_a_sigterm_ends_claiming_and_releases_runs_that_outlast_the_drain(
    here: WorkerFleet, processes: str
) -> None:
    leaving = here.worker("-c", "8", "--drain", "2s")
    coroutines, threads = here.enqueue("nap", 60, times=2), here.enqueue("blocking", 60, times=2)
    long = [*coroutines, *threads]

    async def all_begun() -> bool:
        return len(by_job(here.lines())) == len(long)

    await here.until(all_begun, within=30)
    (mine,) = {line.pid for line in here.lines()}
    # The others are there before, with room for all released jobs, and the stream of jobs keeps all of them busy.
    here.worker("-c", "20", "--drain", "0s")

    async def both() -> bool:
        return len(await here.pids()) == 2

    await here.until(both, within=30)
    stream = here.enqueue("nap", 0.1, times=800)

    async def flows() -> bool:
        return sum(line.pid == mine for line in here.lines()) > len(long) + 20

    await here.until(flows, within=20)
    sent_at, began = time.time_ns() // 1000, time.monotonic()
    for pid in [leaving.pid, *(children(leaving.pid) if processes == "all of them" else [])]:
        os.kill(pid, signal.SIGTERM)
    late = await lateness(0.5)

    assert await asyncio.to_thread(leaving.wait, 30) == 0
    took = time.monotonic() - began
    # Three processes take part in it, each of which may have to wait for this machine.
    room = FETCHING + 3 * late
    last = max(line.at for line in here.lines() if line.pid == mine and line.what == "start")
    print(
        f"the last run began {(last - sent_at) / SECOND:+.3f} s after SIGTERM ({late:.3f} s late); gone in {took:.2f} s"
    )
    assert (last - sent_at) / SECOND < room
    assert took < 2 + 5
    # There was more to claim.
    assert max(line.at for line in here.lines() if line.what == "start") > sent_at + 2 * FETCHING * SECOND

    async def over() -> bool:
        return await here.count(State.COMPLETED) == len(stream)

    await here.until(over, within=60)
    begun = {(line.id, line.run) for line in here.lines() if line.what == "start"}
    for detail in await here.details(stream):
        assert (detail.job.failures, detail.job.stalls) == (0, 0)
        # All that had begun at the signal fitted the drain. A claim that was in flight is released unbegun.
        for run in detail.runs:
            assert run.ended == ("completed" if (detail.job.id, run.number) in begun else "released")

    async def taken_over() -> bool:
        lines = by_job(here.lines())
        return all(
            len([line for line in lines[ref.id] if line.what == "start"]) == 2 for ref in [*coroutines, *threads]
        )

    await here.until(taken_over, within=20)
    for refs, due in ((coroutines, 0.0), (threads, 2.0)):
        for detail in await here.details(refs):
            first, second = detail.runs
            again = [line for line in by_job(here.lines())[detail.job.id] if line.what == "start"][1]
            assert first.end is not None
            waited = (again.at - first.end) / SECOND
            print(f"taken over after {waited:.3f} s")
            assert (first.ended, first.reason, first.pid) == ("released", "shutdown", mine)
            assert (detail.job.failures, detail.job.stalls, detail.job.releases) == (0, 0, 1)
            assert (second.number, again.run) == (2, 2)
            assert due - 0.01 < waited < due + 2
    assert not [event for event in await here.events() if isinstance(event, JobFailed | JobStalled | WorkerDied)]


@pytest.mark.parametrize("alone", [False, True], ids=["supervised", "alone"])
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
async def test_signals_that_end_other_processes_drain_a_worker_or_do_nothing(
    make_fleet: Callable[..., WorkerFleet], number: signal.Signals, alone: bool
) -> None:
    here = make_fleet()
    worker = here.alone("-c", "2") if alone else here.worker("--processes", "2", "-c", "1")
    refs = here.enqueue("nap", 3, times=2)

    async def begun() -> bool:
        return len(by_job(here.lines())) == len(refs)

    await here.until(begun, within=30)
    processes = [worker.pid, *children(worker.pid)]
    for unused in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
        for pid in processes:
            os.kill(pid, unused)
    # A terminal that closes sends its signal to all, and a shell in it once more.
    for _ in range(2):
        for pid in processes:
            # A child without a run has ended by the second signal. A child that started first may have ended its run.
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        await asyncio.sleep(0.2)

    assert await asyncio.to_thread(worker.wait, 30) == 0
    for detail in await here.details(refs):
        assert [run.ended for run in detail.runs] == ["completed"]
    assert not [event for event in await here.events() if isinstance(event, WorkerDied | JobReleased | JobStalled)]


async def test_a_worker_started_to_ignore_a_closing_terminal_continues(
    make_fleet: Callable[..., WorkerFleet],
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        worker = (here := make_fleet()).worker("-c", "1")
    finally:
        signal.signal(signal.SIGHUP, before)
    here.enqueue("quick", 1)

    async def done(count: int) -> bool:
        return await here.count(State.COMPLETED) == count

    await here.until(lambda: done(1), within=30)
    for pid in [worker.pid, *children(worker.pid)]:
        os.kill(pid, signal.SIGHUP)
    here.enqueue("quick", 1)
    await here.until(lambda: done(2), within=30)
    worker.terminate()

    assert await asyncio.to_thread(worker.wait, 30) == 0


ROLLERS = 2
ROUNDS = amount("rolling restarts") // ROLLERS


async def roll(here: WorkerFleet) -> None:
    """Restart one worker after the other, as often as `amount` says, during a stream of jobs."""
    app = Tenure(here.url, timing=timing_of(here.env))

    @app.task(name="fleet_app.nap")
    async def nap(seconds: float) -> str:
        return f"the app rests for {seconds} s"

    @app.task(name="fleet_app.blocking")
    def blocking(seconds: float) -> str:
        return f"the app rests for {seconds} s"

    refs: list[Ref] = []
    flowing = True

    async def stream() -> None:
        while flowing:
            # Of the last of these many do not fit the drain.
            calls = [nap.call(0.02), nap.call(0.1), blocking.call(0.05), nap.call(0.9)]
            refs.extend(Ref("default", job.id) for job in await app.enqueue_many(calls))
            await asyncio.sleep(0.2)

    def worker(name: str) -> "subprocess.Popen[bytes]":
        return here.worker("-c", "4", "--drain", "500ms", "--name", name)

    took: list[float] = []

    async def roller(number: int) -> None:
        leaving = worker(f"{number}-0")
        for turn in range(1, ROUNDS + 1):
            name = f"{number}-{turn}"
            await works(f"{number}-{turn - 1}")
            leaving.terminate()
            began, coming = time.monotonic(), worker(name)
            assert await asyncio.to_thread(leaving.wait, 30) == 0
            took.append(time.monotonic() - began)
            leaving = coming

    async def works(name: str) -> None:
        async def there() -> bool:
            await asyncio.sleep(0.05)
            return name in {worker.owner.name for worker in (await here.survey()).workers}

        await here.until(there, within=60)

    async with app:
        streaming = asyncio.create_task(stream())
        await asyncio.gather(*(roller(number) for number in range(ROLLERS)))
        flowing = False
        await streaming

        async def over() -> bool:
            return await here.count(State.COMPLETED) == len(refs)

        await here.until(over, within=60)
    ends: Counter[str | None] = Counter()
    lines_of = by_job(here.lines())
    for start in range(0, len(refs), 200):
        for detail in await here.details(refs[start : start + 200]):
            job, runs = detail.job, Counter(run.ended for run in detail.runs)
            ends += runs
            assert (job.state, job.failures, job.stalls) == (State.COMPLETED, 0, 0)
            assert runs == {"completed": 1} | ({"released": job.releases} if job.releases else {})
            assert [line.what for line in lines_of[job.id]].count("end") == 1
    events = Counter(type(event) for event in await here.events())
    print(f"{len(took)} restarts, {len(refs)} jobs, {dict(ends)}; the slowest was gone within {max(took):.2f} s")
    assert events[JobCompleted] == len(refs)
    assert events[JobReleased] == ends["released"] > 0
    assert not {JobFailed, JobStalled, JobRetried, WorkerDied} & events.keys()
    assert max(took) < 0.5 + 5


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_rolling_restarts_complete_each_job_once_and_charge_nothing(
    make_fleet: Callable[..., WorkerFleet],
) -> None:
    await roll(make_fleet(**USUAL, no_handlers="1"))


@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.timeout(240)
async def test_rolling_restarts_on_redis_complete_each_job_once(
    make_fleet: Callable[..., WorkerFleet], redis_url: str
) -> None:
    await roll(make_fleet(**USUAL, no_handlers="1", url=redis_url))


async def test_processes_that_grow_are_replaced_and_their_jobs_run_once(here: WorkerFleet) -> None:
    refs = here.enqueue("leak", 30, 0.1, times=24)
    supervisor = here.worker("-c", "2", "--max-memory", "200MB", "--drain", "0s", "--log-level", "info")

    async def done() -> bool:
        return await here.count(State.COMPLETED) == len(refs)

    await here.until(done, within=60)
    supervisor.terminate()

    assert await asyncio.to_thread(supervisor.wait, 20) == 0
    pids = {line.pid for line in here.lines()}
    # About five of them fill a process; two more may be on their way then.
    assert 3 <= len(pids) <= 12
    assert here.log().count("starting its replacement: it occupies") >= len(pids) - 1
    for detail in await here.details(refs):
        assert [run.ended for run in detail.runs] == ["completed"]
    assert not [event for event in await here.events() if isinstance(event, WorkerDied | JobStalled | JobReleased)]


async def test_a_process_begins_max_jobs_jobs_and_the_next_takes_over(
    make_fleet: Callable[..., WorkerFleet],
) -> None:
    here = make_fleet(**USUAL)
    refs = here.enqueue("nap", 0.1, times=20)

    assert here.worker("-c", "3", "--max-jobs", "6", "--burst").wait(60) == 0
    begun = Counter(line.pid for line in here.lines() if line.what == "start")
    assert sorted(begun.values()) == [2, 6, 6, 6]
    for detail in await here.details(refs):
        assert [run.ended for run in detail.runs] == ["completed"]


async def test_without_a_supervisor_a_recycled_worker_ends_successfully(make_fleet: Callable[..., WorkerFleet]) -> None:
    here = make_fleet(**USUAL)
    here.enqueue("nap", 0.1, times=5)

    assert here.alone("-c", "2", "--max-jobs", "3").wait(60) == 0
    assert (await here.count(State.COMPLETED), await here.count(State.WAITING)) == (3, 2)


SHOP = """
from tenure import Tenure
app = Tenure()

@app.task(name="version")
def version() -> int:
    return {version}
"""


def reloading(folder: Path, url: str, log: Path) -> "subprocess.Popen[bytes]":
    """Start a worker that reloads the code of a folder."""
    # Caches must not count as code, so there have to be some.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "tenure", "worker", "shop:app", "--reload", "--drain", "1s"]
    with log.open("wb") as said:
        return subprocess.Popen(command, cwd=folder, env=env | {"TENURE_URL": url}, stderr=said)


async def test_new_code_replaces_the_processes_once_and_broken_code_does_not(tmp_path: Path) -> None:
    url, module, log = f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path / "shop.py", tmp_path / "log"
    module.write_text(SHOP.format(version=1))
    worker = reloading(tmp_path, url, log)
    app = Tenure(url)

    @app.task(name="version")
    def version() -> int:
        return 0

    def save(text: str) -> None:
        # At once, as editors do: a file that is emptied first is changed twice.
        (tmp_path / "saved").write_text(text)
        (tmp_path / "saved").replace(module)

    async def logged(words: str, times: int = 1) -> None:
        end = time.monotonic() + 30
        while log.read_text().count(words) < times:
            assert time.monotonic() < end, log.read_text()
            await asyncio.sleep(0.02)

    try:
        async with app:
            assert await (await version.enqueue()).result(timeout=30) == 1
            save(SHOP.format(version=22))
            await logged("shop.py changed; replacing the workers")
            await logged(") starts: ", 2)
            assert await (await version.enqueue()).result(timeout=30) == 22
            save("this is not Python\n")
            await logged("retrying when the code changes")
            save(SHOP.format(version=4444))
            assert await (await version.enqueue()).result(timeout=30) == 4444
        worker.terminate()
        status = await asyncio.to_thread(worker.wait, 20)
    finally:
        worker.kill()

    assert status == 0
    assert re.findall(r"(\S+) changed; replacing the workers", log.read_text()) == ["shop.py"] * 3
    assert [name for name in os.listdir(tmp_path / "__pycache__") if name.startswith("shop.")]
    assert log.read_text().count(") starts: ") == 3


EMBEDDED = """
import asyncio, signal, sys, threading
from tenure import Tenure, QueuePaused, Reaper

async def main():
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    app = Tenure("memory://")
    its = app.worker(drain="1s") if sys.argv[1] == "worker" else Reaper(app)

    @(app if sys.argv[1] == "worker" else its).on(QueuePaused)
    def hang(event):
        print("hanging", flush=True)
        threading.Event().wait()

    await its.start()
    await app.queue("default").pause()
    await over.wait()
    await its.stop()
    print("stopped", flush=True)

asyncio.run(main())
"""
"""A user's own program with a worker or a reaper in it, and a plain event handler that never returns."""


@pytest.mark.parametrize("what", ["worker", "reaper"])
def test_a_program_ends_although_a_plain_event_handler_hangs(what: str) -> None:
    with subprocess.Popen([sys.executable, "-c", EMBEDDED, what], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "hanging\n"
            process.terminate()
            output, _ = process.communicate(timeout=20)
        finally:
            process.kill()

    assert (output, process.returncode) == ("stopped\n", 0)


async def test_systemd_gets_ready_watchdog_and_stopping_messages(
    make_fleet: Callable[..., WorkerFleet], tmp_path: Path
) -> None:
    here = make_fleet(**USUAL)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        here.env |= {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "500000"}
        loop = asyncio.get_running_loop()
        heard: list[tuple[float, bytes]] = []

        async def hear(*, until: bytes) -> None:
            async with asyncio.timeout(30):
                while not heard or heard[-1][1] != until:
                    heard.append((time.monotonic(), await loop.sock_recv(systemd, 100)))

        worker = here.worker("-c", "1")
        await hear(until=b"READY=1")
        (ref,) = here.enqueue("block_loop", 1.5)
        ready_at = heard[-1][0]
        while time.monotonic() < ready_at + 3:
            await hear(until=b"WATCHDOG=1")
            heard.append((time.monotonic(), b""))
        worker.terminate()
        await hear(until=b"STOPPING=1")

    assert await asyncio.to_thread(worker.wait, 30) == 0
    words = Counter(word for _, word in heard)
    assert (words[b"READY=1"], words[b"STOPPING=1"]) == (1, 1)
    # Four a second; half of them allow for a slow machine.
    assert words[b"WATCHDOG=1"] >= 6
    # A handler that blocks its loop for a while must not cause a restart.
    (detail,) = await here.details([ref])
    assert [run.ended for run in detail.runs] == ["completed"]
