"""How much some tests do: less in `make test`, all of it in `make test-full`, which sets TENURE_TEST_FULL."""

import os
from typing import Any, Literal

import pytest

FULL = os.environ.get("TENURE_TEST_FULL") == "1"

REDIS = pytest.mark.redis


AMOUNTS = {"rolling restarts": (20, 50), "deaths of workers in a row": (40, 100), "kills of a console": (3, 20)}
"""How often a test repeats something, usually and in a full run. CONTRIBUTING has the same table."""


def amount(what: str) -> int:
    """Return how often a test repeats something."""
    usual, full = AMOUNTS[what]
    return full if FULL else usual


def cases(usual: list[Any], more: list[Any]) -> list[Any]:
    """Return the cases of a test: the usual ones, and in a full run the others too."""
    return [*usual, *more] if FULL else usual


def on_one_storage(fixture: str, storage: Literal["sqlite", "redis"] = "sqlite") -> pytest.MarkDecorator:
    """Return the mark of a test that runs on this storage, and in a full run on the other one, too.

    `fixture` gives the storage. The test is of a worker's or a supervisor's behaviour that no storage changes.
    """
    usual, more = ["sqlite"], [on_redis()]
    if storage == "redis":
        usual, more = more, usual
    return pytest.mark.parametrize(fixture, cases(usual, more), indirect=True)


def on_redis(*values: Any) -> Any:
    """Return a case that needs a Redis; the first value is the parameter of the fixture that gives the storage."""
    return pytest.param("redis", *values, marks=REDIS)
