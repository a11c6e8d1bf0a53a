"""Positions of handlers while they wait, work, or run in a thread; and the cost of reading them."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator
from typing import Any

import pytest
from msgspec import structs

from tenure.core.job import TRACE_KEPT
from tenure.core.lease import Lease
from tenure.threads import ThreadPool
from tenure.worker.active_runs import ActiveRun
from tenure.worker.stacks.traces import Traces, stack_of
from tests.core.cases import active

LEASE = 20_000_000


def held(coroutine: Coroutine[Any, Any, Any] | None = None, *, id_: str = "a") -> ActiveRun:
    """Return a run that was claimed at 0 and beats every 5 s."""
    job = active()
    stall = structs.replace(job.stall, lease=LEASE)
    made = ActiveRun(Lease(structs.replace(job, id=id_, stall=stall)))
    if coroutine is not None:
        made.root, made.task = coroutine, asyncio.create_task(coroutine)
    return made


@contextlib.contextmanager
def threads() -> Generator[ThreadPool]:
    made = ThreadPool("test")
    yield made
    made.close()


async def nap() -> None:
    await asyncio.sleep(60)


async def handler(secret: str) -> None:
    await nap()


def functions(trace: str | None) -> list[str]:
    """Return the functions in a trace."""
    return [line.rpartition(" in ")[2] for line in (trace or "").splitlines() if line.startswith("  File ")]


@contextlib.asynccontextmanager
async def under_way(run: ActiveRun) -> AsyncGenerator[ActiveRun]:
    """Let a run continue until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)
    try:
        yield run
    finally:
        if run.task is not None:
            run.task.cancel()
            await asyncio.gather(run.task, return_exceptions=True)


async def test_a_coroutine_that_waits_is_seen_down_to_where_it_waits() -> None:
    async with under_way(held(handler("hunter2"))) as run:
        seen = stack_of(run)

    assert seen is not None
    assert seen.startswith("Traceback (most recent call last):\n")
    assert functions(seen) == ["handler", "nap", "sleep"]
    assert "    await asyncio.sleep(60)\n" in seen
    assert "hunter2" not in seen


async def test_a_stack_includes_async_generators_and_awaited_tasks() -> None:
    async def each() -> AsyncIterator[int]:
        yield 1
        await asyncio.create_task(nap())

    async def walks() -> None:
        async for _ in each():
            pass

    async with under_way(held(walks())) as run:
        assert functions(stack_of(run)) == ["walks", "each", "nap", "sleep"]


async def test_a_stack_of_gathered_coroutines_ends_where_they_are_awaited() -> None:
    async def gathers() -> None:
        await asyncio.gather(nap(), nap())

    async with under_way(held(gathers())) as run:
        assert functions(stack_of(run)) == ["gathers"]


async def test_a_coroutine_that_blocks_its_loop_is_seen_from_another_thread() -> None:
    go, seen = threading.Event(), list[str | None]([None])

    def blocks() -> None:
        go.wait(10)

    async def hog() -> None:
        looker.start()
        blocks()

    run = held(hog())

    def look() -> None:
        while functions(seen[-1])[:3] != ["hog", "blocks", "wait"] and len(seen) < 10_000:
            seen.append(stack_of(run))
        go.set()

    looker = threading.Thread(target=look)
    async with under_way(run):
        await asyncio.to_thread(looker.join)

    assert functions(seen[-1])[:3] == ["hog", "blocks", "wait"]


async def test_a_stack_of_a_plain_function_omits_frames_of_tenure() -> None:
    go, begun = threading.Event(), threading.Event()

    def plain() -> None:
        begun.set()
        go.wait(10)

    with threads() as pool:
        lane = pool.worker_thread()
        run = held(lane.run(plain))
        run.thread = lane
        async with under_way(run):
            await asyncio.to_thread(begun.wait, 10)
            seen = stack_of(run)
            go.set()
            await lane.idle()
            after = stack_of(run)
        lane.close()

    assert functions(seen)[:2] == ["plain", "wait"]
    assert after is None


