"""The injected values of one run: created before its handler is called, and closed after it, in any outcome."""

import functools
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any

from tenure.failures import traceback_of
from tenure.handlers.context import current_job
from tenure.handlers.injection import Needs, ProviderStep
from tenure.threads import WorkerThread

ReportFailure = Callable[[str, str, BaseException], None]
"""Takes the part that failed, a text, and the exception. Used if another exception already decides the run's
outcome."""


class InjectedValues:
    """Runs the provider steps that a handler needs, and closes them in reverse order.

    `async with` returns the values by parameter name. Plain providers run in the run's thread. If the run raises, each
    open provider gets the exception, and the exception propagates even if a provider suppresses it. If the run does not
    raise, the first exception of a closing provider becomes the run's. If the thread still runs, a task closes
    the open providers later, and the run does not wait for it.
    """

    def __init__(
        self,
        needs: Needs,
        thread: WorkerThread,
        *,
        report: ReportFailure,
        close_later: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._needs = needs
        self._thread = thread
        self._report = report
        self._hand_over = close_later
        self._open: list[_Plain | _Async] = []

    async def __aenter__(self) -> Mapping[str, Any]:
        made: list[Any] = []
        try:
            for step in self._needs.steps:
                made.append(await self._make(step, {name: made[place] for name, place in step.parameters.items()}))
        except BaseException as error:
            await self._close(error)
            raise
        return {name: made[place] for name, place in self._needs.parameters.items()}

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(error)

    async def _make(self, step: ProviderStep, taken: dict[str, Any]) -> Any:
        match step.kind:
            case "async generator":
                manager = step.make(**taken)
                value = await manager.__aenter__()
                self._open.append(_Async(step, manager))
                return value
            case "generator":
                # Noted before it is open, because the run may be stopped while the thread still opens it.
                opening = _Plain(step, step.make(**taken))
                self._open.append(opening)
                return await self._thread.run(opening.enter)
            case "coroutine function":
                return await step.make(**taken)
            case "function":
                if step.provider is current_job:
                    return current_job()
                return await self._thread.run(functools.partial(step.make, **taken))

    async def _close(self, failure: BaseException | None) -> None:
        counts = failure
        while self._open and not self._thread.busy:
            closing = self._open.pop()
            try:
                await closing.exit(self._thread, counts)
            except BaseException as error:
                if counts is None:
                    counts = error
                elif error is not counts:
                    self._report(f"the provider {closing.name}", "failed while it closed", error)
        if self._thread.busy:
            self._hand_over(self._close_later(counts))
        else:
            self._thread.close()
        if failure is None and counts is not None:
            raise counts

    async def _close_later(self, failure: BaseException | None) -> None:
        await self._thread.idle()
        await self._close(failure)


class _Plain:
    """A plain generator that is open or being opened. Its calls must run in the run's thread."""

    def __init__(self, step: ProviderStep, manager: AbstractContextManager[Any]) -> None:
        self.name = step.name
        self._manager = manager
        self._entered = False

    def enter(self) -> Any:
        value = self._manager.__enter__()
        self._entered = True
        return value

    async def exit(self, thread: WorkerThread, failure: BaseException | None) -> None:
        if self._entered:
            await thread.run(functools.partial(self._manager.__exit__, *_exception_info(failure)))


class _Async:
    """An open async generator."""

    def __init__(self, step: ProviderStep, manager: AbstractAsyncContextManager[Any]) -> None:
        self.name = step.name
        self._manager = manager

    async def exit(self, thread: WorkerThread, failure: BaseException | None) -> None:
        await self._manager.__aexit__(*_exception_info(failure))


def _exception_info(
    failure: BaseException | None,
) -> tuple[type[BaseException] | None, BaseException | None, TracebackType | None]:
    return (None, None, None) if failure is None else (type(failure), failure, traceback_of(failure))
