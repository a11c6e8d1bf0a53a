"""Post-mortems: they name the exceeded limit and all known facts, and accept texts of any length and content."""

from typing import Any

import pytest
from msgspec import structs

from tenure.core.job import LogLine, RunRecord, StallReason, StallTerms
from tenure.core.postmortem import (
    LINES,
    LONGEST,
    Ending,
    Workplace,
    first_line,
    post_mortem,
    size,
    stall_cause,
)
from tests.core.cases import active

SECOND = 1_000_000
NOW = 1_800_000_000 * SECOND
TRACE = '  File "/srv/app/mail.py", line 12, in send\n    body = render(order)\n'


def taken(**fields: Any) -> Any:
    """Return a job as its new holder sees it: its run began 12 s ago."""
    return structs.replace(active(), starts=2, heard_at=NOW, **fields)


def a_run(trace: str | None = None) -> RunRecord:
    return RunRecord(
        number=2,
        fence=7,
        owner="0" * 16,
        worker="web-1:42",
        host="web-1",
        pid=42,
        start=NOW - 12 * SECOND,
        trace=trace,
    )


def said(number: int, message: str = "sent", **fields: str) -> LogLine:
    return LogLine(at=NOW - SECOND, run=2, level="info", message=f"{message} {number}", fields=fields)


def text(**options: Any) -> str:
    job = options.pop("job", None) or taken()
    fields: dict[str, Any] = {"silent_for": 3_200_000, "died": True, **options}
    return post_mortem(job, "its process died", **fields)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("process_died", "its process died, and its exit status is unknown"),
        ("lease_expired", "its worker was silent for 27.0 s, longer than the lease of 20s"),
        ("no_progress", "its handler gave no sign of progress for longer than its heartbeat_timeout of 5s"),
        ("loop_blocked", "the event loop of its worker was blocked for longer than max_block of 10m"),
    ],
)
def test_the_cause_names_the_exceeded_limit_and_its_length(reason: StallReason, expected: str) -> None:
    job = taken(heartbeat_timeout=5 * SECOND)

    assert stall_cause(job, reason, silent_for=27 * SECOND, max_block=600 * SECOND) == expected


def test_the_cause_of_a_death_is_how_the_process_ended() -> None:
    ending = Ending("was killed by signal 9 (SIGKILL), cause unknown")

    assert stall_cause(taken(), "process_died", silent_for=0, ending=ending) == (
        "its process was killed by signal 9 (SIGKILL), cause unknown"
    )


def test_a_run_past_its_limit_is_distinguished_from_a_silent_worker() -> None:
    late = taken(timeout=10 * SECOND)
    past = taken(deadline=NOW - 1)

    assert stall_cause(late, "lease_expired", silent_for=SECOND, run=a_run()) == (
        "it went on for 12.0 s, past its timeout of 10s, and could not be stopped"
    )
    assert stall_cause(past, "lease_expired", silent_for=SECOND, run=a_run()) == (
        "it went on past the deadline of its job, and could not be stopped"
    )
    assert stall_cause(taken(), "lease_expired", silent_for=SECOND, run=a_run()) == (
        "its worker was silent for longer than the lease of 20s"
    )


def test_a_lease_that_only_its_handler_renews_expired_without_heartbeats() -> None:
    job = taken(stall=StallTerms(renewed=False))

    assert stall_cause(job, "lease_expired", silent_for=27 * SECOND) == (
        "its handler gave no sign for 27.0 s, longer than its lease of 20s, which nothing else renews (heartbeat=False)"
    )


def test_unknown_limits_are_not_invented() -> None:
    assert stall_cause(taken(), "no_progress", silent_for=0).endswith("longer than its heartbeat_timeout")
    assert stall_cause(taken(), "loop_blocked", silent_for=0).endswith("longer than max_block")


