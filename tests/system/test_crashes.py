"""Deaths that jobs cause: what is recorded of them, who is charged, and that no process or descriptor is left."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure.core.events import JobStalled, WorkerDied
from tenure.core.job import JobDetail, Ref
from tenure.core.lifecycle import State
from tenure.maintenance.lost_runs import FREE_DEATHS
from tests.amounts import amount, on_one_storage
from tests.system.groups import small_group
from tests.system.worker_fleet import WorkerFleet, by_job

pytestmark = pytest.mark.system

SECOND = 1_000_000
MakeFleet = Callable[..., WorkerFleet]


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def storage_fleet(request: pytest.FixtureRequest, make_fleet: MakeFleet) -> MakeFleet:
    """Return a function that makes a worker fleet on each storage."""
    url = "" if request.param == "sqlite" else str(request.getfixturevalue("redis_url"))

    def make(**settings: str) -> WorkerFleet:
        return make_fleet(url=url, **{"lease": "4s", "sweep": "400ms", "grace": "600ms", **settings})

    return make


def children(pid: int) -> dict[int, str]:
    """Return the states of the processes that a process has started, by their pids."""
    found: dict[int, str] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(parent) == pid:
            found[int(stat.parent.name)] = state
    return found


def descriptors(pid: int) -> int:
    """Return how many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


async def over(here: WorkerFleet, refs: list[Ref], *, within: float) -> None:
    """Wait until these jobs have ended."""

    async def ended() -> bool:
        return await here.count(State.COMPLETED, State.FAILED) >= len(refs)

    await here.until(ended, within=within)


async def full(here: WorkerFleet, pid: int, workers: int) -> None:
    """Wait until a supervisor has this many children, all of them alive and registered."""

    async def complete() -> bool:
        return sorted(children(pid)) == await here.pids() and len(await here.pids()) == workers

    await here.until(complete, within=60)


async def deaths(here: WorkerFleet, many: int) -> list[WorkerDied]:
    """Wait until this many deaths are recorded, which happens once the jobs are free."""
    found: list[WorkerDied] = []

    async def recorded() -> bool:
        found[:] = [event for event in await here.events() if isinstance(event, WorkerDied)]
        return len(found) >= many

    await here.until(recorded, within=10)
    return found


@on_one_storage("storage_fleet", "redis")
async def test_a_killed_run_leaves_a_post_mortem_that_the_command_line_shows(storage_fleet: MakeFleet) -> None:
    here = storage_fleet(max_count="0", lease="8s")
    here.worker("--processes", "2", "-c", "3")
    (ref,) = here.enqueue("long_work", 60)

    async def looked_at() -> bool:
        return any(run.trace for detail in await here.details([ref]) for run in detail.runs)

    await here.until(looked_at, within=20)
    (running,) = await here.details([ref])
    # Between its last beat and its death it is stopped: even on a busy machine no other beat comes in between.
    os.kill(running.runs[-1].pid, signal.SIGSTOP)
    await asyncio.sleep(1.2)
    os.kill(running.runs[-1].pid, signal.SIGKILL)
    await over(here, [ref], within=10)
    shown = here.run("jobs", "show", ref.id).stdout
    kept = json.loads(here.run("jobs", "show", ref.id, "-o", "json").stdout)
    text = kept["runs"][0]["detail"]

    assert text.startswith("its process was killed by signal 9 (SIGKILL), cause unknown\n")
    assert "progress: 0.25 (a quarter of it)" in text
    assert "info: begun with care order=17" in text
    [ago] = re.findall(r"where its handler was at its last beat, ([0-9.]+) s before it died", text)
    assert float(ago) >= 1.2
    assert "in long_work" in text
    assert "post-mortem of run 1" in shown
    assert "    await asyncio.sleep(seconds)" in shown
    assert "run 1 was lost because" not in shown
    assert kept["error"]["message"].endswith(
        "the last time its process was killed by signal 9 (SIGKILL), cause unknown"
    )
    (stalled,) = [event for event in await here.events() if isinstance(event, JobStalled)]
    assert stalled.post_mortem == text


