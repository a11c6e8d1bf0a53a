"""`tenure worker`: real processes, real signals."""

import asyncio
import json
import logging
import signal
from datetime import timedelta

import pytest
from msgspec import structs

from tenure import Schedule
from tenure.cli.logs import JsonLines
from tenure.cli.worker import WorkerOptions, worker
from tenure.storage.protocol import PutSchedule
from tests.cli.terminal import EVERYWHERE, TASKS, Terminal


@pytest.fixture
def tasks(there: Terminal) -> Terminal:
    there.write("tasks.py", TASKS)
    return there


@pytest.mark.system
@EVERYWHERE
def test_a_burst_runs_the_waiting_jobs_and_exits(tasks: Terminal) -> None:
    job = tasks.enqueue("add", 1, 2)
    done = tasks.ended("worker", "tasks:app", "--burst", "--name", "bursting")

    assert done.returncode == 0
    assert done.stdout == ""
    seen = tasks.read("jobs", "show", job)
    assert (seen["state"], seen["result"], seen["runs"][0]["worker"]) == ("completed", 3, "bursting")
    assert [line["message"] for line in seen["log"]] == ["adding"]


@pytest.mark.system
@EVERYWHERE
def test_the_tasks_of_a_worker_are_listed_without_its_app(tasks: Terminal) -> None:
    assert tasks.ended("worker", "tasks:app", "--burst").returncode == 0

    (add, hang) = tasks.read("tasks")
    assert (add["name"], add["signature"], hang["name"]) == ("add", "(a: int, b: int) -> int", "hang")
    assert tasks.read("tasks", "tasks:app") == [add, hang]
    assert "tasks needs an app" in tasks.refused("tasks", env={"TENURE_URL": None})


@pytest.mark.system
def test_a_worker_serves_the_named_queues(tasks: Terminal) -> None:
    job, other = tasks.enqueue("add", 1, 2, queue="mail"), tasks.enqueue("add", 3, 4)
    assert tasks.ended("worker", "tasks:app", "--burst", "-q", "letters,mail").returncode == 0

    assert tasks.read("jobs", "show", job)["state"] == "completed"
    assert tasks.read("jobs", "show", other)["state"] == "waiting"


@pytest.mark.system
def test_a_signal_ends_a_worker_with_a_hung_thread_and_releases_its_job(tasks: Terminal) -> None:
    job = tasks.enqueue("hang")
    with tasks.start("worker", "tasks:app", "--drain", "0") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hanging\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)

    assert process.returncode == 0
    seen = tasks.read("jobs", "show", job)
    assert (seen["releases"], seen["runs"][0]["ended"], seen["runs"][0]["reason"]) == (1, "released", "shutdown")


@pytest.mark.system
def test_json_logs_contain_no_arguments(tasks: Terminal) -> None:
    tasks.enqueue("add", 31337, 2)
    done = tasks.ended("worker", "tasks:app", "--burst", "--log-format", "json", "--log-level", "debug")
    lines = [json.loads(line) for line in done.stderr.splitlines()]

    assert {"at", "level", "logger", "message"} <= lines[0].keys()
    assert "31337" not in done.stderr


class WithoutRepr:
    """An object whose repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_values_that_json_cannot_hold_are_logged_as_text() -> None:
    record = logging.makeLogRecord({"msg": "cannot read %s", "args": ("caf\udce9",), "who": WithoutRepr(), "count": 3})
    record_read = json.loads(JsonLines().format(record))

    assert (record_read["message"], record_read["who"], record_read["count"]) == (
        "cannot read caf?",
        "<WithoutRepr>",
        "3",
    )


@pytest.mark.system
def test_a_storage_that_cannot_be_opened_is_one_line_and_exit_code_1(tasks: Terminal) -> None:
    tasks.write("jobs.db", "a shopping list")
    done = tasks.ended("worker", "tasks:app", "--quiet")

    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


SCHEDULED = """
from tenure import Tenure

app = Tenure()

@app.every("365d", name="report")
@app.task(name="add")
def add(a: int = 1, b: int = 2) -> int:
    return a + b
"""


@pytest.mark.system
@pytest.mark.parametrize("options", [[], ["--no-reaper"]], ids=["reaper", "no reaper"])
def test_a_schedule_changed_in_the_code_fires_no_old_ticks(tasks: Terminal, options: list[str]) -> None:
    tasks.write("scheduled.py", SCHEDULED)
    app = tasks.app()

    async def prepare() -> None:
        async with app:
            storage = await app.opened()
            job = structs.replace(app.find_task("add").call(1, 2).job, id="")
            often = Schedule(name="report", job=job, every=60_000_000, last_tick=1, next_tick=60_000_000)
            await storage.plan([PutSchedule(often)])

    asyncio.run(prepare())
    done = tasks.ended("worker", "scheduled:app", "--burst", *options)

    assert done.returncode == 0
    assert [item["every"] for item in tasks.read("schedules", "list")] == [365 * 86_400.0]
    assert tasks.read("jobs", "list")["jobs"] == []


LIVING = """
import asyncio
from contextlib import asynccontextmanager
from tenure import Tenure, current_job

@asynccontextmanager
async def lifespan(app):
    print("entered", flush=True)
    yield "alive"
    await asyncio.sleep(0.1)
    print("left", flush=True)

@asynccontextmanager
async def failing(app):
    raise ConnectionRefusedError("no database")
    yield

app, broken = Tenure(lifespan=lifespan), Tenure(lifespan=failing)

@app.task(name="hang")
async def hang():
    print(current_job().state, flush=True)
    await asyncio.sleep(3600)
"""


@pytest.mark.system
def test_a_signal_lets_a_worker_leave_its_lifespan(tasks: Terminal) -> None:
    tasks.write("living.py", LIVING)
    job = tasks.enqueue("hang")
    with tasks.start("worker", "living:app", "--drain", "0") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["entered\n", "alive\n"]
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=30)

    assert (process.returncode, output) == (0, "left\n")
    assert tasks.read("jobs", "show", job)["releases"] == 1


@pytest.mark.system
def test_a_lifespan_that_fails_at_its_start_is_one_line_and_exit_code_1(tasks: Terminal) -> None:
    tasks.write("living.py", LIVING)
    done = tasks.ended("worker", "living:broken")

    assert done.returncode == 1
    assert "does not start: its lifespan cannot be entered" in done.stderr
    assert "ConnectionRefusedError: no database" in done.stderr


@pytest.mark.parametrize(
    "given",
    [
        WorkerOptions(None, 10, burst=False, reaper=True, name=None, drain=timedelta(seconds=25)),
        WorkerOptions(
            ("mail", "a b"),
            3,
            burst=True,
            reaper=False,
            name="x y",
            drain=timedelta(milliseconds=1500),
            max_jobs=7,
            max_memory=1_500_000_000,
            prefetch=0,
        ),
    ],
)
def test_a_child_gets_all_options_of_its_supervisor(given: WorkerOptions) -> None:
    params = worker.make_context("worker", ["tasks:app", *given.options()]).params

    assert (
        WorkerOptions(
            tuple(params["queues"]) or None,
            params["concurrency"],
            burst=params["burst"],
            reaper=not params["no_reaper"],
            name=params["name"],
            drain=params["drain"],
            max_jobs=params["max_jobs"],
            max_memory=params["max_memory"],
            prefetch=params["prefetch"],
        )
        == given
    )