def test_a_post_mortem_holds_all_known_facts() -> None:
    written = text(
        job=taken(timeout=60 * SECOND, progress=0.5, progress_note="half of it"),
        run=a_run(trace=TRACE),
        log=[said(1, order="17"), structs.replace(said(2), run=1), said(3)],
        workplace=Workplace(lag=0, memory=2 << 30, report_age=1_500_000),
        ending=Ending("was killed", peak_memory=3 << 30),
        other_tasks=["send", "resize", "send"],
    )

    assert written.splitlines() == [
        "its process died",
        "job: a of queue mail, task send, run 2, fence 7",
        "worker: web-1:42, host web-1, pid 42",
        "ran for 12.0 s; last sign of life 3.2 s before it died; lease 20s; timeout 1m",
        "process: 2.0 GiB of memory at its last beat; 3.0 GiB at most",
        "other runs in its process: 3 others, of send (2), resize",
        "progress: 0.5 (half of it)",
        "its last log lines:",
        "  2027-01-15 07:59:59Z info: sent 1 order=17",
        "  2027-01-15 07:59:59Z info: sent 3",
        "where its handler was at its last beat, 1.5 s before it died:",
        '    File "/srv/app/mail.py", line 12, in send',
        "      body = render(order)",
    ]


def test_a_blocked_event_loop_is_reported() -> None:
    written = text(workplace=Workplace(lag=3_400_000))

    assert "\nprocess: its event loop had been blocked for 3.4 s\n" in written
    assert "process:" not in text(workplace=Workplace(lag=3_400))


def test_a_run_in_its_own_process_has_no_other_runs_there() -> None:
    assert "\nit had a process of its own, a child of its worker\n" in text(alone=True, other_tasks=["send"])
    assert "other runs in its process" not in text(alone=True, other_tasks=["send"])


def test_only_an_unknown_position_is_reported_as_unknown() -> None:
    assert text(died=False).splitlines() == [
        "its process died",
        "job: a of queue mail, task send, run 2",
        "last sign of life 3.2 s before it was given up; lease 20s",
        "the position of its handler is unknown: no beat reported it",
    ]


def test_the_stack_taken_before_the_kill_precedes_an_older_trace() -> None:
    written = text(run=a_run(trace=TRACE), ending=Ending("was killed", stack="Current thread 0x01:\n  File x"))

    assert written.endswith(
        "where the threads of its process were when it was killed:\n  Current thread 0x01:\n    File x"
    )


def test_other_runs_are_counted_and_the_most_frequent_tasks_named() -> None:
    assert "other runs in its process: 1 other, of send" in text(other_tasks=["send"])
    assert "other runs in its process: 30 others, of 0 (2), 1 (2)" in text(
        other_tasks=[str(number % 15) for number in range(30)]
    )
    assert "7, and 7 more tasks" in text(other_tasks=[str(number % 15) for number in range(15)])


def test_a_bounded_post_mortem_keeps_the_innermost_frame_and_last_lines() -> None:
    job = taken(progress=1.0, progress_note="ä" * 10_000)
    trace = "".join(f'  File "/srv/a.py", line {number}, in deep\n' for number in range(2_000)) + "  the last\n"
    written = text(job=job, run=a_run(trace=trace), log=[said(number, "x" * 3_000) for number in range(1000)])

    assert len(written.encode()) <= LONGEST
    assert written.endswith("the last")
    assert "where its handler was" in written
    assert written.count("info: ") <= LINES
    assert first_line(written) == "its process died"


@pytest.mark.parametrize("threads", [3, 200])
def test_a_long_dump_keeps_the_innermost_frames_of_the_main_thread(threads: int) -> None:
    frames = "\n".join(f'  File "/srv/a.py", line {number} in deep' for number in range(20 if threads > 3 else 900))
    stack = "\n\n".join(f"Thread {number}:\n{frames}" for number in range(threads))
    written = text(ending=Ending("was killed", stack=stack))

    assert len(written.encode()) <= LONGEST
    assert f"Thread {threads - 1}:\n    File" in written
    assert "line 0 in deep" in written.partition(f"Thread {threads - 1}:")[2]
    assert "Thread 0:" not in written


def test_the_last_log_lines_are_those_that_are_quoted() -> None:
    written = text(log=[said(number) for number in range(50)])

    assert written.count("info: sent") == LINES
    assert "info: sent 49" in written
    assert "info: sent 29" not in written


def test_unusual_text_keeps_a_post_mortem_readable_and_storable() -> None:
    job = taken(progress=0.1, progress_note="a\0b\ud800")
    written = text(
        job=job, run=a_run(trace="\ud800 here\0"), log=[said(1, "one\n two\x1b[0m"), said(2, "\ud800" * 500)]
    )

    assert "\0" not in written
    assert "info: one two" in written
    written.encode()


@pytest.mark.parametrize(("count", "expected"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")])
def test_sizes_are_shown_in_a_fitting_unit(count: int, expected: str) -> None:
    assert size(count) == expected
