"""The outbox of an app: stores calls in users' transactions, and gives them to a relay.

    a user's transaction ──one insert──► tenure_outbox ──a relay──► the queue ──► job
                                               ▲
                                        answers, for a day

See docs/decisions/036-outbox.md.
"""

import base64
import functools
import logging
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct, structs

from tenure.clock import SECOND, Clock
from tenure.core.job import NewJob, Ref
from tenure.core.move import CallAnswer, MoveReceipt
from tenure.core.text import storable
from tenure.errors import StorageError, ThrottledError, UsageError
from tenure.outbox.database import NONE, OutboxDatabase, Run, SQLiteOutbox
from tenure.storage.connections import TxConnection, sqlstate
from tenure.storage.protocol import EnqueueResult

LIMIT = 100
"""How many calls of a queue are relayed at once."""

SIZE = 4 << 20
"""How many characters the encoded calls have that are relayed at once, unless it is a single call."""

ANSWER_KEPT = 86_400_000_000
"""How long the id of a call leads to the job that exists, if the call made none. In microseconds."""

LATE = 30 * SECOND
"""From this age on, a call that waits is reported: no relay seems to run. In microseconds."""

CHECK_EVERY = 10.0
"""Seconds between two checks of a producer for calls that no relay has taken."""

WARN_EVERY = 60.0
"""Seconds between two warnings of a producer about them."""

COUNTED = 10_000
"""At most this number of rows is counted."""

T = TypeVar("T")

_PRIVILEGE = "42501"
_MISSING = {"3F000", "42P01"}

_encode = msgspec.json.Encoder().encode
_answers = msgspec.json.Decoder(CallAnswer)


class WaitingQueue(Struct, frozen=True):
    """A queue with calls that wait for a relay. `oldest`: the age of the first one, in microseconds."""

    queue: str
    oldest: int


class OutboxState(Struct, frozen=True):
    """The state of an outbox. `waiting` and `refused`: numbers of calls, at most `COUNTED`. `oldest` in seconds."""

    waiting: int
    refused: int
    oldest: float


class StoredCall(Struct, frozen=True):
    """A row. `age`: how long ago its call was stored, in microseconds. `now`: the database's clock."""

    seq: int
    id: str
    job: str
    age: int
    now: int

    @property
    def name(self) -> str:
        """Its name in a batch. After a restore from a backup an outbox may use a number again, but with another id."""
        return f"{self.seq}/{self.id}"

    def decoded(self) -> NewJob:
        """Return the job as it is enqueued now: with what is left of its durations.

        Raises:
            ValueError: it cannot be read.
        """
        job = _decoded(self.job)
        delay = job.delay - self.age if job.run_at is None else job.run_at - self.now
        ttl = None if job.ttl is None else max(1, job.ttl - self.age)
        return structs.replace(job, delay=max(0, delay), run_at=None, ttl=ttl)


