"""The app: defines tasks, enqueues and finds jobs, and creates workers; users hold one `Tenure` object."""

import functools
import inspect
import logging
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, overload

from tenure.background_loop import PORTAL, BackgroundLoop, LoopRunner
from tenure.client.app_location import AppLocation, locate_app
from tenure.client.codec import Codec, JsonCodec
from tenure.client.compatibility import snapshot
from tenure.client.dead_letters import DeadLetters
from tenure.client.decorators import Decorators, ScheduleDefinition, TaskDefinition
from tenure.client.encoder import CallEncoder
from tenure.client.handle import Job
from tenure.client.job_template import EncodedCall
from tenure.client.jobs import Jobs
from tenure.client.queue import Queue
from tenure.client.router import (
    DefinitionScope,
    Router,
    ScopedSchedule,
    ScopedTask,
    bindings,
    schedules_of,
    valid_router,
)
from tenure.client.schedules import Schedules
from tenure.client.sending import SendMiddleware, valid_send_middleware
from tenure.client.storage_client import StorageClient
from tenure.client.task import AppServices, DeclaredTask, Task
from tenure.client.value_types import TypeHooks, ValueTypes
from tenure.client.workers import Workers
from tenure.clock import Clock, SystemClock, entropy
from tenure.core.check import flag, named, of_kind, several, shown, whole
from tenure.core.duration import Duration
from tenure.core.events import Event
from tenure.core.job import JobRecord, NewJob, Ref
from tenure.core.schedule import Schedule
from tenure.core.size import Size, size
from tenure.core.suggestion import did_you_mean
from tenure.errors import UnknownTaskError, UsageError
from tenure.events.bus import Handlers
from tenure.events.registration import event_class, register
from tenure.handlers.functions import is_async, yields
from tenure.handlers.injection import Provider, needs, provider_of, refuse_injections
from tenure.handlers.middleware import Middleware, valid_middleware
from tenure.health.asgi import DegradedIs, HealthApp
from tenure.health.build import PATIENCE, Threshold, health_app
from tenure.health.process_health import ProcessHealth
from tenure.ids import JobIds
from tenure.metrics import MetricsRegistry
from tenure.options import LeaderElection, TaskOptions, Timing
from tenure.options.schedules import grace_of
from tenure.options.timing import DRAIN
from tenure.options.transactions import TransactionConnection
from tenure.outbox.database import outbox_database
from tenure.outbox.outbox import Outbox
from tenure.runtime import Runtime
from tenure.storage.connections import recognise
from tenure.storage.protocol import EnqueueResult, Storage
from tenure.storage.urls import locate, read
from tenure.webhooks.declaration import Webhook, webhooks_by_name

if TYPE_CHECKING:
    from tenure.worker.scoreboard import Scoreboard
    from tenure.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=Event)
M = TypeVar("M", bound=Middleware)
S = TypeVar("S", bound=SendMiddleware)

DEFAULT_URL = "sqlite:///tenure.db"

Lifespan = Callable[["Tenure"], AbstractAsyncContextManager[Any]]
"""A function of the app that returns the lifespan context manager of one worker."""


