"""The whole demo as a user runs it: exit 0 with every check green, and nothing left behind however it ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest

from tenure_testing.demo.processes import alive

DEMO = [sys.executable, "-m", "tenure_testing.demo"]
CHECKS = 14


def environment(folder: Path) -> dict[str, str]:
    source = Path(__file__).parent.parent.parent / "src"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    return {**inherited, "PYTHONPATH": str(source), "TMPDIR": str(folder)}


def run(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*DEMO, *options], env=environment(folder), capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.system
def test_the_demo_kills_pauses_audits_and_exits_with_0(tmp_path: Path) -> None:
    done = run(tmp_path, "--jobs", "150", "--plain")

    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert output.count("\nok  ") == CHECKS, output
    assert output.count("SIGKILL  ") == 2, output
    assert "SIGSTOP  " in output, output
    assert "SIGCONT  " in output, output
    assert "process_died" in output, output
    assert "lease_expired" in output, output
    assert output.count("GIL HELD  ") == output.count("  kept  ") == 1, output
    assert "bad_handlers.py" in output.partition("post-mortem: its process was killed by signal 9")[2], output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.system
def test_the_demo_prints_its_report_as_one_json_object(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    done = run(tmp_path, "--jobs", "150", "--kills", "1", "--seed", "7", "--url", url, "-o", "json")

    assert done.returncode == 0, done.stdout + done.stderr
    report = msgspec.json.decode(done.stdout)
    assert (report["ok"], report["seed"], report["jobs"], report["url"]) == (True, 7, 150, url)
    assert [fault["kind"] for fault in report["faults"]] == ["kill", "pause"]
    assert len(report["checks"]) == CHECKS
    extra, stalled = report["runs"] - 150, len(report["recoveries"])
    [summary] = [check["summary"] for check in report["checks"] if check["name"] == "every extra run was announced"]
    # A prefetched job that had not begun is released, which is not a recovery.
    assert summary == f"{extra} extra runs: {stalled} after a stall, {extra - stalled} after a release"


@pytest.mark.system
def test_plain_output_and_an_open_console_contradict_each_other(tmp_path: Path) -> None:
    done = run(tmp_path, "--plain", "--open")

    assert done.returncode == 2
    assert "--plain has no console that --open could open" in done.stderr


@pytest.mark.system
def test_memory_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "--url", "memory://")

    assert done.returncode == 2
    assert "a memory storage belongs to one process; use sqlite:///..." in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.system
def test_an_interrupted_demo_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    with started(tmp_path, "--jobs", "1000") as demo:
        address = line_of(demo, "see it live: ").split()[-1]
        with urlopen(f"{address}api/v1/survey", timeout=30) as answer:
            queues = [queue["queue"] for queue in json.load(answer)["queues"]]
        # While one worker is paused: it handles no signal, so it must be resumed or killed like the others.
        paused = int(line_of(demo, "SIGSTOP").split()[2].rstrip(","))
        working = workers_of(tmp_path)
        demo.send_signal(signal.SIGINT)
        demo.communicate()

    assert demo.returncode == 130
    assert all(queue.startswith("demo-") for queue in queues)
    assert not alive(paused)
    assert not [pid for pid in working if alive(pid)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.system
def test_a_demo_whose_supervisor_dies_reports_it_and_fails(tmp_path: Path) -> None:
    with started(tmp_path, "--jobs", "1000") as demo:
        line_of(demo, "SIGSTOP")
        working = workers_of(tmp_path)
        supervisors = [pid for pid in working if b"--processes\x003\x00" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert supervisors, "none of the demo's processes is its supervisor"
        os.kill(supervisors[0], signal.SIGKILL)
        rest, _ = demo.communicate()

    assert demo.returncode == 1
    assert "the supervisor left with the exit status -9 before the jobs were done" in rest
    assert "FAILED  all jobs are completed" in rest
    assert "what the supervisor and its workers wrote to stderr:" in rest
    assert not [pid for pid in working if alive(pid)]
    assert list(tmp_path.iterdir()) == []


def started(folder: Path, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*DEMO, *options],
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def line_of(demo: "subprocess.Popen[str]", word: str) -> str:
    """Read up to the line that begins with this word."""
    assert demo.stdout is not None
    return next(line for line in demo.stdout if line.startswith(word))


def workers_of(folder: Path) -> set[int]:
    """Return the processes whose handler log is below this folder, if the system shows environments."""
    found: set[int] = set()
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            output = place.read_bytes()
        except OSError:
            continue
        if f"TENURE_DEMO_RUN_LOG={folder}".encode() in output:
            found.add(int(place.parent.name))
    return found
