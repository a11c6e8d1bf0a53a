"""Why a process ended: read from its status, and from the counters of a control group."""

import signal
from pathlib import Path

import pytest

from tenure.processes.exit_status import OomKills, describe
from tenure.processes.process import ProcessExit

KILLED = ProcessExit(-signal.SIGKILL)


def unified(folder: Path, *, path: str = "/app") -> Path:
    """Create a cgroup v2 as a process in it sees it; return the file with its counts."""
    events = folder / "fs" / path.lstrip("/") / "memory.events"
    events.parent.mkdir(parents=True, exist_ok=True)
    (folder / "own").write_text(f"0::{path}\n")
    return events


def first(folder: Path) -> Path:
    """Create a cgroup v1, in a container: the path is the host's, our group is mounted."""
    control = folder / "fs" / "memory" / "memory.oom_control"
    control.parent.mkdir(parents=True)
    (folder / "own").write_text("9:name=systemd:/\n4:memory,hugetlb:/docker/0815\n0::/\n")
    return control


def counted(events: Path, kills: int) -> None:
    events.write_text(f"low 0\nhigh 3\noom 7\noom_kill {kills}\noom_group_kill 0\n")


def looking(folder: Path) -> OomKills:
    return OomKills(folder / "fs", folder / "own")


def test_a_kill_that_the_control_group_counts_was_for_memory(tmp_path: Path) -> None:
    events = unified(tmp_path)
    counted(events, 3)
    kills = looking(tmp_path)

    assert kills.readable
    assert not kills.explains(KILLED, 1.0)

    counted(events, 4)

    assert not kills.explains(ProcessExit(-signal.SIGSEGV), 1.0)
    assert not kills.explains(ProcessExit(1), 1.0)
    assert kills.explains(KILLED, 1.0)


def test_each_kill_accounts_for_one_death(tmp_path: Path) -> None:
    events = unified(tmp_path)
    counted(events, 0)
    kills = looking(tmp_path)
    counted(events, 2)

    assert [kills.explains(KILLED, 1.0) for _ in range(3)] == [True, True, False]


def test_an_oom_kill_of_a_grandchild_does_not_explain_a_later_death(tmp_path: Path) -> None:
    events = unified(tmp_path)
    counted(events, 0)
    kills = looking(tmp_path)
    counted(events, 1)
    kills.look(1.0)

    assert not kills.explains(KILLED, 3.1)


def test_a_kill_may_be_counted_a_while_before_the_death_is_known(tmp_path: Path) -> None:
    events = unified(tmp_path)
    counted(events, 0)
    kills = looking(tmp_path)
    counted(events, 1)
    kills.look(1.0)
    kills.look(1.5)

    assert kills.explains(KILLED, 2.5)


def test_control_groups_version_1_are_read_also_in_a_container(tmp_path: Path) -> None:
    control = first(tmp_path)
    control.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    kills = looking(tmp_path)
    control.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")

    assert kills.explains(KILLED, 1.0)


@pytest.mark.parametrize("shape", ["nothing", "no count", "no file", "garbage", "an old kernel"])
def test_without_readable_counts_no_kill_is_called_an_oom_kill(tmp_path: Path, shape: str) -> None:
    match shape:
        case "no count":
            (tmp_path / "own").write_text("0::/app\n3:cpu:/\n")
        case "no file":
            unified(tmp_path)
        case "garbage":
            unified(tmp_path).write_text("oom_kill many\n")
        case _:
            first(tmp_path).write_text("oom_kill_disable 0\nunder_oom 0\n")
            if shape == "nothing":
                (tmp_path / "own").unlink()
    kills = looking(tmp_path)
    kills.look(1.0)

    assert not kills.readable
    assert not kills.explains(KILLED, 1.0)


@pytest.mark.parametrize(
    ("death", "how"),
    [
        (KILLED, "was killed by signal 9 (SIGKILL), cause unknown"),
        (ProcessExit(-signal.SIGSEGV), "crashed: signal 11 (SIGSEGV)"),
        (ProcessExit(-signal.SIGTERM), "was ended by signal 15 (SIGTERM)"),
        (ProcessExit(0), "exited with status 0"),
        (ProcessExit(70), "exited with status 70"),
        (ProcessExit(None), "ended, and its exit status is unknown"),
    ],
)
def test_describe_returns_a_clause(death: ProcessExit, how: str) -> None:
    assert describe(death, oom_killed=False) == how


def test_describe_names_a_known_kill_reason() -> None:
    assert describe(KILLED, oom_killed=True).startswith("was killed by the OOM killer (signal 9, SIGKILL)")
    assert describe(KILLED, oom_killed=False, kill_reason="killed by its supervisor: hung") == (
        "was killed by its supervisor: hung"
    )
