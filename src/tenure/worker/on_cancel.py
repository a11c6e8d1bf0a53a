"""What tidies up after a run that was cancelled: called once its handler has ended, and only for so long.

run cancelled ──► hook, in a task of its own ──► it ends, or fails: told to the log
                                          └────► too long, or the run is lost: cut off
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from tenure.client.codec import Codec
from tenure.client.task import Task
from tenure.clock import SECOND, Clock
from tenure.handlers.injection import Needs
from tenure.threads import wrapped
from tenure.worker.abandoned import LINGER, Abandoned
from tenure.worker.active_runs import ActiveRun

LIMIT = 30.0
"""Seconds that a hook gets at most where its task has no timeout."""

Complain = Callable[[ActiveRun, str, str, BaseException | None], None]
"""Takes whose run it is, who failed and how, and the exception if there is one."""


class HookCaller(Protocol):
    """Calls a function of a run, on the loop or in a thread, with its arguments and what is injected."""

    def __call__(
        self,
        function: Callable[..., Any],
        usual: Needs,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        held: ActiveRun,
        /,
    ) -> Awaitable[Any]:
        """Call it."""
        ...


class CancelHooks:
    """Calls the on_cancel hooks of tasks. What they raise is noted: the job is cancelled all the same."""

    def __init__(
        self, codec: Codec, clock: Clock, *, call: HookCaller, complain: Complain, abandoned: Abandoned
    ) -> None:
        self._codec = codec
        self._clock = clock
        self._call = call
        self._complain = complain
        self._abandoned = abandoned

    async def tidy_up(self, task: Task[..., Any], hook: Callable[..., Any], held: ActiveRun) -> None:
        """Call the hook of a run, bounded."""
        job = held.lease.job
        held.hooking = True
        held.signs.sign(self._clock.uptime())
        limit = LIMIT
        if job.timeout is not None:
            # The lease ends a beat after the timeout, so the hook must not take longer than both of them together.
            limit = max(job.timeout / SECOND - (self._clock.uptime() - held.claimed_at), held.beat / 2)
        # In a task of its own: it has nothing of the cancellation that ended the handler, and can be left behind.
        hooked = asyncio.create_task(self._hook(task, hook, held))
        try:
            done, _ = await asyncio.wait({hooked}, timeout=limit)
            if not done:
                self._complain(held, "the on_cancel hook", f"passed its limit of {limit:g} s", None)
                await self._cut_off(hooked, held)
            elif hooked.cancelled():
                self._complain(held, "the on_cancel hook", "was cancelled from within", None)
            elif (error := hooked.exception()) is not None:
                self._complain(held, "the on_cancel hook", "failed", error)
        except asyncio.CancelledError:
            # The run is lost, or its worker ends.
            await self._cut_off(hooked, held)

    async def _hook(self, task: Task[..., Any], hook: Callable[..., Any], held: ActiveRun) -> None:
        try:
            # Decoded again: the handler may have changed what it was given.
            args, kwargs = task.decode(self._codec, held.lease.job)
            await self._call(hook, task.hook_needs, args, kwargs, held)
        except (SystemExit, KeyboardInterrupt) as error:
            # Out of a task these would end the loop.
            raise wrapped(error) from error

    async def _cut_off(self, hooked: "asyncio.Task[None]", held: ActiveRun) -> None:
        hooked.cancel()
        try:
            await asyncio.wait({hooked}, timeout=LINGER)
        finally:
            # Somebody must have looked at what it raises, or asyncio complains.
            hooked.add_done_callback(_seen)
            if not hooked.done():
                # It is left to itself; an exclusive right is kept until it has ended.
                held.leave(hooked)
                self._abandoned.task(hooked)


def _seen(hooked: "asyncio.Task[None]") -> None:
    if not hooked.cancelled():
        hooked.exception()
