"""The loop of the simulation: asyncio works in virtual time, and its private parts are where the loop expects them."""

import asyncio
import inspect
from asyncio import base_events
from collections import deque
from random import Random

import pytest

from tenure_testing.simulation.event_loop import EPOCH, Node, Quiet, SimClock, SimLoop, simulate


def test_hours_pass_in_no_time() -> None:
    async def main(loop: SimLoop) -> float:
        await asyncio.sleep(7_200)
        return loop.time()

    assert simulate(main) == pytest.approx(7_200)


def test_the_usual_tools_of_asyncio_work() -> None:
    async def main(loop: SimLoop) -> list[str]:
        messages: list[str] = []
        queue: asyncio.Queue[str] = asyncio.Queue()
        event = asyncio.Event()

        async def producer() -> None:
            for word in ("a", "b"):
                await asyncio.sleep(1)
                await queue.put(word)
            event.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(producer())
            messages += [await queue.get(), await queue.get()]
        await asyncio.wait_for(event.wait(), 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(9), 3)
        with pytest.raises(ExceptionGroup):
            await _fail_together()
        messages.append(f"{loop.time():g}")
        messages += await asyncio.gather(asyncio.sleep(1, "c"), asyncio.to_thread(str, 4))
        return messages

    assert simulate(main) == ["a", "b", "10", "c", "4"]


async def _fail_together() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_raise())
        group.create_task(asyncio.sleep(100))


async def _raise() -> None:
    raise ValueError


def test_a_killed_node_runs_nothing_more_not_even_its_finally() -> None:
    async def main(loop: SimLoop) -> list[str]:
        messages: list[str] = []

        async def run() -> None:
            try:
                messages.append("began")
                await asyncio.sleep(10)
            finally:
                messages.append("finally")

        node = Node("victim")
        loop.start(node, run())
        await asyncio.sleep(1)
        loop.kill(node)
        await asyncio.sleep(100)
        return list(messages)

    assert simulate(main) == ["began"]


def test_a_paused_node_continues_where_it_was() -> None:
    async def main(loop: SimLoop) -> list[float]:
        turns: list[float] = []

        async def run() -> None:
            for _ in range(3):
                await asyncio.sleep(1)
                turns.append(loop.time())

        node = Node("sleeper")
        task = loop.start(node, run())
        await asyncio.sleep(1.5)
        loop.pause(node)
        await asyncio.sleep(60)
        loop.wake(node)
        await task
        return turns

    assert simulate(main) == pytest.approx([1, 61.5, 62.5])


def test_two_nodes_alternate_at_random_and_one_node_keeps_its_order() -> None:
    async def main(loop: SimLoop) -> str:
        messages: list[str] = []

        async def say(word: str) -> None:
            messages.append(word)

        nodes = Node("a"), Node("b")
        for number in range(8):
            for node in nodes:
                loop.start(node, say(f"{node.name}{number}"))
        await asyncio.sleep(1)
        return " ".join(messages)

    orders = [simulate(main, seed=seed) for seed in range(20)]

    assert orders == [simulate(main, seed=seed) for seed in range(20)]
    assert len(set(orders)) > 10
    for order in orders:
        for name in "ab":
            assert [word for word in order.split() if word[0] == name] == [f"{name}{number}" for number in range(8)]


def test_an_exception_in_a_callback_ends_the_simulation() -> None:
    async def main(loop: SimLoop) -> None:
        loop.call_later(1, lambda: 1 // 0)
        await asyncio.sleep(10)

    with pytest.raises(ZeroDivisionError):
        simulate(main)


def test_a_world_that_would_wait_for_ever_raises_an_error() -> None:
    loop = SimLoop(Random(0))
    waiting = loop.create_task(asyncio.Event().wait())

    with pytest.raises(Quiet):
        loop.run_until_complete(waiting)

    loop.abandon()
    loop.close()


def test_the_wall_clock_may_step_and_the_uptime_only_rises() -> None:
    async def main(loop: SimLoop) -> tuple[int, float]:
        clock = SimClock(loop)
        await asyncio.sleep(2)
        clock.step(-3_600)
        return clock.now() - EPOCH, clock.uptime()

    wall, uptime = simulate(main)

    assert wall == -3_598_000_000
    assert uptime == pytest.approx(2)


def test_the_private_parts_of_asyncio_are_where_the_loop_expects_them() -> None:
    loop = SimLoop(Random(0))
    handle = loop.call_soon(print)
    private = vars(loop)

    assert isinstance(private["_ready"], deque)
    assert handle in private["_ready"]
    assert hasattr(handle, "_context")
    assert hasattr(handle, "_run")
    assert "self._run_once()" in inspect.getsource(base_events.BaseEventLoop)
    assert list(inspect.signature(base_events.BaseEventLoop.call_at).parameters) == [
        "self",
        "when",
        "callback",
        "args",
        "context",
    ]

    handle.cancel()
    loop.close()
