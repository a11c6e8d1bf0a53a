"""The answers of several partitions are merged without a gap, an overlap, or a change of order."""

from random import Random

import pytest

from tenure.core.duration import moment
from tenure.core.events import AnyEvent, EventsTrimmed, QueueDrained
from tenure.core.job import JobRecord, Owner, RateKey
from tenure.core.leadership import Term
from tenure.core.lifecycle import State
from tenure.storage.cursors import LARGEST
from tenure.storage.protocol import EVENTS_END, EventPage, Page, QueueSurvey, Settings, Survey, WorkerSurvey
from tenure.storage.redis.merge_answers import (
    UNREAD,
    cursor_of,
    event_places,
    merge_event_pages,
    merge_listings,
    merge_surveys,
    places_of,
)

# ── cursors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cursor_names_a_position_in_each_partition() -> None:
    assert places_of(cursor_of([3, 0, 14]), 3) == [3, 0, 14]


def test_a_single_number_is_that_position_in_every_partition() -> None:
    assert places_of("7", 3) == [7, 7, 7]


@pytest.mark.parametrize(
    "cursor", ["", ".", "1.2", "1.2.3.4", "1..3", "1.-2.3", "1.2.3.", f"1.2.{LARGEST + 1}", "a.b.c"]
)
def test_an_invalid_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(ValueError, match="not a cursor"):
        places_of(cursor, 3)


def test_a_cursor_can_leave_the_position_in_an_unreachable_partition_open() -> None:
    assert event_places(None, 2) == [UNREAD, UNREAD]
    assert event_places(EVENTS_END, 2) == [EVENTS_END, EVENTS_END]
    assert event_places("7", 2) == ["7", "7"]
    assert event_places(f"3.{UNREAD}.{EVENTS_END}", 3) == ["3", UNREAD, EVENTS_END]
    with pytest.raises(ValueError, match="not a cursor"):
        event_places("3.x", 2)


# ── events ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def drained(at: int, number: int, queue: str = "q") -> QueueDrained:
    return QueueDrained(queue=queue, cursor=str(number), at=moment(at))


def merged(page: EventPage) -> list[tuple[str, str]]:
    return [(event.queue, event.cursor or "") for event in page.events if isinstance(event, QueueDrained)]


def test_events_are_merged_by_time_with_a_cursor_for_every_partition() -> None:
    one = EventPage((drained(10, 5, "a"), drained(30, 6, "a")), "6")
    other = EventPage((drained(20, 1, "b"),), "1")

    page = merge_event_pages([one, other], 10)

    assert merged(page) == [("a", "5.0"), ("b", "5.1"), ("a", "6.1")]
    assert page.next == "6.1"


def test_an_unreachable_partition_keeps_its_position_in_every_cursor() -> None:
    page = merge_event_pages([EventPage((drained(10, 5, "a"),), "6"), EventPage((), UNREAD, incomplete=True)], 10)

    assert merged(page) == [("a", f"5.{UNREAD}")]
    assert (page.next, page.incomplete) == (f"6.{UNREAD}", True)


def test_a_full_page_leaves_each_partition_where_it_was_read_to() -> None:
    one = EventPage((drained(10, 5, "a"), drained(30, 6, "a")), "6")
    other = EventPage((drained(20, 1, "b"), drained(25, 2, "b")), "2")

    page = merge_event_pages([one, other], 2)

    assert merged(page) == [("a", "5.0"), ("b", "5.1")]
    assert page.next == "5.1"


def test_a_partition_whose_clock_is_ahead_keeps_its_order_and_events() -> None:
    one = EventPage((drained(90, 1, "a"), drained(10, 2, "a")), "2")
    other = EventPage((drained(50, 1, "b"),), "1")

    assert merged(merge_event_pages([one, other], 10)) == [("b", "0.1"), ("a", "1.1"), ("a", "2.1")]


def test_a_filtered_page_does_not_read_skipped_events_again() -> None:
    assert merge_event_pages([EventPage((drained(10, 5),), "9"), EventPage((), "3")], 10).next == "9.3"


def test_a_gap_in_one_partition_gives_one_trimmed_event_first() -> None:
    trimmed: AnyEvent = EventsTrimmed(oldest="7")
    one = EventPage((trimmed, drained(40, 8, "a")), "8")
    other = EventPage((drained(20, 1, "b"), drained(30, 2, "b")), "2")

    page = merge_event_pages([one, other], 1)

    assert page.events[0] == EventsTrimmed(oldest="7.0")
    assert merged(page) == [("b", "7.1")]
    assert page.next == "7.1"


