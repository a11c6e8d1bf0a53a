"""Figures: how many runs ended, how long jobs waited and how long runs took, by queue, task and minute.

    runs of a worker ──► a delta ──with a beat──► the storage adds it to the cells of its current minute and hour
    jobs that expire, or are cancelled before they start ────┘

A cell holds its counts as one tuple: the ends by outcome, then the two histograms. Figures are not the record of jobs:
a worker that is killed loses those since its last beat.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

OUTCOMES = ("completed", "failed", "retried", "cancelled", "expired", "stalled")
"""The ends that are counted. `retried`: a failed run whose job runs again.

`stalled`: every run that was charged with a stall. If its job failed by that, it is counted as failed, too.
"""

BUCKETS = 24
"""How many buckets a histogram has. Bucket k holds durations below 2^k milliseconds; the last one holds all others."""

STALLED = "stalled"

_PLACES = {outcome: place for place, outcome in enumerate(OUTCOMES)}
_WAITED = len(OUTCOMES)
_RAN = _WAITED + BUCKETS

LENGTH = _RAN + BUCKETS
"""How many counts a cell has."""

MINUTE, HOUR = 60_000_000, 3_600_000_000

MINUTES_KEPT = 26 * HOUR
HOURS_KEPT = 30 * 24 * HOUR
"""How long the cells of minutes and of hours are kept after they begin, in microseconds."""

TASKS_KEPT = 200
"""How many tasks of a queue have cells of their own in one minute, or hour."""

OTHERS = "(others)"
"""The task that stands for all further tasks of a queue."""

ALL_TASKS = ""
"""The task that stands for all tasks of a queue together."""

CELLS_SENT = 50
"""How many cells one beat carries at most. The others follow with the next beats."""

Counts = tuple[int, ...]
"""The counts of a cell: `LENGTH` numbers."""

NO_COUNTS: Counts = (0,) * LENGTH


class TaskCounts(Struct, frozen=True, array_like=True):
    """What a process has counted of a queue's task since the last time."""

    queue: str
    task: str
    counts: Counts


class FiguresDelta(Struct, frozen=True, tag="figures"):
    """What a process has counted since its last delta. The storage adds it to the cells of its minute and hour."""

    counted: tuple[TaskCounts, ...]


class Level(Struct, frozen=True, gc=False):
    """A length of cells, and how long they are kept, in microseconds."""

    length: int
    kept: int

    def start(self, instant: int) -> int:
        """Return when the cell of an instant begins."""
        return instant - instant % self.length


MINUTES = Level(MINUTE, MINUTES_KEPT)
HOURS = Level(HOUR, HOURS_KEPT)


class FiguresQuery(Struct, frozen=True, kw_only=True):
    """Which cells to return: those that begin at `since` or later, and before `until`.

    `level`: `MINUTES` or `HOURS`. `task`: `ALL_TASKS` for the sums over the tasks of each queue.
    """

    since: int
    until: int
    level: Level = MINUTES
    task: str = ALL_TASKS

    def begin(self, now: int) -> int:
        """Return the first instant at which a cell may begin. Older cells are past their retention."""
        return max(self.since, now - self.level.kept)


class FiguresCell(Struct, frozen=True, order=True):
    """The counts of a queue in the minute, or hour, that begins at `start`."""

    queue: str
    start: int
    counts: Counts


class Figures(Struct, frozen=True):
    """Counts with names: the ends by outcome, and the histograms of the waiting times and of the runs' durations."""

    counts: Counts

    @property
    def ends(self) -> dict[str, int]:
        """The number of ends by outcome."""
        return dict(zip(OUTCOMES, self.counts[:_WAITED], strict=True))

    @property
    def waited(self) -> Counts:
        """The buckets of the times from the due time of a job to its start."""
        return self.counts[_WAITED:_RAN]

    @property
    def ran(self) -> Counts:
        """The buckets of the durations of runs."""
        return self.counts[_RAN:]


