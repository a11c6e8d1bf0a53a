"""Builds the job of a call: the template that a task's calls share, and the fields that depend on arguments."""

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct, structs

from tenure.client.encoder import CallEncoder
from tenure.client.handle import Job
from tenure.client.search_tags import TAGS, SearchTags
from tenure.client.signature import Signature
from tenure.clock import SECOND
from tenure.core.check import named, no_others, several, shown
from tenure.core.duration import duration, duration_text, instant, micros
from tenure.core.internal import own_name
from tenure.core.job import (
    CollectKey,
    DebounceKey,
    Key,
    MergeKey,
    NewJob,
    Policy,
    RateKey,
    ThrottleKey,
    UniqueKey,
)
from tenure.core.order import boost_of
from tenure.core.text import storable
from tenure.errors import DuplicateJobError, ThrottledError, UsageError
from tenure.options import (
    SINGLETON,
    TTL,
    CallOptions,
    Collect,
    KeyTemplate,
    Rate,
    Retry,
    Stall,
    TaskOptions,
    Throttle,
    Timing,
    overlay,
    valid_priority,
    valid_stall,
)
from tenure.options.headers import valid_headers
from tenure.options.keys import CONCURRENCY, Arguments, KeyReader, evaluate, literal_key
from tenure.options.lifetime import valid_ttl
from tenure.options.merges import valid_unique
from tenure.options.retry import valid_call_retry
from tenure.options.tasks import check_conflicts, check_fair_weight, valid_concurrency_limit, valid_fair_weight
from tenure.storage.protocol import EnqueueResult

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

MERGED = frozenset(
    ("concurrency_key", "concurrency_limit", "fair_key", "fair_weight", "unique", "lifo", "throw_on_duplicate")
)
"""The options of a call that are merged over the task's options, because their effect depends on the arguments."""


class EncodedCall(Struct, Generic[R_co], eq=False):
    """One call of a task, encoded and checked, not yet enqueued.

    `throws`: True if the enqueue raises `DuplicateJobError` when a job with this id or unique key exists. `skips`: True
    if it does not raise `ThrottledError` when the call is throttled.
    """

    signature: Signature
    job: NewJob
    throws: bool = False
    skips: bool = False

    def __repr__(self) -> str:
        return f"Call(task={self.signature.task!r}, queue={self.job.queue!r}, id={self.job.id!r})"

    def accepted(self, job: Job[T]) -> Job[T]:
        """Return the handle that this call got, unless the task's options ask for an error instead.

        Raises:
            ThrottledError: the call is throttled and made no job, and `on_limit` of the throttle is not "skip".
            DuplicateJobError: a job with this id or unique key exists already, and `throw_on_duplicate` is set.
        """
        if job.refusal is not None and not self.skips:
            raise job.refusal
        if job.action == "duplicate" and self.throws:
            raise DuplicateJobError(self.signature.task, job.queue, job.id)
        return job


