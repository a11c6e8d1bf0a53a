"""The tasks that a worker knows, each with the newest payload version that it can read."""

from collections.abc import Mapping
from typing import Any

from tenure.client.task import Task
from tenure.core.job import JobRecord
from tenure.core.outcome import UnknownReason


class KnownTasks:
    """The tasks of a worker, in the form that claims and beats send."""

    def __init__(self, tasks: Mapping[str, Task[..., Any]]) -> None:
        self._tasks = tasks
        self._versions: dict[str, int] = {}

    @property
    def versions(self) -> dict[str, int]:
        """Each task with its newest payload version. The same dict is returned until a task is added."""
        if len(self._versions) != len(self._tasks):
            self._versions = {name: task.migrations.version for name, task in self._tasks.items()}
        return self._versions


def why_unknown(tasks: Mapping[str, Task[..., Any]], job: JobRecord) -> UnknownReason | None:
    """Return why a job cannot run with these tasks. None if it can.

    A job whose record cannot be read does not count as unknown: it fails. Its task name may be part of what is
    unreadable.
    """
    if job.unreadable is not None:
        return None
    task = tasks.get(job.task)
    if task is None:
        return "unknown_task"
    return "newer_payload" if job.policy.version > task.migrations.version else None