async def test_a_deep_stack_is_cut_to_its_innermost_frames() -> None:
    async def deeper(depth: int) -> None:
        if depth:
            await deeper_still_and_with_a_rather_long_name_so_that_the_text_is_long(depth)
        await asyncio.sleep(60)

    async def deeper_still_and_with_a_rather_long_name_so_that_the_text_is_long(depth: int) -> None:
        await deeper(depth - 1)

    async with under_way(held(deeper(150))) as run:
        seen = stack_of(run) or ""

    assert TRACE_KEPT - 500 < len(seen) <= TRACE_KEPT
    assert "outer frames left out]" in seen.splitlines()[1]
    assert functions(seen)[-1] == "sleep"


async def test_only_new_stacks_are_returned_of_runs_older_than_a_beat() -> None:
    traces = Traces()
    second = asyncio.Event()

    async def moves() -> None:
        await second.wait()
        await nap()

    async with under_way(held(moves())) as run:
        assert traces.new_texts([run], 4.9) == [None]
        (first,) = traces.new_texts([run], 5.0)
        assert functions(first) == ["moves", "wait"]

        lost = run.renewal(5.0, first)
        lost.take_back()
        assert traces.new_texts([run], 5.1) == [first]
        run.renewal(5.1, first).answered(5.1, lost=False)
        assert traces.new_texts([run], 10.0) == [None]

        second.set()
        for _ in range(3):
            await asyncio.sleep(0)
        (moved,) = traces.new_texts([run], 15.0)
        assert functions(moved) == ["moves", "nap", "sleep"]


async def test_the_position_reported_by_an_isolated_run_is_sent_once() -> None:
    traces, run = Traces(), held()
    run.isolated_position = "there"

    (text,) = traces.new_texts([run], 5.0)
    run.renewal(5.0, text).answered(5.0, lost=False)

    assert text == stack_of(run) == "there"
    assert traces.new_texts([run], 10.0) == [None]


async def test_a_stack_omits_frames_of_the_worker() -> None:
    with threads() as pool:
        lane = pool.worker_thread()
        async with under_way(held(asyncio.sleep(60))) as run, under_way(held(lane.run(lambda: None))) as over:
            assert stack_of(run) is None
            assert stack_of(over) is None
        lane.close()


async def test_a_function_that_comes_back_to_the_same_line_is_not_reported() -> None:
    traces, monitor = Traces(), asyncio.Event()

    async def loops() -> None:
        while True:
            await monitor.wait()
            monitor.clear()

    async with under_way(held(loops())) as run:
        (first,) = traces.new_texts([run], 5.0)
        run.renewal(5.0, first).answered(5.0, lost=False)
        monitor.set()
        for _ in range(3):
            await asyncio.sleep(0)

        assert traces.new_texts([run], 10.0) == [None]


@pytest.mark.parametrize("count", [2_000])
async def test_reading_the_stacks_of_sleeping_runs_again_is_cheap(count: int) -> None:
    traces = Traces()
    runs = [held(handler("x"), id_=str(number)) for number in range(count)]
    for _ in range(5):
        await asyncio.sleep(0)
    for run, news in zip(runs, traces.new_texts(runs, 5.0), strict=True):
        run.renewal(5.0, news).answered(5.0, lost=False)
    took = list[float]()
    for _ in range(5):
        began = time.perf_counter()
        assert not any(traces.new_texts(runs, 10.0))
        took.append(time.perf_counter() - began)
    for item in runs:
        assert item.task is not None
        item.task.cancel()
    await asyncio.gather(*(run.task for run in runs if run.task is not None), return_exceptions=True)

    # A beat is 5 s; a hundredth of it is allowed for 10,000 of them.
    assert min(took) < 0.05 * count / 10_000, took
