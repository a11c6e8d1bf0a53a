import sys
import threading
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import msgspec
import pytest

from benchmarks.peers.cells import CELLS, QUANTITIES, place, stretch, taken
from benchmarks.peers.environments import Source, sources
from benchmarks.peers.order import Order
from benchmarks.peers.ours import ABOUT
from benchmarks.peers.plan import LATER, TOGETHER, chosen, expected, turns
from benchmarks.peers.process import without_folders
from benchmarks.peers.results import Entry, Machine, Results, Sample, percentile, summary, values
from benchmarks.peers.run import cells_of
from benchmarks.peers.server import POSTGRES_SETTINGS, Postgres
from benchmarks.peers.tally import Reader, Tally
from benchmarks.server import a_postgres
from tests.postgres_servers import missing_postgres

pytestmark = pytest.mark.thorough

ADAPTER = [sys.executable, "-m", "benchmarks.peers.ours"]
EXPECTED = {"process_backlog": (150.0, None), "process_worn": (100.0, 300.0)}
PEERS: dict[str, list[str]] = {"ours": [], "one": [], "other": []}


def sample(peer: str = "ours", cell: str = "process_10", number: int = 1, **figures: float) -> Sample:
    return Sample(peer, cell, number, 1.0, figures)


class TestPlan:
    def test_a_round_has_each_cell_of_each_peer_once(self) -> None:
        due = turns(PEERS, CELLS, number=1, seed=7)

        assert Counter((peer, cell.name) for peer, cell in due) == Counter((p, c.name) for p in PEERS for c in CELLS)

    def test_the_seed_decides_the_order_and_each_round_has_another(self) -> None:
        assert turns(PEERS, CELLS, number=1, seed=7) == turns(PEERS, CELLS, number=1, seed=7)
        assert turns(PEERS, CELLS, number=1, seed=7) != turns(PEERS, CELLS, number=1, seed=8)
        assert turns(PEERS, CELLS, number=1, seed=7) != turns(PEERS, CELLS, number=2, seed=7)

    def test_a_cell_that_hardly_differs_is_measured_in_fewer_rounds(self) -> None:
        rounds = Counter(
            cell.name for number in range(1, 6) for _, cell in turns({"ours": []}, CELLS, number=number, seed=7)
        )

        assert rounds == {cell.name: cell.rounds for cell in CELLS}

    def test_a_variant_runs_only_in_its_own_cells(self) -> None:
        due = turns({"ours": [], "older": ["process_10", "idle"]}, CELLS, number=1, seed=7)

        assert {cell.name for peer, cell in due if peer == "older"} == {"process_10", "idle"}

    def test_the_expected_time_of_a_round_comes_from_earlier_samples(self) -> None:
        due = turns({"ours": []}, chosen(["process_10", "recovery_tight"]), number=1, seed=7)
        took = [sample(number=1), sample(number=2), sample(peer="one"), sample(cell="recovery_tight")]

        assert expected(due, took) == pytest.approx(1.0 + 1.0 / TOGETHER)
        assert expected(due, []) == 0.0

    def test_long_backlogs_are_measured_on_postgresql_only(self) -> None:
        everywhere = {cell.name for cell in CELLS if not cell.on}

        assert set(cells_of(Source("redis"))) == everywhere
        assert set(cells_of(Source("postgresql"))) - everywhere == {
            "process_1000",
            "process_backlog",
            "process_worn",
            "recovery_seen",
        }
        assert cells_of(Source("postgresql", cells=["process_10"])) == ["process_10"]

    def test_cells_run_after_the_cells_that_they_depend_on(self) -> None:
        order = [(peer, cell.name) for peer, cell in turns(PEERS, CELLS, number=1, seed=7)]

        for peer in PEERS:
            for later, needed in LATER.items():
                assert all(order.index((peer, name)) < order.index((peer, later)) for name in needed)

    def test_cells_that_run_in_parallel_come_last(self) -> None:
        alone = [cell.alone for _, cell in turns(PEERS, CELLS, number=1, seed=7)]

        assert alone == sorted(alone, reverse=True)

    def test_a_chosen_cell_includes_its_dependencies(self) -> None:
        assert {cell.name for cell in chosen(["latency_loaded"])} == {"latency_loaded", *LATER["latency_loaded"]}

    def test_an_unknown_cell_is_refused_by_name(self) -> None:
        with pytest.raises(ValueError, match="unknown cell procces_10; there are enqueue_one"):
            chosen(["procces_10"])


