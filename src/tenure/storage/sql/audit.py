"""The part of `tenure doctor` for SQL: compares redundant counts with the jobs."""

from tenure.storage.queries import Finding
from tenure.storage.sql.transaction import Transaction

_AUDITS = ("tally.recount", "tally.recount_calls", "tally.recount_keys", "tally.recount_inboxes")


def counters(tx: Transaction) -> Finding:
    """Compare the counters, the slots of keys, the merged calls and the inboxes with the jobs."""
    wrong = [row for audit in _AUDITS for row in tx.all(audit)]
    if not wrong:
        return Finding("ok", "counters", "the counts agree with the jobs")
    return Finding(
        "error",
        "counters",
        f"{len(wrong)} counts of jobs, of slots under a key, of collected calls, or of tokens are wrong",
        "report a bug",
    )
