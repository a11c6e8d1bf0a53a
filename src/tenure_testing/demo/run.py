"""The conductor of the demo: enqueues, starts the workers, watches them, injects faults, and runs the audit."""

import asyncio
import shutil
import tempfile
import webbrowser
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from msgspec import Struct

from tenure import Tenure
from tenure.client.task import Task
from tenure.clock import Clock, SystemClock, entropy
from tenure.console import Console
from tenure.core.events import JobStalled
from tenure.core.job import Ref
from tenure.core.lifecycle import TERMINAL, State
from tenure.errors import UsageError
from tenure.http.server import HTTPServer, ListenAddress
from tenure.storage.protocol import Storage, Survey
from tenure_testing.demo import tasks
from tenure_testing.demo.audit import audit, seconds
from tenure_testing.demo.corpus import corpus, places, rounds
from tenure_testing.demo.event_follower import EventFollower
from tenure_testing.demo.evidence import Fault
from tenure_testing.demo.faults import Faults
from tenure_testing.demo.gather import gather
from tenure_testing.demo.gil_holding import GilHolding
from tenure_testing.demo.output import Show, post_mortem_lines, recovery_line
from tenure_testing.demo.report import Progress, RecoveryReport, Report, recovery
from tenure_testing.demo.work import Facts
from tenure_testing.demo.workers import WORKERS, DemoWorkers

LOOK = 0.03
"""Seconds between two looks at the storage: the time of a few jobs, so that a fault still finds its state."""

STUCK = 30.0
"""Seconds without any change after which the demo gives up: far longer than all bounds that it checks."""

MOST_JOBS = 10_000
"""The number of finished jobs that a queue keeps. With more jobs, the audit would miss those that retention deleted."""

STALE = 15_000_000
"""A worker counts as gone if it was last seen more than this many microseconds ago."""

WINDOW = 2.0


class DemoPlan(Struct, frozen=True, kw_only=True):
    """The options of the demo. `url` None: a temporary SQLite file. `keep`: do not delete the folder.

    `console`: serve a console that shows the run. `browse`: open it in a browser.
    """

    url: str | None = None
    jobs: int = 1500
    kills: int = 2
    seed: int = 1
    keep: bool = False
    console: bool = False
    browse: bool = False


async def conduct(plan: DemoPlan, show: Show) -> Report:
    """Run the whole demo and return the report, whether it passes or not.

    Raises:
        UsageError: the URL cannot be used for this.
        StorageError: the storage cannot be used.
    """
    folder = Path(tempfile.mkdtemp(prefix="tenure-demo-"))
    try:
        return await _Demo(plan, show, folder).run()
    finally:
        if not plan.keep:
            shutil.rmtree(folder, ignore_errors=True)


