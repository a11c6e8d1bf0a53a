"""The processes that run one job each: started when they are needed, kept for the next, replaced when they die.

    run ──► one that is idle, or a new one: enter ──► ready ──► run ──► what it says goes to the keeper ──► ended
                                                                └─────► it dies ──► process_died, settled at once
    before it has begun its time stands still, and what was started for it is there for the next
    cancelled, lost, timed out: told ──1 s──► SIGTERM to it and all that it started ──0.75 s──► SIGKILL

Each run has a process of its own, so nothing that a handler does there can take another run along, or keep the worker
from what it promises. There are never more of them than the worker runs jobs at once. They end with the worker: told
to, or by the end of the line, or by the kernel.
"""

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import sys
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping
from typing import Any

from holdfast.clock import SECOND
from holdfast.core.job import Owner, Ref
from holdfast.core.outcome import Interrupted, Outcome, Raised
from holdfast.core.postmortem import Ending
from holdfast.equipment import Equipment
from holdfast.errors import UsageError
from holdfast.task import Task
from holdfast.waiting import first
from holdfast.whereabouts import Whereabouts
from holdfast.worker.autopsy import OomKills, told
from holdfast.worker.frames import (
    TELLING,
    VARIABLE,
    Answer,
    Began,
    Ended,
    Enter,
    GarbledError,
    Leave,
    Logged,
    Order,
    Ready,
    Run,
    Said,
    Stop,
    Turned,
    Unfit,
    ear_of_worker,
    framed,
)
from holdfast.worker.held import Held
from holdfast.worker.inquest import Heard, inquest
from holdfast.worker.offspring import Death, Offspring
from holdfast.worker.run import UNKNOWN_DELAY, recorded, stopped, timed_out
from holdfast.worker.slate import Slate
from holdfast.worker.turns import TICK

COMMAND = (sys.executable, "-m", "holdfast.worker.slot")

STARTING = 60.0
"""Seconds that a process gets until it is ready: to load the app, and to enter its lifespan."""

STARTS = 4
"""So many processes are started at a time: after a crash all runs want one at once, and loading takes a whole core."""

QUARANTINED = 4
"""So many jobs in quarantine run at a time: after a crash there are as many as the worker runs at once."""

IDLE, LEAVING = 60.0, 10.0
"""Seconds after which a process that nobody needs is told to leave, and that it gets for that."""

TRIES = 3
"""So many times in a row a run is handed back uncharged as its app is unfit; then that is what it comes to."""

BEGINNING = 30.0
"""Seconds in which one that is ready begins a run; else it hangs."""

ASKED, KILLED = 1.0, 1.75
"""Seconds after a run was told to end, or should have, until its process is sent SIGTERM, and until it is killed."""

HOOK = 35.0
"""Seconds that an on_cancel hook gets at least, which has limits of its own within the process."""

BLOCKED = "its event loop was blocked for longer than max_block"

GONE = 0.5
"""Seconds in which what was killed is surely dead, unless the kernel keeps it."""

_PART = 262_144


class UnfitError(Exception):
    """No process can be had that runs jobs of this app; `ours`: for what the machine refuses, not for its own fault."""

    def __init__(self, why: str, *, ours: bool = False) -> None:
        super().__init__(why)
        self.ours = ours


