"""Which changes of files count as a change of code, and which do not."""

import os
import py_compile
from pathlib import Path

from tenure.supervisor.reload import Sources


def test_written_created_and_deleted_files_are_reported_as_changed_once(tmp_path: Path) -> None:
    written, made, deleted = tmp_path / "a.py", tmp_path / "package" / "b.py", tmp_path / "c.py"
    made.parent.mkdir()
    written.write_text("1")
    deleted.write_text("1")
    sources = Sources([tmp_path])
    assert sources.changed() == []
    written.write_text("22")
    made.write_text("")
    deleted.unlink()

    assert sources.changed() == [written, deleted, made]
    assert sources.changed() == []


def test_a_file_that_keeps_its_length_is_recognized_by_its_time(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("1")
    sources = Sources([tmp_path])
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))

    assert sources.changed() == [file]


def test_caches_hidden_files_and_foreign_folders_do_not_count_as_code(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text("1")
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /usr")
    sources = Sources([tmp_path])
    py_compile.compile(str(source))
    for name in ("notes.txt", "a.pyc", ".#a.py", "venv/b.py", ".git/c.py", "__pycache__/d.py", "x/site-packages/e.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1")

    assert sources.changed() == []


def test_only_the_named_folders_count_and_one_may_be_created_later(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    other.mkdir()
    sources = Sources([mine])
    (other / "a.py").write_text("1")
    assert sources.changed() == []
    mine.mkdir()
    (mine / "a.py").write_text("1")

    assert sources.changed() == [mine / "a.py"]


def test_an_unreadable_folder_hides_no_other(tmp_path: Path) -> None:
    # The paths in it are too long for the system, which refuses them even to root.
    deepest = tmp_path
    while len(str(deepest)) < 4_000:
        deepest = deepest / ("x" * min(200, 4_085 - len(str(deepest))))
    deepest.mkdir(parents=True)
    sources = Sources([tmp_path])
    (tmp_path / "a.py").write_text("1")

    assert sources.changed() == [tmp_path / "a.py"]
