"""What a worker process has written down for whoever watches over it: memory that both of them see.

Nothing is sent and nobody is woken. The process notes when its loops last turned, and each run that it holds; so the
watcher knows what to renew while a handler lets nothing else happen there, and what ran when it died.

    worker  ──writes──► turned at, held runs ──reads──► watcher
            ◄──reads─── renewed for you at  ◄──writes──

Each field has one writer, and is a number of eight bytes, which no reader sees half written. A line of several fields
has a count of its writings beside it, odd while it is being written: what was read across a change of it is void.
All moments are uptimes, which the processes of a machine share.
"""

import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from struct import Struct as Packing
from typing import Literal, Self, get_args

from msgspec import Struct

from tenure.clock import SECOND
from tenure.core.job import Ref, StallTerms
from tenure.core.lease import Lease
from tenure.core.outcome import StopCode

Way = Literal["loop", "thread", "process"]
"""Where a handler runs: what it can block, and what can end it."""

_WAYS: tuple[Way, ...] = get_args(Way)
_NUMBERS = {way: number for number, way in enumerate(_WAYS)}

_CODES: tuple[StopCode, ...] = get_args(StopCode)
_SHARED, _EXCLUSIVE, _STOPPED = 0.0, 1.0, 2
"""What a line says of the run's right; from the last one on, it is exclusive, and was stopped for one of the codes."""

_SLOTS = 1_024
"""How many processes of slots find room in the head."""

_SLOTS_AT = 64
_HEAD = 8 * (_SLOTS_AT + _SLOTS)
_LINE = 4096

_TURNED, _CLAIMED, _BEATEN, _LAG, _MEMORY, _WATCHED, _NEXT, _USED, _WARNED, _WARNED_BY_WATCHER = range(10)
_BLOCKER, _BLOCKER_FENCE, _BLOCKED_OF, _TOLD = 10, 11, 12, 13
_KEPT_FENCE, _KEPT = 0, 1
_WRITES, _FENCE, _SINCE, _SIGNED, _RENEWED, _LEASE, _TIMEOUT, _PROGRESS, _WAY, _PID, _RIGHT, _SIZE = range(2, 14)
_WRITTEN = 8 * _WRITES
"""Where that begins within a line which the worker writes; what stands before it is the watcher's."""

_TEXT = 8 * (_SIZE + 1)
"""Where the names stand within a line; three of a kilobyte each, the longest there are, find room behind it."""

_NEVER = float("inf")


class WatchedRun(Struct, frozen=True):
    """A run as the slate has it. Lengths in seconds, infinite where there is no such limit; moments are uptimes."""

    line: int
    ref: Ref
    task: str
    fence: int
    claimed_at: float
    """Infinite for one that waits for a process, or only for its outcome to be settled, as `signed_at` is then, too."""
    signed_at: float
    renewed_at: float
    """When the latest renewal was asked for that was answered, whoever of the two had asked."""
    lease: float
    """Infinite for one that its handler alone renews, or nobody, for its slot was stopped."""
    timeout: float
    heartbeat_timeout: float
    way: Way
    pid: int = 0
    """The process of its own that it was given to; 0 if it was given to none yet."""
    exclusive: bool = False
    """Whether it holds an exclusive right, so that its limits do not bound its lease."""
    stopped: StopCode | None = None
    """Why it was stopped, of an exclusive one whose handler goes on."""


class KnownRuns(Struct, frozen=True):
    """What a slate says of the runs of a process that died, by their jobs.

    `suspects`: had begun in the process; None if others may have, too, because not every run had a line. `apart`: had
    been given to processes of their own. `waiting`: had not begun. `stopped`: exclusive ones that the process had
    stopped, and why; their handlers went on, so they had kept their rights.
    """

    suspects: frozenset[Ref] | None = None
    apart: frozenset[Ref] = frozenset()
    waiting: frozenset[Ref] = frozenset()
    stopped: Mapping[Ref, StopCode] = {}


