"""All internal tasks, for the processes that serve the internal queues."""

from tenure.ops.bulk_run import BULK

INTERNAL_TASKS = (BULK,)
