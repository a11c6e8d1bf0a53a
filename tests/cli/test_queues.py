"""`tenure queues`: their state and settings, pausing and resuming."""

import asyncio

import pytest

from tenure import Keep, Rate, Retention, Stall
from tests.cli.terminal import EVERYWHERE, Terminal


@EVERYWHERE
def test_a_list_shows_the_state_and_the_settings_of_each_queue(there: Terminal) -> None:
    app = there.app()

    async def prepare() -> None:
        async with app:
            queue = app.queue("default")
            await queue.set_stall(Stall(interval="30s", max_count=3))
            await queue.set_rate(Rate(100, per="1s", burst=5))
            await app.queue("elsewhere").set_rate("7/m")
            await app.queue("elsewhere").set_rate(None)
            await queue.set_retention(Retention(failed=Keep("90d", 500)))

    there.enqueue("bad", 1, work=True)
    there.enqueue("add", 1, 2)
    there.enqueue("elsewhere")
    asyncio.run(prepare())
    default, elsewhere = there.read("queues", "list")

    assert default.keys() == {
        *("queue", "paused", "oldest_waiting", "parked", "discarded", "counts", "retention", "stall", "rate", "record"),
        "limits",
    }
    assert (default["queue"], default["paused"], default["parked"], default["discarded"]) == ("default", False, 0, 0)
    assert (default["counts"]["waiting"], default["counts"]["failed"]) == (1, 1)
    assert default["oldest_waiting"] > 0
    assert default["stall"] == {"lease": 30.0, "max_stalls": 3, "start_grace": None, "renewed": None}
    assert (default["rate"], elsewhere["rate"]) == ({"every": 0.01, "burst": 5}, None)
    assert default["retention"] == {
        "completed": {"age": 3600.0, "count": 10_000},
        "failed": {"age": 90 * 86_400.0, "count": 500},
        "cancelled": {"age": 7 * 86_400.0, "count": None},
        "expired": {"age": 7 * 86_400.0, "count": None},
    }
    assert (elsewhere["queue"], elsewhere["stall"], elsewhere["record"]) == ("elsewhere", None, [])

    header, first, second, _, _, settings, mine, theirs = there.run("queues", "list").stdout.splitlines()
    assert header.split() == [
        *("queue", "wait", "delay", "active", "done", "fail", "cancel", "expire"),
        *("oldest", "park", "drop", "state"),
    ]
    assert [line.split()[0] for line in (first, second)] == ["default", "elsewhere"]
    assert settings.split() == ["queue", "kept", "stall", "rate", "recorded"]
    assert [part.strip() for part in mine.split("  ") if part] == [
        *("default", "completed:1h/10000 failed:90d/500 cancelled:7d expired:7d", "interval=30s max_count=3"),
        *("100/s burst=5", "-"),
    ]
    assert "failed:30d" in theirs
    assert there.run("queues", "list", "--quiet").stdout.split() == ["default", "elsewhere"]


