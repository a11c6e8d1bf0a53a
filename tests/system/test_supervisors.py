"""What a supervisor must survive: children that end, cannot be started, send nothing or invalid messages."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tenure.core.events import JobReleased, JobStalled, WorkerDied
from tenure.core.job import Ref
from tenure.core.lifecycle import State
from tests.system.worker_fleet import WorkerFleet, by_job, pending

pytestmark = pytest.mark.system

MakeFleet = Callable[..., WorkerFleet]

SUPERVISE = """
import sys
from tenure.supervisor.supervisor import supervise

sys.exit(supervise(sys.argv[1:], processes=2, drain="1s", trial=0))
"""

UNMINDED = """
import os, signal, sys

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""

CHILD = """
import os, socket, sys, time

with open(sys.argv[1], "a") as born:
    born.write(f"{os.getpid()}\\n")
    born.flush()
    first = born.tell() < 10
line = socket.socket(fileno=int(os.environ["TENURE_CHILD"].partition(":")[0]))
if first:
    line.sendall(sys.argv[2].encode() + b"\\n")
time.sleep(600)
"""


def born(record: Path) -> list[int]:
    """Return the pids of the children so far, in the order of their start."""
    return [int(line) for line in record.read_text().split()] if record.exists() else []


async def workers(here: WorkerFleet, many: int, *, without: int = 0) -> None:
    """Wait until this many workers exist, and that one does not."""

    async def there() -> bool:
        pids = await here.pids()
        return len(pids) == many and without not in pids

    await here.until(there, within=20)


async def test_a_child_that_someone_else_stops_is_replaced(make_fleet: MakeFleet) -> None:
    here = make_fleet()
    supervisor = here.worker("--processes", "2", "-c", "1")
    await workers(here, 2)
    stopped = (await here.pids())[0]
    os.kill(stopped, signal.SIGTERM)
    await workers(here, 2, without=stopped)
    supervisor.terminate()

    assert supervisor.wait(20) == 0
    assert f"worker {stopped} stopped without a request" in here.log()
    assert not [event for event in await here.events() if isinstance(event, WorkerDied)]


@pytest.mark.parametrize("options", [(), ("--burst",)])
async def test_a_child_that_a_handler_ends_without_a_message_has_died(
    make_fleet: MakeFleet, options: tuple[str, ...]
) -> None:
    here = make_fleet(max_count="1")
    (poison,) = here.enqueue("exit_silently")
    good = here.enqueue("quick", 1, times=20)
    supervisor = here.worker("--processes", "2", "-c", "1", *options)

    async def done() -> bool:
        died = [event.status for event in await here.events() if isinstance(event, WorkerDied)]
        # The second time it runs in quarantine, and ends nothing else.
        return died == [0] and await here.count(State.FAILED, State.COMPLETED) == 1 + len(good)

    await here.until(done, within=30)
    (detail,) = await here.details([poison])
    assert (detail.job.state, detail.job.reason, detail.job.stalls) == (State.FAILED, "crashed", 2)
    if options:
        assert supervisor.wait(20) == 0
    else:
        await workers(here, 2)


async def test_a_recycling_worker_has_at_most_one_successor_at_a_time(make_fleet: MakeFleet) -> None:
    here = make_fleet(lease="8s", grace="2s", sweep="1s")
    here.worker("-c", "2", "--max-jobs", "2")

    async def done(refs: list[Ref]) -> None:
        async def completed() -> bool:
            return all(detail.job.state is State.COMPLETED for detail in await here.details(refs))

        await here.until(completed, within=30)

    # Each process begins a long one and a short one, and then no more.
    long_ones, short_ones = list[Ref](), list[Ref]()
    for name in ("first", "second"):
        long_ones += here.enqueue("wait_for_file", name)
        await done(short := here.enqueue("nap", 0))
        short_ones += short
    last = here.enqueue("nap", 0)
    here.handler_log.with_name("handler-logfirst").touch()
    await done(last)
    here.handler_log.with_name("handler-logsecond").touch()
    await done(long_ones)
    lines = by_job(here.lines())
    began, ended = (
        {id_: next(line for line in found if line.what == what) for id_, found in lines.items()}
        for what in ("start", "end")
    )

    # The second one came while the first one was running, the third one after that.
    assert began[short_ones[1].id].at < ended[long_ones[0].id].at <= began[last[0].id].at
    assert len({began[ref.id].pid for ref in [*long_ones, *last]}) == 3
    assert not [event for event in await here.events() if isinstance(event, JobStalled | JobReleased | WorkerDied)]


