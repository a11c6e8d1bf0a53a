"""Sends signals: messages for the handler of one job, which are kept until it reads them."""

from collections.abc import Awaitable, Callable

from tenure.client.handle import Job
from tenure.client.step_values import StepValues
from tenure.core.check import named, shown
from tenure.core.lifecycle import TERMINAL
from tenure.core.steps import SIGNAL_BYTES, is_step_name
from tenure.core.waiting import SIGNAL, WaitToken
from tenure.errors import JobNotFoundError, MailboxFullError, PayloadTooLargeError, UsageError
from tenure.storage.protocol import Storage
from tenure.storage.waiting import DeliverToken


async def send_signal(
    job: Job[object],
    name: str,
    value: object,
    message_id: str,
    *,
    values: StepValues,
    opened: Callable[[], Awaitable[Storage]],
) -> bool:
    """Send a signal to a job; see `Tenure.signal`."""
    if not is_step_name(name):
        raise UsageError(f"the name {shown(name)} of a signal must have 1 to 64 letters, digits, '_' or '-'")
    body = values.encode(value, f"signal {name!r}")
    if len(body) > SIGNAL_BYTES:
        raise PayloadTooLargeError(name, len(body), SIGNAL_BYTES, "the content of the signal")
    token = WaitToken(f"{SIGNAL}{name}", named(message_id, field="message_id"), body=body)
    storage = await opened()
    ref = await job.locate()
    (result,) = await storage.revise([DeliverToken(ref, token)])
    if result.verdict == "gone":
        raise JobNotFoundError(
            ref.id, f"no job {ref.id!r} in queue {ref.queue!r}: never enqueued there, deleted, or past its retention"
        )
    if result.verdict == "refused" and result.state not in TERMINAL:
        raise MailboxFullError(ref.id, name)
    return result.verdict == "done"
