"""The model's figures: the cells of minutes and of hours."""

from collections.abc import Iterable, Sequence

from tenure.core.figures import (
    HOURS,
    MINUTES,
    Counts,
    FiguresCell,
    FiguresQuery,
    Level,
    TaskCounts,
    with_counted,
)
from tenure.storage.protocol import FIGURES_LIMIT


class FiguresStore:
    """Cells by level and start, then by queue and task."""

    def __init__(self) -> None:
        self._cells: dict[Level, dict[int, dict[tuple[str, str], Counts]]] = {MINUTES: {}, HOURS: {}}

    def add(self, counted: Sequence[TaskCounts], now: int) -> None:
        """Add to the cells of the current minute and hour."""
        queues = {part.queue for part in counted}
        for level, starts in self._cells.items():
            cells = starts.setdefault(level.start(now), {})
            known = {place: counts for place, counts in cells.items() if place[0] in queues}
            cells.update(with_counted(known, counted))

    def read(self, queues: Iterable[str], query: FiguresQuery, now: int) -> tuple[FiguresCell, ...]:
        """Return the cells of these queues that a query selects."""
        starts = self._cells[query.level]
        wanted = sorted(start for start in starts if query.begin(now) <= start < query.until)
        return tuple(
            FiguresCell(queue, start, starts[start][queue, query.task])
            for queue in sorted(set(queues))
            for start in wanted
            if (queue, query.task) in starts[start]
        )

    def trim(self, now: int) -> None:
        """Delete a bounded number of cells that are past their retention."""
        for level, starts in self._cells.items():
            room = FIGURES_LIMIT
            for start in sorted(start for start in starts if start < now - level.kept):
                for place in sorted(starts[start])[:room]:
                    del starts[start][place]
                    room -= 1
                if not starts[start]:
                    del starts[start]
