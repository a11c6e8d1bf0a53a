"""The settings of queues, tasks and workers in one transaction; each is looked up once."""

import msgspec

from tenure.core.events import OnRequest
from tenure.storage.protocol import Settings
from tenure.storage.sqlite.statements import query
from tenure.storage.sqlite.transaction import Transaction

_SETTING = query("tune", "setting")
_QUEUE_SETTINGS = query("tune", "queue_settings")
_NONE = Settings()

decode = msgspec.json.Decoder(Settings).decode


def setting(step: Transaction, kind: str, name: str) -> Settings:
    """Return the settings in force for a queue, task or worker."""
    known = step.settings.get((kind, name))
    if known is None:
        row = step.one(_SETTING, (kind, name))
        known = step.settings[kind, name] = _NONE if row is None else decode(row[0])
    return known


def queue_settings(step: Transaction, listed: str) -> dict[str, Settings]:
    """Return the settings of those queues in a JSON list that have any."""
    told: dict[str, Settings] = {}
    for name, body in step.all(_QUEUE_SETTINGS, (listed,)):
        known = step.settings.get(("queue", name))
        told[name] = step.settings["queue", name] = decode(body) if known is None else known
    return told


def recorded(step: Transaction, queue: str, event: OnRequest) -> bool:
    """Return True if a queue records this optional event."""
    asked = setting(step, "queue", queue).record
    return asked is not None and event in asked
