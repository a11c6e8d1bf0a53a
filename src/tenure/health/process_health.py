"""The health of the process that serves health, in addition to the view of the storage."""

from msgspec import Struct, field

from tenure.metrics import Key


class ProcessHealth(Struct, frozen=True, kw_only=True):
    """The health of a process.

    `owners`: the owner ids of its workers; None for a process that runs no jobs. `dead`: why it should be restarted;
    empty if it is well. `lag`: the greatest recent lag of its event loops, in seconds; None if no handlers run on them.
    `metrics`: its metrics.
    """

    owners: tuple[str, ...] | None = None
    dead: str = ""
    stopping: bool = False
    lag: float | None = None
    metrics: dict[Key, tuple[float, ...]] = field(default_factory=dict[Key, tuple[float, ...]])


def blocked(seconds: float, most: float) -> str:
    """Return why a process should be restarted if its event loop was blocked for `seconds`; empty if it should not."""
    return f"its event loop has been blocked for {seconds:.1f} s, more than {most:g} s" if seconds > most else ""