class Slot:
    """One process, and what is said to it and heard of it."""

    def __init__(self, process: Offspring) -> None:
        self.process = process
        self.why: str | None = None
        """What we kill it for, once we do; or what we had told it to end for, if it ended by that."""
        self._asked: str | None = None
        self._ear = ear_of_worker()
        self._heard: list[Answer] = []
        self._timers: list[asyncio.TimerHandle] = []
        self.turned_at = 0.0
        """The uptime at which its loop last turned, as far as it has said."""
        self.idle = False
        """Whether it waits for a run."""
        self._in_use = False
        """Whether somebody speaks or listens on the line; then it must not be closed."""
        self._death = asyncio.ensure_future(process.ended())
        self._death.add_done_callback(self._died)

    @classmethod
    def started(cls, gone: "Callable[[Slot], None]") -> "Slot":
        """Start one; `gone` is called when it is dead.

        Raises:
            OSError: it cannot be started.
        """
        slot = cls(Offspring.started(COMMAND, variable=VARIABLE, env=os.environ))
        slot._death.add_done_callback(lambda _: gone(slot))
        return slot

    @property
    def lives(self) -> bool:
        """Whether it can be told something."""
        return self.process.death is None and self.why is None

    async def say(self, word: Order) -> None:
        """Say something; if it is dead, that is heard next."""
        with self._using(), contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(self.process.line, framed(word))

    def say_at_once(self, word: Order) -> None:
        """Say something short, if there is room for it on the line."""
        self.process.say(framed(word))

    async def hear(self) -> Answer | None:
        """Wait for a word and return it; None once it is dead, or has said what is none and is killed for that."""
        while not self._heard:
            part = b""
            try:
                with self._using():
                    part = await asyncio.get_running_loop().sock_recv(self.process.line, _PART)
                self._heard += self._ear.hear(part)
            except GarbledError as error:
                self.kill(f"what it says is {error}")
                part = b""
            except OSError:
                pass
            if not part:
                # Its end is closed at its death, and then that is known in a moment; or it has closed it and lives on.
                await first(self.death(), within=GONE)
                self.kill("it has closed its line")
                await self.death()
                return None
        return self._heard.pop(0)

    def rest(self) -> None:
        """Let it be idle. What it logs meanwhile is heard all the same, or it would wait for somebody to hear it."""
        self.idle = True
        asyncio.get_running_loop().add_reader(self.process.line, self._overhear)

    def rise(self) -> None:
        """Let it be idle no more."""
        if self.idle:
            self.idle = False
            asyncio.get_running_loop().remove_reader(self.process.line)

    def expect(self, within: float, why: str) -> None:
        """Have it killed unless it is calmed before: asked after so many seconds, and a little more to leave."""
        self.after(within + ASKED, functools.partial(self._ask, why))
        self.after(within + KILLED, functools.partial(self.kill, why))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something after so many seconds, unless it is calmed before, or dead."""
        self._timers.append(asyncio.get_running_loop().call_later(seconds, act))

    def calm(self) -> None:
        """Let it live, whatever was expected of it."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._asked = None

    def kill(self, why: str) -> None:
        """Kill it, and all that it has started. Idempotent."""
        if self.process.death is None:
            self.why = self.why or why
            self.process.send_all(signal.SIGKILL)

    async def death(self) -> Death:
        """Wait until it is dead."""
        return await asyncio.shield(self._death)

    @contextlib.contextmanager
    def _using(self) -> Generator[None]:
        self._in_use = True
        try:
            yield
        finally:
            self._in_use = False
            if self.process.death is not None:
                self.process.line.close()

    def _overhear(self) -> None:
        try:
            part = self.process.line.recv(_PART)
            words = self._ear.hear(part)
        except BlockingIOError:
            return
        except (OSError, GarbledError) as error:
            part, words = b"", list[Answer]()
            self.kill(f"what it says is {error}")
        for word in words:
            if isinstance(word, Logged):
                _log(word)
        if not part:
            # It is dead, or as good as dead.
            self.rise()
            self.kill("it has closed its line")

    def _ask(self, why: str) -> None:
        self._asked = self._asked or why
        self.process.send_all(signal.SIGTERM)

    def _died(self, _: object) -> None:
        # The app may have a handler of its own for the signal, and end by it.
        self.why = self.why or self._asked
        self.calm()
        self.rise()
        # What it had started must not go on, and may hold the other end of the line, which would then never end.
        self.process.send_all(signal.SIGKILL)
        if not self._in_use:
            self.process.line.close()
            return
        with contextlib.suppress(OSError):
            self.process.line.shutdown(socket.SHUT_RDWR)


class _Waiting:
    """One who waits for a process; `isolated`: only because of its quarantine."""

    def __init__(self, *, isolated: bool) -> None:
        self.isolated = isolated
        self.slot: asyncio.Future[Slot | None] = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        """Wait no more."""
        if not self.slot.done():
            self.slot.set_result(None)

    @property
    def given(self) -> Slot | None:
        """What it was given."""
        given = self.slot.done() and not self.slot.cancelled() and self.slot.exception() is None
        return self.slot.result() if given else None


