"""A database that this user may not use: the message names the user, the path and the missing right."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.cli.main import root
from tests.cli.terminal import one_line

AS_ANOTHER_USER = """
import os
import sys
import tenure.cli.access, tenure.cli.info, tenure.cli.migrate, tenure.cli.queues, tenure.storage.sqlite.storage
from tenure.cli.main import root
if os.geteuid() == 0:
    # The superuser may do everything.
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
root.main(sys.argv[1:])
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a directory with a database; every user may enter the directories above it."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    place.chmod(0o755)
    path = place / "jobs"
    path.mkdir()
    with pytest.raises(SystemExit) as done:
        root.main(["migrate", "up", "--quiet", "--url", f"sqlite:///{path}/jobs.db"])
    assert done.value.code == 0
    yield path
    path.chmod(0o755)
    shutil.rmtree(place)


def refused(folder: Path, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER_USER, *args, "--url", f"sqlite:///{folder}/jobs.db"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    return one_line(done.stderr)


@pytest.mark.parametrize("args", [("info",), ("queues", "pause", "default"), ("migrate", "up")])
def test_a_directory_without_write_permission_is_named(folder: Path, args: tuple[str, ...]) -> None:
    folder.chmod(0o555)
    output = refused(folder, *args)

    assert f"may not write the directory {folder} (dr-xr-xr-x, owner " in output
    assert "give the right to write (w) on the directory" in output


def test_a_directory_that_may_not_be_entered_is_named(folder: Path) -> None:
    folder.chmod(0o600)

    assert f"may not enter the directory {folder} (drw-------, owner " in refused(folder, "info")


@pytest.mark.parametrize("name", ["jobs.db", "jobs.db.lock"])
def test_a_file_without_write_permission_is_named(folder: Path, name: str) -> None:
    folder.chmod(0o777)
    for file in folder.iterdir():
        file.chmod(0o444 if file.name == name else 0o666)
    output = refused(folder, "queues", "pause", "default", "--force")

    assert f"may not write {folder / name} (-r--r--r--, owner " in output
    assert "give the right to write (w)" in output


def test_a_file_without_read_permission_is_named(folder: Path) -> None:
    folder.chmod(0o777)
    for file in folder.iterdir():
        file.chmod(0o000 if file.name == "jobs.db" else 0o666)
    output = refused(folder, "info")

    assert os.geteuid() or f"user {pwd.getpwuid(65534).pw_name} may" in output
    assert f"may not read or write {folder / 'jobs.db'} (----------, owner " in output
