"""The part of `tenure doctor` for SQL: compares redundant counts with the jobs."""

from tenure.storage.protocol import Finding
from tenure.storage.sql.transaction import Transaction


def counters(tx: Transaction) -> Finding:
    """Compare the counters, the slots of keys and the merged calls with the jobs."""
    wrong = [row for audit in ("tally.recount", "tally.recount_calls", "tally.recount_keys") for row in tx.all(audit)]
    if not wrong:
        return Finding("ok", "counters", "the counts agree with the jobs")
    return Finding(
        "error",
        "counters",
        f"{len(wrong)} counts of jobs, of slots under a key, or of collected calls are wrong",
        "report a bug",
    )
