"""The part of `tenure doctor` for PostgreSQL: finds conditions that could lose or repeat jobs, and their remedies."""

from collections.abc import Iterator

from tenure.errors import StorageMovedError
from tenure.storage.postgres import call_format, grants
from tenure.storage.postgres.compatibility import read_state
from tenure.storage.postgres.migration_files import SCHEMA
from tenure.storage.postgres.schema import LIVES
from tenure.storage.protocol import Finding
from tenure.storage.sql.audit import counters
from tenure.storage.sql.transaction import Transaction

NEWEST = 18
"""The newest version of PostgreSQL that is known to work."""

OLD_SNAPSHOT = 60.0
"""A transaction that has been open for more seconds than this is reported."""

DEAD_PER_LIVE = 10

FEW = 10_000
"""A table with fewer dead rows is not reported: autovacuum comes by only then."""

EACH = 4
"""How many connections a process uses."""

FULL = 0.9

_VACUUM = {
    "job_live": "autovacuum_vacuum_scale_factor=0",
    "tally": "autovacuum_vacuum_scale_factor=0",
    "key": "autovacuum_vacuum_scale_factor=0",
    "slot": "autovacuum_vacuum_scale_factor=0",
    "worker": "autovacuum_vacuum_scale_factor=0",
    "event": "autovacuum_vacuum_scale_factor=0",
}
"""By table the setting without which autovacuum comes too seldom."""


def examine(tx: Transaction, schema: str, *, deep: bool) -> list[Finding]:
    """Check the server and the schema; with `deep` also audit all counters."""
    version, fsync, full_pages, commit, standbys, autovacuum, counts = tx.all("health.settings")[0]
    tables = tx.all("health.tables", {"schema": schema})
    found = [
        _version(version),
        _schema(tx),
        _durability(fsync, full_pages, commit, standbys),
        _autovacuum(autovacuum, counts, {name: settings.split(",") for name, settings, *_ in tables}, schema),
        _dead_rows([(name, live, dead) for name, _, live, dead in tables], schema),
        *_snapshots(tx),
        _connections(tx),
        _role(tx, schema),
        _calls(tx, schema),
    ]
    return [*found, counters(tx)] if deep else found


def _version(number: int) -> Finding:
    name = f"PostgreSQL {number // 10_000}.{number % 10_000}"
    if number // 10_000 <= NEWEST:
        return Finding("ok", "postgres", name)
    return Finding(
        "warning", "postgres", f"{name} is newer than {NEWEST}, the newest that this Tenure knows", "upgrade Tenure"
    )


def _schema(tx: Transaction) -> Finding:
    state = read_state(tx.all("session.state")[0][0])
    features = f", with {', '.join(state.features)}" if state.features else ""
    if (state.version or 0) <= SCHEMA:
        return Finding("ok", "schema", f"schema {state.version}{features}, no migration is missing")
    return Finding(
        "ok", "schema", f"schema {state.version}{features}, newer than this Tenure ({SCHEMA}), which can still use it"
    )


def _durability(fsync: str, full_pages: str, commit: str, standbys: str) -> Finding:
    if fsync == "off" or full_pages == "off":
        off = "fsync" if fsync == "off" else "full_page_writes"
        return Finding(
            "warning",
            "durability",
            f"{off} is off: if the server's machine fails, the whole database may be damaged, and jobs are lost",
            f"set {off} = on in postgresql.conf, and restart or reload the server",
        )
    if commit == "off":
        return Finding(
            "warning",
            "durability",
            "synchronous_commit is off for this role: if the server crashes, the commits of the last moments are lost "
            "(up to 0.6 s with the usual settings), although they were acknowledged",
            "set synchronous_commit = on in postgresql.conf, or for this role or database (ALTER ROLE ... SET)",
        )
    if standbys and commit == "local":
        return Finding(
            "warning",
            "durability",
            "synchronous_commit is local for this role, so no commit waits for the synchronous standbys "
            f"({standbys}): a failover loses the last ones",
            "set synchronous_commit = on for this role",
        )
    standby = (
        f", and waits for standbys ({standbys})" if standbys else "; a failover to a standby may lose the last ones"
    )
    return Finding(
        "ok",
        "durability",
        f"every commit reaches the disk before it is acknowledged{standby} (synchronous_commit {commit})",
    )


def _autovacuum(autovacuum: str, counts: str, tables: dict[str, list[str]], schema: str) -> Finding:
    if autovacuum == "off" or counts == "off":
        off = "autovacuum" if autovacuum == "off" else "track_counts"
        return Finding(
            "warning",
            "autovacuum",
            f"{off} is off: dead rows stay, and claims become slower and slower",
            f"set {off} = on in postgresql.conf, and reload the server",
        )
    disabled = [name for name, settings in tables.items() if "autovacuum_enabled=false" in settings]
    if disabled:
        return Finding(
            "warning",
            "autovacuum",
            f"autovacuum is off for {', '.join(disabled)}: dead rows stay, and claims become slower and slower",
            f"ALTER TABLE {schema}.{disabled[0]} RESET (autovacuum_enabled)",
        )
    lost = [name for name, setting in _VACUUM.items() if name in tables and setting not in tables[name]]
    if lost:
        return Finding(
            "warning",
            "autovacuum",
            f"{', '.join(lost)} lost the settings of autovacuum, so that it comes too seldom",
            f"ALTER TABLE {schema}.{lost[0]} SET ({_VACUUM[lost[0]]}, autovacuum_vacuum_threshold=2000)",
        )
    return Finding("ok", "autovacuum", "on, with the settings of each table")


