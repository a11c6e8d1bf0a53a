"""Sending middleware: coroutine functions around every enqueue of an app, which may add headers to its jobs.

caller ─► first ─► second ─► the storage stores the job
       ◄─       ◄─        ◄─

The calls of one `enqueue_many` are stored by one request: each has its own layers, and the request is sent when all
of them await `proceed`.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from msgspec import structs

from tenure.core.check import shown
from tenure.core.job import NewJob
from tenure.errors import StorageUnavailableError, UsageError
from tenure.handlers.functions import is_async
from tenure.handlers.injection import refuse_injections
from tenure.options.headers import valid_headers
from tenure.storage.protocol import EnqueueResult


class SendCall:
    """A call before its job is stored. Sending middleware may change `headers`; the handler gets the result."""

    def __init__(self, job: NewJob) -> None:
        self._job = job
        self.headers: dict[str, str] = dict(job.headers)
        """The headers of the job: inherited from the job whose handler enqueues, then those of the call's options."""

    @property
    def task(self) -> str:
        """The task's name."""
        return self._job.task

    @property
    def queue(self) -> str:
        """The queue that the job goes to."""
        return self._job.queue

    @property
    def id(self) -> str:
        """The job's id. A call that is merged into another job, by a key or an id, ends up with that job's id."""
        return self._job.id

    @property
    def size(self) -> int:
        """The number of bytes that the encoded arguments take."""
        return len(self._job.payload)


ProceedSending = Callable[[], Awaitable[None]]
"""Calls the next sending middleware or the storage. Returns when the job is stored, or raises the storage's error."""

SendMiddleware = Callable[[SendCall, ProceedSending], Awaitable[None]]
"""A coroutine function that is called for each job that this process enqueues; it awaits `proceed` once."""

Store = Callable[[Sequence[NewJob]], Awaitable[list[EnqueueResult]]]
"""Stores jobs by one request."""


def valid_send_middleware(value: object) -> SendMiddleware:
    """Return the sending middleware.

    Raises:
        UsageError: it is not a coroutine function of two arguments, the call and `proceed`.
    """
    remedy = "write async def layer(call, proceed)"
    if not callable(value) or not is_async(value):
        raise UsageError(f"sending middleware {shown(value)} must be a coroutine function; {remedy}")
    try:
        inspect.signature(value).bind(None, None)
    except TypeError as error:
        raise UsageError(
            f"sending middleware {shown(value)} cannot be called with a call and the function that sends it: {error}; "
            f"{remedy}"
        ) from None
    refuse_injections(value, owner=f"sending middleware {shown(value)}")
    return cast(SendMiddleware, value)


class SendLayers:
    """The sending middleware of an app, the first registered outermost."""

    def __init__(self, logger: logging.Logger) -> None:
        self._layers: list[SendMiddleware] = []
        self._logger = logger

    def __bool__(self) -> bool:
        return bool(self._layers)

    def add(self, layer: SendMiddleware) -> None:
        """Wrap one more layer around later enqueues, within those that were added before."""
        self._layers.append(layer)

    async def send(self, jobs: Sequence[NewJob], store: Store) -> list[EnqueueResult]:
        """Store jobs within the layers of each of them, and return the results of the storage.

        An exception of a layer before the request is sent prevents it. After that the answer of the storage counts:
        what a layer raises or swallows has no effect.

        Raises:
            UsageError: a layer returns without `proceed`, calls it twice, or sets an invalid header.
            StorageError: see `Storage.enqueue`.
        """
        request = _Request(jobs, store)
        layers = tuple(self._layers)
        try:
            if len(request.calls) == 1:
                await _through(layers, request.calls[0], request.send)
            else:
                await _all_through(layers, request)
        except Exception as error:
            if not request.begun:
                raise
            if not request.answered:
                raise _unknown() from error
            if error is not request.error:
                self._logger.exception("sending middleware raised after the storage had answered; this has no effect")
        finally:
            request.closed = True
        if request.error is not None:
            raise request.error
        if not request.begun:
            raise UsageError("sending middleware swallowed an exception, and no job was stored; let exceptions pass")
        if not request.answered:
            raise _unknown()
        return request.results


class _Request:
    """One request to the storage, and its result."""

    def __init__(self, jobs: Sequence[NewJob], store: Store) -> None:
        self.calls = [SendCall(job) for job in jobs]
        self.begun = False
        self.closed = False
        """True if the enqueue has ended: a later `proceed` must not store a job that was reported as not stored."""
        self.answered = False
        self.results: list[EnqueueResult] = []
        self.error: Exception | None = None
        self._jobs = jobs
        self._store = store

    def check_open(self) -> None:
        """Raise UsageError if the enqueue has ended."""
        if self.closed:
            raise UsageError(
                "sending middleware called proceed() after its enqueue had ended; await it in the middleware"
            )

    async def send(self) -> None:
        self.check_open()
        both = zip(self._jobs, self.calls, strict=True)
        try:
            jobs = [structs.replace(job, headers=valid_headers(call.headers)) for job, call in both]
            self.begun = True
            self.results = await self._store(jobs)
        except Exception as error:
            self.error = error
            raise
        finally:
            # Not if it is cancelled: then it is not known whether the jobs were stored.
            self.answered = bool(self.results) or self.error is not None


async def _through(layers: Sequence[SendMiddleware], call: SendCall, send: ProceedSending) -> None:
    if not layers:
        await send()
        return
    layer, inner = layers[0], layers[1:]
    went_on = False

    async def proceed() -> None:
        nonlocal went_on
        if went_on:
            raise UsageError(f"sending middleware {_name(layer)} called proceed() twice; a call is sent once")
        went_on = True
        await _through(inner, call, send)

    await layer(call, proceed)
    if not went_on:
        raise UsageError(
            f"sending middleware {_name(layer)} returned without `await proceed()`, and no job was stored; to refuse a "
            "call, raise an exception"
        )


async def _all_through(layers: Sequence[SendMiddleware], request: _Request) -> None:
    """Run the layers of each call in an asyncio task of its own, and send when all of them have gone through."""
    loop = asyncio.get_running_loop()
    all_ready: asyncio.Future[None] = loop.create_future()
    sent: asyncio.Future[None] = loop.create_future()
    missing = len(request.calls)

    async def arrive() -> None:
        nonlocal missing
        request.check_open()
        missing -= 1
        if not missing:
            all_ready.set_result(None)
        await asyncio.shield(sent)

    tasks = [loop.create_task(_through(layers, call, arrive), name="tenure-sending") for call in request.calls]
    try:
        await asyncio.wait([all_ready, *tasks], return_when=asyncio.FIRST_COMPLETED)
        if all_ready.done():
            try:
                await request.send()
            except Exception as error:
                sent.set_exception(error)
                # If all layers have ended by themselves, nothing awaits it.
                sent.exception()
            else:
                sent.set_result(None)
            await asyncio.wait(tasks)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _unknown() -> StorageUnavailableError:
    return StorageUnavailableError(
        "sending middleware did not wait for the storage, so the job may or may not have been stored"
    )


def _name(layer: SendMiddleware) -> str:
    return getattr(layer, "__qualname__", None) or shown(layer)
