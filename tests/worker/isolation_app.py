"""Handlers for isolated processes; the tests load a copy of this under another name."""

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any

from tenure import (
    Inject,
    Reject,
    Retry,
    RetryLater,
    Snooze,
    Stall,
    TaskOptions,
    Tenure,
    Timing,
    current_job,
)
from tenure.handlers.middleware import Proceed, RunCall


@asynccontextmanager
async def lifespan(app: Tenure) -> AsyncGenerator[dict[str, int]]:
    if os.environ.get("SLOT_APP_FIT_ONLY_IN", str(os.getpid())) != str(os.getpid()):
        raise ConnectionError("no database")
    if os.environ.get("SLOT_APP_QUICK_ONLY_IN", str(os.getpid())) != str(os.getpid()):
        await asyncio.sleep(3.5)
    yield {"entered_by": os.getpid()}


app = Tenure(
    "memory://",
    timing=Timing.fast(),
    defaults=TaskOptions(run="process", retry=Retry(max_attempts=1), stall=Stall(max_count=0)),
    lifespan=lifespan,
)


@app.middleware
async def tripled(call: RunCall, proceed: Proceed) -> Any:
    value = await proceed()
    return value * 3 if call.task.endswith(".plus") else value


def connection() -> Generator[str]:
    yield f"connection of {os.getpid()}"


@app.task
def plus(a: int, b: int) -> int:
    return a + b


@app.task
async def logging_on(seconds: float) -> None:
    """Log at once, and again once this process runs no job any more."""
    try:
        raise ValueError("shown")
    except ValueError:
        logging.getLogger("shop.stock").exception("it is %s", "low", extra={"row": 3})
    asyncio.get_running_loop().call_later(seconds, logging.getLogger("shop.stock").warning, "still low")


@app.task
async def where() -> tuple[int, int, str]:
    return os.getpid(), current_job().state["entered_by"], current_job().id


@app.task
def provided(number: int, given: str = Inject(connection)) -> str:
    return f"{number}: {given}"


@app.task
def telling() -> None:
    current_job().progress(0.5, "half")
    current_job().log.info("so far", seen="yes")


@app.task
def raising(how: str) -> None:
    match how:
        case "error":
            raise ValueError("too bad")
        case "reject":
            raise Reject("never")
        case "snooze":
            raise Snooze("1h")
        case "later":
            raise RetryLater("1h")
        case _:
            sys.exit(3)


@app.task
async def dying(how: str) -> None:
    current_job().log.info("about to die")
    # All that it sends arrives within a moment.
    await asyncio.sleep(0.3)
    match how:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(0)
        case _:
            os.write(_line(), b"\xff\xff\xff\xffgarbage" if how == "garbage" else b"\0\0\0\3abc")
            await asyncio.sleep(60)


def _line() -> int:
    """Return the descriptor of this process's channel, which a handler must not use."""
    return next(number for number in map(int, os.listdir("/proc/self/fd")) if number > 2 and _is_line(number))


def _is_line(number: int) -> bool:
    try:
        # asyncio's own pair of sockets is not blocking.
        return os.readlink(f"/proc/self/fd/{number}").startswith("socket:") and os.get_blocking(number)
    except OSError:
        return False


@app.task
async def blocking(seconds: float) -> None:
    current_job().progress(0.5)
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point


left_behind: list["asyncio.Task[None]"] = []


@app.task
async def cancelling_all(when: str) -> str:
    """Cancel every task of the loop, now or just after this has returned."""

    async def cancel_all(monitor: int) -> None:
        for _ in range(monitor):
            await asyncio.sleep(0)
        for task in asyncio.all_tasks():
            task.cancel()

    if when == "now":
        await cancel_all(0)
        await asyncio.sleep(60)
    left_behind.append(asyncio.create_task(cancel_all(int(when))))
    return "done"


@app.task
async def sleeping(seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.task(timeout="500ms")
async def obeying() -> None:
    await asyncio.sleep(60)


@app.task(timeout="500ms")
async def ignoring() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            current_job().log.info("heard, and going on")


@app.task(timeout="500ms", stall=Stall("1s", max_count=0))
async def deaf_with_a_short_lease() -> None:
    await ignoring.function()


@app.task(timeout="500ms")
def busy() -> None:
    while True:
        time.sleep(0.01)


@app.task(timeout="500ms")
def tidy() -> None:
    while not current_job().cancelled:
        time.sleep(0.01)
    current_job().log.info("tidied up")


@app.task
def endless() -> None:
    current_job().progress(0)
    while True:
        time.sleep(0.01)


@app.task
async def cancellable() -> None:
    current_job().progress(0)
    await asyncio.sleep(60)


@cancellable.on_cancel
async def clean_up() -> None:
    await asyncio.sleep(2.5)
    current_job().log.info("cleaned up")


@app.task(heartbeat_timeout="1s")
def silent() -> None:
    current_job().log.info(f"in {os.getpid()}")
    while True:
        time.sleep(0.01)


@app.task(timeout="500ms")
def delegating(path: str) -> None:
    subprocess.run(
        ["/bin/sh", "-c", f'trap "echo ended > {path}; exit" TERM; while :; do sleep 0.05; done'], check=True
    )


@app.task(stall=Stall("1s", max_count=0))
async def last_seen_here() -> None:
    await asyncio.sleep(3)
    os._exit(7)


@app.task(run="auto")
async def by_default() -> int:
    return os.getpid()


@app.task(timeout="500ms", stall=Stall("1s", max_count=0))
async def short() -> None:
    await asyncio.sleep(0.1)


@app.task(heartbeat_timeout="1s", stall=Stall("1s", max_count=0))
async def signing() -> None:
    await asyncio.sleep(0.8)


@app.task(stall=Stall("1s", heartbeat=False, max_count=0))
async def renewing() -> None:
    await asyncio.sleep(0.8)


@app.task(timeout="500ms")
async def ending_by_sigterm() -> None:
    def leave(*_: object) -> None:
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    await ignoring.function()


@app.task(run="auto")
async def dozing(seconds: float) -> tuple[float, float, int]:
    began = time.time()
    await asyncio.sleep(seconds)
    return began, time.time(), os.getpid()


@app.task(run="process", retry=Retry(max_attempts=3, base="0.1s"))
def keeping() -> list[int]:
    """Keep the runs in the job's data, and fail the first time."""
    current_job().data["runs"] = [*current_job().data.get("runs", []), current_job().run]
    current_job().progress({"run": current_job().run})
    if current_job().run == 1:
        raise ValueError("again")
    return list(current_job().data["runs"])
