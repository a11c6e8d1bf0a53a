"""The app of the system tests: its handlers write their own log, outside the queue."""

import asyncio
import contextvars
import ctypes
import errno
import os
import resource
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tenure import JobCompleted, Proceed, Retry, RunCall, Stall, TaskOptions, Tenure, Timing, current_job

if "FLEET_NO_ISOLATION" in os.environ and "tenure.worker.isolation.main" in " ".join(sys.orig_argv):
    raise RuntimeError("this app is of no use in a process of its own")

app = Tenure(
    timing=Timing(
        lease=os.environ.get("FLEET_LEASE", "2s"),
        sweep=os.environ.get("FLEET_SWEEP", "400ms"),
        grace=os.environ.get("FLEET_GRACE", "600ms"),
        max_block=os.environ.get("FLEET_MAX_BLOCK", "10m"),
    ),
    defaults=TaskOptions(stall=Stall(max_count=int(os.environ.get("FLEET_MAX_COUNT", "1000")))),
    outbox=os.environ.get("FLEET_OUTBOX"),
)

if "FLEET_NOFILE" in os.environ:
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(os.environ["FLEET_NOFILE"]), int(os.environ["FLEET_NOFILE"])))

_leaked: list[int] = []

_handler_log = os.open(os.environ["FLEET_HANDLER_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def note(what: str) -> None:
    """Write one line; a single write of an appending descriptor is complete or absent, even after a kill."""
    job = current_job()
    os.write(_handler_log, f"{what} {job.id} {job.run} {job.fence} {os.getpid()} {time.time_ns() // 1000}\n".encode())


def heard(event: JobCompleted) -> None:
    """Note that this process handled the event of a completed job."""
    os.write(_handler_log, f"heard {event.id} {event.run} 0 {os.getpid()} {time.time_ns() // 1000}\n".encode())


if "FLEET_NO_HANDLERS" not in os.environ:
    app.on(JobCompleted)(heard)


def kill_twice(event: JobCompleted) -> None:
    """Kill this process, unless that was done twice before: an event handler that kills its worker."""
    os.write(_handler_log, f"kill {event.id} {event.run} 0 {os.getpid()} {time.time_ns() // 1000}\n".encode())
    if Path(os.environ["FLEET_HANDLER_LOG"]).read_text().count("kill ") <= 2:
        os.kill(os.getpid(), signal.SIGKILL)


if "FLEET_SUBSCRIBER_KILLS" in os.environ:
    app.on(JobCompleted)(kill_twice)


@app.task
async def quick(number: int) -> int:
    note("start")
    await asyncio.sleep(0)
    note("end")
    return number


def _open_all() -> None:
    while True:
        _leaked.append(os.open("/dev/null", os.O_RDONLY))


@app.task(retry=Retry(max_attempts=1))
async def leak_descriptors(left: int, name: str) -> None:
    """Leave this many descriptors free, and complete; free the others once there is a file of that name."""
    note("start")
    try:
        _open_all()
    except OSError:
        for _ in range(left):
            os.close(_leaked.pop())

    def free() -> None:
        while not Path(os.environ["FLEET_HANDLER_LOG"] + name).exists():
            time.sleep(0.05)
        while _leaked:
            os.close(_leaked.pop())

    threading.Thread(target=free, daemon=True).start()


@app.task(retry=Retry(max_attempts=1))
async def exhaust(times: int) -> int:
    """Run out of descriptors in this many runs."""
    note("start")
    if current_job().run <= times:
        _open_all()
    return os.getpid()


@app.task(retry=Retry(max_attempts=1))
async def exhaust_threads() -> int:
    """Allow no further thread in the first run."""
    note("start")
    if current_job().run == 1:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")  # noqa: ASYNC240
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), before[1]))
        try:
            threading.stack_size(256 << 20)
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        finally:
            threading.stack_size(0)
            resource.setrlimit(resource.RLIMIT_AS, before)
    return os.getpid()


@app.task(run="process", retry=Retry(max_attempts=1))
def isolated_exhaust() -> int:
    """Run out of descriptors in the first run, in an isolated process."""
    note("start")
    if current_job().run == 1:
        _open_all()
    return os.getpid()


@app.task
async def nap(seconds: float) -> str:
    note("start")
    await asyncio.sleep(seconds)
    note("end")
    return "rested"


@app.task
async def loop_here() -> str:
    """Return the module of the current event loop."""
    return type(asyncio.get_running_loop()).__module__


@app.task(run="process")
async def isolated_loop() -> str:
    """Return the module of an isolated process's event loop."""
    return type(asyncio.get_running_loop()).__module__


@app.task
async def wait_for_file(name: str) -> None:
    """Wait until there is a file of that name next to the handler log."""
    note("start")
    while not Path(os.environ["FLEET_HANDLER_LOG"] + name).exists():  # noqa: ASYNC110, ASYNC240 - the test creates it
        await asyncio.sleep(0.05)
    note("end")


