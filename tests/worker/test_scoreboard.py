"""The monitor reads what a worker writes into shared memory, also while it is being written."""

import os
import select
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import structs

from tenure.core.job import Ref
from tenure.core.lease import Lease
from tenure.worker.scoreboard import KnownRuns, Scoreboard
from tests.core.cases import active

WRITES = 8_704 + 16
"""The offset of the count of writes in the first row: after two numbers that belong to the monitor."""

LONGEST = "n" * 1021 + "ü"
"""A name of 1,023 bytes; none is longer than a kilobyte."""


@pytest.fixture
def scoreboard() -> Iterator[Scoreboard]:
    made = Scoreboard.new(3)
    yield made
    made.close()


def lease(id_: str = "a", *, fence: int = 7, queue: str = "mail", task: str = "send") -> Lease:
    return Lease(structs.replace(active(), queue=queue, id=id_, task=task, fence=fence))


def test_a_run_is_read_as_it_was_written(scoreboard: Scoreboard) -> None:
    given = Lease(structs.replace(lease().job, timeout=3_000_000, heartbeat_timeout=500_000))
    place = scoreboard.write(given, way="thread", claimed_at=12.5, renewed_at=12.25)
    assert place is not None
    scoreboard.signed(place, 13.0)
    scoreboard.renewed(place, 14.0)

    (run,) = scoreboard.runs()

    assert (run.ref, run.task, run.fence, run.way) == (Ref("mail", "a"), "send", 7, "thread")
    assert (run.claimed_at, run.signed_at, run.renewed_at) == (12.5, 13.0, 14.0)
    assert (run.timeout, run.heartbeat_timeout) == (3.0, 0.5)
    assert run.lease == given.job.stall.lease / 1_000_000


def test_a_run_that_waits_for_a_process_has_no_time_until_it_begins(scoreboard: Scoreboard) -> None:
    terms = structs.replace(lease().job.stall, renewed=False)
    given = Lease(structs.replace(lease().job, stall=terms))
    place = scoreboard.write(given, way="process", claimed_at=float("inf"), renewed_at=1.0)
    assert place is not None
    (waiting,) = scoreboard.runs()
    scoreboard.began(place, 5.0, renewed=False)
    (begun,) = scoreboard.runs()

    assert (waiting.claimed_at, waiting.signed_at) == (float("inf"), float("inf"))
    assert waiting.lease == terms.lease / 1_000_000
    assert (begun.claimed_at, begun.signed_at, begun.lease) == (5.0, 5.0, float("inf"))


def test_a_run_without_limits_has_infinite_ones(scoreboard: Scoreboard) -> None:
    scoreboard.write(lease(), way="loop", claimed_at=1.0, renewed_at=1.0)

    assert (scoreboard.runs()[0].timeout, scoreboard.runs()[0].heartbeat_timeout) == (float("inf"), float("inf"))


def test_the_longest_names_have_room_on_every_line(scoreboard: Scoreboard) -> None:
    for _ in range(3):
        scoreboard.write(lease(LONGEST, queue=LONGEST, task=LONGEST), way="loop", claimed_at=1.0, renewed_at=1.0)

    assert [(run.ref, run.task) for run in scoreboard.runs()] == [(Ref(LONGEST, LONGEST), LONGEST)] * 3


def test_a_full_scoreboard_refuses_runs_and_a_cleared_row_is_reused(scoreboard: Scoreboard) -> None:
    places = [scoreboard.write(lease(str(n)), way="loop", claimed_at=1.0, renewed_at=1.0) for n in range(3)]

    assert scoreboard.write(lease("late"), way="loop", claimed_at=1.0, renewed_at=1.0) is None

    scoreboard.clear(places[1] or 0)

    assert [run.ref.id for run in scoreboard.runs()] == ["0", "2"]
    assert scoreboard.write(lease("late"), way="loop", claimed_at=1.0, renewed_at=1.0) == places[1]
    assert [run.ref.id for run in scoreboard.runs()] == ["0", "late", "2"]


def test_the_scoreboard_separates_started_isolated_and_waiting_runs() -> None:
    scoreboard = Scoreboard.new(9)
    inf = float("inf")
    scoreboard.write(lease("here"), way="thread", claimed_at=1.0, renewed_at=1.0)
    scoreboard.write(lease("ahead"), way="loop", claimed_at=inf, renewed_at=1.0)
    scoreboard.write(lease("waiting"), way="process", claimed_at=inf, renewed_at=1.0)
    given, finished = (
        scoreboard.write(lease(name), way="process", claimed_at=inf, renewed_at=1.0) or 0
        for name in ("given", "finished")
    )
    scoreboard.set_pid(given, 7)
    scoreboard.set_pid(finished, 8)
    scoreboard.began(finished, 2.0, renewed=True)
    scoreboard.finished(finished, lease().job.stall)
    # No process could be started for it.
    back = scoreboard.write(lease("back"), way="process", claimed_at=inf, renewed_at=1.0) or 0
    scoreboard.set_way(back, "loop")
    scoreboard.began(back, 3.0, renewed=True)
    runs = scoreboard.known_runs()

    assert runs == KnownRuns(
        suspects=frozenset({Ref("mail", "here"), Ref("mail", "back")}),
        isolated=frozenset({Ref("mail", "given"), Ref("mail", "finished")}),
        waiting=frozenset({Ref("mail", "ahead"), Ref("mail", "waiting")}),
    )