@pytest.mark.timeout(300)
async def test_many_deaths_in_a_row_leave_all_workers_running_and_no_leak(
    storage_fleet: MakeFleet, request: pytest.FixtureRequest
) -> None:
    times = amount("deaths of workers in a row") if "sqlite" in request.node.name else 20
    here = storage_fleet(max_count="0", no_handlers="1")
    supervisor = here.worker("--processes", "4", "-c", "1", "--log-level", "error")
    await full(here, supervisor.pid, 4)
    # The first death opens the storage, for the recoveries.
    first = here.enqueue("exit_silently")
    await deaths(here, 1)
    await full(here, supervisor.pid, 4)
    before = descriptors(supervisor.pid)
    refs = [
        *first,
        *here.enqueue("exit_silently", times=times // 2 - 1),
        *here.enqueue("kill_itself", times=times - times // 2),
    ]
    await over(here, refs, within=240)
    await full(here, supervisor.pid, 4)

    died = await deaths(here, times)
    assert [(len(died), sum(event.jobs for event in died))] == [(times, times)]
    assert "Z" not in children(supervisor.pid).values()
    # A leak would be one for each death; concurrent recoveries may each have a connection.
    assert descriptors(supervisor.pid) <= before + 4
    stalled = {event.id: event for event in await here.events() if isinstance(event, JobStalled)}
    # They die right after their line. The time allows for a machine that is starting other workers on two cores.
    took = sorted(at.timestamp() * SECOND - line.at for line in here.lines() if (at := stalled[line.id].at) is not None)
    assert len(took) == times
    assert took[len(took) * 9 // 10] < SECOND
    assert took[-1] < 3 * SECOND
    assert await here.count(State.FAILED) == times


async def test_a_handler_that_exits_fails_only_its_own_job(storage_fleet: MakeFleet) -> None:
    here = storage_fleet()
    worker = here.worker("--processes", "2", "-c", "5")
    await full(here, worker.pid, 2)
    workers_before = await here.pids()
    refs = [*here.enqueue("exits"), *here.enqueue("exits_in_thread"), *here.enqueue("nap", 0.2, times=5)]
    await over(here, refs, within=30)
    details = await here.details(refs)

    assert [detail.job.state for detail in details] == [State.FAILED] * 2 + [State.COMPLETED] * 5
    assert [detail.job.error and detail.job.error.type for detail in details[:2]] == ["SystemExit", "SystemExit"]
    assert [detail.job.reason for detail in details[:2]] == ["exhausted"] * 2
    assert await here.pids() == workers_before


@pytest.mark.memory
async def test_a_run_that_the_kernel_killed_for_memory_says_so(storage_fleet: MakeFleet) -> None:
    here = storage_fleet(max_count="0")
    with small_group() as group:
        worker = here.worker("--processes", "2", "-c", "1", within=group)
        # While it still imports and starts, a supervisor needs memory as well. A process that allocates between the
        # death of the first victim and the moment when all of its memory is free may be the next victim.
        await full(here, worker.pid, 2)
        (ref,) = here.enqueue("allocate", 4_000)

        async def ended() -> bool:
            assert worker.poll() is None, f"the supervisor itself has ended: {worker.returncode}\n{here.log()}"
            return await here.count(State.COMPLETED, State.FAILED) == 1

        await here.until(ended, within=60)
        (detail,) = await here.details([ref])
        found: list[WorkerDied] = []

        async def recorded() -> bool:
            # Its sibling may have been a second victim.
            found[:] = [died for died in await deaths(here, 1) if died.pid == detail.runs[0].pid]
            return bool(found)

        await here.until(recorded, within=10)
        (died,) = found
        worker.terminate()
        worker.wait(20)

    assert (detail.runs[0].detail or "").startswith("its process was killed by the OOM killer (signal 9, SIGKILL)")
    assert died.signal == signal.SIGKILL
    assert died.peak_memory is not None
    assert died.peak_memory > 100 << 20


POISONS = ("exit_silently", "kill_itself", "crash")


async def test_a_poison_job_fails_at_its_second_crash_and_neighbours_complete(storage_fleet: MakeFleet) -> None:
    here = storage_fleet(max_count="1", no_handlers="1")
    worker = here.worker("--processes", "2", "-c", "10")
    await full(here, worker.pid, 2)
    good = here.enqueue("nap", 0.5, times=30)
    poison = [ref for task in POISONS for ref in here.enqueue(task)]
    await over(here, [*good, *poison], within=60)
    await full(here, worker.pid, 2)

    for detail in await here.details(poison):
        assert (detail.job.state, detail.job.reason, detail.job.stalls) == (State.FAILED, "crashed", 2)
        # Another job may have killed the worker of its quarantine: that does not charge isolated jobs.
        assert [run.reason for run in detail.runs if run.ended == "stalled"] == ["process_died"] * 2
    for detail in await here.details(good):
        assert detail.job.state is State.COMPLETED
        assert detail.job.stalls <= 1
    # Isolated it may be killed by another job, and begin once more uncharged; on a shared worker it is not.
    workers = {died.pid for died in await deaths(here, 1)}
    starts = by_job([line for line in here.lines() if line.what == "start"])
    for detail in await here.details(poison):
        began = starts[detail.job.id]
        assert 1 <= len(began) <= len(detail.runs), (began, detail.runs, here.log())
        assert sum(line.pid in workers for line in began) <= detail.job.stalls, (began, detail.runs, here.log())


async def test_two_kills_of_a_worker_charge_no_isolated_job(storage_fleet: MakeFleet) -> None:
    here = storage_fleet(max_count="0", no_handlers="1")
    here.worker("-c", "3")
    refs = here.enqueue("isolated", 5.0, times=3)
    for run in (1, 2):

        async def begun(run: int = run) -> bool:
            return len([line for line in here.lines() if (line.what, line.run) == ("start", run)]) == 3

        await here.until(begun, within=30)
        (pid,) = await here.pids()
        os.kill(pid, signal.SIGKILL)
        await deaths(here, run)
    await over(here, refs, within=60)

    for detail in await here.details(refs):
        assert [(run.ended, run.reason) for run in detail.runs] == [
            ("released", "worker_died"),
            ("released", "worker_died"),
            ("completed", None),
        ]
        assert (detail.job.state, detail.job.stalls, detail.job.releases) == (State.COMPLETED, 0, 2)


@on_one_storage("storage_fleet")
async def test_an_isolated_job_that_kills_its_worker_is_charged_each_fourth_time(
    storage_fleet: MakeFleet,
) -> None:
    here = storage_fleet(max_count="1", no_handlers="1")
    here.worker("-c", "3")
    (killer,) = here.enqueue("kill_worker")
    await over(here, [killer], within=180)
    (detail,) = await here.details([killer])

    # Before: it was released for ever.
    free = [("released", "worker_died")] * FREE_DEATHS
    assert [(run.ended, run.reason) for run in detail.runs] == [*free, ("stalled", "process_died")] * 2
    assert (detail.job.state, detail.job.reason) == (State.FAILED, "crashed")
    assert (detail.job.stalls, detail.job.releases) == (2, 2 * FREE_DEATHS)
    assert detail.job.error is not None
    assert "its worker died while it ran, for the 4th time in a row" in detail.job.error.message


@on_one_storage("storage_fleet", "redis")
async def test_an_event_handler_that_kills_its_worker_charges_no_isolated_job(storage_fleet: MakeFleet) -> None:
    here = storage_fleet(max_count="0", no_handlers="1", subscriber_kills="1")
    here.worker("-c", "4")
    refs = here.enqueue("isolated", 14.0, times=3)

    async def begun() -> bool:
        return len([line for line in here.lines() if line.what == "start"]) == 3

    await here.until(begun, within=30)
    handled = here.enqueue("nap", 0.0)
    await deaths(here, 2)
    await over(here, [*refs, *handled], within=90)

    assert [line.what for line in here.lines()].count("kill") >= 2
    for detail in await here.details([*refs, *handled]):
        assert (detail.job.state, detail.job.stalls) == (State.COMPLETED, 0)
    assert all(detail.job.releases >= 1 for detail in await here.details(refs))


@on_one_storage("storage_fleet")
async def test_a_poison_job_without_a_process_fails_at_its_second_crash(
    storage_fleet: MakeFleet,
) -> None:
    here = storage_fleet(max_count="1", no_handlers="1", no_isolation="1")
    worker = here.worker("-c", "20")
    await full(here, worker.pid, 1)
    # It is never alone: these are in quarantine with it afterwards, and wait for processes before it does.
    good = here.enqueue("nap", 4.0, times=5)
    (poison,) = here.enqueue("exit_silently")
    # And these never were.
    good += here.enqueue("nap", 4.0, times=5)
    await over(here, [*good, poison], within=60)

    (detail,) = await here.details([poison])
    assert (detail.job.state, detail.job.reason, detail.job.stalls) == (State.FAILED, "crashed", 2)
    assert [run.ended for run in detail.runs] == ["stalled"] * 2
    assert "no process is available" in here.log()


async def test_prefetched_jobs_are_not_charged_for_the_death_of_their_worker(storage_fleet: MakeFleet) -> None:
    here = storage_fleet(no_handlers="1")
    here.worker("-c", "1")
    jobs, at_hand = list[Ref](), list[JobDetail]()
    # On a busy machine the latest runs may have been too long for any job to be prefetched.
    while not at_hand and len(jobs) < 2000:
        jobs += here.enqueue("quick", 1, times=200)
        await over(here, jobs, within=30)
        poison, *others = here.enqueue_in_turns("first_dies", [(number,) for number in range(12)], times=1)
        jobs += [poison, *others]
        await over(here, jobs, within=30)

        (failed,) = await here.details([poison])
        assert (failed.job.state, failed.job.reason) == (State.FAILED, "crashed")
        details = await here.details(others)
        assert {(detail.job.state, detail.job.stalls) for detail in details} == {(State.COMPLETED, 0)}
        at_hand = [detail for detail in details if len(detail.runs) == 2]

    assert {(detail.runs[0].ended, detail.runs[0].reason) for detail in at_hand} == {("released", "process_died")}