class TestStatistics:
    def test_a_summary_is_the_median_and_the_spread_of_the_rounds(self) -> None:
        found = summary([90.0, 100.0, 130.0])

        assert found is not None
        assert (found.median, found.least, found.most, found.rounds) == (100.0, 90.0, 130.0, 3)
        assert found.spread == pytest.approx(0.2)

    def test_no_rounds_have_no_summary(self) -> None:
        assert summary([]) is None

    def test_a_percentile_is_one_of_the_values(self) -> None:
        waited = [float(number) for number in range(1, 101)]

        assert (percentile(waited, 50), percentile(waited, 99), percentile(waited, 100)) == (50.0, 99.0, 100.0)
        assert percentile([3.0], 99) == 3.0

    def test_values_omit_other_cells_and_failures(self) -> None:
        samples = [
            sample(number=2, rate=2.0),
            sample(number=1, rate=1.0),
            sample(peer="one", rate=9.0),
            sample(cell="process_100", rate=9.0),
            msgspec.structs.replace(sample(number=3), failed="it hung"),
        ]

        assert values(samples, peer="ours", cell="process_10", figure="rate") == [1.0, 2.0]


class TestRead:
    def test_results_are_read_of_the_newest_jobs(self) -> None:
        assert stretch(range(1, 20_001), 2_000) == range(18_001, 20_001)

    def test_a_job_that_has_not_run_is_not_read(self) -> None:
        assert stretch([1, 2, 3, 4, 6, 7, 8, 10], 3) == range(6, 9)

    def test_the_longest_stretch_counts_if_gaps_leave_none_long_enough(self) -> None:
        assert stretch([1, 2, 4, 5, 6, 9, 9], 10) == range(4, 7)

    def test_a_process_without_runs_has_an_empty_tally(self) -> None:
        assert not stretch([], 10)

    def test_results_of_the_newest_jobs_are_read_and_compared(self) -> None:
        ours = msgspec.convert({**asdict(ABOUT), "key": "tenure-sqlite", "storage": "sqlite", "rate": 1}, Entry)
        (cell,) = chosen(["echo_10"])

        with place(ours, ADAPTER, None, cell.name) as at:
            found = taken(cell, at, lambda cell, figure: None, 1)

        assert found.failed is None
        assert (found.figures["jobs"], found.figures["left"]) == (100.0, 0.0)
        assert found.figures["read"] > 0


@pytest.mark.postgres
@pytest.mark.skipif(missing_postgres(own=True) is not None, reason=str(missing_postgres(own=True)))
class TestPostgres:
    def test_jobs_are_processed_among_a_backlog_and_after_others(self) -> None:
        ours = msgspec.convert({**asdict(ABOUT), "key": "tenure-postgres", "storage": "postgresql", "rate": 1}, Entry)
        with a_postgres(**POSTGRES_SETTINGS) as server:
            assert server is not None
            postgres = Postgres(server)
            for name in ("process_backlog", "process_worn"):
                (cell,) = chosen([name])
                with (
                    postgres.database() as database,
                    place(ours, ADAPTER, database, name, backlog=150, worn=300) as at,
                ):
                    found = taken(cell, at, lambda cell, figure: None, 1)

                assert (found.failed, found.remarks) == (None, [])
                assert (found.figures["jobs"], found.figures.get("gone")) == EXPECTED[name]
                assert found.figures["twice"] == 0
                assert found.figures["server_cpu"] > 0
            left = [name for (name,) in server.execute("SELECT datname FROM pg_database") if name.startswith("peers_")]

        assert (postgres.settings["fsync"], postgres.settings["synchronous_commit"]) == ("on", "on")
        assert not left


