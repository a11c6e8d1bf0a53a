"""The options of a task, of an app or router for all its tasks, and of one call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypedDict, TypeVar, cast, get_args

from tenure.core.check import flag, of_kind, one_of, shown, whole
from tenure.core.duration import Duration
from tenure.core.internal import own_name
from tenure.core.job import OnWorkerLost
from tenure.core.order import FAIR_WEIGHT
from tenure.errors import UsageError
from tenure.handlers.middleware import Middleware, valid_middlewares
from tenure.options.keys import KeyTemplate, key_template
from tenure.options.lifetime import TTL, AutoRedrive, valid_ttl
from tenure.options.merges import Debounce, Throttle, Unique, valid_debounce, valid_throttle, valid_unique
from tenure.options.merging import Layer, fill, overlay
from tenure.options.rate import Rate, Rates, valid_rates
from tenure.options.retry import Retry, valid_retry
from tenure.options.search import valid_search
from tenure.options.seconds import option_duration
from tenure.options.stall import Stall, valid_stall
from tenure.options.transactions import TransactionConnection

Value = TypeVar("Value")
Checked = TypeVar("Checked")

OnUnreachable = Literal["auto", "stop", "continue"]

RunIn = Literal["auto", "process"]

FairWeight = int | Callable[..., int]
"""A whole number from 1 to 1000, or a function of the call's arguments that returns one."""

PRIORITY_RANGE = 500
"""Priorities range from minus this value to this value. This keeps the score of a strict priority below 2^53."""


