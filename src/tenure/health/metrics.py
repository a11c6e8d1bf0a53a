"""Writes metrics in the text format of Prometheus: gauges of the storage, and the counts of this process.

All targets show the same gauges of the storage, so a query takes one target or the largest value. The counts of the
processes are added up over all targets.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import accumulate

from msgspec import Struct

from tenure.clock import SECOND
from tenure.core.lifecycle import State
from tenure.health.assessment import Health
from tenure.health.process_health import ProcessHealth
from tenure.metrics import METRICS, Key, Metric, Totals
from tenure.outbox.outbox import COUNTED, OutboxState
from tenure.storage.protocol import Survey

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

EVERYWHERE = "*"
"""The scope of a storage that has one leader."""

Labels = dict[str, str]


class Family(Struct, frozen=True):
    """A gauge with all its samples."""

    name: str
    meaning: str
    samples: list[tuple[Labels, float]]


def rendered(
    survey: Survey | None, health: Health, process_health: ProcessHealth, outbox: OutboxState | None = None
) -> bytes:
    """Return all metrics as text. If the storage is out of reach and `survey` is None, its gauges are left out."""
    families = [_gauge("tenure_storage_up", "Whether the storage answers.", survey is not None)]
    if survey is not None:
        families += _of_storage(survey, health)
    if outbox is not None:
        families += _of_outbox(outbox)
    if (lag := _lag(survey, health, process_health)) is not None:
        families.append(_gauge("tenure_loop_lag_seconds", "The longest recent block of an event loop.", lag))
    lines = [line for family in families for line in _shown(family)]
    lines += [line for metric in METRICS for line in _counted(metric, process_health.metrics)]
    return "".join(f"{line}\n" for line in lines).encode()


def _of_storage(survey: Survey, health: Health) -> Iterator[Family]:
    queues = health.queues
    counts = {queue.queue: queue.counts for queue in survey.queues}
    yield Family(
        "tenure_queue_jobs",
        "Jobs in a queue, by state.",
        [
            ({"queue": name, "state": state.value}, counts.get(name, {}).get(state, 0))
            for name in queues
            for state in State
        ],
    )
    yield _by_queue(
        "tenure_queue_oldest_seconds",
        "How long the oldest waiting job has waited; 0 without waiting jobs.",
        queues,
        {name: queue.oldest_waiting or 0.0 for name, queue in queues.items()},
    )
    yield _by_queue(
        "tenure_failed_jobs",
        "Failed jobs that are kept for inspection or redrive.",
        queues,
        {name: queue.failed for name, queue in queues.items()},
    )
    yield _by_queue(
        "tenure_queue_paused",
        "Whether a queue is paused.",
        queues,
        {name: queue.paused for name, queue in queues.items()},
    )
    states = [worker.state for worker in health.workers]
    yield Family(
        "tenure_workers",
        "Workers that the storage knows, by state.",
        [({"state": state}, states.count(state)) for state in ("alive", "quiet", "stopping", "stale")],
    )
    live = [worker for worker in health.workers if worker.state == "alive"]
    busy = sum(min(worker.active, worker.concurrency) for worker in live)
    yield Family(
        "tenure_worker_slots",
        "Running jobs and free slots of live workers, as of their last beats.",
        [({"state": "busy"}, busy), ({"state": "free"}, sum(worker.concurrency for worker in live) - busy)],
    )
    scopes = sorted({term.scope for term in survey.leaders})
    yield Family(
        "tenure_leader",
        "Whether a reaper is the leader.",
        [({"scope": scope}, 1) for scope in scopes] or [({"scope": EVERYWHERE}, 0)],
    )
    yield _gauge(
        "tenure_reaper_age_seconds",
        "Time since the last sweep; infinite if none ever ran.",
        math.inf if survey.swept_ago is None else survey.swept_ago / SECOND,
    )


def _of_outbox(outbox: OutboxState) -> Iterator[Family]:
    yield Family(
        "tenure_outbox_calls",
        f"Calls in the outbox, by state; counted up to {COUNTED}.",
        [({"state": "waiting"}, outbox.waiting), ({"state": "refused"}, outbox.refused)],
    )
    yield _gauge("tenure_outbox_oldest_seconds", "How long the oldest call waits for a relay.", outbox.oldest)


def _by_queue(name: str, meaning: str, queues: Iterable[str], values: dict[str, float]) -> Family:
    return Family(name, meaning, [({"queue": queue}, values[queue]) for queue in queues])


def _gauge(name: str, meaning: str, value: float) -> Family:
    return Family(name, meaning, [({}, value)])


def _lag(survey: Survey | None, health: Health, process_health: ProcessHealth) -> float | None:
    """Return the loop lag of this process; in a process that runs no jobs, the greatest lag of all live workers."""
    if process_health.owners is not None:
        return process_health.lag
    if survey is None:
        return None
    live = {worker.id for worker in health.workers if worker.state != "stale"}
    return max((worker.lag / SECOND for worker in survey.workers if worker.owner.id in live), default=0.0)


def _shown(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.meaning}"
    yield f"# TYPE {family.name} gauge"
    for labels, value in family.samples:
        yield _sample(family.name, labels, value)


def _counted(metric: Metric, totals: Totals) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.meaning}"
    yield f"# TYPE {metric.name} {'histogram' if metric.buckets else 'counter'}"
    many = len(metric.buckets) + 2 if metric.buckets else 1
    for key in sorted(_of(metric, totals)):
        numbers = totals[key]
        if len(key) != 1 + len(metric.labels) or len(numbers) != many:
            # A child process may send anything; an invalid series must not break the other ones.
            continue
        labels = dict(zip(metric.labels, key[1:], strict=True))
        if not metric.buckets:
            yield _sample(metric.name, labels, numbers[0])
            continue
        below = list(accumulate(numbers[1:]))
        for end, count in zip((*metric.buckets, math.inf), below, strict=True):
            yield _sample(f"{metric.name}_bucket", {**labels, "le": _number(end)}, count)
        yield _sample(f"{metric.name}_sum", labels, numbers[0])
        yield _sample(f"{metric.name}_count", labels, below[-1])


def _of(metric: Metric, totals: Totals) -> list[Key]:
    return [key for key in totals if key[:1] == (metric.name,)]


def _sample(name: str, labels: Labels, value: float) -> str:
    pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{pairs}}} {_number(value)}" if pairs else f"{name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
