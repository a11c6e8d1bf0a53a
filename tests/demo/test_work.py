"""The demo's work, corpus and handler log: exact, repeatable, and robust against a kill in the middle of a line."""

import hashlib
import lzma
from pathlib import Path
from random import Random

import pytest

from tenure.errors import UsageError
from tenure_testing.demo import handler_log
from tenure_testing.demo.corpus import LIMITS, Corpus, corpus, rounds
from tenure_testing.demo.handler_log import HandlerLogLine
from tenure_testing.demo.work import Facts, examine, is_python

SOURCE = b"x = 1\ny = x + 2\n"


def test_a_small_source_has_exactly_these_counts() -> None:
    assert examine(SOURCE, python=True) == Facts(
        sha256=hashlib.sha256(SOURCE).hexdigest(),
        size=16,
        lines=2,
        # ENCODING, x = 1 NEWLINE, y = x + 2 NEWLINE, ENDMARKER
        tokens=12,
        # Module; Assign, Name, Store, Constant; Assign, Name, Store, BinOp, Name, Load, Add, Constant
        nodes=13,
        lzma=len(lzma.compress(SOURCE)),
    )


def test_an_empty_file_has_no_lines() -> None:
    nothing = examine(b"", python=True)

    assert (nothing.size, nothing.lines, nothing.tokens, nothing.nodes) == (0, 0, 2, 1)


def test_a_last_line_without_a_break_counts() -> None:
    assert examine(b"a\nb", python=False).lines == 2


@pytest.mark.parametrize("data", [b"def (:\n", b"\x00\x01\xff", b"# coding: no-such\n", b"'''never closed"])
def test_bytes_that_are_not_python_have_no_nodes(data: bytes) -> None:
    assert examine(data, python=True).nodes == 0


def test_only_python_files_are_parsed() -> None:
    facts = examine(SOURCE, python=False)

    assert (facts.tokens, facts.nodes) == (0, 0)
    assert is_python("a/b.py")
    assert is_python("a/b.pyi")
    assert not is_python("a/py")


def test_the_work_can_be_stopped_between_its_steps() -> None:
    class Enough(Exception):
        pass

    def stop() -> None:
        raise Enough

    with pytest.raises(Enough):
        examine(SOURCE, python=True, between=stop)


def test_the_corpus_leaves_out_compiled_huge_and_foreign_files(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.py").write_bytes(SOURCE)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "data.txt").write_text("x")
    (tmp_path / "below" / "huge.bin").write_bytes(b"\0" * (LIMITS[0] + 1))
    (tmp_path / "link.py").symlink_to(tmp_path / "a.py")
    (tmp_path / "old.pyc").write_bytes(b"x")
    for name in ("__pycache__", "site-packages", "dist-packages"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "b.py").write_bytes(SOURCE)

    found = corpus([tmp_path, tmp_path / "below"])

    assert found == Corpus((str(tmp_path / "a.py"), str(tmp_path / "below" / "data.txt")), LIMITS[0])


def test_a_large_average_file_size_lowers_the_limit(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"small{number}").write_bytes(b"x")
    (tmp_path / "large").write_bytes(b"x" * (LIMITS[1] + 1))

    assert corpus([tmp_path]).limit == LIMITS[1]
    assert len(corpus([tmp_path]).files) == 3


def test_rounds_take_each_file_once_before_any_twice() -> None:
    paths = rounds(["a", "b", "c"], 7, Random(5))

    assert sorted(paths[:3]) == ["a", "b", "c"]
    assert paths[3:6] == paths[:3]
    assert len(paths) == 7


def test_rounds_follow_the_seed() -> None:
    known = [str(number) for number in range(100)]

    assert rounds(known, 10, Random(5)) == rounds(known, 10, Random(5))
    assert rounds(known, 10, Random(5)) != rounds(known, 10, Random(6))


def test_a_demo_without_files_is_refused() -> None:
    with pytest.raises(UsageError, match="no file lies below"):
        rounds([], 1, Random(5))


def test_a_handler_log_returns_its_lines_and_counts_incomplete_ones(tmp_path: Path) -> None:
    path = tmp_path / "handler-log"
    begun = HandlerLogLine(job="a", run=1, fence=7, pid=11, mark="start")
    ended = HandlerLogLine(job="a", run=1, fence=7, pid=11, mark="end", answer=examine(SOURCE, python=True))
    handler_log.note(str(path), begun)
    with path.open("ab") as torn:
        torn.write(b'\n{"job":"b","run"')
    handler_log.note(str(path), ended)

    assert handler_log.read(path, HandlerLogLine) == ([begun, ended], 1)


def test_a_missing_handler_log_is_empty(tmp_path: Path) -> None:
    assert handler_log.read(tmp_path / "none", HandlerLogLine) == ([], 0)