class JobTemplate(Struct, frozen=True, eq=False):
    """What the jobs of a task's calls have in common, with or without options of the call.

    `common`: the job of every call, with an empty payload; its id is empty unless the call's options name one. `keys`:
    sets the fields that depend on the arguments, except the tags that `search` adds. `encoder`: the encoder of the
    task's app; None if the task has no app yet, so that the template is used for checks only. The other fields are
    those of the task.
    """

    common: NewJob
    keys: "CallKeys"
    search: SearchTags | None
    encoder: CallEncoder | None
    signature: Signature
    settings: TaskOptions
    timing: Timing
    collect: Collect | None
    version: int

    @classmethod
    def of_task(
        cls,
        name: str,
        settings: TaskOptions,
        timing: Timing,
        signature: Signature,
        encoder: CallEncoder | None = None,
        *,
        collect: Collect | None = None,
        version: int = 1,
    ) -> "JobTemplate":
        """Return the template of calls without options.

        Raises:
            UsageError: options contradict each other, or a key template or a search field names an argument that the
                task does not take.
        """
        check_conflicts(settings, collects=collect is not None)
        _check_timing(settings, CallOptions(), collect)
        common = _common(name, settings, timing, version=version)
        keys = CallKeys(name, settings, signature.parameters, collect=collect, version=version)
        search = SearchTags(name, settings.search) if settings.search else None
        if search is not None:
            search.check(signature)
        return cls(common, keys, search, encoder, signature, settings, timing, collect, version)

    def with_options(self, options: CallOptions) -> "JobTemplate":
        """Return the template of calls with these options.

        Raises:
            UsageError: an option is unknown or invalid, or two options contradict each other.
        """
        signature, collect, version, keys = self.signature, self.collect, self.version, self.keys
        settings = _merged(options, self.settings)
        if self.encoder is not None:
            # Until the task has an app, a fair_key may still come from its app or its routers.
            check_fair_weight(settings, weight_is_set="fair_weight" in options)
        if settings is not self.settings:
            check_conflicts(settings, collects=collect is not None)
        _check_timing(settings, options, collect)
        if settings is not self.settings:
            keys = CallKeys(self.common.task, settings, signature.parameters, collect=collect, version=version)
        common = _with_options(self.common, options, settings, self.timing)
        return JobTemplate(common, keys, self.search, self.encoder, signature, settings, self.timing, collect, version)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> EncodedCall[Any]:
        """Return a call with these arguments.

        Raises:
            UsageError, PayloadTooLargeError: see `Task.enqueue`.
        """
        common, keys, signature, encoder = self.common, self.keys, self.signature, self.encoder
        if encoder is None:
            raise UsageError(f"task {common.task!r} has no app yet")
        payload = encoder.encode(signature, args, kwargs)
        job = structs.replace(common, id=common.id or encoder.new_id(), payload=payload)
        if not keys.plain:
            arguments = Arguments(args, kwargs, lambda: signature.arguments(args, kwargs))
            job = keys.apply(job, arguments, lambda: encoder.digest(signature, payload))
        if self.search is not None:
            # The arguments as the handler gets them: a date that was passed as a text is a date there.
            decoded = signature.arguments(*signature.decode(encoder.codec, payload))
            job = structs.replace(job, tags=self.search.added(job.tags, decoded))
        return EncodedCall(signature, job, keys.throws, keys.skips)


def collect_key(task: str, collect: Collect, key: str | None, version: int) -> CollectKey:
    """Return the key under which calls are collected. It includes the payload version, since a job has only one."""
    own = f"{_escaped(task)}%v{version}:{key or ''}" if version > 1 else of_task(task, key)
    return CollectKey(own, micros(collect.delay), collect.max_size, _micros(collect.max_wait))


def of_task(task: str, key: str | None) -> str:
    """Return a key that belongs to a task; the keys of two tasks never collide, even with similar names."""
    return f"{_escaped(task)}:{key or ''}"


def refusal(receipt: EnqueueResult, job: NewJob, *, skipped: bool) -> ThrottledError | None:
    """Return the error of a throttled call, else None. `skipped`: it goes into the handle and is not raised."""
    if receipt.action != "throttled" or job.throttle is None:
        return None
    key = job.throttle.key.removeprefix(of_task(job.task, None))
    return ThrottledError(job.task, key or None, (receipt.retry_in or 0) / SECOND, skipped=skipped)


