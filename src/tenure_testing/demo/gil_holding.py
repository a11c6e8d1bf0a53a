"""The part of the demo in which a handler holds the interpreter, so that its own worker cannot renew its lease."""

from collections.abc import Awaitable, Callable, Iterable

from tenure.core.job import JobDetail, Ref
from tenure.core.lifecycle import TERMINAL, State
from tenure.storage.protocol import Storage
from tenure_testing.demo.audit import seconds
from tenure_testing.demo.tasks import GIL_LEASE, GIL_SECONDS


class GilHolding:
    """Runs this part, one step at a time."""

    def __init__(self, storage: Storage, enqueue: Callable[[], Awaitable[Ref]]) -> None:
        self.ref: Ref | None = None
        self.owner: str | None = None
        """The worker of the run, while the run lasts."""
        self.over = False
        self._storage = storage
        self._enqueue = enqueue

    def lets_in(self, leaders: Iterable[str]) -> bool:
        """Return True if other jobs may be enqueued: the first fault can then hit the leader.

        While the run holds the interpreter, no fault may hit its worker, so another worker must lead.
        """
        return self.over or (self.owner is not None and any(leader != self.owner for leader in leaders))

    async def turn(self) -> str | None:
        """Do the next step, and return a message if there is one."""
        if self.ref is None:
            self.ref = await self._enqueue()
        (detail,) = await self._storage.get([self.ref])
        if detail is None:
            return None
        if detail.job.state in TERMINAL:
            self.over, self.owner = True, None
            return _came_to(detail)
        if detail.job.state is State.ACTIVE and self.owner is None:
            self.owner = detail.job.owner
            return (
                f"GIL HELD   worker {detail.runs[-1].pid} by a handler in C code: "
                f"nothing else runs there for {GIL_SECONDS} s, its lease is {GIL_LEASE} s"
            )
        return None


def _came_to(detail: JobDetail) -> str:
    run = detail.runs[-1]
    who = f"job {detail.job.id} run {run.number} from worker {run.pid}"
    if run.number > 1 or detail.job.state is not State.COMPLETED:
        return f"GIL FREE   {who} is {detail.job.state}: its lease did NOT last"
    return f"  kept       {who}: renewed from outside, completed in {seconds((run.end or run.start) - run.start)}"
