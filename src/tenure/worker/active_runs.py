"""The runs that this process holds: shared by the loop that runs them and the keeper that renews them."""

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from types import CodeType, CoroutineType
from typing import Any, Literal, TypeAlias

from tenure.clock import SECOND
from tenure.core.job import Ref
from tenure.core.lease import Lease, margin, trusted_until
from tenure.core.outcome import StopCode, UnknownReason
from tenure.handlers.context import JobContext, Said, Signs
from tenure.storage.protocol import LeaseRenewal, NewLogLine
from tenure.threads import WorkerThread
from tenure.worker.blocked_loop import spared
from tenure.worker.loop_lag import LoopMonitor
from tenure.worker.scoreboard import Scoreboard, Way

Silence = Literal["no_progress", "lease_expired"]
"""Which clock of its own a handler has outrun: its `heartbeat_timeout`, or a lease that only its signs renew."""

StopReason = Literal["cancelled", "lost", "unreachable", "shutdown", "worker_failed", "no_progress", "lease_expired"]
SILENT: tuple[StopReason, ...] = ("no_progress", "lease_expired")
SECOND_LOOK = 1.0
"""Seconds, at most, between the two looks that find a handler silent."""

RunKey = tuple[Ref, int]
Waiting: TypeAlias = "CoroutineType[Any, Any, Any]"
Place = tuple[CodeType, int]
"""Where one frame of a stack is: its code, and the instruction."""

Mark = tuple[Place, ...]
"""What tells a stack from others: its frames, the outermost first."""


def outdoes(reason: StopReason, before: StopReason | None) -> bool:
    """Say whether a run that has been told to end for one reason must hear of another.

    Who is cancelled may tidy up for long, but only as long as it has its lease.
    """
    match before:
        case None:
            return True
        case "cancelled":
            return reason in ("lost", "unreachable")
        case _:
            return reason == "lost" and before != "lost"


