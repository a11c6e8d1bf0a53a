"""A task: a function with a name, a queue and a policy, and the ways to enqueue a call of it."""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from msgspec import structs

from holdfast.core.check import named
from holdfast.core.duration import duration
from holdfast.core.events import Event, JobEvent
from holdfast.core.job import NewJob, Ref
from holdfast.enqueue import named_key, tailored, template, with_key
from holdfast.errors import UsageError
from holdfast.functions import is_async, same_call
from holdfast.handle import Access, Job
from holdfast.options import CallOptions, Retry, TaskOptions, Timing
from holdfast.options.keys import key_of, keyed
from holdfast.sideloop import PORTAL
from holdfast.signature import Signature

WAIT = 30.0
"""Seconds that `enqueue_and_wait` waits, unless its options say otherwise."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
E = TypeVar("E", bound=JobEvent)
Heard = TypeVar("Heard", bound=Event)


class Registry(Protocol):
    """What a task needs of its app."""

    @property
    def timing(self) -> Timing:
        """The app's timing."""
        ...

    def new_id(self) -> str:
        """Return a fresh job id."""
        ...

    def access(self, signature: Signature | None) -> Access:
        """Return a job's way back to the app."""
        ...

    def encode(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return a call's arguments as bytes."""
        ...

    async def submit(self, calls: "list[Call[Any]]") -> list[Job[Any]]:
        """Enqueue calls in one trip."""
        ...

    async def submit_and_wait(self, call: "Call[R]", wait: timedelta) -> R:
        """Enqueue a call and wait for its result."""
        ...

    async def pause_task(self, name: str, *, paused: bool, by: str | None) -> None:
        """Pause or resume a task in every queue."""
        ...

    def hear(
        self, kind: type[Heard], *, scope: str, task: str | None
    ) -> Callable[[Callable[[Heard], object]], Callable[[Heard], object]]:
        """Return what registers a handler for an event."""
        ...


class Call(Generic[R_co]):
    """One call of a task, encoded and checked, not yet enqueued."""

    def __init__(self, task: "Task[Any, R_co]", job: NewJob) -> None:
        self.task = task
        self.job = job


class Bound(Generic[P, R]):
    """A task with options: the way that every call of it takes into the storage."""

    def __init__(self, task: "Task[P, R]", app: Registry, template: NewJob, options: CallOptions | None = None) -> None:
        self._task = task
        self._app = app
        self._template = template
        self._options = options or CallOptions()
        self._key = named_key(self._options)
        self._wait = duration(self._options.get("wait", WAIT), field="wait")

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Do as `Task.enqueue`, with these options."""
        return (await self._app.submit([self.call(*args, **kwargs)]))[0]

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Do as `Task.enqueue_sync`, with these options."""
        return PORTAL.call(self.enqueue(*args, **kwargs), verb="enqueue")

    async def enqueue_and_wait(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do as `Task.enqueue_and_wait`, with these options."""
        return await self._app.submit_and_wait(self.call(*args, **kwargs), self._wait)

    def enqueue_and_wait_sync(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do as `Task.enqueue_and_wait_sync`, with these options."""
        return PORTAL.call(self.enqueue_and_wait(*args, **kwargs), verb="enqueue_and_wait")

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Do as `Task.call`, with these options."""
        payload = self._app.encode(self._task.signature, args, kwargs)
        job_id = self._template.id or self._app.new_id()
        job = structs.replace(self._template, id=job_id, payload=payload)
        key = self._key or self._task.key_of(args, kwargs)
        return Call(self._task, job if key is None else with_key(job, key, self._options, self._task.settings))


class Task(Generic[P, R]):
    """A function that can be enqueued. Calling it runs the plain function."""

    def __init__(self, app: Registry, function: Callable[P, Any], name: str, settings: TaskOptions) -> None:
        self.name = named(name, field="name")
        self.function = function
        self.settings = settings
        """What was set for it, over the app's defaults."""
        self.is_async = is_async(function)
        self.signature = Signature(name, function)
        self.retry = settings.retry or Retry()
        self.cancel_hook: Callable[P, object] | None = None
        """What `on_cancel` has registered."""
        key = settings.concurrency_key
        self._key = None if key is None else keyed(key, self.signature.parameters, task=self.name)
        self._app = app
        self._template = template(self.name, settings, app.timing)
        self._plain = Bound(self, app, self._template)
        self.__doc__ = function.__doc__

    def __repr__(self) -> str:
        return f"<task {self.name!r} in queue {self.queue!r}>"

    @property
    def queue(self) -> str:
        """The queue its jobs go to."""
        return self._template.queue

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Remember a call of this task. Once this returns, the job reaches a state that you can read.

        Raises:
            UsageError: the arguments do not fit the signature, or cannot be encoded.
            PayloadTooLargeError: they take more than 1 MiB.
            StorageError: the job may have been remembered or not. The error's `job_ids` has its id: enqueueing again
                with `options(id=...)` makes no second job.
        """
        return await self._plain.enqueue(*args, **kwargs)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Do as `enqueue`, for callers without a running loop."""
        return self._plain.enqueue_sync(*args, **kwargs)

    async def enqueue_and_wait(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Enqueue a call, wait until its job is over, and return the result: for 30 s, or as `options(wait=...)` says.

        Raises:
            ResultTimeoutError: it was not over in time, or not even taken in; the error's `job_id` names it.
            StorageError: see `enqueue`; or the storage cannot be asked for the result. Either way the error's `job_ids`
                has the id.
            UsageError, JobError: see `enqueue` and `Job.result`.
        """
        return await self._plain.enqueue_and_wait(*args, **kwargs)

    def enqueue_and_wait_sync(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do as `enqueue_and_wait`, for callers without a running loop."""
        return self._plain.enqueue_and_wait_sync(*args, **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a call for `app.enqueue_many`, which enqueues many in one trip. Its job has an id from here on."""
        return self._plain.call(*args, **kwargs)

    def options(self, **options: Unpack[CallOptions]) -> Bound[P, R]:
        """Return this task with options for the next calls.

        Raises:
            UsageError: an option is unknown or has no valid value, or two contradict each other.
        """
        return Bound(self, self._app, tailored(self._template, options, self.settings, self._app.timing), options)

    def key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Return the concurrency key of a call, as the task's template or function has it; None for none.

        Raises:
            UsageError: the template or the function fails on these arguments.
        """
        if self._key is None:
            return None
        return key_of(self._key, args, kwargs, lambda: self.signature.arguments(args, kwargs))

    async def pause(self, *, by: str | None = None) -> None:
        """Start no more jobs of this task, in any queue; those that run go on, and other tasks' jobs pass."""
        await self._app.pause_task(self.name, paused=True, by=by)

    async def resume(self, *, by: str | None = None) -> None:
        """Start jobs of this task again, in the order in which they stood."""
        await self._app.pause_task(self.name, paused=False, by=by)

    def job(self, job_id: str, *, queue: str | None = None) -> Job[R]:
        """Return the handle of a job of this task by its id; nothing is asked of the storage.

        Raises:
            UsageError: the id or the queue is none that a job can have.
        """
        where = self.queue if queue is None else named(queue, field="queue")
        return Job(Ref(where, named(job_id, field="id")), self._app.access(self.signature))

    def on(self, kind: type[E], *, scope: str = "once") -> Callable[[Callable[[E], object]], Callable[[E], object]]:
        """Register a handler for an event of this task's jobs, once per app or with `scope="every"` in each process.

        Raises:
            UsageError: that is no class of a job's events, or no such scope; or what is registered cannot be called.
        """
        return self._app.hear(kind, scope=scope, task=self.name)

    def on_cancel(self, hook: Callable[P, T]) -> Callable[P, T]:
        """Register what tidies up after a run of this task that was cancelled: `@task.on_cancel`.

        A coroutine function or a plain one, which runs in a thread, called with the same arguments as the handler. It
        is called in the worker whose run ends its job as cancelled, be it that somebody asked for it or that the
        handler raised `Cancel`: after the handler has ended and before the job is over, so `current_job()` is at hand
        and the job still holds its lease, its slot and its keys. It has what is left of the task's `timeout`, but no
        less than half a beat, or 30 s where there is none, and is then stopped like a handler: a coroutine is
        cancelled, a thread is left to itself. What it raises is logged, the traceback in the job's own log, and the
        job ends as cancelled all the same.

        At most once a run, and not for certain: it is missed if the worker dies or loses the lease, for then the reaper
        ends the job; if the handler is a thread that goes on beyond its timeout; and if the worker heard of the cancel
        too late. A job cancelled before its handler began, or one that was completed in spite of it, calls nothing.

        Raises:
            UsageError: it cannot be called, or not with the handler's arguments; or the task has a hook already.
        """
        if self.cancel_hook is not None:
            raise UsageError(f"task {self.name!r} has an on_cancel hook already; call both from one function")
        same_call(hook, self.function, field=f"the on_cancel hook of task {self.name!r}")
        self.cancel_hook = hook
        return hook


class AsyncTask(Task[P, R]):
    """A task whose handler is a coroutine function; it runs on the worker's loop."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the plain function."""
        value: R = await self.function(*args, **kwargs)
        return value


class PlainTask(Task[P, R]):
    """A task whose handler is a plain function; it runs in one of the worker's threads."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the plain function."""
        value: R = self.function(*args, **kwargs)
        return value


class TaskDecorator(Protocol):
    """What `@app.task(...)` gives: a decorator for coroutine functions and plain ones."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine function is a plain one, too; the first match wins
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
