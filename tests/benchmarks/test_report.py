from typing import Any

import msgspec
import pytest

from benchmarks.peers.charts import charts
from benchmarks.peers.found import Found, in_order
from benchmarks.peers.goals import Judged, judged
from benchmarks.peers.report import page
from benchmarks.peers.results import Entry, Machine, Results, Sample

MACHINE = Machine("Linux", "a processor", 2, 8.0, 0.1, "CPython 3.12.1", "7.0.15", {"save": ""}, "3.40.1")


def entry(key: str, **fields: Any) -> Entry:
    usual: dict[str, Any] = {
        "key": key,
        "title": key.upper(),
        "storage": "redis",
        "role": "ours" if key == "tenure" else "floor" if key == "floor" else "peer",
        "acknowledges": "after",
        "at_once": 0,
        "interpreter": "CPython 3.12.1",
        "versions": {},
        "settings": {"a setting": "its reason"},
        "tight": {},
        "recovery": "",
        "notes": [],
        "rate": 1,
        "bulk": True,
        "results": True,
    }
    return msgspec.convert({**usual, **fields}, Entry)


def found(*entries: Entry, rounds: int = 5, **rates: float) -> Found:
    """Return a run in which each of these keys processed so many jobs a second at 100 at once."""
    samples = [
        Sample(key.replace("_", "-"), "process_100", number, 1.0, {"rate": rate})
        for key, rate in rates.items()
        for number in range(1, rounds + 1)
    ]
    return Found(Results("2026-11-22T12:00:00+00:00", 60.0, 7, rounds, {}, MACHINE, list(entries), [], samples))


def goal(goals: list[Judged], words: str) -> Judged:
    return next(item for item in goals if words in item.goal and "processed" in item.what and "100" in item.what)


class TestGoals:
    def test_a_goal_is_met_or_missed_by_how_much(self) -> None:
        run = found(entry("tenure"), entry("saq"), tenure=3_500, saq=1_000)
        judgement = goal(judged(run, None), "fastest peer in Python")

        assert judgement.ratio == pytest.approx(3.5)
        assert judgement.verdict == "**missed** by 50%"

    def test_a_goal_without_a_measurement_is_neither_met_nor_missed(self) -> None:
        judgement = goal(judged(found(entry("tenure"), tenure=1_000), None), "fastest peer in Python")

        assert judgement.met is None
        assert judgement.verdict == "not measured"

    def test_goals_compare_with_python_queues_that_acknowledge_after_work(self) -> None:
        huey = entry("huey", acknowledges="before")
        node = entry("bullmq-node", interpreter="Node 20.20.2")
        run = found(entry("tenure"), entry("saq"), huey, node, tenure=8_000, saq=1_000, huey=9_000, bullmq_node=5_000)
        goals = judged(run, None)

        assert goal(goals, "fastest peer in Python").against.startswith("SAQ")
        assert goal(goals, "fastest peer in Python").verdict == "met"
        assert goal(goals, "BullMQ on Node").ratio == pytest.approx(1.6)

    def test_less_may_be_better(self) -> None:
        assert Judged("what", "at most a quarter", 0.2, "", 0.25, False).met
        assert Judged("what", "at most a quarter", 0.5, "", 0.25, False).verdict == "**missed** by 100%"
        assert Judged("what", "none lost", 0.0, "", 0, False).met
        assert Judged("what", "none lost", 2.0, "", 0, False).met is False


class TestPage:
    def test_groups_stand_apart_and_in_each_the_best_is_first(self) -> None:
        run = found(
            entry("floor"),
            entry("saq"),
            entry("taskiq"),
            entry("huey", acknowledges="before"),
            entry("tenure"),
            tenure=1,
            saq=2,
            taskiq=3,
            huey=4,
            floor=5,
        )
        order = in_order(run.on("redis"), run, "process_100", "rate", most=True)

        assert [item.key for item in order] == ["tenure", "taskiq", "saq", "huey", "floor"]

    def test_a_page_shows_versions_settings_spread_and_failures(self) -> None:
        run = found(entry("tenure", versions={"tenure": "1.0"}), entry("saq"), tenure=1_000, saq=100)
        run.results.samples.append(Sample("saq", "enqueue_one", 1, 1.0, failed="it fell over"))
        text = page(run, None, [("a plot", "a.svg")])

        assert "tenure 1.0" in text
        assert "a setting: its reason" in text
        assert "| 1,000 ±0% |" in text
        assert "saq, enqueue_one, round 1: failed: it fell over" in text
        assert "(plots/a.svg)" in text
        assert "Not for quoting" not in text

    def test_a_page_shows_missing_features_and_the_end_of_long_tracebacks(self) -> None:
        run = found(entry("tenure"), entry("rq"), tenure=1_000)
        run.results.samples.append(Sample("rq", "recovery_tight", 1, 1.0, cannot="it has no setting for that"))
        run.results.samples.append(Sample("rq", "echo_10", 2, 1.0, failed=f"ended: {'frame ' * 99} OSError: no room"))

        text = page(run, None, [])

        assert "- rq, recovery_tight: cannot: it has no setting for that" in text
        assert "- rq, echo_10, round 2: failed: ended: frame" in text
        assert "OSError: no room\n" in text

    def test_too_few_rounds_are_not_for_quoting(self) -> None:
        assert "Not for quoting" in page(found(entry("tenure"), rounds=1, tenure=1.0), None, [])

    def test_charts_list_queues_that_acknowledge_before_the_work_last(self) -> None:
        run = found(entry("tenure"), entry("saq"), entry("huey", acknowledges="before"), tenure=3, saq=1, huey=2)
        (chart,) = charts(run, None)

        assert [bar["kind"] for bar in chart["panels"][0]["bars"]] == ["ours", "after", "before"]

    def test_charts_omit_queues_that_recovered_only_some_jobs(self) -> None:
        run = found(entry("tenure"), entry("saq"))
        for key, last, unfinished in (("tenure", 25.0, 0.0), ("saq", 5.0, 4.0)):
            figures = {"last": last, "unfinished": unfinished}
            run.results.samples.append(Sample(key, "recovery_default", 1, 1.0, figures))

        (chart,) = charts(run, None)

        assert [bar["kind"] for bar in chart["panels"][0]["bars"]] == ["ours"]
