"""A task: a function with a name, a queue and a policy, and the ways to enqueue a call of it."""

import functools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, NoReturn, ParamSpec, Protocol, TypeVar, Unpack, overload

from msgspec import Struct, structs

from tenure.background_loop import PORTAL
from tenure.client.call_keys import CallKeys
from tenure.client.codec import Codec
from tenure.client.handle import Job, JobAccess
from tenure.client.job_template import at_peace, in_time, laid_over, tailored, template
from tenure.client.migration import Migration, Migrations, PayloadVersions
from tenure.client.signature import Signature
from tenure.core.check import named
from tenure.core.duration import duration
from tenure.core.events import Event, JobEvent
from tenure.core.job import JobRecord, NewJob, Ref
from tenure.errors import DuplicateJobError, UsageError
from tenure.events.registration import registering
from tenure.handlers.functions import is_async, same_call
from tenure.handlers.injection import Needs, needs
from tenure.handlers.middleware import Middleware
from tenure.options import CallOptions, Collect, Rate, Retry, TaskOptions, Timing
from tenure.options.keys import Arguments
from tenure.options.tasks import tenanted
from tenure.storage.protocol import Storage

WAIT = 30.0
"""Seconds that `enqueue_and_wait` waits, unless its options say otherwise."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
E = TypeVar("E", bound=JobEvent)
Heard = TypeVar("Heard", bound=Event)


class TaskOwner(Protocol):
    """What a task needs of its app."""

    @property
    def timing(self) -> Timing:
        """The app's timing."""
        ...

    @property
    def codec(self) -> Codec:
        """What makes arguments bytes and back."""
        ...

    async def opened(self) -> Storage:
        """Return the app's storage, opened."""
        ...

    def new_id(self) -> str:
        """Return a fresh job id."""
        ...

    def access(self, signature: Signature | None) -> JobAccess:
        """Return a job's way back to the app."""
        ...

    def encode(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return a call's arguments as bytes."""
        ...

    def digest(self, signature: Signature, payload: bytes) -> str:
        """Return what says of a call's encoded arguments which they are."""
        ...

    async def submit(self, call: "EncodedCall[R]") -> Job[R]:
        """Enqueue a call."""
        ...

    async def submit_and_wait(self, call: "EncodedCall[R]", wait: timedelta) -> R:
        """Enqueue a call and wait for its result."""
        ...

    async def pause_task(self, name: str, *, paused: bool, by: str | None) -> None:
        """Pause or resume a task in every queue."""
        ...

    async def rate_task(self, name: str, rate: Rate | str | None, *, by: str | None) -> None:
        """Set how often jobs of a task start, in each queue."""
        ...

    def hear(
        self, kind: type[Heard], handler: Callable[[Heard], object], *, scope: str, task: str | None = None
    ) -> None:
        """Register a handler for an event."""
        ...


@dataclass(frozen=True)
class TaskBinding:
    """What a task has from its app: a name and options, a way into the storage, and what all its jobs share."""

    app: TaskOwner
    name: str
    settings: TaskOptions
    template: NewJob
    fitting: CallKeys
    around: tuple[Sequence[Middleware], ...] = ()
    """The middleware of its routers, the outermost first."""


class EncodedCall(Struct, Generic[R_co], eq=False):
    """One call of a task, encoded and checked, not yet enqueued.

    `throws`: whether it is to be told by an error that its job is there already. `skips`: whether it is not to be told
    so that it was throttled.
    """

    task: "Task[Any, R_co]"
    job: NewJob
    throws: bool = False
    skips: bool = False

    def __repr__(self) -> str:
        return f"Call(task={self.task.name!r}, queue={self.job.queue!r}, id={self.job.id!r})"

    def heeded(self, job: Job[T]) -> Job[T]:
        """Return the handle that this call got, where its caller did not ask to be told by an error.

        Raises:
            ThrottledError: it made no job, and is not one to be skipped.
            DuplicateJobError: it made no job, for one is there, and `throw_on_duplicate` is set.
        """
        if job.refusal is not None and not self.skips:
            raise job.refusal
        if job.made == "duplicate" and self.throws:
            raise DuplicateJobError(self.task.name, job.queue, job.id)
        return job


class Bound(Generic[P, R]):
    """A task with options: the way that every call of it takes into the storage."""

    def __init__(self, task: "Task[P, R]", options: CallOptions | None = None) -> None:
        self._task = task
        self._options = options or CallOptions()
        self._wait = duration(self._options.get("wait", WAIT), field="wait")
        self._standing, self._template, self._fitting = task.tailored(self._options)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Do as `Task.enqueue`, with these options."""
        call = self.call(*args, **kwargs)
        return call.heeded(await self._task.standing.app.submit(call))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Do as `Task.enqueue_sync`, with these options."""
        return PORTAL.call(self.enqueue(*args, **kwargs), verb="enqueue")

    async def enqueue_and_wait(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do as `Task.enqueue_and_wait`, with these options."""
        return await self._task.standing.app.submit_and_wait(self.call(*args, **kwargs), self._wait)

    def enqueue_and_wait_sync(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do as `Task.enqueue_and_wait_sync`, with these options."""
        return PORTAL.call(self.enqueue_and_wait(*args, **kwargs), verb="enqueue_and_wait")

    def call(self, *args: P.args, **kwargs: P.kwargs) -> EncodedCall[R]:
        """Do as `Task.call`, with these options."""
        standing = self._task.standing
        if self._standing is not standing:
            # Made while the task had no app yet, which has options of its own.
            self._standing, self._template, self._fitting = self._task.tailored(self._options)
        fitting = self._fitting
        job = job_of(standing.app, self._task.signature, self._template, fitting, args, kwargs)
        return EncodedCall(self._task, job, fitting.throws, fitting.skips)


def job_of(
    app: TaskOwner,
    signature: Signature,
    common: NewJob,
    fitting: CallKeys,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> NewJob:
    """Return the job of a call, made of what it has in common with others.

    Raises:
        UsageError, PayloadTooLargeError: see `Task.enqueue`.
    """
    payload = app.encode(signature, args, kwargs)
    job = structs.replace(common, id=common.id or app.new_id(), payload=payload)
    if fitting.plain:
        return job
    given = Arguments(args, kwargs, lambda: signature.arguments(args, kwargs))
    return fitting.fit(job, given, lambda: app.digest(signature, payload))


class Task(Generic[P, R]):
    """A function that can be enqueued. Calling it runs the plain function.

    One that was made with a router has its full name and options, and can be enqueued, from when an app includes that.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        settings: TaskOptions,
        known: PayloadVersions,
        collect: Collect | None = None,
    ) -> None:
        self.name = named(name, field="name")
        self.function = function
        self.settings = settings
        """What was set for it, over the app's defaults."""
        self.collect = collect
        """How its calls gather, where they do."""
        self.is_async = is_async(function)
        self.signature = Signature(name, function, collects=collect is not None)
        self.needs = needs(function)
        """What is injected into the handler."""
        self.cancel_hook: Callable[P, object] | None = None
        """What `on_cancel` has registered."""
        self.migrations = Migrations(known)
        self.hook_needs = Needs()
        """What is injected into that."""
        self.retry = settings.retry or Retry()
        self._standing: TaskBinding | None = None
        self._unheard: list[Callable[[TaskOwner], None]] = []
        # What this task cannot have is told of where the task is, not where its router is included.
        self._fitting(settings, name)
        self._plain = Bound(self)
        self.__doc__ = function.__doc__

    def __repr__(self) -> str:
        return f"<task {self.name!r} in queue {self.queue!r}>"

    @property
    def queue(self) -> str:
        """The queue its jobs go to."""
        return self.settings.queue or "default"

    @property
    def standing(self) -> TaskBinding:
        """What it has from its app.

        Raises:
            UsageError: it was made with a router that no app includes yet.
        """
        if self._standing is None:
            raise UsageError(
                f"task {self.name!r} is of a router that no app includes yet; call app.include(router) before, "
                "in the module that makes the app for example, and import that one first"
            )
        return self._standing

    def stands_in(self, app: TaskOwner) -> bool:
        """Say whether it is a task of this app."""
        return self._standing is not None and self._standing.app is app

    @property
    def middleware(self) -> tuple[Middleware, ...]:
        """What is wrapped around its runs, within the app's own: that of its routers, then what its options say."""
        around = () if self._standing is None else self._standing.around
        return (*(one for layers in around for one in layers), *(self.settings.middleware or ()))

    def placed(
        self, app: TaskOwner, name: str, settings: TaskOptions, around: tuple[Sequence[Middleware], ...] = ()
    ) -> TaskBinding:
        """Return what it would have from an app, under this name and with these options; changes nothing.

        Raises:
            UsageError: the name is none that a task can have, or the options do not fit its arguments.
        """
        tenanted(settings, given=self.settings.fair_weight is not None)
        return TaskBinding(
            app,
            named(name, field="name"),
            settings,
            template(name, settings, app.timing, version=self.migrations.version),
            self._fitting(settings, name),
            around,
        )

    def stand(self, standing: TaskBinding) -> None:
        """Become a task of an app."""
        self.name = self.signature.task = standing.name
        self.settings = standing.settings
        self.retry = standing.settings.retry or Retry()
        self._standing = standing
        for hear in self._unheard:
            hear(standing.app)
        self._unheard.clear()

    def tailored(self, options: CallOptions) -> tuple[TaskBinding | None, NewJob, CallKeys]:
        """Return what calls with these options have in common, what fits each, and the standing that is for.

        Raises:
            UsageError: an option is unknown or has no valid value, or two contradict each other.
        """
        if self._standing is None:
            # All that can be wrong with them is told at once; what they give is made anew once there is an app.
            common, timing = template(self.name, self.settings, Timing()), Timing()
        else:
            common, timing = self._standing.template, self._standing.app.timing
        settings = laid_over(options, self.settings)
        if self._standing is not None:
            # Before that its app or its routers may still bring a key.
            tenanted(settings, given="fair_weight" in options)
        if self._standing is None or settings is not self.settings:
            fitting = self._fitting(settings, self.name, options)
        else:
            in_time(settings, options, self.collect)
            fitting = self._standing.fitting
        return self._standing, tailored(common, options, settings, timing), fitting

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Remember a call of this task. Once this returns, the job reaches a state that you can read.

        Callers of one event loop that come together share a trip to the storage; who is alone waits for nobody. Where
        this is cancelled the job may have been remembered or not; the others' are.

        Raises:
            UsageError: the arguments do not fit the signature, or cannot be encoded; or the task is of a router that
                no app includes yet.
            PayloadTooLargeError: they take more than 1 MiB.
            ThrottledError, DuplicateJobError: it made no job, and was to be told so by an error.
            StorageError: the job may have been remembered or not. The error's `job_ids` has its id: enqueueing again
                with `options(id=...)` makes no second job.
        """
        call = self._plain.call(*args, **kwargs)
        return call.heeded(await self.standing.app.submit(call))

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

    def call(self, *args: P.args, **kwargs: P.kwargs) -> EncodedCall[R]:
        """Return a call for `app.enqueue_many`, which enqueues many in one trip. Its job has an id from here on."""
        return self._plain.call(*args, **kwargs)

    def options(self, **options: Unpack[CallOptions]) -> Bound[P, R]:
        """Return this task with options for the next calls.

        Raises:
            UsageError: an option is unknown or has no valid value, or two contradict each other.
        """
        return Bound(self, options)

    def decode(self, codec: Codec, job: JobRecord) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments to call the handler with, of a payload of the task's own version or an older one.

        Any exception means that they cannot be read.
        """
        version, upgrade = job.policy.version, None
        if version != self.migrations.version:
            upgrade = functools.partial(self.migrations.upgraded, version=version)
        if job.gathered:
            return self.signature.gathered(codec, job.payload, job.gathered, upgrade)
        return self.signature.decode(codec, job.payload, upgrade)

    async def pause(self, *, by: str | None = None) -> None:
        """Start no more jobs of this task, in any queue; those that run go on, and other tasks' jobs pass.

        Raises:
            UsageError: the task is of a router that no app includes yet, or `by` is no text.
            StorageError: it may have been set or not; setting it again does no harm.
        """
        await self.standing.app.pause_task(self.name, paused=True, by=by)

    async def resume(self, *, by: str | None = None) -> None:
        """Start jobs of this task again, in the order in which they stood.

        Raises:
            UsageError: the task is of a router that no app includes yet, or `by` is no text.
            StorageError: it may have been set or not; setting it again does no harm.
        """
        await self.standing.app.pause_task(self.name, paused=False, by=by)

    async def set_rate(self, rate: Rate | str | None, *, by: str | None = None) -> None:
        """Let so many of its jobs start in a time, in each queue, whatever the code says: "10/s", None for no limit.

        This is in the place of all its rates that have no key.

        Raises:
            UsageError: it is no rate, or one with a key; or the task is of a router that no app includes yet, or `by`
                is no text.
            StorageError: it may have been set or not; setting it again does no harm.
        """
        await self.standing.app.rate_task(self.name, rate, by=by)

    def job(self, job_id: str, *, queue: str | None = None) -> Job[R]:
        """Return the handle of a job of this task by its id; nothing is asked of the storage.

        Raises:
            UsageError: the id or the queue is none that a job can have.
        """
        where = self.queue if queue is None else named(queue, field="queue")
        return Job(Ref(where, named(job_id, field="id")), self.standing.app.access(self.signature))

    def on(self, kind: type[E], *, scope: str = "once") -> Callable[[Callable[[E], object]], Callable[[E], object]]:
        """Register a handler for an event of this task's jobs, once per app or with `scope="every"` in each process.

        Raises:
            UsageError: that is no class of a job's events, or no such scope; or what is registered cannot be called.
        """

        def take(handler: Callable[[E], object]) -> None:
            if self._standing is None:
                self._unheard.append(lambda app: app.hear(kind, handler, scope=scope, task=self.name))
            else:
                self._standing.app.hear(kind, handler, scope=scope, task=self.name)

        return registering(kind, scope=scope, of=JobEvent, take=take)

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
        ends the job; if the handler, or what it is given, is a thread that goes on after the run has been stopped; and
        if the worker heard of the cancel too late. A job cancelled before its handler began, or one that was completed
        in spite of it, calls nothing.

        Raises:
            UsageError: it cannot be called, or not with the handler's arguments; or the task has a hook already.
        """
        if self.cancel_hook is not None:
            raise UsageError(f"task {self.name!r} has an on_cancel hook already; call both from one function")
        same_call(hook, self.signature.as_called, field=f"the on_cancel hook of task {self.name!r}")
        self.hook_needs = needs(hook)
        self.cancel_hook = hook
        return hook

    def migrate(self, from_version: int) -> Callable[[Migration], Migration]:
        """Register how arguments of one version become those of the next: `@task.migrate(from_version=1)`.

        A plain function from a dict of arguments, plain data by their names, to another. A job of an older version
        takes all the steps from its own on, in order, before its arguments are checked against the signature; in the
        storage it stays as it was. What a step raises fails the job at once, as *undecodable*.

        Raises:
            UsageError: there is no such step below the task's `version` and from its `since` on, or it is there
                already; from the decorator: it cannot be called with a dict alone.
        """

        def register(step: Migration) -> Migration:
            self.migrations.add(step, from_version, task=self.name)
            return step

        return register

    def _fitting(self, settings: TaskOptions, name: str, options: CallOptions | None = None) -> CallKeys:
        at_peace(settings, options or CallOptions(), self.collect)
        return CallKeys(
            name, settings, self.signature.parameters, collect=self.collect, version=self.migrations.version
        )


class AsyncTask(Task[P, R]):
    """A task whose handler is a coroutine function; it runs on the worker's loop."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the plain function; what a worker would inject is to be passed.

        Raises:
            UsageError: it is not.
        """
        self.signature.injectionless(args, kwargs)
        value: R = await self.function(*args, **kwargs)
        return value


class PlainTask(Task[P, R]):
    """A task whose handler is a plain function; it runs in one of the worker's threads."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the plain function; what a worker would inject is to be passed.

        Raises:
            UsageError: it is not.
        """
        self.signature.injectionless(args, kwargs)
        value: R = self.function(*args, **kwargs)
        return value


class DeclaredTask(Task[P, R]):
    """A task whose handler is elsewhere: it is enqueued and awaited like any other, and never run here."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> NoReturn:
        """Refuse: there is nothing here to be called.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"task {self.name!r} is only declared here, its handler runs elsewhere; enqueue it")

    def on_cancel(self, hook: Callable[P, T]) -> Callable[P, T]:
        """Refuse: the hook runs where the handler does.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"task {self.name!r} is only declared here; give its hook to what @app.implement(...) makes")

    def migrate(self, from_version: int) -> Callable[[Migration], Migration]:
        """Refuse: older payloads are upgraded where the handler is.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"task {self.name!r} is only declared here; give its migrations to what @app.implement(...) makes"
        )


class TaskDecorator(Protocol):
    """What `@app.task(...)` gives: a decorator for coroutine functions and plain ones."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine function is a plain one, too; the first match wins
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class DeclareDecorator(Protocol):
    """What `@app.declare(...)` gives: a decorator for functions without a body, coroutine functions and plain ones."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> DeclaredTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> DeclaredTask[P, R]: ...


class ImplementDecorator(Protocol[P, R]):
    """What `@app.implement(declared)` gives: a decorator for functions that take and return what is declared."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine function is a plain one, too; the first match wins
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
