"""The poll interval for changes by other processes: short while there is activity, longer when idle."""

QUICK = 0.005
SLOW = 0.04
"""The longest interval: with the check itself and the claim, a job from another process starts within 50 ms."""

LOOKS = 20
"""The number of quick checks (a tenth of a second in all) before the interval grows."""


class PollInterval:
    """The pause before the next check."""

    def __init__(self) -> None:
        self._looks = 0

    def reset(self) -> None:
        """Return to the short interval: a change was seen, and more may follow at once."""
        self._looks = 0

    def next(self) -> float:
        """Return the seconds until the next check."""
        self._looks += 1
        beyond = min(max(0, self._looks - LOOKS), 10)
        return float(min(SLOW, QUICK * 1.5**beyond))