@cache
def _packing(size: int) -> Callable[..., None]:
    """Return what writes all that the worker writes on a line, in its order, with names of so many bytes."""
    return Packing(f"{(_TEXT - _WRITTEN) // 8}d{size}s").pack_into


class Scoreboard:
    """The memory, as one of its two sides has it open."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        size = os.fstat(descriptor).st_size
        self._memory = mmap.mmap(descriptor, size)
        self._bytes = memoryview(self._memory)
        self._head = self._bytes[:_HEAD].cast("d")
        self._lines = [self._bytes[start : start + _TEXT].cast("d") for start in range(_HEAD, size - _LINE + 1, _LINE)]
        self._free = list(range(len(self._lines) - 1, -1, -1))
        self._used = 0
        self._writes = 0.0

    @classmethod
    def new(cls, lines: int) -> Self:
        """Return an empty one with room for so many runs; pages that nothing was written on take no memory."""
        if sys.platform == "linux":
            descriptor = os.memfd_create("tenure-slate")
        else:
            descriptor, path = tempfile.mkstemp(prefix="tenure-slate-")
            os.unlink(path)
        os.ftruncate(descriptor, _HEAD + lines * _LINE)
        return cls(descriptor)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it. Idempotent."""
        if self._memory.closed:
            return
        for line in self._lines:
            line.release()
        self._head.release()
        self._bytes.release()
        self._memory.close()
        os.close(self.descriptor)

    # ---------------------------------------------------------------------------------------------- the worker's side

    def turned(self, at: float, lag: float) -> None:
        """Note that the event loop turned, and how long it had kept others waiting, in seconds."""
        self._head[_TURNED] = at
        self._head[_LAG] = lag

    def claimed(self, at: float) -> None:
        """Note that the claim loop turned."""
        self._head[_CLAIMED] = at

    def beaten(self, at: float, memory: int) -> None:
        """Note that the keeper's thread within the process turned, and how many bytes the process occupies."""
        self._head[_BEATEN] = at
        self._head[_MEMORY] = memory

    def told(self, at: float) -> None:
        """Note that a beat was answered which was sent then, with all that there was to tell of the runs."""
        self._head[_TOLD] = at

    def write(
        self, lease: Lease, *, way: Way, claimed_at: float, renewed_at: float, exclusive: bool = False
    ) -> int | None:
        """Note a run, and return its line; None where there is none left, and nobody watches over it.

        `claimed_at`: infinite for a run that has yet to begin, which `began` tells.
        """
        if not self._free:
            return None
        place = self._free.pop()
        if place >= self._used:
            # The line that was left last is written on next; so those behind this one have never been.
            self._used = place + 1
            self._head[_USED] = self._used
        job = lease.job
        stall, waits = job.stall, claimed_at == _NEVER
        # No name has a zero in it.
        text = f"{job.queue}\0{job.id}\0{job.task}".encode()
        # Of all lines together, so that it rises on each.
        self._writes = writes = self._writes + 2.0
        # Its count is the first that changes, and says that the line is being written until the text is there, too.
        _packing(len(text))(
            self._memory,
            _HEAD + place * _LINE + _WRITTEN,
            writes - 1.0,
            job.fence,
            claimed_at,
            _NEVER if waits else renewed_at,
            renewed_at,
            stall.lease if waits or stall.renewed or exclusive else _NEVER,
            _NEVER if job.timeout is None else job.timeout,
            _NEVER if job.heartbeat_timeout is None else job.heartbeat_timeout,
            _NUMBERS[way],
            0.0,
            _EXCLUSIVE if exclusive else _SHARED,
            len(text),
            text,
        )
        self._lines[place][_WRITES] = writes
        return place

    def slot_began(self, pid: int) -> None:
        """Note the process of a slot, which leads a session of its own."""
        slots = self._head[_SLOTS_AT : _SLOTS_AT + _SLOTS].tolist()
        if 0 in slots:
            self._head[_SLOTS_AT + slots.index(0)] = pid

    def slot_ended(self, pid: int) -> None:
        """Note that nothing is left of a slot."""
        slots = self._head[_SLOTS_AT : _SLOTS_AT + _SLOTS].tolist()
        if pid in slots:
            self._head[_SLOTS_AT + slots.index(pid)] = 0.0

    def goes(self, place: int, way: Way) -> None:
        """Note that the handler of a run is called in another way than was meant."""
        self._lines[place][_WAY] = _NUMBERS[way]

    def runs_in(self, place: int, pid: int) -> None:
        """Note to which process of its own a run is given: from now on its handler may be called there."""
        self._lines[place][_PID] = pid

    def wipe(self, place: int) -> None:
        """Forget a run."""
        self._lines[place][_FENCE] = 0.0
        self._free.append(place)

    def began(self, place: int, at: float, *, renewed: bool) -> None:
        """Note that a run begins which had to wait; `renewed`: whether others than its handler still renew it."""
        line = self._lines[place]
        # In this order: whoever reads in between takes it for a run that has no limits yet.
        if not renewed:
            line[_LEASE] = _NEVER
        line[_SIGNED] = at
        line[_SINCE] = at

    def renewable(self, place: int, terms: StallTerms | None, *, exclusive: bool = False) -> None:
        """Note that a run goes on that others than its handler may renew by these terms, or that nobody shall."""
        renewed = terms is not None and (terms.renewed or exclusive)
        self._lines[place][_LEASE] = terms.lease if terms is not None and renewed else _NEVER

    def stopped(self, place: int, why: StopCode) -> None:
        """Note why an exclusive run was stopped whose handler goes on."""
        self._lines[place][_RIGHT] = _STOPPED + _CODES.index(why)

    def over(self, place: int, terms: StallTerms) -> None:
        """Note that nothing is left of a run but what it has come to: no limit counts, and it is renewed as others."""
        line = self._lines[place]
        line[_SINCE] = line[_SIGNED] = _NEVER
        line[_LEASE] = terms.lease

    def renewed(self, place: int, at: float) -> None:
        """Note that the worker itself has had a lease renewed, by what it had asked for then."""
        self._lines[place][_RENEWED] = at

    def signed(self, place: int, at: float) -> None:
        """Note that a handler gave a sign."""
        self._lines[place][_SIGNED] = at

    def blocked_by(self, place: int, fence: int, of: float) -> None:
        """Note which run blocks the loop, which last turned at `of`."""
        # In this order: nobody must take one for another.
        self._head[_BLOCKED_OF] = 0.0
        self._head[_BLOCKER] = place
        self._head[_BLOCKER_FENCE] = fence
        self._head[_BLOCKED_OF] = of

    def kept(self, place: int, fence: int) -> float:
        """Return when the watcher asked for the latest renewal of this very run that it got; 0 if it had none."""
        line = self._lines[place]
        at = line[_KEPT]
        return at if line[_KEPT_FENCE] == fence and line[_KEPT] == at else 0.0

    def warns(self, of: float) -> bool:
        """Say whether it is for the worker to warn of its loop, which last turned at `of`: the watcher has not."""
        if self._head[_WARNED_BY_WATCHER] == of:
            return False
        self._head[_WARNED] = of
        return True

    @property
    def next_look(self) -> float:
        """When the watcher looks here again by itself."""
        return self._head[_NEXT]

    @property
    def watched_at(self) -> float:
        """When the watcher last looked; 0 if it never did."""
        return self._head[_WATCHED]

    # --------------------------------------------------------------------------------------------- the watcher's side

    def looked(self, at: float, next_look: float) -> None:
        """Note that it is watched, and until when it may not be again."""
        self._head[_WATCHED] = at
        self._head[_NEXT] = next_look

    def keep(self, run: WatchedRun, at: float) -> None:
        """Note that a lease was renewed for the worker, by what was asked for then."""
        line = self._lines[run.line]
        # In this order: a run that has come into this line meanwhile must not take it for its own.
        line[_KEPT_FENCE] = 0.0
        line[_KEPT] = at
        line[_KEPT_FENCE] = run.fence

    def watcher_warns(self, of: float) -> bool:
        """Say whether it is for the watcher to warn of the loop, which last turned at `of`: the worker has not."""
        if self._head[_WARNED] == of:
            return False
        self._head[_WARNED_BY_WATCHER] = of
        return True

    @property
    def turned_at(self) -> float:
        """When the event loop last turned; 0 before it first did."""
        return self._head[_TURNED]

    @property
    def blocker(self) -> tuple[int, int] | None:
        """The line and the fence of the run that blocks the loop, if the worker has seen which one does."""
        of = self._head[_BLOCKED_OF]
        place, fence = int(self._head[_BLOCKER]), int(self._head[_BLOCKER_FENCE])
        return (place, fence) if of and of == self._head[_TURNED] and of == self._head[_BLOCKED_OF] else None

    @property
    def claimed_at(self) -> float:
        """When the claim loop last turned; 0 before it first did."""
        return self._head[_CLAIMED]

    @property
    def beaten_at(self) -> float:
        """When the keeper's thread within the process last turned; 0 before it first did."""
        return self._head[_BEATEN]

    @property
    def told_at(self) -> float:
        """When the process last told the storage of its runs; 0 before it first did."""
        return self._head[_TOLD]

    @property
    def lag(self) -> float:
        """For how many seconds the event loop last kept others waiting."""
        return self._head[_LAG]

    @property
    def memory(self) -> int:
        """How many bytes the process occupied at its last beat."""
        return int(self._head[_MEMORY])

    @property
    def slots(self) -> list[int]:
        """The processes of slots that the worker has started, and has not seen the end of."""
        return [int(pid) for pid in self._head[_SLOTS_AT : _SLOTS_AT + _SLOTS].tolist() if pid]

    @property
    def was_full(self) -> bool:
        """Whether there may have been a run without a line."""
        return self._head[_USED] >= len(self._lines)

    def runs(self) -> list[WatchedRun]:
        """Return the runs that are held; but for those that are being written at this moment."""
        return [run for place in range(int(self._head[_USED])) if (run := self._read(place)) is not None]

    def known_runs(self) -> KnownRuns:
        """Return which of the runs had begun here, which were elsewhere, and which had not begun."""
        runs = self.runs()
        here = {run.ref for run in runs if run.way != "process" and run.claimed_at != _NEVER}
        apart = {run.ref for run in runs if run.way == "process" and run.pid} - here
        waiting = {run.ref for run in runs} - here - apart
        stopped: dict[Ref, StopCode] = {run.ref: run.stopped for run in runs if run.stopped is not None}
        return KnownRuns(None if self.was_full else frozenset(here), frozenset(apart), frozenset(waiting), stopped)

    def _read(self, place: int) -> WatchedRun | None:
        line = self._lines[place]
        writes, fence = line[_WRITES], int(line[_FENCE])
        if not fence or writes % 2:
            return None
        seen = line.tolist()
        start = _HEAD + place * _LINE + _TEXT
        text = bytes(self._bytes[start : start + int(seen[_SIZE])])
        if line[_WRITES] != writes:
            return None
        queue, id_, task = text.decode().split("\0")
        return WatchedRun(
            line=place,
            ref=Ref(queue, id_),
            task=task,
            fence=fence,
            claimed_at=seen[_SINCE],
            signed_at=seen[_SIGNED],
            renewed_at=max(seen[_RENEWED], self.kept(place, fence)),
            lease=seen[_LEASE] / SECOND,
            timeout=seen[_TIMEOUT] / SECOND,
            heartbeat_timeout=seen[_PROGRESS] / SECOND,
            way=_WAYS[int(seen[_WAY])],
            pid=int(seen[_PID]),
            exclusive=seen[_RIGHT] != _SHARED,
            stopped=_CODES[right - _STOPPED] if (right := int(seen[_RIGHT])) >= _STOPPED else None,
        )