def test_no_run_had_begun_and_unknown_are_different_answers(scoreboard: Scoreboard) -> None:
    place = scoreboard.write(lease("apart"), way="process", claimed_at=float("inf"), renewed_at=1.0) or 0
    scoreboard.set_pid(place, 7)
    known = scoreboard.known_runs()
    for number in range(3):
        scoreboard.write(lease(str(number)), way="loop", claimed_at=1.0, renewed_at=1.0)
    unknown = scoreboard.known_runs()

    assert known.suspects == frozenset()
    assert unknown.suspects is None
    assert known.isolated == unknown.isolated == {Ref("mail", "apart")}


def test_an_external_renewal_counts_only_for_its_run(scoreboard: Scoreboard) -> None:
    place = scoreboard.write(lease(fence=7), way="loop", claimed_at=1.0, renewed_at=1.0)
    assert place is not None
    (run,) = scoreboard.runs()
    scoreboard.note_external_renewal(run, 9.0)

    assert scoreboard.external_renewal(place, 7) == 9.0
    assert scoreboard.runs()[0].renewed_at == 9.0

    scoreboard.clear(place)
    assert scoreboard.write(lease("next", fence=8), way="loop", claimed_at=2.0, renewed_at=2.0) == place

    # A request for the run that was in this row before comes late.
    scoreboard.note_external_renewal(run, 10.0)

    assert scoreboard.external_renewal(place, 8) == 0.0
    assert scoreboard.runs()[0].renewed_at == 2.0


def test_a_row_that_is_being_written_is_not_read(scoreboard: Scoreboard) -> None:
    place = scoreboard.write(lease(), way="loop", claimed_at=1.0, renewed_at=1.0)
    writes = struct.unpack("d", os.pread(scoreboard.descriptor, 8, WRITES))[0]
    os.pwrite(scoreboard.descriptor, struct.pack("d", writes + 1), WRITES)

    assert place == 0
    assert scoreboard.runs() == []


class WrittenWhileRead:
    """A row of the shared memory that changes after its numbers were read and before its text is."""

    def __init__(self, line: Any, write: Callable[[], object]) -> None:
        self._line = line
        self._write = write

    def __getitem__(self, place: int) -> float:
        return float(self._line[place])

    def tolist(self) -> list[float]:
        """Return the numbers as they are, then let the writer continue."""
        numbers: list[float] = self._line.tolist()
        self._write()
        return numbers


def test_a_row_that_changes_while_it_is_read_is_ignored(scoreboard: Scoreboard) -> None:
    place = scoreboard.write(lease("old", fence=7), way="loop", claimed_at=1.0, renewed_at=1.0)
    assert place is not None
    reader: Any = Scoreboard(os.dup(scoreboard.descriptor))

    def reuse() -> None:
        scoreboard.clear(place)
        scoreboard.write(lease("new", fence=8), way="loop", claimed_at=2.0, renewed_at=2.0)

    line = reader._rows[place]
    reader._rows[place] = WrittenWhileRead(line, reuse)

    assert reader.runs() == []

    reader._rows[place] = line
    (run,) = reader.runs()
    reader.close()

    assert (run.ref.id, run.fence, run.claimed_at) == ("new", 8, 2.0)


def test_the_times_of_the_loops_are_read_as_written(scoreboard: Scoreboard) -> None:
    scoreboard.turned(5.0, 0.25)
    scoreboard.claimed(4.0)
    scoreboard.beaten(6.0, 123_456_789)
    scoreboard.checked(7.0, 9.5)

    assert (scoreboard.turned_at, scoreboard.lag, scoreboard.claimed_at) == (5.0, 0.25, 4.0)
    assert (scoreboard.beaten_at, scoreboard.memory) == (6.0, 123_456_789)
    assert (scoreboard.checked_at, scoreboard.next_check) == (7.0, 9.5)


def test_another_process_reads_it_while_it_is_written_and_never_a_mixture(scoreboard: Scoreboard) -> None:
    reader = textwrap.dedent(
        """
        import sys
        from tenure.worker.scoreboard import Scoreboard

        scoreboard, seen = Scoreboard(int(sys.argv[1])), set()
        print("ready", flush=True)
        while len(seen) < 50:
            for run in scoreboard.runs():
                assert run.ref.id == run.task == str(run.fence) * 100, run
                assert run.claimed_at == run.fence, run
                seen.add(run.fence)
        print("enough", flush=True)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", reader, str(scoreboard.descriptor)],
        pass_fds=[scoreboard.descriptor],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        fence = 0
        # The machine decides how much of it the other process sees; so this continues until it has seen enough.
        while not select.select([process.stdout], [], [], 0)[0]:
            fence += 1
            name = str(fence) * 100
            place = scoreboard.write(
                lease(name[:1024], fence=fence, task=name[:1024]), way="loop", claimed_at=fence, renewed_at=1.0
            )
            if place is not None:
                scoreboard.clear(place)
        output = process.stdout.read()

    assert (process.returncode, output) == (0, "enough\n")


def test_isolated_processes_are_listed_until_they_have_ended() -> None:
    scoreboard = Scoreboard.new(1)
    for pid in (11, 12, 13):
        scoreboard.isolated_started(pid)
    scoreboard.isolated_ended(12)
    scoreboard.isolated_started(14)

    assert sorted(scoreboard.isolated_pids) == [11, 13, 14]
