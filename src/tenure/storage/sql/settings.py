"""The settings of queues, tasks and workers in one transaction; each is looked up once."""

import msgspec

from tenure.core.events import OnRequest
from tenure.storage.protocol import Settings
from tenure.storage.sql.transaction import Transaction

_NONE = Settings()

decode = msgspec.json.Decoder(Settings).decode


def setting(tx: Transaction, kind: str, name: str) -> Settings:
    """Return the settings in force for a queue, task or worker."""
    known = tx.settings.get((kind, name))
    if known is None:
        row = tx.one("tune.setting", {"kind": kind, "name": name})
        known = tx.settings[kind, name] = _NONE if row is None else decode(row[0])
    return known


def queue_settings(tx: Transaction, listed: str) -> dict[str, Settings]:
    """Return the settings of those queues in a JSON list that have any."""
    found: dict[str, Settings] = {}
    for name, body in tx.all("tune.queue_settings", {"queues": listed}):
        known = tx.settings.get(("queue", name))
        found[name] = tx.settings["queue", name] = decode(body) if known is None else known
    return found


def records_event(tx: Transaction, queue: str, event: OnRequest) -> bool:
    """Return True if a queue records this optional event."""
    names = setting(tx, "queue", queue).record
    return names is not None and event in names
