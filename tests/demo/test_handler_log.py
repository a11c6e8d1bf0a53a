"""The handlers' log tells which runs are going on."""

from pathlib import Path

from msgspec import structs

from tenure_testing.demo.handler_log import HandlerLogLine, going_on, note


def test_a_run_goes_on_from_its_first_line_to_its_last(tmp_path: Path) -> None:
    log = tmp_path / "handler-log.jsonl"
    first = HandlerLogLine(job="a", run=1, fence=1, pid=1, mark="start")
    again = structs.replace(first, run=2, fence=2)
    assert going_on(log) == set()
    for line in (first, again, structs.replace(first, job="b"), structs.replace(first, mark="end")):
        note(str(log), line)
    assert going_on(log) == {("a", 2), ("b", 1)}
