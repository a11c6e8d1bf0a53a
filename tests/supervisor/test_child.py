"""A child and its supervisor: why it ended, and what its scoreboard still shows."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.clock import SystemClock
from tenure.supervisor.child import ChildProcess, KillReason

pytestmark = pytest.mark.system

REASON = KillReason("loop_blocked", 3.0, 2.0)

SCRIBBLE = """
import json, mmap, os, struct, time
config = json.loads(os.environ["TENURE_CHILD"].partition(":")[2])
memory = mmap.mmap(config["scoreboard"], 0)
memory[:] = struct.pack("q" if {number!r} == "1" else "d", {number}) * (len(memory) // 8)
time.sleep(600)
"""
"""A child that overwrites its scoreboard, as a wild pointer in a library may do before it kills the process."""

CLEANS_UP = """
import asyncio, sys, time
from tenure.clock import SystemClock
from tenure.supervisor.child import ChildProcess

async def main():
    child = ChildProcess.start([sys.executable, "-c", sys.argv[1]], "feed", siblings=False, clock=SystemClock())
    while not child.scoreboard.isolated_pids if sys.argv[2] == "1" else not child.scoreboard.turned_at:
        await asyncio.sleep(0.01)
    child.process.send_signal(9)
    await child.wait(print)
    print(child.last_state(7.0))
    child.clean_up()
    print("still there")

asyncio.run(main())
"""


@pytest.fixture
def clock() -> SystemClock:
    return SystemClock()


def started(script: str, clock: SystemClock) -> ChildProcess:
    return ChildProcess.start([sys.executable, "-c", script], "feedface", siblings=False, clock=clock)


@pytest.fixture
def children() -> Iterator[list[ChildProcess]]:
    made: list[ChildProcess] = []
    yield made
    for child in made:
        child.clean_up()


async def test_a_child_that_lives_is_killed_for_the_first_reason_given(
    children: list[ChildProcess], clock: SystemClock
) -> None:
    children.append(child := started("import time; time.sleep(600)", clock))
    child.kill(REASON)
    child.kill(KillReason("leaving", 1.0, 0.0))

    assert (await child.wait(print)).signal == signal.SIGKILL
    assert child.kill_reason == REASON


async def test_the_report_age_counts_from_the_last_answered_beat(
    children: list[ChildProcess], clock: SystemClock
) -> None:
    children.append(child := started("import time; time.sleep(600)", clock))
    untold = child.workplace(5.0).report_age
    child.scoreboard.reported(5.0)
    # Its thread still checks whether its loop turns, while the storage is unavailable.
    child.scoreboard.beaten(9.5, 1 << 20)

    assert untold is None
    assert child.workplace(10.0).report_age == 5_000_000


async def test_a_child_that_has_exited_is_not_killed_before_its_exit_is_seen(
    children: list[ChildProcess], clock: SystemClock
) -> None:
    children.append(child := started("import os; os.kill(os.getpid(), 9)", clock))
    # This loop does not notice the exit meanwhile.
    until = time.monotonic() + 20
    while Path(f"/proc/{child.process.pid}").exists() and time.monotonic() < until:  # noqa: ASYNC240 - of the kernel
        time.sleep(0.01)  # noqa: ASYNC251 - that is the point
    child.kill(REASON)

    assert (await child.wait(print)).signal == signal.SIGKILL
    assert child.kill_reason is None


@pytest.mark.parametrize("number", ["1", "float('nan')", "float('inf')", "-1.0", "1e300"])
def test_a_corrupt_scoreboard_is_ignored_and_kills_no_process(number: str) -> None:
    # In a session of its own, because a wrong group would be the supervisor's.
    done = subprocess.run(
        [sys.executable, "-c", CLEANS_UP, SCRIBBLE.format(number=number), number],
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        env=os.environ,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("still there\n")
