"""Jobs that were claimed by a call whose answer never came: this worker's, by the storage's books, and run by nobody.

They would stall after a lease and a grace, charged with a stall for a run that never was. Whoever knows that an answer
is missing looks for them and hands them back.
"""

from collections.abc import Callable

from holdfast.core.lease import Lease
from holdfast.core.lifecycle import State
from holdfast.storage.protocol import Query, Storage
from holdfast.worker.held import Held, RunKey

PAGE = 500


async def strays(
    storage: Storage, owner: str, queues: tuple[str, ...], held: Callable[[RunKey], Held | None]
) -> list[Lease]:
    """Return what the storage takes this owner to run in these queues, and what is not held.

    Raises:
        StorageError: it cannot be asked.
    """
    found: list[Lease] = []
    after: str | None = None
    while True:
        page = await storage.find(Query(queues=queues, states=(State.ACTIVE,), limit=PAGE, after=after))
        refs = [job.ref for job in page.jobs if job.owner == owner and held((job.ref, job.fence)) is None]
        for detail in await storage.get(refs) if refs else ():
            if detail is None or detail.job.owner != owner or held((detail.job.ref, detail.job.fence)) is not None:
                continue
            # What our reaper has reclaimed is ours, too, but under another fence than its run; it settles that itself.
            if detail.job.state is State.ACTIVE and detail.runs and detail.runs[-1].fence == detail.job.fence:
                found.append(Lease(detail.job))
        if page.next is None:
            return found
        after = page.next
