"""The tasks that workers have published, as answers show them without the app's code."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from tenure.core.duration import moment
from tenure.core.published import PublishedTask
from tenure.ops.schema_check import SchemaProblem, problems
from tenure.storage.protocol import Storage


class JSONSchema(dict[str, Any]):
    """A JSON Schema in an answer. Its fields describe values and are none themselves."""


class PublishedTaskView(Struct, frozen=True, kw_only=True):
    """What a worker has published of a task, last at `published`; see `TaskView`.

    `search`: the arguments by whose values its jobs are found, as `customer:7`. `digest`: differs if anything else here
    does. `enqueueable`: it can be enqueued without the app's code; other tasks have keys that depend on the arguments,
    or a codec of their own. `arguments`: the JSON Schema of the arguments by name, in the answer for one task;
    `returns`: that of the result. Each is null if it has over 64 KiB or cannot be made.
    """

    queue: str
    version: int
    signature: str
    help: str
    options: dict[str, str]
    search: tuple[str, ...]
    digest: str
    published: datetime
    enqueueable: bool
    arguments: dict[str, Any] | None
    returns: dict[str, Any] | None


def published_task_view(task: PublishedTask) -> PublishedTaskView:
    """Return a published task as answers show it."""
    return PublishedTaskView(
        queue=task.queue,
        version=task.version,
        signature=task.signature,
        help=task.help,
        options=task.options,
        search=task.search,
        digest=task.digest,
        published=moment(task.published),
        enqueueable=task.job is not None,
        arguments=None if task.arguments is None else JSONSchema(task.arguments),
        returns=None if task.returns is None else JSONSchema(task.returns),
    )


async def published_task(storage: Storage, name: str) -> PublishedTask | None:
    """Return a task as a worker has published it; None if none has done so for 30 days.

    Raises:
        StorageError: the storage cannot be reached.
    """
    found = await storage.published([name])
    return found[0] if found else None


def argument_problems(task: PublishedTask, arguments: Mapping[str, Any]) -> list[SchemaProblem]:
    """Return what in arguments by name does not fit the published schema; nothing if the task has none."""
    return [] if task.arguments is None else problems(dict(arguments), task.arguments)
