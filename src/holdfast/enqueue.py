"""What a storage is asked to remember: a task's policy and a call's options, as its jobs will carry them."""

from msgspec import structs

from holdfast.core.check import named, no_others, several, shown
from holdfast.core.duration import duration, instant, micros
from holdfast.core.job import NewJob, Policy
from holdfast.core.text import storable
from holdfast.errors import UsageError
from holdfast.options import CallOptions, Retry, Stall, TaskOptions, Timing, overlay, ranked, stalling

STEP = 60_000_000
"""One step of priority is worth this many microseconds of waiting."""

STRICT_STEP = 10_000_000_000_000
"""One step of a strict task's priority: some four months, so that no waiting makes up for it."""


def template(name: str, settings: TaskOptions, timing: Timing) -> NewJob:
    """Return what all jobs of a task have in common; id and payload are left empty."""
    priority = settings.priority or 0
    return NewJob(
        queue=settings.queue or "default",
        id="",
        task=name,
        payload=b"",
        priority=priority,
        boost=boost(priority, strict=bool(settings.strict)),
        timeout=None if settings.timeout is None else micros(settings.timeout),
        heartbeat_timeout=None if settings.heartbeat_timeout is None else micros(settings.heartbeat_timeout),
        stall=(settings.stall or Stall()).terms(timing.lease),
        policy=Policy(retry=(settings.retry or Retry()).rule(), on_worker_lost=settings.on_worker_lost or "retry"),
    )


def tailored(common: NewJob, options: CallOptions, settings: TaskOptions, timing: Timing) -> NewJob:
    """Return a task's template with the options of a call in it; the id stays empty unless they name one.

    Raises:
        UsageError: an option is unknown or has no valid value, or two contradict each other.
    """
    no_others(options, CallOptions.__annotations__)
    said = dict[str, object]()
    if "delay" in options and "run_at" in options:
        raise UsageError("delay and run_at contradict each other; give one of them")
    if "id" in options:
        said["id"] = named(options["id"], field="id")
    if "queue" in options:
        said["queue"] = named(options["queue"], field="queue")
    if "delay" in options:
        said["delay"] = micros(duration(options["delay"], field="delay", zero=True))
    if "run_at" in options:
        said["run_at"] = instant(options["run_at"], field="run_at")
    if "priority" in options:
        said["priority"] = priority = ranked(options["priority"])
        said["boost"] = boost(priority, strict=bool(settings.strict))
    if "stall" in options:
        own = stalling(options["stall"])
        said["stall"] = (own if settings.stall is None else overlay(own, settings.stall)).terms(
            timing.lease, pinned=own
        )
    if "tags" in options:
        said["tags"] = tuple(_tag(word) for word in several(options["tags"], field="tags"))
    return structs.replace(common, **said)


def boost(priority: int, *, strict: bool) -> int:
    """Return how many microseconds a priority puts a job ahead of its time."""
    return priority * (STRICT_STEP if strict else STEP)


def _tag(word: object) -> str:
    if not isinstance(word, str):
        raise UsageError(f"tags has {shown(word)}, which is no text; write it as one")
    return storable(word)
