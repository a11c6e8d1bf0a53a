"""The settings in SQL: merges new values into those in force, and applies them to waiting jobs at once."""

import msgspec

from tenure.core.events import QueuePaused, QueueResumed
from tenure.core.job import RateKey
from tenure.storage.protocol import PAUSED, Settings, Target, owner_topic, queue_topic
from tenure.storage.sql import concurrency_keys, rates
from tenure.storage.sql.settings import setting
from tenure.storage.sql.transaction import Transaction

_encode = msgspec.json.Encoder().encode


def tune(
    tx: Transaction, target: Target, settings: Settings, by: str | None, expected: Settings | None = None
) -> Settings:
    """Merge settings into those in force, if these are the expected ones."""
    before = setting(tx, target.kind, target.name)
    if expected is not None and not before.agrees(expected, settings):
        return before
    if target.kind == "queue" and settings.lift is not None:
        rates.lift(tx, target.name, settings.lift, by)
    after = before.under(settings)
    if after == before:
        return after
    tx.run("tune.set", {"kind": target.kind, "name": target.name, "body": _encode(after).decode()})
    tx.settings[target.kind, target.name] = after
    if target.kind == "worker":
        tx.topics.append(owner_topic(target.name))
    if target.kind == "queue" and bool(before.paused) != bool(after.paused):
        kind = QueuePaused if after.paused else QueueResumed
        tx.record(kind(queue=target.name, by=by))
        tx.topics.append(queue_topic(target.name))
    if target.kind == "task" and before.paused and not after.paused:
        # The counters show which queues have parked jobs, so they must be up to date.
        tx.flush()
        for (queue,) in tx.all("tally.queues_parked"):
            concurrency_keys.unpark(tx, queue, PAUSED + target.name)
    if after.retention != before.retention:
        tx.run("tally.trim_now", {"queue": target.name})
    if after.rate is not None and before.rate != after.rate:
        _retune(tx, target, after.rate)
    return after


def _retune(tx: Transaction, target: Target, rate: RateKey) -> None:
    """Apply a rate's new pace, and check the jobs that wait for it."""
    if target.kind == "queue":
        rates.set_pace(tx, rate, [target.name])
        tx.topics.append(queue_topic(target.name))
        return
    tx.flush()
    rates.set_pace(tx, rate, rates.queues_of(tx, rate))
    for (queue,) in tx.all("tally.queues_waiting"):
        for under in rates.parked_rates(tx, queue, target.name):
            concurrency_keys.release_allowed(tx, queue, under)
        tx.topics.append(queue_topic(queue))
