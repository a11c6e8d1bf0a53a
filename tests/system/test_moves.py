"""Jobs move between all pairs of storages, although the mover is killed after each of its steps."""

import asyncio
import signal
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest

from tenure.clock import SECOND
from tenure.core.job import Owner
from tenure.core.lifecycle import State
from tenure.core.schedule import Schedule
from tenure.errors import StorageMovedError
from tenure.ops.move import Move
from tenure.storage.protocol import ClaimRequest, DeleteJob, PutSchedule, Query, Storage, Tick
from tenure.storage.urls import locate
from tenure_testing.conformance.helpers import ONCE, RAISED, new_job, settled

KINDS = ("sqlite", "redis", "cluster", "postgres")
OWNER = Owner("00000000000a11ce", "a test")
QUEUES = ("mail", "reports")
KILLS = (
    # Both queues are marked.
    ("marked", 2),
    ("settings", 1),
    ("received", 1),
    ("deleted", 1),
    ("received", 2),
    ("deleted", 2),
    ("schedule_put", 1),
    ("schedule_removed", 1),
)


@pytest.fixture
def urls(tmp_path: Path, redis_url: str, cluster_url: str, postgres_url: str) -> dict[str, str]:
    """Return the address of an empty storage of each kind."""
    sqlite = f"sqlite:///{tmp_path / 'tenure.db'}"
    return {"sqlite": sqlite, "redis": redis_url, "cluster": f"{cluster_url}&partitions=3", "postgres": postgres_url}


@pytest.mark.parametrize(("source", "target"), [*permutations(KINDS, 2)])
def test_mover_killed_after_each_step_loses_and_doubles_nothing(urls: dict[str, str], source: str, target: str) -> None:
    asyncio.run(_moved(urls[source], urls[target]))


async def _moved(source_url: str, target_url: str) -> None:
    source, target = locate(source_url), locate(target_url)
    await source.open()
    await target.open()
    try:
        before = await _filled(source)
        schedule = (await source.survey()).schedules[0]
        ran: list[str] = []
        for step, times in KILLS:
            code = await asyncio.to_thread(_run, source_url, target_url, step, times)
            assert code == -signal.SIGKILL, (step, times)
            # The jobs that can run in the target run, and their records are deleted. None can run in the source.
            ran += await _worked(target, room=5)
            assert await _worked(source, room=5) == []
        report = await Move(source, target).run()
        assert report.complete
        survey = await target.survey()
        assert [(one.name, one.last_tick, one.next_tick) for one in survey.schedules] == [
            (schedule.name, schedule.last_tick, schedule.next_tick)
        ]
        assert (await source.survey()).schedules == ()
        assert (await source.find(Query(limit=1000))).jobs == ()
        left = {job.ref: job for job in (await target.find(Query(limit=1000))).jobs}
        for queue in QUEUES:
            assert sum(ref.queue == queue and job.state is State.FAILED for ref, job in left.items()) == 5
        ran += await _worked(target, room=1000)
        assert sorted(ran) == sorted(job for job, state in before.items() if state is State.WAITING)
        delayed = [job for job, state in before.items() if state is State.DELAYED]
        rest = [job.id for job in (await target.find(Query(states=(State.DELAYED,), limit=1000))).jobs]
        assert sorted(rest) == sorted(delayed)
        with pytest.raises(StorageMovedError) as refused:
            await source.enqueue([new_job("late", queue=QUEUES[0])])
        assert refused.value.moved_to == target.url
    finally:
        await source.close()
        await target.close()


async def _filled(storage: Storage) -> dict[str, State]:
    """Give a storage jobs and a schedule; return the state of each job."""
    states: dict[str, State] = {}
    for queue in QUEUES:
        ids = [f"{queue}-failed-{number}" for number in range(5)]
        await storage.enqueue([new_job(id_, queue=queue, policy=ONCE) for id_ in ids])
        answer = await storage.exchange(OWNER, order=ClaimRequest((queue,), 5))
        await storage.exchange(OWNER, [settled(lease, RAISED) for lease in answer.leases])
        states |= dict.fromkeys(ids, State.FAILED)
        waiting = [f"{queue}-waiting-{number:03}" for number in range(120)]
        delayed = [f"{queue}-delayed-{number:03}" for number in range(5)]
        await storage.enqueue([new_job(id_, queue=queue) for id_ in waiting])
        await storage.enqueue([new_job(id_, queue=queue, delay=3600 * SECOND) for id_ in delayed])
        states |= dict.fromkeys(waiting, State.WAITING) | dict.fromkeys(delayed, State.DELAYED)
    now = (await storage.survey()).now
    tick = new_job("", queue=QUEUES[0], payload=b"[]")
    schedule = Schedule(
        name="nightly", job=tick, every=3600 * SECOND, created=now, last_tick=now, next_tick=now + SECOND
    )
    await storage.plan([PutSchedule(schedule)])
    await storage.plan([Tick("nightly", now, now + SECOND, now + 3600 * SECOND)])
    return states


async def _worked(storage: Storage, *, room: int) -> list[str]:
    """Run up to `room` waiting jobs, and delete their records, as retention does; return their ids."""
    ran: list[str] = []
    while len(ran) < room:
        answer = await storage.exchange(OWNER, order=ClaimRequest(QUEUES, min(100, room - len(ran))))
        if not answer.leases:
            break
        await storage.exchange(OWNER, [settled(lease) for lease in answer.leases])
        await storage.revise([DeleteJob(lease.ref) for lease in answer.leases])
        ran += [lease.ref.id for lease in answer.leases]
    return ran


def _run(source: str, target: str, step: str, times: int) -> int:
    command = [sys.executable, "-m", "tests.system.move_script", source, target, step, str(times)]
    return subprocess.run(command, timeout=60, check=False).returncode
