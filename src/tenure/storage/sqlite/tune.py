"""The settings in SQL: merges new values into those in force, and applies them to waiting jobs at once."""

import msgspec

from tenure.core.events import QueuePaused, QueueResumed
from tenure.core.job import RateKey
from tenure.storage.protocol import PAUSED, Settings, Target, owner_topic, queue_topic
from tenure.storage.sqlite import concurrency_keys, rates
from tenure.storage.sqlite.settings import setting
from tenure.storage.sqlite.statements import query
from tenure.storage.sqlite.transaction import Transaction

_SET = query("tune", "set")
_QUEUES_PARKED = query("tally", "queues_parked")
_QUEUES_WAITING = query("tally", "queues_waiting")
_LOOK_AT_ONCE = query("tally", "look_at_once")

_encode = msgspec.json.Encoder().encode


def tune(step: Transaction, target: Target, settings: Settings, by: str | None) -> Settings:
    """Merge settings into those in force."""
    before = setting(step, target.kind, target.name)
    after = before.under(settings)
    if after == before:
        return after
    step.run(_SET, (target.kind, target.name, _encode(after).decode()))
    step.settings[target.kind, target.name] = after
    if target.kind == "worker":
        step.knocked.append(owner_topic(target.name))
    if target.kind == "queue" and bool(before.paused) != bool(after.paused):
        kind = QueuePaused if after.paused else QueueResumed
        step.record(kind(queue=target.name, by=by))
        step.knocked.append(queue_topic(target.name))
    if target.kind == "task" and before.paused and not after.paused:
        # The counters show which queues have parked jobs, so they must be up to date.
        step.write_down()
        for (queue,) in step.all(_QUEUES_PARKED):
            concurrency_keys.unpark(step, queue, PAUSED + target.name)
    if after.retention != before.retention:
        step.run(_LOOK_AT_ONCE, (target.name,))
    if after.rate is not None and before.rate != after.rate:
        _retune(step, target, after.rate)
    return after


def _retune(step: Transaction, target: Target, rate: RateKey) -> None:
    """Apply a rate's new pace, and check the jobs that wait for it."""
    if target.kind == "queue":
        rates.retune(step, rate, [target.name])
        step.knocked.append(queue_topic(target.name))
        return
    step.write_down()
    rates.retune(step, rate, rates.queues_of(step, rate))
    for (queue,) in step.all(_QUEUES_WAITING):
        for under in rates.of_task(step, queue, target.name):
            concurrency_keys.open_anew(step, queue, under)
        step.knocked.append(queue_topic(queue))
