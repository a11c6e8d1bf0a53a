"""The exception that a violated invariant raises."""

import re


class Violation(AssertionError):
    """An invariant was violated."""

    @property
    def invariant(self) -> str:
        """The number of the violated invariant, or the class of an unexpected error."""
        found = re.match(r"\w+", str(self))
        return found[0] if found else "?"

    @property
    def crashed(self) -> bool:
        """True if the simulated code crashed without a violated invariant."""
        return self.__cause__ is not None and not isinstance(self.__cause__, Violation)
