"""Enqueues a call that names its task: checked by the task of the app, or by name alone without one."""

import logging
from typing import Any

from msgspec import Struct, structs

from tenure.client.codec import JsonCodec
from tenure.client.encoder import CallEncoder
from tenure.client.job_template import JobTemplate
from tenure.client.signature import PAYLOAD_LIMIT, Signature
from tenure.core.job import NewJob
from tenure.errors import PayloadTooLargeError, UsageError
from tenure.ops.access import StorageAccess
from tenure.options.tasks import CallOptions, TaskOptions
from tenure.storage.protocol import EnqueueResult, Survey

DEFAULT_QUEUE = "default"
"""The queue of a call by name alone."""


class NamedCall(Struct, frozen=True):
    """A call as it was given: the name of the task, the arguments by name or in order, and the options of the call."""

    task: str
    arguments: dict[str, Any] | list[Any]
    options: CallOptions


def job_of(access: StorageAccess, call: NamedCall, survey: Survey, new_id: str) -> NewJob:
    """Return the job of a call. `new_id`: its id, if the options name none.

    If the app has the task, its signature checks the arguments and its options apply. Otherwise the arguments are not
    checked, and the job has the default options.

    Raises:
        UsageError: an argument or an option is invalid, or arguments in order are given without the app's task.
    """
    options = call.options.copy()
    options.setdefault("id", new_id)
    task = (access.tasks or {}).get(call.task)
    if task is None:
        return _by_name(access, structs.replace(call, options=options), survey)
    args, kwargs = task.signature.from_plain(call.arguments)
    return task.options(**options).call(*args, **kwargs).job


async def enqueue_job(access: StorageAccess, job: NewJob) -> EnqueueResult:
    """Enqueue the job of a call, within the `@app.sending` middleware of the app that has its task.

    Raises:
        StorageError: the job may or may not have been stored; it is safe to call again.
    """
    task = (access.tasks or {}).get(job.task)
    if task is not None and (layers := task.binding.app.client.sending):
        [receipt] = await layers.send([job], access.storage.enqueue)
    else:
        [receipt] = await access.storage.enqueue([job])
    return receipt


def _by_name(access: StorageAccess, call: NamedCall, survey: Survey) -> NewJob:
    if isinstance(call.arguments, list):
        raise UsageError("arguments in order need an app, which knows their names; give them by name, or give an app")
    codec = JsonCodec()
    payload = codec.encode(call.arguments)
    if len(payload) > PAYLOAD_LIMIT:
        raise PayloadTooLargeError(call.task, len(payload), PAYLOAD_LIMIT)
    encoder = CallEncoder(codec, new_id=str, logger=logging.getLogger("tenure"))
    signature = Signature(call.task, _no_arguments)
    template = JobTemplate.of_task(call.task, TaskOptions(), access.timing, signature, encoder).with_options(
        call.options
    )
    job = template.call((), {}).job
    # Workers know the current version of the arguments, which is the one that people write.
    version = max((worker.tasks.get(call.task, 1) for worker in survey.workers if worker.tasks), default=1)
    return structs.replace(job, payload=payload, policy=structs.replace(job.policy, version=version))


def _no_arguments() -> None:
    """Stand for a handler that this process does not have."""