def _dead_rows(tables: list[tuple[str, int, int]], schema: str) -> Finding:
    worst = [(dead, live, name) for name, live, dead in tables if dead >= FEW and dead > DEAD_PER_LIVE * live]
    if not worst:
        return Finding("ok", "dead rows", f"{sum(dead for _, _, dead in tables):,} in all tables")
    dead, live, name = max(worst)
    return Finding(
        "warning",
        "dead rows",
        f"{name} has {dead:,} dead rows and {live:,} live ones, so claims are slow",
        f"see that autovacuum is on and that no old snapshot holds them (below); then VACUUM {schema}.{name}",
    )


_ENDING = {
    "session": "end it there, or with pg_terminate_backend(pid); set idle_in_transaction_session_timeout",
    "prepared": "COMMIT PREPARED or ROLLBACK PREPARED it, in its database",
    "slot": "start what reads it, or drop it with pg_drop_replication_slot",
}


def _snapshots(tx: Transaction) -> Iterator[Finding]:
    rows = tx.all("health.snapshots", {"least": OLD_SNAPSHOT})
    for kind in _ENDING:
        of_kind = [row for row in rows if row[0] == kind]
        if of_kind:
            _, _, behind, what = of_kind[0]
            more = f" and {len(of_kind) - 1} more" if len(of_kind) > 1 else ""
            yield Finding(
                "warning",
                "snapshot",
                f"{what}{more}: while it lasts, vacuum removes no row that died since ({behind:,} transactions ago)",
                _ENDING[kind],
            )
    (hidden,) = tx.all("health.hidden")[0]
    if not rows and hidden:
        yield Finding(
            "ok",
            "snapshot",
            f"none is old, as far as can be seen: {hidden} sessions of other roles are hidden from this one",
            "GRANT pg_read_all_stats to the role, or run doctor with another one",
        )
    elif not rows:
        yield Finding("ok", "snapshot", f"no transaction has been open for more than {OLD_SNAPSHOT:g} s")


def _connections(tx: Transaction) -> Finding:
    used, server, of_role, of_database, workers = tx.all("health.connections", {"lasting": LIVES})[0]
    room = min([server, *(limit for limit in (of_role, of_database) if limit >= 0)])
    needed = EACH * workers
    text = f"{used} of {room} connections are in use; {workers} workers need up to {needed}"
    if used < room * FULL and needed <= room:
        return Finding("ok", "connections", text)
    return Finding(
        "warning",
        "connections",
        f"{text}: soon a process gets none",
        "raise max_connections (or the limit of the role or the database), or put PgBouncer before the server",
    )


def _calls(tx: Transaction, schema: str) -> Finding:
    count, why, newer = tx.all("health.refused", {"format": call_format.FORMAT})[0]
    if newer and not count:
        return Finding(
            "warning",
            "calls",
            f"{newer:,} committed calls of users' transactions wait for a worker of a newer version, to read them",
            "upgrade the workers to the version of the producers",
        )
    if not count:
        return Finding("ok", "calls", "no call of a user's transaction was refused")
    remedy = f"correct the cause, and then set the column refused to NULL in these rows of {schema}.intake"
    if str(why).startswith(StorageMovedError.__name__):
        remedy = "run the same `tenure move` again; it moves them, too"
    return Finding(
        "error", "calls", f"no job could be made of {count:,} committed calls of users' transactions: {why}", remedy
    )


def _role(tx: Transaction, schema: str) -> Finding:
    role, owns = tx.all("health.role", {"schema": schema})[0]
    if owns:
        return Finding("ok", "role", f"{role} owns the tables, and may change the schema")
    rows = [tuple(row) for row in tx.all("health.grants", grants.parameters(schema))]
    lacking, for_producers = grants.missing(rows, grants.WORKER), grants.missing(rows, grants.PRODUCER)
    if not lacking:
        return Finding("ok", "role", f"{role} may do all that a worker does; it does not own the tables")
    only = set(grants.privileges(grants.WORKER)) - set(grants.privileges(grants.PRODUCER))
    if only <= set(lacking):
        if not for_producers:
            return Finding("ok", "role", f"{role} may enqueue and read, but not run jobs")
        lacking = for_producers
    shown = ", ".join(f"{one.kind} on {one.table}" for one in lacking[:8])
    more = f" and {len(lacking) - 8} more" if len(lacking) > 8 else ""
    return Finding(
        "error",
        "role",
        f"{role} lacks {shown}{more}",
        "; ".join(one.grant(schema, role) for one in lacking[:8]),
    )
