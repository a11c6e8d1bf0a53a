"""New settings of queues and tasks: from the body of a request to the storage, and their entity tags for If-Match."""

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tenure.console.bodies import QueuePatch, RateBody, ReasonBody, TaskPatch
from tenure.console.problems import ProblemError, ProblemPart, from_message
from tenure.console.requests import ConsoleRequest
from tenure.core.check import named
from tenure.core.duration import Duration, duration
from tenure.core.job import RateKey
from tenure.errors import UsageError
from tenure.options import Keep, Rate, Retention, Stall
from tenure.options.rate import rate_key
from tenure.storage.protocol import QUEUE_RATE, TASK_RATE, QueueSurvey, Settings, Survey


@contextmanager
def in_field(name: str) -> Generator[None]:
    """Turn an error of the block into the problem that a field of the body is invalid.

    Raises:
        ProblemError: the block has raised UsageError.
    """
    try:
        yield
    except UsageError as error:
        raise from_message("invalid-body", str(error), errors=[ProblemPart(f"/body/{name}", str(error))]) from error


def queue_change(body: QueuePatch) -> Settings:
    """Return the settings that a body changes.

    Raises:
        ProblemError: a field is invalid, or all are missing.
    """
    _require_some(body)
    values = _shared_change(body, QUEUE_RATE)
    if body.stall is not UNSET:
        with in_field("stall"):
            stall = body.stall
            lease, grace = _span(stall.lease, "lease"), _span(stall.start_grace, "start_grace")
            values["stall"] = Stall(lease, stall.max_stalls, None, grace, stall.renewed).setting()
    if body.retention is not UNSET:
        with in_field("retention"):
            outcomes = {name: getattr(body.retention, name) for name in body.retention.__struct_fields__}
            rules = {name: keep and Keep(keep.age, keep.count) for name, keep in outcomes.items()}
            values["retention"] = Retention(**rules).setting()
    if body.record is not UNSET:
        values["record"] = tuple(dict.fromkeys(body.record))
    if body.lift is not UNSET:
        with in_field("lift"):
            values["lift"] = named(body.lift, field="lift")
    return Settings(**values)


def task_change(task: str, body: TaskPatch) -> Settings:
    """Return the settings that a body changes.

    Raises:
        ProblemError: a field is invalid, or all are missing.
    """
    _require_some(body)
    return Settings(**_shared_change(body, TASK_RATE + task))


def _span(value: Duration | None, field: str) -> timedelta | None:
    """Return a duration. A number means seconds here, without the warning that an option in code gives."""
    return None if value is None else duration(value, field=field, zero=True)


def _require_some(body: QueuePatch | TaskPatch) -> None:
    names = [name for name in body.__struct_fields__ if name != "reason"]
    if all(getattr(body, name) is UNSET for name in names):
        raise ProblemError("invalid-body", "the body changes nothing", f"give one or more of {', '.join(names)}")


def _shared_change(body: QueuePatch | TaskPatch, rate_name: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if body.paused is not UNSET:
        values["paused"] = body.paused
    if body.rate is not UNSET:
        with in_field("rate"):
            values["rate"] = _rate(body.rate, rate_name)
    return values


def _rate(value: str | RateBody | UnsetType | None, name: str) -> RateKey:
    if isinstance(value, RateBody):
        return rate_key(Rate(1, value.every, burst=value.burst), name)
    return rate_key(value, name)


def verb_of(change: Settings) -> str:
    """Return the verb of a change for the audit log: that of the command if one does the same."""
    if change == Settings(paused=change.paused):
        return "pause" if change.paused else "resume"
    if change == Settings(rate=change.rate):
        return "rate"
    return "lift" if change == Settings(lift=change.lift) else "set"


def change_text(body: ReasonBody) -> str | None:
    """Return the new values of a body for the audit log: `paused=true rate=10/s`."""
    texts: list[str] = []
    for name in body.__struct_fields__:
        value: object = getattr(body, name)
        if name not in ("reason", "ended") and value is not UNSET and not (value is None and name != "rate"):
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            texts.append(f"{name}={text}")
    return " ".join(texts) or None


def queue_tag(queue: QueueSurvey) -> str:
    """Return the entity tag of a queue's settings."""
    settings = queue.settings
    return _tag(settings.paused, settings.rate, settings.stall, settings.retention, settings.record)


def task_settings(found: Survey, task: str) -> Settings:
    """Return what operators have set for a task."""
    return Settings(paused=task in found.paused_tasks, rate=found.task_rates.get(task))


def task_tag(settings: Settings) -> str:
    """Return the entity tag of a task's settings."""
    return _tag(settings.paused, settings.rate)


def _tag(paused: bool | None, *values: object) -> str:
    return f'"{hashlib.sha256(msgspec.json.encode([bool(paused), *values])).hexdigest()[:20]}"'


def expected_settings(request: ConsoleRequest, tag: str, settings: Settings) -> Settings | None:
    """Return the settings that a request wants to change, by its `If-Match`; None: those in force, as they are.

    Raises:
        ProblemError: it wants to change others.
    """
    wanted = _matches(request)
    if wanted and tag not in wanted:
        raise settings_changed(tag)
    return settings if wanted else None


def is_repeated(request: ConsoleRequest, tag: str, settings: Settings, change: Settings) -> bool:
    """Return True if a request wants to change other settings than these, but what it wants is in force.

    Then it was probably carried out, and its answer was lost (RFC 9110, 13.1.1). No setting shows that `lift` was.
    """
    wanted = _matches(request)
    in_force = change.lift is None and settings.agrees(settings.under(change), change)
    return bool(wanted) and tag not in wanted and in_force


def _matches(request: ConsoleRequest) -> list[str]:
    """Return the tags that the `If-Match` of a request names; none if any will do."""
    tags = [item.strip() for value in request.headers("if-match") for item in value.split(",")]
    return [] if "*" in tags else tags


def settings_changed(tag: str) -> ProblemError:
    """Return the problem for settings that are not those that the caller has seen."""
    why = f"the settings have changed; their tag is {tag} now"
    return ProblemError(
        "settings-changed",
        why,
        "read them again, and repeat the change with their ETag",
        errors=[ProblemPart("/header/if-match", why)],
        headers=[(b"etag", tag.encode())],
    )
