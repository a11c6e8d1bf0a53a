"""`tenure health` and `tenure serve`, and mistakes that are refused before a server listens."""

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import UsageError
from tenure.http.server import ListenAddress
from tests.cli.probe import probe
from tests.cli.terminal import TASKS, Terminal, one_line

pytestmark = pytest.mark.thorough

KEYS = {"status", "now", "queues", "workers", "reaper", "complaints"}


@pytest.fixture
def tasks(there: Terminal) -> Terminal:
    there.write("tasks.py", TASKS)
    return there


def port_of(process: "subprocess.Popen[str]") -> int:
    """Return the port that a process prints that it serves."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"served on http://.*:(\d+)$", line.strip()):
            return int(found[1])
    raise AssertionError("it serves nothing")


# ── health ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.statement(44)
def test_health_exits_with_0_if_all_is_well_and_names_the_apps_queues(tasks: Terminal) -> None:
    tasks.enqueue("add", 1, 2, work=True)
    seen = tasks.read("health", "tasks:app")

    assert seen.keys() == KEYS
    assert seen["status"] == "ok"
    assert seen["queues"]["default"]["completed"] == 1
    assert tasks.run("health").stdout.startswith("ok\n")


@pytest.mark.statement(48)
def test_health_exits_with_3_if_jobs_wait_and_no_worker_lives(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    plain = there.run("health")

    assert plain.exit_code == 3
    assert plain.stdout.splitlines()[:2] == ["degraded", "queue 'default': 1 job waits and no live worker serves it"]
    assert there.read("health", code=3)["status"] == "degraded"
    assert there.read("health", "-q", "default", code=3)["queues"].keys() == {"default"}


@pytest.mark.statement(48)
def test_health_exits_with_4_if_only_the_name_of_a_queue_is_wrong(tasks: Terminal) -> None:
    tasks.enqueue("add", 1, 2, work=True)
    seen = tasks.read("health", "-q", "default,deflaut", code=4)

    assert (seen["status"], seen["queues"].keys()) == ("degraded", {"default", "deflaut"})
    assert seen["complaints"] == [
        "queue 'deflaut': unknown: it never had a job and no task uses it; check the spelling"
    ]
    tasks.enqueue("add", 1, 2)
    assert tasks.run("health", "-q", "default,deflaut").exit_code == 3
    assert tasks.run("health", "-q", "deflaut").exit_code == 4


@pytest.mark.statement(45)
def test_health_exits_with_1_without_its_storage_and_creates_none(there: Terminal) -> None:
    seen = there.read("health", code=1)

    assert seen.keys() == KEYS
    assert seen["status"] == "unreachable"
    assert [*there.place.glob("jobs.db*")] == []


@pytest.mark.statement(50)
def test_health_watches_a_backlog_for_as_long_as_its_time_limit(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    there.enqueue("elsewhere")
    lasting = there.read("health", "--backlog", "default=0", "--backlog-for", "100ms", code=3)
    few = there.read("health", "--backlog", "1", "--backlog-for", "1d", code=3)

    assert lasting["status"] == "unhealthy"
    assert lasting["queues"]["default"]["above_for"] > 0.1
    assert lasting["queues"]["elsewhere"]["threshold"] is None
    assert few["status"] == "degraded"


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────────

SERVING = [("serve",), ("worker", "tasks:app"), ("worker", "tasks:app", "--processes", "2"), ("reaper",)]


@pytest.mark.statement(46)
@pytest.mark.parametrize("command", SERVING, ids=" ".join)
@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:80", "example.org:80"])
def test_no_server_listens_beyond_this_machine_without_a_token(
    tasks: Terminal, command: tuple[str, ...], address: str
) -> None:
    output = tasks.refused(*command, "--http", address)

    assert "no token is asked for; set TENURE_HTTP_TOKEN or give --http-token-file, or listen on 127.0.0.1" in output


@pytest.mark.parametrize(
    "address", ["", "x", ":", ":80", "localhost", "1.2.3.4:", "80:80:80", "::1:80", "65536", "-1", "127.0.0.1:1e3"]
)
def test_an_invalid_address_is_refused(there: Terminal, address: str) -> None:
    assert "write 8080, 127.0.0.1:8080 or [::1]:8080" in there.refused("serve", f"--http={address}")


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("8080", ListenAddress("127.0.0.1", 8080), True),
        ("127.9.9.9:1", ListenAddress("127.9.9.9", 1), True),
        ("localhost:1", ListenAddress("localhost", 1), True),
        ("[::1]:65535", ListenAddress("::1", 65535), True),
        ("0.0.0.0:1", ListenAddress("0.0.0.0", 1), False),
        ("[::]:1", ListenAddress("::", 1), False),
        ("localhost.example.org:1", ListenAddress("localhost.example.org", 1), False),
    ],
)
def test_a_port_alone_means_this_machine_only(text: str, address: ListenAddress, loopback: bool) -> None:
    assert ListenAddress.read(text, field="--http") == address
    assert address.loopback is loopback


@pytest.mark.parametrize("command", SERVING, ids=" ".join)
def test_an_address_that_is_taken_is_refused(tasks: Terminal, command: tuple[str, ...]) -> None:
    tasks.enqueue("add", 1, 2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = tasks.ended(*command, "--http", str(taken.getsockname()[1]))

    assert done.returncode == 2
    assert re.search(r"^error: cannot listen on 127.0.0.1:\d+: Address already in use; choose", done.stderr, re.M)


def test_a_mistake_in_the_token_starts_no_server(there: Terminal) -> None:
    empty = there.place / "empty"
    empty.write_text("\n")

    assert "the token is empty" in there.refused("serve", env={"TENURE_HTTP_TOKEN": ""})
    assert "the token is empty" in there.refused("serve", "--http-token", "")
    assert "is empty" in there.refused("serve", "--http-token-file", str(empty))
    assert "cannot be read" in there.refused("serve", "--http-token-file", "nowhere")
    assert "visible ASCII" in there.refused("serve", "--http-token", "two words")
    assert "fill TENURE_SERVE_HTTP_TOKEN" in there.refused("serve", env={"TENURE_SERVE_HTTP_TOKEN": ""})


@pytest.mark.parametrize("command", SERVING, ids=" ".join)
def test_a_token_that_no_header_can_carry_starts_no_server(tasks: Terminal, command: tuple[str, ...]) -> None:
    tasks.enqueue("add", 1, 2)
    (tasks.place / "token").write_text("two words")

    for options in (("--http-token", "two words"), ("--http-token-file", "token")):
        done = tasks.ended(*command, "--http", "127.0.0.1:1", *options)

        assert done.returncode == 2
        assert "visible ASCII" in one_line(done.stderr)


@pytest.mark.parametrize(
    "options",
    [
        *(("--backlog", "5"), ("--backlog", "x"), ("--backlog-for", "1m"), ("--degraded-is", "503")),
        *(("--http-token", "s3cret"), ("--http-token-file", "nowhere")),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("command", [("worker", "tasks:app"), ("reaper",)], ids=" ".join)
def test_options_of_a_server_are_a_mistake_where_none_is_started(
    tasks: Terminal, command: tuple[str, ...], options: tuple[str, ...]
) -> None:
    assert f"{options[0]} configures the health server, which is off; give --http" in tasks.refused(*command, *options)


def test_health_requires_exactly_one_storage(tasks: Terminal) -> None:
    assert "give either --url or the app" in tasks.refused("health", "nope:app", "--url", tasks.url)


def test_serve_refuses_an_address_where_no_storage_can_ever_exist(there: Terminal) -> None:
    output = there.refused("serve", "--http", "0", "--url", f"sqlite:///{there.place}/nowhere/jobs.db")

    assert "does not exist" in output


@pytest.mark.parametrize("backlog", ["x", "=5", "mail=", "mail=-1", "-1", "1.5", "mail"])
def test_an_invalid_threshold_is_refused(there: Terminal, backlog: str) -> None:
    assert "--backlog" in there.refused("health", f"--backlog={backlog}")
    assert "--backlog" in there.refused("serve", f"--backlog={backlog}")


def test_without_uvicorn_the_error_names_the_package(there: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    # Python does this for a missing package.
    monkeypatch.setitem(sys.modules, "uvicorn", None)

    assert 'pip install "tenure[web]"' in there.refused("serve")


async def test_a_users_own_server_also_refuses_to_listen_without_a_token() -> None:
    from tenure import Tenure
    from tenure.http.server import HTTPServer

    with pytest.raises(UsageError, match="no token"):
        HTTPServer(
            Tenure("memory://").health(unprotected=True),
            ListenAddress("0.0.0.0", 0),
            purpose="health",
            protected=False,
        )


# ── serve ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.system
@pytest.mark.statement(44, 46)
@pytest.mark.parametrize("where", ["environment", "own variable", "file", "flag"])
def test_serve_needs_no_worker_and_checks_a_token_from_any_source(tasks: Terminal, where: str) -> None:
    tasks.enqueue("add", 1, 2)
    (tasks.place / "token").write_text("s3cret\n")
    env: dict[str, Any] = {
        "environment": {"TENURE_HTTP_TOKEN": "s3cret"},
        # The flag wins over the environment.
        "own variable": {"TENURE_HTTP_TOKEN": "another", "TENURE_SERVE_HTTP_TOKEN": "s3cret"},
    }.get(where, {})
    flags = {
        "environment": (),
        "own variable": (),
        "file": ("--http-token-file", "token"),
        "flag": ("--http-token", "s3cret"),
    }[where]
    with tasks.start("serve", "tasks:app", "--http", "0", "--degraded-is", "503", *flags, env=env) as process:
        port = port_of(process)
        closed = probe(port, "/health/queues")
        wrong = probe(port, "/health/queues", token="wrong")
        seen = probe(port, "/health/queues", token="s3cret")
        head = probe(port, "/health/queues", token="s3cret", method="HEAD")
        words = [(probe(port, path).status, probe(port, path).body) for path in ("/live", "/ready")]
        process.send_signal(signal.SIGTERM)
        _, output = process.communicate(timeout=30)

    assert (closed.status, closed.body) == (wrong.status, wrong.body) == (401, b'{"error":"unauthorized"}')
    assert "www-authenticate" in closed.headers
    assert seen.status == 503
    assert (seen.json["status"], seen.json["workers"]) == ("degraded", [])
    assert seen.json["queues"]["default"]["waiting"] == 1
    assert (head.status, head.body) == (503, b"")
    assert "server" not in seen.headers
    assert words == [(200, b"yes"), (200, b"yes")]
    assert process.returncode == 0
    assert "s3cret" not in output


@pytest.mark.system
@pytest.mark.statement(45)
def test_serve_waits_for_a_storage_that_does_not_exist_yet(there: Terminal) -> None:
    with there.start("serve", "--http", "0") as process:
        port = port_of(process)
        before = probe(port, "/health/queues")
        unready = probe(port, "/ready")
        there.enqueue("add", 1, 2, work=True)
        after = probe(port, "/health/queues")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)

    assert (before.status, before.json["status"]) == (503, "unreachable")
    assert (unready.status, unready.body) == (503, b"no")
    assert (after.status, after.json["queues"]["default"]["completed"]) == (200, 1)
    assert process.returncode == 0


def test_serve_requires_exactly_one_storage(tasks: Terminal) -> None:
    output = tasks.refused("serve", "tasks:app", "--url", "sqlite:///other.db")

    assert "give either --url or the app" in output
    assert not Path("other.db").exists()
