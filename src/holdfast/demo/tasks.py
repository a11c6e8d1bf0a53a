"""The demo's app and its one handler; the workers load it as `holdfast.demo.tasks:app`."""

import os
from pathlib import Path

from msgspec import structs

from holdfast.app import Holdfast
from holdfast.context import current_job
from holdfast.demo.diary import Line, note
from holdfast.demo.work import Facts, examine, is_python
from holdfast.options import Retry, Stall, Timing
from holdfast.task import Task

QUEUE_VARIABLE = "HOLDFAST_DEMO_RUN_QUEUE"
DIARY_VARIABLE = "HOLDFAST_DEMO_RUN_DIARY"

# The grace is half the lease, as much as the pause guard gives, so that a leader that comes a little late (the paused
# worker may have been the one before) costs nothing more; and it is shorter than a sweep that comes a tenth early.
TIMING = Timing(lease="2s", beat="0.5s", sweep="1.2s", grace="1s")


def make(url: str | None = None, *, queue: str, diary: str) -> tuple[Holdfast, Task[[str], Facts]]:
    """Return the app and its task: for the workers, and for the conductor that enqueues."""
    app = Holdfast(url, name="holdfast-demo", timing=TIMING)

    # One attempt: an answer may come late here, but no handler fails. Any number of stalls: we cause them.
    @app.task(name="holdfast.demo.examine", queue=queue, retry=Retry(max_attempts=1), stall=Stall(max_count=1000))
    def examine_file(path: str) -> Facts:
        job = current_job()
        begun = Line(job=job.id, run=job.run, fence=job.fence, pid=os.getpid(), mark="start")
        note(diary, begun)
        try:
            answer = examine(Path(path).read_bytes(), python=is_python(path), between=job.raise_if_cancelled)
        except BaseException:
            note(diary, structs.replace(begun, mark="end"))
            raise
        note(diary, structs.replace(begun, mark="end", answer=answer))
        return answer

    return app, examine_file


app, examine_file = make(queue=os.environ.get(QUEUE_VARIABLE, "demo"), diary=os.environ.get(DIARY_VARIABLE, os.devnull))
