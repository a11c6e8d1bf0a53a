"""Figures over time: how many runs ended, how long jobs waited and runs took, in steps, as records without a screen."""

from collections.abc import Sequence
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
    FiguresQuery,
    added,
    folded,
    quantile,
)
from tenure.errors import UsageError
from tenure.storage.protocol import Storage

POINTS_MOST = 1_600
"""How many steps one answer has at most: more than the minutes that are kept."""


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

    `queues`: those that are counted. `task`: None if all tasks are. The last step may not be over yet.
    """

    queues: tuple[str, ...]
    task: str | None
    step: float
    total: EndsView | None
    points: list[FiguresPoint]


def require_time_between(since: int, until: int) -> None:
    """Check that there is time between two instants.

    Raises:
        UsageError: `since` is not before `until`.
    """
    if not 0 <= since < until:
        raise UsageError("since must lie before until, and in 1970 or later; give an earlier since, or leave out until")


async def figures_view(
    storage: Storage, queues: Sequence[str], *, task: str | None, since: int, until: int, step: int
) -> FiguresView:
    """Return the figures of some queues between two instants of the storage's clock, in steps, all in microseconds.

    Raises:
        UsageError: the step is not a number of whole minutes, or too short for this time. Check the instants before.
    """
    if not 0 < step <= HOURS_KEPT or step % MINUTE:
        raise UsageError('step must be whole minutes, 30 days at most; give "1m", "15m" or "6h", for example')
    first = since - since % step
    count = -(-(until - first) // step)
    if count > POINTS_MOST:
        raise UsageError(f"these are {count:,} steps, {POINTS_MOST:,} at most are possible; give a longer step")
    level = MINUTES if step % HOUR else HOURS
    query = FiguresQuery(since=first, until=until, level=level, task=ALL_TASKS if task is None else task)
    # Without names, a survey is one of all queues.
    cells = (await storage.survey(queues, figures=query)).figures if queues else ()
    by_step = folded(cells, step=step)
    total: Counts | None = None
    for counts in by_step.values():
        total = added(total or NO_COUNTS, counts)
    return FiguresView(
        queues=tuple(queues),
        task=task,
        step=step / SECOND,
        total=_ends(total),
        points=[
            FiguresPoint(at=moment(at), figures=_ends(by_step.get(at)))
            for at in range(first, first + count * step, step)
        ],
    )


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