class Slots:
    """The processes of one worker."""

    def __init__(
        self,
        equipment: Equipment,
        *,
        worker: Owner,
        isolates: bool,
        begin: Callable[[Held, float], None],
        slate: Slate | None = None,
    ) -> None:
        """Take what the processes need. `begin` is told of a run that begins, and when."""
        self._begin = begin
        self._whereabouts = equipment.whereabouts
        self._tasks: Mapping[str, Task[..., Any]] = equipment.tasks
        self._clock = equipment.clock
        self._logger = equipment.logger
        self._worker = worker
        self._slate = slate
        self._max_block = equipment.timing.max_block.total_seconds()
        self._isolates = isolates
        """Whether a job in quarantine gets a process to itself, whatever its task says."""
        self._kills: OomKills | None = None
        """The kills for memory; counted from the first process on."""
        self._app: Whereabouts | None = None
        self._idle: list[Slot] = []
        self._waiting: list[_Waiting] = []
        """Those who want one, in their order."""
        self._starting: set[asyncio.Task[Slot]] = set()
        self._isolating: set[Slot] = set()
        """Those with a job in quarantine, whose task does not want a process otherwise."""
        self._unfit_for: Counter[Ref] = Counter()
        """How many times in a row no process was fit to run a job; forgotten once any is."""
        self._dismissed: set[Slot] = set()
        """Those that were told to leave."""
        self._all: set[Slot] = set()
        self._closed = False

    def find(self) -> None:
        """Look where other processes find the app.

        Raises:
            UsageError: a task wants a process, and they do not find it.
        """
        wanting = next((task for task in self._tasks.values() if task.settings.run == "process"), None)
        if wanting is not None or self._isolates:
            self._app = self._whereabouts()
        if wanting is not None and self._app is None:
            raise UsageError(
                f"task {wanting.name!r} runs in a process of its own, which cannot find its app: make the app and its "
                "tasks at the top of a module or of the script, not in a function or a shell; or leave out "
                'run="process"'
            )

    def wanted(self, held: Held) -> bool:
        """Say whether a run is to be carried out in a process of its own."""
        job = held.lease.job
        if job.quarantined and self._isolates and self._app is not None and job.task in self._tasks:
            return True
        task = self._tasks.get(job.task)
        return task is not None and task.settings.run == "process"

    async def run(self, held: Held) -> Outcome | None:
        """Run one lease to its outcome in a process of its own. Being cancelled is an outcome, too.

        None: no process can be had, and the job can do without.
        """
        slot: Slot | None = None
        try:
            slot = await self._taken(held)
            if held.stop is not None:
                return stopped(held)
            return Interrupted("shutdown") if slot is None else await self._carried_out(slot, held)
        except UnfitError as error:
            return stopped(held) if held.stop is not None else self._unfit(held, error)
        except asyncio.CancelledError:
            if slot is not None:
                slot.kill("its worker ends")
            return stopped(held)
        finally:
            held.make_end = None
            if slot is not None:
                self._put_away(slot)

    async def leave(self) -> None:
        """Let the processes end that are idle, and wait for that. From now on none is kept."""
        self._closed = True
        for starting in self._starting:
            starting.cancel()
        for slot in list(self._idle):
            self._dismiss(slot)
            # From now on there is a limit for all of them together.
            slot.calm()
        await _all([slot.death() for slot in self._dismissed])

    async def close(self) -> None:
        """Kill what is left of them."""
        self._closed = True
        self._idle.clear()
        for starting in self._starting:
            starting.cancel()
        for slot in self._all:
            slot.kill("its worker ends")
        await first(_all([slot.death() for slot in self._all]), within=GONE)

    async def _taken(self, held: Held) -> Slot | None:
        """Return a process that is ready; None if the run has to end before there is one.

        Raises:
            UnfitError: there is none, and none can be made.
        """
        task = self._tasks.get(held.lease.job.task)
        waiting = _Waiting(isolated=task is None or task.settings.run != "process")
        self._waiting.append(waiting)
        held.make_end = waiting.leave
        if held.stop is not None:
            waiting.leave()
        self._serve()
        try:
            return await waiting.slot
        except asyncio.CancelledError:
            if (slot := waiting.given) is not None:
                self._put_away(slot)
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def _serve(self) -> None:
        """Hand over what is idle to those who wait, and start what is missing."""
        self._waiting = [one for one in self._waiting if not one.slot.done()]
        if self._closed:
            for one in self._waiting:
                one.leave()
            return
        isolated = [one for one in self._waiting if one.isolated]
        too_many = isolated[max(0, QUARANTINED - len(self._isolating)) :]
        wanting = deque(one for one in self._waiting if one not in too_many)
        while wanting and (slot := self._risen()) is not None:
            one = wanting.popleft()
            if one.isolated:
                self._isolating.add(slot)
            one.slot.set_result(slot)
        for _ in range(min(len(wanting), STARTS) - len(self._starting)):
            starting = asyncio.create_task(self._started())
            self._starting.add(starting)
            starting.add_done_callback(self._over)

    def _risen(self) -> Slot | None:
        while self._idle:
            slot = self._idle.pop()
            slot.rise()
            slot.calm()
            if slot.lives:
                return slot
        return None

    def _over(self, starting: "asyncio.Task[Slot]") -> None:
        """Note that a process is ready, or will never be; then the one who has waited longest hears of it."""
        self._starting.discard(starting)
        if starting.cancelled():
            return
        error = starting.exception()
        if error is None:
            self._unfit_for.clear()
            self._put_away(starting.result())
            return
        for one in self._waiting:
            if not one.slot.done():
                one.slot.set_exception(error)
                break
        self._serve()

    async def _started(self) -> Slot:
        """Start a process and return it once it is ready.

        Raises:
            UnfitError: none can be had.
        """
        if self._app is None:
            raise UnfitError("the processes of this worker do not find the app")
        self._kills = self._kills or OomKills()
        try:
            slot = Slot.started(self._gone)
        except OSError as error:
            raise UnfitError(f"no process can be started: {error}", ours=True) from error
        self._all.add(slot)
        if self._slate is not None:
            self._slate.slot_began(slot.process.pid)
        try:
            await self._ready(slot, self._app)
        except BaseException:
            slot.kill("it is of no use")
            raise
        return slot

    async def _ready(self, slot: Slot, app: Whereabouts) -> None:
        try:
            async with asyncio.timeout(STARTING):
                await slot.say(Enter(app, self._worker.name, logging.getLogger().level))
                while True:
                    match await slot.hear():
                        case Ready():
                            return
                        case Unfit(why):
                            raise UnfitError(why)
                        case Logged() as record:
                            _log(record)
                        case None:
                            raise UnfitError(f"the process ended ({await slot.death()}) before it was ready")
                        case Began() | Said() | Turned() | Ended():
                            continue
        except TimeoutError:
            raise UnfitError(f"the process was not ready within {STARTING:g} s") from None

    async def _carried_out(self, slot: Slot, held: Held) -> Outcome:
        job, heard = held.lease.job, Heard()
        if self._kills is not None:
            # What was killed before was not this run's process.
            self._kills.look(self._clock.uptime())
        await slot.say(Run(job))
        slot.after(BEGINNING, functools.partial(slot.kill, "it did not begin"))
        held.make_end = functools.partial(self._tell, slot, held)
        if held.stop is not None:
            self._tell(slot, held)
        slot.turned_at = self._clock.uptime()
        minding = asyncio.create_task(self._mind(slot))
        try:
            return await self._followed(slot, held, heard)
        finally:
            minding.cancel()

    async def _mind(self, slot: Slot) -> None:
        """Have a process killed whose loop does not turn for too long."""
        rest = max(TICK, min(5.0, self._max_block / 4))
        while True:
            asked_at = self._clock.uptime()
            await asyncio.sleep(rest)
            now = self._clock.uptime()
            # Who is late himself has not heard yet what was said meanwhile.
            if now - asked_at < 2 * rest and now - slot.turned_at > self._max_block + TELLING + TICK:
                slot.kill(BLOCKED)

    async def _followed(self, slot: Slot, held: Held, heard: Heard) -> Outcome:
        job = held.lease.job
        while True:
            match await slot.hear():
                case Began(job.fence):
                    heard.began = True
                    held.pid = slot.process.pid
                    self._begin(held, self._clock.uptime())
                    if held.stop is None:
                        slot.calm()
                    if job.timeout is not None:
                        slot.expect(job.timeout / SECOND, "timeout")
                case Turned(at):
                    slot.turned_at = at
                case Said(fence=job.fence) as said:
                    self._take(slot, held, said, heard)
                case Logged() as record:
                    _log(record)
                case Ended(job.fence, outcome, spoiled):
                    slot.calm()
                    if spoiled:
                        slot.kill("something of its last run goes on")
                        await slot.death()
                    return outcome
                case None:
                    return self._died(slot, held, heard, await slot.death())
                case Ready() | Unfit() | Began() | Said() | Ended():
                    # Of a run that is over.
                    continue

    def _tell(self, slot: Slot, held: Held) -> None:
        if held.hooking and held.stop == "cancelled":
            # Its handler had cancelled it already.
            return
        slot.say_at_once(Stop(held.lease.fence, held.stop or "shutdown", held.stop_detail))
        slot.expect(0.0, "stop")

    def _take(self, slot: Slot, held: Held, said: Said, heard: Heard) -> None:
        heard.progress = said.progress or heard.progress
        heard.lines.extend(said.log)
        for at, level, message, fields in said.log:
            held.signs.log(at, level, message, fields)
        if said.at is not None:
            held.signs.sign(said.at, said.progress)
        held.elsewhere = said.trace or held.elsewhere
        if said.hooking and not held.hooking:
            held.hooking = True
            slot.calm()
            slot.expect(max(HOOK, (held.lease.job.timeout or 0) / SECOND), "stop")

    def _died(self, slot: Slot, held: Held, heard: Heard, death: Death) -> Outcome:
        for_memory = self._kills is not None and self._kills.took(death, self._clock.uptime())
        if slot.why == "stop" and held.stop is not None:
            return stopped(held)
        if slot.why == "timeout":
            return timed_out(held)
        if not heard.began:
            # It died between two runs; this one has lost nothing but a moment.
            return Interrupted("prefetch")
        sentence = "" if slot.why is None else f"killed, for {slot.why}"
        how = told(death, for_memory=for_memory, sentence=sentence)
        return inquest(
            held,
            heard,
            Ending(how, death.peak_memory),
            worker=self._worker,
            clock=self._clock,
            max_block=round(self._max_block * SECOND) if slot.why == BLOCKED else None,
        )

    def _unfit(self, held: Held, error: UnfitError) -> Outcome | None:
        job = held.lease.job
        self._logger.error("job %s (%s) has no process to run in: %s", job.id, job.task, error)
        task = self._tasks.get(job.task)
        if task is None or task.settings.run != "process":
            return None
        held.signs.log(self._clock.uptime(), "error", f"there is no process to run in: {error}", {})
        if not error.ours:
            self._unfit_for[held.lease.ref] += 1
            if self._unfit_for[held.lease.ref] >= TRIES:
                return Raised(recorded(error))
        return Interrupted("unreachable", UNKNOWN_DELAY)

    def _put_away(self, slot: Slot) -> None:
        slot.calm()
        isolated = slot in self._isolating
        self._isolating.discard(slot)
        if slot.lives and not self._closed:
            self._idle.append(slot)
            slot.rest()
            slot.after(IDLE, functools.partial(self._dismiss, slot))
        else:
            slot.kill("its worker ends")
        self._serve()
        if isolated:
            # Most workers never need one again.
            self._dismiss(slot)

    def _dismiss(self, slot: Slot) -> None:
        """Let a process leave that is idle."""
        if slot in self._idle:
            self._idle.remove(slot)
            self._dismissed.add(slot)
            slot.say_at_once(Leave())
            slot.after(LEAVING, functools.partial(slot.kill, "it did not leave"))

    def _gone(self, slot: Slot) -> None:
        self._all.discard(slot)
        self._dismissed.discard(slot)
        if slot in self._idle:
            self._idle.remove(slot)
        if self._slate is not None:
            self._slate.slot_ended(slot.process.pid)


def _log(record: Logged) -> None:
    """Log what a process has to say, as if it had been said here."""
    logger = logging.getLogger(record.logger)
    if logger.isEnabledFor(record.level):
        fields = {
            "name": record.logger,
            "levelno": record.level,
            "levelname": logging.getLevelName(record.level),
            "msg": record.message,
            "exc_text": record.trace,
        }
        logger.handle(logging.makeLogRecord(fields))


async def _all(deaths: "list[Any]") -> None:
    if deaths:
        await asyncio.gather(*deaths)
