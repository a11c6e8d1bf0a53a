"""Finds a job by its id, and a worker by its owner id, name or process id."""

import getpass
import socket
from collections.abc import Sequence

import click

from tenure.cli.exits import NotFound
from tenure.client.job_search import find_record
from tenure.core.job import JobRecord
from tenure.core.text import storable
from tenure.ops import workers
from tenure.ops.access import StorageAccess
from tenure.ops.names import unknown_targets
from tenure.ops.workers import UnknownWorkerError
from tenure.storage.protocol import Storage, Survey, Target, WorkerSurvey


async def find_job(storage: Storage, job_id: str, queue: str | None) -> JobRecord:
    """Return the only job with this id; without a queue, all queues are searched.

    Raises:
        JobNotFoundError: the job does not exist.
        AmbiguousJobError: several queues have a job with this id, and no queue was named.
    """
    return await find_record(storage, job_id, queue)


async def find_jobs(storage: Storage, ids: Sequence[str], queue: str | None) -> list[JobRecord]:
    """Return the jobs with these ids; one unknown id refuses all of them.

    Raises:
        JobNotFoundError: one of the jobs does not exist.
        AmbiguousJobError: several queues have a job with one of the ids, and no queue was named.
    """
    return [await find_job(storage, job_id, queue) for job_id in dict.fromkeys(ids)]


def find_worker(survey: Survey, name: str) -> WorkerSurvey:
    """Return the only worker with this owner id (or its beginning), name, host:pid, or process id.

    Raises:
        NotFound: the worker does not exist.
        UsageError: several workers match.
    """
    try:
        return workers.find_worker(survey, name)
    except UnknownWorkerError as error:
        raise NotFound(str(error)) from error


async def check_known(access: StorageAccess, targets: list[Target], *, force: bool) -> None:
    """Check that something uses each of these queues and tasks, so that a misspelt name is not set in silence.

    `force`: do not check.

    Raises:
        NotFound: nothing uses one of them.
        StorageError: the storage cannot be reached.
    """
    if force:
        return
    for target, meant in await unknown_targets(access.storage, await access.names(), targets):
        users = "job, worker, schedule or task" if target.kind == "queue" else "job, worker or schedule"
        raise NotFound(
            f"{target.kind} {target.name!r} is unknown: no {users} uses it{f'{meant} Or' if meant else ';'} "
            "give --force to do it anyway"
        )


async def warn_of_unknown(access: StorageAccess, queues: Sequence[str], tasks: Sequence[str] = ()) -> None:
    """Print a warning for each queue and task that nothing uses; for a search that has found nothing."""
    targets = [*(Target("queue", name) for name in queues), *(Target("task", name) for name in tasks)]
    if not targets:
        return
    for target, meant in await unknown_targets(access.storage, await access.names(), targets):
        click.echo(f"warning: {target.kind} {target.name!r} is unknown{meant}", err=True)


def current_user() -> str:
    """Return the user and host of this command, as recorded with an order."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        # A container may run as a user without a name.
        user = "someone"
    return storable(f"{user}@{socket.gethostname()}")
