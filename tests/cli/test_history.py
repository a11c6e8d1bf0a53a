"""The history names why a job ran more than once, with one text for each cause."""

import pytest

from tenure import State
from tenure.core.job import JobRecord, RunRecord
from tenure.ops.run_history import why_again


def job(state: State, *, starts: int, failures: int = 0, stalls: int = 0, releases: int = 0) -> JobRecord:
    return JobRecord(
        queue="q", id="1", task="t", state=state, payload=b"", score=0, run_at=0, created=0,
        starts=starts, failures=failures, stalls=stalls, releases=releases,
    )  # fmt: skip


def runs(*ended: tuple[str | None, str | None] | tuple[str | None, str | None, str], first: int = 1) -> list[RunRecord]:
    return [
        RunRecord(
            number=number, fence=number, owner="o", start=0,
            ended=run[0], reason=run[1], detail=run[2] if len(run) == 3 else None,
        )
        for number, run in enumerate(ended, first)
    ]  # fmt: skip


def test_one_run_needs_no_reason() -> None:
    assert why_again(job(State.COMPLETED, starts=1), runs(("completed", None))) is None


@pytest.mark.parametrize(
    ("ended", "message"),
    [
        (("stalled", "process_died"), "was lost because its process died"),
        (("stalled", "process_died", "its process was\nring"), "was lost because its process was"),
        (("stalled", "lease_expired"), "was lost because its worker was silent for longer than the lease"),
        (("stalled", "no_progress"), "was lost because it gave no sign of progress in time"),
        (("stalled", "loop_blocked"), "was lost because its event loop was blocked"),
    ],
)
def test_a_lost_worker(ended: tuple[str, str], message: str) -> None:
    why = why_again(job(State.COMPLETED, starts=2, stalls=1), runs(ended, ("completed", None)))

    assert why == f"It started 2 times: run 1 {message}, and run 2 completed."


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("shutdown", "was handed back by a worker that shut down"),
        ("snoozed", "asked to run later"),
        ("unknown_task", "was claimed by a worker that does not know the task"),
        ("unreachable", "was stopped because its worker could not reach the storage"),
    ],
)
def test_a_release(reason: str, message: str) -> None:
    why = why_again(job(State.ACTIVE, starts=2, releases=1), runs(("released", reason), (None, None)))

    assert why == f"It started 2 times: run 1 {message}, and run 2 is still going."


def test_runs_that_ended_alike_are_shown_together() -> None:
    why = why_again(
        job(State.COMPLETED, starts=5, failures=3, stalls=1),
        runs(*[("raised", "ValueError")] * 3, ("stalled", "process_died"), ("completed", None)),
    )

    assert why == (
        "It started 5 times: runs 1 to 3 each raised ValueError, run 4 was lost because its process died, "
        "and run 5 completed."
    )


def test_a_redrive_is_shown_in_the_budgets() -> None:
    why = why_again(job(State.COMPLETED, starts=2), runs(("rejected", "Reject"), ("completed", None)))

    assert why is not None
    assert why.endswith("and run 2 completed; in between it was redriven by hand.")


def test_runs_that_are_no_longer_kept_are_counted() -> None:
    why = why_again(
        job(State.COMPLETED, starts=102, releases=101),
        runs(*[("released", "snoozed")] * 99, ("completed", None), first=3),
    )

    assert why == (
        "It started 102 times: the first 2 runs are no longer kept, runs 3 to 101 each asked to run later, "
        "and run 102 completed."
    )
