"""What a process that serves health tells of itself, beside what the storage knows."""

from msgspec import Struct, field

from tenure.metrics import Key


class ProcessHealth(Struct, frozen=True, kw_only=True):
    """How a process is doing.

    `owners`: the workers that it answers for; None for one that runs no jobs. `dead`: why it had better be ended, empty
    if it had not. `lag`: for how many seconds its event loops have kept others waiting of late, the longest of them;
    None where it has none that handlers run on. `figures`: what it has counted.
    """

    owners: tuple[str, ...] | None = None
    dead: str = ""
    stopping: bool = False
    lag: float | None = None
    figures: dict[Key, tuple[float, ...]] = field(default_factory=dict[Key, tuple[float, ...]])


def blocked(seconds: float, most: float) -> str:
    """Return why a process had better be ended whose event loop has been blocked for so long; empty if it had not."""
    return f"its event loop has been blocked for {seconds:.1f} s, more than {most:g} s" if seconds > most else ""
