"""A child in the care of its supervisor: whose death is whose, and what can be told of it by what it has left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.clock import SystemClock
from tenure.supervisor.child import ChildProcess
from tenure.supervisor.kill_reason import KillReason

pytestmark = pytest.mark.system

SENTENCE = KillReason("loop_blocked", 3.0, 2.0)

SCRIBBLE = """
import json, mmap, os, struct, time
told = json.loads(os.environ["TENURE_CHILD"].partition(":")[2])
memory = mmap.mmap(told["slate"], 0)
memory[:] = struct.pack("q" if {number!r} == "1" else "d", {number}) * (len(memory) // 8)
time.sleep(600)
"""
"""A child that writes over its slate: what a wild pointer of a library may do before it kills the process."""

CLEARS_AWAY = """
import asyncio, sys, time
from tenure.clock import SystemClock
from tenure.supervisor.child import ChildProcess

async def main():
    ward = ChildProcess.started([sys.executable, "-c", sys.argv[1]], "feed", siblings=False, clock=SystemClock())
    while not ward.slate.slots if sys.argv[2] == "1" else not ward.slate.turned_at:
        await asyncio.sleep(0.01)
    ward.process.send(9)
    await ward.ended(print)
    print(ward.remains(7.0))
    ward.clear_away()
    print("still there")

asyncio.run(main())
"""


@pytest.fixture
def clock() -> SystemClock:
    return SystemClock()


def started(script: str, clock: SystemClock) -> ChildProcess:
    return ChildProcess.started([sys.executable, "-c", script], "feedface", siblings=False, clock=clock)


@pytest.fixture
def wards() -> Iterator[list[ChildProcess]]:
    made: list[ChildProcess] = []
    yield made
    for ward in made:
        ward.clear_away()


async def test_a_child_that_lives_is_killed_for_the_first_reason_given(
    wards: list[ChildProcess], clock: SystemClock
) -> None:
    wards.append(ward := started("import time; time.sleep(600)", clock))
    ward.kill(SENTENCE)
    ward.kill(KillReason("leaving", 1.0, 0.0))

    assert (await ward.ended(print)).signal == signal.SIGKILL
    assert ward.killed_for == SENTENCE


async def test_what_a_child_told_of_its_runs_is_as_old_as_its_last_beat_that_was_answered(
    wards: list[ChildProcess], clock: SystemClock
) -> None:
    wards.append(ward := started("import time; time.sleep(600)", clock))
    untold = ward.workplace(5.0).report_age
    ward.slate.told(5.0)
    # Its thread still looks whether its loop turns, while the storage is out of reach.
    ward.slate.beaten(9.5, 1 << 20)

    assert untold is None
    assert ward.workplace(10.0).report_age == 5_000_000


async def test_a_child_that_has_died_by_itself_is_not_killed_though_nobody_has_heard_of_its_death_yet(
    wards: list[ChildProcess], clock: SystemClock
) -> None:
    wards.append(ward := started("import os; os.kill(os.getpid(), 9)", clock))
    # This loop hears of nothing meanwhile.
    until = time.monotonic() + 20
    while Path(f"/proc/{ward.process.pid}").exists() and time.monotonic() < until:  # noqa: ASYNC240 - of the kernel
        time.sleep(0.01)  # noqa: ASYNC251 - that is the point
    ward.kill(SENTENCE)

    assert (await ward.ended(print)).signal == signal.SIGKILL
    assert ward.killed_for is None


@pytest.mark.parametrize("number", ["1", "float('nan')", "float('inf')", "-1.0", "1e300"])
def test_what_a_handler_has_written_over_is_not_believed_and_nobody_is_killed_by_it(number: str) -> None:
    # In a session of its own: what is at stake is the group of the supervisor itself.
    done = subprocess.run(
        [sys.executable, "-c", CLEARS_AWAY, SCRIBBLE.format(number=number), number],
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        env=os.environ,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("still there\n")
