"""The files and functions that the architecture page names exist, where the page says that they are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
HOUSE = ROOT / "src" / "tenure"
PAGE = (ROOT / "docs" / "architecture.md").read_text()

ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith("|--")
]
STEPS = [row for row in ROWS if len(row) == 3 and row[0] not in ("step", "floor") and not row[0].isdecimal()]
CHANGES = [row for row in ROWS if len(row) == 2 and row[0] != "change"]


def quoted(text: str) -> list[str]:
    """Return the parts of a cell in backticks."""
    return re.findall(r"`([^`]+)`", text)


def is_file(name: str) -> bool:
    return name.endswith((".py", ".sql", ".lua"))


def files_of(names: list[str]) -> list[Path]:
    """Return the files of a cell. A name may leave out the folders that it shares with a file before it."""
    found: list[Path] = []
    for name in names:
        places = [HOUSE / name, *(folder / name for before in reversed(found) for folder in before.parents)]
        there = next((place for place in places if place.is_file()), None)
        assert there is not None, f"{name} does not exist"
        found.append(there)
    return found


def defines(text: str, name: str) -> bool:
    """Return True if a module or script defines a function, a class or a constant."""
    return re.search(rf"(?m)(?:\b(?:def|class|function) (?:\w+\.)?{name}\b|^{name}\b[^\n]* = )", text) is not None


@pytest.mark.parametrize("row", STEPS, ids=lambda row: f"{row[0][:30]} {row[2][:20]}")
def test_each_step_of_a_job_names_an_existing_file_and_function(row: tuple[str, str, str]) -> None:
    _, files, functions = row
    paths = files_of(quoted(files))

    assert quoted(functions)
    for name in quoted(functions):
        verbs = [HOUSE / "storage" / "protocol.py"] if name.startswith("Storage.") else []
        texts = [path.read_text() for path in (*paths, *verbs)]
        missing = [part for part in name.split(".") if not any(defines(text, part) for text in texts)]
        # A table of functions in Lua is a local variable.
        assert [part for part in missing if not any(f"local {part} = {{}}" in text for text in texts)] == [], name


def test_the_page_has_the_steps_of_a_job() -> None:
    assert len(STEPS) > 30


def test_the_page_names_the_files_of_ten_changes() -> None:
    assert [row[0].partition(".")[0] for row in CHANGES] == [str(number) for number in range(1, 11)]


@pytest.mark.parametrize("row", CHANGES, ids=lambda row: row[0][:40])
def test_each_change_begins_in_an_existing_file_that_defines_what_it_names(row: tuple[str, str]) -> None:
    named = quoted(row[1])
    files = files_of([name for name in named if is_file(name)])

    assert files
    texts = [path.read_text() for path in files]
    assert [name for name in named if not is_file(name) and not any(defines(text, name) for text in texts)] == []
