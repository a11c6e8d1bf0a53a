"""Faults for the processes of any storage: killed, stopped, asked to stop. Each fault records what it did."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Generator, Sequence
from random import Random

from tenure.clock import SECOND, Clock
from tenure.storage.sqlite.locks import quiet, written
from tenure_testing.chaos import blocking
from tenure_testing.chaos.processes import ChaosProcess, ChaosProcesses, Role
from tenure_testing.chaos.records import Deed, Effect, uptime
from tenure_testing.chaos.storage import ChaosStorage
from tenure_testing.demo.processes import pause, send

RESTART = (0.2, 4.0)
"""Seconds until a killed process is started again."""

STOPPED = (1.0, 30.0)
"""Seconds that a process is stopped for."""

HUNT = 100
"""How many stops are tried to catch a worker while it writes."""

Answering = Callable[[], Awaitable[None]]
"""Returns once the storage has taken a write."""


class Field:
    """The environment of faults: the processes, the storage, the random numbers, and the list of all faults so far."""

    def __init__(
        self, processes: ChaosProcesses, storage: ChaosStorage, rng: Random, clock: Clock, answering: Answering
    ) -> None:
        self.processes = processes
        self.storage = storage
        self.rng = rng
        self.deeds: list[Deed] = []
        self.ends_at = float("inf")
        """The uptime at which every fault must have ended."""

        self._clock = clock
        self._answering = answering
        self._struck: set[str] = set()

    def free(self, role: Role) -> ChaosProcess | None:
        """Return a running member of that role that no fault hits at the moment."""
        free = [item for item in self.processes.of(role) if item.pid and item.name not in self._struck]
        return self.rng.choice(free) if free else None

    @contextlib.contextmanager
    def striking(self, *names: str) -> Generator[None]:
        """Keep other faults away from these members meanwhile."""
        self._struck.update(names)
        try:
            yield
        finally:
            self._struck.difference_update(names)

    def is_struck(self, name: str) -> bool:
        """Return True if a fault hits the member of that name at the moment."""
        return name in self._struck

    def note(
        self,
        kind: str,
        effect: Effect,
        where: str,
        pids: Sequence[int] = (),
        *,
        alone: bool = False,
    ) -> Deed:
        """Record a fault that begins now."""
        deed = Deed(kind=kind, effect=effect, where=where, pids=tuple(pids), at=self.now(), alone=alone)
        self.deeds.append(deed)
        return deed

    def now(self) -> int:
        """Return the uptime in microseconds."""
        return uptime(self._clock)

    async def rest(self, between: tuple[float, float]) -> None:
        """Wait for some seconds, but not beyond the end."""
        await asyncio.sleep(self.length(between))

    def length(self, between: tuple[float, float]) -> float:
        """Return a random number of seconds that does not go beyond the end."""
        return max(0.0, min(self.rng.uniform(*between), self.ends_at - self._clock.uptime()))

    def over(self, deed: Deed) -> None:
        """Record that a fault has ended now."""
        deed.until = self.now()

    async def healed(self, deed: Deed) -> None:
        """Record the end of an outage, once the storage takes writes again."""
        await self._answering()
        deed.until = self.now()


Fault = Callable[[Field], Awaitable[bool]]
"""Runs one fault from its beginning to its end. Returns False if it found nothing to hit."""


async def kill_worker(field: Field) -> bool:
    """Kill a worker. Its supervisor runs and sees the death."""
    member = field.free("host")
    workers = member.workers() if member is not None else []
    if member is None or not workers:
        return False
    with field.striking(member.name):
        pid = field.rng.choice(workers)
        deed = field.note("kill worker", "death", member.name, [pid], alone=True)
        send(pid, signal.SIGKILL)
        # The fault lasts until the worker is replaced. A supervisor delays each further replacement longer.
        await _replaced(field, member, len(workers))
        field.over(deed)
    return True


async def kill_worker_unseen(field: Field) -> bool:
    """Kill a worker while its supervisor is stopped and cannot see the death."""
    member = field.free("host")
    workers = member.workers() if member is not None else []
    if member is None or not workers:
        return False
    with field.striking(member.name):
        boss, pid = member.pid, field.rng.choice(workers)
        if not await _stopped(field, boss):
            return False
        try:
            paused = field.note("stop supervisor", "pause", member.name, [boss])
            deed = field.note("kill worker unseen", "death", member.name, [pid])
            send(pid, signal.SIGKILL)
            await field.rest((1.0, 10.0))
        finally:
            send(boss, signal.SIGCONT)
        field.over(paused)
        await _replaced(field, member, len(workers))
        field.over(deed)
    return True


async def kill_supervisor(field: Field) -> bool:
    """Kill a supervisor. Its workers must end with it."""
    return await _kill(field, "host", "kill supervisor")


async def kill_reaper(field: Field) -> bool:
    """Kill a reaper."""
    return await _kill(field, "reaper", "kill reaper")


async def kill_producer(field: Field) -> bool:
    """Kill a producer, perhaps during a call."""
    return await _kill(field, "producer", "kill producer")


async def stop_worker(field: Field) -> bool:
    """Stop a worker for some time, but not while it holds the write lock of the storage, if there is one."""
    member = field.free("host")
    workers = member.workers() if member is not None else []
    if member is None or not workers:
        return False
    return await _stop(field, "stop worker", member, [field.rng.choice(workers)])


async def stop_supervisor(field: Field) -> bool:
    """Stop a supervisor. Its workers continue."""
    member = field.free("host")
    return member is not None and await _stop(field, "stop supervisor", member, [member.pid])


async def stop_host(field: Field) -> bool:
    """Stop a supervisor and all its workers, as if their machine were frozen."""
    member = field.free("host")
    return member is not None and await _stop(field, "stop host", member, member.pids())


async def stop_reaper(field: Field) -> bool:
    """Stop a reaper."""
    member = field.free("reaper")
    return member is not None and await _stop(field, "stop reaper", member, [member.pid])


async def block_loop(field: Field) -> bool:
    """Let a worker block its event loop for some time. Its leases are renewed from another thread."""
    return await _hold(field, "block loop", blocking.BLOCK, max(blocking.LENGTHS))


async def hold_interpreter(field: Field) -> bool:
    """Let a worker hold its interpreter for some time, so that all its threads stop. Its supervisor renews its leases.

    The worker may hold the storage's write lock, or get it meanwhile. Then no process can write.
    """
    return await _hold(
        field, "hold interpreter", blocking.HOLD_GIL, max(blocking.LENGTHS) if field.storage.lock is None else 10.0
    )


async def stop_writer(field: Field) -> bool:
    """Stop a worker while it holds the write lock. It blocks all other writers."""
    lock, member = field.storage.lock, field.free("host")
    if lock is None or member is None or field.is_struck("storage"):
        return False
    with field.striking(member.name, "storage"):
        for _ in range(HUNT):
            for pid in member.workers():
                since = field.now()
                if await asyncio.to_thread(pause, pid):
                    if await _held_up(lock):
                        await _hold_up(field, member, pid, since)
                        return True
                    send(pid, signal.SIGCONT)
                await asyncio.sleep(field.rng.uniform(0, 0.02))
    return False


async def restart_host(field: Field) -> bool:
    """Ask a host to stop, and start it again after it has ended."""
    return await _restart(field, "host", "restart host")


async def restart_reaper(field: Field) -> bool:
    """Ask a reaper to stop, and start it again."""
    return await _restart(field, "reaper", "restart reaper")


COMMON: dict[str, Fault] = {
    "kill worker": kill_worker,
    "kill worker unseen": kill_worker_unseen,
    "kill supervisor": kill_supervisor,
    "kill reaper": kill_reaper,
    "kill producer": kill_producer,
    "stop worker": stop_worker,
    "stop supervisor": stop_supervisor,
    "stop host": stop_host,
    "stop reaper": stop_reaper,
    "block loop": block_loop,
    "hold interpreter": hold_interpreter,
    "restart host": restart_host,
    "restart reaper": restart_reaper,
}
"""Faults of processes for any storage, by name."""


async def _kill(field: Field, role: Role, kind: str) -> bool:
    member = field.free(role)
    if member is None:
        return False
    with field.striking(member.name):
        pids = member.pids()
        # No job depends on a producer that ends.
        deed = field.note(kind, "none" if role == "producer" else "death", member.name, pids)
        member.kill()
        await member.gone(pids[1:])
        await field.rest(RESTART)
        await member.start()
        field.over(deed)
    return True


async def _stop(field: Field, kind: str, member: ChaosProcess, pids: list[int]) -> bool:
    with field.striking(member.name):
        stopped: list[int] = []
        try:
            for pid in pids:
                if await _stopped(field, pid):
                    stopped.append(pid)
            if not stopped:
                return False
            deed = field.note(kind, "pause", member.name, stopped)
            await field.rest(STOPPED)
        finally:
            # Continue the workers first, or the supervisor would treat them as unresponsive.
            for pid in reversed(stopped):
                send(pid, signal.SIGCONT)
        field.over(deed)
    return True


async def _hold(field: Field, kind: str, how: int, longest: float) -> bool:
    member, left = field.free("host"), field.length((longest, longest))
    workers = member.workers() if member is not None else []
    places = [place for place, length in enumerate(blocking.LENGTHS) if length <= left]
    if member is None or not workers or not places:
        return False
    lock, place, pid = field.storage.lock, field.rng.choice(places), field.rng.choice(workers)
    number = blocking.number(how, place)
    with contextlib.ExitStack() as struck:
        struck.enter_context(field.striking(member.name))
        if how == blocking.HOLD_GIL and lock is not None:
            if field.is_struck("storage"):
                return False
            struck.enter_context(field.striking("storage"))
        if not blocking.obeys(pid, number):
            return False
        deed = field.note(kind, "hold", member.name, [pid])
        send(pid, number)
        over = deed.at + round(blocking.LENGTHS[place] * SECOND)
        outage: Deed | None = None
        while field.now() < over:
            if how == blocking.HOLD_GIL and lock is not None and outage is None and await _held_up(lock):
                outage = field.note(kind, "outage", "storage")
                outage.at = deed.at
            await asyncio.sleep(0.05)
        field.over(deed)
        if outage is not None:
            await field.healed(outage)
    return True


async def _stopped(field: Field, pid: int) -> bool:
    return bool(pid) and await asyncio.to_thread(
        pause, pid, None if (lock := field.storage.lock) is None else quiet(lock)
    )


async def _held_up(lock: str) -> bool:
    """Return True if the write lock stays held for so long that only a stopped process can hold it."""
    for _ in range(20):
        if not await asyncio.to_thread(written, lock):
            return False
        await asyncio.sleep(0.005)
    return True


async def _hold_up(field: Field, member: ChaosProcess, pid: int, since: int) -> None:
    paused = field.note("stop writer", "pause", member.name, [pid])
    outage = field.note("stop writer", "outage", "storage")
    paused.at = outage.at = since
    try:
        await field.rest((1.0, 10.0))
    finally:
        send(pid, signal.SIGCONT)
    field.over(paused)
    await field.healed(outage)


async def _restart(field: Field, role: Role, kind: str) -> bool:
    member = field.free(role)
    if member is None:
        return False
    with field.striking(member.name):
        deed = field.note(kind, "leave", member.name, member.pids())
        status = await member.leave()
        if status != 0:
            member.complaints.append(f"{member.name} was asked to leave and left with the exit status {status}")
        await field.rest(RESTART)
        await member.start()
        field.over(deed)
    return True


async def _replaced(field: Field, member: ChaosProcess, count: int) -> None:
    """Wait until a supervisor has as many workers again, but not for too long."""
    for _ in range(100):
        if len(member.workers()) >= count:
            return
        await field.rest((0.1, 0.1))
