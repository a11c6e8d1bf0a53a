"""The decorator that registers event handlers for apps, routers and tasks; it checks its arguments at once."""

from collections.abc import Callable
from typing import TypeVar, cast

from tenure.core.check import one_of, shown
from tenure.core.events import Event, JobEvent
from tenure.errors import UsageError
from tenure.handlers.injection import refuse_injections

E = TypeVar("E", bound=Event)
Handler = Callable[[E], object]


def register(
    kind: type[E], *, scope: str, of: type[Event], add: Callable[[Handler[E]], None]
) -> Callable[[Handler[E]], Handler[E]]:
    """Return a decorator that passes a handler to `add` and returns it unchanged.

    Raises:
        UsageError: `kind` is not a subclass of `of`, or the scope is neither "once" nor "every". The decorator raises
            it if the handler is not callable or asks for injected values.
    """
    event_class(kind, of=of)
    one_of(scope, ("once", "every"), field="scope")

    def register(handler: Handler[E]) -> Handler[E]:
        _check_handler(handler)
        add(handler)
        return handler

    return register


def event_class(kind: type[E], *, of: type[Event] = Event) -> type[E]:
    """Return the event class.

    Raises:
        UsageError: it is not a subclass of `of`.
    """
    value = shown(kind)
    # A caller without a type checker may give any object.
    if not (isinstance(cast(object, kind), type) and issubclass(kind, of)):
        expected = "event class of jobs" if of is JobEvent else "event class"
        raise UsageError(f"{value} is not an {expected}; use a class such as JobStalled")
    return kind


def _check_handler(handler: object) -> None:
    if not callable(handler):
        raise UsageError(f"{shown(handler)} cannot be called, so it cannot handle events; give a function")
    refuse_injections(handler, owner=f"the event handler {shown(handler)}")
