"""Which calls make jobs of their own: the unique, the debounced, the throttled, the collected."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

from tenure.core.check import of_kind, one_of, shown, whole
from tenure.core.duration import Duration, duration, micros, spoken
from tenure.core.job import UniqueScope
from tenure.errors import UsageError
from tenure.options.keys import KeyTemplate, outright, templated
from tenure.options.merging import NestedOptions, fill

OnLimit = Literal["raise", "skip"]

MOST_COLLECTED = 10_000
"""How many calls one job may gather."""


@dataclass(frozen=True, init=False)
class Unique(NestedOptions):
    """At most one job of a queue holds a key; a call with a key that is held makes none and gets that job's handle.

    `key`: a template over the arguments or a function of them; without one, calls of the task with equal arguments have
    the same. `scope`: for how long it is held: while the job is "unfinished" (built in: until it is over, retries and
    all), while it is "queued" (until it starts), or for a duration from the call that made the job on.
    """

    key: KeyTemplate | None
    scope: UniqueScope | timedelta | None

    def __init__(self, key: KeyTemplate | None = None, scope: UniqueScope | Duration | None = None) -> None:
        """Take what differs from what is set below.

        Raises:
            UsageError: the key is neither template nor function, or the scope neither such a word nor a duration.
        """
        fill(
            self,
            key=None if key is None else _no_scope(templated(key, field="unique")),
            scope=None if scope is None else _scope(scope),
        )


@dataclass(frozen=True, init=False)
class Debounce:
    """A job starts `delay` after the latest call of its key: each call takes the place of the one before.

    But no later than `max_wait` after the first one. `key`: a template over the arguments or a function of them, the
    task's own; without one all calls of the task share it.
    """

    key: KeyTemplate | None
    delay: timedelta
    max_wait: timedelta | None

    def __init__(self, key: KeyTemplate | None = None, *, delay: Duration, max_wait: Duration | None = None) -> None:
        """Take a key and its durations.

        Raises:
            UsageError: the key is neither template nor function, a duration is none, or max_wait is under the delay.
        """
        fill(self, key=_key(key, "debounce"), **_waits(delay, max_wait, of="Debounce"))


@dataclass(frozen=True, init=False)
class Throttle:
    """At most `max` jobs of a key are made in each `window`, which begins with its first job.

    A call beyond that makes none: it raises `ThrottledError`, or with `on_limit="skip"` it gets a handle that says so.
    `key`: a template over the arguments or a function of them, the task's own; without one all calls of the task share
    it.
    """

    key: KeyTemplate | None
    max: int
    window: timedelta
    on_limit: OnLimit

    def __init__(
        self,
        key: KeyTemplate | None = None,
        *,
        max: int,  # noqa: A002 - the word
        window: Duration,
        on_limit: OnLimit = "raise",
    ) -> None:
        """Take a key, a number and a window.

        Raises:
            UsageError: the key is neither template nor function, `max` no whole number from 1, the window no duration,
                or `on_limit` is unknown.
        """
        fill(
            self,
            key=_key(key, "throttle"),
            max=whole(max, field="Throttle.max", least=1, meaning="to make no jobs at all, do not call"),
            window=duration(window, field="Throttle.window"),
            on_limit=one_of(on_limit, get_args(OnLimit), field="Throttle.on_limit") or "raise",
        )


@dataclass(frozen=True, init=False)
class Collect:
    """Calls gather in one job whose handler gets the list: until none has come for `delay`, or `max_size` have.

    But no later than `max_wait` after the first one. One of 8 MiB of arguments is full, too.

    `key`: a template over the `item` that each call brings, such as
    "{item.tenant}", or a function of it, the task's own; without one all calls of the task gather together.
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
        """Take what differs from the defaults.

        Raises:
            UsageError: the key is neither template nor function, a duration is none, max_wait is under the delay, or
                `max_size` no whole number from 1 to 10,000.
        """
        fill(
            self,
            key=_key(key, "collect"),
            max_size=whole(max_size, field="Collect.max_size", least=1, most=MOST_COLLECTED),
            **_waits(delay, max_wait, of="Collect"),
        )


def uniquely(given: object, *, literal: bool = False) -> Unique | Literal[False]:
    """Return what makes jobs unique, made of True or a bare key where it is one; False means that nothing does.

    `literal`: its key is the key itself, no template.

    Raises:
        UsageError: it is none of them.
    """
    match given:
        case bool():
            return Unique() if given else False
        case Unique(key=None):
            return given
        case Unique():
            return Unique(outright(given.key, field="unique"), given.scope) if literal else given
        case _:
            key = _no_scope(templated(given, field="unique"))
            return Unique(outright(given, field="unique") if literal else key)


def debounced(given: object) -> Debounce:
    """Return debounce options.

    Raises:
        UsageError: they are none.
    """
    return of_kind(given, Debounce, field="debounce", remedy='write debounce=Debounce("{user}", delay="5s")')


def throttled(given: object) -> Throttle:
    """Return throttle options.

    Raises:
        UsageError: they are none.
    """
    return of_kind(given, Throttle, field="throttle", remedy='write throttle=Throttle("{user}", max=10, window="1m")')


def collected(given: object) -> Collect:
    """Return collect options.

    Raises:
        UsageError: they are none.
    """
    return of_kind(given, Collect, field="collect", remedy='write collect=Collect(delay="1s", max_size=100)')


def _key(given: KeyTemplate | None, field: str) -> KeyTemplate | None:
    return None if given is None else templated(given, field=field)


def _no_scope(key: KeyTemplate) -> KeyTemplate:
    if key in get_args(UniqueScope):
        raise UsageError(
            f'unique = {shown(key)} is a scope, and as a key all calls would share it; write Unique(scope="{key}")'
        )
    return key


def _scope(given: object) -> UniqueScope | timedelta:
    for word in get_args(UniqueScope):
        if given == word:
            return word  # type: ignore[no-any-return]  # of the words of that very type
    try:
        return duration(given, field="Unique.scope")  # type: ignore[arg-type]  # it refuses what is none
    except UsageError as error:
        words = " or ".join(f'"{word}"' for word in get_args(UniqueScope))
        raise UsageError(f"{error}; or write {words}") from None


def _waits(delay: Duration, max_wait: Duration | None, *, of: str) -> dict[str, timedelta | None]:
    first = duration(delay, field=f"{of}.delay")
    last = None if max_wait is None else duration(max_wait, field=f"{of}.max_wait")
    if last is not None and last < first:
        raise UsageError(
            f"{of}.max_wait = {spoken(micros(last))} is under its delay of {spoken(micros(first))}, which would then "
            "never count; give a longer one"
        )
    return {"delay": first, "max_wait": last}
