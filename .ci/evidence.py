"""Prints which pages of evidence are older than a change of what they cover. It informs and fails nothing."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENGINE = (
    "app.py",
    "client",
    "core",
    "events",
    "handlers",
    "maintenance",
    "processes",
    "storage/protocol.py",
    "supervisor",
    "worker",
)

COVERED = {
    "docs/evidence/simulation.md": ("storage/memory", "../tenure_testing", *ENGINE),
    "docs/evidence/chaos-sqlite.md": ("storage/sql", "storage/sqlite", *ENGINE),
    "docs/evidence/chaos-redis.md": ("storage/redis", *ENGINE),
    "docs/evidence/chaos-postgres.md": ("storage/sql", "storage/postgres", *ENGINE),
    "docs/benchmarks/README.md": ("storage/sql", "storage/sqlite", "storage/redis", *ENGINE),
}
"""By page, the parts of the package whose behaviour it shows."""


def main() -> None:
    """Print one line for each page."""
    for page, parts in COVERED.items():
        print(f"ci: {page}: {age(page, parts)}")


def age(page: str, parts: tuple[str, ...]) -> str:
    """Return how many commits have changed what a page covers since the commit that it names."""
    named = re.search(r"\b[0-9a-f]{40}\b", (ROOT / page).read_text("utf-8"))
    commit = named.group() if named is not None and git("cat-file", "-t", named.group()) == "commit" else ""
    # A page that names no commit, or one that a rebase has removed, is as old as its own last change.
    commit = commit or git("log", "-1", "--format=%H", "--", page)
    if not commit:
        return "its age is unknown in this checkout"
    count = int(git("rev-list", "--count", f"{commit}..HEAD", "--", *(f"src/tenure/{part}" for part in parts)) or 0)
    if not count:
        return f"is of commit {commit[:10]}; nothing that it covers has changed since"
    return f"OLD: {count} commits have changed what it covers since {commit[:10]}"


def git(*words: str) -> str:
    """Return the output of git; nothing if it fails."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    main()
