"""The text of a value: quick to create, and without secrets."""

import time
from typing import Any

import pytest

from tenure.failures import REDACTED, redacted_repr


def circular() -> dict[str, Any]:
    root: dict[str, Any] = {"name": "root"}
    root["children"] = [{"parent": root, "number": number} for number in range(50)]
    return root


@pytest.mark.parametrize("value", [{"x" * 20_000: {1}}, ["x" * 20_000], circular()], ids=["key", "text", "circular"])
def test_no_value_takes_long_to_be_shown(value: object) -> None:
    began = time.process_time()
    shown = redacted_repr(value, 20_000)

    # Milliseconds; it took several seconds, in which a worker's loop was blocked.
    assert time.process_time() - began < 1
    assert shown


def test_secrets_are_redacted_under_any_name_that_has_one_of_the_words() -> None:
    inner: list[Any] = [{"db_TOKEN_2": {1}, "plain": 2}]
    inner.append(inner)

    assert redacted_repr({"my_password": "hunter2", "inner": inner}, 1_000) == (
        f"{{'my_password': {REDACTED!r}, 'inner': [{{'db_TOKEN_2': {REDACTED!r}, 'plain': 2}}, [...]]}}"
    ).replace(repr(REDACTED), REDACTED)