@dataclass(frozen=True, init=False)
class TaskOptions(Layer):
    """The options of a task, or the defaults of an app or a router for all its tasks. None means "not set here".

    Durations are seconds, a timedelta, or text such as "30s". A key is a template over the call's arguments, such as
    "account:{account_id}", or a function of them. False removes a key, a rate, `unique`, `debounce` or `throttle`
    that an app or a router sets.

    - `queue`: the queue of the task's jobs, "default" by default.
    - `retry`, `stall`: when a failed job is retried, and when a job counts as stalled; see `Retry` and `Stall`.
    - `timeout`: limits one run. `heartbeat_timeout`: limits the time between two heartbeats of the handler itself.
    - `on_worker_lost`: "retry" by default; "fail" for work that must not run twice.
    - `on_unreachable`: what a run does when the storage is unreachable and its lease may have gone to another worker:
      "stop", "continue", or "auto", which stops only runs that hold an exclusive right.
    - `priority`: a whole number from -500 to 500; each step is worth 60 s of waiting. `strict`: each step is worth more
      than any waiting; at priority 0 it has no effect.
    - `ttl`: how long a job may wait before it starts, a `TTL` or a duration.
    - `singleton`: at most one job of the task is active, across all workers.
    - `concurrency_key`: at most `concurrency_limit` jobs of a queue with the same key are active at once (1 by
      default). The limit that a key was given last applies.
    - `result_ttl`: how long a completed job and its result are kept, instead of the queue's retention. Within this
      time, an enqueue with the same id returns the existing job.
    - `auto_redrive`: a rule that puts dead letters back into their queue; see `AutoRedrive`.
    - `middleware`: wraps each run, the first outermost, all inside the app's own.
    - `lifo`: the newest job runs first, before all jobs without `lifo`.
    - `fair_key`: the tenant of a job. The tenants of a queue take turns: a tenant with `fair_weight` 3 gets three jobs
      for each one of a tenant with weight 1.
    - `rate`: how often jobs may start: "10/s", a `Rate`, or several.
    - `unique`: True, a key, or a `Unique`. `throw_on_duplicate`: a call raises `DuplicateJobError` if a job with its id
      or unique key exists already.
    - `debounce`, `throttle`: see `Debounce` and `Throttle`.
    - `run`: where the handler runs. "auto": the event loop for a coroutine function, a thread for a plain function.
      "process": a process of its own, so that a crash of the handler does not affect the worker.
    - `search`: arguments whose values become tags of the job, such as `customer:7`, so that it can be found by them;
      `"order.id"` reads a field of an argument. () removes the fields that an app or a router sets.
    """

    queue: str | None
    retry: Retry | None
    stall: Stall | None
    timeout: timedelta | None
    heartbeat_timeout: timedelta | None
    on_worker_lost: OnWorkerLost | None
    on_unreachable: OnUnreachable | None
    priority: int | None
    strict: bool | None
    ttl: TTL | None
    singleton: bool | None
    concurrency_key: KeyTemplate | Literal[False] | None
    concurrency_limit: int | None
    result_ttl: timedelta | None
    auto_redrive: AutoRedrive | None
    middleware: tuple[Middleware, ...] | None
    lifo: bool | None
    fair_key: KeyTemplate | Literal[False] | None
    fair_weight: FairWeight | None
    rate: tuple[Rate, ...] | Literal[False] | None
    unique: Unique | Literal[False] | None
    throw_on_duplicate: bool | None
    debounce: Debounce | Literal[False] | None
    throttle: Throttle | Literal[False] | None
    run: RunIn | None
    search: tuple[str, ...] | None

    def __init__(
        self,
        *,
        queue: str | None = None,
        retry: Retry | None = None,
        stall: Stall | None = None,
        timeout: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        on_worker_lost: OnWorkerLost | None = None,
        on_unreachable: OnUnreachable | None = None,
        priority: int | None = None,
        strict: bool | None = None,
        ttl: TTL | Duration | None = None,
        singleton: bool | None = None,
        concurrency_key: KeyTemplate | Literal[False] | None = None,
        concurrency_limit: int | None = None,
        result_ttl: Duration | None = None,
        auto_redrive: AutoRedrive | None = None,
        middleware: Sequence[Middleware] | None = None,
        lifo: bool | None = None,
        fair_key: KeyTemplate | Literal[False] | None = None,
        fair_weight: FairWeight | None = None,
        rate: Rates | Literal[False] | None = None,
        unique: Unique | KeyTemplate | bool | None = None,
        throw_on_duplicate: bool | None = None,
        debounce: Debounce | Literal[False] | None = None,
        throttle: Throttle | Literal[False] | None = None,
        run: RunIn | None = None,
        search: Sequence[str] | None = None,
    ) -> None:
        """Set the options that differ from the defaults.

        Raises:
            UsageError: an option is invalid, or two options contradict each other.
        """
        fill(
            self,
            queue=None if queue is None else own_name(queue, field="queue"),
            retry=None if retry is None else valid_retry(retry),
            stall=None if stall is None else valid_stall(stall),
            timeout=None if timeout is None else option_duration(timeout, field="timeout"),
            heartbeat_timeout=(
                None if heartbeat_timeout is None else option_duration(heartbeat_timeout, field="heartbeat_timeout")
            ),
            on_worker_lost=one_of(on_worker_lost, get_args(OnWorkerLost), field="on_worker_lost"),
            on_unreachable=one_of(on_unreachable, get_args(OnUnreachable), field="on_unreachable"),
            priority=None if priority is None else valid_priority(priority),
            strict=flag(strict, field="strict"),
            ttl=None if ttl is None else valid_ttl(ttl),
            singleton=flag(singleton, field="singleton"),
            concurrency_key=_unless_false(concurrency_key, lambda text: key_template(text, field="concurrency_key")),
            concurrency_limit=None if concurrency_limit is None else valid_concurrency_limit(concurrency_limit),
            result_ttl=None if result_ttl is None else option_duration(result_ttl, field="result_ttl"),
            auto_redrive=None
            if auto_redrive is None
            else of_kind(auto_redrive, AutoRedrive, field="auto_redrive", remedy='write AutoRedrive("1h", times=3)'),
            middleware=None if middleware is None else valid_middlewares(middleware),
            lifo=flag(lifo, field="lifo"),
            fair_key=_unless_false(fair_key, lambda text: key_template(text, field="fair_key")),
            fair_weight=None if fair_weight is None else _weighing(fair_weight),
            rate=_unless_false(rate, valid_rates),
            unique=None if unique is None else valid_unique(unique),
            throw_on_duplicate=flag(throw_on_duplicate, field="throw_on_duplicate"),
            debounce=_unless_false(debounce, valid_debounce),
            throttle=_unless_false(throttle, valid_throttle),
            run=one_of(run, get_args(RunIn), field="run"),
            search=None if search is None else valid_search(search),
        )
        check_conflicts(self)

    def over(self, below: "TaskOptions") -> "TaskOptions":
        """Return these options merged over `below`, field by field."""
        return overlay(self, below)


class TaskSettings(TypedDict, total=False):
    """The options of `@app.task(...)` as keyword arguments; `TaskOptions` describes them."""

    queue: str
    retry: Retry
    stall: Stall
    timeout: Duration
    heartbeat_timeout: Duration
    on_worker_lost: OnWorkerLost
    on_unreachable: OnUnreachable
    priority: int
    strict: bool
    ttl: TTL | Duration
    singleton: bool
    concurrency_key: KeyTemplate | Literal[False]
    concurrency_limit: int
    result_ttl: Duration
    auto_redrive: AutoRedrive
    middleware: Sequence[Middleware]
    lifo: bool
    fair_key: KeyTemplate | Literal[False]
    fair_weight: FairWeight
    rate: Rates | Literal[False]
    unique: Unique | KeyTemplate | bool
    throw_on_duplicate: bool
    debounce: Debounce | Literal[False]
    throttle: Throttle | Literal[False]
    run: RunIn
    search: Sequence[str]


