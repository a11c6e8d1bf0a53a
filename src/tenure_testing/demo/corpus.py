"""The files that the jobs examine: those of the running Python's standard library and of its installed packages."""

import os
import site
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, cycle, islice
from pathlib import Path
from random import Random

from msgspec import Struct

from tenure.errors import UsageError

LIMITS = [kib * 1024 for kib in (256, 192, 128, 96, 64, 48, 32)]
"""Size limits in bytes.

Larger files (compiled libraries, tables) are left out, since one would outweigh a hundred others.
"""

MEAN = 13_000
"""The largest limit is used under which the average file size is at most this: some 10 ms of work per file."""

# Packages below the standard library's folder may belong to another environment. `site` names those of this one.
_NOT_BELOW = frozenset({"__pycache__", "site-packages", "dist-packages"})


def places() -> list[Path]:
    """Return the folders of the standard library and of the installed packages."""
    standard = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    packages = [*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return [Path(place) for place in dict.fromkeys(os.path.realpath(place) for place in standard + packages)]


class Corpus(Struct, frozen=True):
    """The files, sorted, and the size limit."""

    files: tuple[str, ...]
    limit: int


def corpus(below: Sequence[Path]) -> Corpus:
    """Return the files below these folders that are readable, within the limit, no links and no `.pyc` files."""
    sizes = dict(chain.from_iterable(_walk(place) for place in below))
    limit = next((limit for limit in LIMITS if _mean(sizes, limit) <= MEAN), LIMITS[-1])
    return Corpus(tuple(sorted(path for path, size in sizes.items() if size <= limit)), limit)


def rounds(found: Sequence[str], jobs: int, rng: Random) -> list[str]:
    """Return a file for each job: all files in random order, and again from the beginning until there are enough.

    Raises:
        UsageError: there are no files at all.
    """
    if not found:
        raise UsageError("no file lies below this Python's standard library; run the demo with a Python that has one")
    order = list(found)
    rng.shuffle(order)
    return list(islice(cycle(order), jobs))


def _mean(sizes: Mapping[str, int], limit: int) -> float:
    fitting = [size for size in sizes.values() if size <= limit]
    return sum(fitting) / max(1, len(fitting))


def _walk(place: Path) -> Iterator[tuple[str, int]]:
    for folder, below, names in os.walk(place):
        below[:] = sorted(set(below) - _NOT_BELOW)
        for name in names:
            path = os.path.join(folder, name)
            if not name.endswith(".pyc") and not os.path.islink(path) and _readable(path):
                yield path, os.path.getsize(path)


def _readable(path: str) -> bool:
    try:
        # Surrogates in a name cannot be encoded as JSON.
        path.encode()
    except UnicodeEncodeError:
        return False
    return os.path.isfile(path) and os.access(path, os.R_OK)
