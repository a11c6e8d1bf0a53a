"""The settings of queues, tasks and workers in one transaction; each is looked up once."""

from collections.abc import Sequence

import msgspec

from tenure.core.events import OnRequest
from tenure.errors import StorageMovedError
from tenure.storage.protocol import Settings
from tenure.storage.sql.transaction import Transaction

_NONE = Settings()

decode = msgspec.json.Decoder(Settings).decode


def setting(tx: Transaction, kind: str, name: str) -> Settings:
    """Return the settings in force for a queue, task or worker."""
    known = tx.settings.get((kind, name))
    if known is None:
        known = tx.settings[kind, name] = _read(tx, kind, name)
    return known


def _read(tx: Transaction, kind: str, name: str) -> Settings:
    if (kind, name) in tx.written_settings:
        body = tx.written_settings[kind, name]
    elif kind == "task" and tx.knows_all_tasks:
        body = None
    else:
        row = tx.one("tune.setting", {"kind": kind, "name": name})
        body = None if row is None else row[0]
    return _NONE if body is None else decode(body)


def queue_settings(tx: Transaction, queues: Sequence[str], listed: str) -> dict[str, Settings]:
    """Return the settings of at least those queues that have any. `listed`: the queues as a JSON list."""
    if all(("queue", queue) in tx.written_settings for queue in queues):
        return {queue: setting(tx, "queue", queue) for queue in queues}
    found: dict[str, Settings] = {}
    for name, body in tx.all("tune.queue_settings", {"queues": listed}):
        known = tx.settings.get(("queue", name))
        found[name] = tx.settings["queue", name] = decode(body) if known is None else known
    return found


def require_here(tx: Transaction, queue: str) -> None:
    """Check that the jobs of a queue are not moved to another storage.

    Raises:
        StorageMovedError: they are.
    """
    if (moved_to := setting(tx, "queue", queue).moved_to) is not None:
        raise StorageMovedError(queue, moved_to)


def records_event(tx: Transaction, queue: str, event: OnRequest) -> bool:
    """Return True if a queue records this optional event."""
    names = setting(tx, "queue", queue).record
    return names is not None and event in names
