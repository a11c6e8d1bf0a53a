"""Processes that die, hang and are orphaned: real signals, and bounds measured from recorded timestamps."""

import contextlib
import os
import signal
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from tenure.core.events import JobCompleted, JobFailed, JobStalled, RunFenced, WorkerDied
from tenure.core.lifecycle import State
from tenure.storage.sqlite.locks import lock_file, quiet
from tests.system.worker_fleet import WorkerFleet, by_job

pytestmark = pytest.mark.system

SECOND = 1_000_000
MakeFleet = Callable[..., WorkerFleet]


def gone(pid: int) -> bool:
    """Return whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def written(path: Path) -> bool:
    """Return whether a file has contents."""
    return path.exists() and path.stat().st_size > 0


def groups() -> set[int]:
    """Return the live process groups."""
    found: set[int] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group, *_ = stat.read_text().rpartition(")")[2].split()
            if state != "Z":
                found.add(int(group))
    return found


async def busy(fleet: WorkerFleet, *, workers: int = 1, besides: Collection[int] = ()) -> list[int]:
    """Wait until this many worker processes besides those named hold jobs; return their pids.

    A killed process still holds its jobs until they are recovered, so a test that kills several names those that it has
    killed already.
    """
    found: list[int] = []

    async def working() -> bool:
        found[:] = [pid for pid in await fleet.pids() if pid not in besides and await fleet.active(pid)]
        return len(found) >= workers

    await fleet.until(working, within=20)
    return found


async def all_there(fleet: WorkerFleet, workers: int) -> None:
    """Wait until this many worker processes have registered.

    On a busy machine the last one registers when the jobs that the first one claimed have ended, and finds none.
    """

    async def greeted() -> bool:
        return len(await fleet.pids()) == workers

    await fleet.until(greeted, within=30)


@pytest.mark.statement(92)
async def test_a_dead_childs_jobs_run_again_in_a_second_with_the_reason(make_fleet: MakeFleet) -> None:
    here = make_fleet(lease="20s", grace="3s", sweep="2s")
    here.worker("--processes", "2", "-c", "5")
    await all_there(here, 2)
    refs = here.enqueue("nap", 3, times=10)
    victim = (await busy(here, workers=2))[0]
    held = {job.id for job in await here.active(victim)}
    killed_at = here.storage_now()
    os.kill(victim, signal.SIGKILL)

    async def completed() -> bool:
        return await here.count(State.COMPLETED) == len(refs)

    await here.until(completed, within=30)
    events = await here.events()
    stalled = [event for event in events if isinstance(event, JobStalled)]
    assert {event.id for event in stalled} == held
    assert {event.reason for event in stalled} == {"process_died"}
    assert all(event.at is not None and event.at.timestamp() * SECOND - killed_at < SECOND for event in stalled)
    assert [(event.pid, event.signal) for event in events if isinstance(event, WorkerDied)] == [(victim, 9)]
    for detail in await here.details([ref for ref in refs if ref.id in held]):
        first, second = detail.runs
        assert (first.ended, first.reason, first.pid) == ("stalled", "process_died", victim)
        assert (second.ended, second.number) == ("completed", 2)
        assert second.start - killed_at < SECOND + 3 * SECOND


async def test_a_sibling_sweep_leaves_dead_workers_to_their_supervisor(
    make_fleet: MakeFleet,
) -> None:
    here = make_fleet(lease="20s", grace="3s", sweep="100ms")
    supervisor = here.worker("--processes", "2", "-c", "2", "--drain", "0s")
    await all_there(here, 2)
    refs = here.enqueue("nap", 60, times=4)
    victim, sibling = await busy(here, workers=2)
    with here.stopped(supervisor.pid):
        os.kill(victim, signal.SIGKILL)
        swept: set[int] = set()

        async def often() -> bool:
            survey = await here.survey()
            # By the sibling, if need be from now on.
            swept.add(survey.now - (survey.swept_ago or 0))
            return len(swept) > 20

        await here.until(often, within=30)
        assert {detail.job.stalls for detail in await here.details(refs)} == {0}

    async def recovered() -> bool:
        return any(isinstance(event, WorkerDied) for event in await here.events())

    await here.until(recovered, within=10)
    events = await here.events()
    assert [event.jobs for event in events if isinstance(event, WorkerDied)] == [2]
    for event in events:
        if isinstance(event, JobStalled):
            assert (event.post_mortem or "").startswith("its process was killed by signal 9 (SIGKILL), cause unknown")
    assert sibling in await here.pids()


@pytest.mark.statement(92, 106)
async def test_a_restart_after_kill_9_of_the_only_worker_runs_its_jobs_again(make_fleet: MakeFleet) -> None:
    here = make_fleet(lease="20s", grace="3s", sweep="2s")
    worker = here.alone("-c", "5")
    refs = here.enqueue("nap", 1, times=5)
    await busy(here)
    worker.kill()
    worker.wait()
    here.alone("-c", "5")

    async def completed() -> bool:
        return await here.count(State.COMPLETED) == len(refs)

    await here.until(completed, within=20)
    for detail in await here.details(refs):
        assert [run.ended for run in detail.runs] == ["stalled", "completed"]
        assert detail.runs[0].reason == "process_died"


async def test_a_restarted_worker_recovers_its_jobs_without_a_reaper(make_fleet: MakeFleet) -> None:
    here = make_fleet(lease="20s", grace="3s", sweep="2s")
    worker = here.alone("-c", "5", "--no-reaper")
    refs = here.enqueue("nap", 1, times=5)
    await busy(here)
    worker.kill()
    worker.wait()
    here.alone("-c", "5", "--no-reaper")

    async def completed() -> bool:
        return await here.count(State.COMPLETED) == len(refs)

    await here.until(completed, within=15)
    for detail in await here.details(refs):
        assert [(run.ended, run.reason) for run in detail.runs] == [("stalled", "process_died"), ("completed", None)]


async def test_children_die_with_a_killed_supervisor_and_a_restart_reruns_jobs(
    make_fleet: MakeFleet,
) -> None:
    here = make_fleet(lease="20s", grace="3s", sweep="2s")
    supervisor = here.worker("--processes", "3", "-c", "2")

    await all_there(here, 3)
    refs = here.enqueue("blocking", 2, times=6)
    children = await busy(here, workers=3)
    supervisor.kill()
    supervisor.wait()

    async def orphans_gone() -> bool:
        return all(gone(pid) for pid in children)

    await here.until(orphans_gone, within=5)
    here.worker("--processes", "3", "-c", "2")

    async def completed() -> bool:
        return await here.count(State.COMPLETED) == len(refs)

    await here.until(completed, within=30)
    assert all(detail.runs[-1].ended == "completed" for detail in await here.details(refs))


async def test_processes_that_a_dead_child_had_started_are_killed(make_fleet: MakeFleet) -> None:
    here = make_fleet()
    here.worker("--processes", "2", "-c", "1")
    here.enqueue("spawning", 30)
    (victim,) = await busy(here)
    traces = Path(f"{here.handler_log}.grandchild")

    async def works() -> bool:
        return written(traces)

    await here.until(works, within=10)
    os.kill(victim, signal.SIGKILL)

    async def died() -> bool:
        return any(isinstance(event, WorkerDied) for event in await here.events())

    await here.until(died, within=5)

    # The supervisor killed the group before it recovered the jobs of the child. A process that is killed still takes a
    # moment to end.
    async def ended() -> bool:
        return victim not in groups()

    await here.until(ended, within=10)


async def test_processes_that_an_isolated_handler_started_end_with_the_worker(make_fleet: MakeFleet) -> None:
    here = make_fleet()
    here.worker("--processes", "2", "-c", "1")
    here.enqueue("isolated_spawning", 30)
    (victim,) = await busy(here)

    async def works() -> bool:
        return bool(here.lines())

    await here.until(works, within=20)
    slot = here.lines()[0].pid
    os.kill(victim, signal.SIGKILL)

    async def died() -> bool:
        return any(isinstance(event, WorkerDied) for event in await here.events())

    await here.until(died, within=5)
    assert slot != victim

    # A process that is killed takes a moment to end.
    async def ended() -> bool:
        return slot not in groups()

    await here.until(ended, within=10)


@pytest.mark.statement(31, 32, 90)
async def test_a_worker_frozen_beyond_its_lease_is_fenced_off_when_it_wakes(make_fleet: MakeFleet) -> None:
    here = make_fleet()
    here.worker("--processes", "2", "-c", "3")
    await all_there(here, 2)
    refs = here.enqueue("nap", 4, times=6)
    victim = (await busy(here, workers=2))[0]
    held = {job.id for job in await here.active(victim)}
    with here.stopped(victim):
        stopped_at = here.storage_now()

        async def reaped() -> bool:
            return {event.id for event in await here.events() if isinstance(event, JobStalled)} >= held

        await here.until(reaped, within=20)

    async def completed() -> bool:
        return await here.count(State.COMPLETED) == len(refs)

    await here.until(completed, within=30)

    async def refused() -> bool:
        return {event.id for event in await here.events() if isinstance(event, RunFenced)} >= held

    await here.until(refused, within=10)
    events = await here.events()
    bound = (2.0 + 0.6 + 2 * 0.4) * SECOND
    for event in events:
        if isinstance(event, JobStalled) and event.id in held:
            assert event.at is not None
            # Time for a slow machine: the sweeping process shares two cores with the others.
            assert event.at.timestamp() * SECOND - stopped_at < bound + SECOND
    outcomes = [event.id for event in events if isinstance(event, JobCompleted)]
    assert sorted(outcomes) == sorted(ref.id for ref in refs)
    assert not [event for event in events if isinstance(event, JobFailed)]


@pytest.mark.fault("F12", "W-T8")
@pytest.mark.statement(30)
async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(make_fleet: MakeFleet) -> None:
    here = make_fleet()
    here.worker("-c", "2")
    here.worker("-c", "2", "-q", "elsewhere")
    (ref,) = here.enqueue("block_loop", 8)

    async def completed() -> bool:
        return await here.count(State.COMPLETED) == 1

    await here.until(completed, within=30)
    (detail,) = await here.details([ref])
    assert [run.ended for run in detail.runs] == ["completed"]


@pytest.mark.statement(98)
async def test_the_first_sigterm_drains_and_the_second_releases_at_once(make_fleet: MakeFleet) -> None:
    here = make_fleet(lease="20s")
    patient = here.alone("-c", "1")
    (first,) = here.enqueue("nap", 2)
    await busy(here)
    patient.send_signal(signal.SIGTERM)
    assert patient.wait(20) == 0
    (detail,) = await here.details([first])
    assert [run.ended for run in detail.runs] == ["completed"]

    hasty = here.alone("-c", "1")
    (second,) = here.enqueue("nap", 20)
    await busy(here)
    hasty.send_signal(signal.SIGTERM)

    async def draining() -> bool:
        return any(worker.stopping for worker in (await here.survey()).workers)

    await here.until(draining, within=10)
    hasty.send_signal(signal.SIGTERM)
    assert hasty.wait(5) == 0
    (detail,) = await here.details([second])
    assert (detail.job.state, [run.ended for run in detail.runs]) == (State.WAITING, ["released"])


@pytest.mark.parametrize("how", [("--no-supervisor",), (), ("--processes", "2")], ids=["alone", "one", "two"])
async def test_the_second_sigterm_is_obeyed_at_once_though_the_storage_is_locked(
    make_fleet: MakeFleet, how: tuple[str, ...]
) -> None:
    here = make_fleet(lease="20s")
    worker = here.worker("-c", "1", *how)
    here.enqueue("nap", 60)
    await busy(here)
    with quiet(lock_file(here.database)):
        await here.signal(worker, signal.SIGTERM)
        await here.signal(worker, signal.SIGTERM)

        assert worker.wait(5) == 0


async def test_a_worker_that_waits_for_a_locked_storage_to_open_obeys_signals(make_fleet: MakeFleet) -> None:
    here = make_fleet()
    await here.storage.open()
    with quiet(lock_file(here.database)):
        worker = here.alone("--log-level", "info")
        await here.said(") starts: ")
        await here.signal(worker, signal.SIGTERM)
        await here.signal(worker, signal.SIGTERM)

        assert worker.wait(5) in (0, 128 + signal.SIGTERM)


async def test_a_thread_that_does_not_end_does_not_delay_its_workers_stop(make_fleet: MakeFleet) -> None:
    here = make_fleet(lease="20s")
    worker = here.alone("-c", "1", "--drain", "0s")
    (ref,) = here.enqueue("blocking", 60)
    await busy(here)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(8) == 0
    (detail,) = await here.details([ref])
    # Due again only when the process, and with it the thread, has surely ended.
    assert (detail.job.state, detail.job.releases) == (State.DELAYED, 1)


async def test_children_that_cannot_start_are_not_started_for_ever(make_fleet: MakeFleet) -> None:
    here = make_fleet()
    done = here.run("worker", "fleet_app:nothing", "--processes", "2")

    assert done.returncode == 2
    assert "nothing" in done.stderr


async def test_an_event_is_handled_once_in_one_of_many_workers(make_fleet: MakeFleet) -> None:
    here = make_fleet()
    for _ in range(3):
        here.worker("-c", "2")
    refs = here.enqueue("quick", 1, times=50)

    async def heard() -> bool:
        return len([line for line in here.lines() if line.what == "heard"]) >= len(refs)

    await here.until(heard, within=20)
    ids = [line.id for line in here.lines() if line.what == "heard"]
    assert sorted(ids) == sorted(ref.id for ref in refs)


async def test_the_handler_log_and_the_history_agree_after_many_kills(make_fleet: MakeFleet) -> None:
    here = make_fleet()
    here.worker("--processes", "3", "-c", "4")
    refs = here.enqueue("nap", 0.2, times=300)
    killed: list[int] = []
    for _ in range(4):
        killed.append((await busy(here, besides=killed))[0])
        os.kill(killed[-1], signal.SIGKILL)

    async def completed() -> bool:
        return await here.count(State.COMPLETED) == len(refs)

    await here.until(completed, within=60)
    lines_of = by_job(here.lines())
    for detail in await here.details(refs):
        runs = {run.number: run for run in detail.runs}
        for line in lines_of[detail.job.id]:
            if line.what in ("start", "end"):
                assert runs[line.run].fence == line.fence
                if line.run == 1:
                    # The run after a crash is in quarantine: in an isolated process, under the worker's name.
                    assert runs[line.run].pid == line.pid
        assert [run.ended for run in detail.runs].count("completed") == 1
