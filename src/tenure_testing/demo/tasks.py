"""The demo's app and its handlers. Workers load it as `tenure_testing.demo.tasks:app`."""

import os
from pathlib import Path

from msgspec import Struct, structs

from tenure.app import Tenure
from tenure.client.task import Task
from tenure.clock import SECOND
from tenure.handlers.context import current_job
from tenure.options import Retry, Stall, TaskOptions, Timing
from tenure_testing.demo.bad_handlers import hold_interpreter, wait_forever
from tenure_testing.demo.handler_log import HandlerLogLine, note
from tenure_testing.demo.processes import is_writing
from tenure_testing.demo.work import Facts, examine, is_python

QUEUE_VARIABLE = "TENURE_DEMO_RUN_QUEUE"
HANDLER_LOG_VARIABLE = "TENURE_DEMO_RUN_LOG"

# The grace is half the lease, the same time as the pause guard gives. So a leader that comes a little late costs no
# extra time; the paused worker may have been the previous leader. The grace is also shorter than a sweep interval that
# is a tenth too short.
TIMING = Timing(lease="2s", beat="0.5s", sweep="1.2s", grace="1s")


GIL_LEASE = 1
GIL_SECONDS = 6
"""Seconds: the lease of the run that holds the interpreter, and how long it holds it."""

NEXT = 100
"""The priority of jobs that must run before all waiting jobs."""


class Tasks(Struct, frozen=True):
    """The tasks of the demo."""

    examine: Task[[str], Facts]
    hang: Task[[str], Facts]
    hold_gil: Task[[str], Facts]


def make(url: str | None = None, *, queue: str, handler_log: str) -> tuple[Tenure, Tasks]:
    """Return the app and its tasks, for the workers and for the conductor that enqueues."""
    # One attempt, because no handler fails. Any number of stalls, because the demo causes them.
    stall = Stall(max_count=1000)
    app = Tenure(
        url,
        name="tenure-demo",
        timing=TIMING,
        defaults=TaskOptions(queue=queue, retry=Retry(max_attempts=1), stall=stall),
    )

    @app.task(name="tenure_testing.demo.examine")
    def examine_file(path: str) -> Facts:
        return _examined(path, _begun(handler_log), handler_log)

    @app.task(name="tenure_testing.demo.hang", priority=NEXT)
    def hang(path: str) -> Facts:
        # Hang in the first run only. Its worker is killed for that.
        if current_job().run == 1:
            wait_forever(lambda place: _begun(handler_log, place))
        return _examined(path, _begun(handler_log), handler_log)

    @app.task(name="tenure_testing.demo.gil_holding", priority=NEXT, stall=Stall(interval=GIL_LEASE))
    def hold_gil(path: str) -> Facts:
        begun = _begun(handler_log)
        # SQL writers share a lock. The handler must not hold the interpreter while this process has the lock.
        held = round(hold_interpreter(GIL_SECONDS, lambda: is_writing(app.storage)) * SECOND)
        return _examined(path, structs.replace(begun, held=held), handler_log)

    return app, Tasks(examine_file, hang, hold_gil)


def _begun(handler_log: str, place: str | None = None) -> HandlerLogLine:
    job = current_job()
    begun = HandlerLogLine(
        job=job.id, run=job.run, fence=job.fence, pid=os.getpid(), parent=os.getppid(), mark="start", place=place
    )
    note(handler_log, begun)
    return begun


def _examined(path: str, begun: HandlerLogLine, handler_log: str) -> Facts:
    try:
        answer = examine(Path(path).read_bytes(), python=is_python(path), between=current_job().raise_if_cancelled)
    except BaseException:
        note(handler_log, structs.replace(begun, mark="end"))
        raise
    note(handler_log, structs.replace(begun, mark="end", answer=answer))
    return answer


app, tasks = make(
    queue=os.environ.get(QUEUE_VARIABLE, "demo"), handler_log=os.environ.get(HANDLER_LOG_VARIABLE, os.devnull)
)
