"""The words of the code, the tests and the docs are plain: a list of banned words, which no file contains."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PHRASES = (
    *("nobody", "somebody", "anybody", "whoever", "whom", "whatever", "anew", "told"),  # allow word: the list
    *("be it", "so many of", "all the same", "to be had", "but for", "beside"),  # allow word: the list
    *("(?-i:is none)", "is no", "what (?:became|becomes|came) of"),  # allow word: the list
)
"""Phrases that a reader has to translate."""

METAPHORS = (
    *("burials?", "bury", "buri(?:ed|es)", "deceased", "inquests?", "autops(?:y|ies)"),  # allow word: the list
    *("witness(?:es)?", "sentenced?", "culprits?", "wards?", "heed(?:s|ed|ing)?", "ears?"),  # allow word: the list
    *("mutes?", "purses?", "slates?", "errands?", "shelf", "shelves", "parcels?"),  # allow word: the list
    *("tethers?", "outposts?", "crews?"),  # allow word: the list
)
"""Names that stand for something else. The word of the field is the name."""

BANNED = re.compile(
    r"(?<![a-zA-Z])(?:" + "|".join([*(phrase.replace(" ", r"\s+") for phrase in PHRASES), *METAPHORS]) + r")(?![a-z])",
    re.IGNORECASE,
)
ALLOWED = re.compile(r"allow word: \S")
"""A line may keep a banned word if it gives the reason behind these words."""

LONGEST = 70
"""Characters of a test name."""


FOLDERS: dict[str, tuple[str, ...]] = {
    "src": ("*.py", "*.sql", "*.lua", "*.md"),
    "tests": ("*.py", "*.toml", "*.txt"),
    "typing_tests": ("*.py",),
    "benchmarks": ("*.py", "*.mjs", "*.toml"),
    "examples": ("*.py", "*.md", "*.y*ml", "*.service"),
    "docs": ("*.md",),
    ".ci": ("*",),
}
"""The folders whose words count, with their kinds of files. The kits of `tenure-testing` are in `src`."""

PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml")


def files() -> list[Path]:
    """Return the files whose words count: code, tests, benchmarks, examples, CI and documentation."""
    found = {path for folder, kinds in FOLDERS.items() for kind in kinds for path in (ROOT / folder).rglob(kind)}
    # Recorded evidence keeps the words of its time.
    left_out = {"evidence", "__pycache__"}
    found = {path for path in found if path.is_file() and not left_out & set(path.parts)}
    return sorted([*found, *(ROOT / name for name in PAGES)])


def banned_in(text: str) -> list[str]:
    """Return the banned words of a text, except those of lines that give a reason."""
    kept = "\n".join(line for line in text.split("\n") if not ALLOWED.search(line))
    return [" ".join(found.lower().split()) for found in BANNED.findall(kept)]


def poor_test_names() -> list[str]:
    """Return the test names that are too long or contain banned words, each with its file.

    The cases of the kits count too: a storage outside this repository runs them under these names.
    """
    found: list[str] = []
    for path in sorted([*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "src" / "tenure_testing").rglob("*.py")]):
        for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE):
            if len(name) > LONGEST or BANNED.search(name.replace("_", " ")):
                found.append(f"{path.relative_to(ROOT)}::{name}")
    return found


@pytest.mark.parametrize(
    "text",
    ["Nobody waits.", "what is\nnone", "class Ward:", "bury_strangers()", "It is told so."],  # allow word: examples
)
def test_a_banned_word_is_found(text: str) -> None:
    assert len(banned_in(text)) == 1


@pytest.mark.parametrize("text", ["forward, early, besides", "the year", "x = nobody  # allow word: a fixture's name"])
def test_other_words_are_not(text: str) -> None:
    assert banned_in(text) == []


def test_no_file_contains_a_banned_word() -> None:
    """Replace the word, or give the reason for it in its line: `allow word: ...`."""
    found = {str(path.relative_to(ROOT)): banned_in(path.read_text()) for path in files()}

    assert {name: words for name, words in found.items() if words} == {}


def test_no_test_name_is_long_or_contains_a_banned_word() -> None:
    """State behaviour in at most 70 characters, in the words of the field."""
    assert poor_test_names() == []
