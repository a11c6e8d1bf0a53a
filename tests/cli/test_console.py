"""`tenure console`: it serves from the URL alone, and starts only where it may; `jobs list --where`."""

import re
import signal
from collections.abc import Sequence

import pytest

from tests.cli.probe import probe
from tests.cli.terminal import EVERYWHERE, Terminal

SECRET = "0123456789abcdef0123"


def asked(there: Terminal, *args: str, token: str | None = None, paths: Sequence[str] = ("meta",)) -> list[object]:
    """Start the command on a free port, ask for these resources, and stop it; return the answers' JSON."""
    with there.start("console", "--port", "0", "--log-level", "error", *args) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\n", line)
            assert found is not None, line
            answers = [probe(int(found[1]), f"/api/v1/{path}", token=token).json for path in paths]
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, process.stderr and process.stderr.read()
    return answers


@pytest.mark.system
@EVERYWHERE
def test_it_serves_a_storage_without_code_of_the_user(there: Terminal) -> None:
    job_id = there.enqueue("add", 1, 2)
    meta, job, tasks = asked(there, "--read-only", "--redact", "a", paths=["meta", f"jobs/default/{job_id}", "tasks"])

    assert isinstance(meta, dict)
    assert isinstance(job, dict)
    assert meta["read_only"] is True
    assert meta["user"] == {"name": "local", "role": "admin", "queues": None}
    assert job["arguments"] == {"a": "[redacted]", "b": 2}
    assert tasks == {"tasks": []}


@pytest.mark.system
def test_it_asks_for_the_tokens_of_a_file(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    there.write("tokens", f"ann:operate:{SECRET}\n")
    (meta,) = asked(there, "--token-file", "tokens", token=SECRET)
    (refused,) = asked(there, "--token-file", "tokens")

    assert isinstance(meta, dict)
    assert isinstance(refused, dict)
    assert meta["user"]["name"] == "ann"
    assert refused["type"] == "urn:tenure:problem:unauthorized"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--host", "0.0.0.0"],
            "can be reached from other machines and no token is asked for; give --token",
        ),
        (["--token-file", "nowhere"], "the token file nowhere cannot be read"),
        (["--token-file", "empty"], "the token file empty has no token; write NAME:ROLE:SECRET into it"),
        (["--token-file", "short"], "the secret of 'ann' must have at least 16"),
        (["--proxy-peer", "proxy"], "peers = 'proxy' is not a network"),
        (["--url", "memory://"], "a memory storage belongs to one process"),
        (["--url", "sqlite:///none.db"], "no database exists at"),
        (["--url", "sqlite:///none.db", "tasks:app"], "tasks:app has a storage of its own"),
    ],
)
def test_it_does_not_start_where_it_may_not(there: Terminal, args: list[str], message: str) -> None:
    there.enqueue("add", 1, 2)
    there.write("empty", "")
    there.write("short", "ann:read:hunter2")
    said = there.refused("console", *args)

    assert message in said
    assert "hunter2" not in said


# ── the filter ────────────────────────────────────────────────────────────────────────────────────────────────────────


@EVERYWHERE
def test_a_list_can_be_narrowed_by_a_filter(there: Terminal) -> None:
    added = there.enqueue("add", 1, 2, tags=["customer:7"])
    failed = there.enqueue("bad", 1, work=True)
    other = there.enqueue("elsewhere")

    def listed(where: str, *more: str) -> list[str]:
        return [job["id"] for job in there.read("jobs", "list", "--where", where, *more)["jobs"]]

    assert listed("") == [other, failed, added]
    assert listed("state:failed error:Value*") == [failed]
    assert listed("customer:7") == [added]
    assert listed("task:*d queue:default") == [failed, added]
    assert listed("task:*d", "--limit", "1") == [failed]
    assert listed("queue:else*,x age:<1h") == [other]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--where", "state:faild"], "filter, character 7: state 'faild' is unknown; did you mean 'failed'?"),
        (["--where", "state:failed", "--queue", "mail"], "--where replaces the other filters"),
        (["--where", "", "--after", "x!"], "--after 'x!' is not a cursor"),
    ],
)
def test_an_invalid_filter_is_refused(there: Terminal, args: list[str], message: str) -> None:
    there.enqueue("add", 1, 2)

    assert message in there.refused("jobs", "list", *args)


def test_unknown_names_of_a_filter_are_warned_of(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    result = there.run("jobs", "list", "--where", "queue:defalt task:a*")

    assert "warning: queue 'defalt' is unknown; did you mean 'default'?" in result.stderr
