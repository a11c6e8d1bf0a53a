"""The conductor: starts the storage and the processes, injects faults, heals everything, waits, and runs the audit."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random

import msgspec
from msgspec import Struct

from tenure.clock import SECOND, Clock
from tenure.core.job import JobDetail, Ref
from tenure.core.lifecycle import TERMINAL
from tenure.core.retention import KeepRule, RetentionRules
from tenure.errors import StorageError, UsageError
from tenure.options import Timing
from tenure.storage.protocol import Query, Settings, Storage, Target
from tenure_testing.chaos import producer, tasks
from tenure_testing.chaos.audit import AuditFinding, audit
from tenure_testing.chaos.faults import COMMON, Fault, Field
from tenure_testing.chaos.processes import (
    ChaosProcess,
    ChaosProcesses,
    Role,
    inherited,
    producer_command,
    reaper_command,
    worker_command,
)
from tenure_testing.chaos.records import ChaosBounds, ChaosEvidence, Deed, EnqueuedCall, HistoryLine, uptime
from tenure_testing.chaos.sqlite_faults import SQLITE
from tenure_testing.chaos.storage import ChaosSQLite, ChaosStorage
from tenure_testing.demo.event_follower import EventFollower
from tenure_testing.demo.handler_log import read

HOSTS, WORKERS, CONCURRENCY = 3, 2, 6
REAPERS = 2
PRODUCERS = 2

GAP = 1.5
"""Seconds on average between two faults."""

AT_ONCE = 4
"""How many faults run at the same time."""

READY = 20.0
"""Seconds within which all workers should be running."""

REST = 60.0
"""Seconds beyond the recovery bound within which all jobs are over after all faults have ended."""

PAGE = 200
PATIENCE = 3.0
"""Seconds that one call of the conductor may take before it is repeated."""

LOOK = 0.2
SHOWN = 30
"""How many lines of the processes' output are shown if a check fails."""

KEPT = RetentionRules(completed=KeepRule(age=86_400 * SECOND))

Say = Callable[[str], object]


class Act(Struct, frozen=True, kw_only=True):
    """A period of chaos on a separate storage, under one timing.

    `control`: the server forgets everything when it dies. The audit must then fail.
    """

    name: str
    storage: str
    timing: Timing
    seconds: float
    seed: int
    keep: bool = False
    control: bool = False


class Outcome(Struct, kw_only=True):
    """The result of an act."""

    act: Act
    finding: AuditFinding
    deeds: list[Deed]
    without: dict[str, str]
    resting: float
    """Seconds from the end of the faults until all jobs were over."""

    folder: str | None
    stderr: list[str]


async def play(act: Act, *, clock: Clock, say: Say) -> Outcome:
    """Play an act, and return the result of its audit.

    Raises:
        UsageError: the name of the storage is unknown, its server is missing, or this system is not Linux.
        StorageError: the storage cannot be used even before the first fault.
    """
    made, own = _storage_and_faults(act.storage, control=act.control)
    folder = Path(tempfile.mkdtemp(prefix="tenure-chaos-"))
    storage = made(folder)
    kept = act.keep
    try:
        await storage.open()
        outcome = await _Act(act, storage, own, folder, clock, say).play()
        kept = kept or not outcome.finding.ok
        outcome.folder = str(folder) if kept else None
        return outcome
    finally:
        if kept:
            await asyncio.to_thread(_copied, storage, folder)
        await storage.close()
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


def _storage_and_faults(storage: str, *, control: bool) -> tuple[Callable[[Path], ChaosStorage], dict[str, Fault]]:
    """Return the factory of a storage by its name, and its specific faults."""
    if not os.path.exists("/proc/self/stat"):
        raise UsageError("the chaos looks for workers in /proc; run it on Linux")
    match storage:
        case "sqlite" if control:
            raise UsageError("a SQLite file cannot be made to forget; take the control with --storage redis")
        case "sqlite":
            return ChaosSQLite, SQLITE
        case "redis" | "valkey" if find_spec("redis") is not None:
            from tenure_testing.chaos.redis_faults import REDIS
            from tenure_testing.chaos.redis_storage import ChaosRedis

            return partial(ChaosRedis, brand=storage, keeps=not control), REDIS
        case "redis" | "valkey":
            raise UsageError(f"{storage} needs redis-py: pip install 'tenure[redis]'")
        case "postgres" if find_spec("psycopg") is not None:
            from tenure_testing.chaos.postgres_faults import POSTGRES
            from tenure_testing.chaos.postgres_storage import ChaosPostgres

            return partial(ChaosPostgres, keeps=not control), POSTGRES
        case "postgres":
            raise UsageError("postgres needs psycopg: pip install 'tenure[postgres]'")
        case _:
            raise UsageError(f"the chaos test does not support {storage!r}; use sqlite, redis, valkey or postgres")