class Outbox:
    """An outbox. `url`: without passwords. `address`: with them, for another process."""

    def __init__(self, database: OutboxDatabase, *, clock: Clock, logger: logging.Logger) -> None:
        self._database = database
        self._clock = clock
        self._logger = logger
        self._identity: str | None = None
        self._checked_at = self._warned_at = float("-inf")
        self.url, self.address = database.url, database.address

    # ── the table ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Create the table if it is missing, and read its identity.

        Raises:
            StorageError: the database cannot be reached, or does not let this user create the table.
        """
        if self._identity is not None:
            return
        found = await self._read_identity()
        if found is None:
            await self.create()
            found = await self._read_identity()
        if found is None:
            raise StorageError(f"{self.url}: the first row of tenure_outbox is missing; run `tenure migrate up`")
        self._identity = found

    async def exists(self) -> bool:
        """Return True if the table is there."""
        return await self._read_identity() is not None

    async def create(self) -> None:
        """Create the table, or what is missing of it. Idempotent."""
        await self._database.transaction(self._database.create)

    def tables(self) -> str:
        """Return the statements by which the table is created."""
        return self._database.statements["tables"] + ";\n"

    async def close(self) -> None:
        """Close the connection; the next use opens another one."""
        await self._database.close()

    async def _read_identity(self) -> str | None:
        def read(run: Run) -> str | None:
            [[exists]] = run("exists", {"name": self._database.table_name()})
            rows = run("identity", NONE) if exists else []
            return str(rows[0][0]) if rows else None

        return await self._database.transaction(read, writes=False)

    # ── the producer ──────────────────────────────────────────────────────────────────────────────────────────────

    async def prepare_tx(self) -> None:
        """See `TransactionalStorage.prepare_tx`."""
        await self.open()

    async def enqueue_in(self, tx: TxConnection, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """See `TransactionalStorage.enqueue_in`. The receipts are all `pending`."""
        if tx.dialect != self._database.dialect:
            raise self._elsewhere()
        calls = [[job.queue, job.id, base64.b64encode(msgspec.msgpack.encode(job)).decode()] for job in jobs]
        text = _encode(calls).decode()
        insert = self._database.statements["insert"]
        if isinstance(self._database, SQLiteOutbox):
            await tx.run(functools.partial(_insert, insert, self._database.path, text))
        else:
            await self._insert(tx, insert, text, len(jobs))
        return [EnqueueResult("pending", job.ref) for job in jobs]

    async def absorb(self) -> None:
        """See `TransactionalStorage.absorb`: the relays do it."""

    async def _insert(self, tx: TxConnection, insert: str, calls: str, number: int) -> None:
        try:
            rows = await tx.rows(insert, {"calls": calls, "identity": self._identity or ""})
        except Exception as error:
            state = sqlstate(error)
            if state in _MISSING:
                raise self._elsewhere() from error
            if state == _PRIVILEGE:
                raise UsageError(
                    f"tx: the user of this connection may not write to the outbox in {self.url}; grant it SELECT and "
                    "INSERT on the table tenure_outbox"
                ) from error
            raise
        if len(rows) < number:
            raise self._elsewhere()

    def _elsewhere(self) -> UsageError:
        return UsageError(
            f"tx is not connected to the database of the outbox, {self.url}; give a connection to that database, or "
            "enqueue without tx after the commit"
        )

    def check_is_due(self) -> bool:
        """Return True every `CHECK_EVERY` seconds: then a producer calls `check`, in the background."""
        now = self._clock.uptime()
        due = now >= self._checked_at + CHECK_EVERY
        if due:
            self._checked_at = now
        return due

    async def check(self) -> None:
        """Log a warning if calls have waited for too long.

        Raises:
            StorageError: the database cannot be reached.
        """
        oldest = max((one.oldest for one in await self.queues()), default=0)
        now = self._clock.uptime()
        if oldest >= LATE and now >= self._warned_at + WARN_EVERY:
            self._warned_at = now
            self._logger.warning(
                "calls in the outbox %s have waited for up to %d s, and no relay takes them; start a worker of this "
                "app, or tenure relay, and look into its log",
                self.url,
                oldest // SECOND,
            )

    # ── handles ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def find(self, call: Ref) -> Literal["waiting"] | Ref | UsageError | None:
        """Return the job that answers for a call, or its refusal. None: it was relayed, or is not committed.

        Raises:
            StorageError: the database cannot be reached.
        """
        values = {"queue": call.queue, "id": call.id}
        rows = await self._database.transaction(lambda run: run("find", values), writes=False)
        if not rows:
            return None
        [text, job] = rows[0]
        if text is None:
            return "waiting"
        answer = _answers.decode(text)
        match answer.action:
            case "refused":
                return UsageError(
                    f"no job was made of call {call.id} in the outbox {self.url}: {answer.why}; run `tenure doctor` "
                    "for what to do"
                )
            case "throttled":
                refused = _decoded(job)
                key = "" if refused.throttle is None else refused.throttle.key.partition(":")[2]
                return ThrottledError(refused.task, key or None, (answer.retry_in or 0) / SECOND, skipped=True)
            case _:
                return Ref(call.queue, answer.id)

    async def state(self) -> OutboxState:
        """Return how many calls wait, and for how long.

        Raises:
            StorageError: the database cannot be reached.
        """

        def read(run: Run) -> OutboxState:
            [[waiting, refused]] = run("counts", {"limit": COUNTED})
            oldest = max((age for _, age in run("queues", NONE)), default=0)
            return OutboxState(waiting, refused, max(0, oldest) / SECOND)

        return await self._database.transaction(read, writes=False)

    # ── the relay ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def identity(self) -> str:
        """The identity of the table, which names its calls in the target. The outbox must be open."""
        if self._identity is None:
            raise AssertionError("the outbox is open")
        return self._identity

    async def queues(self) -> list[WaitingQueue]:
        """Return the queues for which calls wait.

        Raises:
            StorageError: the database cannot be reached.
        """
        rows = await self._database.transaction(lambda run: run("queues", NONE), writes=False)
        return [WaitingQueue(queue, max(0, age)) for queue, age in rows]

    async def waiting(self, queue: str, *, limit: int = LIMIT) -> list[StoredCall]:
        """Return the first calls of a queue, in the order of their inserts, as many as one batch takes.

        Raises:
            StorageError: the database cannot be reached.
        """
        values = {"queue": queue, "limit": limit, "size": SIZE}
        rows = await self._database.transaction(lambda run: run("waiting", values), writes=False)
        return [StoredCall(seq, id_, job or "", max(0, now - at), now) for seq, id_, at, job, now in rows]

    async def settle(self, queue: str, receipt: MoveReceipt) -> None:
        """Delete the calls that a batch has brought. Keep for a day what the handles of some need. Idempotent.

        Raises:
            StorageError: the database cannot be reached.
        """
        if not receipt.taken:
            return
        answers = {answer.name: answer for answer in receipt.answers}
        gone = [_place(name) for name in receipt.taken if name not in answers]

        def write(run: Run) -> None:
            run("delete", {"queue": queue, "calls": _encode(gone).decode()})
            for name, answer in answers.items():
                seq, id_ = _place(name)
                values = {"queue": queue, "seq": seq, "id": id_, "answer": _encode(answer).decode()}
                run("answer", {**values, "keep": ANSWER_KEPT, "throttled": int(answer.action == "throttled")})

        await self._database.transaction(write)

    async def refuse(self, queue: str, call: StoredCall, why: str) -> None:
        """Keep a call of which no job can be made, with the reason, apart from those that wait.

        Raises:
            StorageError: the database cannot be reached.
        """
        answer = CallAnswer(call.name, "refused", call.id, why=storable(why))
        values = {"queue": queue, "seq": call.seq, "id": call.id, "answer": _encode(answer).decode()}
        await self._database.transaction(lambda run: run("refuse", values))

    async def forget(self) -> None:
        """Delete answers that were kept for long enough.

        Raises:
            StorageError: the database cannot be reached.
        """
        await self._database.transaction(lambda run: run("forget", NONE))


def _insert(statement: str, path: str, calls: str, connection: Any) -> None:
    # A process without such an outbox does not import the SQLite storage.
    from tenure.storage.sqlite.user_transaction import on_file

    with on_file(connection, path, of="outbox"):
        connection.cursor().execute(statement, {"calls": calls})


def _decoded(job: str) -> NewJob:
    return msgspec.msgpack.decode(base64.b64decode(job), type=NewJob)


def _place(name: str) -> tuple[int, str]:
    seq, _, id_ = name.partition("/")
    return int(seq), id_
