"""The block in which a handler's own writes and the completion of its job are one transaction."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from tenure.errors import UsageError

C = TypeVar("C")


@dataclass(frozen=True)
class TransactionSteps:
    """The steps of a block, as the worker does them. They block, and are called one at a time."""

    connection: Callable[[], Any]
    """Returns the connection or session that the handler writes with."""
    begin: Callable[[], None]
    set_result: Callable[[object], None]
    """Encodes and keeps the result of the job."""
    complete: Callable[[], None]
    """Completes the job and commits."""
    close: Callable[[], None]
    """Rolls back what is not committed."""
    from_loop: Callable[[Callable[[], None]], Awaitable[None]]
    """Does a step without blocking the event loop. A cancellation is raised after the step has ended."""


class JobTransaction(Generic[C]):
    """A transaction that ends with the completion of its job; `current_job().transaction()` returns it.

    In a coroutine use it with `async with`, in a plain function with `with`. If the block ends without an exception,
    all that was written through `connection` and the completion of the job are committed together. If an exception
    leaves the block, nothing is.
    """

    def __init__(self, open_steps: Callable[[asyncio.AbstractEventLoop | None], TransactionSteps]) -> None:
        """`open_steps`: called when the block begins, with the running event loop, or None in a plain function."""
        self._open_steps = open_steps
        self._steps: TransactionSteps | None = None

    @property
    def connection(self) -> C:
        """The connection or session to write with. Do not commit or roll back on it.

        Raises:
            UsageError: the block has not begun, or has ended.
        """
        connection: C = self._begun.connection()
        return connection

    def complete(self, result: object = None) -> None:
        """Set the result of the job, which is recorded when the block ends. Without this call it is None.

        Raises:
            UsageError: the result does not fit the task's annotation, or is over 1 MiB; or the block has ended.
        """
        self._begun.set_result(result)

    def __enter__(self) -> Self:
        """Begin the transaction.

        Raises:
            UsageError: the storage has no such transactions, the connection cannot be used, or this is a coroutine.
            StorageError: the database is out of reach.
        """
        if _running_loop() is not None:
            raise UsageError("transaction(): this would block the event loop; use `async with` in a coroutine")
        steps = self._open(None)
        try:
            steps.begin()
        except BaseException:
            self._close(steps)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the job and commit, or roll back if an exception leaves the block.

        Raises:
            LeaseLostError: the job belongs to another run; nothing is written.
            UsageError: the transaction was ended inside the block, or has failed.
            StorageError: the database is out of reach.
        """
        steps = self._begun
        try:
            if kind is None:
                steps.complete()
        finally:
            self._close(steps)

    async def __aenter__(self) -> Self:
        """See `__enter__`."""
        steps = self._open(asyncio.get_running_loop())
        try:
            await steps.from_loop(steps.begin)
        except BaseException:
            await steps.from_loop(lambda: self._close(steps))
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See `__exit__`."""
        steps = self._begun
        try:
            if kind is None:
                await steps.from_loop(steps.complete)
        finally:
            await steps.from_loop(lambda: self._close(steps))

    def _open(self, loop: asyncio.AbstractEventLoop | None) -> TransactionSteps:
        if self._steps is not None:
            raise UsageError("transaction(): this block was entered before; call transaction() again")
        self._steps = self._open_steps(loop)
        return self._steps

    def _close(self, steps: TransactionSteps) -> None:
        self._open_steps = _ended
        self._steps = None
        steps.close()

    @property
    def _begun(self) -> TransactionSteps:
        if self._steps is None:
            raise UsageError("transaction(): the block has not begun, or has ended")
        return self._steps


def _ended(loop: asyncio.AbstractEventLoop | None) -> TransactionSteps:
    raise UsageError("transaction(): this block has ended; call transaction() again")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
