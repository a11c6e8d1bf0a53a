"""The rules of bulk operations: window, pace, the guard of the count, confirmations."""

from typing import Any

import pytest
from msgspec import structs

from tenure import UsageError
from tenure.core.bulk import (
    BULK_STATES,
    CONFIRM_WITHIN,
    BulkAction,
    BulkPlan,
    ChunkPace,
    Confirmation,
    confirmation,
    count_changed,
    pace_of,
    window,
)
from tenure.core.lifecycle import State

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("action", "count", "seconds"),
    [("delete", 1, 10), ("delete", 1_000, 10), ("cancel", 100, 0), ("cancel", 101, 5), ("redrive", 101, 5)],
)
def test_a_deletion_and_a_large_operation_begin_after_a_window(action: BulkAction, count: int, seconds: int) -> None:
    assert window(action, count) == seconds * SECOND


@pytest.mark.parametrize(
    ("interval", "pace"),
    [
        (None, ChunkPace(100, 0)),
        (0, ChunkPace(100, 0)),
        (SECOND // 10, ChunkPace(10, SECOND)),
        (SECOND // 1_000, ChunkPace(100, SECOND // 10)),
        (SECOND // 5, ChunkPace(10, 2 * SECOND)),
        (SECOND, ChunkPace(10, 10 * SECOND)),
        (3 * SECOND, ChunkPace(3, 9 * SECOND)),
        (60 * SECOND, ChunkPace(1, 60 * SECOND)),
    ],
)
def test_a_chunk_has_the_jobs_of_a_second_or_ten_jobs_of_ten_seconds(interval: int | None, pace: ChunkPace) -> None:
    assert pace_of(interval) == pace


@pytest.mark.parametrize(
    ("met", "count", "changed"), [(10, 0, False), (11, 0, True), (120, 100, False), (121, 100, True)]
)
def test_an_operation_may_meet_a_tenth_more_and_ten_jobs(met: int, count: int, changed: bool) -> None:
    assert count_changed(met, count) is changed


def test_no_action_applies_to_jobs_that_it_could_not_change() -> None:
    assert {
        "cancel": {State.DELAYED, State.WAITING, State.ACTIVE, State.SUSPENDED},
        "redrive": {State.FAILED, State.CANCELLED, State.EXPIRED},
        "delete": set(State) - {State.ACTIVE},
    } == BULK_STATES


PLAN = BulkPlan(action="cancel", filter="task:a", cap=5, rate="1/s")


def test_a_confirmation_is_read_as_it_was_written() -> None:
    made = confirmation(b"key", "ann", PLAN, count=7, at=99)

    assert Confirmation.read(made.text) == made
    assert confirmation(b"key", "ann", PLAN, count=7, at=99) == made


def test_a_confirmation_belongs_to_one_user_plan_count_and_instant() -> None:
    def made(key: bytes = b"key", actor: str = "ann", plan: BulkPlan = PLAN, count: int = 7, at: int = 99) -> str:
        return confirmation(key, actor, plan, count=count, at=at).mac

    changes: list[dict[str, Any]] = [{"action": "delete"}, {"filter": "task:b"}, {"cap": None}, {"rate": None}]
    others = [made(key=b"other"), made(actor="bob"), made(count=8), made(at=100)]
    others += [made(plan=structs.replace(PLAN, **change)) for change in changes]
    assert made() not in others
    assert len(set(others)) == len(others)


def test_a_confirmation_is_valid_for_ten_minutes() -> None:
    made = confirmation(b"key", "ann", PLAN, count=7, at=1_000)

    assert not made.is_expired(1_000)
    assert not made.is_expired(1_000 + CONFIRM_WITHIN)
    assert made.is_expired(1_001 + CONFIRM_WITHIN)
    assert made.is_expired(999)


@pytest.mark.parametrize(
    "text", ["", "7", "7.9", "7.9.", ".9.ab", "x.9.ab", "7.x.ab", "7.9.a-b", "²..a", "7.9." + "a" * 99]
)
def test_another_text_is_not_a_confirmation(text: str) -> None:
    with pytest.raises(UsageError, match="confirm is not a token of a dry run"):
        Confirmation.read(text)
