"""The records of a move of jobs, or of calls, from one place to another."""

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct, structs

from tenure.core.deduplication import EnqueueAction
from tenure.core.job import JobDetail, JobRecord, NewJob


class MoveMark(Struct, frozen=True, omit_defaults=True):
    """Marks a queue whose jobs move to another storage: it gives out no jobs and takes none.

    `to`: the other storage's address, without secrets; empty if the queue is open again. `id`: the move's id.
    """

    to: str = ""
    id: str = ""


class Call(Struct, frozen=True):
    """A call of an outbox. `name`: identifies it in its outbox, also if a later call has the same id."""

    name: str
    job: NewJob


class CallAnswer(Struct, frozen=True):
    """What an enqueue of a call did, if it did not make a job with the call's id; see `EnqueueResult`.

    `id`: the id of the job that answers for the call. `refused`: no job can be made of it, and `why`.
    """

    name: str
    action: EnqueueAction | Literal["refused"]
    id: str
    retry_in: int | None = None
    why: str = ""


class MoveBatch(Struct, frozen=True):
    """Jobs of one queue that arrive from another storage, or calls that arrive from an outbox.

    `move`: the id of the move, under which the storage keeps a number for each queue. `expected`: that number, as the
    sender knows it; each batch raises it, so that a sender that was overtaken by another one brings nothing. None: the
    sender only asks for the number.
    """

    move: str
    queue: str
    expected: int | None = None
    jobs: tuple[JobDetail, ...] = ()
    calls: tuple[Call, ...] = ()


class MoveReceipt(Struct, frozen=True):
    """The answer to a batch.

    `number`: the number after this call. `taken`: the ids of the jobs, and the names of the calls, that the latest
    batch brought; the sender deletes them where they come from. `answers`: for some of these calls, what they did.
    `applied`: False if the number was not the expected one, or only asked for.
    """

    number: int = 0
    taken: tuple[str, ...] = ()
    answers: tuple[CallAnswer, ...] = ()
    applied: bool = False


def answers_of(
    calls: Sequence[Call], results: Iterable[tuple[EnqueueAction, str, int | None]]
) -> tuple[CallAnswer, ...]:
    """Return the answers to the calls whose ids do not lead to a job. A result has the fields of an answer."""
    return tuple(
        CallAnswer(call.name, action, id_, retry_in)
        for call, (action, id_, retry_in) in zip(calls, results, strict=True)
        if action == "throttled" or id_ != call.job.id
    )


def as_moved(job: JobRecord) -> JobRecord:
    """Return a job that is not active as it arrives in another storage: without a place where it is parked."""
    return structs.replace(
        job,
        parked_under=None,
        owner=None,
        heard_at=None,
        lease_until=None,
        suspect_until=None,
        run_until=None,
        progress_until=None,
    )
