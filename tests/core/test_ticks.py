"""Which ticks get their jobs, and which are missed: the policies, over outages of all lengths."""

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.clock import SECOND
from tenure.core.cron import Cron, Every, Rhythm
from tenure.core.job import NewJob
from tenure.core.schedule import Missed, Schedule
from tenure.core.ticks import STEP, Turn, begun, rhythm_of, turn

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
GRACE = 10 * SECOND
NOON = 20_000 * 24 * HOUR + 12 * HOUR

FIVE = Every(5 * MINUTE)
OUTAGE = [NOON + number * 5 * MINUTE for number in range(1, 37)]
"""The ticks of three hours."""


def after_an_outage(missed: Missed, most: int | None = None, *, late: int = MINUTE) -> Turn:
    return turn(FIVE, after=NOON, now=NOON + 3 * HOUR + late, grace=GRACE, missed=missed, most=most)


def test_missed_ticks_are_skipped() -> None:
    assert after_an_outage("skip") == Turn((), 36, OUTAGE[-1])


def test_the_latest_missed_tick_is_caught_up() -> None:
    assert after_an_outage("latest") == Turn((OUTAGE[-1],), 35, OUTAGE[-2])


def test_all_missed_ticks_are_caught_up() -> None:
    assert after_an_outage("all") == Turn(tuple(OUTAGE))


def test_the_newest_missed_ticks_are_caught_up_to_a_number() -> None:
    assert after_an_outage("all", 10) == Turn(tuple(OUTAGE[-10:]), 26, OUTAGE[25])
    assert after_an_outage("all", 36) == after_an_outage("all", 1_000) == Turn(tuple(OUTAGE))


@pytest.mark.parametrize("late", [0, 1, GRACE])
@pytest.mark.parametrize("missed", ["skip", "latest"])
def test_a_tick_on_time_gets_its_job_under_each_policy(missed: Missed, late: int) -> None:
    assert after_an_outage(missed, late=late) == Turn((OUTAGE[-1],), 35, OUTAGE[-2])


def test_a_tick_is_missed_once_it_is_late_by_more_than_the_grace() -> None:
    assert after_an_outage("skip", late=GRACE + 1).ticks == ()


def test_ticks_on_time_all_get_their_jobs() -> None:
    now = NOON + 10 * SECOND

    result = turn(Every(SECOND), after=NOON, now=now, grace=GRACE, missed="skip")

    assert result == Turn(tuple(NOON + number * SECOND for number in range(1, 11)))


def test_nothing_is_due_before_the_next_tick() -> None:
    assert turn(FIVE, after=NOON, now=NOON + 5 * MINUTE - 1, grace=GRACE) == Turn()


def test_a_long_outage_is_caught_up_in_steps() -> None:
    now = NOON + 250 * SECOND
    steps = list[tuple[int, ...]]()
    after = NOON
    more = True
    while more:
        result = turn(Every(SECOND), after=after, now=now, grace=GRACE, missed="all")
        steps.append(result.ticks)
        after, more = result.ticks[-1], result.more

        assert result.given_up == 0

    assert [len(step) for step in steps] == [STEP, STEP, 50]
    assert [tick for step in steps for tick in step] == [NOON + number * SECOND for number in range(1, 251)]


def test_an_outage_of_many_years_is_not_walked_tick_by_tick() -> None:
    result = turn(Cron.parse("* * * * *"), after=0, now=NOON + 30 * SECOND, grace=GRACE, missed="latest")

    assert result == Turn((NOON,), 1_000, NOON - MINUTE)


def test_a_schedule_has_the_rhythm_of_its_text_or_of_its_interval() -> None:
    job = NewJob(queue="q", id="", task="t", payload=b"")
    nightly = Schedule(name="nightly", job=job, cron="0 4 * * *", tz="Europe/Vienna")
    often = Schedule(name="often", job=job, every=30 * SECOND)

    assert rhythm_of(nightly) == Cron.parse("0 4 * * *", "Europe/Vienna")
    assert rhythm_of(often) == Every(30 * SECOND)


def test_a_schedule_begins_with_the_tick_after_now() -> None:
    job = NewJob(queue="q", id="", task="t", payload=b"")

    often = begun(Schedule(name="often", job=job, every=30 * SECOND), NOON + SECOND)

    assert (often.created, often.last_tick, often.next_tick) == (NOON + SECOND, NOON + SECOND, NOON + 30 * SECOND)


rhythms = st.sampled_from([FIVE, Every(SECOND), Every(7 * SECOND), Cron.parse("*/3 * * * *"), Cron.parse("0 4 * * *")])


@settings(deadline=None)
@given(
    rhythms,
    st.sampled_from(get_args(Missed)),
    st.one_of(st.none(), st.integers(1, 200)),
    st.integers(0, 600 * SECOND),
    st.integers(0, 20 * MINUTE),
)
def test_each_tick_is_skipped_or_fired_once_with_any_size_of_steps(
    rhythm: Rhythm, missed: Missed, most: int | None, grace: int, length: int
) -> None:
    now = NOON + length
    every = rhythm.between(NOON, now, 10_000)
    made, given_up, after = list[int](), 0, NOON
    while (result := turn(rhythm, after=after, now=now, grace=grace, missed=missed, most=most)) != Turn():
        made += result.ticks
        given_up += result.given_up
        assert (result.given_up_to is None) == (result.given_up == 0)
        assert not result.ticks or result.given_up_to is None or result.given_up_to < result.ticks[0]
        after = result.ticks[-1] if result.ticks else result.given_up_to or after

    late = [tick for tick in every if now - tick > grace]
    on_time = [tick for tick in every if now - tick <= grace]
    assert made[len(made) - len(on_time) :] == on_time
    assert len(made) + given_up == len(every)
    match missed:
        case "skip":
            assert made == on_time
        case "latest":
            assert made == (on_time or late[-1:])
        case "all":
            assert made == late[-(most or len(late) or 1) :] + on_time
