"""Defines tasks: a task is a function with a name, a queue and a policy, and methods that enqueue a call of it."""

import functools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, ParamSpec, Protocol, TypeVar, Unpack, overload

from tenure.background_loop import PORTAL
from tenure.client.codec import Codec
from tenure.client.encoder import CallEncoder
from tenure.client.handle import Job
from tenure.client.job_template import EncodedCall, JobTemplate
from tenure.client.migration import Migration, Migrations, PayloadVersions
from tenure.client.signature import Signature
from tenure.client.storage_client import StorageClient, TaskControls
from tenure.client.value_types import ValueTypes
from tenure.core.check import named
from tenure.core.duration import duration
from tenure.core.events import JobEvent
from tenure.core.job import JobRecord, Ref
from tenure.core.public import PublicObject
from tenure.errors import UsageError
from tenure.events.bus import Handlers
from tenure.events.registration import register
from tenure.handlers.functions import check_same_call, is_async
from tenure.handlers.injection import Needs, needs
from tenure.handlers.middleware import Middleware
from tenure.options import CallOptions, Collect, Rate, Retry, TaskOptions, Timing
from tenure.options.documented import lists_options
from tenure.options.tasks import check_fair_weight
from tenure.storage.connections import recognise

WAIT = 30.0
"""Seconds that `enqueue_and_wait` waits by default; the option `wait` overrides it."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
E = TypeVar("E", bound=JobEvent)


@dataclass(frozen=True, eq=False)
class AppServices:
    """What an app gives its tasks and routers; each app has one such object.

    `serves_others`: True if workers in other processes may run the app's jobs.
    """

    timing: Timing
    encoder: CallEncoder
    client: StorageClient
    event_handlers: Handlers
    types: ValueTypes
    serves_others: bool


@dataclass(frozen=True)
class TaskBinding:
    """A task's place in an app: its full name and options there, and the template of its jobs."""

    app: AppServices
    name: str
    settings: TaskOptions
    template: JobTemplate
    around: tuple[Sequence[Middleware], ...] = ()
    """The middleware of the task's routers, the outermost first."""


class Bound(Generic[P, R]):
    """A task with call options, as `task.options(...)` returns it; each of its calls is enqueued with them."""

    def __init__(self, task: "Task[P, R]", options: CallOptions | None = None) -> None:
        self._task = task
        self._options = options or CallOptions()
        self._tx = recognise(self._options["tx"]) if "tx" in self._options else None
        self._wait = duration(self._options.get("wait", WAIT), field="wait")
        self._template = task.template(self._options)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Call `Task.enqueue` with these options."""
        call = self._call(args, kwargs)
        client = self._task.binding.app.client
        if self._tx is None:
            return call.accepted(await client.submit(call))
        [job] = await client.submit_in(self._tx, [call])
        return call.accepted(job)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Call `Task.enqueue_sync` with these options."""
        if self._tx is not None:
            call = self._call(args, kwargs)
            [job] = self._task.binding.app.client.submit_in_sync(self._tx, [call])
            return call.accepted(job)
        return PORTAL.call(self.enqueue(*args, **kwargs), verb="enqueue")

    async def enqueue_and_wait(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `Task.enqueue_and_wait` with these options."""
        if self._tx is not None:
            raise UsageError(
                "tx and enqueue_and_wait contradict each other: the job cannot run before the transaction has ended; "
                "enqueue it, commit, then await its result()"
            )
        return await self._task.binding.app.client.submit_and_wait(self.call(*args, **kwargs), self._wait)

    def enqueue_and_wait_sync(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `Task.enqueue_and_wait_sync` with these options."""
        return PORTAL.call(self.enqueue_and_wait(*args, **kwargs), verb="enqueue_and_wait")

    async def unique_job(self, *args: P.args, **kwargs: P.kwargs) -> Job[R] | None:
        """Call `Task.unique_job` with these options."""
        return await self._task.binding.app.client.unique_job(self.call(*args, **kwargs))

    def unique_job_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R] | None:
        """Call `Task.unique_job_sync` with these options."""
        return PORTAL.call(self.unique_job(*args, **kwargs), verb="unique_job")

    def call(self, *args: P.args, **kwargs: P.kwargs) -> EncodedCall[R]:
        """Call `Task.call` with these options."""
        if self._tx is not None:
            raise UsageError("a call has no transaction of its own; give it to app.enqueue_many(calls, tx=...)")
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> EncodedCall[R]:
        if self._template.encoder is None:
            # The task had no app when these options were given. The app has options of its own.
            self._template = self._task.binding.template.with_options(self._options)
        return self._template.call(args, kwargs)


