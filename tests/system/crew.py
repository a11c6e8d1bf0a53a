"""The app of the system tests: handlers that keep a diary of their own, outside the queue."""

import asyncio
import os
import signal
import time

from holdfast import Holdfast, JobCompleted, Stall, TaskOptions, Timing, current_job

app = Holdfast(
    timing=Timing(
        lease=os.environ.get("CREW_LEASE", "2s"),
        sweep=os.environ.get("CREW_SWEEP", "400ms"),
        grace=os.environ.get("CREW_GRACE", "600ms"),
    ),
    defaults=TaskOptions(stall=Stall(max_count=int(os.environ.get("CREW_MAX_COUNT", "1000")))),
)

_diary = os.open(os.environ["CREW_DIARY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def note(what: str) -> None:
    """Write one line; a single write of an appending descriptor is whole or absent, whatever kills us."""
    job = current_job()
    os.write(_diary, f"{what} {job.id} {job.run} {job.fence} {os.getpid()} {time.time_ns() // 1000}\n".encode())


def heard(event: JobCompleted) -> None:
    """Note that this process was told of a completed job."""
    os.write(_diary, f"heard {event.id} {event.run} 0 {os.getpid()} {time.time_ns() // 1000}\n".encode())


if "CREW_DEAF" not in os.environ:
    app.on(JobCompleted)(heard)


@app.task
async def quick(number: int) -> int:
    note("start")
    await asyncio.sleep(0)
    note("end")
    return number


@app.task
async def nap(seconds: float) -> str:
    note("start")
    await asyncio.sleep(seconds)
    note("end")
    return "rested"


@app.task(on_unreachable="stop")
async def careful(seconds: float) -> str:
    """Rest, and note what cuts it short."""
    note("start")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note("stop")
        raise
    note("end")
    return "rested"


@app.task
async def patient(seconds: float) -> None:
    """Rest, unless it is cancelled."""
    note("start")
    try:
        await asyncio.sleep(seconds)
    finally:
        note("end")


@patient.on_cancel
async def tidy(seconds: float) -> None:
    note("tidied")


@app.task
def blocking(seconds: float) -> str:
    note("start")
    time.sleep(seconds)
    note("end")
    return "rested"


@app.task
async def hog(seconds: float) -> str:
    """Block the event loop, as a careless coroutine does."""
    note("start")
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point
    note("end")
    return "done"


@app.task
def spawning(seconds: float) -> str:
    """Leave a grandchild behind that writes on."""
    import subprocess
    import sys

    note("start")
    # Bounded, so that one which escapes does not outlive the tests.
    code = "import sys, time\nfor _ in range(1500): open(sys.argv[1], 'a').write('x'); time.sleep(0.02)"
    subprocess.Popen([sys.executable, "-c", code, os.environ["CREW_DIARY"] + ".grandchild"])
    time.sleep(seconds)
    return "left"


@app.task
async def vanish() -> None:
    """End the process that runs it as if all were well."""
    note("start")
    os._exit(0)


@app.task
async def suicide() -> None:
    """Kill the process that runs it."""
    note("start")
    os.kill(os.getpid(), signal.SIGKILL)
