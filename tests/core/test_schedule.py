"""Schedules: what putting, pausing and overlap do to them."""

import pytest
from msgspec import structs

from holdfast.core.job import NewJob
from holdfast.core.lifecycle import State
from holdfast.core.schedule import Overlap, Schedule, may_fire, paused_at, put_over
from tests.core.cases import NOW

JOB = NewJob(queue="mail", id="", task="send", payload=b"[]")
KNOWN = Schedule(
    name="nightly", job=JOB, cron="0 4 * * *", made=1, last_tick=NOW, next_tick=NOW + 9, paused=True, last_id="cron:x"
)


def test_what_is_put_again_does_what_it_is_told_and_has_got_as_far_as_it_had() -> None:
    told = Schedule(name="nightly", job=structs.replace(JOB, task="ring"), cron="0 4 * * *", overlap="allow", made=7)
    after = put_over(KNOWN, told)

    assert (after.job.task, after.overlap) == ("ring", "allow")
    assert (after.made, after.last_tick, after.next_tick, after.paused, after.last_id) == (
        1,
        NOW,
        NOW + 9,
        True,
        "cron:x",
    )


@pytest.mark.parametrize("other", [{"cron": "0 5 * * *"}, {"tz": "Europe/Vienna"}, {"cron": None, "every": 30}])
def test_other_ticks_hold_from_when_they_are_put(other: dict[str, object]) -> None:
    told = structs.replace(KNOWN, last_tick=NOW + 5, next_tick=NOW + 50, **other)
    after = put_over(KNOWN, told)

    assert (after.last_tick, after.next_tick) == (NOW + 5, NOW + 50)
    assert put_over(structs.replace(KNOWN, last_tick=NOW + 7), told).last_tick == NOW + 7


def test_what_went_by_in_a_pause_is_not_missed() -> None:
    assert paused_at(KNOWN, NOW + 60, paused=True, next_tick=None).next_tick == NOW + 9
    resumed = paused_at(KNOWN, NOW + 60, paused=False, next_tick=NOW + 90)

    assert (resumed.paused, resumed.last_tick, resumed.next_tick) == (False, NOW + 60, NOW + 90)


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