async def test_a_burst_ends_when_there_is_nothing_left(make_fleet: MakeFleet) -> None:
    here = make_fleet()
    refs = here.enqueue("quick", 1, times=20)

    assert here.worker("--processes", "2", "--burst").wait(30) == 0
    assert await here.count(State.COMPLETED) == len(refs)


async def test_a_death_is_detected_with_an_inherited_ignored_sigchld(make_fleet: MakeFleet) -> None:
    here = make_fleet(max_count="0")
    (poison,) = here.enqueue("exit_silently")
    (good,) = here.enqueue("quick", 1)
    # An ignored signal stays ignored in every child.
    supervisor = here.process("-c", UNMINDED, "-m", "tenure", "worker", "fleet_app:app", "-c", "1")

    async def done() -> bool:
        return await here.count(State.COMPLETED, State.FAILED) == 2

    await here.until(done, within=30)
    supervisor.terminate()

    assert supervisor.wait(20) == 0
    [failed, completed] = await here.details([poison, good])
    assert (failed.job.reason, completed.job.state) == ("crashed", State.COMPLETED)
    assert [event.status for event in await here.events() if isinstance(event, WorkerDied)] == [0]


async def test_a_child_that_cannot_be_started_is_tried_again(make_fleet: MakeFleet) -> None:
    here = make_fleet()
    record, command, draft = here.folder / "born", here.folder / "command", here.folder / "draft"
    supervisor = here.process("-c", SUPERVISE, str(command))
    await here.said("cannot run a worker process, retrying")
    draft.write_text(f"#!/bin/sh\necho $$ >> {record}\nexec sleep 600\n")
    draft.chmod(0o755)
    draft.rename(command)

    async def two() -> bool:
        return len(born(record)) == 2

    await here.until(two, within=20)
    supervisor.terminate()

    assert supervisor.wait(10) == 0


@pytest.mark.parametrize(
    "hello", ["good morning", '{"say": "hello", "url": 7}', '{"say": "hello", "url": "gopher://nowhere"}']
)
async def test_a_child_that_sends_invalid_messages_harms_no_other(make_fleet: MakeFleet, hello: str) -> None:
    here = make_fleet()
    record = here.folder / "born"
    program = here.folder / "child.py"
    program.write_text(CHILD)
    supervisor = here.process("-c", SUPERVISE, sys.executable, str(program), str(record), hello)

    async def two() -> bool:
        return len(born(record)) == 2

    await here.until(two, within=20)
    first, second = born(record)
    os.kill(first, signal.SIGKILL)

    async def three() -> bool:
        return len(born(record)) == 3

    await here.until(three, within=20)
    os.kill(second, 0)
    supervisor.terminate()

    assert supervisor.wait(10) == 0


