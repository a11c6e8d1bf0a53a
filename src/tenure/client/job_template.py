"""Makes the template of a task's jobs from the task's options, and merges the options of a call into it."""

from msgspec import structs

from tenure.core.check import named, no_others, several, shown
from tenure.core.duration import duration, duration_text, instant, micros
from tenure.core.job import Key, NewJob, Policy
from tenure.core.text import storable
from tenure.errors import UsageError
from tenure.options import (
    SINGLETON,
    TTL,
    CallOptions,
    Collect,
    Retry,
    Stall,
    TaskOptions,
    Timing,
    overlay,
    valid_priority,
    valid_stall,
)
from tenure.options.keys import CONCURRENCY, literal_key
from tenure.options.lifetime import valid_ttl
from tenure.options.merges import valid_unique
from tenure.options.tasks import check_conflicts, valid_concurrency_limit, valid_fair_weight

STEP = 60_000_000
"""One step of priority equals this many microseconds of waiting."""

TAGS = 100
"""The most tags of a job."""

FITTED = frozenset(
    ("concurrency_key", "concurrency_limit", "fair_key", "fair_weight", "unique", "lifo", "throw_on_duplicate")
)
"""The options of a call that are merged over the task's options, because their effect depends on the arguments."""

STRICT_STEP = 10_000_000_000_000
"""One step of a strict task's priority, in microseconds: about four months, more than any waiting."""


def template(name: str, settings: TaskOptions, timing: Timing, *, version: int = 1) -> NewJob:
    """Return the template that all jobs of a task share, with an empty id and payload."""
    priority = settings.priority or 0
    ttl = settings.ttl or TTL()
    return NewJob(
        queue=settings.queue or "default",
        id="",
        task=name,
        payload=b"",
        priority=priority,
        boost=boost(priority, strict=bool(settings.strict)),
        lifo=bool(settings.lifo),
        timeout=None if settings.timeout is None else micros(settings.timeout),
        heartbeat_timeout=None if settings.heartbeat_timeout is None else micros(settings.heartbeat_timeout),
        ttl=None if ttl.max is None else micros(ttl.max),
        keys=(Key(SINGLETON + name),) if settings.singleton else (),
        stall=(settings.stall or Stall()).terms(timing.lease),
        policy=Policy(
            retry=(settings.retry or Retry()).rule(),
            on_worker_lost=settings.on_worker_lost or "retry",
            on_expire=ttl.on_expire or "fail",
            result_ttl=None if settings.result_ttl is None else micros(settings.result_ttl),
            redrive=None if settings.auto_redrive is None else settings.auto_redrive.rule(),
            version=version,
        ),
    )


def laid_over(options: CallOptions, settings: TaskOptions) -> TaskOptions:
    """Merge the `FITTED` options of a call over a task's options.

    Raises:
        UsageError: an option is invalid, or two options contradict each other.
    """
    if FITTED.isdisjoint(options):
        return settings
    changes = dict[str, object]()
    for field in (CONCURRENCY, "fair_key"):
        if field in options:
            changes[field] = literal_key(options[field], field=field)  # type: ignore[literal-required]  # one of its fields
    if "concurrency_limit" in options:
        changes["concurrency_limit"] = valid_concurrency_limit(options["concurrency_limit"])
    if "fair_weight" in options:
        changes["fair_weight"] = valid_fair_weight(options["fair_weight"])
    if "unique" in options:
        changes["unique"] = valid_unique(options["unique"], literal=True)
    if "lifo" in options:
        changes["lifo"] = options["lifo"]
    if "throw_on_duplicate" in options:
        changes["throw_on_duplicate"] = options["throw_on_duplicate"]
    return TaskOptions(**changes).over(settings)  # type: ignore[arg-type]  # TaskOptions refuses invalid values


def at_peace(settings: TaskOptions, options: CallOptions, collect: Collect | None) -> None:
    """Check that a task's options, merged with those of a call, do not contradict each other.

    Raises:
        UsageError: two options contradict each other.
    """
    check_conflicts(settings, collects=collect is not None)
    in_time(settings, options, collect)


