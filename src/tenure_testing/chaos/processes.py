"""The real processes of a chaos test: hosts (a supervisor and its workers), reapers and producers."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from tenure.clock import Clock
from tenure_testing.chaos.blocking import obeys
from tenure_testing.chaos.records import DRAIN, Exit, uptime
from tenure_testing.demo.processes import alive, send

Role = Literal["host", "reaper", "producer"]

LEAVE = 15.0
"""Seconds within which a process must stop gracefully. A host that drains longer has a bug."""

REVIVED = 1.0
"""Seconds until a process that ended by itself is started again."""

VANISH = 5.0
"""Seconds within which the workers of a killed supervisor must end, too."""

_LOOK = 0.01


class ChaosProcess:
    """A member of the test, and the process that runs for it now."""

    def __init__(
        self, name: str, role: Role, command: list[str], env: Mapping[str, str], log: Path, clock: Clock
    ) -> None:
        self.name = name
        self.role: Role = role
        self.exits: list[Exit] = []
        self.complaints: list[str] = []

        self._command = command
        self._env = dict(env)
        self._log = log
        self._clock = clock
        self._process: Process | None = None
        self._minded: asyncio.Task[None] | None = None
        self._expected = False
        self._lives = 0
        self._began = 0

    @property
    def pid(self) -> int:
        """The process id, or 0 if the process does not run."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else 0

    @property
    def status(self) -> int | None:
        """The exit status of the last process, None while it runs."""
        return None if self._process is None else self._process.returncode

    def workers(self) -> list[int]:
        """Return the children of its supervisor. Each of them leads its own session."""
        return children(self.pid) if self.role == "host" and self.pid else []

    def pids(self) -> list[int]:
        """Return all its processes, the supervisor first."""
        return [self.pid, *self.workers()] if self.pid else []

    async def start(self) -> None:
        """Start its process."""
        self._lives += 1
        self._expected = False
        self._began = uptime(self._clock)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A restarted producer has a new name, because it must not reuse the ids of the one before.
                env={name: item.replace("{life}", str(self._lives)) for name, item in self._env.items()},
                start_new_session=True,
            )
        self._minded = asyncio.create_task(self._mind(self._process))

    def kill(self) -> None:
        """Kill its process."""
        self._expected = True
        # 0 would be the test's own process group.
        if pid := self.pid:
            send(pid, signal.SIGKILL)

    async def gone(self, workers: list[int]) -> None:
        """Wait until its process has ended, and these workers with it."""
        if self._process is not None:
            await self._process.wait()
        for _ in range(round(VANISH / _LOOK)):
            if not any(alive(pid) for pid in workers):
                return
            await asyncio.sleep(_LOOK)
        self.complaints.append(f"the workers {workers} of {self.name} outlived their supervisor by {VANISH:g} s")

    async def leave(self) -> int:
        """Ask its process to stop, wait until it has ended, and return its exit status."""
        process, self._expected = self._process, True
        if process is None or process.returncode is not None:
            return 0
        # A process that has just started has no signal handler yet, and may end at once.
        deaf = not obeys(process.pid, signal.SIGTERM)
        process.terminate()
        try:
            async with asyncio.timeout(LEAVE):
                status = await process.wait()
        except TimeoutError:
            self.complaints.append(f"{self.name} did not leave within {LEAVE:g} s and was killed")
            process.kill()
            status = await process.wait()
        return 0 if deaf and status == -signal.SIGTERM else status

    async def abort(self) -> None:
        """Kill all its processes. Idempotent."""
        workers = self.workers()
        self.kill()
        for pid in workers:
            send(pid, signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()

    async def _mind(self, process: Process) -> None:
        status = await process.wait()
        if not self._expected:
            self.exits.append(Exit(self.name, status, self._began, uptime(self._clock)))
            # A service manager would restart it, too.
            await asyncio.sleep(REVIVED)
            if not self._expected:
                await self.start()


class ChaosProcesses:
    """All members."""

    def __init__(self, members: list[ChaosProcess]) -> None:
        self.members = members

    def of(self, role: Role) -> list[ChaosProcess]:
        """Return the members of one role."""
        return [member for member in self.members if member.role == role]

    async def start(self) -> None:
        """Start all members."""
        for member in self.members:
            await member.start()

    async def leave(self, role: Role) -> None:
        """Ask all members of a role to stop, and record those that do not stop gracefully."""
        members = self.of(role)
        for member, status in zip(members, await asyncio.gather(*(item.leave() for item in members)), strict=True):
            if status != 0:
                member.complaints.append(f"{member.name} was asked to leave and left with the exit status {status}")

    async def abort(self) -> None:
        """Kill all remaining processes. Idempotent."""
        await asyncio.gather(*(member.abort() for member in self.members))

    @property
    def exits(self) -> list[Exit]:
        """All exits that the test had not asked for."""
        return [exit_ for member in self.members for exit_ in member.exits]

    @property
    def complaints(self) -> list[str]:
        """The members that did not stop as they should."""
        return [complaint for member in self.members for complaint in member.complaints]


def worker_command(processes: int, concurrency: int) -> list[str]:
    """Return the command of a host."""
    return [
        *(sys.executable, "-m", "tenure", "worker", "tenure_testing.chaos.tasks:app"),
        *("--processes", str(processes), "-c", str(concurrency), "--drain", f"{DRAIN}s", "--log-level", "warning"),
    ]


def reaper_command() -> list[str]:
    """Return the command of a reaper."""
    return [sys.executable, "-m", "tenure", "reaper", "tenure_testing.chaos.tasks:app", "--log-level", "warning"]


def producer_command() -> list[str]:
    """Return the command of a producer."""
    return [sys.executable, "-m", "tenure_testing.chaos.producer"]


def inherited() -> dict[str, str]:
    """Return the environment without the variables that the user has set for other Tenure processes."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}


def children(parent: int) -> list[int]:
    """Return the children of a process that lead their own process group, according to the system."""
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                output = Path(f"/proc/{entry}/stat").read_text(errors="replace")
            except OSError:
                continue
            state, above, group, *_ = output.rpartition(")")[2].split()
            if int(above) == parent and group == entry and state not in "ZX":
                found.append(int(entry))
    return sorted(found)