class CallKeys:
    """Sets the keys of a job from its call's arguments, by the options of the task and the call.

    Raises:
        UsageError: a key template names an argument that the task does not take.
    """

    def __init__(
        self,
        task: str,
        options: TaskOptions,
        parameters: Iterable[str],
        *,
        collect: Collect | None = None,
        version: int = 1,
    ) -> None:
        known = tuple(parameters)

        def keying(template: KeyTemplate | Literal[False] | None, field: str) -> KeyReader | None:
            if not template:
                return None
            return KeyReader(template, known, field=field, task=task, collects=collect is not None)

        self._task = task
        self._limit = options.concurrency_limit or 1
        self._concurrency = keying(options.concurrency_key, CONCURRENCY)
        self._fair = keying(options.fair_key, "fair_key")
        self._weight = options.fair_weight or 1
        self._unique = options.unique or None
        self._debounce = options.debounce or None
        self._collect = collect
        self._version = version
        self._throttle = options.throttle or None
        merge = self._unique or self._debounce or collect
        self._merge = keying(merge.key if merge else None, _field(options, collect))
        self._throttled = keying(options.throttle.key if options.throttle else None, "throttle")
        self._rates = [(rate, name, keying(rate.key, "rate")) for rate, name in _named(options.rate or (), task)]
        self.plain = not (self._concurrency or self._fair or self._rates or merge or self._throttle)
        """True if no field of the job depends on the call's arguments."""
        self.throws = bool(options.throw_on_duplicate)
        """True if a call raises `DuplicateJobError` when a job with its id or unique key exists already."""
        self.skips = self._throttle is not None and self._throttle.on_limit == "skip"
        """True if a throttled call returns a handle instead of raising `ThrottledError`."""

    def apply(self, job: NewJob, call: Arguments, digest: Callable[[], str]) -> NewJob:
        """Return the job with the keys and the weight of its call. `digest` returns a digest of the arguments.

        Raises:
            UsageError: a template or a function fails on these arguments, or makes an invalid key or weight.
        """
        changes = dict[str, object]()
        if self._concurrency is not None and (name := self._concurrency.key(call)) is not None:
            changes["keys"] = (*job.keys, Key(name, self._limit))
        if self._fair is not None and (tenant := self._fair.key(call)) is not None:
            weight = self._weight
            changes["fair_key"] = tenant
            changes["weight"] = (
                weight if isinstance(weight, int) else valid_fair_weight(evaluate(weight, call, field="fair_weight"))
            )
        if self._rates:
            changes["rates"] = tuple(
                rate for rate_keying in self._rates if (rate := self._rate(*rate_keying, call)) is not None
            )
        if self._unique or self._debounce or self._collect:
            changes["merge"] = self._merge_key(call, digest)
        if self._throttle is not None:
            changes["throttle"] = self._throttle_key(self._throttle, call)
        return structs.replace(job, **changes) if changes else job

    def _rate(self, rate: Rate, name: str, keying: KeyReader | None, call: Arguments) -> RateKey | None:
        if keying is None:
            return rate.named(name)
        key = keying.key(call)
        return None if key is None else rate.named(name + key)

    def _merge_key(self, call: Arguments, digest: Callable[[], str]) -> MergeKey | None:
        key = None if self._merge is None else self._merge.key(call)
        if self._merge is not None and key is None:
            return None
        if self._unique is not None:
            scope, name = self._unique.scope or "unfinished", f"{self._task}:{digest()}" if key is None else key
            if isinstance(scope, timedelta):
                return UniqueKey(name, window=micros(scope))
            return UniqueKey(name, scope)
        if self._debounce is not None:
            return DebounceKey(of_task(self._task, key), micros(self._debounce.delay), _micros(self._debounce.max_wait))
        return None if self._collect is None else collect_key(self._task, self._collect, key, self._version)

    def _throttle_key(self, throttle: Throttle, call: Arguments) -> ThrottleKey | None:
        key = None if self._throttled is None else self._throttled.key(call)
        if self._throttled is not None and key is None:
            return None
        return ThrottleKey(of_task(self._task, key), throttle.max, micros(throttle.window))