def in_time(settings: TaskOptions, options: CallOptions, collect: Collect | None) -> None:
    """Check the timing of a call that is debounced or collected, whose delay sets the job's start.

    Raises:
        UsageError: the call has `delay` or `run_at` as well, or the job would expire before it may start.
    """
    merging = collect or settings.debounce
    if not merging:
        return
    word = "debounce" if collect is None else "collect"
    for other in ("delay", "run_at"):
        if other in options:
            raise UsageError(
                f"{other} and {word} contradict each other: both set the start of the job; give one of them"
            )
    ttl = valid_ttl(options["ttl"]).max if "ttl" in options else None
    if ttl is None and settings.ttl is not None:
        ttl = settings.ttl.max
    _in_time(micros(merging.delay), None if ttl is None else micros(ttl))


def tailored(common: NewJob, options: CallOptions, settings: TaskOptions, timing: Timing) -> NewJob:
    """Return a task's template with the options of a call; the id stays empty unless the options have one.

    Raises:
        UsageError: an option is unknown or invalid, or two options contradict each other.
    """
    no_others(options, CallOptions.__annotations__)
    changes = dict[str, object]()
    if "delay" in options and "run_at" in options:
        raise UsageError("delay and run_at contradict each other; give one of them")
    if "id" in options:
        changes["id"] = named(options["id"], field="id")
    if "queue" in options:
        if settings.singleton:
            raise UsageError(
                f"queue = {shown(options['queue'])}: task {common.task!r} is a singleton, and its key is valid within "
                "one queue only; leave the queue out"
            )
        changes["queue"] = named(options["queue"], field="queue")
    if "delay" in options:
        changes["delay"] = micros(duration(options["delay"], field="delay", zero=True))
    if "run_at" in options:
        changes["run_at"] = instant(options["run_at"], field="run_at")
    if "priority" in options:
        changes["priority"] = priority = valid_priority(options["priority"])
        changes["boost"] = boost(priority, strict=bool(settings.strict))
    if "stall" in options:
        own = valid_stall(options["stall"])
        changes["stall"] = (own if settings.stall is None else overlay(own, settings.stall)).terms(
            timing.lease, pinned=own
        )
    if "tags" in options:
        changes["tags"] = _tags(options["tags"])
    policy = common.policy
    if "ttl" in options:
        own_ttl = valid_ttl(options["ttl"])
        changes["ttl"] = common.ttl if own_ttl.max is None else micros(own_ttl.max)
        policy = structs.replace(policy, on_expire=own_ttl.on_expire or policy.on_expire)
    if "result_ttl" in options:
        policy = structs.replace(policy, result_ttl=micros(duration(options["result_ttl"], field="result_ttl")))
    if "lifo" in options:
        changes["lifo"] = settings.lifo
    job = structs.replace(common, policy=policy, **changes)
    _in_time(job.delay, job.ttl)
    return job


def _in_time(delay: int, ttl: int | None) -> None:
    if ttl is not None and delay >= ttl:
        raise UsageError(
            f"delay = {duration_text(delay)} is not under the ttl of {duration_text(ttl)}: the job would expire "
            "before it may start; "
            "give a longer ttl"
        )


def boost(priority: int, *, strict: bool) -> int:
    """Return how many microseconds a priority moves a job ahead of its time."""
    return priority * (STRICT_STEP if strict else STEP)


def _tags(given: object) -> tuple[str, ...]:
    words = several(given, field="tags")
    if len(words) > TAGS:
        raise UsageError(f"tags has {len(words):,} words, and a job may have {TAGS}; put the rest into its arguments")
    return tuple(_tag(word) for word in words)


def _tag(word: object) -> str:
    if not isinstance(word, str):
        raise UsageError(f"tags has {shown(word)}, which is not a text; write it as one")
    return named(storable(word), field="a tag")
