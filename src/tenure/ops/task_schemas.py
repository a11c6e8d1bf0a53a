"""The tasks that workers have published: shown, and enqueued without the app's code."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct, structs

from tenure.client.search_tags import SearchTags
from tenure.client.signature import PAYLOAD_LIMIT
from tenure.core.duration import moment
from tenure.core.job import NewJob
from tenure.core.published import PublishedTask
from tenure.errors import PayloadTooLargeError, UsageError
from tenure.ops.schema_check import SchemaProblem, problems
from tenure.storage.protocol import Storage

_encode = msgspec.json.Encoder().encode


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


def published_job(
    task: PublishedTask, arguments: Mapping[str, Any], *, job_id: str, tags: Sequence[str] = ()
) -> NewJob:
    """Return the job of a call, with the task's own options, and the tags of its search fields after `tags`.

    `arguments`: plain data by name that `argument_problems` has no objections to.

    Raises:
        UsageError: the task cannot be enqueued without its code, or a search field cannot be a tag.
        PayloadTooLargeError: the encoded arguments take more than 1 MiB.
    """
    if task.job is None:
        raise UsageError(
            f"task {task.name!r} cannot be enqueued without its code, which it needs for one of its options (keys, "
            "rates, unique, debounce, throttle, collect) or for its codec; enqueue it by the app"
        )
    payload = _encode(arguments)
    if len(payload) > PAYLOAD_LIMIT:
        raise PayloadTooLargeError(task.name, len(payload), PAYLOAD_LIMIT)
    fields: Mapping[str, Any] = (task.arguments or {}).get("properties", {})
    defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
    found = SearchTags(task.name, task.search).added(tuple(tags), {**defaults, **arguments})
    return structs.replace(task.job, id=job_id, payload=payload, tags=found)
