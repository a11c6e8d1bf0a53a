"""The records of a move of jobs from one storage to another."""

from msgspec import Struct, structs

from tenure.core.job import JobDetail, JobRecord


class MoveMark(Struct, frozen=True, omit_defaults=True):
    """Marks a queue whose jobs move to another storage: it gives out no jobs and takes none.

    `to`: the other storage's address, without secrets; empty if the queue is open again. `id`: the move's id.
    """

    to: str = ""
    id: str = ""


class MoveBatch(Struct, frozen=True):
    """Jobs of one queue that arrive from another storage.

    `move`: the id of the move, under which the storage keeps a number for each queue. `expected`: that number, as the
    sender knows it; each batch raises it, so that a sender that was overtaken by another one brings nothing. None: the
    sender only asks for the number.
    """

    move: str
    queue: str
    expected: int | None = None
    jobs: tuple[JobDetail, ...] = ()


class MoveReceipt(Struct, frozen=True):
    """The answer to a batch.

    `number`: the number after this call. `taken`: the ids of the jobs that the latest batch brought; the sender deletes
    them at their former storage. `applied`: False if the number was not the expected one, or only asked for.
    """

    number: int = 0
    taken: tuple[str, ...] = ()
    applied: bool = False


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
