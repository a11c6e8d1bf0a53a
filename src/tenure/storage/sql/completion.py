"""The completion of a job in its handler's own transaction."""

from tenure.core.settlement import Settlement
from tenure.storage.protocol import RenewRequest, SettleVerdict
from tenure.storage.sql.renew import renew
from tenure.storage.sql.settle import settle
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sql.transitions import recount


def complete(tx: Transaction, beat: RenewRequest, settlement: Settlement) -> SettleVerdict:
    """Store the last reports of a run and settle it. The caller commits only if the verdict is `done`."""
    if beat.renewals:
        renew(tx, beat)
    (result,) = settle(tx, beat.owner, [settlement])
    tx.flush()
    recount(tx)
    return result.verdict
