"""What workers publish about their tasks, so that a console without the user's code can show and enqueue them."""

from typing import Any

import msgspec
from msgspec import Struct, structs

from tenure.core.job import NewJob

PUBLISH_LIMIT = 20
"""How many tasks one call publishes."""

PUBLISHED_MOST = 2_000
"""How many published tasks a storage keeps; those that were published last."""

PUBLISHED_KEPT = 2_592_000_000_000
"""How long a task is known after its last publication, in microseconds: 30 days."""

RENEWED_WITHIN = 7_200_000_000
"""How long a publication counts as that of a live worker, in microseconds: two hours. Workers renew it each hour."""


class PublishedTask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task as a worker has published it.

    `signature`: the parameters of a call, as text. `help`: the first line of the handler's docstring. `options`: those
    that are set, as text. `search`: the search fields. `job`: the job of a call without options, with an empty id and
    payload; None if other fields of the job depend on the call's arguments, or if they are not encoded as JSON.
    `digest`: a digest of all of this. `arguments`: the JSON Schema of the arguments by name; `returns`: that of the
    result; None if it cannot be made, is too long, or was not asked for. `published`: when a worker
    last published the task, by the storage's clock.
    """

    name: str
    queue: str
    version: int = 1
    signature: str = ""
    help: str = ""
    options: dict[str, str] = {}
    search: tuple[str, ...] = ()
    job: NewJob | None = None
    digest: str = ""
    arguments: dict[str, Any] | None = None
    returns: dict[str, Any] | None = None
    published: int = 0


class TaskSchemas(Struct, frozen=True, omit_defaults=True):
    """The schemas of a published task, which a storage keeps apart from the rest."""

    arguments: dict[str, Any] | None = None
    returns: dict[str, Any] | None = None


def replaces(digest: str, at: int, body: str | bytes, new: PublishedTask, now: int, *, renewal: bool) -> bool:
    """Return True if a publication replaces a stored one, or renews it.

    `digest`, `at`, `body`: of the stored one, which was published at `at`. While a live worker renews it, the higher
    payload version wins, which is a whole number: in a rolling deploy, a worker of the version before may start last.
    Of publications with the same version the later one wins; a renewal is not later than one that it differs from.
    """
    if digest == new.digest or not now - RENEWED_WITHIN < at <= now:
        return True
    version = _version(body)
    return new.version > version if new.version != version else not renewal


def is_known(at: int, now: int) -> bool:
    """Return True if a publication at this instant is recent enough."""
    return at > now - PUBLISHED_KEPT


def without_schemas(task: PublishedTask) -> PublishedTask:
    """Return the task as a list of all tasks shows it."""
    return structs.replace(task, arguments=None, returns=None)


def encode_body(task: PublishedTask) -> str:
    """Return a task without its schemas as JSON text."""
    return _encode(structs.replace(task, arguments=None, returns=None, published=0)).decode()


def encode_schemas(task: PublishedTask) -> str | None:
    """Return the schemas of a task as JSON text; None if it has none."""
    if task.arguments is None and task.returns is None:
        return None
    return _encode(TaskSchemas(task.arguments, task.returns)).decode()


def decode_published(body: str | bytes, at: int, schemas: str | bytes | None = None) -> PublishedTask:
    """Return a task from its parts."""
    found = TaskSchemas() if schemas is None else _schemas(schemas)
    return structs.replace(_body(body), arguments=found.arguments, returns=found.returns, published=at)


def _version(body: str | bytes) -> int:
    try:
        return _body(body).version
    except msgspec.MsgspecError:
        # A damaged one is replaced.
        return 0


_encode = msgspec.json.Encoder().encode
_body = msgspec.json.Decoder(PublishedTask).decode
_schemas = msgspec.json.Decoder(TaskSchemas).decode
