"""The tasks of an app, as records for people and programs; arguments as people write them, made into a call's."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from tenure.client.publication import help_line, option_texts
from tenure.client.task import Task
from tenure.core.published import PublishedTask


class TaskView(Struct, frozen=True, kw_only=True):
    """A task. `options`: those that are set, as text; `implemented`: the app has its handler, not only a declaration.

    `signature`: the parameters of a call. `help`: the first line of the handler's docstring.
    """

    name: str
    queue: str
    signature: str
    help: str
    version: int
    implemented: bool
    options: dict[str, str]


def task_views(tasks: Iterable[Task[..., Any]], *, implemented: Iterable[str]) -> list[TaskView]:
    """Return the views of tasks, by name. `implemented`: the names of tasks that have a handler."""
    own = frozenset(implemented)
    return [_task_view(task, implemented=task.name in own) for task in sorted(tasks, key=lambda task: task.name)]


def view_of_published(task: PublishedTask) -> TaskView:
    """Return the view of a task that a worker has published."""
    return TaskView(
        name=task.name,
        queue=task.queue,
        signature=task.signature,
        help=task.help,
        version=task.version,
        implemented=True,
        options=task.options,
    )


def _task_view(task: Task[..., Any], *, implemented: bool) -> TaskView:
    return TaskView(
        name=task.name,
        queue=task.queue,
        signature=str(task.signature.for_callers),
        help=help_line(task),
        version=task.migrations.version,
        implemented=implemented,
        options=option_texts(task),
    )
