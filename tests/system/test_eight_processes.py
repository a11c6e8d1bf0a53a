"""Eight worker processes on one SQLite file, killed at random: compares the handlers' log with the job records."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import pytest

from tenure.core.job import FOREVER, JobDetail, Ref, RunRecord
from tenure.core.lifecycle import State
from tenure.core.retention import KeepRule, RetentionRules
from tenure.storage.protocol import Settings, Target
from tests.system.worker_fleet import Line, WorkerFleet, by_job

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(360)]

PROCESSES = 8

LONG = "20s"
"""The lease of tests in which each stall counts: on a busy machine a short one expires though no process died."""


async def work_off(
    here: WorkerFleet, refs: list[Ref], *, kills: int, seed: int, more: Callable[[], list[Ref]]
) -> list[int]:
    """Let eight processes run the jobs, and kill busy ones meanwhile; return the killed pids.

    `more` enqueues further jobs: the processes may have run all of `refs` before the test has looked often enough, and
    each kill must hit a process that runs a job. They are added to `refs`.
    """
    rng, planned = Random(seed), len(refs)
    here.worker("--processes", str(PROCESSES), "-c", "5")
    killed: list[int] = []
    over = State.COMPLETED, State.FAILED

    async def finished() -> bool:
        done = await here.count(*over)
        # A kill is due each time this much more work has been done: by state, not by time.
        if len(killed) < kills and done >= planned * (len(killed) + 1) // (kills + 2):
            held = {pid: await here.active(pid) for pid in await here.pids() if pid not in killed}
            holding = [pid for pid, jobs in held.items() if jobs]
            if holding:
                # A process with a job that has stalled before goes first: the second death is what the test is about.
                rng.shuffle(holding)
                holding.sort(key=lambda pid: -sum(job.stalls for job in held[pid]))
                killed.append(holding[0])
                os.kill(killed[-1], signal.SIGKILL)
            elif done == len(refs):
                refs.extend(more())
        return done == len(refs) and len(killed) == kills

    await here.until(finished, within=250)
    return killed


def quarantined(runs: Sequence[RunRecord], number: int) -> bool:
    """Return whether a run was to have an isolated process, below that of the recorded worker.

    It has one if the run before was cut off with its process. A run that had not begun, or was ended by another run of
    its process, is released, and leaves that unchanged.
    """
    before = [run.ended for run in runs if run.number < number and run.ended != "released"]
    return bool(before) and before[-1] == "stalled"


def check(details: list[JobDetail], lines_of: dict[str, list[Line]]) -> None:
    """Compare the records with what the handlers wrote."""
    for detail in details:
        runs = {run.number: run for run in detail.runs}
        lines = lines_of.get(detail.job.id, [])
        for line in lines:
            run = runs[line.run]
            assert run.fence == line.fence, detail.job.id
            assert (run.pid == line.pid) != quarantined(detail.runs, line.run), detail.job.id
        ended = Counter(run.ended for run in detail.runs)
        assert ended["stalled"] == detail.job.stalls
        assert ended["completed"] == (detail.job.state is State.COMPLETED)
        assert ended.total() == detail.job.starts == len(detail.runs)
        for run in detail.runs:
            if run.ended == "completed":
                assert {line.what for line in lines if line.run == run.number} >= {"start", "end"}


async def test_every_job_completes_though_processes_are_killed_at_random(
    make_fleet: Callable[..., WorkerFleet],
) -> None:
    here = make_fleet(max_count="1000")
    # The later batches may exceed the 10,000 that a queue keeps, and all jobs are to be checked.
    await here.storage.tune(Target("queue", "default"), Settings(retention=RetentionRules(completed=KeepRule(FOREVER))))
    refs = here.enqueue("quick", 7, times=8_000)
    killed = await work_off(here, refs, kills=8, seed=1, more=lambda: here.enqueue("quick", 7, times=2_000))
    details = await here.details(refs)

    assert {detail.job.state for detail in details} == {State.COMPLETED}
    check(details, by_job([line for line in here.lines() if line.what != "heard"]))
    assert sum(detail.job.stalls for detail in details) >= len(killed) // 2
    assert "locked" not in here.log()


async def test_only_jobs_that_may_have_caused_two_deaths_fail(
    make_fleet: Callable[..., WorkerFleet],
) -> None:
    here = make_fleet(max_count="1", lease=LONG)
    # Of different lengths, or workers take five at a time in step: one that has only five in quarantine spares none.
    naps = [(0.1,), (0.17,), (0.29,), (0.37,)]
    refs = here.enqueue_in_turns("nap", naps, times=150)
    await work_off(here, refs, kills=12, seed=2, more=lambda: here.enqueue_in_turns("nap", naps, times=25))
    details = await here.details(refs)
    spared = 0

    check(details, by_job([line for line in here.lines() if line.what != "heard"]))
    for detail in details:
        died = [run for run in detail.runs if run.reason == "process_died"]
        # An isolated job did not end the worker of the others, unless the worker had nothing else to do.
        spared += sum(run.ended == "released" for run in died)
        assert detail.job.stalls == sum(run.ended == "stalled" for run in died) <= 2
        assert (detail.job.state is State.FAILED) == (detail.job.stalls == 2)
        assert detail.job.reason == ("crashed" if detail.job.state is State.FAILED else None)
    assert spared


@pytest.mark.fault("W-N19", "W-P9")
async def test_a_poison_job_fails_at_its_second_death_and_all_others_complete(
    make_fleet: Callable[..., WorkerFleet],
) -> None:
    here = make_fleet(max_count="1", lease=LONG)
    (poison,) = here.enqueue("kill_itself")
    here.worker("--processes", "2", "-c", "1")

    async def failed() -> bool:
        return await here.count(State.FAILED) == 1

    await here.until(failed, within=30)
    (detail,) = await here.details([poison])
    assert (detail.job.reason, detail.job.stalls, detail.job.failures) == ("crashed", 2, 0)
    assert [run.detail for run in detail.runs] == ["signal 9 (SIGKILL)"] * 2 or {run.reason for run in detail.runs} == {
        "process_died"
    }
    good = here.enqueue("quick", 1, times=20)

    async def completed() -> bool:
        return await here.count(State.COMPLETED) == len(good)

    await here.until(completed, within=30)
    await asyncio.sleep(0)
