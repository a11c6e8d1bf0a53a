"""Encodes the requests of publish and published for their scripts, and decodes the answers."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from tenure.core.published import PublishedTask, decode_published, encode_body, encode_schemas
from tenure.storage.redis.records import RequestEncoder

DIGEST = 32
"""The length of a digest, which a stored body begins with."""


class _Publish(Struct, omit_defaults=True):
    tasks: list[tuple[str, ...]]
    renewal: bool = False


class _Published(Struct, omit_defaults=True):
    names: Sequence[str] | None = None


def encode_publish(tasks: Sequence[PublishedTask], *, renewal: bool) -> list[bytes]:
    """Return the request to publish tasks."""
    return RequestEncoder().finish(_Publish([_parts(task) for task in tasks], renewal))


def encode_published(names: Sequence[str] | None) -> list[bytes]:
    """Return the request for published tasks."""
    return RequestEncoder().finish(_Published(names))


def decode_all_published(reply: Any) -> list[PublishedTask]:
    """Return the tasks, by name."""
    found = [decode_published(body[DIGEST:], at, schemas) for body, at, schemas in reply]
    return sorted(found, key=lambda task: task.name)


def _parts(task: PublishedTask) -> tuple[str, ...]:
    head = task.name, str(task.version), f"{task.digest:{DIGEST}.{DIGEST}}", encode_body(task)
    schemas = encode_schemas(task)
    return head if schemas is None else (*head, schemas)