async def tell(here: WorkerFleet, pids: Sequence[int]) -> None:
    """Send SIGTERM to all of them, as systemd's `KillMode=control-group` does, and wait until each has arrived."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

    async def arrived() -> bool:
        return not any(pending(pid, signal.SIGTERM) for pid in pids)

    await here.until(arrived, within=10)


async def at_work(here: WorkerFleet, workers: int, jobs: int) -> list[int]:
    """Wait until there are this many workers and running handlers; return the workers' pids.

    A claimed job whose handler has not begun would be released by a stop, instead of drained.
    """

    async def working() -> bool:
        return len(here.lines()) == jobs and len(await here.pids()) == workers

    await here.until(working, within=20)
    return await here.pids()


@pytest.mark.statement(94)
async def test_a_sigterm_that_reaches_the_children_too_lets_them_drain(make_fleet: MakeFleet) -> None:
    here = make_fleet(lease="20s")
    supervisor = here.worker("--processes", "2", "-c", "1", "--drain", "25s")
    # On a busy machine the second one starts when the first one's job would have ended.
    await workers(here, 2)
    refs = here.enqueue("nap", 3, times=2)
    children = await at_work(here, 2, 2)
    await tell(here, [*children, supervisor.pid])
    # However often they receive it.
    await tell(here, children)

    assert await asyncio.to_thread(supervisor.wait, 20) == 0
    details = await here.details(refs)
    assert [[run.ended for run in detail.runs] for detail in details] == [["completed"], ["completed"]]
    assert not [event for event in await here.events() if isinstance(event, WorkerDied)]


@pytest.mark.statement(98)
@pytest.mark.parametrize("processes", ["the supervisor", "all of them"])
async def test_a_second_sigterm_of_a_supervisor_makes_its_children_exit_at_once(
    make_fleet: MakeFleet, processes: str
) -> None:
    here = make_fleet(lease="20s")
    supervisor = here.worker("--processes", "2", "-c", "1", "--drain", "60s")
    refs = here.enqueue("nap", 60, times=2)
    children = await at_work(here, 2, 2)
    group = [supervisor.pid, *(children if processes == "all of them" else ())]
    await tell(here, group)
    await tell(here, group)
    began = time.monotonic()

    assert await asyncio.to_thread(supervisor.wait, 20) == 0
    # About half a second; the rest is time for a slow machine.
    assert time.monotonic() - began < 4
    for detail in await here.details(refs):
        assert (detail.job.state, [run.ended for run in detail.runs]) == (State.WAITING, ["released"])
    assert not [event for event in await here.events() if isinstance(event, WorkerDied)]


async def test_a_child_that_ignores_two_sigterms_is_killed_and_no_job_is_charged(
    make_fleet: MakeFleet,
) -> None:
    # By default one more death would fail its jobs.
    here = make_fleet(lease="20s", max_count="1")
    supervisor = here.worker("-c", "3", "--drain", "60s")
    others = here.enqueue("nap", 60, times=2)
    await at_work(here, 1, 2)
    # The event loop of this one is blocked.
    (ref,) = here.enqueue("block_loop", 60)
    (pid,) = await at_work(here, 1, 3)
    await tell(here, [supervisor.pid])
    await tell(here, [supervisor.pid])
    began = time.monotonic()

    assert await asyncio.to_thread(supervisor.wait, 20) == 0
    assert 2 < time.monotonic() - began < 7
    assert f"worker {pid} did not stop in time; killing it" in here.log()
    for detail in await here.details([ref, *others]):
        (run,) = detail.runs
        assert (detail.job.state, run.ended, run.reason) == (State.WAITING, "released", "process_died")
        assert (run.detail or "").startswith("its process was killed by its supervisor: it had not stopped")
        assert (detail.job.stalls, detail.job.releases, detail.job.quarantined) == (0, 1, False)
    (died,) = [event for event in await here.events() if isinstance(event, WorkerDied)]
    assert died.how.startswith("was killed by its supervisor: it had not stopped")


@pytest.mark.fault("W-B13")
@pytest.mark.parametrize("how", [("--no-supervisor",), ("--processes", "2")], ids=["alone", "two"])
async def test_a_locked_storage_does_not_delay_a_stop(make_fleet: MakeFleet, how: tuple[str, ...]) -> None:
    here = make_fleet(lease="20s")
    worker, many = here.worker(*how, "-c", "1", "--drain", "2s"), len(how)
    (ref,) = here.enqueue("nap", 60)
    await at_work(here, many, 1)
    with contextlib.closing(sqlite3.connect(here.database, isolation_level=None, timeout=10)) as other:
        other.execute("BEGIN EXCLUSIVE")
        worker.terminate()
        began = time.monotonic()
        status = await asyncio.to_thread(worker.wait, 30)
        took = time.monotonic() - began
        other.execute("ROLLBACK")

    assert status == 0
    # Drain and 5 s are the promise; the rest is time for a slow machine.
    assert 2 < took < 2 + 5 + 1.5
    assert here.log().count("unrecorded outcomes") == many
    assert "with 1 unrecorded outcomes" in here.log()
    here.alone("-c", "1", "-q", "elsewhere")

    async def taken_back() -> bool:
        (detail,) = await here.details([ref])
        return (detail.job.state, [run.ended for run in detail.runs]) == (State.WAITING, ["stalled"])

    await here.until(taken_back, within=20)


async def test_a_death_is_seen_though_a_fork_holds_the_line_open(make_fleet: MakeFleet) -> None:
    here = make_fleet()
    here.worker("--processes", "2", target="forker:app")
    await workers(here, 2)

    assert "(exit status 3) before it was ready" in here.log()
