"""The time limit of a run: it ends the run, but hides no cancellation from elsewhere."""

import asyncio

import pytest

from tenure.worker.run import TimeLimit, TimeLimitExceeded


def nothing() -> None: ...


async def test_a_body_that_ends_by_the_limit_raises_that_it_was_exceeded() -> None:
    with pytest.raises(TimeLimitExceeded):
        async with TimeLimit(0.0, 60.0, over=nothing, overdue=nothing):
            await asyncio.Event().wait()

    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_cancellation_from_elsewhere_at_the_limit_is_passed_on() -> None:
    def cancel() -> None:
        task.cancel()

    async def body() -> None:
        # Other code cancels the task at the same time as the limit.
        async with TimeLimit(0.0, 60.0, over=cancel, overdue=nothing):
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await asyncio.wait([task])

    assert task.cancelled()
