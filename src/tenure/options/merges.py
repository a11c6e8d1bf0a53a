"""Options that decide whether a call makes a job of its own: unique, debounce, throttle and collect."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

from tenure.core.check import of_kind, one_of, shown, whole
from tenure.core.duration import Duration, duration_text, micros
from tenure.core.job import UniqueScope
from tenure.errors import UsageError
from tenure.options.keys import KeyTemplate, key_template, literal_key
from tenure.options.merging import NestedOptions, fill
from tenure.options.seconds import option_duration

OnLimit = Literal["raise", "skip"]

MOST_COLLECTED = 10_000
"""The most calls that one job may collect."""


@dataclass(frozen=True, init=False)
class Unique(NestedOptions):
    """At most one job of a queue holds a key. A call whose key is held makes no job and gets the holder's handle.

    `key`: a template over the arguments or a function of them. Without a key, calls of the task with equal arguments
    share one. `scope`: how long a job holds the key: "unfinished" (the default) until the job has ended, including its
    retries; "queued" until it starts; or a duration from the call that made the job.
    """

    key: KeyTemplate | None
    scope: UniqueScope | timedelta | None

    def __init__(self, key: KeyTemplate | None = None, scope: UniqueScope | Duration | None = None) -> None:
        """Set the options that differ from the defaults.

        Raises:
            UsageError: the key is neither a template nor a function, or the scope is neither "unfinished", "queued" nor
                a duration.
        """
        fill(
            self,
            key=None if key is None else _no_scope(key_template(key, field="unique")),
            scope=None if scope is None else _scope(scope),
        )


@dataclass(frozen=True, init=False)
class Debounce:
    """A job starts `delay` after the latest call of its key; each call replaces the one before.

    It starts at most `max_wait` after the first call; None sets no limit. `key`: a template over the arguments or a
    function of them. Tasks do not share keys. Without a key, all calls of the task share one.
    """

    key: KeyTemplate | None
    delay: timedelta
    max_wait: timedelta | None

    def __init__(self, key: KeyTemplate | None = None, *, delay: Duration, max_wait: Duration | None = None) -> None:
        """Set the key and the durations.

        Raises:
            UsageError: the key is neither a template nor a function, a duration is invalid, or `max_wait` is under
                `delay`.
        """
        fill(self, key=_key(key, "debounce"), **_waits(delay, max_wait, of="Debounce"))


@dataclass(frozen=True, init=False)
class Throttle:
    """At most `max` jobs of a key are made in each `window`, which begins with its first job.

    A call over this limit makes no job. It raises `ThrottledError`; with `on_limit="skip"` it returns a handle whose
    `action` is "throttled". `key`: a template over the arguments or a function of them. Tasks do not share keys.
    Without a key, all calls of the task share one.
    """

    key: KeyTemplate | None
    max: int
    window: timedelta
    on_limit: OnLimit

    def __init__(
        self,
        key: KeyTemplate | None = None,
        *,
        max: int,  # noqa: A002 - the name
        window: Duration,
        on_limit: OnLimit = "raise",
    ) -> None:
        """Set the key, the number of jobs and the window.

        Raises:
            UsageError: the key is neither a template nor a function, `max` is not a whole number of at least 1,
                `window` is not a duration, or `on_limit` is unknown.
        """
        fill(
            self,
            key=_key(key, "throttle"),
            max=whole(max, field="Throttle.max", least=1, meaning="to make no jobs at all, do not call"),
            window=option_duration(window, field="Throttle.window"),
            on_limit=one_of(on_limit, get_args(OnLimit), field="Throttle.on_limit") or "raise",
        )


@dataclass(frozen=True, init=False)
class Collect:
    """Calls are collected into one job, a batch, whose handler gets the list of their items.

    A batch starts when no call has come for `delay` (1 s by default), when it has `max_size` calls (100 by default) or
    8 MiB of arguments, and at most `max_wait` after its first call (10 s by default; None sets no limit).

    `key`: a template over the `item` that each call brings, such as "{item.tenant}", or a function of the item. Tasks
    do not share keys. Without a key, all calls of the task are collected together.
    """

    key: KeyTemplate | None
    delay: timedelta
    max_size: int
    max_wait: timedelta | None

    def __init__(
        self,
        key: KeyTemplate | None = None,
        *,
        delay: Duration = "1s",
        max_size: int = 100,
        max_wait: Duration | None = "10s",
    ) -> None:
        """Set the options that differ from the defaults.

        Raises:
            UsageError: the key is neither a template nor a function, a duration is invalid, `max_wait` is under
                `delay`, or `max_size` is not a whole number from 1 to 10,000.
        """
        fill(
            self,
            key=_key(key, "collect"),
            max_size=whole(max_size, field="Collect.max_size", least=1, most=MOST_COLLECTED),
            **_waits(delay, max_wait, of="Collect"),
        )


def valid_unique(value: object, *, literal: bool = False) -> Unique | Literal[False]:
    """Return unique options. True and a bare key become a `Unique`; False means that jobs are not unique.

    `literal`: the value is the key itself, not a template.

    Raises:
        UsageError: it is not a bool, a key or a `Unique`.
    """
    match value:
        case bool():
            return Unique() if value else False
        case Unique(key=None):
            return value
        case Unique():
            return Unique(literal_key(value.key, field="unique"), value.scope) if literal else value
        case _:
            key = _no_scope(key_template(value, field="unique"))
            return Unique(literal_key(value, field="unique") if literal else key)


def valid_debounce(value: object) -> Debounce:
    """Return the debounce options.

    Raises:
        UsageError: the value is not a `Debounce`.
    """
    return of_kind(value, Debounce, field="debounce", remedy='write debounce=Debounce("{user}", delay="5s")')


def valid_throttle(value: object) -> Throttle:
    """Return the throttle options.

    Raises:
        UsageError: the value is not a `Throttle`.
    """
    return of_kind(value, Throttle, field="throttle", remedy='write throttle=Throttle("{user}", max=10, window="1m")')


def valid_collect(value: object) -> Collect:
    """Return the collect options.

    Raises:
        UsageError: the value is not a `Collect`.
    """
    return of_kind(value, Collect, field="collect", remedy='write collect=Collect(delay="1s", max_size=100)')


def _key(template: KeyTemplate | None, field: str) -> KeyTemplate | None:
    return None if template is None else key_template(template, field=field)


def _no_scope(key: KeyTemplate) -> KeyTemplate:
    if key in get_args(UniqueScope):
        raise UsageError(
            f'unique = {shown(key)} is a scope, and as a key all calls would share it; write Unique(scope="{key}")'
        )
    return key


def _scope(value: object) -> UniqueScope | timedelta:
    for word in get_args(UniqueScope):
        if value == word:
            return word  # type: ignore[no-any-return]  # one of the type's own words
    try:
        return option_duration(value, field="Unique.scope")  # type: ignore[arg-type]  # duration() refuses other types
    except UsageError as error:
        words = " or ".join(f'"{word}"' for word in get_args(UniqueScope))
        raise UsageError(f"{error}; or write {words}") from None


def _waits(delay: Duration, max_wait: Duration | None, *, of: str) -> dict[str, timedelta | None]:
    first = option_duration(delay, field=f"{of}.delay")
    last = None if max_wait is None else option_duration(max_wait, field=f"{of}.max_wait")
    if last is not None and last < first:
        raise UsageError(
            f"{of}.max_wait = {duration_text(micros(last))} is under its delay of {duration_text(micros(first))}, "
            "which would then have no effect; give a longer one"
        )
    return {"delay": first, "max_wait": last}