def count_run(counts: list[int], outcome: str, *, stalled: bool, waited: int | None, ran: int | None) -> None:
    """Add a run to the counts of a cell. Durations in microseconds; None: unknown, so not counted."""
    counts[_PLACES[outcome]] += 1
    if stalled and outcome != STALLED:
        counts[_PLACES[STALLED]] += 1
    if waited is not None:
        counts[_WAITED + bucket_of(waited)] += 1
    if ran is not None:
        counts[_RAN + bucket_of(ran)] += 1


def end_of(outcome: str) -> Counts:
    """Return the counts of one end that no worker has settled: of a job that has not started."""
    counts = [0] * LENGTH
    counts[_PLACES[outcome]] = 1
    return tuple(counts)


def bucket_of(duration: int) -> int:
    """Return the bucket of a duration in microseconds."""
    bits = (duration // 1000).bit_length() if duration > 0 else 0
    return bits if bits < BUCKETS else BUCKETS - 1


def quantile(buckets: Sequence[int], p: float) -> int | None:
    """Return an estimate of the duration that a part `p` of all durations do not exceed; None without durations.

    In microseconds. The durations of a bucket count as spread evenly over it. So the estimate lies in the same bucket
    as the true value: it is at most twice and at least half of that, or less than 1 ms off in the first bucket. In the
    last bucket, which has no upper bound, the estimate is its lower bound.
    """
    total = sum(buckets)
    if not total:
        return None
    rank, below = p * total, 0
    last = max(number for number, count in enumerate(buckets) if count)
    for number, count in enumerate(buckets):
        if count and (below + count >= rank or number == last):
            low = 0 if number == 0 else 1000 << (number - 1)
            high = low if number == BUCKETS - 1 else 1000 << number
            return round(low + (high - low) * min(1.0, max(0.0, (rank - below) / count)))
        below += count
    raise AssertionError("a bucket that is not empty is the last one")


def added(one: Counts, other: Counts) -> Counts:
    """Return the sums of two cells' counts."""
    return tuple(a + b for a, b in zip(one, other, strict=True))


def with_counted(
    known: Mapping[tuple[str, str], Counts], counted: Iterable[TaskCounts]
) -> dict[tuple[str, str], Counts]:
    """Return the cells that change, by queue and task, with their new counts.

    `known`: all cells that these queues have in the minute, or hour. A task that comes when its queue has `TASKS_KEPT`
    others is counted as `OTHERS`, and so is a task without a name, as a damaged record has it.
    """
    cells = dict(known)
    changed: dict[tuple[str, str], Counts] = {}
    own = {queue: 0 for queue, _ in known}
    for queue, task in known:
        own[queue] += task not in (ALL_TASKS, OTHERS)
    for part in counted:
        queue, task = part.queue, part.task or OTHERS
        place = queue, task
        if place not in cells and task != OTHERS:
            if own.get(queue, 0) >= TASKS_KEPT:
                place = (queue, OTHERS)
            else:
                own[queue] = own.get(queue, 0) + 1
        for name in (place, (queue, ALL_TASKS)):
            cells[name] = changed[name] = added(cells.get(name, NO_COUNTS), part.counts)
    return changed


def sound(counts: Counts) -> Counts:
    """Return stored counts if they can be used, otherwise none: another program may have written anything."""
    return counts if len(counts) == LENGTH else NO_COUNTS


def summed(cells: Iterable[FiguresCell]) -> tuple[FiguresCell, ...]:
    """Return one cell for each queue and start, in order: partitions of a storage may have one each."""
    found: dict[tuple[str, int], Counts] = {}
    for cell in cells:
        place = cell.queue, cell.start
        found[place] = added(found[place], cell.counts) if place in found else cell.counts
    return tuple(FiguresCell(queue, start, counts) for (queue, start), counts in sorted(found.items()))


def folded(cells: Iterable[FiguresCell], *, step: int) -> dict[int, Counts]:
    """Return the sums of all queues' cells by the start of their step; steps without cells are absent.

    `step`: in microseconds.
    """
    found: dict[int, Counts] = {}
    for cell in cells:
        start = cell.start - cell.start % step
        found[start] = added(found[start], cell.counts) if start in found else cell.counts
    return dict(sorted(found.items()))
