"""Control groups of our own, in which the kernel kills for memory: where a machine lets us make one."""

import os
import shutil
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
        group = parent / f"holdfast-test-{os.getpid()}"
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
        finally:
            group.rmdir()
        return
    yield None


@cache
def can_be_made() -> bool:
    """Say whether this machine lets us make one."""
    with small_group() as group:
        return group is not None
