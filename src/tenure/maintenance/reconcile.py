"""Asks for the ends of jobs that others wait for, if their tokens were lost, and delivers what is known.

a job that waits, no token for 5 min ──► the jobs that it misses (get)
ended ──► its token (revise)
goes on ──► nothing
unknown ──► the wait goes on; a member that was announced but never written is lost at the second look
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence

from tenure.core.job import JobDetail, Ref
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.reconcile import MissingEnd, StaleWait
from tenure.storage.protocol import Storage
from tenure.storage.waiting import DeliverToken, end_token

AT_ONCE = 4
"""How many stale waits are looked at together."""

UNKNOWN_KEPT = 10_000
"""How many unknown jobs are remembered until the second look at them."""


class Reconciler:
    """Looks at stale waits, and remembers which jobs were unknown before."""

    def __init__(self, storage: Storage, logger: logging.Logger) -> None:
        self._storage = storage
        self._logger = logger
        self._unknown: dict[tuple[Ref, Ref], None] = {}

    async def reconcile(self, stale: Sequence[StaleWait], *, within: float | None = None) -> tuple[str, ...]:
        """Deliver the tokens that are missing and known; return what went wrong. Repeating it does no harm.

        `within`: the seconds for all calls. The storage names what is left again, after the same time as before.
        """
        slots, troubles = asyncio.Semaphore(AT_ONCE), list[str]()

        async def one(wait: StaleWait) -> None:
            async with slots:
                try:
                    await self._look(wait)
                except Exception as error:
                    # It must not delay the others.
                    troubles.append(f"what the job {wait.ref.id!r} of the queue {wait.ref.queue!r} misses: {error!r}")

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within), asyncio.TaskGroup() as group:
                for wait in stale:
                    group.create_task(one(wait))
        return tuple(troubles)

    async def _look(self, wait: StaleWait) -> None:
        found = await self._storage.get([end.ref for end in wait.missing])
        tokens = [
            token
            for end, detail in zip(wait.missing, found, strict=True)
            for token in (self._of_unknown(wait, end) if detail is None else self._of_known(wait, end, detail))
        ]
        if tokens:
            await self._storage.revise(tokens)

    def _of_known(self, wait: StaleWait, end: MissingEnd, detail: JobDetail) -> Iterator[DeliverToken]:
        self._unknown.pop((wait.ref, end.ref), None)
        job = detail.job
        if job.state not in TERMINAL:
            return
        own = () if job.links is None else job.links.dependents
        for dependent in [one for one in own if one.to == wait.ref] or [end.dependent]:
            yield DeliverToken(wait.ref, end_token(dependent, completed=job.state is State.COMPLETED))

    def _of_unknown(self, wait: StaleWait, end: MissingEnd) -> Iterator[DeliverToken]:
        names = wait.ref.id, wait.ref.queue, end.ref.id, end.ref.queue
        seen = (wait.ref, end.ref) in self._unknown
        if seen and end.lost:
            del self._unknown[wait.ref, end.ref]
            self._logger.error("job %s of queue %s: its member %s of queue %s is lost: it was never stored", *names)
            yield DeliverToken(wait.ref, end_token(end.dependent, completed=False))
            return
        if not seen:
            self._logger.warning("job %s of queue %s waits for job %s of queue %s, which does not exist", *names)
            self._unknown[wait.ref, end.ref] = None
            if len(self._unknown) > UNKNOWN_KEPT:
                del self._unknown[next(iter(self._unknown))]