class CallOptions(TypedDict, total=False):
    """The options of one call: `task.options(delay="5m").enqueue(...)`. They override the task's own options.

    - `id`: the job's id, unique within its queue. A second enqueue with the same id makes no second job.
    - `delay` (a duration) or `run_at` (an aware datetime): the job does not start before this time.
    - `retry`: the numbers of a `Retry`; `on`, `never` and `delay` belong to the task, because a job cannot store them.
    - `tags`: up to 100 words by which the job can be found.
    - `headers`: up to 16 texts by name, 4 KiB together, which the handler reads as `current_job().headers`. A job that
      a handler enqueues inherits the headers of the handler's job; those given here override them.
    - `concurrency_key`, `fair_key`, `unique`: the key itself, not a template. `unique=False`: the call has no key.
    - `tx`: a connection to the queue's database. Its open transaction stores the job when it commits, or not at all. It
      is a psycopg or asyncpg connection, a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection, Django's
      connection, or a sqlite3.Connection.
    - `wait`: how long `enqueue_and_wait` waits, 30 s by default.

    `TaskOptions` describes the other options.
    """

    id: str
    queue: str
    delay: Duration
    run_at: datetime
    priority: int
    retry: Retry
    timeout: Duration
    stall: Stall
    tags: Sequence[str]
    headers: Mapping[str, str]
    ttl: TTL | Duration
    concurrency_key: str
    concurrency_limit: int
    result_ttl: Duration
    wait: Duration
    lifo: bool
    fair_key: str
    fair_weight: int
    unique: Unique | str | bool
    throw_on_duplicate: bool
    tx: TransactionConnection


def valid_priority(priority: object) -> int:
    """Return the priority.

    Raises:
        UsageError: it is not a whole number from -500 to 500.
    """
    return whole(priority, field="priority", least=-PRIORITY_RANGE, most=PRIORITY_RANGE)


def valid_concurrency_limit(limit: object) -> int:
    """Return the number of active jobs that may share a key.

    Raises:
        UsageError: it is not a whole number of at least 1.
    """
    return whole(
        limit, field="concurrency_limit", least=1, meaning="to let none run, pause the task or its queue instead"
    )


def valid_fair_weight(weight: object) -> int:
    """Return the weight of a tenant.

    Raises:
        UsageError: it is not a whole number from 1 to 1000.
    """
    return whole(weight, field="fair_weight", least=1, most=FAIR_WEIGHT)


def check_conflicts(options: TaskOptions, *, collects: bool = False) -> None:
    """Check that no two options contradict each other, set in one place or merged from several.

    Raises:
        UsageError: two options contradict each other.
    """
    merges = {"unique": bool(options.unique), "debounce": bool(options.debounce), "collect": collects}
    names = [name for name, is_set in merges.items() if is_set]
    if len(names) > 1:
        raise UsageError(
            f"{names[0]} and {names[1]} contradict each other: each handles a call whose key is held in its own way; "
            f"give one of them, or switch the inherited one off with {names[0]}=False"
        )
    if names and names != ["unique"]:
        if options.throttle:
            raise UsageError(
                f"throttle and {names[0]} contradict each other: the calls of a key make one job; give one, or switch "
                "the inherited one off with throttle=False"
            )
        if options.throw_on_duplicate:
            raise UsageError(
                f"throw_on_duplicate and {names[0]} contradict each other: a call whose key is held is merged and not "
                "a duplicate; leave it out, or switch the inherited one off with throw_on_duplicate=False"
            )
    if options.search and collects:
        raise UsageError(
            "search and collect contradict each other: a batch has the tags of its first call only; give the calls "
            "tags=[...], or switch the inherited search off with search=()"
        )
    if options.lifo and options.fair_key:
        raise UsageError(
            "lifo and fair_key contradict each other: tenants that take turns have an order of their own; give one, "
            "or switch the inherited one off with lifo=False or fair_key=False"
        )
    if options.lifo and options.strict:
        raise UsageError(
            "lifo and strict contradict each other: a lifo job starts before all other jobs, at any priority; give "
            "one, or switch the inherited one off with lifo=False or strict=False"
        )


def check_fair_weight(settings: TaskOptions, *, weight_is_set: bool) -> None:
    """Check that a `fair_weight` comes with a `fair_key`.

    Raises:
        UsageError: a weight is given without a key.
    """
    if weight_is_set and not settings.fair_key:
        raise UsageError('fair_weight needs a fair_key; give one, fair_key="tenant:{tenant}"')


def _unless_false(value: Value, read: Callable[[Value], Checked]) -> Checked | Literal[False] | None:
    """Return the checked option. None means "not set here"; False removes a value that is set below."""
    if value is None:
        return None
    return False if value is False else read(value)


def _weighing(weight: object) -> FairWeight:
    if isinstance(weight, int):
        return valid_fair_weight(weight)
    if not callable(weight):
        raise UsageError(f"fair_weight = {shown(weight)} must be a whole number from 1 to 1000, or a function")
    return cast(FairWeight, weight)
