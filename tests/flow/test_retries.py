"""Retries as a user sees them: options of one call, and a delay by a function."""

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from tenure import JobRetried, Retry, State, TaskOptions, Tenure, UsageError
from tenure.clock import SECOND
from tests.flow.conftest import Harness, RunScenario
from tests.records import record_of


def failing(app: Tenure, error: type[Exception] = ValueError, **options: Any) -> Any:
    async def fail(word: str = "") -> None:
        raise error(word)

    define: Any = app.task
    return define(name="fail", **options)(fail)


async def delays(harness: Harness, app: Tenure, job: Any) -> list[float]:
    """Run a job to its end, and return the delays before its retries, in seconds."""
    await harness.start(app.worker())
    await harness.until(lambda: _failed(job))
    return [event.delay for event in await harness.events_of(JobRetried)]


async def _failed(job: Any) -> bool:
    return (await job.info()).job.state is State.FAILED


def test_retry_and_timeout_of_a_call_win_over_those_of_the_task(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        task = failing(app, timeout="1m", retry=Retry(max_attempts=5, base="3s", cap="7s", jitter=0))

        plain = await record_of(await task.enqueue())
        own = await record_of(await task.options(timeout="2s", retry=Retry(max_attempts=2, base=9)).enqueue())

        assert (plain.timeout, plain.policy.retry.max_attempts, plain.policy.retry.pinned) == (60 * SECOND, 5, False)
        assert own.timeout == 2 * SECOND
        rule = own.policy.retry
        assert (rule.max_attempts, rule.base, rule.cap, rule.jitter) == (2, 9 * SECOND, 7 * SECOND, 0)

    run_scenario(scenario)


def test_a_run_obeys_the_timeout_and_the_retries_of_its_call(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(retry=Retry(max_attempts=1))
        async def hang() -> None:
            await asyncio.sleep(1000)

        own = Retry(max_attempts=3, backoff="fixed", base="10s", jitter=0)
        job = await hang.options(timeout="5s", retry=own).enqueue()

        assert await delays(harness, app, job) == [10, 10]
        assert ((await job.info()).job.failures, (await job.info()).job.reason) == (3, "timeout")

    run_scenario(scenario)


def test_a_function_delays_each_retry_by_attempt_and_error(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        seen = list[tuple[int, str]]()

        def delay(attempt: int, error: BaseException) -> timedelta:
            seen.append((attempt, repr(error)))
            return timedelta(minutes=attempt)

        job = await failing(app, retry=Retry(max_attempts=4, cap="1s", delay=delay)).enqueue("why")

        assert await delays(harness, app, job) == [60, 120, 180]
        # The last attempt has no retry, so the function is not called for it.
        assert seen == [(1, "ValueError('why')"), (2, "ValueError('why')"), (3, "ValueError('why')")]

    run_scenario(scenario)


def test_a_delay_function_gets_a_timeout_error_after_a_timeout(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        def delay(attempt: int, error: BaseException) -> str | None:
            return "7s" if isinstance(error, TimeoutError) else None

        @app.task(timeout="1s", retry=Retry(max_attempts=2, delay=delay))
        async def hang() -> None:
            await asyncio.sleep(1000)

        assert await delays(harness, app, await hang.enqueue()) == [7]

    run_scenario(scenario)


async def _coroutine() -> int:
    return 1


def _one_argument(attempt: int) -> int:
    return attempt


def _raise() -> Any:
    raise KeyError("secret")


@pytest.mark.parametrize(
    "result",
    [lambda: "soon", lambda: -1, lambda: float("nan"), lambda: True, object, _coroutine, _raise, lambda: _exit()],
)
def test_a_failing_delay_function_gives_the_default_delay_and_a_log_line(
    run_scenario: RunScenario, caplog: pytest.LogCaptureFixture, result: Any
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        retry = Retry(max_attempts=2, base="4s", jitter=0, delay=lambda attempt, error: result())

        assert await delays(harness, app, await failing(app, retry=retry).enqueue()) == [4]

    with caplog.at_level(logging.ERROR):
        run_scenario(scenario)
    (line,) = [record.getMessage() for record in caplog.records if "Retry.delay" in record.getMessage()]
    assert line.endswith("; the default delay applies")
    assert "secret" not in line


def _exit() -> Any:
    raise SystemExit(3)


def test_none_of_a_delay_function_means_the_default_delay(
    run_scenario: RunScenario, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(defaults=TaskOptions(retry=Retry(delay=lambda attempt, error: None)))
        task = failing(app, retry=Retry(max_attempts=2, base="4s", jitter=0))

        assert await delays(harness, app, await task.enqueue()) == [4]

    run_scenario(scenario)
    assert "Retry.delay" not in caplog.text


def test_a_call_with_a_delay_of_its_own_does_not_use_the_function(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        task = failing(app, retry=Retry(max_attempts=2, jitter=0, delay=lambda attempt, error: 100))

        assert await delays(harness, app, await task.options(retry=Retry(base="3s")).enqueue()) == [3]
        more = await task.options(retry=Retry(max_attempts=3)).enqueue()
        await harness.until(lambda: _failed(more))
        assert [event.delay for event in await harness.events_of(JobRetried)] == [3, 100, 100]

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("delay", "named"),
    [
        (5, "Retry.delay = 5 must be a plain function of the attempt and its exception; write delay=lambda"),
        (_coroutine, "must be a plain function"),
        (_one_argument, "cannot be called with two arguments"),
    ],
)
def test_a_delay_that_is_not_a_function_of_two_values_is_refused(delay: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Retry(delay=delay)