class TestTally:
    def test_notes_of_threads_are_read_once_and_in_full(self, tmp_path: Path) -> None:
        tally, reader = Tally(str(tmp_path)), Reader(tmp_path)

        def note(first: int) -> None:
            for number in range(first, first + 500):
                tally.started(number)

        threads = [threading.Thread(target=note, args=(first,)) for first in (0, 1000)]
        for thread in threads:
            thread.start()
        reader.read()
        for thread in threads:
            thread.join()

        assert reader.read() == 1000
        assert reader.read() == 1000
        assert {note.number for note in reader.started} == {*range(500), *range(1000, 1500)}

    def test_starts_and_ends_are_read_separately(self, tmp_path: Path) -> None:
        tally, reader = Tally(str(tmp_path)), Reader(tmp_path)
        before = time.monotonic_ns()
        tally.started(7)
        tally.finished(7)

        assert reader.read() == 1
        assert [note.number for note in reader.finished] == [7]
        assert before <= reader.started[0].at_ns <= reader.finished[0].at_ns <= time.monotonic_ns()

    def test_a_note_that_is_half_written_is_left_for_later(self, tmp_path: Path) -> None:
        file, reader = tmp_path / "1.tally", Reader(tmp_path)
        file.write_bytes((7).to_bytes(8, "little"))
        assert reader.read() == 0

        file.write_bytes((7).to_bytes(8, "little") + (1).to_bytes(8, "little"))
        assert reader.read() == 1


class TestData:
    def test_every_order_can_be_encoded_for_an_adapter(self) -> None:
        order = Order("work", url="redis://127.0.0.1:1/0", task="hold", hold=2.0, tight=True)

        assert Order.of_json(order.as_json()) == order

    def test_the_text_of_an_echo_is_as_long_as_ordered(self) -> None:
        assert len(str(Order("enqueue", task="echo", size=1000).row(7)[1])) == 1000

    def test_each_peer_names_one_adapter_and_all_its_versions(self) -> None:
        for key, source in sources().items():
            assert (source.module is None) != (source.script is None), key
            assert source.same is None or source.same in sources(), key
            assert all("==" in pin or "@" in pin[1:] for pin in source.pins), key
            assert set(source.cells) <= {cell.name for cell in CELLS}, key
            assert bool(source.pins) == (source.same is None), key

    def test_ours_is_measured_on_its_defaults(self) -> None:
        assert ABOUT.role == "ours"
        # The other options default to those of a worker with a supervisor, which adapters do not have.
        assert set(ABOUT.settings) == {"all", "worker", "prefetch"}

    def test_every_figure_belongs_to_a_cell_and_exists_once(self) -> None:
        named = Counter((quantity.cell, quantity.figure) for quantity in QUANTITIES)

        assert set(named.values()) == {1}
        assert {cell for cell, _ in named} == {cell.name for cell in CELLS}

    def test_an_error_is_shown_without_the_folders_of_this_machine(self) -> None:
        said = f'File "{Path(__file__).resolve()}", line 7, in uvloop/loop.pyx, at redis://127.0.0.1:6379/0'

        assert without_folders(said) == 'File "test_peers.py", line 7, in uvloop/loop.pyx, at redis://127.0.0.1:6379/0'

    def test_results_can_be_written_and_read(self) -> None:
        on = Machine("Linux", "a processor", 2, 24.0, 0.5, "CPython 3.12.1", "7.0.15", {"save": ""}, "3.40.1")
        results = Results(
            "2026-11-22T11:00:00+00:00", 60.0, 7, 5, {}, on, [], list(QUANTITIES), [sample(rate=1.0)], {"rq": "no"}
        )

        assert msgspec.json.decode(msgspec.json.encode(results), type=Results) == results