def test_a_list_sets_nothing(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    there.run("queues", "pause", "default")
    before = there.run("events", "-o", "jsonl").stdout
    (seen,) = there.read("queues", "list")

    assert (seen["paused"], seen["stall"]) == (True, None)
    assert there.run("events", "-o", "jsonl").stdout == before
    assert there.read("queues", "list")[0]["paused"]


@EVERYWHERE
def test_queues_and_tasks_are_paused_and_resumed_by_name(there: Terminal) -> None:
    waiting, other = there.enqueue("add", 1, 2), there.enqueue("elsewhere")

    assert there.run("queues", "pause", "elsewhere", "--task", "add").stdout == (
        "queue elsewhere is paused\ntask add is paused\n"
    )
    there.enqueue("bad", 1, work=True)
    assert {job["id"]: job["state"] for job in there.read("jobs", "list", "--state", "waiting")["jobs"]} == {
        waiting: "waiting",
        other: "waiting",
    }
    seen = there.read("info")
    assert seen["paused_tasks"] == ["add"]
    assert {queue["queue"]: (queue["paused"], queue["parked"]) for queue in seen["queues"]} == {
        "default": (False, 1),
        "elsewhere": (True, 0),
    }
    assert "paused tasks: add" in there.run("info").stdout.splitlines()

    assert there.read("queues", "resume", "elsewhere", "--task", "add") == [
        {"kind": "queue", "name": "elsewhere", "paused": False},
        {"kind": "task", "name": "add", "paused": False},
    ]
    there.enqueue("bad", 2, work=True)
    assert there.read("jobs", "list", "--state", "waiting")["jobs"] == []
    assert there.run("queues", "resume", "elsewhere", "--quiet").stdout == ""


def test_rates_are_set_and_removed_by_name(there: Terminal) -> None:
    there.enqueue("add", 1, 2)

    assert there.run("queues", "rate", "100/s", "default", "--task", "add").stdout == (
        "queue default is limited to 100/s\ntask add is limited to 100/s\n"
    )
    assert there.read("queues", "list")[0]["rate"] == {"every": 0.01, "burst": 1}
    assert there.read("queues", "rate", "none", "default") == [{"kind": "queue", "name": "default", "rate": None}]
    assert there.run("queues", "rate", "none", "--task", "add").stdout == "task add has no limit\n"
    assert there.read("queues", "list")[0]["rate"] is None


def test_a_rate_is_shown_as_it_is_written(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    for rate, shown in (
        *(("7/s", "7/s"), ("1/s", "1/s"), ("2/ms", "2000/s"), ("5/30s", "10/m"), ("7/m", "7/m"), ("1/7s", "1/7s")),
        *(("11/h", "11/h"), ("3/2d", "1/16h"), ("3/d", "3/d"), ("999/s", "999/s"), ("1/2.5s", "24/m")),
    ):
        assert there.run("queues", "rate", rate, "default").stdout == f"queue default is limited to {shown}\n"


def test_a_list_shows_the_settings_of_tasks(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    there.run("queues", "rate", "7/s", "--task", "send", "--task", "add", "--force")
    there.run("queues", "rate", "none", "--task", "send")
    there.run("queues", "pause", "--task", "add", "--task", "bad", "--force")
    title, *tasks = there.run("queues", "list").stdout.splitlines()[-5:]

    assert title == "set for a task, in every queue:"
    assert [[part.strip() for part in line.split("  ") if part] for line in tasks] == [
        *(["task", "rate", "state"], ["add", "7/s", "paused"], ["bad", "-", "paused"], ["send", "no limit", "open"]),
    ]
    assert there.read("info")["task_rates"] == {"add": {"every": 0.142858, "burst": 1}, "send": None}


def test_a_rate_that_cannot_be_set_is_a_mistake(there: Terminal) -> None:
    there.enqueue("add", 1, 2)

    assert "RATE = 'often' is not a rate; write 10/s, 100/m or 5/30s, or none" in there.refused(
        "queues", "rate", "often", "default"
    )
    assert "give one or more queues to limit" in there.refused("queues", "rate", "1/s")


def test_the_log_names_the_user_that_paused_a_queue(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    there.run("queues", "pause", "default")
    there.run("queues", "pause", "default")
    there.run("queues", "resume", "default")
    events = there.read("events", "--queue", "default", "--kind", "queue_paused", "--kind", "queue_resumed")["events"]

    assert [event["event"] for event in events] == ["queue_paused", "queue_resumed"]
    assert all("@" in event["by"] for event in events)


def test_nothing_to_pause_is_a_mistake(there: Terminal) -> None:
    there.enqueue("add", 1, 2)

    assert "give one or more queues to pause, or --task TASK" in there.refused("queues", "pause")
    assert "give one or more queues to resume" in there.refused("queues", "resume")
    assert "QUEUE = '' must be a text of 1 to 1,024 bytes" in there.refused("queues", "pause", "")


@EVERYWHERE
def test_stats_show_recent_outcomes_and_the_reasons_of_failures(there: Terminal) -> None:
    there.enqueue("bad", 1)
    there.enqueue("add", 1, 2, work=True)
    there.enqueue("add", 1, 2)
    (seen,) = there.read("queues", "stats", "default", "--window", "10m")

    assert seen["ended"] == {"completed": 1, "failed": 1, "cancelled": 0, "expired": 0}
    assert seen["reasons"] == {"exhausted": 1}
    assert (seen["per_minute"], seen["window"], seen["capped"]) == (0.2, 600.0, False)
    assert 0 <= seen["ran"]["half"] <= seen["ran"]["most"] <= seen["ran"]["longest"] < 60
    assert seen["waited"]["longest"] >= 0
    assert seen["counts"]["waiting"] == 1

    header, line = there.run("queues", "stats").stdout.splitlines()
    assert header.split()[:3] == ["queue", "state", "wait"]
    assert line.split()[:2] == ["default", "open"]
    assert line.endswith("exhausted:1")
    capped = there.run("queues", "stats", "--most", "1")
    assert "only the newest 1 of its jobs were read" in capped.stderr


def test_stats_of_an_unknown_queue_are_refused(there: Terminal) -> None:
    there.enqueue("add", 1, 2)

    assert "unknown queue: 'nope'; see tenure queues list" in there.refused(
        *("queues", "stats", "default", "nope"), code=4
    )
    assert [queue["queue"] for queue in there.read("queues", "stats", "default")] == ["default"]


@pytest.mark.system
def test_stats_keep_their_headings_on_a_narrow_terminal(there: Terminal) -> None:
    there.enqueue("add", 1, 2, work=True)

    assert ["queue", "state", "wait", "done", "fail", "cancel", "expire", "/min", "waited", "ran", "why"] in [
        line.split() for line in there.drawn("queues", "stats").splitlines()
    ]


@EVERYWHERE
def test_a_purge_deletes_the_jobs_that_have_not_started(there: Terminal) -> None:
    failed = there.enqueue("bad", 1, work=True)
    there.enqueue("add", 1, 2)
    there.enqueue("add", 1, 2, delay="1h")
    kept = there.enqueue("elsewhere")

    assert there.run("queues", "purge", "default", "--dry-run").stdout == "2 jobs would be deleted\n"
    assert "Delete 2 jobs of queue default for good?" in there.refused("queues", "purge", "default")
    assert there.read("queues", "purge", "default", "--yes") == {"matched": 2, "deleted": 2, "changed": 0}
    assert [job["id"] for job in there.read("jobs", "list")["jobs"]] == [kept, failed]
    assert there.run("queues", "purge", "default", "--yes").stdout == "0 jobs were deleted\n"


def test_a_purge_can_be_narrowed_by_state_and_task(there: Terminal) -> None:
    failed = there.enqueue("bad", 1, work=True)
    added = there.enqueue("add", 1, 2)

    assert there.run("queues", "purge", "default", "--task", "hang", "--yes").stdout == "0 jobs were deleted\n"
    assert there.run("queues", "purge", "default", "--state", "failed", "--yes").stdout == "1 job was deleted\n"
    assert [job["id"] for job in there.read("jobs", "list")["jobs"]] == [added]
    assert failed not in there.run("jobs", "list").stdout


def test_a_purge_of_an_unknown_queue_deletes_nothing(there: Terminal) -> None:
    there.enqueue("add", 1, 2)

    assert "queue 'defualt' is unknown" in there.refused("queues", "purge", "defualt", "--yes", code=4)
    assert len(there.read("jobs", "list")["jobs"]) == 1
