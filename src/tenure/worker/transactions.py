"""The transactions of handlers: what the worker does when one begins, completes its job, or ends.

begin ──► the handler's own writes ──► settling: a lost lease stops the run no more ──► committed: the run is settled
                                          └─ the run is not the current one: `LeaseLostError`, rolled back
"""

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tenure.client.codec import Codec
from tenure.client.task import Task
from tenure.clock import Clock
from tenure.core.job import Owner
from tenure.core.outcome import Returned
from tenure.core.settlement import settlement
from tenure.errors import LeaseLostError, UsageError
from tenure.handlers.transaction import JobTransaction, TransactionSteps
from tenure.storage.protocol import RenewRequest, Storage, StorageTransaction, SupportsTransactions
from tenure.threads import ThreadPool, WorkerThread, unwrapped
from tenure.worker.active_runs import ActiveRun, RunKey


class Transactions:
    """Opens the transactions of the runs of one process. `find`: returns the run of a job and fence."""

    def __init__(
        self,
        storage: Storage,
        tasks: Mapping[str, Task[..., Any]],
        codec: Codec,
        threads: ThreadPool,
        clock: Clock,
        rng: Random,
        *,
        find: Callable[[RunKey], ActiveRun | None],
        settled: Callable[[ActiveRun], object],
    ) -> None:
        """`settled`: called with a run that its transaction has settled, in any thread."""
        self.storage, self.threads, self.clock, self.rng = storage, threads, clock, rng
        self.settled = settled
        self._tasks, self._codec = tasks, codec
        self._find = find

    def open(self, key: RunKey, connection: object) -> JobTransaction[Any]:
        """Return a transaction of a run. `connection`: the handler's connection or session, or None.

        Raises:
            UsageError: the storage has no such transactions, or the run has ended.
        """
        storage, run = self.storage, self._find(key)
        if not isinstance(storage, SupportsTransactions):
            raise UsageError(
                "transaction(): this storage has no transactions for handlers; PostgreSQL and SQLite have them. Make "
                "the handler's effects idempotent instead, with current_job().idempotency_key or .fence"
            )
        if run is None or run.over or run.settled:
            raise UsageError(
                "transaction(): this run is settled already: a transaction has completed the job, or the run was "
                "stopped"
            )

        def open_steps(loop: asyncio.AbstractEventLoop | None) -> TransactionSteps:
            if run.in_transaction:
                raise UsageError("transaction(): another transaction of this run is open; end it first")
            return RunTransaction(self, run, storage.transaction(connection, loop)).steps

        return JobTransaction(open_steps)

    def encode(self, run: ActiveRun, result: object) -> bytes:
        """Return the result of a run as bytes."""
        return self._tasks[run.lease.job.task].signature.encode_result(self._codec, result)


class RunTransaction:
    """One transaction of a run."""

    def __init__(self, owner: Transactions, run: ActiveRun, transaction: StorageTransaction) -> None:
        self._all, self._run, self._transaction = owner, run, transaction
        self._result: bytes | None = None
        self._thread: WorkerThread | None = None
        self._waits = False
        """True in a step that may wait for long and that a cancellation interrupts."""

    @property
    def steps(self) -> TransactionSteps:
        """The steps of the block."""
        return TransactionSteps(
            connection=lambda: self._transaction.connection,
            begin=self.begin,
            set_result=self.set_result,
            complete=self.complete,
            close=self.close,
            from_loop=self.from_loop,
        )

    def begin(self) -> None:
        """See `TransactionSteps.begin`."""
        self._run.in_transaction = self._waits = True
        self._run.roll_back = self._transaction.abandon
        self._transaction.begin()
        self._waits = False

    def set_result(self, result: object) -> None:
        """See `TransactionSteps.set_result`."""
        self._result = self._all.encode(self._run, result)

    def complete(self) -> None:
        """See `TransactionSteps.complete`.

        Raises:
            LeaseLostError: the run is not the current one.
        """
        run, clock = self._run, self._all.clock
        if self._result is None:
            self.set_result(None)
        result = self._result or b""
        self._waits = True
        self._transaction.prepare()
        self._waits, run.settling = False, True
        try:
            now = clock.uptime()
            entry = settlement(run.lease, Returned(result), self._all.rng, took=max(0.0, now - run.claimed_at))
            # A beat that is in flight may arrive after the commit, and would be refused.
            run.signs.recall()
            message = run.renewal(now) if run.signs.pending else None
            beat = RenewRequest(Owner(run.lease.job.owner or ""), () if message is None else (message.renewal,))
            verdict = None
            try:
                verdict = self._transaction.complete(beat, entry)
            finally:
                if message is not None and verdict != "done":
                    message.take_back()
            if verdict != "done":
                run.refused = True
                raise LeaseLostError(
                    f"job {run.lease.ref.id}: this run is not the current one any more (its lease ran out, or it was "
                    "stopped), so its transaction was rolled back"
                )
        except BaseException:
            run.settling = False
            raise
        run.settled = True
        self._all.settled(run)
        if self._transaction.late_error is not None:
            raise self._transaction.late_error

    def close(self) -> None:
        """See `TransactionSteps.close`."""
        self._waits = self._run.in_transaction = False
        self._run.roll_back = None
        self._transaction.close()

    async def from_loop(self, step: Callable[[], None]) -> None:
        """See `TransactionSteps.from_loop`."""
        if self._thread is None:
            self._thread = self._all.threads.worker_thread()
        thread = self._thread
        running = asyncio.ensure_future(thread.run(step))
        cancelled: asyncio.CancelledError | None = None
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError as error:
                cancelled = error
                if self._waits:
                    self._transaction.interrupt()
        if not self._run.in_transaction:
            thread.close()
        if cancelled is not None:
            # The step's own failure follows from the cancellation, or makes no difference to it.
            running.exception()
            raise cancelled
        failure = running.exception()
        if failure is not None:
            raise unwrapped(failure)