class Task(PublicObject, Generic[P, R]):
    """A function that can be enqueued. Calling the task runs the plain function.

    A task that is defined on a router gets its full name and options when an app includes the router. It can be
    enqueued from then on.
    """

    _internal = frozenset(
        {
            "belongs_to",
            "bind",
            "binding",
            "binding_in",
            "cancel_hook",
            "decode",
            "hook_needs",
            "is_async",
            "migrations",
            "needs",
            "signature",
            "template",
        }
    )

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
        """The task's options, merged over the defaults of its routers and its app."""
        self.collect = collect
        """How calls of this task are collected into batches; None if they are not."""
        self.is_async = is_async(function)
        self.signature = Signature(name, function, collects=collect is not None)
        self.needs = needs(function)
        """The values that a worker injects into the handler."""
        self.cancel_hook: Callable[P, object] | None = None
        """The hook that `on_cancel` has registered."""
        self.migrations = Migrations(known)
        self.hook_needs = Needs()
        """The values that a worker injects into the `on_cancel` hook."""
        self.retry = settings.retry or Retry()
        self._binding: TaskBinding | None = None
        self._when_bound: list[Callable[[AppServices], None]] = []
        # This reports options that do not fit here, where the task is defined, and not where its router is included.
        self._unbound_template = self._make_template(self.name, settings)
        self._plain = Bound(self)
        self.__doc__ = function.__doc__

    def __repr__(self) -> str:
        return f"<task {self.name!r} in queue {self.queue!r}>"

    @property
    def queue(self) -> str:
        """The queue that the task's jobs go to."""
        return self.settings.queue or "default"

    @property
    def binding(self) -> TaskBinding:
        """The task's binding to its app.

        Raises:
            UsageError: the task belongs to a router that no app includes yet.
        """
        if self._binding is None:
            raise UsageError(
                f"task {self.name!r} belongs to a router that no app includes yet; call app.include(router) first, "
                "for example in the module of the app, and import that module"
            )
        return self._binding

    def belongs_to(self, app: AppServices) -> bool:
        """Return True if this task belongs to the given app."""
        return self._binding is not None and self._binding.app is app

    @property
    def middleware(self) -> tuple[Middleware, ...]:
        """The middleware around the task's runs, inside the app's own: that of its routers, then of its options."""
        around = () if self._binding is None else self._binding.around
        return (*(layer for layers in around for layer in layers), *(self.settings.middleware or ()))

    def binding_in(
        self, app: AppServices, name: str, settings: TaskOptions, around: tuple[Sequence[Middleware], ...] = ()
    ) -> TaskBinding:
        """Return the binding that this task would have in an app, with this name and options.

        Change only the types that the signature knows: to those of the app.

        Raises:
            UsageError: the name is invalid, the options do not fit the task's arguments, or the app cannot decode the
                type of one of these or of the result.
        """
        check_fair_weight(settings, weight_is_set=self.settings.fair_weight is not None)
        name = named(name, field="name")
        self.signature.use(app.types)
        return TaskBinding(app, name, settings, self._make_template(name, settings, app), around)

    def bind(self, binding: TaskBinding) -> None:
        """Bind this task to an app."""
        self.name = self.signature.task = binding.name
        self.settings = binding.settings
        self.retry = binding.settings.retry or Retry()
        self._binding = binding
        for action in self._when_bound:
            action(binding.app)
        self._when_bound.clear()

    def template(self, options: CallOptions) -> JobTemplate:
        """Return the template that calls with these options share.

        Raises:
            UsageError: an option is unknown or invalid, or two options contradict each other.
        """
        if self._binding is None:
            # Check all options now; the template is made again once the task has an app.
            return self._unbound_template.with_options(options)
        return self._binding.template.with_options(options)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a call of this task as a job and return the job's handle.

        Once this returns, the job is stored and reaches a state that you can read. Concurrent calls on one loop share a
        request to the storage; a single call is sent at once. If the awaiting coroutine is cancelled, its job may or
        may not have been stored; the jobs of other callers are not affected.

        Raises:
            UsageError: the arguments do not fit the signature or cannot be encoded, or the task belongs to a router
                that no app includes yet.
            PayloadTooLargeError: the encoded arguments take more than 1 MiB.
            ThrottledError: the call is throttled and made no job; not raised with `on_limit="skip"`.
            DuplicateJobError: a job with this id or unique key exists already, and `throw_on_duplicate` is set.
            StorageError: the job may or may not have been stored. The error's `job_ids` has its id: enqueueing again
                with `options(id=...)` makes no second job.
        """
        call = self._plain.call(*args, **kwargs)
        return call.accepted(await self.binding.app.client.submit(call))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Call `enqueue` from code without a running event loop.

        Raises:
            UsageError: see `enqueue`; or the caller has a running event loop, which this call would block.
            StorageUnavailableError: also if no thread can be started for the call; then nothing was stored.
            PayloadTooLargeError, ThrottledError, DuplicateJobError, StorageError: see `enqueue`.
        """
        return self._plain.enqueue_sync(*args, **kwargs)

    async def enqueue_and_wait(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Enqueue a call, wait until its job has ended, and return the result.

        The wait lasts 30 s at most, or as long as `options(wait=...)` says.

        Raises:
            ResultTimeoutError: the job has not ended in time, or was not even stored in time. The error's `job_id`
                names the job, which may still run.
            StorageError: see `enqueue`; or the storage cannot be read for the result. In both cases the error's
                `job_ids` has the job's id.
            UsageError, JobError: see `enqueue` and `Job.result`.
        """
        return await self._plain.enqueue_and_wait(*args, **kwargs)

    def enqueue_and_wait_sync(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `enqueue_and_wait` from code without a running event loop."""
        return self._plain.enqueue_and_wait_sync(*args, **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> EncodedCall[R]:
        """Return an encoded call for `app.enqueue_many`, which stores many calls in one request.

        The job's id is fixed here: enqueueing the same call twice makes no second job.

        Raises:
            UsageError, PayloadTooLargeError: see `enqueue`.
        """
        return self._plain.call(*args, **kwargs)

    @lists_options(CallOptions, described_by=CallOptions)
    def options(self, **options: Unpack[CallOptions]) -> Bound[P, R]:
        """Return this task with call options: `task.options(delay="5m").enqueue(...)`. See `CallOptions`.

        Raises:
            UsageError: an option is unknown or invalid, or two options contradict each other.
        """
        return Bound(self, options)

    def decode(self, codec: Codec, job: JobRecord) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments to call the handler with, from a payload of the task's own version or an older one.

        Any exception means that the payload cannot be decoded.
        """
        version, upgrade = job.policy.version, None
        if version != self.migrations.version:
            upgrade = functools.partial(self.migrations.upgraded, version=version)
        if job.collected:
            return self.signature.decode_batch(codec, job.payload, job.collected, upgrade)
        return self.signature.decode(codec, job.payload, upgrade)

    async def pause(self, *, by: str | None = None) -> None:
        """Pause this task: start no more of its jobs, in any queue.

        Running jobs go on, and jobs of other tasks still start. `by` names the operator, for the record.

        Raises:
            UsageError: the task belongs to a router that no app includes yet, or `by` is not a string.
            StorageError: the pause may or may not have been stored; it is safe to call again.
        """
        await self.binding.app.client.pause_task(self.name, paused=True, by=by)

    async def resume(self, *, by: str | None = None) -> None:
        """Resume this task: start its jobs again, in the order that they had before the pause.

        Raises:
            UsageError: the task belongs to a router that no app includes yet, or `by` is not a string.
            StorageError: the change may or may not have been stored; it is safe to call again.
        """
        await self.binding.app.client.pause_task(self.name, paused=False, by=by)

    async def unique_job(self, *args: P.args, **kwargs: P.kwargs) -> Job[R] | None:
        """Return the unfinished job that holds the unique key of this call, or None. Nothing is enqueued.

        Cancel or delete that job to free the key. A key that is held for a time (`scope="5m"`) may belong to a job that
        has ended; such a job is not found.

        Raises:
            UsageError: the call has no unique key, or an argument is invalid.
            StorageError: the storage cannot be reached.
        """
        return await Bound(self).unique_job(*args, **kwargs)

    def unique_job_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R] | None:
        """Call `unique_job` from code without a running event loop."""
        return PORTAL.call(self.unique_job(*args, **kwargs), verb="unique_job")

    async def set_rate(self, rate: Rate | str | None, *, by: str | None = None) -> None:
        """Set how many jobs of this task may start per time, in each queue: "10/s", or None for no limit.

        This overrides all rates without a key that the code gives to the task.

        Raises:
            UsageError: `rate` is not a rate, or has a key; or the task belongs to a router that no app includes yet,
                or `by` is not a string.
            StorageError: the rate may or may not have been stored; it is safe to call again.
        """
        await self.binding.app.client.set_task_rate(self.name, rate, by=by)

    async def controls(self) -> TaskControls:
        """Return what operators have set for this task in all queues: its pause and its rate.

        Raises:
            UsageError: the task belongs to a router that no app includes yet.
            StorageError: the storage cannot be reached.
        """
        return await self.binding.app.client.task_controls(self.name)

    def controls_sync(self) -> TaskControls:
        """Call `controls` from code without a running event loop."""
        return PORTAL.call(self.controls(), verb="controls")

    def job(self, job_id: str, *, queue: str | None = None) -> Job[R]:
        """Return the handle of the job of this task with the given id, without a request to the storage.

        Raises:
            UsageError: the id or the queue name is invalid, or the task belongs to a router that no app includes yet.
        """
        job_queue = self.queue if queue is None else named(queue, field="queue")
        return Job(Ref(job_queue, named(job_id, field="id")), self.binding.app.client.access(self.signature))

    def on(self, kind: type[E], *, scope: str = "once") -> Callable[[Callable[[E], object]], Callable[[E], object]]:
        """Register a handler for an event of this task's jobs: `@task.on(JobFailed)`.

        One worker of the app calls the handler for each event; with `scope="every"`, each worker process calls it.

        Raises:
            UsageError: `kind` is not a class of job events, the scope is unknown, or the handler is not callable.
        """

        def take(handler: Callable[[E], object]) -> None:
            if self._binding is None:
                self._when_bound.append(lambda app: app.event_handlers.add(kind, handler, scope=scope, task=self.name))
            else:
                self._binding.app.event_handlers.add(kind, handler, scope=scope, task=self.name)

        return register(kind, scope=scope, of=JobEvent, add=take)

    def on_cancel(self, hook: Callable[P, T]) -> Callable[P, T]:
        """Register a hook that cleans up after a cancelled run of this task: `@task.on_cancel`.

        The hook is a coroutine function, or a plain function, which runs in a thread. It gets the same arguments as
        the handler. The worker calls it when a run ends the job as cancelled: on a cancel request, or because the
        handler raised `Cancel`. The call comes after the handler has ended and before the job is settled, so
        `current_job()` works and the job still holds its lease, its concurrency slot and its keys.

        The hook may take the rest of the task's `timeout`, but at least half a beat; 30 s if the task has no timeout.
        Then it is stopped like a handler: a coroutine is cancelled, a thread is abandoned. An exception from the hook
        is logged, with the traceback in the job's own log, and the job still ends as cancelled.

        The hook runs at most once per run, and it may not run at all: if the worker dies or loses the lease, because
        the reaper then ends the job; if the handler or one of its injected values is a thread that goes on after the
        run was stopped; or if the cancel request reaches the worker too late. The hook does not run for a job that is
        cancelled before its handler begins, nor for a job that completes in spite of the request.

        Raises:
            UsageError: the hook is not callable, or not with the handler's arguments; or the task has a hook already.
        """
        if self.cancel_hook is not None:
            raise UsageError(f"task {self.name!r} has an on_cancel hook already; call both from one function")
        check_same_call(hook, self.signature.for_callers, field=f"the on_cancel hook of task {self.name!r}")
        self.hook_needs = needs(hook)
        self.cancel_hook = hook
        return hook

    def migrate(self, from_version: int) -> Callable[[Migration], Migration]:
        """Register a step that upgrades arguments of one version to the next: `@task.migrate(from_version=1)`.

        The step is a plain function. It takes a dict of the arguments by name, as plain data, and returns such a dict.
        A job of an older version passes through all steps from its own version on, in order, before its arguments are
        checked against the signature. The stored job does not change. If a step raises, the job fails at once as
        *undecodable*.

        Raises:
            UsageError: `from_version` is not between the task's `since` and the version before its `version`, or has
                a step already. The decorator raises it if the step cannot be called with one dict.
        """

        def register(step: Migration) -> Migration:
            self.migrations.add(step, from_version, task=self.name)
            return step

        return register

    def _make_template(self, name: str, settings: TaskOptions, app: AppServices | None = None) -> JobTemplate:
        timing, encoder = (Timing(), None) if app is None else (app.timing, app.encoder)
        return JobTemplate.of_task(
            name, settings, timing, self.signature, encoder, collect=self.collect, version=self.migrations.version
        )


class AsyncTask(Task[P, R]):
    """A task whose handler is a coroutine function, which runs on the worker's event loop."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the plain function. Pass the values that a worker would inject.

        Raises:
            UsageError: an injected value is missing.
        """
        self.signature.check_injected(args, kwargs)
        value: R = await self.function(*args, **kwargs)
        return value


class PlainTask(Task[P, R]):
    """A task whose handler is a plain function, which runs in one of the worker's threads."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the plain function. Pass the values that a worker would inject.

        Raises:
            UsageError: an injected value is missing.
        """
        self.signature.check_injected(args, kwargs)
        value: R = self.function(*args, **kwargs)
        return value


class DeclaredTask(Task[P, R]):
    """A task whose handler is in another app. It is enqueued and awaited like any other task, and never runs here."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> NoReturn:
        """Raise UsageError: a declared task has no handler to call.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"task {self.name!r} is only declared here, its handler runs elsewhere; enqueue it")

    def on_cancel(self, hook: Callable[P, T]) -> Callable[P, T]:
        """Raise UsageError: the hook belongs to the task that implements this one.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"task {self.name!r} is only declared here; register its hook on the result of @app.implement(...)"
        )

    def migrate(self, from_version: int) -> Callable[[Migration], Migration]:
        """Raise UsageError: migrations belong to the task that implements this one.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"task {self.name!r} is only declared here; register its migrations on the result of @app.implement(...)"
        )


class TaskDecorator(Protocol):
    """The decorator that `@app.task(...)` returns, for coroutine functions and plain functions."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine function is a plain one, too; the first match wins
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class DeclareDecorator(Protocol):
    """The decorator that `@app.declare(...)` returns, for functions without a body, async or plain."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> DeclaredTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> DeclaredTask[P, R]: ...


class ImplementDecorator(Protocol[P, R]):
    """The decorator that `@app.implement(declared)` returns, for functions that match the declared signature."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine function is a plain one, too; the first match wins
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
