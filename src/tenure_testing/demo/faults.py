"""The faults of the demo: workers are killed and one is paused while they are busy, according to the storage.

If there are several kills, the last one hits a worker whose handler hangs, once the storage knows the line where it
hangs.

No fault waits for a fixed time. Each waits for a state: enough jobs are done, the jobs of the previous fault are
recovered, its worker is replaced, and the next worker to hit holds jobs right now. If the jobs run out faster than the
workers come back, the next fault does not wait for the recovery.
"""

import asyncio
import signal
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

from tenure.core.job import Owner, Ref
from tenure.core.lifecycle import State
from tenure.storage.protocol import Query, Storage, Survey
from tenure_testing.demo.event_follower import EventFollower
from tenure_testing.demo.evidence import Fault, HeldRun
from tenure_testing.demo.handler_log import going_on
from tenure_testing.demo.processes import pause, quiet_writers, send

FIRST = 20
"""The first fault occurs when one in this many jobs is done."""

FIND_LIMIT = 200


class Faults:
    """Runs the faults one by one: first on the leader, a pause after the kills, and last a hanging worker's kill."""

    def __init__(
        self,
        storage: Storage,
        follower: EventFollower,
        queue: str,
        *,
        kills: int,
        jobs: int,
        workers: int,
        handler_log: Path,
        hang: Callable[[], Awaitable[Ref]],
    ) -> None:
        """Create the plan of the faults. `hang` enqueues the job whose handler hangs."""
        self.done: list[Fault] = []
        self.hung: Ref | None = None
        self._storage = storage
        self._follower = follower
        self._queue = queue
        # While one worker is paused, another handler begins to hang.
        self.spared: str | None = None
        """A worker that must not be hit now."""
        self._planned = ["kill"] * (kills - 1) + ["pause", "hang"] if kills > 1 else ["kill"] * kills + ["pause"]
        self._hang = hang
        self._jobs = jobs
        self._workers = workers
        self._handler_log = handler_log

    @property
    def paused(self) -> Fault | None:
        """The fault of the worker that is paused now, or None."""
        return next((fault for fault in self.done if fault.kind == "pause" and fault.woken_at is None), None)

    @property
    def answered(self) -> bool:
        """True if the storage has refused all settlements of the paused worker after it was continued."""
        return all(
            fault.woken_at is not None and all((run.job, run.fence) in self._follower.fenced for run in fault.held)
            for fault in self.done
            if fault.kind == "pause"
        )

    @property
    def over(self) -> bool:
        """True if all faults have occurred and no worker is paused."""
        return len(self.done) == len(self._planned) and self.paused is None

    @property
    def possible(self) -> bool:
        """True if the remaining faults are still possible when no more jobs wait."""
        return self._planned[len(self.done) :] in ([], ["hang"])

    async def turn(self, survey: Survey) -> Fault | None:
        """Run the next fault if its state is reached, or continue the paused worker. Return the fault that occurred."""
        sleeper = self.paused
        if sleeper is not None:
            if not all((run.job, run.run) in self._follower.stalled for run in sleeper.held):
                return None
            send(sleeper.owner.pid, signal.SIGCONT)
            sleeper.woken_at = survey.now
            return sleeper
        if len(self.done) == len(self._planned):
            return None
        if self._planned[len(self.done)] == "hang":
            fault = await self._kill_hanging(survey)
            self.done += [fault] if fault is not None else []
            return fault
        hurried = self._completed(survey) * (len(self._planned) + 2) >= self._jobs * (len(self.done) + 1)
        if not hurried and not await self._calm(survey):
            return None
        fault = await self._commit(survey, hurried=hurried)
        if fault is not None:
            self.done.append(fault)
            if self._planned[len(self.done) :] == ["hang"]:
                self.hung = await self._hang()
        return fault

    def wake(self) -> None:
        """Continue the paused worker, even if its jobs were not reclaimed yet, because the demo ends."""
        sleeper = self.paused
        if sleeper is not None:
            send(sleeper.owner.pid, signal.SIGCONT)

    async def _commit(self, survey: Survey, *, hurried: bool) -> Fault | None:
        kind = self._planned[len(self.done)]
        held = await self._held()
        struck = {fault.owner.id for fault in self.done}
        leaders = {term.owner for term in survey.leaders}
        busy = [
            worker.owner
            for worker in survey.workers
            if held[worker.owner.id]
            and worker.owner.id not in struck
            and worker.owner.id != self.spared
            and not worker.died
        ]
        leading = [owner for owner in busy if owner.id in leaders]
        others = [owner for owner in busy if owner.id not in leaders]
        if kind == "pause":
            # Pausing the leader is the harder case, because no process sweeps until its term is over.
            return await self._pause(survey, leading or (others if hurried else []), leaders)
        if not any(fault.led for fault in self.done):
            return await self._kill(survey, leading, leaders)
        return await self._kill(survey, others or (leading if hurried else []), leaders)

    async def _kill(self, survey: Survey, choice: list[Owner], leaders: set[str]) -> Fault | None:
        # The worker is stopped first, so that it still runs a handler when it is killed. Its runs that have not begun
        # do not stall.
        if not choice or not await asyncio.to_thread(pause, (owner := choice[0]).pid):
            return None
        held = (await self._held())[owner.id]
        begun = await asyncio.to_thread(going_on, self._handler_log)
        if not any((run.job, run.fence) in begun for run in held):
            send(owner.pid, signal.SIGCONT)
            return None
        if not send(owner.pid, signal.SIGKILL):
            return None
        return Fault("kill", owner, owner.id in leaders, survey.now, held)

    async def _kill_hanging(self, survey: Survey) -> Fault | None:
        (detail,) = await self._storage.get([self.hung]) if self.hung is not None else (None,)
        if detail is None or detail.job.state is not State.ACTIVE or detail.runs[-1].trace is None:
            return None
        choice = [worker.owner for worker in survey.workers if worker.owner.id == detail.job.owner]
        return await self._kill(survey, choice, {term.owner for term in survey.leaders})

    async def _pause(self, survey: Survey, choice: list[Owner], leaders: set[str]) -> Fault | None:
        if not choice:
            return None
        owner = choice[0]
        if not await asyncio.to_thread(pause, owner.pid, quiet_writers(self._storage)):
            return None
        held = (await self._held())[owner.id]
        if not held:
            # It has just settled its last job.
            send(owner.pid, signal.SIGCONT)
            return None
        return Fault("pause", owner, owner.id in leaders, survey.now, held)

    async def _calm(self, survey: Survey) -> bool:
        """Return True if the jobs of the last fault are recovered, and all workers are running."""
        if not self.done:
            return self._completed(survey) * FIRST >= self._jobs
        struck = {fault.owner.id for fault in self.done}
        recovered = {event.owner for event in self._follower.stalled.values()}
        held = await self._held()
        there = [worker for worker in survey.workers if worker.owner.id not in struck and held[worker.owner.id]]
        return struck <= recovered and not any(held[owner] for owner in struck) and len(there) >= self._workers

    async def _held(self) -> dict[str, tuple[HeldRun, ...]]:
        page = await self._storage.find(Query(queues=(self._queue,), states=(State.ACTIVE,), limit=FIND_LIMIT))
        held: defaultdict[str, tuple[HeldRun, ...]] = defaultdict(tuple)
        for job in page.jobs:
            held[job.owner or ""] += (HeldRun(job.id, job.starts, job.fence),)
        return held

    def _completed(self, survey: Survey) -> int:
        return sum(queue.counts.get(State.COMPLETED, 0) for queue in survey.queues if queue.queue == self._queue)
