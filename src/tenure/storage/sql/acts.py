"""The audit log in SQL: writes the acts of operators, and lists them."""

import msgspec

from tenure.core.audit import OperatorAct
from tenure.core.retention import TRIM_BATCH, KeepRule
from tenure.storage.cursors import LARGEST, place_of
from tenure.storage.protocol import ActsPage, ActsQuery
from tenure.storage.sql.transaction import Transaction

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(OperatorAct).decode


def record_act(tx: Transaction, act: OperatorAct, keep: KeepRule) -> OperatorAct:
    """Write an act for the first or the second time; return its record."""
    row = tx.one("record_act.kept", {"id": act.id})
    kept = None if row is None else _decode(row[0])
    record = act.written(kept, tx.now)
    values = {"id": record.id, "body": _encode(record).decode()}
    if kept is None:
        columns = {"actor": record.actor, "action": record.action, "target": record.target, "asked": record.asked}
        tx.run("record_act.add", {**values, **columns})
        _trim(tx, keep)
    elif record != kept:
        tx.run("record_act.end", values)
    return record


def acts(tx: Transaction, query: ActsQuery) -> ActsPage:
    """Return one page of the audit log, newest first."""
    values = {
        "before": LARGEST if query.after is None else place_of(query.after),
        "actor": query.actor,
        "action": query.action,
        "target": query.target,
        "limit": query.limit + 1,
    }
    found = tx.all("acts.page", values)
    shown = found[: query.limit]
    return ActsPage(tuple(_decode(body) for _, body in shown), str(shown[-1][0]) if len(found) > len(shown) else None)


def _trim(tx: Transaction, keep: KeepRule) -> None:
    """Delete some of the oldest records that are too old or too many."""
    oldest = tx.all("record_act.oldest", {"limit": TRIM_BATCH})
    # No number is skipped, and only the oldest records are deleted.
    surplus = 0 if keep.count is None else tx.all("record_act.newest")[0][0] - oldest[0][0] + 1 - keep.count
    for place, (number, asked) in enumerate(oldest):
        if place >= surplus and asked > tx.now - keep.age:
            return
        tx.run("record_act.delete", {"number": number})
