"""`tenure dead`: listing, grouping, redriving and purging failed jobs, and asking before that."""

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tenure
from tests.cli.terminal import EVERYWHERE, Terminal

pytestmark = pytest.mark.thorough


def fail(there: Terminal, count: int) -> list[str]:
    """Return the ids of failed jobs, the oldest first."""
    return [there.enqueue("bad", number, tags=[f"n{number}"], work=number == count - 1) for number in range(count)]


def test_a_list_shows_reason_error_and_runs_without_arguments(there: Terminal) -> None:
    (job,) = fail(there, 1)
    there.enqueue("add", 1, 2)
    (seen,) = there.read("dead", "list")["letters"]

    assert seen.keys() == {
        *("queue", "id", "task", "reason", "fault", "error", "tags", "created", "started", "failed", "starts"),
        *("failures", "stalls", "releases", "redrives", "redrive_at", "runs", "arguments"),
    }
    assert (seen["id"], seen["task"], seen["reason"], seen["starts"]) == (job, "bad", "exhausted", 1)
    assert (seen["error"]["type"], seen["error"]["message"]) == ("ValueError", "not 0\nreally not")
    assert [(run["number"], run["ended"]) for run in seen["runs"]] == [(1, "raised")]
    assert seen["arguments"] is None
    assert there.read("dead", "list", "--arguments")["letters"][0]["arguments"] == {"number": 0}

    header, line = there.run("dead", "list").stdout.splitlines()
    assert header.split() == ["id", "queue", "task", "reason", "error", "runs", "failed", "fault"]
    assert "ValueError: not 0 really not" in line
    assert line.endswith(seen["fault"])
    assert '"number":0' not in line
    assert '{"number":0}' in there.run("dead", "list", "--arguments").stdout


