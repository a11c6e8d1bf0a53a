"""An outage of the storage under work: busy workers, a producer that retries, and checks of what happened.

The handlers' log is outside of the storage, and the checks use its time stamps: they show when a worker began its first
job after the outage, independently of when the test looks.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from subprocess import Popen

from tenure import Tenure
from tenure.core.events import AnyEvent, JobCompleted, JobReleased, JobRetried, JobStalled
from tenure.core.job import Ref
from tenure.core.lifecycle import TERMINAL, State
from tenure.errors import StorageError, StorageUnavailableError
from tests.system.worker_fleet import Line, WorkerFleet, timing_of

SECOND = 1_000_000

BOUND = 5 * SECOND
"""Microseconds within which every worker must begin a job after the outage."""

ROOM = 2 * SECOND
"""Microseconds that a busy machine may add to the bound, while processes wait for a core."""

PATIENCE = 30.0


class OutageScenario:
    """Workers and a producer of one fleet, before, in and after an outage."""

    def __init__(self, fleet: WorkerFleet, *, through: str = "", task: str = "nap", seconds: float = 0.1) -> None:
        self.fleet = fleet
        self.acknowledged: list[Ref] = []
        self.refused: list[StorageError] = []
        """The errors of the producer's failed calls."""
        self.workers: list[Popen[bytes]] = []
        # The caller that enqueues a job sets its lease.
        self._app = Tenure(through or fleet.url, timing=timing_of(fleet.env))
        self.seconds = seconds
        """Seconds that the next jobs take."""

        @self._app.task(name=f"fleet_app.{task}")
        async def nap(seconds: float) -> str:
            return f"the app rests for {seconds} s"

        self.nap = nap

    async def begin(self, *, workers: int = 2, jobs: int = 100, concurrency: int = 5) -> None:
        """Enqueue jobs, start workers, and return when each worker has begun a job."""
        await self.produce(jobs)
        self.workers = [self.fleet.alone("-c", str(concurrency)) for _ in range(workers)]

        async def all_at_work() -> bool:
            return {line.pid for line in self.starts()} == {worker.pid for worker in self.workers}

        await self.fleet.until(all_at_work, within=PATIENCE)

    async def produce(self, jobs: int) -> None:
        """Enqueue jobs in one call, and repeat it until it is acknowledged. A repeated call creates no second job."""
        calls = [self.nap.call(self.seconds) for _ in range(jobs)]
        failures = 0
        while True:
            try:
                made = await self._app.enqueue_many(calls)
            except StorageError as error:
                self.refused.append(error)
                failures += 1
                await asyncio.sleep(min(0.05 * failures, 0.5))
            else:
                self.acknowledged += [job.ref for job in made]
                return

    @asynccontextmanager
    async def producing(self, *, every: float = 0.1) -> AsyncGenerator[None]:
        """Enqueue jobs one after another meanwhile. The call in flight at the end is still acknowledged."""
        over = asyncio.Event()

        async def enqueue_jobs() -> None:
            while not over.is_set():
                await self.produce(1)
                await asyncio.sleep(every)

        producer = asyncio.create_task(enqueue_jobs())
        try:
            yield
        finally:
            over.set()
            await producer

    async def recover(self) -> dict[int, int]:
        """Note that the outage has ended. Return for each process after how many microseconds it began a job."""
        well_at = self.fleet.storage_now()
        # Enough jobs to keep all workers busy, enqueued without the link that the producer uses. This storage is opened
        # here for the first time, so it has no earlier route to wait on and may meet a change of roles. It retries;
        # the bound is measured from `well_at` anyway.
        calls = [self.nap.call(self.seconds).job for _ in range(20 * len(self.workers))]

        async def enqueued() -> bool:
            try:
                receipts = await self.fleet.storage.enqueue(calls)
            except StorageUnavailableError as error:
                self.refused.append(error)
                return False
            self.acknowledged += [receipt.ref for receipt in receipts]
            return True

        await self.fleet.until(enqueued, within=PATIENCE)

        def resumed() -> dict[int, int]:
            after = [line for line in self.starts() if line.at > well_at]
            return {line.pid: line.at - well_at for line in reversed(after)}

        async def all_resumed() -> bool:
            return len(resumed()) == len(self.workers)

        await self.fleet.until(all_resumed, within=PATIENCE)
        return resumed()

    async def finish(self, *, within: float = 60) -> None:
        """Wait until every acknowledged job has ended."""
        want = {ref.id for ref in self.acknowledged}

        async def over() -> bool:
            return want <= {line.id for line in self.fleet.lines() if line.what == "end"} and not await self.left()

        await self.fleet.until(over, within=within)

    async def began(self, runs: int) -> None:
        """Wait until this many runs have begun."""

        async def enough() -> bool:
            return len(self.starts()) >= runs

        await self.fleet.until(enough, within=PATIENCE)

    async def leave(self) -> None:
        """Stop the workers. A proxy between them and the storage may be closed after that."""
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            assert await asyncio.to_thread(worker.wait, 30) == 0, self.fleet.log()

    async def left(self) -> int:
        """Return the number of jobs that have not ended."""
        return await self.fleet.count(*(state for state in State if state not in TERMINAL))

    def starts(self) -> list[Line]:
        """Return the log lines of started runs, in order."""
        return [line for line in self.fleet.lines() if line.what == "start"]

    async def check(self, *, stalls: bool = True) -> None:
        """Check that all workers run, no job was lost or ended twice, and each repeated run has an event."""
        assert [worker.poll() for worker in self.workers] == [None] * len(self.workers), self.fleet.log()
        details = await self.fleet.details(self.acknowledged)
        assert Counter(detail.job.state for detail in details) == {State.COMPLETED: len(self.acknowledged)}
        events = await self.fleet.events()
        ends = Counter(event.id for event in events if isinstance(event, JobCompleted))
        assert ends == Counter(ref.id for ref in self.acknowledged)
        assert unannounced(self.starts(), events) == []
        if not stalls:
            assert [event for event in events if isinstance(event, JobStalled)] == []


def unannounced(starts: Sequence[Line], events: Sequence[AnyEvent]) -> list[Line]:
    """Return the runs that began although no event had recorded the end of the run before."""
    announced = {(event.id, event.run) for event in events if isinstance(event, JobStalled | JobReleased | JobRetried)}
    twice = Counter((line.id, line.run) for line in starts)
    return [
        line
        for line in starts
        if twice[line.id, line.run] > 1 or (line.run > 1 and (line.id, line.run - 1) not in announced)
    ]
