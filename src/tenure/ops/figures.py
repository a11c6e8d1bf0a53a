"""Figures over time: how many runs ended, how long jobs waited and runs took, in steps, as records without a screen."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec import Struct

from tenure.clock import SECOND
from tenure.core.duration import moment
from tenure.core.figures import (
    ALL_TASKS,
    HOUR,
    HOURS,
    HOURS_KEPT,
    MINUTE,
    MINUTES,
    NO_COUNTS,
    Counts,
    Figures,
    FiguresCell,
    FiguresQuery,
    added,
    folded,
    quantile,
)
from tenure.errors import UsageError
from tenure.storage.protocol import Storage

POINTS_MOST = 1_600
"""How many steps one answer has at most: more than the minutes that are kept."""

QUEUE_POINTS_MOST = 120
"""How many steps the figures of each queue have at most."""


class SpreadEstimate(Struct, frozen=True, kw_only=True):
    """Estimates from `count` durations, in seconds: at most twice, and at least half, of the true quantiles."""

    count: int
    p50: float
    p95: float
    p99: float


class EndsView(Struct, frozen=True, kw_only=True):
    """How many runs ended, by outcome, and how long their jobs had waited and the runs took; None: no durations.

    `retried`: failed runs whose jobs run again. `cancelled` and `expired` also count jobs that had not started.
    `stalled`: runs charged with a stall; if a job failed by one, it is counted as failed, too.
    """

    completed: int
    failed: int
    retried: int
    cancelled: int
    expired: int
    stalled: int
    waited: SpreadEstimate | None
    ran: SpreadEstimate | None


class FiguresPoint(Struct, frozen=True, kw_only=True):
    """The figures of the step that begins at `at`; `figures` is None if nothing was counted, or is kept, of it."""

    at: datetime
    figures: EndsView | None


class FiguresView(Struct, frozen=True, kw_only=True):
    """Figures in steps of `step` seconds, the earliest first; `total`: of all steps together.

    `queues`: those that are counted. `task`: None if all tasks are. The last step may not be over yet. `waited` and
    `ran`: the histograms of all steps together, empty without durations. Bucket k counts the durations below 2^k
    milliseconds that are in no earlier bucket, and the last bucket counts all others.
    """

    queues: tuple[str, ...]
    task: str | None
    step: float
    total: EndsView | None
    waited: tuple[int, ...]
    ran: tuple[int, ...]
    points: list[FiguresPoint]


def require_time_between(since: int, until: int) -> None:
    """Check that there is time between two instants.

    Raises:
        UsageError: `since` is not before `until`.
    """
    if not 0 <= since < until:
        raise UsageError("since must lie before until, and in 1970 or later; give an earlier since, or leave out until")


class QueuePoint(Struct, frozen=True, kw_only=True):
    """What ended in a queue within one step; `waited`: the 95th percentile of the waiting times, in seconds."""

    ended: int
    failed: int
    stalled: int
    waited: float | None


class QueueFigures(Struct, frozen=True, kw_only=True):
    """The figures of a queue: of all steps together, and of each step; None: nothing was counted, or is kept, of it."""

    queue: str
    total: EndsView
    points: list[QueuePoint | None]


class QueuesFiguresView(Struct, frozen=True, kw_only=True):
    """The figures of each queue in steps of `step` seconds, those with most ends first. `since`: when the steps begin.

    `left_out`: how many further queues have figures.
    """

    since: datetime
    step: float
    queues: list[QueueFigures]
    left_out: int


async def figures_view(
    storage: Storage, queues: Sequence[str], *, task: str | None, since: int, until: int, step: int
) -> FiguresView:
    """Return the figures of some queues between two instants of the storage's clock, in steps, all in microseconds.

    Raises:
        UsageError: the step is not a number of whole minutes, or too short for this time. Check the instants before.
    """
    steps = _Steps.checked(since, until, step, most=POINTS_MOST)
    cells = await steps.cells(storage, queues, ALL_TASKS if task is None else task)
    by_step = folded(cells, step=step)
    total = _sum(by_step.values())
    counted = None if total is None else Figures(total)
    return FiguresView(
        queues=tuple(queues),
        task=task,
        step=step / SECOND,
        total=_ends(total),
        waited=_histogram(counted.waited) if counted else (),
        ran=_histogram(counted.ran) if counted else (),
        points=[FiguresPoint(at=moment(at), figures=_ends(by_step.get(at))) for at in steps.starts],
    )


async def queues_figures_view(
    storage: Storage, queues: Sequence[str], *, since: int, until: int, step: int, limit: int
) -> QueuesFiguresView:
    """Return the figures of each queue, at most `limit` queues; see `figures_view`.

    Raises:
        UsageError: the step is not a number of whole minutes, or too short for this time. Check the instants before.
    """
    steps = _Steps.checked(since, until, step, most=QUEUE_POINTS_MOST)
    by_queue: dict[str, list[FiguresCell]] = {}
    for cell in await steps.cells(storage, queues, ALL_TASKS):
        by_queue.setdefault(cell.queue, []).append(cell)
    found: list[QueueFigures] = []
    for queue, cells in by_queue.items():
        by_step = folded(cells, step=step)
        total = _ends(_sum(by_step.values()))
        if total is not None:
            points = [_point(by_step.get(at)) for at in steps.starts]
            found.append(QueueFigures(queue=queue, total=total, points=points))
    found.sort(key=lambda queue: (-_ended(queue.total), queue.queue))
    return QueuesFiguresView(
        since=moment(steps.first), step=step / SECOND, queues=found[:limit], left_out=max(0, len(found) - limit)
    )


class _Steps(Struct, frozen=True, kw_only=True):
    """The steps of an answer: `count` of them from `first` on, each `step` long, all in microseconds."""

    first: int
    step: int
    count: int
    until: int

    @classmethod
    def checked(cls, since: int, until: int, step: int, *, most: int) -> "_Steps":
        """Return the steps between two instants, at most `most`.

        Raises:
            UsageError: the step is impossible, or the steps are too many.
        """
        if not 0 < step <= HOURS_KEPT or step % MINUTE:
            raise UsageError('step must be whole minutes, 30 days at most; give "1m", "15m" or "6h", for example')
        first = since - since % step
        count = -(-(until - first) // step)
        if count > most:
            raise UsageError(f"these are {count:,} steps, {most:,} at most are possible; give a longer step")
        return cls(first=first, step=step, count=count, until=until)

    @property
    def starts(self) -> range:
        """The instants at which the steps begin."""
        return range(self.first, self.first + self.count * self.step, self.step)

    async def cells(self, storage: Storage, queues: Sequence[str], task: str) -> Sequence[FiguresCell]:
        """Return the cells of these queues."""
        level = MINUTES if self.step % HOUR else HOURS
        query = FiguresQuery(since=self.first, until=self.until, level=level, task=task)
        # Without names, a survey is one of all queues.
        return (await storage.survey(queues, figures=query)).figures if queues else ()


def _sum(several: Iterable[Counts]) -> Counts | None:
    total: Counts | None = None
    for counts in several:
        total = added(total or NO_COUNTS, counts)
    return total


def _histogram(buckets: Counts) -> Counts:
    return buckets if any(buckets) else ()


def _ended(ends: EndsView) -> int:
    return ends.completed + ends.failed + ends.retried + ends.cancelled + ends.expired


def _point(counts: Counts | None) -> QueuePoint | None:
    ends = _ends(counts)
    if ends is None:
        return None
    waited = None if ends.waited is None else ends.waited.p95
    return QueuePoint(ended=_ended(ends), failed=ends.failed, stalled=ends.stalled, waited=waited)


def _ends(counts: Counts | None) -> EndsView | None:
    if counts is None:
        return None
    figures = Figures(counts)
    return EndsView(**figures.ends, waited=_spread(figures.waited), ran=_spread(figures.ran))


def _spread(buckets: Counts) -> SpreadEstimate | None:
    p50, p95, p99 = (quantile(buckets, p) for p in (0.5, 0.95, 0.99))
    if p50 is None or p95 is None or p99 is None:
        return None
    return SpreadEstimate(count=sum(buckets), p50=p50 / SECOND, p95=p95 / SECOND, p99=p99 / SECOND)
