"""Describes a task of an app for consoles that do not have the app's code."""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any, cast

import msgspec
from msgspec import structs

from tenure.client.codec import JsonCodec
from tenure.client.json_schema import schema_of_arguments, schema_of_result
from tenure.client.task import Task
from tenure.core.duration import duration_text, micros
from tenure.core.job import NewJob
from tenure.core.published import PublishedTask
from tenure.core.text import storable

SCHEMA_LIMIT = 64 * 1024
"""The largest schema that is published, in bytes."""

LONGEST_TEXT = 4_096
"""How many characters of the signature and of each option are published."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_encode = msgspec.json.Encoder(order="deterministic").encode


def publication(task: Task[..., Any]) -> tuple[PublishedTask, list[str]]:
    """Return what is published of a task, and why a schema is missing, as texts for the log."""
    missing: list[str] = []

    def schema(what: str, make: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
        try:
            made = make()
            size = len(_encode(made))
        except Exception as error:
            # pydantic and the classes of an app raise errors of their own.
            missing.append(f"the schema of its {what} cannot be made: {error}")
            return None
        if size > SCHEMA_LIMIT:
            missing.append(f"the schema of its {what} has {size:,} bytes, and the limit is {SCHEMA_LIMIT:,}")
            return None
        return made

    signature = task.signature
    published = PublishedTask(
        name=task.name,
        queue=task.queue,
        version=task.migrations.version,
        signature=_shortened(str(signature.for_callers)),
        help=_shortened(help_line(task)),
        options={name: _shortened(text) for name, text in option_texts(task).items()},
        search=task.settings.search or (),
        job=_plain_job(task),
        arguments=schema("arguments", lambda: schema_of_arguments(signature)),
        returns=schema("result", lambda: schema_of_result(signature)),
    )
    digest = hashlib.blake2b(_encode(published), digest_size=16).hexdigest()
    return structs.replace(published, digest=digest), missing


def help_line(task: Task[..., Any]) -> str:
    """Return the first line of the docstring of a task's handler."""
    return next(iter((task.__doc__ or "").strip().splitlines()), "")


def option_texts(task: Task[..., Any]) -> dict[str, str]:
    """Return the options of a task that are set, as text."""
    return {name: _text(value) for name, value in _options(task) if value is not None and value != ()}


def _options(task: Task[..., Any]) -> Iterator[tuple[str, object]]:
    return ((spec.name, getattr(task.settings, spec.name)) for spec in fields(task.settings) if spec.name != "queue")


def _plain_job(task: Task[..., Any]) -> NewJob | None:
    """Return the job of each call without options, if only its id, payload and search tags differ from call to call."""
    template = task.binding.template
    plain = template.keys.plain and template.encoder is not None and type(template.encoder.codec) is JsonCodec
    return template.common if plain else None


def _shortened(text: str) -> str:
    # The address of an object differs between processes.
    text = _ADDRESS.sub("", text)
    return storable(text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 3]}...")


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
