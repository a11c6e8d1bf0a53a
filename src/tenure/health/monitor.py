"""Surveys the storage, each time within a limit, and keeps what a single survey does not show: backlog, failures."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tenure.clock import Clock
from tenure.core.backlog import Backlog, Thresholds, observe
from tenure.errors import StorageError, TenureError
from tenure.health.assessment import waiting
from tenure.storage.protocol import Storage, Survey

LIMIT = 1.8
"""Seconds that the storage gets to answer, so that a health request is answered within two seconds."""

EVERY = 2.5
"""Seconds between two surveys without requests, so that a backlog between two requests is seen, too."""

logger = logging.getLogger("tenure.health")


class NoStorageYetError(StorageError):
    """The storage is not known yet: the worker processes that know it have only just been started."""


@dataclass(frozen=True)
class SurveyResult:
    """The result of one survey at an uptime: the survey, or the error; `hung`: the storage gave no answer in time."""

    at: float
    survey: Survey | None
    error: str = ""
    hung: bool = False


class StorageMonitor:
    """Surveys the storage; requests at the same time share one survey, so that they do not overload the storage."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]], *, clock: Clock, thresholds: Thresholds) -> None:
        self.thresholds = thresholds
        self.backlog = Backlog()
        self.last_success: SurveyResult | None = None
        """The last survey that succeeded."""

        self.failing_since: float | None = None
        """The uptime of the first failed survey since the last successful one; None if that is the latest."""

        self._storage = storage
        self._clock = clock
        self._last: SurveyResult | None = None
        self._under_way: asyncio.Task[SurveyResult] | None = None

    @property
    def now(self) -> float:
        """The current uptime."""
        return self._clock.uptime()

    async def look(self, *, max_age: float = 0.0) -> SurveyResult:
        """Return a new survey, or one that is at most `max_age` seconds old. This takes no longer than `LIMIT`."""
        if self._last is not None and self.now - self._last.at < max_age:
            return self._last
        task = self._under_way
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            # Not in a task group: the first caller may be cancelled while others wait. `LIMIT` bounds the task.
            task = self._under_way = asyncio.create_task(self._look(), name="tenure health look")
        return await asyncio.shield(task)

    async def sample(self) -> None:
        """Survey the storage every few seconds until cancelled."""
        try:
            while True:
                await self.look(max_age=EVERY / 2)
                await asyncio.sleep(EVERY)
        finally:
            if self._under_way is not None and self._under_way.get_loop() is asyncio.get_running_loop():
                self._under_way.cancel()
                await asyncio.gather(self._under_way, return_exceptions=True)

    async def _look(self) -> SurveyResult:
        asked_at = self.now
        try:
            async with asyncio.timeout(LIMIT):
                survey = await (await self._storage()).survey()
        except TimeoutError:
            return self._failed(asked_at, f"no answer within {LIMIT:g} s", hung=True)
        except NoStorageYetError as error:
            self._last = SurveyResult(asked_at, None, str(error))
            return self._last
        except TenureError as error:
            return self._failed(asked_at, str(error))
        except Exception as error:
            logger.exception("a survey of the storage raised an unexpected exception")
            return self._failed(asked_at, repr(error))
        if self.failing_since is not None:
            logger.info("the storage answers again")
        self.failing_since = None
        self.backlog = observe(self.backlog, self.thresholds, waiting(survey), now=asked_at)
        self._last = self.last_success = SurveyResult(asked_at, survey)
        return self._last

    def _failed(self, asked_at: float, error: str, *, hung: bool = False) -> SurveyResult:
        if self.failing_since is None:
            self.failing_since = asked_at
            logger.warning("the storage is unreachable: %s", error)
        self._last = SurveyResult(asked_at, None, error, hung)
        return self._last
