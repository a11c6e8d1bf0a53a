"""Builds a health app from the user's options, and validates them."""

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import get_args

from tenure.clock import Clock
from tenure.core.backlog import Thresholds
from tenure.core.check import flag, named, one_of, shown, whole
from tenure.core.duration import Duration, duration
from tenure.errors import UsageError
from tenure.health.asgi import DegradedIs, HealthApp, no_outbox
from tenure.health.auth import TokenAuth
from tenure.health.monitor import StorageMonitor
from tenure.health.process_health import ProcessHealth
from tenure.options import Timing
from tenure.outbox.outbox import Outbox
from tenure.storage.protocol import Storage

TOKEN_VARIABLE = "TENURE_HTTP_TOKEN"  # noqa: S105 - the name of a variable, not a token
"""The environment variable of the token, if the token is not given as an option."""

PATIENCE = "5m"
"""The default time that a backlog may stay above its threshold."""

OTHERS = "*"
"""The name for all queues without a threshold of their own."""

Threshold = int | Mapping[str, int] | None
"""How many jobs may wait: in each queue, or by queue name, where `"*"` stands for all other queues."""


def health_app(
    storage: Callable[[], Awaitable[Storage]],
    *,
    timing: Callable[[], Timing],
    clock: Clock,
    queues: Callable[[], Iterable[str]] = tuple,
    token: str | None = None,
    unprotected: bool = False,
    backlog: Threshold = None,
    for_: Duration = PATIENCE,
    degraded_is: DegradedIs = 200,
    process_health: Callable[[], ProcessHealth] = ProcessHealth,
    outbox: Callable[[], Outbox | None] = no_outbox,
) -> HealthApp:
    """Return a health app. `outbox`: returns an outbox whose calls are part of the metrics.

    Raises:
        UsageError: an option has an invalid value, or neither a token nor `unprotected` is given.
    """
    gate = TokenAuth(secret(token, unprotected=bool(flag(unprotected, field="unprotected"))))
    watch = StorageMonitor(storage, clock=clock, thresholds=thresholds(backlog, for_))
    one_of(degraded_is, get_args(DegradedIs), field="degraded_is")
    return HealthApp(
        watch,
        gate,
        timing=timing,
        queues=queues,
        degraded_is=degraded_is,
        process_health=process_health,
        outbox=outbox,
    )


def secret(token: str | None, *, unprotected: bool) -> str | None:
    """Return the token to require, or None if the app is unprotected.

    Raises:
        UsageError: neither a token nor `unprotected` is given, or both are.
    """
    if unprotected:
        if token is not None:
            raise UsageError("token and unprotected contradict each other; give one of them")
        return None
    found = os.environ.get(TOKEN_VARIABLE) if token is None else token
    if found is None:
        raise UsageError(
            f"health shows figures only with a token; give token=..., set {TOKEN_VARIABLE}, "
            "or give unprotected=True if a proxy checks credentials"
        )
    return found


def thresholds(backlog: Threshold, patience: Duration, *, fields: tuple[str, str] = ("backlog", "for_")) -> Thresholds:
    """Return the thresholds of a backlog; `fields` are the names of the two options, for error messages.

    Raises:
        UsageError: a threshold or the time is invalid.
    """
    field, time = fields
    seconds = duration(patience, field=time).total_seconds()
    match backlog:
        case None:
            return Thresholds(patience=seconds)
        case Mapping():
            most = {
                named(queue, field=field): whole(jobs, field=f"{field} of {shown(queue)}", least=0)
                for queue, jobs in backlog.items()
            }
            return Thresholds(most=most.pop(OTHERS, None), named=most, patience=seconds)
        case _:
            return Thresholds(most=whole(backlog, field=field, least=0), patience=seconds)
