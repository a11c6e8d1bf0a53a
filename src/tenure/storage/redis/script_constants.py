"""The constants that scripts share with Python: a line `-- constants: A, B` of a Lua file becomes their definition."""

from collections.abc import Mapping

from tenure.core.deduplication import COLLECTED_LIMIT
from tenure.core.figures import LENGTH, OTHERS, OUTCOMES, TASKS_KEPT
from tenure.core.fingerprint import NEWEST
from tenure.core.internal import INTERNAL
from tenure.core.lease import REAPER_LEASE
from tenure.core.published import PUBLISHED_KEPT, PUBLISHED_MOST, RENEWED_WITHIN
from tenure.core.retention import EVENTS_KEPT, KEPT, TRIM_BATCH, KeepRule
from tenure.core.schedule import AHEAD
from tenure.core.steps import SIGNALS_LIMIT
from tenure.core.waiting import DEPENDENTS_LIMIT, EARLY_FAILURE, SIGNAL, SLEEP
from tenure.storage import names, queries, requests, waiting
from tenure.storage.redis.figures import KINDS, SPANS

Constant = int | str | Mapping[str, "Constant"]


def _rule(rule: KeepRule) -> dict[str, Constant]:
    return {"age": rule.age} if rule.count is None else {"age": rule.age, "count": rule.count}


CONSTANTS: Mapping[str, Constant] = {
    "AHEAD": AHEAD,
    "CALLS_KEPT": requests.CALLS_KEPT,
    "CLAIM_LIMIT": requests.CLAIM_LIMIT,
    "CONCURRENCY": names.CONCURRENCY,
    "DEPENDENTS_LIMIT": DEPENDENTS_LIMIT,
    "DUE_LIMIT": requests.DUE_LIMIT,
    "EARLY_FAILURE": EARLY_FAILURE,
    "ENDS_AT_ONCE": waiting.ENDS_AT_ONCE,
    "ENTRY_PAGE": waiting.ENTRY_PAGE,
    "EVENTS_KEPT": _rule(EVENTS_KEPT),
    "EVENT_LOAN": queries.EVENT_LOAN,
    "EXPIRE_LIMIT": requests.EXPIRE_LIMIT,
    "FIGURES": {
        kind: {"length": level.length, "span": SPANS[kind], "kept": level.kept} for kind, level in KINDS.items()
    },
    "FIGURE_COUNTS": LENGTH,
    "FIGURE_ENDS": {outcome: number for number, outcome in enumerate(OUTCOMES, 1)},
    "FAULT_NEWEST": NEWEST,
    "COLLECTED_LIMIT": COLLECTED_LIMIT,
    "INTERNAL": INTERNAL,
    "LOG_LINES_KEPT": requests.LOG_LINES_KEPT,
    "LOOK_LIMIT": requests.LOOK_LIMIT,
    "MOVED": names.MOVED,
    "NOTIFIED_AT_ONCE": waiting.NOTIFIED_AT_ONCE,
    "OTHERS": OTHERS,
    "OUTBOX_DELAY": waiting.OUTBOX_DELAY,
    "OUTBOX_LIMIT": waiting.OUTBOX_LIMIT,
    "PASSED_LIMIT": requests.PASSED_LIMIT,
    "PAUSED": names.PAUSED,
    "PLACE_LIMIT": names.PLACE_LIMIT,
    "PROMOTE_LIMIT": requests.PROMOTE_LIMIT,
    "PUBLISHED_KEPT": PUBLISHED_KEPT,
    "PUBLISHED_MOST": PUBLISHED_MOST,
    "QUEUE_RATE": names.QUEUE_RATE,
    "RATE": names.RATE,
    "REAPER_LEASE": REAPER_LEASE,
    "RENEWED_WITHIN": RENEWED_WITHIN,
    "RETENTION": {state.value: _rule(rule) for state, rule in KEPT.items()},
    "RUNS_KEPT": requests.RUNS_KEPT,
    "SCAN_LIMIT": requests.SCAN_LIMIT,
    "SIGNAL": SIGNAL,
    "SIGNALS_LIMIT": SIGNALS_LIMIT,
    "SLEEP": SLEEP,
    "SWEEP_LIMIT": requests.SWEEP_LIMIT,
    "TASKS_KEPT": TASKS_KEPT,
    "TRIM_BATCH": TRIM_BATCH,
    "TRIM_LIMIT": requests.TRIM_LIMIT,
    "UNKNOWN": names.UNKNOWN,
    "UNKNOWN_LOOKS": names.UNKNOWN_LOOKS,
    "WINDOW_LIMIT": requests.WINDOW_LIMIT,
    "WORKER_KEPT": requests.WORKER_KEPT,
}


def definition(wanted: str) -> str:
    """Return the Lua statement that defines these constants; `wanted`: their names, separated by commas.

    Raises:
        KeyError: a name is unknown.
    """
    return f"local {wanted} = {', '.join(_lua(CONSTANTS[name.strip()]) for name in wanted.split(','))}"


def _lua(value: Constant) -> str:
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return f"'{value}'"
    return "{ " + ", ".join(f"{name} = {_lua(field)}" for name, field in value.items()) + " }"