@app.task(on_unreachable="stop")
async def careful(seconds: float) -> str:
    """Sleep, and note a cancellation."""
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
    """Sleep, unless it is cancelled."""
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


def tick_for(seconds: float) -> None:
    """Note each tenth of a second that this thread is still running; ignore every stop."""
    note("start")
    for _ in range(round(10 * seconds)):
        time.sleep(0.1)
        note("tick")
    note("end")


@app.task(singleton=True, heartbeat_timeout="1s", stall=Stall(max_count=1))
def silent(seconds: float) -> None:
    """Work in a thread, and send no heartbeat."""
    tick_for(seconds)


@app.task(singleton=True)
def guarded(seconds: float) -> None:
    """Work in a thread alone, for as long as it takes."""
    tick_for(seconds)


@app.task(singleton=True, timeout="1s", retry=Retry(max_attempts=2, base="100ms", jitter=0.0))
def overlong(seconds: float) -> None:
    """Work in a thread for longer than allowed."""
    tick_for(seconds)


async def impatient(call: RunCall, proceed: Proceed) -> object:
    """Wait for half a second, even if the handler continues in its thread."""
    async with asyncio.timeout(0.5):
        return await proceed()


@app.task(singleton=True, middleware=[impatient], retry=Retry(max_attempts=2, base="100ms", jitter=0.0))
def outrun(seconds: float) -> None:
    """Work in a thread for longer than its middleware waits."""
    tick_for(seconds)


@app.task(run="process")
def isolated(seconds: float) -> str:
    """Sleep in an isolated process."""
    note("start")
    time.sleep(seconds)
    note("end")
    return "rested"


@app.task(run="process")
def kill_worker() -> None:
    """Kill the worker that this process belongs to."""
    note("start")
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


@app.task
async def block_loop(seconds: float) -> str:
    """Block the event loop, as a careless coroutine does."""
    note("start")
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point
    note("end")
    return "done"


@app.task
async def spin(seconds: float) -> str:
    """Block the event loop by work that any other thread may interrupt."""
    note("start")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    note("end")
    return "dizzy"


def _hold_gil(seconds: float) -> None:
    # A call of a PyDLL library does not release the interpreter. A wait for a lock that the caller itself holds is not
    # interrupted by signals.
    library, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(256)
    whole, rest = divmod(time.time_ns() + round(seconds * 1e9), 10**9)
    library.pthread_mutex_init(lock, None)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_timedlock(lock, (ctypes.c_long * 2)(whole, rest))


@app.task
async def hold_gil(seconds: float) -> str:
    """Hold the interpreter itself, on the loop."""
    note("start")
    _hold_gil(seconds)
    note("end")
    return "let go"


@app.task
def hold_gil_plain(seconds: float) -> str:
    """Hold the interpreter itself, from a thread."""
    note("start")
    _hold_gil(seconds)
    note("end")
    return "let go"


@app.task(timeout=0.5)
async def hold_gil_limited(seconds: float) -> str:
    """Hold the interpreter itself for longer than the run may take."""
    note("start")
    _hold_gil(seconds)
    note("end")
    return "let go"


@app.task
def spawning(seconds: float) -> str:
    """Leave a grandchild behind that continues to write."""
    import subprocess
    import sys

    note("start")
    # Bounded, so that one which escapes does not outlive the tests.
    code = "import sys, time\nfor _ in range(1500): open(sys.argv[1], 'a').write('x'); time.sleep(0.02)"
    subprocess.Popen([sys.executable, "-c", code, os.environ["FLEET_HANDLER_LOG"] + ".grandchild"])
    time.sleep(seconds)
    return "left"


@app.task(run="process")
def isolated_spawning(seconds: float) -> None:
    """Leave one behind in an isolated process."""
    import subprocess

    note("start")
    subprocess.run(["sleep", str(seconds)], check=False)


@app.task
async def starve(seconds: float) -> str:
    """In the first run, prevent new connections of this process to a storage, and close the app's."""
    note("start")
    if current_job().run > 1:
        return "had enough"

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENETUNREACH, "this process has no network")

    for place in (socket.socket, sqlite3):
        setattr(place, "connect", refuse)  # noqa: B010 - not a method of the type
    await app.close()
    await asyncio.sleep(seconds)
    note("end")
    return "starved"


@app.task
async def exit_silently() -> None:
    """End the process that runs it with exit status 0."""
    note("start")
    os._exit(0)


@app.task
async def kill_itself() -> None:
    """Kill the process that runs it."""
    note("start")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(run="process")
def crunch(seconds: float) -> int:
    """Compute, holding the interpreter all the time."""
    note("start")
    rounds, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        rounds += sum(range(1000))
    note("end")
    return rounds


