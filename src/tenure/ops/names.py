"""The names that a storage and an app know: of queues, tasks, schedules and workers."""

from collections.abc import Mapping

from msgspec import Struct

from tenure.core.internal import is_internal
from tenure.core.suggestion import did_you_mean
from tenure.storage.protocol import Query, Storage, Survey, Target


class KnownNames(Struct, frozen=True):
    """Names that something uses: a job, a worker, a schedule, a setting, or a task of the app.

    `workers`: the names and owner ids of workers. A storage knows only the tasks that its workers, schedules and
    settings name.
    """

    queues: frozenset[str]
    tasks: frozenset[str]
    schedules: frozenset[str]
    workers: frozenset[str]


def known_names(survey: Survey, tasks: Mapping[str, str]) -> KnownNames:
    """Return the known names. `tasks`: the queue of each task of the app; empty without an app."""
    jobs = [schedule.job for schedule in survey.schedules]
    return KnownNames(
        queues=frozenset(
            {
                *(queue.queue for queue in survey.queues),
                *(queue for worker in survey.workers for queue in worker.queues if not is_internal(queue)),
                *(job.queue for job in jobs),
                *tasks.values(),
            }
        ),
        tasks=frozenset(
            {
                *(task for worker in survey.workers for task in worker.tasks or ()),
                *(unknown.task for queue in survey.queues for unknown in queue.unknown),
                *(job.task for job in jobs),
                *survey.task_rates,
                *(task for task in survey.paused_tasks if not is_internal(task)),
                *tasks,
            }
        ),
        schedules=frozenset(schedule.name for schedule in survey.schedules),
        workers=frozenset(name for worker in survey.workers for name in (worker.owner.name, worker.owner.id)),
    )


async def unknown_targets(storage: Storage, names: KnownNames, targets: list[Target]) -> list[tuple[Target, str]]:
    """Return the queues and tasks that nothing uses, each with the end of a message that suggests similar names."""
    found: list[tuple[Target, str]] = []
    for target in targets:
        known = names.queues if target.kind == "queue" else names.tasks
        if target.name in known:
            continue
        if target.kind == "task" and (await storage.find(Query(tasks=(target.name,), limit=1))).jobs:
            # Its jobs may lie there while no worker runs.
            continue
        found.append((target, did_you_mean(target.name, sorted(known))))
    return found
