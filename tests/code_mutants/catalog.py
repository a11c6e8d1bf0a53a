"""Reads the mutants from `catalog/*.toml`, and chooses which of them to run."""

import hashlib
import subprocess
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct, convert

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "src" / "tenure"
CATALOG = Path(__file__).parent / "catalog"


class Mutant(Struct, frozen=True, forbid_unknown_fields=True):
    """One change of one file that must make at least one of its tests fail.

    `file` is relative to the package. `find` stands in it exactly once. `tests` are arguments of pytest.
    """

    name: str
    breaks: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The file in this checkout."""
        return PACKAGE / self.file

    def stale(self) -> str | None:
        """Return why it no longer fits the code, or None."""
        if not self.path.is_file():
            return f"{self.file} does not exist"
        if self.find == self.replace:
            return "`find` and `replace` are the same"
        count = self.path.read_text("utf-8").count(self.find)
        return None if count == 1 else f"`find` stands in {self.file} {count} times, not once"


def load() -> list[Mutant]:
    """Return all mutants, in the order of their files and places."""
    mutants: list[Mutant] = []
    for path in sorted(CATALOG.glob("*.toml")):
        mutants += convert(tomllib.loads(path.read_text("utf-8"))["mutant"], list[Mutant])
    return mutants


def chosen(mutants: Sequence[Mutant], changed: Iterable[str], commit: str) -> list[Mutant]:
    """Return the mutants of changed files, then a tenth of the others that the commit's hash chooses."""
    files = set(changed)
    first = [mutant for mutant in mutants if mutant.file in files]
    return first + [mutant for mutant in mutants if mutant.file not in files and in_tenth(mutant.name, commit)]


def in_tenth(name: str, commit: str) -> bool:
    """Say whether a commit chooses a mutant: one in ten, another tenth for each commit."""
    return hashlib.sha256(f"{commit} {name}".encode()).digest()[0] * 10 < 256


def changed_files(hours: int) -> list[str]:
    """Return the package's files that commits of the last hours before HEAD changed, relative to the package."""
    at = int(_git("show", "-s", "--format=%ct", "HEAD"))
    old = _git("rev-list", "-1", f"--before={at - hours * 3600}", "HEAD")
    base = old or _git("rev-list", "--max-parents=0", "HEAD").split()[0]
    paths = _git("diff", "--name-only", base, "HEAD", "--", str(PACKAGE)).splitlines()
    return [str((ROOT / path).relative_to(PACKAGE)) for path in paths]


def head() -> str:
    """Return the hash of the commit that is checked out."""
    return _git("rev-parse", "HEAD")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()
