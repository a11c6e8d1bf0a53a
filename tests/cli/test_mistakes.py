"""A mistake gets one line that names it and the remedy, and an exit code for its kind."""

import asyncio
import re
import sqlite3
from pathlib import Path

import pytest

from tenure.core.job import Owner
from tenure.storage.protocol import RenewRequest, WorkerInfo
from tests.cli.terminal import TASKS, Terminal, one_line

pytestmark = pytest.mark.thorough

OWNER = Owner("0123456789abcdef", "mail-worker", "host", 7)

MEMORY = "a memory storage belongs to one process; use sqlite:///..."


@pytest.fixture
def tasks(terminal: Terminal) -> Terminal:
    terminal.write("tasks.py", TASKS)
    return terminal


@pytest.mark.parametrize(
    ("target", "named", "remedy"),
    [
        ("nowhere:app", "module 'nowhere' does not exist", "PYTHONPATH"),
        ("tasks:nothing", "module 'tasks' has no 'nothing'", "it has tasks:app"),
        ("tasks:add", "is of type", "it has tasks:app"),
        ("tasks.py", "'tasks.py' names no app", "tasks:app"),
        ("./tasks:app", "names no app", "module:attribute"),
        ("tasks:", "names no app", "module:attribute"),
        (":app", "names no app", "module:attribute"),
        ("empty", "contains no Tenure app", "app = Tenure()"),
        ("broken", "ZeroDivisionError: division by zero (", "line 3)"),
        ("garbled", "SyntaxError: ", "line 1)"),
        ("needy", "ModuleNotFoundError: No module named 'not_installed' (", "line 1)"),
        ("quitter", "SystemExit: 3 (", "line 1)"),
        ("wrong", "Stall.max_count = -1 must be 0 or more", "line 3)"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_named_with_the_remedy(
    tasks: Terminal, target: str, named: str, remedy: str
) -> None:
    tasks.write("empty.py", "")
    tasks.write("broken.py", "def divide():\n\n    return 1 / 0\ndivide()\n")
    tasks.write("garbled.py", "app = (\n")
    tasks.write("needy.py", "import not_installed\n")
    tasks.write("quitter.py", "raise SystemExit(3)\n")
    tasks.write("wrong.py", "from tenure import Stall\n\nStall(max_count=-1)\n")
    done = tasks.ended("worker", target, "--burst")

    assert done.returncode == 2
    *trace, output = done.stderr.splitlines()
    assert output.startswith("error: ")
    assert named in output
    assert remedy in output
    assert bool(trace) == ("fails to load" in output)


@pytest.mark.parametrize(
    ("target", "suggested"),
    [
        ("tasks:ap", "module 'tasks' has no 'ap'; did you mean 'app'? It has tasks:app"),
        ("tsks:app", "module 'tsks' does not exist; did you mean 'tasks'?"),
        ("deep:app", "did you mean 'pack.deep'?"),
        ("inner:app", "give --app-dir shop"),
        ("pack.missing:app", "module 'pack.missing' does not exist"),
    ],
)
def test_a_misspelt_app_gets_a_suggestion(tasks: Terminal, target: str, suggested: str) -> None:
    for name in ("shop", "pack"):
        (tasks.place / name).mkdir()
    tasks.write("shop/inner.py", TASKS)
    tasks.write("pack/__init__.py", "")
    tasks.write("pack/deep.py", TASKS)

    assert suggested in tasks.refused("info", "--app", target)


def test_app_dir_names_the_folder_of_the_module(tasks: Terminal) -> None:
    (tasks.place / "shop").mkdir()
    tasks.write("shop/inner.py", TASKS)
    done = tasks.ended("worker", "inner:app", "--app-dir", "shop", "--burst")

    assert done.returncode == 0, done.stderr
    assert "'nowhere' does not exist" in tasks.refused("info", "--app-dir", "nowhere")


def test_a_module_that_does_not_load_shows_the_frames_of_the_user_only(terminal: Terminal) -> None:
    terminal.write(
        "broken.py",
        "import json\n"
        "def read():\n"
        "    return json.loads('x')\n"
        "try:\n"
        "    read()\n"
        "except ValueError as error:\n"
        "    raise RuntimeError('no settings') from error\n",
    )
    done = terminal.ended("worker", "broken:app", "--burst")
    files = re.findall(r'File "(.*)", line (\d+)', done.stderr)

    assert {Path(file).name for file, _ in files} == {"broken.py"}
    assert [int(line) for _, line in files] == [5, 3, 7]
    assert "direct cause" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: module 'broken' fails to load: RuntimeError: no settings (")


@pytest.mark.parametrize(
    ("args", "suggested"),
    [
        (("wrker",), "Did you mean 'worker' or 'workers'? See tenure --help"),
        (("jobs", "redriv"), "Did you mean 'redrive'? See tenure jobs --help"),
        (("purge",), "Did you mean 'dead purge'"),
        (("info", "--ulr", "x"), "Did you mean '--url'? See tenure info --help"),
        (("worker", "tasks:app", "--concurency", "3"), "Did you mean '--concurrency'?"),
    ],
)
def test_a_misspelt_command_or_option_gets_a_suggestion(tasks: Terminal, args: tuple[str, ...], suggested: str) -> None:
    assert suggested in tasks.refused(*args)


@pytest.mark.parametrize(
    ("args", "suggested"),
    [
        (("queues", "pause", "defualt"), "queue 'defualt' is unknown"),
        (("queues", "resume", "defualt"), "did you mean 'default'? Or give --force to do it anyway"),
        (("queues", "rate", "1/s", "defualt"), "did you mean 'default'?"),
        (
            ("queues", "pause", "--task", "neither"),
            "task 'neither' is unknown: no job, worker or schedule uses it; give",
        ),
        (("queues", "stats", "defualt"), "unknown queue: 'defualt'; did you mean 'default'? See tenure queues list"),
        (("schedules", "pause", "nightl"), "schedule 'nightl' is unknown; did you mean 'nightly'? Known are: nightly"),
        (("workers", "stop", "mail-wroker"), "no worker 'mail-wroker' exists; did you mean 'mail-worker'? See tenure"),
    ],
)
def test_a_misspelt_name_gets_a_suggestion_and_exit_code_4(
    there: Terminal, args: tuple[str, ...], suggested: str
) -> None:
    there.enqueue("add", 1, 2)
    app = there.app()

    async def fill() -> None:
        async with app:
            await app.schedules.put("nightly", app.find_task("hang").call(), cron="0 4 * * *")
            await (await app.opened()).renew(RenewRequest(OWNER, worker=WorkerInfo(queues=("default",))))

    asyncio.run(fill())

    assert suggested in there.refused(*args, code=4)
    assert [queue["paused"] for queue in there.read("queues", "list")] == [False]


def test_an_unknown_queue_is_set_with_force(there: Terminal) -> None:
    there.enqueue("add", 1, 2)

    assert there.run("queues", "pause", "later", "--force").exit_code == 0
    assert there.run("queues", "resume", "later").exit_code == 0


def test_a_task_of_the_app_is_known_before_its_first_job(tasks: Terminal) -> None:
    assert tasks.run("migrate", "up", "--app", "tasks:app").exit_code == 0
    assert tasks.run("queues", "pause", "default", "--task", "add", "--app", "tasks:app").exit_code == 0


@pytest.mark.parametrize("args", [("jobs", "list"), ("dead", "list")])
def test_a_search_that_finds_nothing_warns_of_unknown_names(there: Terminal, args: tuple[str, ...]) -> None:
    there.enqueue("add", 1, 2)
    done = there.run(*args, "--queue", "defualt", "--task", "ad")

    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        "warning: queue 'defualt' is unknown; did you mean 'default'?",
        "warning: task 'ad' is unknown",
    ]


@pytest.mark.parametrize("args", [(), ("--no-supervisor",)])
def test_a_worker_warns_of_a_queue_that_nothing_uses(tasks: Terminal, args: tuple[str, ...]) -> None:
    done = tasks.ended("worker", "tasks:app", "-q", "defualt,default", "--burst", *args)

    assert done.returncode == 0
    (warning,) = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert "no task of the app uses queue 'defualt', and it has no jobs yet; did you mean 'default'?" in warning


@pytest.mark.parametrize("args", [(), ("--no-supervisor",)])
def test_a_worker_uses_the_storage_of_its_url(tasks: Terminal, args: tuple[str, ...]) -> None:
    tasks.write("mine.py", TASKS.replace("Tenure()", "Tenure('sqlite:///mine.db')"))
    job = tasks.enqueue("add", 1, 2)
    done = tasks.ended("--url", tasks.url, "worker", "mine:app", "--burst", *args)

    assert done.returncode == 0, done.stderr
    assert tasks.read("jobs", "show", job, "--url", tasks.url)["state"] == "completed"
    assert not (tasks.place / "mine.db").exists()


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("worker",), "give one as module:attribute"),
        (("worker", "tasks:app", "-q", "mail,,default"), "empty queue"),
        (("worker", "tasks:app", "-q", "mail,tenure.internal.ops"), "is an internal queue"),
        (("worker", "tasks:app", "-c", "0"), "--concurrency"),
        (("worker", "tasks:app", "--processes", "0"), "--processes"),
        (("worker", "tasks:app", "--drain", "5y"), "--drain = '5y' is not a duration"),
        (("worker", "tasks:app", "--drain", "nan"), "--drain = 'nan' is not a duration"),
        (("worker", "tasks:app", "--drain", "-1"), "--drain = -1.0 must be longer than zero"),
        (
            ("--url", "amqp://here", "worker", "tasks:app", "--no-supervisor"),
            "storage URL 'amqp://here' is not supported",
        ),
        (("worker", "tasks:app", "--log-level", "loud"), "--log-level"),
        (("worker", "tasks:app", "--no-supervisor", "--processes", "2"), "leave --no-supervisor out"),
        (("worker", "tasks:app", "--no-supervisor", "--reload"), "leave --no-supervisor out"),
        (("worker", "tasks:app", "--reload-dir", "nowhere"), "'nowhere' does not exist"),
        (("worker", "tasks:app", "--max-jobs", "0"), "--max-jobs"),
        (("worker", "tasks:app", "--max-memory", "much"), "--max-memory = 'much' is not a size"),
        (("reaper", "--sweep", "0s"), "--sweep = '0s' must be longer than zero"),
        (("reaper", "tasks:app", "--grace", "1s"), "leave --grace out"),
        (("reaper", "tasks:app", "--url", "sqlite:///x.db"), "a storage of its own"),
        (("info", "--url", "amqp://here"), "storage URL 'amqp://here' is not supported"),
        (("info", "--url", "sqlite:///"), "names no file"),
        (("info", "--url", "sqlite:///x.db?color=red"), "unknown option 'color'"),
        (("info", "--every", "soon"), "--every = 'soon' is not a duration"),
        (("info", "-o", "yaml"), "'yaml' is not one of 'table', 'json', 'jsonl'; see tenure info --help"),
        (("jobs", "list", "--state", "dead"), "'dead' is not one of"),
        (("jobs", "show"), "Missing argument 'ID'; see tenure jobs show --help"),
        (("jobs", "redrive"), "no job is named; give ids, or a filter with --where"),
        (("jobs", "annul", "x"), "No such command 'annul'"),
        (("nonsense",), "No such command 'nonsense'"),
        (("--nonsense",), "No such option '--nonsense'"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(tasks: Terminal, args: tuple[str, ...], named: str) -> None:
    assert named in tasks.refused(*args)


@pytest.mark.parametrize(
    "args",
    [("reaper",), ("info",), ("jobs", "list"), ("jobs", "show", "x"), ("jobs", "cancel", "x"), ("migrate", "up")],
)
def test_memory_cannot_be_seen_from_another_process(terminal: Terminal, args: tuple[str, ...]) -> None:
    assert MEMORY in terminal.refused(*args, "--url", "memory://")
    assert MEMORY in terminal.refused(*args, env={"TENURE_URL": "memory://"})


def test_memory_cannot_be_shared_by_several_processes(terminal: Terminal) -> None:
    terminal.write("memories.py", "from tenure import Tenure\nmine = Tenure('memory://')\n")
    done = terminal.ended("worker", "memories", "--processes", "2")

    assert done.returncode == 2
    assert MEMORY in one_line(done.stderr)


@pytest.mark.parametrize("args", [("info",), ("migrate", "up"), ("reaper", "tasks:app")])
def test_a_working_directory_that_is_gone_is_named(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    gone = terminal.place / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert "working directory" in terminal.refused(*args)


def test_output_that_cannot_be_written_is_one_line_on_stderr(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    with open("/dev/full", "w") as full, there.start("jobs", "list", stdout=full) as process:
        _, output = process.communicate(timeout=60)

    assert process.returncode == 1
    assert one_line(output) == "error: stdout: No space left on device"


def test_a_command_whose_output_is_closed_does_its_work_anyway(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    (there.place / "closed").write_text('exec "$@" >&-')
    done = there.ended("queues", "pause", "default", through=("sh", "closed"))
    listed = there.ended("queues", "list", through=("sh", "closed"))

    assert (done.returncode, done.stderr, listed.returncode, listed.stderr) == (0, "", 0, "")
    assert [queue["paused"] for queue in there.read("queues", "list")] == [True]


def test_a_character_outside_the_outputs_encoding_is_escaped(there: Terminal) -> None:
    there.enqueue("add", 1, 2, id="счёт")
    done = there.ended("jobs", "list", "--quiet", env={"PYTHONIOENCODING": "latin-1"})

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "\\u0441\\u0447\\u0451\\u0442\n"


def test_an_app_that_several_processes_cannot_load_is_reported_once(terminal: Terminal) -> None:
    done = terminal.ended("worker", "nowhere:app", "--processes", "3")

    assert done.returncode == 2
    assert "module 'nowhere' does not exist" in one_line(done.stderr)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_without_a_migration_that_it_needs_says_so_once(terminal: Terminal, processes: str) -> None:
    terminal.write(
        "gap.py",
        "from tenure import Tenure\n"
        "app = Tenure('sqlite:///jobs.db')\n"
        "app.task(name='pay', version=2)(lambda cents: None)\n",
    )
    done = terminal.ended("worker", "gap:app", "--processes", processes)

    assert done.returncode == 2
    assert "task 'pay' has version 2 and no migration from version 1" in one_line(done.stderr)


@pytest.mark.parametrize(
    "args", [("info",), ("jobs", "list"), ("jobs", "show", "x"), ("jobs", "redrive", "x"), ("jobs", "cancel", "x")]
)
def test_reading_a_missing_database_does_not_create_it(there: Terminal, args: tuple[str, ...]) -> None:
    output = there.refused(*args)

    assert "no database exists at" in output
    assert "--url" in output
    assert not list(there.place.iterdir())


@pytest.mark.parametrize("args", [("info",), ("jobs", "list"), ("migrate", "up")])
def test_a_file_that_is_not_a_database_is_left_unchanged(there: Terminal, args: tuple[str, ...]) -> None:
    there.write("jobs.db", "a shopping list")

    assert "left untouched" in there.refused(*args, code=1)
    assert [(path.name, path.read_text()) for path in there.place.iterdir()] == [("jobs.db", "a shopping list")]


@pytest.mark.parametrize(("table", "says"), [("theirs", "tenure migrate up"), ("tenure_meta", "another program")])
def test_a_database_of_another_program_is_left_untouched(there: Terminal, table: str, says: str) -> None:
    with sqlite3.connect(there.place / "jobs.db") as other:
        other.execute(f"CREATE TABLE {table} (thing)")
    other.close()
    before = (there.place / "jobs.db").read_bytes()

    assert says in there.refused("info", code=1)
    assert (there.place / "jobs.db").read_bytes() == before


def test_a_job_that_is_unknown_is_exit_code_4(there: Terminal) -> None:
    there.enqueue("add", 1, 2)

    assert "no job 'missing-id' in any queue" in there.refused("jobs", "show", "missing-id", code=4)
    assert "no job 'missing-id' in queue 'mail'" in there.refused(
        "jobs", "cancel", "missing-id", "--queue", "mail", code=4
    )


def test_the_url_option_precedes_the_app_and_the_app_the_environment(tasks: Terminal) -> None:
    tasks.write("mine.py", "from tenure import Tenure\napp = Tenure('sqlite:///mine.db')\n")
    env: dict[str, str | None] = {"TENURE_URL": "sqlite:///environment.db"}

    assert "environment.db" in tasks.refused("info", env=env)
    assert "mine.db" in tasks.refused("--app", "mine:app", "info", env=env)
    assert "mine.db" in tasks.refused("info", env={**env, "TENURE_APP": "mine:app"})
    assert "asked.db" in tasks.refused("--app", "mine:app", "info", "--url", "sqlite:///asked.db", env=env)
    assert "tenure.db" in tasks.refused("info")
