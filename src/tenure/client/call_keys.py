"""Sets the job fields that depend on the call's arguments: its keys, rates and fair weight."""

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Literal

from msgspec import structs

from tenure.clock import SECOND
from tenure.core.duration import micros
from tenure.core.job import CollectKey, DebounceKey, Key, MergeKey, NewJob, RateKey, ThrottleKey, UniqueKey
from tenure.errors import ThrottledError
from tenure.options import Collect, KeyTemplate, Rate, TaskOptions, Throttle
from tenure.options.keys import CONCURRENCY, Arguments, KeyReader, evaluate
from tenure.options.tasks import valid_fair_weight
from tenure.storage.protocol import EnqueueResult


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

        def keying(given: KeyTemplate | Literal[False] | None, field: str) -> KeyReader | None:
            if not given:
                return None
            return KeyReader(given, known, field=field, task=task, collects=collect is not None)

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

    def fit(self, job: NewJob, call: Arguments, digest: Callable[[], str]) -> NewJob:
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


def collect_key(task: str, collect: Collect, key: str | None, version: int) -> CollectKey:
    """Return the key under which calls are collected. It includes the payload version, since a job has only one."""
    own = f"{_escaped(task)}%v{version}:{key or ''}" if version > 1 else of_task(task, key)
    return CollectKey(own, micros(collect.delay), collect.max_size, _micros(collect.max_wait))


def of_task(task: str, key: str | None) -> str:
    """Return a key that belongs to a task; the keys of two tasks never collide, even with similar names."""
    return f"{_escaped(task)}:{key or ''}"


def refusal(receipt: EnqueueResult, job: NewJob, *, skipped: bool) -> ThrottledError | None:
    """Return the error of a throttled call, else None. `skipped`: it goes into the handle and is not raised."""
    if receipt.made != "throttled" or job.throttle is None:
        return None
    key = job.throttle.key.removeprefix(of_task(job.task, None))
    return ThrottledError(job.task, key or None, (receipt.retry_in or 0) / SECOND, skipped=skipped)


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
