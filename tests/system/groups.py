"""Our own control groups, in which the kernel kills for memory, on machines where one can be created."""

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
"""Bytes that all processes of a group may use together."""

_ROOT = Path("/sys/fs/cgroup")


@contextmanager
def small_group() -> Generator[Path | None, None, None]:
    """Create a control group of cgroup v1 or v2 for a while; None if that is impossible."""
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
            error.add_note(state_of(group))
            raise
        finally:
            _clear(group)
            group.rmdir()
        return
    yield None


def state_of(group: Path) -> str:
    """Describe the state of a group: its memory, what the kernel did there, and its processes."""
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
    """Kill the processes that are left: a group with processes cannot be removed."""
    end = time.monotonic() + 10
    while (pids := _inhabitants(group)) and time.monotonic() < end:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


@cache
def can_be_made() -> bool:
    """Return whether a group can be created on this machine."""
    with small_group() as group:
        return group is not None
