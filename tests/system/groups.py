"""Control groups of our own, in which the kernel kills for memory: where a machine lets us make one."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

MOST = 256 << 20
"""Bytes that all processes of a group may take together."""

_ROOT = Path("/sys/fs/cgroup")


@contextmanager
def small_group() -> Generator[Path | None, None, None]:
    """Make a control group of cgroup v1 or v2 for a while; None where that cannot be."""
    for parent, limit in [(_ROOT / "memory", "memory.limit_in_bytes"), (_ROOT, "memory.max")]:
        group = parent / f"tenure-test-{os.getpid()}"
        if parent == _ROOT and not (_ROOT / "cgroup.controllers").exists():
            continue
        try:
            group.mkdir()
            (group / limit).write_text(str(MOST))
        except OSError:
            shutil.rmtree(group, ignore_errors=True)
            continue
        try:
            yield group
        except BaseException as error:
            error.add_note(told(group))
            raise
        finally:
            _clear(group)
            group.rmdir()
        return
    yield None


def told(group: Path) -> str:
    """Say what a group has come to: how full it is, what the kernel did there, and who is in it."""
    lines = [f"{group.name}:"]
    names = ("memory.usage_in_bytes", "memory.failcnt", "memory.oom_control", "memory.current", "memory.events")
    for path in [group / name for name in names if (group / name).exists()]:
        lines.append(f"  {path.name}: {', '.join(path.read_text().splitlines())}")
    for pid in _inhabitants(group):
        with contextlib.suppress(OSError):
            of = Path(f"/proc/{pid}")
            occupied = next((line for line in (of / "status").read_text().splitlines() if "VmRSS" in line), "no memory")
            command = (of / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            lines.append(f"  {pid}: {occupied}, oom_score_adj {(of / 'oom_score_adj').read_text().strip()}: {command}")
    return "\n".join(lines)


def _inhabitants(group: Path) -> list[int]:
    return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]


def _clear(group: Path) -> None:
    """End whoever is left there: a group with somebody in it cannot go."""
    end = time.monotonic() + 10
    while (pids := _inhabitants(group)) and time.monotonic() < end:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


@cache
def can_be_made() -> bool:
    """Say whether this machine lets us make one."""
    with small_group() as group:
        return group is not None
