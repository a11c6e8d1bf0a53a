"""The part of `tenure doctor` for PostgreSQL: finds conditions that could lose or repeat jobs, and their remedies."""

from tenure.storage.protocol import Finding
from tenure.storage.sql.audit import counters
from tenure.storage.sql.transaction import Transaction


def examine(tx: Transaction, *, deep: bool) -> list[Finding]:
    """Check the server and the schema; with `deep` also audit all counters."""
    version, _ = tx.one("session.server") or (0, "")
    row = tx.one("session.version")
    found = [
        Finding("ok", "postgres", f"PostgreSQL {version // 10_000}.{version % 10_000}"),
        Finding("ok", "schema", f"schema {row[0] if row else 0}"),
    ]
    return [*found, counters(tx)] if deep else found