class Tenure(Decorators):
    """An app: its tasks, and the storage of their jobs.

    `url`: the storage; if not given, `$TENURE_URL`, else `sqlite:///tenure.db` in the working directory. `name`:
    names the app's event handlers in the storage; two apps on one storage need two names. `defaults`: options for all
    tasks. `codec`: encodes arguments and results as bytes, JSON by default. `types`: further classes of arguments and
    results, each with two functions, one to plain data and one back: `types={Money: (str, Money)}`. `lifespan`: a
    function that takes the app and returns an async context manager (see `contextlib.asynccontextmanager`). Each worker
    enters it before its first claim and leaves it after its last run; the value that it yields is
    `current_job().state`. `outbox`: the PostgreSQL database or the SQLite file of your own transactions, if the queue
    is elsewhere. A call with `options(tx=...)` is stored there, in the table `tenure_outbox`, and workers enqueue it.
    `webhooks`: where recorded events go as signed HTTP requests; see `Webhook`.

    Raises:
        UsageError: the URL names no storage, or an option has an invalid value. The storage is not opened yet.
    """

    _internal = frozenset({"runtime"})

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str = "tenure",
        timing: Timing | None = None,
        defaults: TaskOptions | None = None,
        codec: Codec | None = None,
        types: Mapping[type[Any], TypeHooks] | None = None,
        logger: logging.Logger | None = None,
        storage: Storage | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        side: Callable[[str], LoopRunner] = BackgroundLoop,
        lifespan: "Lifespan | None" = None,
        outbox: str | None = None,
        webhooks: Iterable[Webhook] = (),
    ) -> None:
        if url is not None and storage is not None:
            raise UsageError("url and storage contradict each other; give one of them")
        self.name = named(name, field="name")
        self.timing = Timing() if timing is None else timing
        self.defaults = TaskOptions() if defaults is None else defaults
        self.codec = JsonCodec() if codec is None else _codec(codec)
        of_kind(self.timing, Timing, field="timing", remedy="write timing=Timing.fast()")
        of_kind(self.defaults, TaskOptions, field="defaults", remedy='write defaults=TaskOptions(timeout="5m")')
        self.logger = logger or logging.getLogger("tenure")
        self.tasks: dict[str, Task[..., Any]] = {}
        self.declared: dict[str, DeclaredTask[..., Any]] = {}
        """Tasks that are declared without a handler; those that are implemented here are in `tasks`, too."""
        self._url = storage.url if storage is not None else _url(url)
        self._moved_to: str | None = None
        self._clock: Clock = clock or SystemClock()
        self._rng: Random = rng or entropy()
        self._side: Callable[[str], LoopRunner] = side
        self._metrics = MetricsRegistry()
        self._make_id = JobIds(self._clock, self._rng).make
        self._event_handlers = Handlers()
        self._schedules: dict[str, Schedule] = {}
        self._lifespan = None if lifespan is None else _lifespan(lifespan)
        self._middleware: list[Middleware] = []
        self._overrides: dict[Provider, Provider] = {}
        self.outbox = None if outbox is None else Outbox(outbox_database(outbox), clock=self._clock, logger=self.logger)
        """The outbox, or None."""
        self.webhooks: Mapping[str, Webhook] = webhooks_by_name(webhooks)
        """The webhooks, by name."""
        self._client = StorageClient(
            storage,
            lambda: locate(self._url, clock=clock),
            self.codec,
            rng=self._rng,
            logger=self.logger,
            outbox=self.outbox,
        )
        self._services = AppServices(
            self.timing,
            CallEncoder(self.codec, new_id=self.new_id, logger=self.logger),
            self._client,
            self._event_handlers,
            ValueTypes(types),
            serves_others=not self._url.startswith("memory:"),
        )

    @property
    def storage(self) -> Storage:
        """The storage of the jobs; created on first use, and opened by its users."""
        return self._client.storage

    @property
    def url(self) -> str:
        """The address of the storage, secrets included."""
        return self._url

    def use_url(self, url: str) -> None:
        """Use another storage from here on, in place of the app's own. Call it before the first use of the storage.

        Raises:
            UsageError: the URL names no storage.
        """
        self._url = self._moved_to = _url(url)
        self._client.forget()

    @property
    def _serves_others(self) -> bool:
        return self._services.serves_others

    @property
    def _scope(self) -> DefinitionScope:
        return DefinitionScope(self._services, self._admit, self.defaults)

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def include(self, router: Router) -> None:
        """Include a router: its tasks and event handlers, those added to it later, and all routers that it includes.

        Raises:
            UsageError: `router` is not a Router or is already included; or one of its tasks has a name in use or
                options that do not fit it; or one of its schedules is invalid. Then nothing of it is included.
        """
        valid_router(router).join(self._scope)

    def _admit(self, arrivals: Sequence[ScopedTask], plans: Sequence[ScopedSchedule] = ()) -> None:
        """Add tasks and schedules to this app, all or none of them; all ways to declare them use this method."""
        admitted = bindings(arrivals, tasks=self.tasks, declared=self.declared)
        schedules = schedules_of(plans, admitted, known=self._schedules)
        for task, binding in admitted.items():
            task.bind(binding)
            if isinstance(task, DeclaredTask):
                self.declared[task.name] = task
            else:
                self.tasks[task.name] = task
        self._schedules.update(schedules)

    def _add(self, new: TaskDefinition | None, plan: ScheduleDefinition | None = None) -> None:
        scope = self._scope
        self._admit([] if new is None else [(new, scope)], [] if plan is None else [(plan, scope)])

    def on(self, kind: type[E], *, scope: str = "once") -> Callable[[Callable[[E], object]], Callable[[E], object]]:
        """Register a handler for an event of any process; it is called once per app, in one of its workers.

        With `scope="every"` it is called in each worker process. Handlers may be coroutine functions or plain
        functions; their exceptions are logged and do not affect jobs. Some events, such as `JobStarted`, are recorded
        only on request, per queue: `await app.queue(name).record(JobStarted)`.

        Raises:
            UsageError: `kind` is not an event class, the scope is unknown, or the handler is not callable.
        """
        return register(
            kind, scope=scope, of=Event, add=lambda handler: self._event_handlers.add(kind, handler, scope=scope)
        )

    def off(self, handler: Callable[[E], object], kind: type[E] | None = None) -> bool:
        """Remove an event handler that this app, a router or a task has registered; return True if it was registered.

        `handler`: the function that was given to `on`. `kind`: only its registration for this event class. No call of
        the handler begins in this process after `off` has returned. A call that has begun goes on to its end, so a
        handler may remove itself. The remaining handlers of the event are called. Other processes keep their handlers,
        but each event of scope "once" goes to one process of the app, and this one still takes its share: remove the
        handler in all of them.

        Raises:
            UsageError: `kind` is not an event class.
        """
        return self._event_handlers.remove(handler, None if kind is None else event_class(kind))

    # ── middleware and injection ──────────────────────────────────────────────────────────────────────────────────

    def middleware(self, middleware: M) -> M:
        """Wrap a coroutine function around every run of this app's workers, the first registered outermost.

        `async def layer(call, proceed)` reads or changes `call.args` and `call.kwargs`, awaits `proceed()` at most
        once, and returns the result. An exception that it raises counts as the handler's: `RetryLater`, `Reject` and
        the like work. Exceptions and cancellation of the handler pass through it. It runs on the worker's loop, also
        around plain handlers, and within the run's timeout. Workers created before this call do not use it.

        Raises:
            UsageError: `middleware` is not a coroutine function of two arguments.
        """
        valid_middleware(middleware)
        self._middleware.append(middleware)
        return middleware

    def sending(self, middleware: S) -> S:
        """Wrap a coroutine function around every enqueue of this app in this process, the first registered outermost.

        `async def layer(call, proceed)` reads `call.task`, `call.queue`, `call.id` and `call.size`, changes
        `call.headers`, and awaits `proceed()` once. `proceed` returns when the job is stored. It runs in the caller's
        context, also for the `_sync` methods, so context variables have the caller's values. With `enqueue_many` it is
        called for each call, and the request is sent when all of them await `proceed`, so a layer must not hold a lock
        meanwhile. An exception before that prevents the enqueue; a later one is logged. It is not called for jobs of
        schedules, retries and redrives: a retried or redriven job keeps its headers.

        Raises:
            UsageError: `middleware` is not a coroutine function of two arguments.
        """
        self._client.sending.add(valid_send_middleware(middleware))
        return middleware

    @contextmanager
    def override(self, provider: Provider, replacement: Provider) -> Generator[None]:
        """Replace a provider in all runs of this app that begin within the context; for tests.

        The replacement may be of another kind and may use further providers, but not the one that it replaces.

        Raises:
            UsageError: one of the two is not a provider.
        """
        original, substitute = (provider_of(function, field="override") for function in (provider, replacement))
        needs(substitute, {**self._overrides, original: substitute})
        before = self._overrides.get(original)
        self._overrides[original] = substitute
        try:
            yield
        finally:
            if before is None:
                del self._overrides[original]
            else:
                self._overrides[original] = before

    @contextmanager
    def using(
        self,
        *,
        storage: Storage | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        side: Callable[[str], LoopRunner] | None = None,
        outermost: Middleware | None = None,
        check_wait: Callable[[JobRecord], None] | None = None,
    ) -> Generator[None]:
        """Use another storage, clock and the like within the context; for tests, see `tenure.testing.JobTester`.

        `outermost`: a middleware around all others. `check_wait`: called with a job for which a caller has waited for a
        second; what it raises ends the wait. Workers and reapers keep what was in use when they were created.
        """
        before = self._clock, self._rng, self._side, self._make_id, self._middleware
        self._clock, self._rng = clock or self._clock, rng or self._rng
        self._side = side or self._side
        self._make_id = JobIds(self._clock, self._rng).make
        self._middleware = [*([] if outermost is None else [valid_middleware(outermost)]), *self._middleware]
        try:
            with self._client.using(storage, check_wait):
                yield
        finally:
            self._clock, self._rng, self._side, self._make_id, self._middleware = before

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def enqueue_many(
        self, calls: Iterable[EncodedCall[R]], *, tx: TransactionConnection | None = None
    ) -> list[Job[R]]:
        """Enqueue many calls in one round trip: `app.enqueue_many(add.call(i, i) for i in range(1000))`.

        Of the calls for one queue either all are stored or none. `tx`: a connection whose transaction stores all of
        them or none; see `CallOptions`.

        Raises:
            UsageError: an element is not a call.
            StorageError: the jobs may have been stored or not. The error's `job_ids` lists their ids; enqueueing the
                same calls again creates no second jobs.
        """
        if tx is not None:
            return await self._client.submit_in(recognise(tx), calls)
        return await self._client.submit_many(calls)

    def enqueue_many_sync(
        self, calls: Iterable[EncodedCall[R]], *, tx: TransactionConnection | None = None
    ) -> list[Job[R]]:
        """Call `enqueue_many` from code without a running event loop."""
        if tx is not None:
            return self._client.submit_in_sync(recognise(tx), calls)
        return PORTAL.call(self.enqueue_many(calls), verb="enqueue_many")

    @overload
    def job(self, job_id: str, *, queue: str | None = None) -> Job[Any]: ...
    @overload
    def job(self, job_id: str, task: Task[P, R], *, queue: str | None = None) -> Job[R]: ...
    def job(self, job_id: str, task: Task[Any, Any] | None = None, *, queue: str | None = None) -> Job[Any]:
        """Return the handle of a job by its id, typed by its task; this does not call the storage.

        Without a queue, the queue is the task's. Without both, the first method of the handle that reads or changes
        the job searches all queues, in one call per partition of the storage; it raises `JobNotFoundError` if no queue
        has the job, and `AmbiguousJobError` if several have one with this id.

        Raises:
            UsageError: the id or the queue name is invalid, or `task` is not a Task.
        """
        if task is not None:
            of_kind(task, Task, field="task", remedy="give the task itself, or only the queue: app.job(id, queue=...)")
        default = "" if task is None else task.queue
        job_queue = default if queue is None else named(queue, field="queue")
        access = self._client.access(None if task is None else task.signature)
        return Job(Ref(job_queue, named(job_id, field="id")), access, _in_outbox=self.outbox is not None)

    @property
    def jobs(self) -> Jobs:
        """The jobs of the storage: to list, count, delete and purge."""
        return Jobs(self.opened)

    @property
    def dead(self) -> DeadLetters:
        """The failed jobs: to list, to group by error, to redrive and to purge."""
        return DeadLetters(self.opened)

    @property
    def schedules(self) -> Schedules:
        """The schedules in the storage: to list, put, pause, trigger and remove."""
        return Schedules(self.opened, new_id=self.new_id, handle=self._triggered_job, grace=grace_of(self.timing))

    @property
    def workers(self) -> Workers:
        """The workers in all processes: to pause, resume and stop single ones, and to change their concurrency."""
        return Workers(self.opened)

    def new_id(self) -> str:
        """Return a fresh job id, a UUID of version 7."""
        return self._make_id()

    def _triggered_job(self, receipt: EnqueueResult, job: NewJob) -> Job[Any]:
        known = {**self.declared, **self.tasks}.get(job.task)
        return self._client.triggered(receipt, job, None if known is None else known.signature)

    # ── queues, workers, reapers ──────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: str) -> Queue:
        """Return a queue, to change the settings that all its jobs share."""
        return Queue(self.opened, name)

    def worker(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 10,
        name: str | None = None,
        reaper: bool = True,
        election: LeaderElection | None = LeaderElection(),  # noqa: B008 - frozen
        drain: Duration = DRAIN,
        burst: bool = False,
        max_jobs: int | None = None,
        max_memory: Size | None = None,
        prefetch: int | None = None,
        owner_id: str | None = None,
        scoreboard: "Scoreboard | None" = None,
    ) -> "Worker":
        """Return a worker that runs in this process; start it with `async with`, `start()` or `run()`.

        - `queues`: by default all queues of the app's tasks.
        - `concurrency`: how many jobs run at once.
        - `reaper`: whether the worker also recovers the jobs of dead workers.
        - `drain`: how long runs may continue after a stop.
        - `burst`: end as soon as no job can run now; delays, retries and rates are not waited for.
        - `max_jobs`, `max_memory` ("500MB"): stop claiming once this many jobs have begun, or this process occupies
          that much memory, and end when the runs have ended. The caller starts a new worker.
        - `prefetch`: how many jobs the worker may claim beyond those that it runs. The default is 0, or 100 in all
          under a supervisor. It prefetches only while runs take less than 50 ms, and 10 ms of work at a time; it hands
          back jobs that have not begun after 0.2 s.
        - `incarnation`, `scoreboard`: the owner id and the scoreboard for the runs; both come from a supervisor.

        A thread of this process renews the leases, even while a handler blocks the event loop. A handler that holds the
        GIL (in a call into C) for as long as a lease loses the job to another worker. Under `tenure worker` the
        supervisor renews such a lease.

        Raises:
            UsageError: an option has an invalid value, or a task lacks a migration from an older version.
        """
        if queues is None:
            served = sorted({task.queue for task in self.tasks.values()} or {"default"})
        else:
            served = [named(queue, field="queue") for queue in several(queues, field="queues")]
        if election is not None:
            of_kind(
                election, LeaderElection, field="election", remedy='write election=LeaderElection(ttl="4s"), or None'
            )
        # A process that only enqueues does not import the worker: that is a tenth of the import time.
        from tenure.maintenance.reaper import Sweeper
        from tenure.maintenance.relay import Relay
        from tenure.worker.recycling import RecyclePolicy
        from tenure.worker.worker import Worker

        runtime = self.runtime()
        runtime.check_migrations()
        # The reaper within a worker uses the worker's owner, because both live exactly as long.
        owner = runtime.owner(None if name is None else named(name, field="name"), id_=owner_id)
        return Worker(
            runtime,
            queues=served,
            concurrency=whole(concurrency, field="concurrency", least=1),
            owner=owner,
            reaper=Sweeper(runtime, owner, election).run if flag(reaper, field="reaper") else None,
            relay=None if runtime.outbox is None else Relay(runtime).run,
            drain=drain,
            burst=bool(flag(burst, field="burst")),
            supervised=owner_id is not None,
            scoreboard=scoreboard,
            recycle_policy=RecyclePolicy(
                max_jobs=None if max_jobs is None else whole(max_jobs, field="max_jobs", least=1),
                max_memory=None if max_memory is None else size(max_memory, field="max_memory"),
            ),
            prefetch=None if prefetch is None else whole(prefetch, field="prefetch", least=0, meaning="0 claims none"),
        )

    def health(
        self,
        *,
        token: str | None = None,
        unprotected: bool = False,
        backlog: Threshold = None,
        for_: Duration = PATIENCE,
        degraded_is: DegradedIs = 200,
    ) -> HealthApp:
        """Return an ASGI app with health endpoints: `/live`, `/ready`, `/health/queues`, `/metrics`.

        `token`: the last two endpoints require it; `$TENURE_HTTP_TOKEN` if not given, no token if `unprotected`.
        `backlog`: how many jobs may wait in each queue, or by queue name; a larger backlog for longer than `for_` is
        unhealthy. `degraded_is`: the HTTP status if jobs wait and no live worker serves them.

        Raises:
            UsageError: an option has an invalid value, or no token is given.
        """
        return health_app(
            self.opened,
            timing=lambda: self.timing,
            clock=self._clock,
            queues=lambda: {task.queue for task in self.tasks.values()},
            token=token,
            unprotected=unprotected,
            backlog=backlog,
            for_=for_,
            degraded_is=degraded_is,
            process_health=lambda: ProcessHealth(metrics=self._metrics.totals()),
            outbox=lambda: self.outbox,
        )

    def runtime(self) -> Runtime:
        """Return the runtime that this app gives to its workers and reapers."""
        return Runtime(
            app=self.name,
            storage=self.storage,
            tasks=self.tasks,
            codec=self.codec,
            event_handlers=self._event_handlers,
            timing=self.timing,
            logger=self.logger,
            clock=self._clock,
            metrics=self._metrics,
            rng=self._rng,
            background_loop=self._side,
            schedules=self._schedules,
            middleware=tuple(self._middleware),
            overrides=self._overrides,
            lifespan=None if self._lifespan is None else functools.partial(self._lifespan, self),
            outbox=self.outbox,
            app_location=self._location,
        )

    def _location(self) -> AppLocation | None:
        tasks = self.tasks.values()
        around = [layer for task in tasks for layer in task.middleware]
        return locate_app(self, [*(task.function for task in tasks), *self._middleware, *around], url=self._moved_to)

    # ── the storage ───────────────────────────────────────────────────────────────────────────────────────────────

    async def opened(self) -> Storage:
        """Return the storage, opened.

        Raises:
            StorageError: it cannot be opened, is not a Tenure storage, or has another schema version.
        """
        return await self._client.opened()

    async def close(self) -> None:
        """Close the storage and the outbox. Idempotent; the next use opens it again."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        await self.opened()
        if self.outbox is not None:
            await self.outbox.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def signatures(self) -> dict[str, Any]:
        """Return the signatures and versions of all tasks, as data for a JSON file: see `incompatible`."""
        return snapshot({**self.declared, **self.tasks})

    def find_task(self, name: str) -> Task[..., Any]:
        """Return a task by its name, even if it is only declared here.

        Raises:
            UnknownTaskError: the app has no task of that name.
        """
        known: dict[str, Task[..., Any]] = {**self.declared, **self.tasks}
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            meant = did_you_mean(str(name), sorted(known))
            raise UnknownTaskError(f"task {name!r} is unknown{f'{meant} Known' if meant else '; known'} are: {listed}")
        return known[name]


def _url(value: object) -> str:
    """Return the given storage URL, or the default one; raise UsageError if it is invalid."""
    url = (os.environ.get("TENURE_URL") or DEFAULT_URL) if value is None else value
    return read(url).url


def _codec(codec: Codec) -> Codec:
    if not all(callable(getattr(codec, verb, None)) for verb in ("encode", "decode")):
        raise UsageError(f"codec = {shown(codec)} must have encode(value) and decode(data); give a tenure.Codec")
    return codec


def _lifespan(lifespan: Lifespan) -> Lifespan:
    if not callable(lifespan):
        raise UsageError(f"lifespan = {shown(lifespan)} must be a function of the app, made with asynccontextmanager")
    if yields(lifespan) or is_async(lifespan):
        raise UsageError(
            f"lifespan = {shown(lifespan)} is not an async context manager; decorate it with "
            "contextlib.asynccontextmanager"
        )
    try:
        inspect.signature(lifespan).bind(None)
    except TypeError as error:
        raise UsageError(
            f"lifespan = {shown(lifespan)} cannot be called with the app: {error}; give it one parameter"
        ) from None
    refuse_injections(lifespan, owner=f"lifespan {shown(lifespan)}")
    return lifespan
