"""Watches the Python files under some folders for changes (`--reload`)."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})
"""Folders without hand-written code. Hidden folders and virtual environments are skipped, too."""


class Sources:
    """Remembers when each source file was last written; caches of Python are ignored."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [folder.absolute() for folder in folders]
        self._seen = self._look()

    def changed(self) -> list[Path]:
        """Return the files that were written, created or deleted since the last call, sorted by path."""
        before, self._seen = self._seen, self._look()
        return sorted({path for path, _ in before.items() ^ self._seen.items()})

    def _look(self) -> dict[Path, tuple[int, int]]:
        found: dict[Path, tuple[int, int]] = {}
        for folder in self._folders:
            for path in _files(folder):
                try:
                    about = path.stat()
                except OSError:
                    # The file was deleted meanwhile.
                    continue
                found[path] = (about.st_mtime_ns, about.st_size)
        return found


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if _is_source_folder(Path(place, name))]
        yield from (Path(place, name) for name in files if name.endswith(".py") and not name.startswith("."))


def _is_source_folder(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name in SKIPPED:
        return False
    try:
        return not folder.joinpath("pyvenv.cfg").exists()
    except OSError:
        # An unreadable folder, for example a database's data directory.
        return False
