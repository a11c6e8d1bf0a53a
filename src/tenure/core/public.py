"""Keeps names that only other modules of the package use out of `dir()` of public objects."""

from collections.abc import Iterable
from typing import ClassVar


class PublicObject:
    """An object for users. `_internal`: names without an underscore that other modules use and users need not see."""

    _internal: ClassVar[frozenset[str]] = frozenset()

    def __dir__(self) -> Iterable[str]:
        """Return all names except the internal ones."""
        return [name for name in super().__dir__() if name not in self._internal]
