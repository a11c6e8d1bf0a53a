"""The conductor: enqueues, starts the workers, watches them, has faults committed, and has it all audited."""

import asyncio
import shutil
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from random import Random

from msgspec import Struct

from holdfast.clock import Clock, SystemClock, entropy
from holdfast.core.events import JobStalled
from holdfast.core.lifecycle import TERMINAL, State
from holdfast.demo import tasks
from holdfast.demo.audit import audit, seconds
from holdfast.demo.chronicle import Chronicle
from holdfast.demo.corpus import corpus, places, rounds
from holdfast.demo.crew import WORKERS, Crew
from holdfast.demo.evidence import Fault
from holdfast.demo.faults import Faults
from holdfast.demo.gather import gather
from holdfast.demo.report import Progress, Recovery, Report, recovery
from holdfast.demo.show import Show, told
from holdfast.errors import UsageError
from holdfast.storage.protocol import Storage, Survey

LOOK = 0.03
"""Seconds between two looks at the storage: a few jobs' worth, so that a fault finds the state that it was made for."""

STUCK = 30.0
"""Seconds without any change after which the demo gives up; far beyond every bound that it checks."""

MOST_JOBS = 10_000
"""As many finished jobs as a queue keeps; an audit of more would miss what retention took."""

STALE = 15_000_000
"""A worker unheard of for so many microseconds is gone."""

WINDOW = 2.0


class Plan(Struct, frozen=True, kw_only=True):
    """What was asked for. `url` None: a SQLite file of the demo's own. `keep`: leave the folder behind."""

    url: str | None = None
    jobs: int = 1500
    kills: int = 2
    seed: int = 1
    keep: bool = False


async def conduct(plan: Plan, show: Show) -> Report:
    """Run the whole demo; return the report, good or bad.

    Raises:
        UsageError: the URL cannot be used for this.
        StorageError: the storage cannot be used.
    """
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        return await _Demo(plan, show, folder).run()
    finally:
        if not plan.keep:
            shutil.rmtree(folder, ignore_errors=True)


class _Demo:
    def __init__(self, plan: Plan, show: Show, folder: Path) -> None:
        clock: Clock = SystemClock()
        self._plan = plan
        self._show = show
        self._folder = folder
        self._uptime = clock.uptime
        self._began = clock.uptime()
        self._url = plan.url or f"sqlite:///{folder / 'holdfast.db'}"
        # A queue of our own: on a storage that is not, nothing else is touched or counted.
        self._queue = f"demo-{entropy().getrandbits(32):08x}"
        self._diary = folder / "diary.jsonl"
        self._recoveries: list[Recovery] = []
        self._marks: deque[tuple[float, int]] = deque()
        self._trouble: str | None = None

    async def run(self) -> Report:
        app, task = tasks.make(self._url, queue=self._queue, diary=str(self._diary))
        if not app.storage.shared:
            raise UsageError("memory lives in one process; use sqlite:///...")
        known = await asyncio.to_thread(corpus, places())
        paths = rounds(known.files, self._plan.jobs, Random(self._plan.seed))
        async with app:
            storage = app.storage
            await self._alone(storage)
            chronicle = Chronicle(storage, self._queue)
            await chronicle.begin()
            handles = await app.enqueue_many(task.call(path) for path in paths)
            wished = {handle.id: path for handle, path in zip(handles, paths, strict=True)}
            self._show.say(
                f"{len(wished):,} jobs for {len(set(paths)):,} of the {len(known.files):,} files of up to "
                f"{known.limit // 1024} KiB below this Python's standard library and packages "
                f"(seed {self._plan.seed}), remembered by {self._url}"
            )
            faults = Faults(storage, chronicle, self._queue, kills=self._plan.kills, jobs=len(wished), workers=WORKERS)
            crew = Crew(self._url, queue=self._queue, diary=self._diary, log=self._folder / "workers.log")
            started = self._uptime()
            try:
                await crew.start()
                counts = await self._watch(storage, chronicle, faults, crew, len(wished))
                working = self._uptime() - started
                faults.wake()
                status = await crew.leave()
                if status != 0 and self._trouble is None:
                    self._trouble = f"the supervisor left with the exit status {status}"
            finally:
                faults.wake()
                await crew.abort()
            self._show.say("all workers are gone; computing every answer again, one by one")
            evidence, computing = await gather(
                storage,
                chronicle,
                wished,
                queue=self._queue,
                kills=self._plan.kills,
                faults=faults.done,
                diary=self._diary,
            )
            checks = audit(evidence)
            ok = all(check.holds for check in checks) and self._trouble is None
            return Report(
                ok=ok,
                seed=self._plan.seed,
                url=self._url,
                kept=str(self._folder) if self._plan.keep else None,
                jobs=len(wished),
                files=len(evidence.expected),
                seconds=round(self._uptime() - self._began, 3),
                working_seconds=round(working, 3),
                core_seconds=round(computing, 3),
                per_second=round(len(wished) / working, 1),
                counts=counts,
                runs=sum(len(detail.runs) for detail in evidence.details.values() if detail is not None),
                faults=faults.done,
                recoveries=self._recoveries,
                checks=checks,
                trouble=self._trouble,
                stderr=[] if ok else crew.last_words(),
            )

    async def _alone(self, storage: Storage) -> None:
        """Refuse a storage that others work on: our reaper's short timing would take their jobs from them."""
        others = [one for one in (await storage.survey()).workers if one.seen_ago < STALE and not one.died]
        if others:
            raise UsageError(
                f"{len(others)} workers were at work on {self._url} just now, and this demo kills workers; "
                "give it a storage of its own, or leave --url out"
            )

    async def _watch(
        self, storage: Storage, chronicle: Chronicle, faults: Faults, crew: Crew, jobs: int
    ) -> dict[str, int]:
        """Look, show, and commit faults until all is done; return the last counts by state."""
        changed_at, before = self._uptime(), (0, 0)
        while True:
            survey = await storage.survey([self._queue])
            events = await chronicle.catch_up()
            crew.saw(one.owner.pid for one in survey.workers if self._queue in one.queues)
            for fault in faults.done:
                if fault.kind == "kill":
                    crew.lost(fault.owner.pid)
            self._tell([event for event in events if isinstance(event, JobStalled)], faults.done)
            counts = self._counts(survey)
            self._show.progress(self._progress(survey, counts, jobs, faults))
            over = sum(counts.get(state, 0) for state in TERMINAL)
            if over >= jobs and faults.answered:
                return counts
            if crew.status is not None:
                self._trouble = f"the supervisor left with the exit status {crew.status} before the jobs were done"
                return counts
            done = await faults.turn(survey)
            if done is not None:
                self._show.say(_said(done))
            now = (over, len(chronicle.events) + len(faults.done))
            if now != before:
                changed_at, before = self._uptime(), now
            if self._uptime() - changed_at > STUCK:
                self._trouble = f"nothing has changed for {STUCK:g} s"
                return counts
            await asyncio.sleep(LOOK)

    def _tell(self, stalls: Sequence[JobStalled], faults: list[Fault]) -> None:
        for event in stalls:
            recovered = recovery(event, faults)
            self._recoveries.append(recovered)
            self._show.say(told(recovered))

    def _counts(self, survey: Survey) -> dict[str, int]:
        ours = [one.counts for one in survey.queues if one.queue == self._queue]
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
                self._queue in one.queues and one.owner.id not in lost and not one.died for one in survey.workers
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