@app.task(run="process", stall=Stall(max_count=0))
async def isolated_death(how: str) -> None:
    """End the isolated process that runs it."""
    note("start")
    match how:
        case "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "os._exit":
            os._exit(0)
        case _:
            sys.exit(3)


@app.task(run="process", timeout="1s", stall=Stall("8s"), retry=Retry(max_attempts=1))
def endless() -> None:
    """Compute for ever, and ignore every stop."""
    note("start")
    while True:
        sum(range(1000))


_ignoring = Path(os.environ["FLEET_HANDLER_LOG"] + ".ignore_sigterm")


@app.task
async def block_meanwhile(how: str, seconds: float) -> None:
    """Once a job that ignores SIGTERM is running, block the event loop, or hold the interpreter."""
    while not _ignoring.exists():  # noqa: ASYNC110, ASYNC240 - it is in another process
        await asyncio.sleep(0.01)
    note("start")
    if how == "block_loop":
        time.sleep(seconds)  # noqa: ASYNC251 - that is the point
    else:
        _hold_gil(seconds)
    note("end")


@app.task(run="process", timeout="2s", stall=Stall("8s"), retry=Retry(max_attempts=1))
async def ignore_sigterm() -> None:
    """Note each SIGTERM and each cancellation, and continue."""
    # The signal arrives in the loop's current context.
    here = contextvars.copy_context()

    def terminated(number: int, frame: object) -> None:
        here.copy().run(note, "term")

    signal.signal(signal.SIGTERM, terminated)
    note("start")
    _ignoring.touch()  # noqa: ASYNC240 - in a process of its own
    while True:
        try:
            await asyncio.sleep(0.05)
            note("alive")
        except asyncio.CancelledError:
            note("cancelled")


@app.task(timeout="1s", stall=Stall("8s"), retry=Retry(max_attempts=1))
def endless_thread(seconds: float) -> None:
    """Continue in a thread long after the timeout."""
    note("start")
    time.sleep(seconds)
    note("end")


@app.task(timeout="1s", stall=Stall("8s"), retry=Retry(max_attempts=1))
async def endless_loop(seconds: float) -> str:
    """Swallow every cancellation, and return a result long after the timeout."""
    note("start")
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue
    current_job().progress(1.0)
    note("end")
    return "late"


@app.task(stall=Stall(max_count=1))
async def poison() -> None:
    """Kill the process that runs it a moment after it began."""
    note("start")
    await asyncio.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(stall=Stall(max_count=1))
async def first_dies(number: int) -> None:
    """Be killed if this is the first of them."""
    note("start")
    if number == 0:
        os.kill(os.getpid(), signal.SIGKILL)


@app.task
def crash() -> None:
    """Read memory that does not belong to the process."""
    note("start")
    ctypes.string_at(0)


@app.task
async def exits() -> None:
    """Exit as scripts do."""
    note("start")
    sys.exit(3)


@app.task
def exits_in_thread() -> None:
    """The same in a thread, where it could end only that thread."""
    note("start")
    sys.exit(3)


@app.task
def allocate(megabytes: int) -> int:
    """Allocate memory without end."""
    note("start")
    taken = [bytearray(1 << 20) for _ in range(megabytes)]
    return len(taken)


@app.task
async def long_work(seconds: float) -> None:
    """Work for a while, and report the progress."""
    job = current_job()
    job.progress(0.25, "a quarter of it")
    job.log.info("begun with care", order="17")
    note("start")
    await asyncio.sleep(seconds)
    note("end")


hoard: list[bytes] = []


@app.task
async def leak(megabytes: int, seconds: float) -> None:
    """Keep some memory for ever, and sleep."""
    note("start")
    hoard.append(b"x" * (megabytes << 20))
    await asyncio.sleep(seconds)
    note("end")


@app.task(retry=Retry(max_attempts=1))
async def break_loop(how: str) -> None:
    await _break(how)


@app.task(retry=Retry(max_attempts=3, base="200ms"))
async def break_loop_again() -> None:
    await _break("cancel")


async def _break(how: str) -> None:
    """Do something to the event loop that ends more than this run."""
    note("start")
    loop = asyncio.get_running_loop()

    def cancel_all() -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()

    def elsewhere(call: Callable[[], object]) -> None:
        # A thread like this does not have the job's context.
        thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(call, context=contextvars.Context()))
        thread.start()
        thread.join()

    async def leave() -> None:
        sys.exit(0)

    match how:
        case "cancel":
            cancel_all()
        case "cancel from a thread":
            await asyncio.to_thread(loop.call_soon_threadsafe, cancel_all)
        case "cancel, and return":
            cancel_all()
            return
        case "cancel unknown":
            elsewhere(cancel_all)
        case "stop":
            loop.stop()
        case "stop unknown":
            elsewhere(loop.stop)
        case _:
            task = asyncio.create_task(leave())
            await asyncio.wait({task})
    await asyncio.sleep(30)
