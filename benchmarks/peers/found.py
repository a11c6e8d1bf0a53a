"""The results of a run as the report needs them: which peers are compared, and by which figure."""

from collections.abc import Iterable, Sequence

from benchmarks.peers.results import Entry, Results, Summary, summary, values

OURS = "tenure"
OURS_ON_SQLITE = "tenure-sqlite"
OURS_ON_POSTGRES = "tenure-postgres"
FLOOR = "floor"

KEEPS_A_RECORD = {"arq", "saq", "streaq", "bullmq", "rq", "bullmq-node"}
"""Peers that keep something of a waiting job that can be looked up by its id; the others have it in the line only."""

Best = tuple[Entry, Summary]


class Found:
    """A run's results."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.entries = {entry.key: entry for entry in results.peers}

    def on(self, storage: str) -> list[Entry]:
        """Return all that ran on this kind of storage."""
        return [entry for entry in self.results.peers if entry.storage == storage]

    def rivals(self, storage: str) -> list[Entry]:
        """Return the peers that a goal is compared with: in Python, acknowledging after the work (on SQLite: all)."""
        return [
            entry
            for entry in self.on(storage)
            if entry.role == "peer" and in_python(entry) and (storage == "sqlite" or entry.acknowledges == "after")
        ]

    def figure(self, key: str, cell: str, figure: str = "rate") -> Summary | None:
        """Return the figure's value over the rounds, if it was measured."""
        return summary(values(self.results.samples, peer=key, cell=cell, figure=figure))

    def best(self, entries: Iterable[Entry], cell: str, figure: str = "rate", *, most: bool = True) -> Best | None:
        """Return which of these has the most (or the least) of a figure, and how much."""
        found = [(entry, got) for entry in entries if (got := self.figure(entry.key, cell, figure)) is not None]
        sign = -1 if most else 1
        return min(found, key=lambda pair: sign * pair[1].median, default=None)

    def at_best(self, entries: Iterable[Entry], cells: Iterable[str]) -> Best | None:
        """Return which of these was the fastest in any of these cells, and how fast."""
        entries = list(entries)
        found = [best for cell in cells if (best := self.best(entries, cell)) is not None]
        return max(found, key=lambda pair: pair[1].median, default=None)

    def lost_nothing(self, key: str, cell: str) -> bool:
        """Return whether all jobs of a killed worker were finished in the end."""
        left = self.figure(key, cell, "unfinished")
        return left is not None and left.most == 0

    def why_not(self, key: str, cell: str) -> str | None:
        """Return why a cell of a peer has no figures: `failed`, `cannot`, or None if it was not taken at all."""
        samples = [sample for sample in self.results.samples if (sample.peer, sample.cell) == (key, cell)]
        if any(sample.failed for sample in samples):
            return "failed"
        return "cannot" if any(sample.cannot for sample in samples) else None


def in_python(entry: Entry) -> bool:
    """Return whether a peer runs in Python; other peers are shown for orientation only."""
    return not entry.interpreter.startswith(("Node", "Bun"))


def kind(entry: Entry) -> str:
    """Return the report's group of an entry: `ours`, `after`, `before`, `outside` or `floor`."""
    if entry.role != "peer":
        return entry.role
    if not in_python(entry):
        return "outside"
    return entry.acknowledges


KINDS = ("ours", "after", "outside", "before", "floor")


def in_order(entries: Sequence[Entry], found: Found, cell: str, figure: str, *, most: bool) -> list[Entry]:
    """Return the entries by groups, and in each the best first; those without a figure last."""

    def place(entry: Entry) -> tuple[int, bool, float]:
        got = found.figure(entry.key, cell, figure)
        value = 0.0 if got is None else got.median
        return KINDS.index(kind(entry)), got is None, -value if most else value

    return sorted(entries, key=place)
