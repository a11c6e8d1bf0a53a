"""`tenure events`: the log as lines and as JSON, from a cursor on, of one job, and live."""

import json
import signal
from collections.abc import Callable

import pytest

from tests.cli.terminal import EVERYWHERE, Terminal

JOBS = ("--kind", "completed", "--kind", "failed", "--kind", "redriven")


@EVERYWHERE
def test_the_latest_events_are_listed_oldest_first_without_results(there: Terminal) -> None:
    failed = there.enqueue("bad", 1)
    done = there.enqueue("add", 1, 2, work=True)
    events = there.read("events", *JOBS)["events"]

    assert sorted((event["event"], event["id"]) for event in events) == [("completed", done), ("failed", failed)]
    assert [int(event["cursor"]) for event in events] == sorted(int(event["cursor"]) for event in events)
    assert all("result" not in event for event in events)
    (shown,) = there.read("events", "--kind", "completed", "--results")["events"]
    assert shown["result"] == 3

    latest = there.read("events", *JOBS, "--limit", "1")["events"]
    assert latest == events[-1:]


def test_a_line_has_time_cursor_name_job_and_fields(there: Terminal) -> None:
    job = there.enqueue("bad", 1, work=True)
    (line,) = there.run("events", "--kind", "failed").stdout.splitlines()
    at, cursor, name, whose, *rest = line.split("  ")

    assert at.endswith("Z")
    assert int(cursor) > 0
    assert (name, whose) == ("failed", f"default/{job}")
    assert rest[:4] == ["task=bad", "run=1", "attempt=1", "reason=exhausted"]
    assert rest[4] == 'error="ValueError: not 1\\nreally not"'
    assert "Traceback" not in line


@EVERYWHERE
def test_reading_continues_after_a_cursor(there: Terminal) -> None:
    there.enqueue("bad", 1)
    there.enqueue("add", 1, 2, work=True)
    everything = there.read("events", "--since-cursor", "0")
    first = there.read("events", "--since-cursor", "0", "--limit", "1")
    rest = there.read("events", "--since-cursor", first["next"])

    assert first["events"] + rest["events"] == everything["events"]
    assert there.read("events", "--since-cursor", everything["next"])["events"] == []
    assert there.run("events", "--since-cursor", "0", "--limit", "1").stderr == (
        f"more: --since-cursor {first['next']}\n"
    )


def test_the_events_of_one_job_can_be_read_also_after_it_is_deleted(there: Terminal) -> None:
    job = there.enqueue("bad", 1)
    there.enqueue("bad", 2, work=True)

    assert [event["event"] for event in there.read("events", "--job", job)["events"]] == ["failed"]
    assert there.run("jobs", "delete", job, "--yes").exit_code == 0
    assert [event["event"] for event in there.read("events", "--job", job, "--queue", "default")["events"]] == [
        *("failed", "deleted")
    ]
    assert job in there.refused("events", "--job", job, code=4)


def test_an_invalid_cursor_or_kind_is_refused(there: Terminal) -> None:
    there.enqueue("add", 1, 2)

    assert "--since-cursor 'soon' is not a cursor" in there.refused("events", "--since-cursor", "soon")
    assert "--since-cursor 'soon' is not a cursor" in there.refused("events", "-f", "--since-cursor", "soon")
    for cursor in ("", "-1", str(2**63), "9" * 5000):
        for live in ((), ("-f",)):
            assert "--since-cursor '" in there.refused("events", *live, "--since-cursor", cursor)
    assert "'broken' is not one of" in there.refused("events", "--kind", "broken")


@pytest.mark.parametrize("flag", ["--queue", "--job", "--kind"])
def test_an_empty_choice_is_a_mistake_not_an_omitted_one(there: Terminal, flag: str) -> None:
    there.enqueue("bad", 1, work=True)

    assert flag in there.refused("events", flag, "")
    assert flag in there.refused("events", "-f", flag, "")


def test_durations_are_shown_in_milliseconds(there: Terminal) -> None:
    there.enqueue("add", 1, 2, work=True)
    (event,) = there.read("events", "--kind", "completed")["events"]
    (line,) = there.run("events", "--kind", "completed").stdout.splitlines()

    assert f"duration={round(event['duration'], 3)}  " in line


def followed(there: Terminal, *options: str, lines: int, cause: Callable[[], object]) -> tuple[list[str], int]:
    """Return the first lines of `--follow` while events are caused, and its exit code after an interrupt."""
    with there.start("events", "-f", *options) as process:
        assert process.stdout is not None
        # It prints nothing when it is ready, so it starts at a cursor that the test knows.
        cause()
        read = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    return read, process.returncode


@pytest.mark.system
def test_following_prints_events_until_it_is_interrupted(there: Terminal) -> None:
    there.enqueue("add", 1, 2, work=True)
    start = there.read("events")["next"]
    jobs: list[str] = []
    lines, code = followed(
        there,
        *("--since-cursor", start, "--kind", "failed", "-o", "json"),
        lines=2,
        cause=lambda: jobs.extend(there.enqueue("bad", number, work=True) for number in range(2)),
    )

    assert [json.loads(line)["id"] for line in lines] == jobs
    assert code == 0


@pytest.mark.system
def test_following_can_end_after_a_number_of_events(there: Terminal) -> None:
    job = there.enqueue("bad", 1, work=True)
    ended = there.ended("events", "-f", "--since-cursor", "0", "--kind", "failed", "--limit", "1")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"default/{job}" in ended.stdout
    assert ended.stdout.count("\n") == 1
