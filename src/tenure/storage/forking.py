"""Prepares open storages for a fork of their process, and resets them after it."""

import os
from typing import Protocol
from weakref import WeakSet


class _Forkable(Protocol):
    def before_fork(self) -> None: ...

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None: ...


_storages: "WeakSet[_Forkable]" = WeakSet()


def register(storage: _Forkable) -> None:
    """Register a storage for the fork hooks."""
    _storages.add(storage)


def _before() -> None:
    for storage in list(_storages):
        storage.before_fork()


def _after_in_parent() -> None:
    for storage in list(_storages):
        storage.after_fork_in_parent()


def _after_in_child() -> None:
    for storage in list(_storages):
        storage.after_fork_in_child()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
