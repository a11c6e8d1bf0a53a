"""Reads on a thread and connection of their own, so that writers do not delay them."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tenure.storage.sql.transaction import Transaction

T = TypeVar("T")


class Reader(ABC):
    """Answers each read from one consistent state of the database. A driver implements the abstract methods."""

    thread_name = "tenure-reader"

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    async def read(self, run: Callable[[Transaction], T]) -> T:
        """Run a read on the thread and return its answer."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, self.thread_name)
        try:
            answer = asyncio.get_running_loop().run_in_executor(self._thread, self._run, run)
        except RuntimeError as error:
            raise self._no_thread(error) from error
        return await answer

    def stop(self) -> None:
        """Finish the submitted reads, then end the thread and close the connection."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        self.reset()
        self._close()

    def reset(self) -> None:
        """Reset, for example after a fork."""
        self._thread = None

    @abstractmethod
    def _run(self, ask: Callable[[Transaction], T]) -> T:
        """Answer a read, on the thread."""

    @abstractmethod
    def _no_thread(self, error: RuntimeError) -> BaseException:
        """Return the error of a call whose thread could not be started."""

    @abstractmethod
    def _close(self) -> None:
        """Close the connection."""
