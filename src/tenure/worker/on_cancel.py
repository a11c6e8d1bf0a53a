"""Calls the on_cancel hook of a cancelled run after its handler has ended, with a time limit.

run cancelled ──► hook, in its own task ──► it ends, or fails: logged
                                     └────► too long, or the run is lost: cancelled and abandoned
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from tenure.client.codec import Codec
from tenure.client.task import Task
from tenure.clock import SECOND, Clock
from tenure.handlers.injection import Needs
from tenure.threads import wrapped
from tenure.worker.active_runs import CANCEL_GRACE, Abandoned, ActiveRun

HOOK_LIMIT = 30.0
"""The maximum time of a hook whose task has no timeout, in seconds."""

ReportHookFailure = Callable[[ActiveRun, str, str, BaseException | None], None]
"""Takes the run, the part that failed, a text, and the exception if there is one."""


class HookCaller(Protocol):
    """Calls a function of a run with its arguments and injected values, on the loop or in a thread."""

    def __call__(
        self,
        function: Callable[..., Any],
        usual: Needs,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: ActiveRun,
        /,
    ) -> Awaitable[Any]:
        """Call the function."""
        ...


class CancelHooks:
    """Calls the on_cancel hooks of tasks. Their exceptions are logged; the job is cancelled anyway."""

    def __init__(
        self, codec: Codec, clock: Clock, *, call: HookCaller, report: ReportHookFailure, abandoned: Abandoned
    ) -> None:
        self._codec = codec
        self._clock = clock
        self._call_function = call
        self._report = report
        self._abandoned = abandoned

    async def call(self, task: Task[..., Any], hook: Callable[..., Any], run: ActiveRun) -> None:
        """Call the hook of a run, with a time limit."""
        job = run.lease.job
        run.in_hook = True
        run.signs.sign(self._clock.uptime())
        limit = HOOK_LIMIT
        if job.timeout is not None:
            # The lease ends one beat after the timeout, so the hook must end by then.
            limit = max(job.timeout / SECOND - (self._clock.uptime() - run.claimed_at), run.beat / 2)
        # In its own task: the cancellation that ended the handler does not affect it, and it can be abandoned.
        hooked = asyncio.create_task(self._hook(task, hook, run))
        try:
            done, _ = await asyncio.wait({hooked}, timeout=limit)
            if not done:
                self._report(run, "the on_cancel hook", f"passed its limit of {limit:g} s", None)
                await self._cut_off(hooked, run)
            elif hooked.cancelled():
                self._report(run, "the on_cancel hook", "was cancelled from within", None)
            elif (error := hooked.exception()) is not None:
                self._report(run, "the on_cancel hook", "failed", error)
        except asyncio.CancelledError:
            # The run is lost, or its worker ends.
            await self._cut_off(hooked, run)

    async def _hook(self, task: Task[..., Any], hook: Callable[..., Any], run: ActiveRun) -> None:
        try:
            # Decode again, because the handler may have changed its arguments.
            args, kwargs = task.decode(self._codec, run.lease.job)
            await self._call_function(hook, task.hook_needs, args, kwargs, run)
        except (SystemExit, KeyboardInterrupt) as error:
            # In a task, these exceptions would end the loop.
            raise wrapped(error) from error

    async def _cut_off(self, hooked: "asyncio.Task[None]", run: ActiveRun) -> None:
        hooked.cancel()
        try:
            await asyncio.wait({hooked}, timeout=CANCEL_GRACE)
        finally:
            # If the exception is not retrieved, asyncio logs an error.
            hooked.add_done_callback(_seen)
            if not hooked.done():
                # It is abandoned. An exclusive right is kept until it has ended.
                run.abandon_task(hooked)
                self._abandoned.add_task(hooked)


def _seen(hooked: "asyncio.Task[None]") -> None:
    if not hooked.cancelled():
        hooked.exception()