class _Demo:
    def __init__(self, plan: DemoPlan, show: Show, folder: Path) -> None:
        clock: Clock = SystemClock()
        self._plan = plan
        self._show = show
        self._folder = folder
        self._uptime = clock.uptime
        self._began = clock.uptime()
        self._url = plan.url or f"sqlite:///{folder / 'tenure.db'}"
        # Use a separate queue. On a storage with other queues, nothing else is touched or counted.
        self._queue = f"demo-{entropy().getrandbits(32):08x}"
        self._handler_log = folder / "handler-log.jsonl"
        self._recoveries: list[RecoveryReport] = []
        self._marks: deque[tuple[float, int]] = deque()
        self._filled_at = 0.0
        self._post_mortem: str | None = None
        self._trouble: str | None = None

    async def run(self) -> Report:
        app, ours = tasks.make(self._url, queue=self._queue, handler_log=str(self._handler_log))
        if not app.storage.shared:
            raise UsageError("a memory storage belongs to one process; use sqlite:///...")
        known = await asyncio.to_thread(corpus, places())
        paths = rounds(known.files, self._plan.jobs, Random(self._plan.seed))
        async with app, self._console(app):
            storage = app.storage
            await self._alone(storage)
            follower = EventFollower(storage, self._queue)
            await follower.begin()
            # The last files are for the handlers that misbehave, which are enqueued later.
            *plain, to_hold_gil = paths
            to_hang = plain.pop() if self._plan.kills > 1 else ""
            enqueued: dict[str, str] = {}
            self._show.say(
                f"{len(paths):,} jobs for {len(set(paths)):,} of the {len(known.files):,} files of up to "
                f"{known.limit // 1024} KiB below this Python's standard library and packages "
                f"(seed {self._plan.seed}), remembered by {self._url}"
            )

            async def enqueue(task: Task[[str], Facts], path: str) -> Ref:
                job = await task.enqueue(path)
                enqueued[job.id] = path
                return Ref(self._queue, job.id)

            async def fill() -> None:
                handles = await app.enqueue_many(ours.examine.call(path) for path in plain)
                enqueued.update({handle.id: path for handle, path in zip(handles, plain, strict=True)})
                self._filled_at = self._uptime()

            faults = Faults(
                storage,
                follower,
                self._queue,
                kills=self._plan.kills,
                jobs=len(plain),
                workers=WORKERS,
                handler_log=self._handler_log,
                hang=lambda: enqueue(ours.hang, to_hang),
            )
            gil_holding = GilHolding(storage, lambda: enqueue(ours.hold_gil, to_hold_gil))
            workers = DemoWorkers(
                self._url, queue=self._queue, handler_log=self._handler_log, log=self._folder / "workers.log"
            )
            try:
                await workers.start()
                counts = await self._watch(storage, follower, faults, gil_holding, workers, len(paths), fill)
                working = self._uptime() - (self._filled_at or self._began)
                faults.wake()
                status = await workers.leave()
                if status != 0 and self._trouble is None:
                    self._trouble = f"the supervisor left with the exit status {status}"
            finally:
                faults.wake()
                await workers.abort()
            self._show.say("all workers are gone; computing every answer again, one by one")
            evidence, computing = await gather(
                storage,
                follower,
                enqueued,
                queue=self._queue,
                kills=self._plan.kills,
                faults=faults.done,
                hung=None if faults.hung is None else faults.hung.id,
                gil_holder=None if gil_holding.ref is None else gil_holding.ref.id,
                handler_log=self._handler_log,
            )
            checks = audit(evidence)
            ok = all(check.holds for check in checks) and self._trouble is None
            return Report(
                ok=ok,
                seed=self._plan.seed,
                url=self._url,
                kept=str(self._folder) if self._plan.keep else None,
                jobs=len(enqueued),
                files=len(evidence.expected),
                seconds=round(self._uptime() - self._began, 3),
                working_seconds=round(working, 3),
                core_seconds=round(computing, 3),
                per_second=round(len(enqueued) / working, 1),
                counts=counts,
                runs=sum(len(detail.runs) for detail in evidence.details.values() if detail is not None),
                faults=faults.done,
                recoveries=self._recoveries,
                post_mortem=self._post_mortem,
                checks=checks,
                trouble=self._trouble,
                stderr=[] if ok else workers.last_words(),
            )

    @asynccontextmanager
    async def _console(self, app: Tenure) -> AsyncGenerator[None]:
        """Serve a console of the app on a free port of this machine, while the demo runs."""
        if not self._plan.console:
            yield
            return
        async with HTTPServer(
            Console(app), ListenAddress("127.0.0.1", 0), purpose="the console", protected=False
        ) as server:
            page = f"http://{server.address}/"
            self._show.say(f"see it live: {page}")
            if self._plan.browse:
                await asyncio.to_thread(webbrowser.open, page)
            yield

    async def _alone(self, storage: Storage) -> None:
        """Refuse a storage with active workers: the demo's reaper has a short timing and would reclaim their jobs."""
        others = [worker for worker in (await storage.survey()).workers if worker.seen_ago < STALE and not worker.died]
        if others:
            raise UsageError(
                f"{len(others)} workers were at work on {self._url} just now, and this demo kills workers; "
                "give it a storage of its own, or leave --url out"
            )

    async def _watch(
        self,
        storage: Storage,
        follower: EventFollower,
        faults: Faults,
        gil_holding: GilHolding,
        workers: DemoWorkers,
        jobs: int,
        fill: Callable[[], Awaitable[None]],
    ) -> dict[str, int]:
        """Read the storage, show the progress, and inject faults until all is done. Return the last counts by state."""
        changed_at, before = self._uptime(), (0, 0)
        while True:
            survey = await storage.survey([self._queue])
            events = await follower.catch_up()
            workers.saw(worker.owner.pid for worker in survey.workers if self._queue in worker.queues)
            for fault in faults.done:
                if fault.kind == "kill":
                    workers.lost(fault.owner.pid)
            self._tell([event for event in events if isinstance(event, JobStalled)], faults)
            counts = self._counts(survey)
            over = sum(counts.get(state, 0) for state in TERMINAL)
            if self._filled_at:
                self._show.progress(self._progress(survey, counts, jobs, faults))
                spent = over >= sum(counts.values()) and faults.answered and gil_holding.over
                if spent and (faults.over or not faults.possible):
                    return counts
            if workers.status is not None:
                self._trouble = f"the supervisor left with the exit status {workers.status} before the jobs were done"
                return counts
            if not gil_holding.over and (said := await gil_holding.turn()) is not None:
                self._show.say(said)
            faults.spared = gil_holding.owner
            if self._filled_at:
                done = await faults.turn(survey)
                if done is not None:
                    self._show.say(_said(done))
            elif gil_holding.lets_in([term.owner for term in survey.leaders]):
                await fill()
            now = (over, len(follower.events) + len(faults.done))
            if now != before:
                changed_at, before = self._uptime(), now
            if self._uptime() - changed_at > STUCK:
                self._trouble = f"nothing has changed for {STUCK:g} s"
                return counts
            await asyncio.sleep(LOOK)

    def _tell(self, stalls: Sequence[JobStalled], faults: Faults) -> None:
        for event in stalls:
            recovered = recovery(event, faults.done)
            self._recoveries.append(recovered)
            self._show.say(recovery_line(recovered))
        for event in stalls:
            if faults.hung is not None and event.id == faults.hung.id and event.post_mortem is not None:
                self._post_mortem = event.post_mortem
                self._show.say(post_mortem_lines(event.post_mortem))

    def _counts(self, survey: Survey) -> dict[str, int]:
        ours = [queue.counts for queue in survey.queues if queue.queue == self._queue]
        return {str(state): count for counts in ours for state, count in counts.items() if count}

    def _progress(self, survey: Survey, counts: dict[str, int], jobs: int, faults: Faults) -> Progress:
        now = self._uptime() - self._began
        self._marks.append((now, counts.get(State.COMPLETED, 0)))
        while self._marks[0][0] < now - WINDOW:
            self._marks.popleft()
        (since, before), (_, done) = self._marks[0], self._marks[-1]
        lost = {fault.owner.id for fault in faults.done if fault.kind == "kill"}
        if faults.paused is not None:
            lost.add(faults.paused.owner.id)
        return Progress(
            seconds=now,
            jobs=jobs,
            counts=counts,
            per_second=(done - before) / (now - since) if now > since else 0.0,
            workers=sum(
                self._queue in worker.queues and worker.owner.id not in lost and not worker.died
                for worker in survey.workers
            ),
        )


def _said(fault: Fault) -> str:
    who = f"worker {fault.owner.pid}" + (", which leads the reaping," if fault.led else "")
    held = f"while it holds {len(fault.held)} jobs"
    if fault.kind == "kill":
        return f"SIGKILL    {who} {held}"
    if fault.woken_at is None:
        return f"SIGSTOP    {who} {held}"
    return f"SIGCONT    {who} after {seconds(fault.woken_at - fault.at)}: its jobs have been taken from it"
