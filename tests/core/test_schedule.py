"""Schedules: the effect of putting, pausing and overlap."""

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.deduplication import EnqueueAction
from tenure.core.duration import moment
from tenure.core.events import ScheduleFired, ScheduleMissed, ScheduleSkipped
from tenure.core.job import NewJob, Ref
from tenure.core.lifecycle import State
from tenure.core.schedule import AHEAD, Fate, Overlap, Schedule, after_tick, fate_of, may_fire, paused_at, redefined
from tests.core.cases import NOW

DAY = 86_400 * SECOND
JOB = NewJob(queue="mail", id="", task="send", payload=b"[]")
KNOWN = Schedule(
    name="nightly",
    job=JOB,
    cron="0 4 * * *",
    created=1,
    last_tick=NOW,
    next_tick=NOW + 9,
    paused=True,
    last_id="cron:x",
)


def test_a_schedule_put_again_has_new_options_and_keeps_its_progress() -> None:
    new = Schedule(name="nightly", job=structs.replace(JOB, task="ring"), cron="0 4 * * *", overlap="allow", created=7)
    after = redefined(KNOWN, new, NOW)

    assert redefined(None, new, NOW) == new
    assert (after.job.task, after.overlap) == ("ring", "allow")
    assert (after.created, after.last_tick, after.next_tick, after.paused, after.last_id) == (
        1,
        NOW,
        NOW + 9,
        True,
        "cron:x",
    )


@pytest.mark.parametrize("other", [{"cron": "0 5 * * *"}, {"tz": "Europe/Vienna"}, {"cron": None, "every": 30}])
def test_other_ticks_apply_from_when_they_are_put(other: dict[str, object]) -> None:
    new = structs.replace(KNOWN, last_tick=NOW + 5, next_tick=NOW + 50, **other)
    after = redefined(KNOWN, new, NOW + 5)

    assert (after.last_tick, after.next_tick) == (NOW + 5, NOW + 50)
    assert redefined(structs.replace(KNOWN, last_tick=NOW + 7), new, NOW + 5).last_tick == NOW + 7


@pytest.mark.parametrize("other", [{}, {"cron": "0 5 * * *"}])
def test_a_schedule_put_after_a_clock_set_back_starts_from_then(other: dict[str, object]) -> None:
    far = structs.replace(KNOWN, last_tick=NOW + DAY, next_tick=NOW + DAY + 9, paused=False)
    new = structs.replace(KNOWN, last_tick=NOW, next_tick=NOW + 9, **other)
    after = redefined(far, new, NOW)

    assert (after.last_tick, after.next_tick, after.last_id) == (NOW, NOW + 9, "cron:x")


def test_a_schedule_resumed_after_a_clock_set_back_starts_from_then() -> None:
    far = structs.replace(KNOWN, last_tick=NOW + DAY)

    assert paused_at(far, NOW, paused=False, next_tick=NOW + 9).last_tick == NOW


@pytest.mark.parametrize(("now", "ahead"), [(NOW, False), (NOW - AHEAD, False), (NOW - AHEAD - 1, True)])
def test_a_schedule_is_ahead_of_a_clock_set_back_by_more_than_a_moment(now: int, ahead: bool) -> None:
    assert KNOWN.is_ahead(now) is ahead


def test_ticks_during_a_pause_are_not_missed() -> None:
    assert paused_at(KNOWN, NOW + 60, paused=True, next_tick=None).next_tick == NOW + 9
    resumed = paused_at(KNOWN, NOW + 60, paused=False, next_tick=NOW + 90)

    assert (resumed.paused, resumed.last_tick, resumed.next_tick) == (False, NOW + 60, NOW + 90)
    assert paused_at(resumed, NOW + 70, paused=False, next_tick=NOW + 99) == resumed


@pytest.mark.parametrize(
    ("overlap", "unfinished", "may"),
    [
        ("skip", [], True),
        ("skip", [State.ACTIVE], False),
        ("skip", [State.DELAYED], False),
        ("queue_one", [], True),
        ("queue_one", [State.ACTIVE, State.ACTIVE], True),
        ("queue_one", [State.ACTIVE, State.WAITING], False),
        ("queue_one", [State.DELAYED], False),
        ("allow", [State.WAITING] * 9, True),
    ],
)
def test_a_tick_looks_at_every_unfinished_job_of_the_earlier_ones(
    overlap: Overlap, unfinished: list[State], may: bool
) -> None:
    assert may_fire(overlap, iter(unfinished)) is may


@pytest.mark.parametrize(
    ("action", "fate"),
    [
        ("created", Ref("mail", "x")),
        ("replaced", Ref("mail", "x")),
        ("collected", Ref("mail", "x")),
        ("throttled", "throttled"),
        ("duplicate", "duplicate"),
    ],
)
def test_a_tick_has_its_job_if_its_call_created_or_joined_one(action: EnqueueAction, fate: Fate) -> None:
    assert fate_of(action, Ref("mail", "x")) == fate


def test_a_tick_is_recorded_after_the_ticks_skipped_with_it() -> None:
    after, events = after_tick(KNOWN, NOW + 9, NOW + 99, missed=2, fate=Ref("mail", "x"), now=NOW + 9 + SECOND)

    assert after == structs.replace(KNOWN, last_tick=NOW + 9, next_tick=NOW + 99, last_id="x", runs=1)
    assert events == [
        ScheduleMissed(name="nightly", tick=moment(NOW + 9), ticks=2, policy="latest"),
        ScheduleFired(name="nightly", tick=moment(NOW + 9), late_by=1.0, queue="mail", id="x"),
    ]


def test_a_tick_without_a_job_leaves_the_latest_one() -> None:
    skipped, events = after_tick(KNOWN, NOW + 9, None, missed=0, fate="throttled", now=NOW + 9)
    passed, nothing = after_tick(KNOWN, NOW + 9, None, missed=0, fate=None, now=NOW + 9)

    assert skipped == passed == structs.replace(KNOWN, last_tick=NOW + 9, next_tick=None)
    assert events == [ScheduleSkipped(name="nightly", tick=moment(NOW + 9), reason="throttled")]
    assert nothing == []


@pytest.mark.parametrize(
    ("paused", "expected", "may"), [(False, NOW, True), (False, NOW - 1, False), (True, NOW, False)]
)
def test_a_schedule_continues_from_its_last_tick_unless_it_is_paused(paused: bool, expected: int, may: bool) -> None:
    assert structs.replace(KNOWN, paused=paused).is_at_tick(expected) is may
