"""Sends the records of steps to the storage. Steps that runs of this process record meanwhile share the next call.

    a step ──no call is in flight──► a call for it alone
           └─one is──► waits ──that one returns──► one call for all that wait

A step has had its effect when it is recorded. So a call that fails is sent again, until it is answered or the run is
over.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tenure.clock import SECOND, Clock
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.job import Owner
from tenure.core.steps import NewStep
from tenure.errors import NotDurableError, StorageFullError, StorageUnavailableError
from tenure.handlers.context import outside_of_jobs
from tenure.storage.protocol import Storage
from tenure.storage.requests import LeaseRenewal, RenewRequest
from tenure.worker.active_runs import ActiveRun, RunKey, StopReason

STEPS_SENT = 100
"""The most steps in one call."""

BYTES_SENT = 4 * 1024 * 1024
"""The bytes of values after which a call takes no more steps."""

_RETRY = ExponentialDelay(0.1, 1.0)

StopRun = Callable[[ActiveRun, StopReason, str | None], None]
"""Stops a run. Safe from any thread."""


@dataclass(eq=False)
class _Entry:
    """A step that is to be recorded. `answer`: True if it is, False if the run is not the current one any more."""

    run: ActiveRun
    step: NewStep
    answer: "asyncio.Future[bool]"


class StepRecorder:
    """Records the steps of all runs of one event loop."""

    def __init__(self, storage: Storage, clock: Clock, rng: Random, logger: logging.Logger, *, stop: StopRun) -> None:
        self._storage, self._clock, self._rng, self._logger, self._stop = storage, clock, rng, logger, stop
        self._waiting: deque[_Entry] = deque()
        self._sending: asyncio.Task[None] | None = None
        self.failures = 0
        """How many calls in a row have failed."""

    def record(self, run: ActiveRun, step: NewStep) -> "asyncio.Future[bool]":
        """Send a step. The future is True when it is recorded, and False if the run is not the current one any more.

        It fails with the error of the storage if the storage refuses the step.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(_Entry(run, step, answer))
        if self._sending is None:
            # The calls belong to no single run, which would cancel the task when it is suspended.
            self._sending = loop.create_task(self._send(), name="tenure-steps", context=outside_of_jobs())
        return answer

    async def _send(self) -> None:
        try:
            while batch := self._next():
                await self._send_batch(batch)
        finally:
            self._sending = None
            for entry in self._waiting:
                # Only if the event loop ends.
                entry.answer.cancel()

    def _next(self) -> list[_Entry]:
        batch: list[_Entry] = []
        size = 0
        while self._waiting and len(batch) < STEPS_SENT and size <= BYTES_SENT:
            entry = self._waiting.popleft()
            batch.append(entry)
            size += len(entry.step.body or b"")
        return batch

    async def _send_batch(self, batch: list[_Entry]) -> None:
        self.failures = 0
        while batch:
            try:
                await self._call(batch)
                return
            except (StorageUnavailableError, StorageFullError, NotDurableError, TimeoutError) as error:
                self.failures += 1
                if self.failures == 1:
                    self._logger.warning("cannot record %d steps, retrying: %r", len(batch), error)
                await asyncio.sleep(_RETRY.rest(self.failures, self._rng))
            except Exception as error:
                if len(batch) > 1:
                    # The error may be due to one of them.
                    for entry in batch:
                        await self._send_batch([entry])
                    return
                _resolve(batch[0], error)
                return
            for entry in batch:
                if entry.run.over or entry.run.stops_for("lost", "unreachable"):
                    _resolve(entry, False)
            batch = [entry for entry in batch if not entry.answer.done()]

    async def _call(self, batch: list[_Entry]) -> None:
        now = self._clock.uptime()
        steps: dict[RunKey, list[NewStep]] = {}
        runs = {entry.run.key: entry.run for entry in batch}
        for entry in batch:
            steps.setdefault(entry.run.key, []).append(entry.step)
        owners = {run.lease.job.owner or "" for run in runs.values()}
        renewals = tuple(_renewal(run, tuple(steps[key]), now) for key, run in runs.items())
        # All runs of a process have one owner.
        result = await self._storage.renew(RenewRequest(Owner(owners.pop()), renewals))
        lost, incomplete = {*result.lost}, {*result.incomplete}
        for entry in batch:
            if entry.run.key in incomplete:
                continue
            if entry.run.key in lost and not entry.run.over:
                entry.run.refused = True
                self._stop(entry.run, "lost", None)
            _resolve(entry, entry.run.key not in lost)
        if incomplete:
            batch[:] = [entry for entry in batch if entry.run.key in incomplete]
            raise StorageUnavailableError("a part of the storage does not answer")


def _renewal(run: ActiveRun, steps: tuple[NewStep, ...], now: float) -> LeaseRenewal:
    """Return the renewal that carries steps of a run. A step is a sign of the handler."""
    return LeaseRenewal(
        run.lease.ref,
        run.lease.fence,
        sign=True,
        extend=not run.suspended,
        exclusive=run.exclusive or run.lease.job.exclusive,
        ran=max(0, round((now - run.claimed_at) * SECOND)),
        silent=0,
        steps=steps,
    )


def _resolve(entry: _Entry, answer: bool | Exception) -> None:
    if entry.answer.done():
        return
    if isinstance(answer, Exception):
        entry.answer.set_exception(answer)
    else:
        entry.answer.set_result(answer)