class _Act:
    def __init__(
        self, act: Act, storage: ChaosStorage, own: dict[str, Fault], folder: Path, clock: Clock, say: Say
    ) -> None:
        self._act = act
        self._chaos_storage = storage
        self._own = own
        self._folder = folder
        self._clock = clock
        self._say = say
        self._rng = Random(f"{act.seed} {act.name}")
        self._history = folder / "history"
        self._enqueued_calls = folder / "calls"
        self._log = folder / "processes.log"
        self._processes = ChaosProcesses(
            [
                *(self._member(f"host-{n}", "host", worker_command(WORKERS, CONCURRENCY)) for n in range(HOSTS)),
                *(self._member(f"reaper-{n}", "reaper", reaper_command()) for n in range(REAPERS)),
                *(self._member(f"producer-{n}", "producer", producer_command()) for n in range(PRODUCERS)),
            ]
        )

    async def play(self) -> Outcome:
        app, _, _ = tasks.make(self._chaos_storage.url(""), timing=self._act.timing, history=str(self._history))
        async with app:
            storage = app.storage
            offset = self._offset()
            await self._settled(storage)
            follower = EventFollower(storage, tasks.QUEUE)
            await follower.begin()
            field = Field(self._processes, self._chaos_storage, self._rng, self._clock, lambda: self._settled(storage))
            try:
                await self._processes.start()
                await self._at_work(storage)
                await self._strike(field, follower)
                ended = uptime(self._clock)
                await self._processes.leave("producer")
                resting = await self._rest(storage, follower)
                await self._processes.leave("host")
                await self._processes.leave("reaper")
            finally:
                await self._processes.abort()
            await follower.catch_up()
            jobs = await _jobs(storage)
        lines, pieces = read(self._history, HistoryLine)
        enqueued_calls, torn = read(self._enqueued_calls, EnqueuedCall)
        evidence = ChaosEvidence(
            enqueued_calls=enqueued_calls,
            jobs=jobs,
            lines=lines,
            pieces=pieces + torn,
            events=follower.events,
            deeds=field.deeds,
            bounds=ChaosBounds.of(self._act.timing),
            offset=offset,
            drift=self._offset() - offset,
            ended=ended,
            hosts=tuple(member.name for member in self._processes.of("host")),
            exits=self._processes.exits,
            complaints=self._processes.complaints,
            flaws=await self._chaos_storage.flaws(),
        )
        finding = audit(evidence)
        # Keep these files for users of `--keep`, and for the analysis of failed checks.
        (self._folder / "evidence.json").write_bytes(msgspec.json.encode(evidence))
        (self._folder / "recoveries.json").write_bytes(msgspec.json.encode(finding.recoveries))
        return Outcome(
            act=self._act,
            finding=finding,
            deeds=field.deeds,
            without=dict(self._chaos_storage.without),
            resting=resting,
            folder=None,
            stderr=[] if finding.ok else self._last_words(),
        )

    def _last_words(self) -> list[str]:
        lines = self._log.read_text(errors="replace").splitlines()
        return [line for line in lines if tasks.Stumbled.__name__ not in line][-SHOWN:]

    def _member(self, name: str, role: Role, command: list[str]) -> ChaosProcess:
        env = {
            **inherited(),
            "TENURE_URL": self._chaos_storage.url(name),
            tasks.HISTORY_VARIABLE: str(self._history),
            tasks.TIMING_VARIABLE: tasks.spoken(self._act.timing),
            producer.NAME_VARIABLE: f"{name}.{{life}}",
            producer.SEED_VARIABLE: str(self._act.seed),
            producer.CALLS_VARIABLE: str(self._enqueued_calls),
        }
        return ChaosProcess(name, role, command, env, self._log, self._clock)

    def _offset(self) -> int:
        return self._clock.now() - uptime(self._clock)

    async def _settled(self, storage: Storage) -> None:
        """Return once the storage has taken a write."""
        while True:
            try:
                async with asyncio.timeout(PATIENCE):
                    await storage.tune(
                        Target("queue", tasks.QUEUE), Settings(retention=KEPT, record=("started",)), by="chaos"
                    )
            except (StorageError, TimeoutError):
                await asyncio.sleep(LOOK / 4)
            else:
                return

    async def _at_work(self, storage: Storage) -> None:
        """Wait until every worker has registered, so that faults find processes to hit."""
        deadline = self._clock.uptime() + READY
        while self._clock.uptime() < deadline:
            if len((await storage.survey()).workers) >= HOSTS * WORKERS:
                return
            await asyncio.sleep(LOOK)
        self._say(f"not all workers are there after {READY:g} s; the test continues")

    async def _strike(self, field: Field, follower: EventFollower) -> None:
        """Inject faults, some at a time, until the time is over and all of them have ended."""
        faults = {
            kind: fault for kind, fault in {**COMMON, **self._own}.items() if kind not in self._chaos_storage.without
        }
        began = self._clock.uptime()
        field.ends_at = began + self._act.seconds
        deck: list[str] = []
        under_way: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as task_group:
            watch = task_group.create_task(self._watch(follower))
            while self._clock.uptime() < field.ends_at:
                if len(under_way) < AT_ONCE:
                    if not deck:
                        # Use each kind once before any is repeated, so that no kind is left out by chance.
                        deck = sorted(faults)
                        self._rng.shuffle(deck)
                    kind = deck.pop()
                    task = task_group.create_task(self._commit(kind, faults[kind], field, began))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                await asyncio.sleep(min(self._rng.expovariate(1 / GAP), max(0.0, field.ends_at - self._clock.uptime())))
            if under_way:
                await asyncio.wait(under_way)
            watch.cancel()

    async def _commit(self, kind: str, fault: Fault, field: Field, began: float) -> None:
        at = self._clock.uptime()
        if await fault(field):
            now = self._clock.uptime()
            self._say(f"{at - began:6.1f} s  {kind}, {now - at:.1f} s")

    async def _watch(self, follower: EventFollower) -> None:
        """Follow the log continuously, because events are kept for a limited time only."""
        while True:
            try:
                async with asyncio.timeout(PATIENCE):
                    await follower.catch_up()
            except (StorageError, TimeoutError):
                pass
            await asyncio.sleep(LOOK)

    async def _rest(self, storage: Storage, follower: EventFollower) -> float:
        """Wait until all jobs are over or the bound is reached. Return the seconds."""
        began = self._clock.uptime()
        bound = self._act.timing.recovery_bound.total_seconds() + REST
        while (took := self._clock.uptime() - began) < bound:
            try:
                async with asyncio.timeout(PATIENCE):
                    survey = await storage.survey([tasks.QUEUE])
                    await follower.catch_up()
            except (StorageError, TimeoutError):
                pass
            else:
                left = sum(n for queue in survey.queues for state, n in queue.counts.items() if state not in TERMINAL)
                if not left:
                    return took
            await asyncio.sleep(LOOK)
        self._say(f"not all jobs are over {bound:.0f} s after the healing")
        return took


async def _jobs(storage: Storage) -> dict[str, JobDetail]:
    """Return every job that the storage lists."""
    refs: list[Ref] = []
    after: str | None = None
    while True:
        page = await storage.find(Query(queues=(tasks.QUEUE,), limit=PAGE, after=after))
        refs += [job.ref for job in page.jobs]
        if (after := page.next) is None:
            break
    found: dict[str, JobDetail] = {}
    for start in range(0, len(refs), PAGE):
        details = await storage.get(refs[start : start + PAGE])
        found.update({detail.job.id: detail for detail in details if detail is not None})
    return found


def _copied(storage: ChaosStorage, folder: Path) -> None:
    """Copy the files that would be lost when the disk is unmounted."""
    disk = folder / "disk"
    if disk.is_dir():
        shutil.copytree(disk, folder / "kept", dirs_exist_ok=True)
