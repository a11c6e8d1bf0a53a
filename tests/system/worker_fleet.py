"""Real worker processes for the system tests: starts, finds, stops and kills them, and reads their handlers' log."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tenure import Timing
from tenure.core.events import AnyEvent
from tenure.core.job import JobDetail, JobRecord, Ref
from tenure.core.lifecycle import State
from tenure.storage.protocol import Query, Survey
from tenure.storage.sqlite.locks import quiet
from tenure.storage.urls import locate

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Line:
    """One line of the handlers' log."""

    what: str
    id: str
    run: int
    fence: int
    pid: int
    at: int


class WorkerFleet:
    """A storage and the processes that work on it. Without a URL the storage is a SQLite file.

    `through`: the address that the processes get, if it differs from the address that the test uses.
    """

    def __init__(self, folder: Path, *, url: str = "", through: str = "", **settings: str) -> None:
        self.folder = folder
        self.database = folder / "queue.db"
        self.handler_log = folder / "handler-log"
        self.url = url or f"sqlite:///{self.database}"
        self.env = {
            # uvloop has tests of its own. TENURE_WORKER_LOOP=uvloop runs all tests on it.
            "TENURE_WORKER_LOOP": "asyncio",
            **os.environ,
            "TENURE_URL": through or self.url,
            "FLEET_HANDLER_LOG": str(self.handler_log),
            **{f"FLEET_{name.upper()}": value for name, value in settings.items()},
        }
        self.storage = locate(self.url)
        self._processes: list[subprocess.Popen[bytes]] = []

    def worker(
        self, *options: str, target: str = "fleet_app:app", within: Path | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start `tenure worker` with these options, in a control group if one is named."""
        return self.process("-m", "tenure", "worker", target, "--log-level", "warning", *options, within=within)

    def alone(self, *options: str) -> "subprocess.Popen[bytes]":
        """Start a worker without a supervisor: the returned process runs the jobs, under its own pid."""
        return self.worker("--no-supervisor", *options)

    def process(self, *arguments: str, within: Path | None = None) -> "subprocess.Popen[bytes]":
        """Start Python with these arguments. Its stderr goes to the log."""
        joining = [] if within is None else ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(within)]
        with (self.folder / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                [*joining, sys.executable, *arguments],
                cwd=HERE,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        self._processes.append(process)
        return process

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a `tenure` command and wait for its end."""
        return subprocess.run(
            [sys.executable, "-m", "tenure", *arguments],
            cwd=HERE,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def enqueue(self, task: str, *arguments: object, times: int = 1, module: str = "fleet_app") -> list[Ref]:
        """Enqueue jobs of the test app from a separate process."""
        return self.enqueue_in_turns(task, [arguments], times=times, module=module)

    def enqueue_in_turns(
        self, task: str, arguments: Sequence[tuple[object, ...]], *, times: int, module: str = "fleet_app"
    ) -> list[Ref]:
        """Enqueue one job with each of these arguments in turn, `times` times."""
        code = (
            f"import {module} as app_module, sys\n"
            f"calls = [app_module.{task}.call(*each) for _ in range({times}) for each in {list(arguments)!r}]\n"
            "jobs = app_module.app.enqueue_many_sync(calls)\n"
            "print('\\n'.join(job.id for job in jobs))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=HERE, env=self.env, capture_output=True, text=True, timeout=60, check=True
        )
        return [Ref("default", line) for line in done.stdout.split()]

    @staticmethod
    def storage_now() -> int:
        """Return the storage's time: the wall clock of this host, for SQLite and for a local server."""
        return time.time_ns() // 1000

    def lines(self) -> list[Line]:
        """Return the complete lines of the handlers' log."""
        found: list[Line] = []
        # A reader may see a part of a line that is being written.
        whole, _, _ = self.handler_log.read_text().rpartition("\n") if self.handler_log.exists() else ("", "", "")
        for text in whole.splitlines():
            what, job, run, fence, pid, at = text.split()
            found.append(Line(what, job, int(run), int(fence), int(pid), int(at)))
        return found

    def log(self) -> str:
        """Return the log of the workers."""
        return (self.folder / "worker.log").read_text()

    async def said(self, words: str, *, within: float = 10) -> None:
        """Wait until the log of the workers contains these words."""

        async def logged() -> bool:
            return words in self.log()

        await self.until(logged, within=within)

    async def survey(self) -> Survey:
        """Return a survey of the storage."""
        return await self.storage.survey()

    async def count(self, *states: State) -> int:
        """Return how many jobs are in these states."""
        return sum(queue.counts.get(state, 0) for queue in (await self.survey()).queues for state in states)

    async def active(self, pid: int) -> list[JobRecord]:
        """Return the jobs that a process holds now."""
        owners = {worker.owner.id for worker in (await self.survey()).workers if worker.owner.pid == pid}
        page = await self.storage.find(Query(states=(State.ACTIVE,), limit=1000))
        return [job for job in page.jobs if job.owner in owners]

    async def details(self, refs: list[Ref]) -> list[JobDetail]:
        """Return the jobs, all of which must be known."""
        found = await self.storage.get(refs)
        assert None not in found
        return [detail for detail in found if detail is not None]

    async def events(self) -> list[AnyEvent]:
        """Return the whole event log."""
        events: list[AnyEvent] = []
        cursor: str | None = None
        while True:
            page = await self.storage.events(cursor, limit=1000)
            events += page.events
            if not page.events:
                return events
            cursor = page.next

    async def until(self, holds: Callable[[], Awaitable[bool]], *, within: float) -> float:
        """Poll until a condition holds and return the seconds that it took. Fail after `within` seconds."""
        began = time.monotonic()
        while not await holds():
            assert time.monotonic() - began < within, f"{holds.__name__} not within {within} s\n{self.log()}"
            await asyncio.sleep(0.01)
        return time.monotonic() - began

    async def pids(self) -> list[int]:
        """Return the pids of the worker processes that have registered and are alive."""
        return sorted(worker.owner.pid for worker in (await self.survey()).workers if not worker.died)

    async def signal(self, process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
        """Send a signal and wait until it is delivered: until then a second signal of its kind would be lost."""
        process.send_signal(number)

        async def arrived() -> bool:
            return not pending(process.pid, number)

        await self.until(arrived, within=5)

    @contextmanager
    def stopped(self, pid: int) -> Generator[None]:
        """Stop a process with SIGSTOP meanwhile, but not within a commit, where it would block all other writers."""
        with quiet(f"{self.database}.lock"):
            os.kill(pid, signal.SIGSTOP)
            while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.001)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    async def close(self) -> None:
        """End all processes and close the storage."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self._processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        await self.storage.close()


def timing_of(env: Mapping[str, str]) -> Timing:
    """Return the timing of the test app."""
    return Timing(
        lease=env.get("FLEET_LEASE", "2s"), sweep=env.get("FLEET_SWEEP", "400ms"), grace=env.get("FLEET_GRACE", "600ms")
    )


def pending(pid: int, number: signal.Signals) -> bool:
    """Return True if a signal is pending for a process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def by_job(lines: list[Line]) -> dict[str, list[Line]]:
    """Return the lines of the handlers' log by job."""
    found: defaultdict[str, list[Line]] = defaultdict(list)
    for line in lines:
        found[line.id].append(line)
    return dict(found)
