"""A bare number of an option that looks like milliseconds gets one warning, where the option is set."""

import warnings
from datetime import timedelta
from typing import Any

import pytest

from tenure import Retry, Router, TaskOptions, Tenure, Timing
from tenure.options.seconds import looks_like_milliseconds


@pytest.mark.parametrize("value", [5000, 5000.0, 1000, 30_000, 60_000, 2500, 7777])
def test_a_number_that_looks_like_milliseconds_is_found(value: float) -> None:
    assert looks_like_milliseconds(value)


@pytest.mark.parametrize(
    "value", [5, 300, 999, 1200, 1800, 3600, 7200, 18_000, 86_400, 604_800, 1234.5, True, "5000", None]
)
def test_usual_numbers_of_seconds_are_not(value: object) -> None:
    assert not looks_like_milliseconds(value)


def define(**options: Any) -> None:
    async def task() -> None: ...

    Tenure("memory://").task(**options)(task)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 5000}, 'timeout = 5000 is a number of seconds, 83.3 minutes; did you mean 5s? Write timeout="5s"'),
        ({"heartbeat_timeout": 30_000}, "heartbeat_timeout = 30000 is a number of seconds, 8.33 hours"),
        ({"ttl": 5000}, "did you mean 5s?"),
    ],
)
def test_a_definition_warns_once_at_the_line_of_the_user(options: dict[str, Any], message: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        define(**options)

    assert [message in str(warning.message) for warning in caught] == [True]
    assert caught[0].filename == __file__


def test_tasks_of_routers_defaults_and_nested_options_warn_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        app = Tenure("memory://", defaults=TaskOptions(timeout=5000), timing=Timing(max_block=5000))
        router = Router()

        @router.task(retry=Retry(base=5000))
        async def task() -> None: ...

        app.include(router)

    assert [str(warning.message).split(" ")[0] for warning in caught] == ["timeout", "Timing.max_block", "Retry.base"]


def test_texts_and_timedeltas_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        define(timeout="5000s", heartbeat_timeout=timedelta(seconds=5000), ttl=3600)
