"""The pytest plugin of Tenure: the fixture `jobs` runs the jobs of an app inside a test.

pytest imports this module in each of its runs, also in those of projects whose tests use no jobs. So it imports Tenure
only in its fixtures, and lies outside the package `tenure`.
"""

from collections.abc import Iterator
from typing import Any

import pytest

OPTION = "tenure_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Define the ini option that names the app."""
    parser.addini(OPTION, "the app of the fixture `jobs`, such as shop.tasks:app")


@pytest.fixture
def tenure_app(request: pytest.FixtureRequest) -> Any:
    """Return the app that the ini option `tenure_app` names; override this fixture to take another one."""
    from tenure.cli.load import load
    from tenure.errors import UsageError

    target = str(request.config.getini(OPTION))
    if not target:
        pytest.fail(
            f"the fixture `jobs` needs an app: write {OPTION} = shop.tasks:app into the configuration of pytest, "
            "or override the fixture `tenure_app`"
        )
    try:
        return load(target)
    except UsageError as error:
        pytest.fail(f"{OPTION}: {error}")


@pytest.fixture
def jobs(tenure_app: Any) -> Iterator[Any]:
    """Return a `tenure.testing.JobTester`: it runs the app's jobs in memory, on a clock that the test moves.

    Each test begins without jobs, on 2026-01-01.
    """
    from tenure.testing import JobTester

    with JobTester(tenure_app) as tester:
        yield tester
