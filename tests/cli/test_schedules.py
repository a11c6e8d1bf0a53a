"""`tenure schedules`: listing, pausing, triggering and removing them, and when they are due."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from tenure import All, Throttle
from tenure.maintenance.ticks import moves
from tests.cli.terminal import EVERYWHERE, Terminal


@pytest.fixture
def some(there: Terminal) -> Terminal:
    """A terminal whose storage has two schedules."""
    app = there.app()

    async def prepare() -> None:
        async with app:
            call: Any = app.find_task("add").call(1, 2)
            await app.schedules.put("nightly", call, cron="0 4 * * *", tz="Europe/Vienna", missed=All(36))
            await app.schedules.put("often", app.find_task("elsewhere").call(), every="1.5h", overlap="allow")

    asyncio.run(prepare())
    return there


@EVERYWHERE
def test_a_list_shows_the_job_and_the_ticks_of_each_schedule(some: Terminal) -> None:
    nightly, often = some.read("schedules", "list")

    assert nightly.keys() == {
        *("name", "task", "queue", "arguments", "cron", "tz", "every", "missed", "max", "overlap", "grace", "paused"),
        *("created", "last_tick", "next_tick", "last_id", "runs", "limit", "start", "end", "immediately"),
    }
    assert (nightly["name"], nightly["task"], nightly["queue"], nightly["arguments"]) == (
        *("nightly", "add", "default", {"a": 1, "b": 2}),
    )
    assert (nightly["cron"], nightly["tz"], nightly["every"]) == ("0 4 * * *", "Europe/Vienna", None)
    assert (nightly["missed"], nightly["max"], nightly["overlap"], nightly["grace"]) == ("all", 36, "skip", 10.0)
    assert (nightly["paused"], nightly["last_tick"], nightly["last_id"]) == (False, None, None)
    assert (often["queue"], often["cron"], often["tz"], often["every"]) == ("elsewhere", None, "UTC", 5400.0)
    due = datetime.fromisoformat(nightly["next_tick"])
    assert (due.hour in (2, 3), due.minute, due.second) == (True, 0, 0)
    assert due > datetime.fromisoformat(nightly["created"])

    header, first, second = some.run("schedules", "list").stdout.splitlines()
    assert header.split() == ["name", "when", "task", "queue", "next", "last", "missed", "overlap", "state"]
    cells = [part.strip() for part in first.split("  ") if part]
    assert cells[:4] == ["nightly", "0 4 * * * Europe/Vienna", "add", "default"]
    assert cells[5:] == ["-", "all:36", "skip", "open"]
    assert [part.strip() for part in second.split("  ") if part][:2] == ["often", "every 90m"]
    assert some.run("schedules", "list", "--quiet").stdout.split() == ["nightly", "often"]


def test_schedules_are_paused_and_resumed_by_name(some: Terminal) -> None:
    assert some.run("schedules", "pause", "often", "nightly").stdout == (
        "schedule often is paused\nschedule nightly is paused\n"
    )
    assert [item["paused"] for item in some.read("schedules", "list")] == [True, True]
    paused = [part.strip() for part in some.run("schedules", "list").stdout.splitlines()[1].split("  ") if part]
    assert (paused[4], paused[-1]) == ("-", "paused")

    (seen,) = some.read("schedules", "resume", "nightly")
    assert (seen["name"], seen["paused"]) == ("nightly", False)
    assert "schedule often is open, its next tick is " in some.run("schedules", "resume", "often").stdout
    assert some.run("schedules", "resume", "often", "--quiet").stdout == ""


@EVERYWHERE
def test_a_trigger_creates_a_job_now(some: Terminal) -> None:
    before = some.read("schedules", "list")
    (made,) = some.read("schedules", "trigger", "nightly")
    (job,) = some.read("jobs", "list")["jobs"]

    assert (made["queue"], made["id"]) == (job["queue"], job["id"]) == ("default", made["id"])
    assert job["arguments"] == {"a": 1, "b": 2}
    assert some.read("schedules", "list") == before
    assert (job["schedule"], job["scheduled_for"]) == ("nightly", None)
    shown = some.run("jobs", "show", job["id"]).stdout.splitlines()
    assert ["schedule", "nightly,", "triggered"] in [line.split() for line in shown]
    assert "schedule often: job " in some.run("schedules", "trigger", "often").stdout
    quiet = some.run("schedules", "trigger", "often", "--quiet").stdout.strip()
    assert quiet in {job["id"] for job in some.read("jobs", "list")["jobs"]}


def test_a_trigger_that_creates_no_job_reports_it(there: Terminal) -> None:
    app = there.app()

    @app.task(name="one", unique="one")
    def one() -> None: ...

    @app.task(name="few", throttle=Throttle(max=1, window="1h"))
    def few() -> None: ...

    async def prepare() -> None:
        async with app:
            await app.schedules.put("one", one.call(), every="1h")
            await app.schedules.put("few", few.call(), every="1h")

    asyncio.run(prepare())
    made = there.read("schedules", "trigger", "one", "few")
    assert [(ref["action"], ref["retry_in"]) for ref in made] == [("created", None)] * 2

    again = there.read("schedules", "trigger", "one", "few", code=1)
    assert [(ref["id"], ref["action"]) for ref in again] == [(made[0]["id"], "duplicate"), (made[1]["id"], "throttled")]
    assert 3000 < again[1]["retry_in"] <= 3600
    done = there.run("schedules", "trigger", "one", "few", "--quiet")
    assert (done.exit_code, done.stdout) == (1, "")
    first, second = done.stderr.splitlines()
    assert first == f"schedule one: no job: job {made[0]['id']} in queue default exists already"
    assert second.startswith("schedule few: throttled; possible again in 3")
    assert len(there.read("jobs", "list")["jobs"]) == 2


def test_the_next_ticks_are_shown_in_utc_and_in_local_time(some: Terminal) -> None:
    ticks = some.read("schedules", "next", "nightly", "-n", "3")

    assert [tick.keys() for tick in ticks] == [{"tick", "local"}] * 3
    for tick in ticks:
        local = datetime.fromisoformat(tick["local"])
        assert (local.hour, local.minute) == (4, 0)
        assert local == datetime.fromisoformat(tick["tick"])
    header, *lines = some.run("schedules", "next", "often").stdout.splitlines()
    assert header.split() == ["tick", "local"]
    assert len(lines) == 5
    assert some.run("schedules", "next", "nightly", "-n", "1", "--quiet").stdout.count("\n") == 1


def test_removing_a_schedule_asks_for_confirmation_and_is_permanent(some: Terminal) -> None:
    assert "Remove schedule often for good?" in some.refused("schedules", "remove", "often")
    assert "Remove 2 schedules for good?" in some.refused("schedules", "remove", "often", "nightly")
    assert some.run("schedules", "remove", "often", "--yes").stdout == "schedule often is removed\n"
    assert [item["name"] for item in some.read("schedules", "list")] == ["nightly"]
    assert some.read("schedules", "remove", "nightly", "--yes") == ["nightly"]
    assert some.read("schedules", "list") == []


@pytest.mark.parametrize("verb", ["pause", "resume", "trigger", "next"])
def test_an_unknown_schedule_is_a_mistake(some: Terminal, verb: str) -> None:
    message = "schedule 'weekly' is unknown; known are: nightly, often"

    assert message in some.refused("schedules", verb, "weekly", code=4)
    assert message in some.refused("schedules", "remove", "--yes", "often", "weekly", code=4)
    assert len(some.read("schedules", "list")) == 2


def test_the_last_tick_is_shown_once_a_job_was_created(there: Terminal) -> None:
    app = there.app()

    async def tick() -> None:
        async with app:
            made = await app.schedules.put("often", app.find_task("hang").call(), every="1s")
            assert made.next_tick is not None
            # As a reaper would, a moment later.
            ticks, _ = moves(made, made.next_tick)
            await (await app.opened()).plan(ticks)

    asyncio.run(tick())
    (seen,) = there.read("schedules", "list")

    last = datetime.fromisoformat(seen["last_tick"])
    assert seen["last_id"] == f"cron:often:{last.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    assert (datetime.fromisoformat(seen["next_tick"]) - last).total_seconds() == 1.0
    events = there.read("events", "--kind", "schedule_fired")["events"]
    assert [event["name"] for event in events] == ["often"]
    job = there.read("jobs", "show", seen["last_id"])
    assert (job["schedule"], job["scheduled_for"]) == ("often", seen["last_tick"])


@pytest.mark.system
def test_the_list_keeps_its_names_on_a_narrow_terminal(some: Terminal) -> None:
    drawn = some.drawn("schedules", "list", columns=100)

    assert "nightly" in drawn
    assert "often" in drawn
