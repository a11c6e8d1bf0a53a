"""Calls of users' transactions: stores each in the table `intake`, and makes jobs of those that are committed.

a user's transaction ──one insert──► intake ──the next transaction behind the gate──► the verb `enqueue` ──► job

See docs/decisions/035-calls-in-users-transactions.md.
"""

import base64
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import structs

from tenure.core.events import JobThrottled
from tenure.core.job import NewJob, Ref
from tenure.core.text import storable
from tenure.errors import StorageMovedError, UsageError
from tenure.storage.connections import TxConnection, sqlstate
from tenure.storage.postgres import call_format
from tenure.storage.postgres.address import PostgresAddress
from tenure.storage.postgres.statements import STATEMENTS
from tenure.storage.protocol import EnqueueResult
from tenure.storage.sql import exchange
from tenure.storage.sql.columns import Row
from tenure.storage.sql.lists import json_rows
from tenure.storage.sql.settings import records_event
from tenure.storage.sql.transaction import Transaction

LIMIT = 250
BYTES = 8 << 20
"""How many calls one transaction makes jobs of, and after how many bytes it takes no more: all others wait for it."""

ANSWER_KEPT = 86_400_000_000
"""How long the id of a call that became no job leads to the job that exists, in microseconds."""

Enqueue = Callable[[Transaction, Sequence[Sequence[NewJob]]], list[list[EnqueueResult]]]

_MISSING = {"3F000", "42P01"}
_PRIVILEGE = "42501"


async def insert(
    address: PostgresAddress, tx: TxConnection, jobs: Sequence[NewJob], *, identity: str, now: int | None
) -> list[EnqueueResult]:
    """Store calls in a user's transaction by one statement. `identity`: of the schema that the address names.

    Raises:
        UsageError: the connection has no transaction, belongs to another database, or may not insert.
    """
    if tx.dialect != "postgresql":
        raise _elsewhere(address)
    calls = [
        [job.queue, job.id, base64.b64encode(msgspec.msgpack.encode(job)).decode(), call_format.format_of(job)]
        for job in jobs
    ]
    values: dict[str, Any] = {"calls": json_rows(calls), "identity": identity, "now": now}
    try:
        stored = await tx.rows(_insert(address.schema), values)
    except Exception as error:
        state = sqlstate(error)
        if state in _MISSING:
            raise _elsewhere(address) from error
        if state == _PRIVILEGE:
            raise UsageError(
                f"tx: the user of this connection may not enqueue in {address.shown}; grant it USAGE of the schema "
                f"{address.schema}, SELECT on its table meta, and SELECT and INSERT on its table intake"
            ) from error
        raise
    if len(stored) < len(jobs):
        raise _elsewhere(address)
    return [EnqueueResult("pending", job.ref) for job in jobs]


def absorb(tx: Transaction) -> None:
    """Make jobs of calls that users' transactions have committed, in the order of their inserts, at most `LIMIT`.

    A call of which no job can be made stays in the table, with the reason; it does not keep back the others. So does a
    call for a queue whose jobs were moved, until `readmit`. A call of a newer program that this one cannot read waits.
    """
    _store_all(
        tx,
        tx.all("intake.waiting", {"limit": LIMIT, "bytes": BYTES, "format": call_format.FORMAT}),
        exchange.enqueue_all,
    )


def readmit(tx: Transaction, queue: str) -> bool:
    """Make jobs of committed calls for a queue, also if its jobs were moved; return False if there are none (left)."""
    moved = StorageMovedError.__name__
    values = {"queue": queue, "moved": moved, "limit": LIMIT, "bytes": BYTES, "format": call_format.FORMAT}
    rows = tx.all("intake.held", values)
    _store_all(tx, rows, exchange.enqueue_moved)
    return bool(rows)


def newer(tx: Transaction) -> int:
    """Return how many calls that a move would make jobs of only a newer program can read."""
    row = tx.one("intake.newer", {"format": call_format.FORMAT, "moved": StorageMovedError.__name__})
    return 0 if row is None else int(row[0])


def _store_all(tx: Transaction, found: Sequence[Row], enqueue: Enqueue) -> None:
    rows = [(seq, at, bytes(job)) for seq, at, job in found]
    if not rows:
        return
    _, failed = tx.savepoint(lambda: _store(tx, rows, enqueue), None)
    if failed is not None:
        for row in rows:
            one = [row]
            _, why = tx.savepoint(lambda one=one: _store(tx, one, enqueue), None)  # type: ignore[misc]
            if why is not None:
                tx.run("intake.refuse", {"seq": row[0], "why": storable(why)})
    tx.run("intake.forget_answers", {"now": tx.now})


def answered(tx: Transaction, call: Ref) -> Ref | None:
    """Return the job that existed when a call with the same unique key came, or None."""
    row = tx.one("intake.answered", {"queue": call.queue, "id": call.id})
    return None if row is None else Ref(call.queue, row[0])


def refused(tx: Transaction, call: Ref) -> str | None:
    """Return why no job could be made of a call, or None if it is not kept."""
    row = tx.one("intake.refused", {"queue": call.queue, "id": call.id})
    return None if row is None else str(row[0])


def _store(tx: Transaction, rows: Sequence[tuple[int, int, bytes]], enqueue: Enqueue) -> None:
    jobs = [_aged(msgspec.msgpack.decode(job, type=NewJob), at, tx.now) for _, at, job in rows]
    [results] = enqueue(tx, [jobs])
    for job, result in zip(jobs, results, strict=True):
        _answer(tx, job, result)
    tx.run("intake.delete", {"seqs": json_rows([seq for seq, _, _ in rows])})


def _aged(job: NewJob, at: int, now: int) -> NewJob:
    """Return a job whose delay and ttl count from the instant at which its call was stored."""
    run_at = at + job.delay if job.delay and job.run_at is None else job.run_at
    ttl = None if job.ttl is None else max(1, at + job.ttl - now)
    return structs.replace(job, run_at=run_at, ttl=ttl)


def _answer(tx: Transaction, job: NewJob, result: EnqueueResult) -> None:
    """Store what the handle of the call needs in order to find the job that answers for it, or the refusal."""
    if result.action == "duplicate" and result.ref != job.ref:
        values = {"queue": job.queue, "id": job.id, "job": result.ref.id, "until": tx.now + ANSWER_KEPT}
        tx.run("intake.answer", values)
    elif result.action == "throttled" and job.throttle is not None and not records_event(tx, job.queue, "throttled"):
        wait = (result.retry_in or 0) / 1_000_000
        tx.record(JobThrottled(queue=job.queue, id=job.id, task=job.task, key=job.throttle.key, retry_in=wait))


def _insert(schema: str) -> str:
    text = "\n".join(line for line in STATEMENTS["intake.insert"].splitlines() if not line.startswith("--"))
    return text.replace("tenure.", f'"{schema}".').rstrip().rstrip(";")


def _elsewhere(address: PostgresAddress) -> UsageError:
    return UsageError(
        f"tx is not connected to the database of the queue, {address.shown}, or that has no tables of Tenure yet; give "
        "a connection to that database, or enqueue without tx after the commit"
    )
