"""Waits for notifications, and subscribes again after a pause if the subscription fails."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from random import Random

from tenure.core.exponential_delay import ExponentialDelay
from tenure.storage.notifications import Listener
from tenure.storage.protocol import Notifications, Storage

PATIENCE = ExponentialDelay(0.5, 30.0)
"""The delay between two attempts to subscribe. It may be long: correctness does not depend on notifications, and each
waiter polls as well."""


class Hints:
    """One subscription to some topics, active from construction on."""

    def __init__(
        self,
        storage: Storage,
        topics: Iterable[str],
        *,
        rng: Random,
        logger: logging.Logger,
        on_hint: Callable[[], None] | None = None,
    ) -> None:
        """Subscribe. `on_hint`: called at each hint instead of waking the waiter, if the storage supports that."""
        self._on_hint = on_hint
        self._storage = storage
        self._topics = tuple(topics)
        self._rng = rng
        self._logger = logger
        self._notices: Notifications | None = None
        self._failures = 0
        self._again_at = 0.0
        self._listen()

    async def next(self) -> None:
        """Wait, without a limit, for the next hint that did not go to `on_hint`. Cancelling the wait loses nothing."""
        while True:
            if self._notices is None:
                await asyncio.sleep(self._again_at - asyncio.get_running_loop().time())
                if self._listen():
                    # There was no subscription meanwhile, so anything may have changed.
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
        """Unsubscribe."""
        if self._notices is not None:
            self._notices.close()
            self._notices = None

    def _listen(self) -> bool:
        try:
            self._notices = self._storage.notices(self._topics)
        except Exception as error:
            self._lost(error)
            return False
        if self._on_hint is not None and isinstance(self._notices, Listener):
            self._notices.on_hint = self._heard
        return True

    def _heard(self) -> None:
        self._failures = 0
        if self._on_hint is not None:
            self._on_hint()

    def _lost(self, error: Exception) -> None:
        self._failures += 1
        self._again_at = asyncio.get_running_loop().time() + PATIENCE.rest(self._failures, self._rng)
        if self._failures == 1:
            self._logger.warning("cannot listen to %s, trying again: %r", ", ".join(self._topics), error)
        try:
            self.close()
        except Exception:
            # A broken subscription may fail to close as well.
            self._notices = None