@pytest.mark.parametrize("seed", range(20))
def test_pages_of_all_partitions_join_without_gap_or_overlap(seed: int) -> None:
    dice = Random(seed)
    logs: list[list[AnyEvent]] = [
        [drained(dice.randrange(100), number + 1, f"{partition}-{number}") for number in range(dice.randrange(12))]
        for partition in range(3)
    ]
    cursor, read = "0", [""]
    del read[0]
    while True:
        limit = dice.randrange(1, 5)
        places = places_of(cursor, 3)
        pages = [
            EventPage(tuple(log[place : place + limit]), str(min(place + limit, len(log))))
            for log, place in zip(logs, places, strict=True)
        ]
        page = merge_event_pages(pages, limit)
        read += [event.queue for event in page.events if isinstance(event, QueueDrained)]
        if page.next == cursor:
            break
        # Sometimes from an event's own cursor.
        cursor = page.events[-1].cursor or "" if page.events and dice.random() < 0.5 else page.next

    assert sorted(read) == sorted(event.queue for log in logs for event in log if isinstance(event, QueueDrained))
    for partition in range(3):
        mine = [name for name in read if name.startswith(f"{partition}-")]
        assert mine == [f"{partition}-{number}" for number in range(len(mine))]


# ── listings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def job(created: int, id_: str) -> JobRecord:
    return JobRecord(
        queue="q", id=id_, task="t", state=State.WAITING, payload=b"", score=0, run_at=created, created=created
    )


def ids(page: Page) -> list[str]:
    return [job.id for job in page.jobs]


def test_a_merged_listing_is_newest_first_and_its_pages_join() -> None:
    one = [(9, job(50, "a9")), (8, job(30, "a8")), (7, job(10, "a7"))]
    other = [(4, job(40, "b4")), (3, job(20, "b3"))]

    page = merge_listings([(one, 0), (other, 0), ([], 0)], [LARGEST] * 3, 3)

    assert ids(page) == ["a9", "b4", "a8"]
    assert page.next == f"8.4.{LARGEST}"
    assert page.next is not None

    rest = merge_listings([(one[2:], 0), (other[1:], 0), ([], 0)], places_of(page.next, 3), 3)

    assert (ids(rest), rest.next) == (["b3", "a7"], None)


def test_a_page_that_is_just_full_is_the_last() -> None:
    assert merge_listings([([(1, job(1, "a"))], 0), ([(1, job(2, "b"))], 0)], [LARGEST] * 2, 2).next is None


def test_a_listing_continues_where_each_partition_has_stopped_to_look() -> None:
    one = [(9, job(50, "a9")), (8, job(30, "a8"))]

    page = merge_listings([(one, 5), ([], 40), ([], 0)], [LARGEST] * 3, 3)
    full = merge_listings([(one, 5), ([], 40), ([], 0)], [LARGEST] * 3, 1)

    assert (ids(page), page.next) == (["a9", "a8"], f"5.40.{LARGEST}")
    assert (ids(full), full.next) == (["a9"], f"9.40.{LARGEST}")


# ── surveys ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_merged_survey_has_the_entries_of_all_partitions() -> None:
    terms = [Term(f"partition {number}", "o", 1, 9) for number in range(2)]
    alice, bob = (WorkerSurvey(owner=Owner(name), started=at) for name, at in (("alice", 5), ("bob", 3)))
    rate = RateKey("task:t", 5)
    one = Survey(
        queues=(QueueSurvey(queue="b"),),
        paused_tasks=("t",),
        task_rates={"t": rate},
        workers=(alice,),
        leaders=(terms[0],),
        swept_ago=5,
        now=100,
    )
    other = Survey(
        queues=(QueueSurvey(queue="a"),),
        paused_tasks=("t",),
        task_rates={"t": rate},
        workers=(bob,),
        leaders=(terms[1],),
        swept_ago=9,
        now=101,
    )

    assert merge_surveys([one, other]) == Survey(
        queues=(QueueSurvey(queue="a"), QueueSurvey(queue="b")),
        paused_tasks=("t",),
        task_rates={"t": rate},
        workers=(bob, alice),
        leaders=tuple(terms),
        swept_ago=9,
        now=101,
    )


def test_the_last_sweep_is_that_of_the_partition_with_work_swept_first() -> None:
    busy = (QueueSurvey(queue="q", counts={State.ACTIVE: 1}),)
    settings = (QueueSurvey(queue="q", settings=Settings(paused=True)),)

    assert merge_surveys([Survey(queues=busy, swept_ago=5), Survey(queues=busy, swept_ago=7)]).swept_ago == 7
    assert (
        merge_surveys([Survey(queues=busy, swept_ago=5), Survey(queues=settings, swept_ago=7), Survey()]).swept_ago == 5
    )
    assert merge_surveys([Survey(swept_ago=5), Survey()]).swept_ago == 5
    assert merge_surveys([Survey(queues=busy), Survey(swept_ago=5)]).swept_ago is None
    assert merge_surveys([Survey(), Survey()]).swept_ago is None
