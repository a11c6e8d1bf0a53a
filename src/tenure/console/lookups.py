"""Finds what a request names in its path, as far as its user may see it."""

from collections.abc import Mapping
from typing import Literal

from msgspec import structs

from tenure.console.problems import ProblemPart, from_message, unknown_job, unknown_name
from tenure.console.routes import ApiCall
from tenure.core.check import named
from tenure.core.job import Ref
from tenure.core.schedule import Schedule
from tenure.errors import UsageError
from tenure.ops.names import KnownNames
from tenure.ops.webhook_service import BoundWebhook
from tenure.ops.workers import UnknownWorkerError, find_worker
from tenure.storage.protocol import QueueSurvey, Survey, WorkerSurvey
from tenure.webhooks.declaration import Webhook


async def survey_of(call: ApiCall) -> Survey:
    """Return a survey with the queues that the user may see, their schedules and their workers."""
    return narrowed(call, await call.access.storage.survey())


def narrowed(call: ApiCall, found: Survey) -> Survey:
    """Return the part of a survey that the user may see."""
    if not call.narrowed:
        return found
    sees, names = call.user.sees, _tasks_seen(call, found)
    seen: list[WorkerSurvey] = []
    for worker in found.workers:
        if served := tuple(queue for queue in worker.queues if sees(queue)):
            unstopped = tuple(ref for ref in worker.unstopped if sees(ref.queue))
            tasks = worker.tasks
            if tasks is not None:
                tasks = {name: version for name, version in tasks.items() if name in names}
            seen.append(structs.replace(worker, queues=served, unstopped=unstopped, tasks=tasks))
    return structs.replace(
        found,
        queues=tuple(queue for queue in found.queues if sees(queue.queue)),
        schedules=tuple(schedule for schedule in found.schedules if sees(schedule.job.queue)),
        workers=tuple(seen),
        paused_tasks=tuple(name for name in found.paused_tasks if name in names),
        task_rates={name: rate for name, rate in found.task_rates.items() if name in names},
    )


def _tasks_seen(call: ApiCall, found: Survey) -> set[str]:
    """Return the tasks that a user who sees some queues may see.

    A worker does not say which of its tasks belong to which of its queues, so those of a worker that also serves other
    queues do not count.
    """
    sees = call.user.sees
    return {
        *(name for name, task in (call.access.tasks or {}).items() if sees(task.queue)),
        *(schedule.job.task for schedule in found.schedules if sees(schedule.job.queue)),
        *(unknown.task for queue in found.queues if sees(queue.queue) for unknown in queue.unknown),
        *(
            name
            for worker in found.workers
            if worker.queues and all(map(sees, worker.queues))
            for name in worker.tasks or ()
        ),
    }


def known_of(call: ApiCall, found: Survey) -> KnownNames:
    """Return the names that the storage and the app know, as far as the user may see them."""
    known = call.access.known(found)
    if not call.narrowed:
        return known
    # The app knows queues that this user may not see, and their tasks.
    hidden = {name for name, task in (call.access.tasks or {}).items() if not call.user.sees(task.queue)}
    return structs.replace(
        known, queues=frozenset(filter(call.user.sees, known.queues)), tasks=frozenset(known.tasks - hidden)
    )


async def queue_of(call: ApiCall) -> tuple[QueueSurvey, int]:
    """Return the queue in the path, and the time of the storage's clock."""
    found = await survey_of(call)
    name, known = call.path["queue"], known_of(call, found).queues
    if name not in known:
        raise unknown_name("unknown-queue", "queue", name, sorted(known))
    by_name = {queue.queue: queue for queue in found.queues}
    return by_name.get(name, QueueSurvey(queue=name)), found.now


def ref_of(call: ApiCall) -> Ref:
    """Return the job in the path.

    Raises:
        ProblemError: a name is invalid, or the user may not see its queue; then the answer is that of a job that does
            not exist.
    """
    queue, job_id = (name_of(call.path[field], field, "path") for field in ("queue", "id"))
    if not call.user.sees(queue):
        raise unknown_job(f"no job {job_id!r} in queue {queue!r}: never enqueued there, deleted, or past its retention")
    return Ref(queue, job_id)


def name_of(text: str, field: str, place: Literal["path", "query"]) -> str:
    """Return the name of a queue, task or job in a request."""
    try:
        return named(text, field=field)
    except UsageError as error:
        parts = [ProblemPart(f"/{place}/{field}", str(error))]
        raise from_message("invalid-parameter", str(error), errors=parts) from error


async def worker_of(call: ApiCall) -> tuple[Survey, WorkerSurvey]:
    """Return the worker in the path, and the survey that it is from."""
    found, name = await survey_of(call), call.path["worker"]
    try:
        return found, find_worker(found, name)
    except UnknownWorkerError:
        raise unknown_name("unknown-worker", "worker", name, sorted(known_of(call, found).workers)) from None
    except UsageError as error:
        parts = [ProblemPart("/path/worker", str(error))]
        raise from_message("invalid-parameter", str(error), errors=parts) from error


def webhooks_of(call: ApiCall) -> Mapping[str, Webhook]:
    """Return the webhooks. A user who sees some queues only sees none of them, since they are about all queues."""
    return dict[str, Webhook]() if call.narrowed else call.access.webhooks


def webhook_of(call: ApiCall) -> BoundWebhook:
    """Return the webhook in the path."""
    known = webhooks_of(call)
    name = call.path["webhook"]
    if name not in known:
        raise unknown_name("unknown-webhook", "webhook", name, sorted(known))
    return BoundWebhook.of(known[name], call.access.storage, call.access.timing)


async def schedule_of(call: ApiCall) -> tuple[Schedule, int]:
    """Return the schedule in the path, and the time of the storage's clock."""
    found = await survey_of(call)
    known = {schedule.name: schedule for schedule in found.schedules}
    name = call.path["schedule"]
    if name not in known:
        raise unknown_name("unknown-schedule", "schedule", name, sorted(known))
    return known[name], found.now
