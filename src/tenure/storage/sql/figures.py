"""Reads and deletes figures: one row for each cell, with its counts as a JSON list."""

from collections.abc import Sequence

from tenure.core.figures import HOURS, MINUTES, FiguresCell, FiguresQuery
from tenure.storage.protocol import FIGURES_LIMIT
from tenure.storage.sql.lists import decode_counts, json_names
from tenure.storage.sql.transaction import Transaction


def read(tx: Transaction, queues: Sequence[str], query: FiguresQuery) -> tuple[FiguresCell, ...]:
    """Return the cells of these queues that a query selects."""
    values = {
        "length": query.level.length,
        "task": query.task,
        "queues": json_names(queues),
        "since": query.begin(tx.now),
        "until": query.until,
    }
    cells = (
        FiguresCell(queue, start, decode_counts(counts)) for queue, start, counts in tx.all("survey.figures", values)
    )
    return tuple(sorted(cells))


def trim(tx: Transaction) -> None:
    """Delete a bounded number of cells that are past their retention."""
    for level in (MINUTES, HOURS):
        tx.run("sweep.delete_figures", {"length": level.length, "before": tx.now - level.kept, "limit": FIGURES_LIMIT})
