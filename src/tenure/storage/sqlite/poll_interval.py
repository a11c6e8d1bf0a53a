"""How often to look for what other processes have written: often while something happens, seldom in the quiet."""

QUICK = 0.005
SLOW = 0.04
"""The longest rest: with the look itself and the claim after it, a job of another process starts within 50 ms."""

LOOKS = 20
"""So many quick looks, a tenth of a second, before the rests grow."""


class PollInterval:
    """The rest before the next look."""

    def __init__(self) -> None:
        self._looks = 0

    def hurry(self) -> None:
        """Something happened, and more may follow at once."""
        self._looks = 0

    def rest(self) -> float:
        """Return the seconds until the next look."""
        self._looks += 1
        beyond = min(max(0, self._looks - LOOKS), 10)
        return float(min(SLOW, QUICK * 1.5**beyond))