def _common(name: str, settings: TaskOptions, timing: Timing, *, version: int = 1) -> NewJob:
    """Return the job that all calls of a task share, with an empty id and payload."""
    priority = settings.priority or 0
    ttl = settings.ttl or TTL()
    return NewJob(
        queue=settings.queue or "default",
        id="",
        task=name,
        payload=b"",
        priority=priority,
        boost=boost_of(priority, strict=bool(settings.strict)),
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


def _merged(options: CallOptions, settings: TaskOptions) -> TaskOptions:
    """Merge the `MERGED` options of a call over a task's options.

    Raises:
        UsageError: an option is invalid, or two options contradict each other.
    """
    if MERGED.isdisjoint(options):
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


def _check_timing(settings: TaskOptions, options: CallOptions, collect: Collect | None) -> None:
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
    _check_ttl(micros(merging.delay), None if ttl is None else micros(ttl))


def _with_options(common: NewJob, options: CallOptions, settings: TaskOptions, timing: Timing) -> NewJob:
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
        changes["queue"] = own_name(options["queue"], field="queue")
    if "delay" in options:
        changes["delay"] = micros(duration(options["delay"], field="delay", zero=True))
    if "run_at" in options:
        changes["run_at"] = instant(options["run_at"], field="run_at")
    if "priority" in options:
        changes["priority"] = priority = valid_priority(options["priority"])
        changes["boost"] = boost_of(priority, strict=bool(settings.strict))
    if "stall" in options:
        own = valid_stall(options["stall"])
        changes["stall"] = (own if settings.stall is None else overlay(own, settings.stall)).terms(
            timing.lease, pinned=own
        )
    if "timeout" in options:
        changes["timeout"] = micros(duration(options["timeout"], field="timeout"))
    if "tags" in options:
        changes["tags"] = _tags(options["tags"])
    if "headers" in options:
        changes["headers"] = valid_headers(options["headers"])
    policy = common.policy
    if "ttl" in options:
        own_ttl = valid_ttl(options["ttl"])
        changes["ttl"] = common.ttl if own_ttl.max is None else micros(own_ttl.max)
        policy = structs.replace(policy, on_expire=own_ttl.on_expire or policy.on_expire)
    if "retry" in options:
        own_retry = valid_call_retry(options["retry"])
        merged = own_retry if settings.retry is None else overlay(own_retry, settings.retry)
        policy = structs.replace(policy, retry=merged.rule(pinned=own_retry))
    if "result_ttl" in options:
        policy = structs.replace(policy, result_ttl=micros(duration(options["result_ttl"], field="result_ttl")))
    if "lifo" in options:
        changes["lifo"] = settings.lifo
    job = structs.replace(common, policy=policy, **changes)
    _check_ttl(job.delay, job.ttl)
    return job


def _check_ttl(delay: int, ttl: int | None) -> None:
    if ttl is not None and delay >= ttl:
        raise UsageError(
            f"delay = {duration_text(delay)} is not under the ttl of {duration_text(ttl)}: the job would expire "
            "before it may start; "
            "give a longer ttl"
        )


def _tags(value: object) -> tuple[str, ...]:
    words = several(value, field="tags")
    if len(words) > TAGS:
        raise UsageError(f"tags has {len(words):,} words, and a job may have {TAGS}; put the rest into its arguments")
    return tuple(_tag(word) for word in words)


def _tag(word: object) -> str:
    if not isinstance(word, str):
        raise UsageError(f"tags has {shown(word)}, which is not a text; write it as one")
    return named(storable(word), field="a tag")


def _escaped(task: str) -> str:
    return task.replace("%", "%25").replace(":", "%3A")


def _named(rates: Iterable[Rate], task: str) -> Iterable[tuple[Rate, str]]:
    """Yield rates, the fastest first, each with its name in the queue; for a rate with a key, the name's prefix."""
    used_keys = set[KeyTemplate | None]()
    for rate in rates:
        # If several rates have the same key, each needs a name of its own.
        kind = f"/{rate.interval}" if rate.key in used_keys else ""
        used_keys.add(rate.key)
        yield rate, f"task{kind}:{task}" if rate.key is None else f"key{kind}:"


def _field(options: TaskOptions, collect: Collect | None) -> str:
    if options.unique:
        return "unique"
    return "collect" if collect is not None else "debounce"


def _micros(length: timedelta | None) -> int | None:
    return None if length is None else micros(length)
