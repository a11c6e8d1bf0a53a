from typing import Any

import msgspec
import pytest

from benchmarks.peers.charts import charts
from benchmarks.peers.found import Found, in_order
from benchmarks.peers.goals import Judged, judged
from benchmarks.peers.report import page
from benchmarks.peers.results import Entry, Machine, Results, Sample, together

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
    """Return a run in which each of these keys processed this many jobs a second at a concurrency of 100."""
    samples = [
        Sample(key.replace("_", "-"), "process_100", number, 1.0, {"rate": rate})
        for key, rate in rates.items()
        for number in range(1, rounds + 1)
    ]
    return Found(Results("2026-11-22T12:00:00+00:00", 60.0, 7, rounds, {}, MACHINE, list(entries), [], samples))


def goal(goals: list[Judged], words: str) -> Judged:
    return next(item for item in goals if words in item.goal and "processed" in item.what and "100" in item.what)


class TestGoals:
    def test_a_goal_is_met_or_missed_by_its_ratio(self) -> None:
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

    def test_queues_on_postgresql_are_compared_at_their_best_concurrency(self) -> None:
        entries = [
            entry(key, storage="postgresql", role="ours" if key == "tenure-postgres" else "peer")
            for key in ("tenure-postgres", "pgqueuer", "pgqueuer-uncapped", "procrastinate")
        ]
        run = found(*entries, tenure_postgres=20_000, pgqueuer=5_000, pgqueuer_uncapped=9_000, procrastinate=500)
        run.results.samples.append(Sample("pgqueuer-uncapped", "process_1000", 1, 1.0, {"rate": 25_000.0}))
        goals = {item.goal: item for item in judged(run, None)}

        assert goals["ahead of pgqueuer"].ratio == pytest.approx(0.8)
        assert goals["ahead of pgqueuer"].verdict == "**missed** by 20%"
        assert goals["at least 20x procrastinate"].ratio == pytest.approx(40)
        assert goals["at least 3x pgqueuer"].verdict == "not measured"

    def test_speed_on_postgresql_may_hardly_fall_with_a_backlog(self) -> None:
        run = found(entry("tenure-postgres", storage="postgresql", role="ours"), tenure_postgres=3_000)
        run.results.samples.append(Sample("tenure-postgres", "process_backlog", 1, 1.0, {"rate": 1_000.0}))
        run.results.samples.append(Sample("tenure-postgres", "process_worn", 1, 1.0, {"rate": 2_400.0}))
        verdicts = {item.what.rpartition(", ")[2]: item.verdict for item in judged(run, None)}

        assert verdicts["a long backlog"] == "**missed** by 50%"
        assert verdicts["many that have gone through"] == "met"

    def test_for_some_figures_less_is_better(self) -> None:
        assert Judged("what", "at most a quarter", 0.2, "", 0.25, False).met
        assert Judged("what", "at most a quarter", 0.5, "", 0.25, False).verdict == "**missed** by 100%"
        assert Judged("what", "none lost", 0.0, "", 0, False).met
        assert Judged("what", "none lost", 2.0, "", 0, False).met is False


class TestPage:
    def test_groups_are_separate_and_the_best_of_each_is_first(self) -> None:
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
        text = page(run, None, [("a plot", "plots/a.svg")])

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

    def test_a_page_shows_queues_on_postgresql_and_the_server_settings(self) -> None:
        on = msgspec.structs.replace(MACHINE, postgres="15.8", postgres_settings={"synchronous_commit": "on"})
        run = found(
            entry("tenure-postgres", storage="postgresql", role="ours"),
            entry("pgqueuer", storage="postgresql"),
            tenure_postgres=2_000,
            pgqueuer=1_000,
        )
        run.results.samples.append(Sample("pgqueuer", "process_worn", 1, 1.0, {"rate": 900.0, "gone": 200_000.0}))
        text = page(Found(msgspec.structs.replace(run.results, machine=on)), None, [])

        assert "## On PostgreSQL" in text
        assert "PostgreSQL 15.8 (synchronous_commit on)" in text
        assert "| PGQUEUER | 1,000 ±0% |" in text
        assert "| PGQUEUER | 900 | 200,000 |" in text

    def test_of_a_cell_in_several_runs_the_later_one_counts(self) -> None:
        first = found(entry("tenure"), entry("saq"), tenure=1_000, saq=100).results
        second = found(entry("saq"), entry("pgqueuer", storage="postgresql"), rounds=3, saq=200, pgqueuer=50).results
        first.samples.append(Sample("saq", "process_10", 1, 1.0, {"rate": 70.0}))
        run = Found(together([first, second]))

        assert list(run.entries) == ["tenure", "saq", "pgqueuer"]
        assert [run.figure(key, "process_100").median for key in run.entries] == [1_000, 200, 50]  # type: ignore[union-attr]
        assert run.figure("saq", "process_10") is not None
        assert (run.results.rounds, run.results.seconds) == (3, 120.0)

    def test_runs_on_different_machines_cannot_be_on_one_page(self) -> None:
        first = found(entry("tenure"), tenure=1_000).results
        on = msgspec.structs.replace(MACHINE, processor="another processor")

        with pytest.raises(ValueError, match="not on one machine"):
            together([first, msgspec.structs.replace(first, machine=on)])

    def test_a_page_of_too_few_rounds_warns_against_quoting_it(self) -> None:
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
