"""What a BaseException does to the code of a handler: the basis on which a handler will be suspended.

A handler that waits is unwound by an exception that is not an `Exception` (decision 041). These tests write down what
Python does with such an exception. They use a class of their own, because no handler can suspend yet.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest


class Suspended(BaseException):
    """Unwinds a handler that waits."""


async def wait() -> None:
    raise Suspended


async def run_all(*branches: Coroutine[Any, Any, None]) -> None:
    """Run coroutines in a task group."""
    async with asyncio.TaskGroup() as group:
        for branch in branches:
            group.create_task(branch)


async def test_finally_blocks_run_and_may_await() -> None:
    done: list[str] = []

    async def handler() -> None:
        try:
            await wait()
        finally:
            await asyncio.sleep(0)
            done.append("closed")

    with pytest.raises(Suspended):
        await handler()
    assert done == ["closed"]


async def test_except_exception_does_not_catch_it() -> None:
    async def handler() -> None:
        with suppress(Exception):
            await wait()

    with pytest.raises(Suspended):
        await handler()


async def test_a_bare_except_catches_it_and_the_handler_returns() -> None:
    async def handler() -> str:
        try:
            await wait()
        except BaseException:
            return "returned"
        raise AssertionError("the wait did not unwind")

    # So a handler that returns, although a wait has unwound it, must be noticed and rejected.
    assert await handler() == "returned"


async def test_a_return_in_finally_swallows_it() -> None:
    namespace: dict[str, Any] = {"wait": wait}
    # Newer versions of Python warn about this code when they compile it.
    source = "async def handler():\n    try:\n        await wait()\n    finally:\n        return 'returned'\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.filters", [])
        exec(compile(source, "handler", "exec"), namespace)

    assert await namespace["handler"]() == "returned"


async def test_a_task_keeps_it_and_the_loop_goes_on() -> None:
    task = asyncio.create_task(wait())
    await asyncio.wait([task])

    assert isinstance(task.exception(), Suspended)


async def test_a_task_group_wraps_it_and_cancels_the_other_tasks() -> None:
    cancelled: list[str] = []

    async def other() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("other")
            raise

    with pytest.raises(BaseExceptionGroup) as caught:
        await run_all(other(), wait())

    assert not isinstance(caught.value, ExceptionGroup)
    assert [type(error) for error in caught.value.exceptions] == [Suspended]
    assert cancelled == ["other"]


async def test_a_task_group_wraps_it_if_its_own_block_raises_it() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        async with asyncio.TaskGroup():
            await wait()

    assert [type(error) for error in caught.value.exceptions] == [Suspended]


async def test_two_branches_of_a_task_group_come_in_one_group() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        await run_all(wait(), wait())

    suspended, rest = caught.value.split(Suspended)
    assert suspended is not None
    assert len(suspended.exceptions) == 2
    assert rest is None


async def test_a_group_with_a_real_error_keeps_both() -> None:
    async def fail() -> None:
        raise ValueError

    with pytest.raises(BaseExceptionGroup) as caught:
        await run_all(wait(), fail())

    suspended, rest = caught.value.split(Suspended)
    assert suspended is not None
    # The error must win: a run that failed and also waits has failed.
    assert rest is not None
    assert {type(error) for error in caught.value.exceptions} == {Suspended, ValueError}


async def test_nested_task_groups_nest_the_exception_groups() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        await run_all(run_all(wait()))

    # So only `split`, which goes through all levels, tells whether there is nothing else in the group.
    assert isinstance(caught.value.exceptions[0], BaseExceptionGroup)
    assert caught.value.split(Suspended)[1] is None


async def test_gather_raises_it_bare_and_leaves_the_others_running() -> None:
    release = asyncio.Event()
    others = asyncio.create_task(release.wait())

    with pytest.raises(Suspended):
        await asyncio.gather(wait(), others)

    assert not others.done()
    release.set()
    assert await others


async def test_gather_with_return_exceptions_returns_it_as_a_value() -> None:
    results = await asyncio.gather(wait(), asyncio.sleep(0, "done"), return_exceptions=True)

    # The handler goes on as if nothing had happened, so it must be rejected if it returns.
    assert isinstance(results[0], Suspended)
    assert results[1] == "done"


async def test_except_star_catches_it_only_by_its_own_class() -> None:
    caught: list[str] = []
    with suppress(BaseException):
        try:
            await wait()
        except* Exception:
            caught.append("exception")
    try:
        await wait()
    except* Suspended:
        caught.append("suspended")

    assert caught == ["suspended"]


def test_an_exception_group_does_not_take_it() -> None:
    with pytest.raises(TypeError):
        ExceptionGroup("branches", [Suspended()])  # type: ignore[type-var] # pyright: ignore[reportArgumentType]
    assert not isinstance(BaseExceptionGroup("branches", [Suspended()]), ExceptionGroup)


async def test_timeout_and_wait_for_let_it_pass() -> None:
    with pytest.raises(Suspended):
        async with asyncio.timeout(60):
            await wait()
    with pytest.raises(Suspended):
        await asyncio.wait_for(wait(), 60)


async def test_a_thread_passes_it_on() -> None:
    def plain() -> None:
        raise Suspended

    with pytest.raises(Suspended):
        await asyncio.to_thread(plain)


def test_a_generator_that_raises_it_is_finished() -> None:
    done: list[str] = []

    def pages() -> Iterator[int]:
        try:
            yield 1
            raise Suspended
        finally:
            done.append("closed")

    generator = pages()
    assert next(generator) == 1
    with pytest.raises(Suspended):
        next(generator)
    assert done == ["closed"]
    assert list(generator) == []


async def test_an_async_generator_stays_open_if_its_reader_is_unwound() -> None:
    done: list[str] = []

    async def pages() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            done.append("closed")

    generator = pages()

    async def handler() -> None:
        async for _ in generator:
            await wait()

    with pytest.raises(Suspended):
        await handler()
    # As with any exception: only `aclosing`, or the end of the loop, closes it.
    assert done == []
    with suppress(StopAsyncIteration):
        await anext(generator)
    assert done == ["closed"]


async def test_context_managers_from_generators_see_it_at_their_yield() -> None:
    done: list[str] = []

    @contextmanager
    def opened() -> Generator[None]:
        try:
            yield
        except Exception:
            done.append("error")
        finally:
            done.append("closed")

    @asynccontextmanager
    async def opened_async() -> AsyncGenerator[None]:
        try:
            yield
        finally:
            done.append("closed")

    with pytest.raises(Suspended), opened():
        await wait()
    with pytest.raises(Suspended):
        async with opened_async():
            await wait()
    assert done == ["closed", "closed"]


async def test_a_cancel_during_the_unwinding_replaces_it() -> None:
    unwinding = asyncio.Event()

    async def handler() -> None:
        try:
            await wait()
        finally:
            unwinding.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(handler())
    await unwinding.wait()
    task.cancel()
    await asyncio.wait([task])

    # A cancel wins: its `CancelledError` has the wait only as its context.
    assert task.cancelled()
