"""A result without a type that would not come back equal: the job fails at once, and says what the result was."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tenure import JobFailed, JobFailedError, JobRetried, Retry, current_job
from tests.flow.conftest import Harness, RunScenario


def test_a_result_that_would_change_fails_the_job_once_and_is_kept_as_text(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        ran: list[int] = []

        @app.task(name="give", retry=Retry(max_attempts=5))
        async def give(kind: str):  # type: ignore[no-untyped-def]
            ran.append(current_job().run)
            results: dict[str, Any] = {
                "datetime": {"at": [datetime(2026, 1, 1, tzinfo=UTC)], "password": "hush", "api_token": ("a", "b")},
                "set": {1, 2},
                "nan": [float("nan")],
                "long": {"bytes": b"x" * 100_000},
                "surrogate": {"text": "\ud800"},
                "plain": {"a": (1, None, [True, 1.5])},
            }
            return results[kind]

        await harness.start(app.worker())
        wanted = {
            "datetime": ("\"result['at'][0]\" is a datetime", "'at': [datetime.datetime(2026, 1, 1"),
            "set": ("'result' is a set", "it was {1, 2}"),
            "nan": ("'result[0]' is nan", "it was [nan]"),
            "long": ("\"result['bytes']\" is a bytes", "it was {'bytes': b'xxx"),
            "surrogate": ("\"result['text']\" is a text with a lone surrogate", "it was {'text': '\\ud800'}"),
        }
        for number, (kind, parts) in enumerate(wanted.items()):
            job = await give.enqueue(kind)
            with pytest.raises(JobFailedError):
                await job.result()
            detail = await job.info()
            error = detail.job.error
            assert error is not None
            assert (detail.job.reason, detail.job.starts) == ("undecodable", 1)
            assert len(ran) == number + 1
            assert error.message.startswith("the handler returned, but its result cannot be recorded: ")
            assert all(part in error.message for part in parts), error.message
            assert len(error.message) < 2_000
            for secret in ("hush", "'a'", "'b'"):
                assert secret not in error.message
        assert await (await give.enqueue("plain")).result() == {"a": [1, None, [True, 1.5]]}
        assert {event.reason for event in await harness.events_of(JobFailed)} == {"undecodable"}
        assert not await harness.events_of(JobRetried)

    run_scenario(scenario)
