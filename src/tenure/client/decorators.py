"""How tasks and schedules are defined, in an app as in a router."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, Unpack, cast, overload

from tenure.client.collecting import (
    CollectDecorator,
    DeclareCollectDecorator,
    DeclaredCollectTask,
    ImplementCollectDecorator,
    collecting,
)
from tenure.client.migration import PayloadVersions, versions
from tenure.client.schedules import ScheduleDecorator, only_options
from tenure.client.task import (
    AsyncTask,
    DeclareDecorator,
    DeclaredTask,
    ImplementDecorator,
    PlainTask,
    Task,
    TaskDecorator,
)
from tenure.core.check import named, no_others, of_kind, several
from tenure.core.duration import Duration
from tenure.core.schedule import Overlap
from tenure.errors import UsageError
from tenure.handlers.functions import is_async, name_of, runnable
from tenure.handlers.middleware import Middleware
from tenure.options import Collect, TaskOptions, TaskSettings
from tenure.options.merges import collected
from tenure.options.schedules import MissedTicks

P = ParamSpec("P")
R = TypeVar("R")
Item = TypeVar("Item")


@dataclass(frozen=True)
class TaskDefinition:
    """A task as it was defined: with a name, or without, and its own options, over those of a declared one perhaps."""

    task: Task[..., Any]
    given: str | None
    settings: TaskOptions
    implements: DeclaredTask[..., Any] | None = None


@dataclass(frozen=True)
class ScheduleDefinition:
    """A schedule as it was declared: which call it makes, and when; with a name, or without."""

    task: Task[..., Any]
    given: str | None
    args: Sequence[object]
    kwargs: Mapping[str, object]
    when: Mapping[str, Any]


@dataclass(frozen=True)
class TaskDeclaration:
    """What `task` and `declare` were told, before there is a function."""

    given: str | None
    settings: TaskOptions
    known: PayloadVersions
    prefix: str = ""
    collect: Collect | None = None

    def member(self, function: object, *, declared: bool = False) -> TaskDefinition:
        """Return a function as a task, in no app so far.

        Raises:
            UsageError: it is no such function.
        """
        runs = _untaken(function)
        task = _kind(runs, self.collect, declared=declared)(
            runs, name_under(self.given, runs, self.prefix), self.settings, self.known, self.collect
        )
        return TaskDefinition(task, self.given, self.settings)


def definition(
    name: object, options: dict[str, Any], version: object, since: object, *, prefix: str = "", collect: object = None
) -> TaskDeclaration:
    """Return what a task is told to be.

    Raises:
        UsageError: an option is unknown or has no valid value, or the name is none.
    """
    no_others(options, ("name", *TaskSettings.__annotations__, "version", "since"))
    settings = TaskOptions(**options)
    return TaskDeclaration(
        None if name is None else named(name, field="name"),
        settings,
        versions(version, since),
        prefix,
        None if collect is None else collected(collect),
    )


def implementation(function: object, declared: DeclaredTask[..., Any], own: TaskOptions) -> TaskDefinition:
    """Return a function as the task that another declares, with options of its own laid over those declared.

    Raises:
        UsageError: it is no such function, or does not take and return what is declared.
    """
    runs = _untaken(function)
    known = PayloadVersions(declared.migrations.version, declared.migrations.since)
    kind = _kind(runs, declared.collect)
    task = kind(runs, declared.name, own.over(declared.settings), known, declared.collect)
    if (wrong := task.signature.breach(declared.signature)) is not None:
        raise UsageError(f"{name_of(runs)} implements task {declared.name!r}, but {wrong}; let it be as declared")
    return TaskDefinition(task, None, own, declared)


def contract(declared: object) -> None:
    """Make sure that this can be implemented.

    Raises:
        UsageError: it is no declared task.
    """
    of_kind(declared, DeclaredTask, field="declared", remedy="give what @app.declare or @router.declare made")


class Decorators(ABC):
    """The decorators that an app and a router have alike."""

    @property
    def _named_under(self) -> str:
        """What stands before the names of its tasks."""
        return ""

    @abstractmethod
    def _taken(self, one: TaskDefinition | None, plan: ScheduleDefinition | None = None) -> None:
        """Take in a task, a schedule of one that is there, or both: all of it or nothing."""

    @overload
    def task(  # type: ignore[overload-overlap]  # a coroutine function is a plain one, too; the first match wins
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(
        self,
        *,
        collect: Collect,
        name: str | None = None,
        version: int = 1,
        since: int = 1,
        **options: Unpack[TaskSettings],
    ) -> CollectDecorator: ...
    @overload
    def task(
        self, *, name: str | None = None, version: int = 1, since: int = 1, **options: Unpack[TaskSettings]
    ) -> TaskDecorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        version: int = 1,
        since: int = 1,
        collect: Collect | None = None,
        **options: Any,
    ) -> Any:
        """Make a function a task. Its name is `module.function` unless another is given.

        The function may be a coroutine function, which runs on the worker's loop, or a plain one, which runs in a
        thread; a partial or an object with a `__call__` will do. A router's can be enqueued from when an app includes
        it; under its prefix a task without a name is called after its function alone.

        `version`: that of its arguments, carried by each job; raise it when older jobs would not fit any more, and say
        by `task.migrate` how they become what does. Jobs of a newer version are left to newer workers. `since`: the
        oldest version that still has to be understood; what is older fails as *undecodable*.

        `collect`: calls bring one item each and gather in one job, whose function takes the list of them.

        Raises:
            UsageError: an option is unknown or has no valid value, the name is taken, or it is no such function.
        """
        told = definition(name, options, version, since, prefix=self._named_under, collect=collect)

        def make(function: object) -> Task[..., Any]:
            return self._made(told.member(function))

        return make if function is None else make(function)

    @overload
    def declare(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> DeclaredTask[P, R]: ...
    @overload
    def declare(self, function: Callable[P, R], /) -> DeclaredTask[P, R]: ...
    @overload
    def declare(
        self,
        *,
        collect: Collect,
        name: str | None = None,
        version: int = 1,
        since: int = 1,
        **options: Unpack[TaskSettings],
    ) -> DeclareCollectDecorator: ...
    @overload
    def declare(
        self, *, name: str | None = None, version: int = 1, since: int = 1, **options: Unpack[TaskSettings]
    ) -> DeclareDecorator: ...
    def declare(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        version: int = 1,
        since: int = 1,
        collect: Collect | None = None,
        **options: Any,
    ) -> Any:
        """Declare a task whose handler is elsewhere, by a function without a body.

        It is enqueued, awaited and typed like any task. A worker of this app does not know it: it neither serves its
        queue unless told to, nor runs its jobs, which it puts back for other workers. Where the handler is, the same
        declaration is included, with its router, and implemented: `@app.implement(declared)`. With `collect` it takes
        a list, and its calls bring one item each.

        Raises:
            UsageError: see `task`.
        """
        told = definition(name, options, version, since, prefix=self._named_under, collect=collect)

        def make(function: object) -> Task[..., Any]:
            return self._made(told.member(function, declared=True))

        return make if function is None else make(function)

    @overload
    def implement(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]  # first match wins
        self, declared: DeclaredCollectTask[Item, R], *, middleware: Sequence[Middleware] | None = None
    ) -> ImplementCollectDecorator[Item, R]: ...
    @overload
    def implement(
        self, declared: DeclaredTask[P, R], *, middleware: Sequence[Middleware] | None = None
    ) -> ImplementDecorator[P, R]: ...
    def implement(self, declared: DeclaredTask[Any, Any], *, middleware: Sequence[Middleware] | None = None) -> Any:
        """Make a function the handler of a declared task, under its name and with its options and its version.

        `middleware`: what is wrapped around each run, in the place of any that the declaration has.

        Raises:
            UsageError: that is no declared task; from the decorator: it is not declared in this app, or implemented
                already; it is no such function, or one that does not take and return what is declared.
        """
        contract(declared)
        own = TaskOptions(middleware=middleware)

        def make(function: object) -> Any:
            return self._made(implementation(function, declared, own))

        return make

    def cron(
        self,
        pattern: str,
        *,
        tz: str = "UTC",
        missed: MissedTicks = "latest",
        overlap: Overlap = "skip",
        grace: Duration | None = None,
        name: str | None = None,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        **options: Unpack[TaskSettings],
    ) -> ScheduleDecorator:
        """Enqueue a task by the clocks of a zone: `@app.cron("0 4 * * *", tz="Europe/Vienna")`.

        Over a function it makes a task of it, with these options; over a task it adds the schedule, and a task may have
        several. `name` is the schedule's; the task's unless given. `args` and `kwargs`: what each job is called with.
        `missed`: what becomes of ticks that are late by more than `grace`: "skip", "latest", "all" or `All(max=36)`.
        `grace`: 10 s, or longer where the app's timing lets it take longer until a dead leader is followed.
        `overlap`: what becomes of a tick while a job of an earlier one is unfinished: "skip", "queue_one" (one may wait
        beside those that run) or "allow".

        The schedule is put into the storage when a worker or a reaper of this app starts. One that is there keeps its
        last tick, its pause and its history; taking it out of the code does not remove it, `app.schedules.remove` does.

        Raises:
            UsageError: an option has no valid value, the arguments do not fit the function, or the name is taken.
        """
        return self._scheduling(
            options, name, args, kwargs, cron=pattern, tz=tz, missed=missed, overlap=overlap, grace=grace
        )

    def every(
        self,
        interval: Duration,
        *,
        missed: MissedTicks = "latest",
        overlap: Overlap = "skip",
        grace: Duration | None = None,
        name: str | None = None,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        **options: Unpack[TaskSettings],
    ) -> ScheduleDecorator:
        """Enqueue a task each time that a whole number of intervals has passed since 1970: `@app.every("30s")`.

        So no new start shifts its ticks, and they do not drift. All else is as with `cron`.

        Raises:
            UsageError: an option has no valid value, the arguments do not fit the function, or the name is taken.
        """
        return self._scheduling(
            options, name, args, kwargs, every=interval, missed=missed, overlap=overlap, grace=grace
        )

    def _made(self, one: TaskDefinition) -> Task[..., Any]:
        self._taken(one)
        return one.task

    def _scheduling(
        self,
        options: TaskSettings,
        name: str | None,
        args: Sequence[object],
        kwargs: Mapping[str, object] | None,
        **when: Any,
    ) -> ScheduleDecorator:
        only_options(options, ("name", "args", "kwargs", *when))
        given, settings = several(args, field="args"), TaskOptions(**options)
        said = None if name is None else named(name, field="name")

        def declare(function: Any) -> Any:
            one = None
            if not isinstance(function, Task):
                one = TaskDeclaration(None, settings, PayloadVersions(), self._named_under).member(function)
            elif options:
                raise UsageError(f"{function!r} has its options already; give {next(iter(options))} to @app.task")
            task = cast("Task[..., Any]", function) if one is None else one.task
            self._taken(one, ScheduleDefinition(task, said, given, kwargs or {}, when))
            return task

        return declare


def _untaken(function: object) -> Callable[..., Any]:
    if isinstance(function, Task):
        raise UsageError(f"{function!r} is a task already; give its .function, with another name=")
    return runnable(function)


def _kind(
    function: Callable[..., Any], collect: Collect | None = None, *, declared: bool = False
) -> type[Task[..., Any]]:
    if declared:
        return DeclaredTask[..., Any] if collect is None else cast("type[Task[..., Any]]", DeclaredCollectTask)
    if collect is not None:
        return collecting(function)
    return AsyncTask[..., Any] if is_async(function) else PlainTask[..., Any]


def name_under(given: str | None, function: Callable[..., Any], prefix: str) -> str:
    """Return what a task is called: the name it was given, else after its function."""
    if given is not None:
        return prefix + given
    own = name_of(function)
    return prefix + own.rpartition(".")[2] if prefix else own
