"""What every outage is judged by: workers at work on a line of jobs, a producer that does not give up, and a diary.

The handlers' diary is outside of the storage, and the stamps that count are those written there: they say when a
worker began its first job after the storage was well again, not when a test happened to look.
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
from tests.system.farm import Farm, Line, timing_of

SECOND = 1_000_000

BOUND = 5 * SECOND
"""How soon every worker is to work again once the storage is well."""

ROOM = 2 * SECOND
"""What a machine that is busy with other tests may add to it: processes that wait for a core, not for the storage."""

PATIENCE = 30.0


class Ordeal:
    """Workers and a producer of one farm, before, in and after an outage."""

    def __init__(self, farm: Farm, *, through: str = "", task: str = "nap", seconds: float = 0.1) -> None:
        self.farm = farm
        self.acknowledged: list[Ref] = []
        self.refused: list[StorageError] = []
        """What the producer was told when a try failed."""
        self.workers: list[Popen[bytes]] = []
        # Whoever enqueues a job stamps its lease on it.
        self._app = Tenure(through or farm.url, timing=timing_of(farm.env))
        self.seconds = seconds
        """How long the next jobs take."""

        @self._app.task(name=f"crew.{task}")
        async def nap(seconds: float) -> str:
            return f"the crew's rests for {seconds} s"

        self.nap = nap

    async def begin(self, *, workers: int = 2, jobs: int = 100, concurrency: int = 5) -> None:
        """Start workers on a line of jobs, and return when all of them have begun some."""
        await self.produce(jobs)
        self.workers = [self.farm.alone("-c", str(concurrency)) for _ in range(workers)]

        async def all_at_work() -> bool:
            return {line.pid for line in self.starts()} == {worker.pid for worker in self.workers}

        await self.farm.until(all_at_work, within=PATIENCE)

    async def produce(self, jobs: int) -> None:
        """Enqueue jobs in one trip, again until it is acknowledged: what is asked twice is remembered once."""
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
        """Enqueue job after job meanwhile; what is on its way at the end is still acknowledged."""
        over = asyncio.Event()

        async def go_on() -> None:
            while not over.is_set():
                await self.produce(1)
                await asyncio.sleep(every)

        producer = asyncio.create_task(go_on())
        try:
            yield
        finally:
            over.set()
            await producer

    async def recover(self) -> dict[int, int]:
        """Note that the storage is well now; return by process how many microseconds later it began a job."""
        well_at = self.farm.storage_now()
        # Enough jobs to keep all workers busy, enqueued without the link that the producer uses. This storage is opened
        # here for the first time, so it has no earlier route to wait on and may meet a change of roles. It tries again;
        # the bound is measured from `well_at` anyway.
        calls = [self.nap.call(self.seconds).job for _ in range(20 * len(self.workers))]

        async def enqueued() -> bool:
            try:
                receipts = await self.farm.storage.enqueue(calls)
            except StorageUnavailableError as error:
                self.refused.append(error)
                return False
            self.acknowledged += [receipt.ref for receipt in receipts]
            return True

        await self.farm.until(enqueued, within=PATIENCE)

        def resumed() -> dict[int, int]:
            after = [line for line in self.starts() if line.at > well_at]
            return {line.pid: line.at - well_at for line in reversed(after)}

        async def all_resumed() -> bool:
            return len(resumed()) == len(self.workers)

        await self.farm.until(all_resumed, within=PATIENCE)
        return resumed()

    async def finish(self, *, within: float = 60) -> None:
        """Wait until every acknowledged job has come to an end."""
        want = {ref.id for ref in self.acknowledged}

        async def over() -> bool:
            return want <= {line.id for line in self.farm.lines() if line.what == "end"} and not await self.left()

        await self.farm.until(over, within=within)

    async def began(self, runs: int) -> None:
        """Wait until so many runs have begun."""

        async def enough() -> bool:
            return len(self.starts()) >= runs

        await self.farm.until(enough, within=PATIENCE)

    async def leave(self) -> None:
        """Stop the workers; what stands between them and the storage may go then."""
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            assert await asyncio.to_thread(worker.wait, 30) == 0, self.farm.log()

    async def left(self) -> int:
        """Return how many jobs are not over."""
        return await self.farm.count(*(state for state in State if state not in TERMINAL))

    def starts(self) -> list[Line]:
        """Return the beginnings of runs, in the order in which they were written."""
        return [line for line in self.farm.lines() if line.what == "start"]

    async def judge(self, *, stalls: bool = True) -> None:
        """See that nobody left, nothing was lost, nothing ended twice, and no run was repeated without a word."""
        assert [worker.poll() for worker in self.workers] == [None] * len(self.workers), self.farm.log()
        details = await self.farm.details(self.acknowledged)
        assert Counter(detail.job.state for detail in details) == {State.COMPLETED: len(self.acknowledged)}
        events = await self.farm.events()
        ends = Counter(event.id for event in events if isinstance(event, JobCompleted))
        assert ends == Counter(ref.id for ref in self.acknowledged)
        assert unannounced(self.starts(), events) == []
        if not stalls:
            assert [event for event in events if isinstance(event, JobStalled)] == []


def unannounced(starts: Sequence[Line], events: Sequence[AnyEvent]) -> list[Line]:
    """Return the runs that began though nobody had said that the one before them was over."""
    announced = {(event.id, event.run) for event in events if isinstance(event, JobStalled | JobReleased | JobRetried)}
    twice = Counter((line.id, line.run) for line in starts)
    return [
        line
        for line in starts
        if twice[line.id, line.run] > 1 or (line.run > 1 and (line.id, line.run - 1) not in announced)
    ]
