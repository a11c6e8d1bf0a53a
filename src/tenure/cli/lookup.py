"""Finds a job by its id, and a worker by its owner id, name or process id."""

import getpass
import socket
from collections.abc import Callable, Sequence

import click

from tenure.cli.access import StorageAccess
from tenure.cli.exits import NotFound
from tenure.client.job_search import find_record
from tenure.core.job import JobRecord
from tenure.core.suggestion import did_you_mean
from tenure.core.text import storable
from tenure.errors import UsageError
from tenure.ops.names import known_names, unknown_targets
from tenure.storage.protocol import Storage, Survey, Target, WorkerSurvey

SHOWN = 10
"""How many matches an error message lists if a name is ambiguous."""


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
    ways: list[Callable[[WorkerSurvey], bool]] = [
        lambda worker: worker.owner.id == name,
        lambda worker: worker.owner.name == name,
        lambda worker: f"{worker.owner.host}:{worker.owner.pid}" == name,
        lambda worker: str(worker.owner.pid) == name,
        lambda worker: worker.owner.id.startswith(name),
    ]
    for is_meant in ways:
        found = [worker for worker in survey.workers if is_meant(worker)]
        # A restarted process may have the name and the process id of the one before it.
        living = [worker for worker in found if not worker.died]
        if len(found) > 1 and len(living) != 1:
            names = ", ".join(sorted(f"{match.owner.id} ({match.owner.name})" for match in found[:SHOWN]))
            raise UsageError(f"{name!r} is the name of several workers ({names}); name one by its owner id")
        if found:
            return (living or found)[0]
    meant = did_you_mean(name, sorted(known_names(survey, {}).workers))
    raise NotFound(f"no worker {name!r} exists{f'{meant} See' if meant else '; see'} tenure workers list")


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
