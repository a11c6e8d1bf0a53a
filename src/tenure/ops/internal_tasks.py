"""All that the processes do which serve the internal queues."""

from collections.abc import Awaitable, Callable

from tenure.ops.access import StorageAccess
from tenure.ops.bulk_run import BULK
from tenure.ops.internal import InternalTask, InternalWorker
from tenure.ops.webhook_service import webhook_readers, webhook_tasks


def internal_worker(access: Callable[[], Awaitable[StorageAccess]]) -> InternalWorker:
    """Return a worker for the internal queues: bulk operations, and the webhooks of the app."""
    return InternalWorker(access, _tasks, webhook_readers)


def _tasks(access: StorageAccess) -> list[InternalTask]:
    return [BULK, *webhook_tasks(access)]