class ActiveRun:
    """One run and what is known of it here; `stop` says why it shall end, once somebody has said so.

    Thousands are made in a second, and few of them ever differ from what a run usually is: that stands in the class.
    """

    begun: bool = True
    """Whether it has; until then its time stands still. Set last of all: the keeper reads it in another thread."""
    claimed_at: float = 0.0
    """When it began: when its claim was answered, or later where it had to wait for a process."""
    stops_unreachable: bool = False
    """Whether it is to stop before the storage may give its job away."""
    exclusive: bool = False
    """Whether it holds a right that must not pass to another run while its handler goes on. Then its worker keeps its
    limits: the lease tells only that the worker lives, and is renewed until the handler has ended."""
    granted_at: float = 0.0
    """When its claim was asked for."""
    spared_until: float = 0.0
    """Until when it could give no sign, because another run blocked the loop."""
    missed_at: float | None = None
    """When a look first found that its handler should have given a sign, since the last one."""
    silenced: bool = False
    """Whether the keeper has seen that its handler was silent for too long."""
    silent_for: int = 0
    """For how many microseconds, when it was stopped for that."""
    expired: bool = False
    """Whether it has passed its timeout."""
    over: bool = False
    """Whether it has come to something, be it that it was handed back while its handler goes on."""
    trusted_until: float = 0.0
    signed_at: float = 0.0
    context: JobContext | None = None
    root: Coroutine[Any, Any, Any] | None = None
    """The coroutine that its handler is called by. Not asked of its task: that need not have it once it is over."""
    task: asyncio.Task[None] | None = None
    stop: StopReason | None = None
    stop_detail: str | None = None
    renewed_at: float = 0.0
    threading: bool = False
    """Whether its handler, or its hook, is at work in a thread, which can only be told to stop."""
    hooking: bool = False
    """Whether its handler has ended and its on_cancel hook is at work."""
    lane: WorkerThread | None = None
    """The thread of its plain functions, if it has any."""
    left: "tuple[asyncio.Task[None], ...]" = ()
    """What goes on of it in tasks that were left to themselves: a hook, or what closes its providers."""
    elsewhere: str | None = None
    """Where its handler is, of one that is at work in another process and tells so by itself."""
    mark: Mark = ()
    """Where its handler was when somebody last looked."""
    tip: tuple[Waiting, object] | None = None
    """The coroutine that all the others wait for, and what that one waited for."""
    trace: str | None = None
    """The same as text, and what of it the storage knows."""
    traced: str | None = None
    at_limit: str | None = None
    """Where it was when its time was over."""
    abandoned: bool = False
    """Whether it was left to itself: settled without its handler, which goes on."""
    make_end: Callable[[StopReason, str | None], None] | None = None
    """Tells the process of its slot that it shall end, where it runs in one; from any thread."""
    still: bool = False
    """Whether somebody has stopped the process of its slot: then nobody renews it."""
    finished: bool = False
    """Whether nothing of it is left but an outcome that waits for its loop: its time stands still again."""
    fenced: bool = False
    """Whether it was told to stop, for its lease could not be renewed in time."""
    way: Way = "loop"
    """Where its handler runs."""
    pid: int | None = None
    """The process of its own that its handler is in, while there is one."""
    line: int | None = None
    """Its line on the slate, while there is one."""
    unknown: UnknownReason | None = None
    """Why this worker cannot run it, if it cannot."""

    def __init__(self, lease: Lease, signs: Signs | None = None) -> None:
        self.lease = lease
        self.signs = Signs() if signs is None else signs
        job = lease.job
        self.key: RunKey = Ref(job.queue, job.id), job.fence
        """What names the run: the job and its fence."""

    def stops_for(self, *reasons: StopReason) -> bool:
        """Say whether it shall end for one of these reasons."""
        return self.stop in reasons

    def end(self) -> bool:
        """Make its handler end, and say whether that was cancelled: a coroutine is, a thread can only be told."""
        if self.context is None:
            # It has not begun and finds out by itself; cancelled before its first step it would come to nothing.
            return False
        self.context.stop(self.stop_detail)
        if self.hooking and self.stop == "cancelled":
            # Its handler had cancelled it already.
            return False
        # Where its lease is gone, or its time is over, a thread is left to itself, and its slot is free again.
        if self.task is None or (self.threading and not self.stops_for("lost", "unreachable", *SILENT)):
            return False
        return self.task.cancel()

    @property
    def goes_on(self) -> bool:
        """Whether something of its handler is at work, though the wait for it has ended."""
        return (self.lane is not None and self.lane.busy) or not all(task.done() for task in self.left)

    def leave(self, task: "asyncio.Task[None]") -> None:
        """Note a task of its handler that is left to itself."""
        self.left = (*self.left, task)

    def once_less(self, call: Callable[[], None]) -> None:
        """Have that called, once, when less of what `goes_on` is at work."""
        if self.lane is not None and self.lane.busy:
            self.lane.once_idle(call)
        else:
            next(task for task in self.left if not task.done()).add_done_callback(lambda _: call())

    @property
    def beat(self) -> float:
        """The seconds between two renewals: a quarter of the lease, or of the progress clock where that is shorter."""
        job = self.lease.job
        shortest = job.stall.lease if job.heartbeat_timeout is None else min(job.stall.lease, job.heartbeat_timeout)
        if self.exclusive and job.timeout is not None and self.renewed_at == self.granted_at:
            # The first renewal lifts the limit that the claim has set.
            shortest = min(shortest, job.timeout + job.stall.lease // 4)
        return shortest / 4 / SECOND

    @property
    def waits(self) -> bool:
        """Whether it has not begun yet, or is over but for its outcome, so that no limit counts for it."""
        return self.finished or not self.begun

    def granted(self, asked_at: float) -> None:
        """Note that the lease was claimed by a request sent at that uptime."""
        self.granted_at = asked_at
        self.trust(asked_at, signed_at=asked_at)
        # A claim does not know of what follows from being exclusive: the limits bound the lease until it is renewed.
        if self.exclusive and (job := self.lease.job).heartbeat_timeout is not None:
            self.trusted_until = min(self.trusted_until, trusted_until(asked_at, job.heartbeat_timeout))
        if self.exclusive and (job := self.lease.job).timeout is not None:
            limit = job.timeout + job.stall.lease // 4
            self.trusted_until = min(self.trusted_until, trusted_until(asked_at, limit))

    def trust(self, asked_at: float, *, signed_at: float | None, silent: float = math.inf) -> None:
        """Note that the lease was given or extended by a request sent at that uptime, and the sign that it brought.

        `silent`: for how many seconds the request said that the handler had given none; it may have been spared some.
        """
        job = self.lease.job
        if self.waits:
            # It cannot give signs, so none is missed.
            signed_at = asked_at
        if signed_at is not None and signed_at > self.signed_at:
            self.signed_at = signed_at
        self.renewed_at = asked_at
        lease = job.stall.lease
        self.trusted_until = max(
            trusted_until(asked_at, lease), self.granted_at + (job.stall.start_grace - margin(lease)) / SECOND
        )
        if job.heartbeat_timeout is not None and not self.exclusive:
            # The storage lets no lease outlast the progress clock, so neither may our trust.
            signed = max(self.signed_at, asked_at - silent)
            self.trusted_until = min(self.trusted_until, trusted_until(signed, job.heartbeat_timeout))

    @property
    def silent_at(self) -> float:
        """The uptime at which its handler will have been silent for too long, unless it gives a sign before."""
        if self.waits or self.silenced or self.expired or self.stop is not None:
            return math.inf
        return min(self._progress_until, self._signs_until)

    @property
    def looks_at(self) -> float:
        """The uptime at which `silence` is to be asked next."""
        at = self.silent_at
        return at if self.missed_at is None or at == math.inf else self.missed_at + self._second_look

    def silence(self, now: float, turns: LoopMonitor | None) -> Silence | None:
        """Return the clock that its handler has outrun by its silence, if it has. It is asked by one thread only.

        It takes two looks: where this process stood still, the handler gets a moment to give its sign.
        """
        job = self.lease.job
        if now >= self.silent_at and job.heartbeat_timeout is not None:
            _, silent = self.spared(now, self.signed, turns)
            self.spared_until = max(self.spared_until, now - silent)
        if now < self.silent_at:
            self.missed_at = None
        elif self.missed_at is None:
            self.missed_at = now
        elif now >= self.missed_at + self._second_look:
            return "no_progress" if now >= self._progress_until else "lease_expired"
        return None

    @property
    def _second_look(self) -> float:
        return min(SECOND_LOOK, self.beat)

    @property
    def _progress_until(self) -> float:
        limit = self.lease.job.heartbeat_timeout
        return math.inf if limit is None else self.signed + limit / SECOND

    @property
    def _signs_until(self) -> float:
        """The end of a lease that the handler's signs alone renew."""
        stall = self.lease.job.stall
        if stall.renewed:
            return math.inf
        return max(self.signed + stall.lease / SECOND, self.granted_at + stall.start_grace / SECOND)

    @property
    def signed(self) -> float:
        """The uptime from which on its handler counts as silent."""
        return max(self.claimed_at, self.signed_at, self.signs.last, self.spared_until)

    def message(self, now: float, trace: str | None = None, turns: LoopMonitor | None = None) -> "PendingRenewal":
        """Return the next renewal of this run, with all that its handler has said, and where it is if that is new.

        `turns`: those of its loop, for which it is spared what it cannot help.
        """
        return PendingRenewal(self, self.signs.take(), now, trace, turns)

    def spared(self, now: float, signed_at: float, turns: LoopMonitor | None) -> tuple[float, float]:
        """Return for how long it counts as going on, and as silent since that sign, in seconds."""
        job = self.lease.job
        return spared(
            now,
            turned_at=0.0 if turns is None else turns.at,
            blocks=turns is not None and turns.blocker == self.key,
            mute=False,
            claimed_at=self.claimed_at,
            signed_at=signed_at,
            lease=job.stall.lease / SECOND,
            timeout=math.inf if job.timeout is None else job.timeout / SECOND,
            heartbeat_timeout=math.inf if job.heartbeat_timeout is None else job.heartbeat_timeout / SECOND,
            way=self.way,
        )


class PendingRenewal:
    """One renewal on its way; if it does not get through, what it carried is taken back."""

    def __init__(self, held: ActiveRun, said: Said, now: float, trace: str | None, turns: LoopMonitor | None) -> None:
        signed_at, progress, log = said
        # From the last sign of all: whether one has arrived is not known before its answer.
        ran, self._silent = held.spared(now, max(held.signed_at, held.signs.last), turns)
        self.held = held
        self.signed_at = signed_at
        self._said = said
        waits = held.waits
        if waits:
            self.signed_at = now
        self.renewal = LeaseRenewal(
            held.lease.ref,
            held.lease.fence,
            sign=signed_at is not None,
            # The handler renews its lease by itself once it is there.
            extend=not held.still
            and (signed_at is not None or held.lease.job.stall.renewed or waits or held.exclusive),
            exclusive=held.exclusive,
            ran=0 if waits else max(0, round(ran * SECOND)),
            silent=0 if waits else max(0, round(self._silent * SECOND)),
            progress=progress[0] if progress else None,
            note=progress[1] if progress else None,
            log=tuple(
                NewLogLine(level, message, fields, max(0, round((now - at) * SECOND)), number)
                for at, level, message, fields, number in log
            ),
            trace=trace,
        )

    def unsent(self) -> None:
        """Take back what it carried."""
        self.held.signs.restore(self._said)

    def arrived(self, asked_at: float, *, lost: bool) -> None:
        """Note that it was answered, and whether the lease is ours."""
        self.held.traced = self.renewal.trace or self.held.traced
        if self.renewal.extend and not lost:
            self.held.trust(asked_at, signed_at=self.signed_at, silent=self._silent)
        else:
            self.held.renewed_at = asked_at


class ActiveRuns:
    """The runs held, by job and fence. Reading and writing are safe from both threads."""

    def __init__(self, slate: Scoreboard | None = None) -> None:
        self._lock = threading.Lock()
        self._slate = slate
        self._held: dict[RunKey, ActiveRun] = {}
        self._knock: Callable[[], None] | None = None
        self.next_look = math.inf
        """The uptime at which the keeper looks here by itself; infinite while it is awake."""
        self.hinted_at = -math.inf
        """The uptime of the last hint that one of the runs may have to stop: those asked for before it are in doubt."""

    def __len__(self) -> int:
        return len(self._held)

    def add(self, held: ActiveRun) -> None:
        """Take a run into keeping until its settlement is answered."""
        self.add_all((held,))

    def add_all(self, some: Iterable[ActiveRun]) -> None:
        """Take runs into keeping until their settlements are answered."""
        urgent = False
        with self._lock:
            for held in some:
                self._held[held.key] = held
                if self._slate is not None:
                    held.line = self._slate.write(
                        held.lease,
                        way=held.way,
                        claimed_at=held.claimed_at if held.begun else math.inf,
                        renewed_at=held.renewed_at,
                        exclusive=held.exclusive,
                    )
                    # A sign moves nothing in the storage but the progress clock.
                    if held.line is not None and held.lease.job.heartbeat_timeout is not None:
                        held.signs.echo = partial(self._signed, held)
                # Most jobs are over long before the keeper looks; waking it for each would cost more than they do.
                urgent = urgent or held.renewed_at < self.hinted_at or held.renewed_at + held.beat < self.next_look
        if urgent and self._knock is not None:
            self._knock()

    def stay(self, held: ActiveRun, way: Way) -> None:
        """Note that a run which waited for a process of its own is carried out in this one."""
        with self._lock:
            held.way = way
            if held.line is not None and self._slate is not None:
                self._slate.goes(held.line, way)

    def give(self, held: ActiveRun, pid: int) -> None:
        """Note that a run is about to be given to a process of its own."""
        with self._lock:
            if held.line is not None and self._slate is not None:
                self._slate.runs_in(held.line, pid)

    def begin(self, held: ActiveRun, at: float) -> None:
        """Let the time of a run count from now on that had to wait for a process. Idempotent."""
        if held.begun:
            return
        job = held.lease.job
        with self._lock:
            held.claimed_at = at
            if held.line is not None and self._slate is not None:
                self._slate.began(held.line, at, renewed=job.stall.renewed or held.exclusive)
            held.begun = True
        if job.heartbeat_timeout is not None or not job.stall.renewed:
            # That it begins is its first sign.
            held.signs.sign(at)

    def stand_still(self, held: ActiveRun, still: bool) -> None:
        """Let a run in a slot be renewed no more whose process somebody has stopped, or again once that goes on."""
        with self._lock:
            held.still = still
            if held.line is not None and self._slate is not None:
                self._slate.renewable(held.line, None if still else held.lease.job.stall, exclusive=held.exclusive)

    def note_stopped(self, held: ActiveRun, why: StopCode) -> None:
        """Note for the supervisor, if there is one, why a run was stopped whose handler goes on."""
        with self._lock:
            if held.line is not None and self._slate is not None:
                self._slate.stopped(held.line, why)

    def finish(self, held: ActiveRun) -> None:
        """Keep a run in a slot until its outcome is settled, whatever its limits were: nothing else of it is left."""
        with self._lock:
            held.finished, held.still = True, False
            if held.line is not None and self._slate is not None:
                self._slate.over(held.line, held.lease.job.stall)

    def drop(self, key: RunKey) -> ActiveRun | None:
        """Let go of a run, and return it if it was held."""
        return self.drop_all((key,))[0]

    def drop_all(self, keys: Iterable[RunKey]) -> list[ActiveRun | None]:
        """Let go of runs, and return those that were held, in the places of their keys."""
        with self._lock:
            dropped = [self._held.pop(key, None) for key in keys]
            for held in dropped:
                if held is not None and held.line is not None and self._slate is not None:
                    self._slate.wipe(held.line)
                    held.line = None
                    # It knows the run, which knows its task: a circle, and the collector that opens it runs anywhere.
                    held.signs.echo = None
        return dropped

    def get(self, key: RunKey) -> ActiveRun | None:
        """Return a run that is held."""
        return self._held.get(key)

    def all(self) -> list[ActiveRun]:
        """Return the runs held at this moment."""
        with self._lock:
            return list(self._held.values())

    def note_renewed(self, renewed: Iterable[ActiveRun]) -> None:
        """Tell the watcher, if there is one, that these need not be renewed by it."""
        if self._slate is None:
            return
        with self._lock:
            for one in renewed:
                # Its line may be another run's by now.
                if one.line is not None:
                    self._slate.renewed(one.line, one.renewed_at)

    def trust_watcher(self) -> None:
        """Take note of the leases that the watcher has had renewed, while nobody here could."""
        if self._slate is None:
            return
        with self._lock:
            for one in self._held.values():
                kept = 0.0 if one.line is None else self._slate.kept(one.line, one.lease.fence)
                if kept > one.renewed_at:
                    one.trust(kept, signed_at=None)

    def when_urgent(self, knock: Callable[[], None]) -> None:
        """Have the keeper woken for a run that cannot wait until its next look; from the adding thread."""
        self._knock = knock

    def _signed(self, held: ActiveRun, at: float) -> None:
        with self._lock:
            if held.line is not None and self._slate is not None:
                self._slate.signed(held.line, at)
