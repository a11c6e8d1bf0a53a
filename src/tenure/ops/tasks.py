"""The tasks of an app, as records for people and programs; arguments as people write them, made into a call's."""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any, cast

from msgspec import Struct

from tenure.client.task import Task
from tenure.core.duration import duration_text, micros


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


def _task_view(task: Task[..., Any], *, implemented: bool) -> TaskView:
    settings = task.settings
    options = {spec.name: getattr(settings, spec.name) for spec in fields(settings) if spec.name != "queue"}
    return TaskView(
        name=task.name,
        queue=task.queue,
        signature=str(task.signature.for_callers),
        help=next(iter((task.__doc__ or "").strip().splitlines()), ""),
        version=task.migrations.version,
        implemented=implemented,
        options={name: _text(value) for name, value in options.items() if value is not None and value != ()},
    )


def _text(value: object) -> str:
    """Return the value of an option as text; of nested options, those that are set."""
    match value:
        case timedelta():
            return duration_text(micros(value))
        case tuple():
            return ",".join(map(_text, cast("tuple[object, ...]", value)))
        case str() | bool() | int() | float():
            return str(value)
        case _ if is_dataclass(value):
            parts = ((spec.name, getattr(value, spec.name)) for spec in fields(value))
            return " ".join(f"{name}={_text(part)}" for name, part in parts if part is not None)
        case _:
            return getattr(value, "__qualname__", None) or str(value)
