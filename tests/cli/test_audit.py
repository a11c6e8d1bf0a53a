"""`tenure audit`: the acts of commands, newest first."""

import asyncio
from typing import Any

from tenure.core.job import Owner
from tenure.storage.protocol import RenewRequest, WorkerInfo
from tests.cli.terminal import EVERYWHERE, Terminal

OWNER = Owner("00aa00aa00aa00aa", "web-3", "host", 77)


def acts(there: Terminal, *options: str) -> list[dict[str, Any]]:
    """Return the acts in the order in which they were asked for."""
    found: list[dict[str, Any]] = there.read("audit", *options)["acts"]
    return found[::-1]


@EVERYWHERE
def test_commands_that_change_something_are_recorded(there: Terminal) -> None:
    there.enqueue("bad", 1, work=True)
    job = there.enqueue("add", 1, 2)
    there.run("queues", "pause", "default", "--task", "add")
    there.run("queues", "rate", "10/s", "default")
    there.run("queues", "lift", "default")
    there.run("jobs", "cancel", job, "--reason", "not needed")
    assert there.run("jobs", "cancel", job).exit_code == 1
    there.run("dead", "redrive", "--yes", "--queue", "default")
    there.run("queues", "purge", "default", "--yes")
    there.run("jobs", "delete", job, "--yes")
    found = acts(there)

    assert [(act["action"], act["target"], act["verdict"]) for act in found] == [
        ("queues.pause", "default", "done"),
        ("tasks.pause", "add", "done"),
        ("queues.rate", "default", "done"),
        ("queues.lift", "default", "done"),
        ("jobs.cancel", f"default/{job}", "done"),
        ("jobs.cancel", f"default/{job}", "refused: the job is cancelled"),
        ("dead.redrive", "default", "done"),
        ("queues.purge", "default", "done"),
        ("jobs.delete", f"default/{job}", "done"),
    ]
    assert {(act["via"], act["role"]) for act in found} == {("cli", "shell")}
    assert len({act["actor"] for act in found}) == 1
    assert "@" in found[0]["actor"]
    assert [act["change"] for act in found[2:4]] == ["rate=10/s", "rate=*"]
    assert found[4]["reason"] == "not needed"
    assert [(act["filter"], act["count"]) for act in found[6:8]] == [
        ("queue:default", 1),
        ("queue:default state:waiting,delayed", 1),
    ]


def test_acts_are_selected_and_paged(there: Terminal) -> None:
    there.run("migrate", "up")
    for queue in ("a", "b", "c"):
        there.run("queues", "pause", queue, "--force")
    there.run("queues", "resume", "b", "--force")

    assert [act["target"] for act in acts(there, "--action", "queues.pause")] == ["a", "b", "c"]
    assert [act["action"] for act in acts(there, "--target", "b")] == ["queues.pause", "queues.resume"]
    assert acts(there, "--actor", "nobody") == []  # allow word: the name of a user

    page = there.read("audit", "-n", "3")
    rest = there.read("audit", "--after", page["next"])

    assert [act["target"] for act in page["acts"] + rest["acts"]] == ["b", "c", "b", "a"]
    assert rest["next"] is None
    assert "is not a cursor" in there.refused("audit", "--after", "x")


def test_the_table_fits_a_terminal(there: Terminal) -> None:
    there.run("migrate", "up")
    there.run("queues", "pause", "a", "--force")
    header, row = there.run("audit").stdout.splitlines()
    narrow = there.run("audit", env={"COLUMNS": "80"}).stdout.splitlines()

    assert header.split() == ["asked", "actor", "action", "result", "target", "details"]
    assert row.split()[-4:] == ["queues.pause", "done", "a", "-"]
    assert max(map(len, narrow)) <= 80
    assert there.run("audit", "--quiet").stdout.split() == [acts(there)[0]["id"]]


def test_a_command_that_finds_nothing_records_nothing(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    there.refused("queues", "pause", "defualt", code=4)
    there.refused("jobs", "cancel", "no-such-job", code=4)
    there.run("dead", "purge", "--all", "--dry-run")

    assert acts(there) == []


def test_a_move_leaves_the_log_and_is_an_act_in_both_storages(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    there.run("queues", "pause", "default")
    target = f"sqlite:///{there.place / 'new.db'}"
    there.run("move", "--from", there.url, "--to", target)
    pause, left = acts(there)
    (arrived,) = there.read("audit", "--url", target)["acts"]

    assert [(act["action"], act["target"]) for act in (pause, left, arrived)] == [
        ("queues.pause", "default"),
        ("jobs.move", "*"),
        ("jobs.move", "*"),
    ]
    assert (left["change"], arrived["change"]) == (f"to={target}", f"from={there.url}")
    assert {(act["verdict"], act["count"]) for act in (left, arrived)} == {("done", 1)}


def test_schedules_and_workers_are_targets_of_acts(there: Terminal) -> None:
    app = there.app()

    @app.every("1h", name="hourly")
    async def hourly() -> None: ...

    async def begin() -> None:
        async with app:
            # A worker stores the schedules of its app.
            worker = app.worker(burst=True)
            await worker.start()
            await worker.wait()
            await app.storage.renew(RenewRequest(OWNER, (), WorkerInfo(("default",), 1)))

    asyncio.run(begin())
    for verb in ("pause", "resume", "trigger"):
        assert there.run("schedules", verb, "hourly").exit_code == 0
    there.run("schedules", "remove", "hourly", "--yes")
    there.run("workers", "quiet", OWNER.id)
    there.run("workers", "concurrency", "3", OWNER.id)
    there.run("workers", "stop", OWNER.id)
    found = acts(there)

    assert [(act["action"], act["target"], act["verdict"]) for act in found] == [
        ("schedules.pause", "hourly", "done"),
        ("schedules.resume", "hourly", "done"),
        ("schedules.trigger", "hourly", "created"),
        ("schedules.remove", "hourly", "done"),
        ("workers.quiet", OWNER.id, "done"),
        ("workers.concurrency", OWNER.id, "done"),
        ("workers.stop", OWNER.id, "done"),
    ]
    assert found[5]["change"] == "concurrency=3"
