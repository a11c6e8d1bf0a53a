"""Waits for the first of several coroutines."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first(*awaited: Coroutine[Any, Any, object], within: float | None = None) -> None:
    """Wait until the first of these is done or the time is over; raise its exception. The others are cancelled."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaited]
    try:
        done, _ = await asyncio.wait(tasks, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await _dropped(tasks)
        raise
    await _dropped(tasks)
    for task in done:
        task.result()


async def _dropped(tasks: "list[asyncio.Task[object]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
