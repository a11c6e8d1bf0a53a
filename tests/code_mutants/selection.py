"""Names the mutants whose arguments select no test: `python -m tests.code_mutants.selection`. It collects only once."""

import contextlib
import io
import sys
from argparse import ArgumentParser
from collections.abc import Sequence

import pytest
from _pytest.mark import KeywordMatcher, MarkMatcher
from _pytest.mark.expression import Expression

from tests.code_mutants.catalog import Mutant, load


class Collector:
    """A plugin of pytest that keeps the collected tests."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests with all marks that other plugins have added."""
        self.items = list(items)


def parsed(mutant: Mutant) -> tuple[list[str], str, str]:
    """Return the files of a mutant's tests, and its expressions for -k and -m, which are empty if there are none."""
    parser = ArgumentParser()
    parser.add_argument("-k", default="")
    parser.add_argument("-m", default="")
    parser.add_argument("places", nargs="+")
    found = parser.parse_args(mutant.tests)
    return found.places, found.k, found.m


def selects(mutant: Mutant, items: Sequence[pytest.Item]) -> bool:
    """Return True if at least one test fits a mutant's arguments."""
    places, keywords, marks = parsed(mutant)
    by_name = Expression.compile(keywords) if keywords else None
    by_mark = Expression.compile(marks) if marks else None
    return any(
        any(
            item.nodeid == place or item.nodeid.startswith((f"{place}::", f"{place}[", f"{place}/")) for place in places
        )
        and (by_name is None or by_name.evaluate(KeywordMatcher.from_item(item)))
        and (by_mark is None or by_mark.evaluate(MarkMatcher.from_markers(item.iter_markers())))
        for item in items
    )


def main() -> int:
    """Print each mutant that selects no test; return 1 if there is one."""
    mutants, collector = load(), Collector()
    places = sorted({place for mutant in mutants for place in parsed(mutant)[0]})
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *places], [collector])
    if status != pytest.ExitCode.OK:
        print(output.getvalue())
        return 1
    lost = [mutant for mutant in mutants if not selects(mutant, collector.items)]
    for mutant in lost:
        print(f"{mutant.name} selects no test: {' '.join(mutant.tests)}")
    print(f"{len(mutants) - len(lost)} of {len(mutants)} mutants select a test")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
