"""What an operator sees of real workers, and how they obey orders."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tenure.core.lifecycle import State
from tenure.storage.protocol import Survey, WorkerSurvey
from tests.system.worker_fleet import WorkerFleet

pytestmark = pytest.mark.system

QUICK = {"lease": "1s", "sweep": "200ms", "grace": "400ms"}
"""A beat of 250 ms."""


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def there(request: pytest.FixtureRequest, make_fleet: Callable[..., WorkerFleet]) -> WorkerFleet:
    """Return a worker fleet on each storage."""
    return make_fleet(**QUICK, **({"url": request.getfixturevalue("redis_url")} if request.param == "redis" else {}))


def workers(there: WorkerFleet, *words: str) -> Any:
    """Return the JSON output of `tenure workers`."""
    done = there.run("workers", *words, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def comes(there: WorkerFleet, holds: Callable[[Survey], bool], *, within: float = 20) -> tuple[WorkerSurvey, ...]:
    """Wait until a survey shows something; return the workers."""

    async def shown() -> bool:
        return holds(await there.survey())

    await there.until(shown, within=within)
    return (await there.survey()).workers


async def ends(there: WorkerFleet, process: "subprocess.Popen[bytes]") -> int:
    """Wait until a process has ended by itself; return its status."""

    async def ended() -> bool:
        return process.poll() is not None

    await there.until(ended, within=20)
    return process.returncode


async def test_stacks_show_the_line_of_a_sleeping_handler_wherever_it_runs(there: WorkerFleet) -> None:
    process = there.alone("--drain", "0")
    resting = [ref for task in ("nap", "blocking", "isolated") for ref in there.enqueue(task, 60)]

    async def all_seen() -> bool:
        return all(detail.runs and detail.runs[-1].trace for detail in await there.details(resting))

    await there.until(all_seen, within=30)
    found = {run["task"]: run for run in workers(there, "stack", str(process.pid))}
    assert found.keys() == {"fleet_app.nap", "fleet_app.blocking", "fleet_app.isolated"}
    on_loop, in_thread, isolated = found["fleet_app.nap"], found["fleet_app.blocking"], found["fleet_app.isolated"]

    assert "    await asyncio.sleep(seconds)\n" in on_loop["trace"]
    assert in_thread["trace"].endswith("in blocking\n    time.sleep(seconds)\n")
    assert isolated["trace"].endswith("in isolated\n    time.sleep(seconds)\n")
    # Nothing of ours is in it.
    for item in found.values():
        assert item["trace"].count("tenure/worker/") == 0
        assert item["trace"].splitlines()[1].endswith((" in nap", " in blocking", " in isolated"))
        assert item["seen_ago"] < 10

    [row] = workers(there, "list")
    assert (row["pid"], row["state"], row["active"]) == (process.pid, "alive", 3)
    assert row["memory"] > 10_000_000


async def test_a_worker_goes_quiet_resumes_and_is_stopped(there: WorkerFleet) -> None:
    process = there.alone("--drain", "20s")
    [running] = there.enqueue("nap", 6)
    [worker] = await comes(there, lambda survey: any(worker.active for worker in survey.workers))

    assert workers(there, "quiet", worker.owner.id)[0]["quiet"]
    await comes(there, lambda survey: survey.workers[0].quiet)
    [later] = there.enqueue("quick", 1)
    assert [item["state"] for item in workers(there, "list")] == ["quiet"]
    [waiting] = await there.details([later])
    assert waiting.job.state is State.WAITING

    workers(there, "quiet", "--undo", worker.owner.id)

    async def done() -> bool:
        return (await there.details([later]))[0].job.state is State.COMPLETED

    await there.until(done, within=10)
    workers(there, "stop", str(process.pid))

    assert await ends(there, process) == 0
    [detail] = await there.details([running])
    assert (detail.job.state, detail.job.starts, detail.job.releases) == (State.COMPLETED, 1, 0)
    assert (await there.survey()).workers == ()


async def test_a_supervised_worker_that_is_ordered_to_stop_is_not_replaced(there: WorkerFleet) -> None:
    supervisor = there.worker("--processes", "2", "--drain", "1s")
    first, second = await comes(there, lambda survey: len(survey.workers) == 2, within=30)

    workers(there, "stop", first.owner.id)
    await comes(there, lambda survey: [worker.owner for worker in survey.workers] == [second.owner])
    [ref] = there.enqueue("quick", 1)

    async def done() -> bool:
        return (await there.details([ref]))[0].job.state is State.COMPLETED

    await there.until(done, within=10)
    assert [worker.owner for worker in (await there.survey()).workers] == [second.owner]
    assert supervisor.poll() is None

    workers(there, "stop", second.owner.name)
    assert await ends(there, supervisor) == 0
    assert (await there.survey()).workers == ()
