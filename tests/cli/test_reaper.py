"""`tenure reaper`: a process that recovers jobs and runs none."""

import signal
import subprocess
import sys

import pytest

from tests.cli.terminal import EVERYWHERE, Terminal

MORTAL = """
import asyncio, os, sys
from tenure.core.job import Owner
from tenure.storage.urls import locate
from tenure.storage.protocol import ClaimRequest

asyncio.run(locate(sys.argv[1]).exchange(Owner("0123456789abcdef", "mortal"), (), ClaimRequest(("default",), 1)))
os._exit(1)
"""


@pytest.mark.system
@pytest.mark.parametrize("election", [(), ("--no-election",)])
def test_a_reaper_recovers_jobs_of_a_dead_worker_and_exits_on_a_signal(
    there: Terminal, election: tuple[str, ...]
) -> None:
    job = there.enqueue("add", 1, 2)
    subprocess.run([sys.executable, "-c", MORTAL, there.url], check=False)
    # The term is long, so that the reaper keeps it on a busy machine: one that lost it does not report recoveries.
    timing = ("--sweep", "50ms", "--grace", "50ms", "--leader-ttl", "10s")
    with there.start("reaper", *timing, *election) as process:
        assert process.stderr is not None
        messages: list[str] = []
        for line in process.stderr:
            messages.append(line)
            if "recovered" in line:
                process.send_signal(signal.SIGTERM)

    text = "".join(messages)
    assert process.returncode == 0
    assert ("is now the leader" in text) is not bool(election)
    assert ("has lost the leadership: resigned" in text) is not bool(election)
    assert f"recovered job {job} of task add in queue default: run 1 stalled (process_died)" in text
    assert there.read("jobs", "show", job)["state"] == "waiting"


SCHEDULED = """
from tenure import Tenure

app = Tenure()

@app.cron("0 4 * * *", name="nightly")
@app.task(name="report")
async def report() -> None: ...
"""


@pytest.mark.system
@EVERYWHERE
def test_a_reaper_puts_the_schedules_of_its_app_into_the_storage(there: Terminal) -> None:
    there.write("scheduled.py", SCHEDULED)
    with there.start("reaper", "scheduled:app") as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "sweeps" in line:
                process.send_signal(signal.SIGTERM)

    assert process.returncode == 0
    assert [schedule["name"] for schedule in there.read("schedules", "list")] == ["nightly"]


LISTENING = """
from tenure import Tenure, JobStalled

app = Tenure()

@app.task(name="add")
def add(a: int, b: int) -> int:
    return a + b

@app.on(JobStalled)
def stalled(event: JobStalled) -> None:
    print("heard", event.id, event.owner, event.reason, flush=True)
"""


@pytest.mark.system
def test_event_handlers_of_the_app_get_the_recoveries_of_its_reaper(there: Terminal) -> None:
    there.write("listening.py", LISTENING)
    job = there.enqueue("add", 1, 2)
    subprocess.run([sys.executable, "-c", MORTAL, there.url], check=False)
    with there.start("reaper", "listening:app") as process:
        assert process.stdout is not None
        heard = process.stdout.readline().split()
        process.send_signal(signal.SIGTERM)

    assert process.returncode == 0
    assert heard == ["heard", job, "0123456789abcdef", "process_died"]


HANGING = """
import asyncio
import time

from tenure import Tenure, LeadershipAcquired

app = Tenure()

def plain(event: LeadershipAcquired) -> None:
    print("heard", flush=True)
    time.sleep(3600)

async def coroutine(event: LeadershipAcquired) -> None:
    print("heard", flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue

app.on(LeadershipAcquired)({handler})
"""


@pytest.mark.system
@pytest.mark.parametrize("handler", ["plain", "coroutine"])
def test_a_reaper_ends_though_a_handler_of_its_app_never_ends(there: Terminal, handler: str) -> None:
    there.write("hanging.py", HANGING.replace("{handler}", handler))
    with there.start("reaper", "hanging:app") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "heard\n"
        process.send_signal(signal.SIGTERM)
        try:
            # It waits 2 s for handlers, as long for those that it has cancelled, and 1 s to resign.
            assert process.wait(15) == 0
        finally:
            process.kill()
