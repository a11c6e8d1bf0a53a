"""What a storage needs in addition to the verbs so that jobs can move to it from another storage or an outbox."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

from tenure.core.job import Ref
from tenure.core.move import MoveBatch, MoveReceipt
from tenure.errors import StorageMovedError, StorageUnavailableError
from tenure.storage.protocol import Storage


@runtime_checkable
class MoveTarget(Protocol):
    """A storage that can receive jobs."""

    async def receive(self, batch: MoveBatch) -> MoveReceipt:
        """Store jobs that come from another storage, with their whole records, runs and logs: one atomic step.

        The jobs are delayed, waiting or failed, and may run here at once, so their former storage must not give them
        out any more. A job whose id is known here, or whose unique key an unfinished job holds, is not taken.

        Calls of an outbox are enqueued as by `Storage.enqueue`, in the same step.

        Guard: the batch's number is the expected one. So a batch that is sent again brings nothing, and the answer
        names the jobs of the latest batch, even if they have ended and were deleted here since.

        Raises:
            StorageMovedError: the queue's jobs move from here to yet another storage.
        """
        ...


@runtime_checkable
class HoldsCalls(Protocol):
    """A storage that keeps committed calls of users' transactions of which no job could be made.

    The jobs of the queue were moved before, or the call cannot be carried out.
    """

    async def refused(self, call: Ref) -> str | None:
        """Return why no job could be made of a call, or None if the storage keeps no such call."""
        ...

    async def readmit(self, queue: str) -> bool:
        """Make jobs of some of the calls that a queue keeps, although its jobs are moved; False if it keeps none.

        The jobs wait there. Such a call may be merged into a job of the queue, so no copy of a job may be on its way.
        """
        ...

    async def newer_calls(self) -> int:
        """Return how many committed calls `readmit` leaves, because only a newer version can read them."""
        ...


async def require_here(storage: Storage, queues: Sequence[str]) -> None:
    """Check that the jobs of these queues are not moved to another storage. A part that is out of reach passes.

    Raises:
        StorageMovedError: they are.
    """
    with suppress(StorageUnavailableError):
        for queue in (await storage.survey(queues)).queues:
            if (moved_to := queue.settings.moved_to) is not None:
                raise StorageMovedError(queue.queue, moved_to)
