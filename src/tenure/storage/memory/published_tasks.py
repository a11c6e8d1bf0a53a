"""The tasks that workers have published, in memory."""

from collections.abc import Sequence

from msgspec import structs

from tenure.clock import Clock
from tenure.core.published import (
    PUBLISHED_MOST,
    PublishedTask,
    encode_body,
    is_known,
    replaces,
    without_schemas,
)


class PublishedTasks:
    """What workers have published about their tasks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[str, PublishedTask] = {}

    def publish(self, tasks: Sequence[PublishedTask], *, renewal: bool) -> None:
        """Store each task, or renew it."""
        now = self._clock.now()
        for task in tasks:
            stored = self._tasks.get(task.name)
            if stored is None or replaces(
                stored.digest, stored.published, encode_body(stored), task, now, renewal=renewal
            ):
                self._tasks[task.name] = structs.replace(task, published=now)
        latest = sorted(self._tasks.values(), key=lambda task: (task.published, task.name), reverse=True)
        self._tasks = {task.name: task for task in latest[:PUBLISHED_MOST] if is_known(task.published, now)}

    def published(self, names: Sequence[str] | None) -> list[PublishedTask]:
        """Return these tasks with their schemas, or all without."""
        now = self._clock.now()
        return [
            task if names is not None else without_schemas(task)
            for name, task in sorted(self._tasks.items())
            if (names is None or name in names) and is_known(task.published, now)
        ]
