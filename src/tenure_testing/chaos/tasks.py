"""The app of a chaos test. Workers load it as `tenure_testing.chaos.tasks:app`; producers enqueue with it."""

import asyncio
import os
import threading

from tenure.app import Tenure
from tenure.client.task import Task
from tenure.clock import SystemClock
from tenure.handlers.context import current_job
from tenure.options import Retry, Stall, Timing
from tenure_testing.chaos import blocking
from tenure_testing.chaos.records import HistoryLine, Mark, uptime
from tenure_testing.demo.handler_log import note

QUEUE = "chaos"
HISTORY_VARIABLE = "TENURE_CHAOS_RUN_HISTORY"
TIMING_VARIABLE = "TENURE_CHAOS_RUN_TIMING"

SLICE = 0.05
"""Seconds after which the handler's thread checks whether it must stop."""

_clock = SystemClock()


class Stumbled(Exception):
    """Raised by handlers on purpose."""


def make(
    url: str | None, *, timing: Timing, history: str
) -> tuple[Tenure, Task[[float, int], list[int]], Task[[float, int], list[int]]]:
    """Return the app and its two tasks, a coroutine and a plain function with the same behaviour."""
    app = Tenure(url, name="tenure-chaos", timing=timing)
    # Any number of stalls is allowed, because the test causes them. Jobs fail only as often as their arguments say.
    retry, stall = Retry(max_attempts=4, base="200ms", cap="1s"), Stall(max_count=1000)

    def said(what: Mark) -> None:
        job = current_job()
        note(history, HistoryLine(job.id, job.run, job.fence, os.getpid(), what, uptime(_clock), os.getppid()))

    @app.task(name="tenure.chaos.walk", queue=QUEUE, retry=retry, stall=stall)
    async def walk(seconds: float, falls: int) -> list[int]:
        said("start")
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            said("stopped")
            raise
        return ended(falls)

    @app.task(name="tenure.chaos.plod", queue=QUEUE, retry=retry, stall=stall)
    def plod(seconds: float, falls: int) -> list[int]:
        said("start")
        job, rest, waiting = current_job(), seconds, threading.Event()
        while rest > 0:
            waiting.wait(min(SLICE, rest))
            rest -= SLICE
            try:
                job.raise_if_cancelled()
            except BaseException:
                said("stopped")
                raise
        return ended(falls)

    def ended(falls: int) -> list[int]:
        job = current_job()
        if job.attempt <= falls:
            said("failed")
            raise Stumbled(f"as requested, in attempt {job.attempt}")
        said("done")
        return [job.run, job.fence]

    return app, walk, plod


def spoken(timing: Timing) -> str:
    """Return a timing as text for an environment variable."""
    return " ".join(str(part.total_seconds()) for part in (timing.lease, timing.sweep, timing.grace))


def heard(word: str) -> Timing:
    """Return the timing that `spoken` wrote."""
    lease, sweep, grace = (float(part) for part in word.split())
    return Timing(lease=lease, sweep=sweep, grace=grace)


if HISTORY_VARIABLE in os.environ and threading.current_thread() is threading.main_thread():
    # This process is a worker of the test.
    blocking.obey()
_timing = heard(os.environ[TIMING_VARIABLE]) if TIMING_VARIABLE in os.environ else Timing()
app, walk, plod = make(None, timing=_timing, history=os.environ.get(HISTORY_VARIABLE, os.devnull))
