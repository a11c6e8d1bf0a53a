"""What processes count: totals that only rise, sent in parts, summed over live and dead processes."""

import random
import threading
from datetime import timedelta

import pytest

from tenure.health.assessment import unreachable
from tenure.health.metrics import rendered
from tenure.health.process_health import ProcessHealth
from tenure.metrics import (
    DURATION,
    FENCED,
    JOBS,
    METRICS,
    MOST,
    OTHER,
    STORAGE_OP,
    Key,
    MetricsRegistry,
    added_up,
)
from tenure.options import Timing
from tenure.worker.supervisor_messages import (
    LONGEST,
    ChildStarted,
    MessageReader,
    MetricsUpdate,
    encode_message,
    metrics_messages,
    names_that_fit,
)
from tests.exposition import Family, read


def shown(figures: dict[Key, tuple[float, ...]]) -> dict[str, Family]:
    return read(rendered(None, unreachable("gone"), ProcessHealth(owners=(), metrics=figures)))


def test_a_time_counts_in_the_first_bucket_that_it_does_not_exceed() -> None:
    figures = MetricsRegistry()
    for seconds in (0.0, 0.005, 0.0051, 7_200.0, 7_201.0):
        figures.observe(DURATION, [seconds], "mail", "send")
    (numbers,) = figures.totals().values()

    assert numbers[1:] == (2, 1, *(0,) * 8, 1, 1)
    assert numbers[0] == pytest.approx(14_401.0101)
    family = shown(figures.totals())["tenure_job_duration_seconds"]
    assert family[{"le": "0.005"}] == 2
    assert family[{"le": "7200"}] == 4
    assert family[{"le": "+Inf"}] == 5


def test_names_of_any_kind_are_kept() -> None:
    figures = MetricsRegistry()
    name = 'a "b"\\n\n{c},d="e" ü'
    figures.count(JOBS, name, "task", "completed", by=3)

    assert shown(figures.totals())["tenure_jobs_total"][{"queue": name}] == 3


def test_the_number_of_series_is_limited_for_scrapers() -> None:
    figures = MetricsRegistry()
    for number in range(MOST + 500):
        figures.count(JOBS, "default", f"task {number}", "completed")
    figures.observe(STORAGE_OP, [1.0], "renew")
    totals = figures.totals()

    assert len(totals) <= MOST + len(METRICS)
    assert totals[JOBS.name, OTHER, OTHER, OTHER] == (500,)
    assert len(totals[STORAGE_OP.name, OTHER]) == len(STORAGE_OP.buckets) + 2


def test_nothing_is_lost_when_threads_count_the_same() -> None:
    figures = MetricsRegistry()

    def count() -> None:
        for _ in range(5_000):
            figures.count(FENCED, "settle")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert figures.totals() == {("tenure_fenced_total", "settle"): (20_000,)}


def test_summed_series_omit_values_of_another_shape() -> None:
    one: dict[Key, tuple[float, ...]] = {("a",): (1.0,), ("b",): (1.0, 2.0)}
    other: dict[Key, tuple[float, ...]] = {("a",): (2.0,), ("b",): (1.0,), ("c",): (4.0,)}

    assert added_up([one, other]) == {("a",): (3.0,), ("b",): (1.0, 2.0), ("c",): (4.0,)}


def test_unknown_metrics_are_ignored() -> None:
    strange: dict[Key, tuple[float, ...]] = {
        (): (1.0,),
        ("tenure_jobs_total",): (1.0,),
        ("tenure_jobs_total", "q", "t", "completed"): (1.0, 2.0),
        ("tenure_job_duration_seconds", "q", "t"): (1.0,),
        ("evil\nmetric 1",): (1.0,),
    }

    assert all(not family.samples for name, family in shown(strange).items() if name != "tenure_storage_up")


@pytest.mark.parametrize("seed", range(3))
def test_many_series_fit_into_messages_that_are_all_read(seed: int) -> None:
    dice = random.Random(seed)
    totals: dict[Key, tuple[float, ...]] = {
        ("m", "x" * dice.randrange(1_000), str(number)): (dice.random(),) * 13 for number in range(600)
    }
    messages = [encode_message(message) for message in metrics_messages(totals)]
    reader = MessageReader()
    stream = b"".join(messages)
    heard = [
        message for start in range(0, len(stream), 7_777) for message in reader.feed(stream[start : start + 7_777])
    ]

    assert all(len(message) < LONGEST for message in messages)
    assert {
        key: numbers for message in heard if isinstance(message, MetricsUpdate) for key, numbers in message.series
    } == totals


def test_a_start_message_is_read_with_any_number_of_queues() -> None:
    names = [f"{number:04}" + "ü" * 1_000 for number in range(200)]
    hello = ChildStarted("sqlite:///" + "x" * 1_000, queues=names_that_fit(names), serves=names_that_fit(names))

    assert MessageReader().feed(encode_message(hello)) == [hello]
    assert hello.queues


@pytest.mark.parametrize("beat", [5.0, -1.0, 1e9, float("nan")])
def test_an_invalid_timing_of_a_child_gives_the_default(beat: float) -> None:
    (hello,) = MessageReader().feed(encode_message(ChildStarted("", beat))) or [ChildStarted("", 5.0)]

    assert isinstance(hello, ChildStarted)
    assert hello.timing == Timing()


def test_a_long_timing_of_a_child_arrives_without_a_warning() -> None:
    (started,) = MessageReader().feed(encode_message(ChildStarted("", beat=1_200.0, lease=6_000.0)))

    assert isinstance(started, ChildStarted)
    assert (started.timing.lease, started.timing.beat) == (timedelta(seconds=6_000), timedelta(seconds=1_200))


def test_every_number_of_a_child_is_valid_for_a_scraper() -> None:
    shown_lag = [
        read(rendered(None, unreachable("gone"), ProcessHealth(owners=(), lag=lag)))["tenure_loop_lag_seconds"][{}]
        for lag in (float("inf"), 1e300, 0.1, -0.0)
    ]

    assert shown_lag == [float("inf"), 1e300, 0.1, 0.0]
    assert b"tenure_loop_lag_seconds NaN" in rendered(
        None, unreachable("gone"), ProcessHealth(owners=(), lag=float("nan"))
    )