def test_a_list_can_be_narrowed_and_continues_at_its_cursor(there: Terminal) -> None:
    ids = fail(there, 3)
    fault = there.read("dead", "groups")["groups"][0]["fault"]

    def listed(*options: str) -> list[str]:
        return there.run("dead", "list", "--quiet", *options).stdout.split()

    assert listed() == ids[::-1]
    assert listed("--tag", "n1") == [ids[1]]
    assert listed("--task", "bad", "--queue", "default", "--reason", "exhausted", "--error", "ValueError") == ids[::-1]
    assert listed("--fault", fault, "--since", "1h") == ids[::-1]
    assert listed("--until", "1h") == listed("--error", "KeyError") == listed("--until", "2020-01-01") == []
    assert listed("--since", "2020-01-01T10:00:00Z") == ids[::-1]

    first = there.read("dead", "list", "--limit", "2", "--error", "ValueError")
    second = there.read("dead", "list", "--limit", "2", "--error", "ValueError", "--after", first["next"])
    assert [event["id"] for page in (first, second) for event in page["letters"]] == ids[::-1]
    assert second["next"] is None
    lines = there.run("dead", "list", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ids[::-1]


@EVERYWHERE
def test_groups_name_each_error_once(there: Terminal) -> None:
    ids = fail(there, 3)
    seen = there.read("dead", "groups")
    (group,) = seen["groups"]

    assert (seen["total"], seen["others"]) == (3, 0)
    assert group.keys() == {"fault", "task", "reason", "error", "message", "count", "first", "last", "newest"}
    assert (group["task"], group["reason"], group["error"], group["count"]) == ("bad", "exhausted", "ValueError", 3)
    assert {ref["id"] for ref in group["newest"]} == set(ids)
    assert there.run("dead", "groups", "--quiet").stdout.strip() == group["fault"]
    header, line = there.run("dead", "groups").stdout.splitlines()
    assert header.split() == ["fault", "jobs", "task", "reason", "error", "first", "last"]
    assert line.split()[:4] == [group["fault"], "3", "bad", "exhausted"]


@EVERYWHERE
def test_a_redrive_is_limited_and_a_repeated_one_has_no_effect(there: Terminal) -> None:
    ids = fail(there, 3)

    first = there.read("dead", "redrive", "--limit", "2", "--yes")
    assert [ref["id"] for ref in first["done"]] == ids[:2]
    assert (first["refused"], first["gone"], first["left"], first["duration"]) == ([], [], 1, 0.0)
    assert there.run("dead", "redrive", "--yes").stdout == "1 dead letter was put back into their queues\n"
    assert there.run("dead", "redrive", "--yes").stdout == "0 dead letters were put back into their queues\n"
    assert there.run("dead", "redrive").stdout == "0 dead letters were put back into their queues\n"
    assert [job["state"] for job in there.read("jobs", "list")["jobs"]] == ["waiting"] * 3


@pytest.mark.system
def test_a_paced_redrive_is_stored_before_the_command_ends(there: Terminal) -> None:
    fail(there, 4)
    began = time.monotonic()
    ended = there.ended("dead", "redrive", "--rate", "0.01", "--yes")
    took = time.monotonic() - began

    assert ended.stdout == "4 dead letters were put back into their queues, the last of them in 5.0 m\n"
    assert (ended.returncode, ended.stderr) == (0, "")
    assert took < 30
    assert sorted(job["state"] for job in there.read("jobs", "list")["jobs"]) == ["delayed"] * 3 + ["waiting"]


def test_a_dry_run_changes_nothing(there: Terminal) -> None:
    fail(there, 3)

    assert there.run("dead", "redrive", "--dry-run", "--limit", "2").stdout == (
        "2 dead letters would be put back into their queues; 3 match\n"
    )
    assert there.read("dead", "purge", "--dry-run", "--all", "--yes")["left"] == 3
    assert len(there.read("dead", "list")["letters"]) == 3


def test_without_a_terminal_nothing_is_done_without_yes(there: Terminal) -> None:
    ids = fail(there, 3)

    assert "Redrive 2 of 3 dead letters? This is not a terminal to ask on; give --yes" in there.refused(
        *("dead", "redrive", "--limit", "2")
    )
    assert "Delete 1 dead letter?" in there.refused("dead", "purge", "--tag", "n1")
    assert "for good? This is not a terminal to ask on; give --yes" in there.refused("jobs", "delete", ids[0])
    assert len(there.read("dead", "list")["letters"]) == 3


def test_a_purge_needs_a_filter_or_all(there: Terminal) -> None:
    ids = fail(there, 3)

    assert "narrow it, with --task for example, or give --all" in there.refused("dead", "purge", "--yes")
    assert there.run("dead", "purge", "--tag", "n1", "--yes").stdout == "1 dead letter was deleted\n"
    assert there.run("jobs", "show", ids[1]).exit_code == 4
    assert [ref["id"] for ref in there.read("dead", "purge", "--all", "--yes")["done"]] == [ids[0], ids[2]]
    assert there.read("jobs", "list")["jobs"] == []


def test_invalid_arguments_print_one_line_and_exit_with_2(there: Terminal) -> None:
    fail(there, 1)

    assert "--fault = 'abc' must be 12 hexadecimal digits" in there.refused("dead", "list", "--fault", "abc")
    assert "--since = 'soon' is not a duration" in there.refused("dead", "list", "--since", "soon")
    assert "or give an instant, such as 2026-" in there.refused("dead", "list", "--since", "yesterday")
    assert "--since = 1:00:00 ago must lie before --until = 2:00:00 ago" in there.refused(
        *("dead", "list", "--since", "1h", "--until", "2h")
    )
    for rate in ("0", "nan", "inf", "ten", ""):
        assert "--rate = " in there.refused("dead", "redrive", "--rate", rate, "--yes")
    assert "'tired' is not one of" in there.refused("dead", "groups", "--reason", "tired")
    assert "--queue = '\\udcff' must be a text" in there.refused("dead", "list", "--queue", "\udcff")


@pytest.mark.parametrize("cursor", ["soon", "", "-1", str(2**63), "9" * 5000])
def test_an_invalid_cursor_is_refused(there: Terminal, cursor: str) -> None:
    fail(there, 1)

    output = there.refused("dead", "list", "--after", cursor)
    assert output.startswith(f"error: --after {cursor[:1] and repr(cursor)[:2]}")
    assert "is not a cursor; use the one at the end of the previous page" in output
    assert len(output) < 200


@pytest.mark.parametrize("instant", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"])
@pytest.mark.parametrize("flag", ["--since", "--until"])
def test_an_instant_beyond_the_calendar_is_refused(there: Terminal, flag: str, instant: str) -> None:
    fail(there, 1)

    assert f"{flag} = {instant} lies outside the years 1 to 9999 in UTC; give" in there.refused(
        *("dead", "list", flag, instant)
    )


@pytest.mark.parametrize("flag", ["--fault", "--error", "--task", "--queue", "--reason", "--tag", "--since", "--until"])
@pytest.mark.parametrize("command", [("list",), ("groups",), ("redrive", "--yes"), ("purge", "--yes")], ids=" ".join)
def test_an_empty_filter_is_a_mistake_not_an_omitted_one(there: Terminal, command: tuple[str, ...], flag: str) -> None:
    fail(there, 2)
    more = ("--task", "bad") if flag == "--queue" else ("--queue", "default")

    assert flag in there.refused("dead", *command, *more, flag, "")
    assert [job["state"] for job in there.read("jobs", "list")["jobs"]] == ["failed", "failed"]


@pytest.mark.system
def test_ids_and_queues_are_not_broken_on_a_narrow_terminal(there: Terminal) -> None:
    (job,) = fail(there, 1)
    seen = there.drawn("dead", "list")

    assert any(line.split()[:2] == [job, "default"] for line in seen.splitlines()), seen


@pytest.mark.system
@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, 0), ("n", 1, 2)])
def test_a_user_at_a_terminal_is_asked_to_confirm(there: Terminal, answer: str, code: int, left: int) -> None:
    fail(there, 2)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "tenure", "dead", "purge", "--task", "bad"],
        cwd=there.place,
        env=os.environ | {"PYTHONPATH": str(Path(tenure.__file__).parents[1])},
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    ) as process:
        os.close(theirs)
        asked = b""
        while b"?" not in asked:
            asked += os.read(ours, 1024)
        os.write(ours, f"{answer}\n".encode())
        process.communicate(timeout=60)
    os.close(ours)

    assert b"Delete 2 dead letters?" in asked
    assert process.returncode == code
    assert len(there.read("dead", "list")["letters"]) == left


@EVERYWHERE
def test_jobs_are_deleted_by_id_unless_they_run(there: Terminal) -> None:
    first, second = there.enqueue("add", 1, 2), there.enqueue("add", 3, 4)

    assert there.read("jobs", "delete", first, "--yes") == [
        {"queue": "default", "id": first, "verdict": "done", "was": "waiting", "holder": None}
    ]
    assert there.run("jobs", "delete", second, "--yes").stdout == f"job {second} of queue default is deleted\n"
    assert there.run("jobs", "delete", second, "--yes").exit_code == 4
    assert there.read("jobs", "list")["jobs"] == []
