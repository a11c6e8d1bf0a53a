"""Hints to wait for, from a storage whose notices may fail: then they are asked for anew, after a rest."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from random import Random

from tenure.core.exponential_delay import ExponentialDelay
from tenure.storage.notifications import Listener
from tenure.storage.protocol import Notifications, Storage

PATIENCE = ExponentialDelay(0.5, 30.0)
"""Between two tries to listen. Seldom: nothing rests on a hint, and whoever waits for one looks by itself as well."""


class Hints:
    """One listener on some topics, from now on."""

    def __init__(
        self,
        storage: Storage,
        topics: Iterable[str],
        *,
        rng: Random,
        logger: logging.Logger,
        hear: Callable[[], None] | None = None,
    ) -> None:
        """Listen. `hear`: called at a hint instead of waking who waits, where that is sooner."""
        self._hear = hear
        self._storage = storage
        self._topics = tuple(topics)
        self._rng = rng
        self._logger = logger
        self._notices: Notifications | None = None
        self._failures = 0
        self._again_at = 0.0
        self._listen()

    async def next(self) -> None:
        """Wait for the next hint that nobody was called at, however long that takes. Cancelling it loses nothing."""
        while True:
            if self._notices is None:
                await asyncio.sleep(self._again_at - asyncio.get_running_loop().time())
                if self._listen():
                    # Nobody did meanwhile, so anything may have happened.
                    return
                continue
            try:
                await anext(aiter(self._notices))
            except (StopAsyncIteration, Exception) as error:
                self._lost(error)
            else:
                self._failures = 0
                return

    def close(self) -> None:
        """Listen no more."""
        if self._notices is not None:
            self._notices.close()
            self._notices = None

    def _listen(self) -> bool:
        try:
            self._notices = self._storage.notices(self._topics)
        except Exception as error:
            self._lost(error)
            return False
        if self._hear is not None and isinstance(self._notices, Listener):
            self._notices.hear = self._heard
        return True

    def _heard(self) -> None:
        self._failures = 0
        if self._hear is not None:
            self._hear()

    def _lost(self, error: Exception) -> None:
        self._failures += 1
        self._again_at = asyncio.get_running_loop().time() + PATIENCE.rest(self._failures, self._rng)
        if self._failures == 1:
            self._logger.warning("cannot hear %s, trying again: %r", ", ".join(self._topics), error)
        try:
            self.close()
        except Exception:
            # What is broken may be so beyond closing.
            self._notices = None
