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
from tenure.storage import protocol
from tenure.storage.redis.figures import KINDS, SPANS

Constant = int | str | Mapping[str, "Constant"]


def _rule(rule: KeepRule) -> dict[str, Constant]:
    return {"age": rule.age} if rule.count is None else {"age": rule.age, "count": rule.count}


CONSTANTS: Mapping[str, Constant] = {
    "AHEAD": AHEAD,
    "CALLS_KEPT": protocol.CALLS_KEPT,
    "CLAIM_LIMIT": protocol.CLAIM_LIMIT,
    "CONCURRENCY": protocol.CONCURRENCY,
    "DUE_LIMIT": protocol.DUE_LIMIT,
    "EVENTS_KEPT": _rule(EVENTS_KEPT),
    "EVENT_LOAN": protocol.EVENT_LOAN,
    "EXPIRE_LIMIT": protocol.EXPIRE_LIMIT,
    "FIGURES": {
        kind: {"length": level.length, "span": SPANS[kind], "kept": level.kept} for kind, level in KINDS.items()
    },
    "FIGURE_COUNTS": LENGTH,
    "FIGURE_ENDS": {outcome: number for number, outcome in enumerate(OUTCOMES, 1)},
    "FAULT_NEWEST": NEWEST,
    "COLLECTED_LIMIT": COLLECTED_LIMIT,
    "INTERNAL": INTERNAL,
    "LOG_LINES_KEPT": protocol.LOG_LINES_KEPT,
    "LOOK_LIMIT": protocol.LOOK_LIMIT,
    "MOVED": protocol.MOVED,
    "OTHERS": OTHERS,
    "PASSED_LIMIT": protocol.PASSED_LIMIT,
    "PAUSED": protocol.PAUSED,
    "PLACE_LIMIT": protocol.PLACE_LIMIT,
    "PROMOTE_LIMIT": protocol.PROMOTE_LIMIT,
    "PUBLISHED_KEPT": PUBLISHED_KEPT,
    "PUBLISHED_MOST": PUBLISHED_MOST,
    "QUEUE_RATE": protocol.QUEUE_RATE,
    "RATE": protocol.RATE,
    "REAPER_LEASE": REAPER_LEASE,
    "RENEWED_WITHIN": RENEWED_WITHIN,
    "RETENTION": {state.value: _rule(rule) for state, rule in KEPT.items()},
    "RUNS_KEPT": protocol.RUNS_KEPT,
    "SCAN_LIMIT": protocol.SCAN_LIMIT,
    "SWEEP_LIMIT": protocol.SWEEP_LIMIT,
    "TASKS_KEPT": TASKS_KEPT,
    "TRIM_BATCH": TRIM_BATCH,
    "TRIM_LIMIT": protocol.TRIM_LIMIT,
    "UNKNOWN": protocol.UNKNOWN,
    "UNKNOWN_LOOKS": protocol.UNKNOWN_LOOKS,
    "WINDOW_LIMIT": protocol.WINDOW_LIMIT,
    "WORKER_KEPT": protocol.WORKER_KEPT,
}


def definition(names: str) -> str:
    """Return the Lua statement that defines these constants; `names`: separated by commas.

    Raises:
        KeyError: a name is unknown.
    """
    return f"local {names} = {', '.join(_lua(CONSTANTS[name.strip()]) for name in names.split(','))}"


def _lua(value: Constant) -> str:
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return f"'{value}'"
    return "{ " + ", ".join(f"{name} = {_lua(field)}" for name, field in value.items()) + " }"
