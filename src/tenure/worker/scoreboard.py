"""Memory shared by a worker process and its supervisor: the process writes its state, the supervisor reads it.

No messages are sent and no thread is woken. The process notes when its loops last turned, and each run that it holds.
So the supervisor knows which leases to renew while a handler blocks the process, and which runs were active when it
died.

    worker  ──writes──► last turn, held runs ──reads──► supervisor's renewer
            ◄──reads─── renewal times        ◄──writes──

Each field has one writer and is a number of eight bytes, so no reader sees a half-written value. A row of several
fields has a write counter, which is odd during a write. If the counter changes during a read, the read is void. All
times are uptimes, which the processes of a machine share.
"""

import mmap
import os
import sys
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
"""Where a handler runs. This decides what it can block and how it can be ended."""

_WAYS: tuple[Way, ...] = get_args(Way)
_NUMBERS = {way: number for number, way in enumerate(_WAYS)}

_CODES: tuple[StopCode, ...] = get_args(StopCode)
_SHARED, _EXCLUSIVE, _STOPPED = 0.0, 1.0, 2
"""Values of a row's right. A value from `_STOPPED` on: exclusive, and stopped for one of the codes."""

_ISOLATED = 1_024
"""The number of isolated processes that fit into the header."""

_ISOLATED_AT = 64
_HEAD = 8 * (_ISOLATED_AT + _ISOLATED)
_ROW = 4096

_TURNED, _CLAIMED, _BEATEN, _LAG, _MEMORY, _CHECKED, _NEXT, _USED, _WARNED, _WARNED_BY_SUPERVISOR = range(10)
_BLOCKER, _BLOCKER_FENCE, _BLOCKED_OF, _REPORTED = 10, 11, 12, 13
_RENEWED_OUTSIDE_FENCE, _RENEWED_OUTSIDE = 0, 1
_WRITES, _FENCE, _SINCE, _SIGNED, _RENEWED, _LEASE, _TIMEOUT, _PROGRESS, _WAY, _PID, _RIGHT, _SIZE = range(2, 14)
_WRITTEN = 8 * _WRITES
"""The offset in a row of the part that the worker writes. The part before it belongs to the supervisor."""

_TEXT = 8 * (_SIZE + 1)
"""The offset of the names in a row. Three names of a kilobyte each, the longest allowed, fit behind it."""

_NEVER = float("inf")


class WatchedRun(Struct, frozen=True):
    """A run as the scoreboard has it. Durations are in seconds, infinite without a limit. Times are uptimes."""

    row: int
    ref: Ref
    task: str
    fence: int
    claimed_at: float
    """Infinite for a run that waits for a process, or of which only the outcome is left. So is `signed_at` then."""
    signed_at: float
    renewed_at: float
    """When the latest answered renewal was sent, by the worker or by the supervisor."""
    lease: float
    """Infinite for a run that only its handler renews, or that is not renewed because its process was suspended."""
    timeout: float
    heartbeat_timeout: float
    way: Way
    pid: int = 0
    """The isolated process that got the run; 0 if it was sent to none yet."""
    exclusive: bool = False
    """True if the run holds an exclusive right. Then its limits do not bound its lease."""
    stopped: StopCode | None = None
    """Why an exclusive run was stopped whose handler goes on."""


class KnownRuns(Struct, frozen=True):
    """The facts that a scoreboard has of a dead process's runs, by job.

    `suspects`: the runs that had begun in the process. None if there may be others, because not every run had a row.
    `isolated`: the runs that were sent to isolated processes. `waiting`: the runs that had not begun. `stopped`:
    exclusive runs that the process had stopped, and why. Their handlers went on, so they had kept their rights.
    """

    suspects: frozenset[Ref] | None = None
    isolated: frozenset[Ref] = frozenset()
    waiting: frozenset[Ref] = frozenset()
    stopped: Mapping[Ref, StopCode] = {}


@cache
def _packing(size: int) -> Callable[..., None]:
    """Return the function that writes the worker's part of a row, in order, with `size` bytes of names."""
    return Packing(f"{(_TEXT - _WRITTEN) // 8}d{size}s").pack_into


class Scoreboard:
    """The shared memory, opened by the worker or the supervisor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        size = os.fstat(descriptor).st_size
        self._memory = mmap.mmap(descriptor, size)
        self._bytes = memoryview(self._memory)
        self._head = self._bytes[:_HEAD].cast("d")
        self._rows = [self._bytes[start : start + _TEXT].cast("d") for start in range(_HEAD, size - _ROW + 1, _ROW)]
        self._free = list(range(len(self._rows) - 1, -1, -1))
        self._used = 0
        self._writes = 0.0

    @classmethod
    def new(cls, rows: int) -> Self:
        """Return an empty scoreboard with room for `rows` runs. Pages that were never written take no memory."""
        if sys.platform == "linux":
            descriptor = os.memfd_create("tenure-scoreboard")
        else:
            # Imported here, because Linux does not need it and it imports much.
            import tempfile

            descriptor, path = tempfile.mkstemp(prefix="tenure-scoreboard-")
            os.unlink(path)
        os.ftruncate(descriptor, _HEAD + rows * _ROW)
        return cls(descriptor)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the memory. Idempotent."""
        if self._memory.closed:
            return
        for cells in self._rows:
            cells.release()
        self._head.release()
        self._bytes.release()
        self._memory.close()
        os.close(self.descriptor)

    # ---------------------------------------------------------------------------------------------- the worker's side

    def turned(self, at: float, lag: float) -> None:
        """Note that the event loop turned, and the seconds that it was late."""
        self._head[_TURNED] = at
        self._head[_LAG] = lag

    def claimed(self, at: float) -> None:
        """Note that the claim loop turned."""
        self._head[_CLAIMED] = at

    def beaten(self, at: float, memory: int) -> None:
        """Note that the keeper's thread turned, and how many bytes the process occupies."""
        self._head[_BEATEN] = at
        self._head[_MEMORY] = memory

    def reported(self, at: float) -> None:
        """Note that a beat sent at this time was answered. It carried all news of the runs."""
        self._head[_REPORTED] = at

    def write(
        self, lease: Lease, *, way: Way, claimed_at: float, renewed_at: float, exclusive: bool = False
    ) -> int | None:
        """Write a run, and return its row. Return None if no row is free; then the supervisor does not see the run.

        `claimed_at` is infinite for a run that has yet to begin; `began` sets it.
        """
        if not self._free:
            return None
        row = self._free.pop()
        if row >= self._used:
            # The last freed row is used first. So the rows after this one were never used.
            self._used = row + 1
            self._head[_USED] = self._used
        job = lease.job
        stall, waits = job.stall, claimed_at == _NEVER
        # No name contains a zero byte.
        text = f"{job.queue}\0{job.id}\0{job.task}".encode()
        # One counter for all rows, so that it rises on each of them.
        self._writes = writes = self._writes + 2.0
        # The counter is written first. It stays odd until the text is written, too.
        _packing(len(text))(
            self._memory,
            _HEAD + row * _ROW + _WRITTEN,
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
        self._rows[row][_WRITES] = writes
        return row

    def isolated_started(self, pid: int) -> None:
        """Note an isolated process, which leads its own session."""
        pids = self._head[_ISOLATED_AT : _ISOLATED_AT + _ISOLATED].tolist()
        if 0 in pids:
            self._head[_ISOLATED_AT + pids.index(0)] = pid

    def isolated_ended(self, pid: int) -> None:
        """Note that an isolated process and its children have ended."""
        pids = self._head[_ISOLATED_AT : _ISOLATED_AT + _ISOLATED].tolist()
        if pid in pids:
            self._head[_ISOLATED_AT + pids.index(pid)] = 0.0

    def set_way(self, row: int, way: Way) -> None:
        """Note that the handler of a run is called in another way than planned."""
        self._rows[row][_WAY] = _NUMBERS[way]

    def set_pid(self, row: int, pid: int) -> None:
        """Note the isolated process that gets a run. From now on its handler may be called there."""
        self._rows[row][_PID] = pid

    def clear(self, row: int) -> None:
        """Delete a run."""
        self._rows[row][_FENCE] = 0.0
        self._free.append(row)

    def began(self, row: int, at: float, *, renewed: bool) -> None:
        """Note that a run begins that had to wait. `renewed`: not only its handler renews its lease."""
        cells = self._rows[row]
        # The order matters: a reader in between sees a run that has no limits yet.
        if not renewed:
            cells[_LEASE] = _NEVER
        cells[_SIGNED] = at
        cells[_SINCE] = at

    def renewable(self, row: int, terms: StallTerms | None, *, exclusive: bool = False) -> None:
        """Note the terms by which a run is renewed by others than its handler, or None if it must not be renewed."""
        renewed = terms is not None and (terms.renewed or exclusive)
        self._rows[row][_LEASE] = terms.lease if terms is not None and renewed else _NEVER

    def stopped(self, row: int, why: StopCode) -> None:
        """Note why an exclusive run was stopped whose handler goes on."""
        self._rows[row][_RIGHT] = _STOPPED + _CODES.index(why)

    def finished(self, row: int, terms: StallTerms) -> None:
        """Note that only the outcome of a run is left: no limit counts, and it is renewed like others."""
        cells = self._rows[row]
        cells[_SINCE] = cells[_SIGNED] = _NEVER
        cells[_LEASE] = terms.lease

    def renewed(self, row: int, at: float) -> None:
        """Note that the worker itself renewed a lease, with a request sent at this time."""
        self._rows[row][_RENEWED] = at

    def signed(self, row: int, at: float) -> None:
        """Note that a handler gave a sign."""
        self._rows[row][_SIGNED] = at

    def set_blocker(self, row: int, fence: int, of: float) -> None:
        """Note which run blocks the loop, which last turned at `of`."""
        # The order matters: a reader must not combine the row of one run with the fence of another.
        self._head[_BLOCKED_OF] = 0.0
        self._head[_BLOCKER] = row
        self._head[_BLOCKER_FENCE] = fence
        self._head[_BLOCKED_OF] = of

    def external_renewal(self, row: int, fence: int) -> float:
        """Return when the supervisor's latest successful renewal of this run was sent; 0 if there was none."""
        cells = self._rows[row]
        at = cells[_RENEWED_OUTSIDE]
        return at if cells[_RENEWED_OUTSIDE_FENCE] == fence and cells[_RENEWED_OUTSIDE] == at else 0.0

    def worker_must_warn(self, of: float) -> bool:
        """Return True if the worker must warn of its loop, which last turned at `of`: the supervisor has not."""
        if self._head[_WARNED_BY_SUPERVISOR] == of:
            return False
        self._head[_WARNED] = of
        return True

    @property
    def next_check(self) -> float:
        """The time of the supervisor's next regular check."""
        return self._head[_NEXT]

    @property
    def checked_at(self) -> float:
        """The time of the supervisor's last check; 0 before the first."""
        return self._head[_CHECKED]

    # ------------------------------------------------------------------------------------------ the supervisor's side

    def checked(self, at: float, next_look: float) -> None:
        """Note a check by the supervisor, and the time of the next one."""
        self._head[_CHECKED] = at
        self._head[_NEXT] = next_look

    def note_external_renewal(self, run: WatchedRun, at: float) -> None:
        """Note that the supervisor renewed a lease for the worker, with a request sent at this time."""
        cells = self._rows[run.row]
        # The order matters: a new run in this row must not take the renewal for its own.
        cells[_RENEWED_OUTSIDE_FENCE] = 0.0
        cells[_RENEWED_OUTSIDE] = at
        cells[_RENEWED_OUTSIDE_FENCE] = run.fence

    def supervisor_must_warn(self, of: float) -> bool:
        """Return True if the supervisor must warn of the loop, which last turned at `of`: the worker has not."""
        if self._head[_WARNED] == of:
            return False
        self._head[_WARNED_BY_SUPERVISOR] = of
        return True

    @property
    def turned_at(self) -> float:
        """When the event loop last turned; 0 before the first time."""
        return self._head[_TURNED]

    @property
    def blocker(self) -> tuple[int, int] | None:
        """The row and the fence of the run that blocks the loop, if the worker has found it."""
        of = self._head[_BLOCKED_OF]
        row, fence = int(self._head[_BLOCKER]), int(self._head[_BLOCKER_FENCE])
        return (row, fence) if of and of == self._head[_TURNED] and of == self._head[_BLOCKED_OF] else None

    @property
    def claimed_at(self) -> float:
        """When the claim loop last turned; 0 before the first time."""
        return self._head[_CLAIMED]

    @property
    def beaten_at(self) -> float:
        """When the keeper's thread last turned; 0 before the first time."""
        return self._head[_BEATEN]

    @property
    def reported_at(self) -> float:
        """When the process last reported its runs to the storage; 0 before the first time."""
        return self._head[_REPORTED]

    @property
    def lag(self) -> float:
        """The seconds that the event loop was last late."""
        return self._head[_LAG]

    @property
    def memory(self) -> int:
        """The bytes that the process occupied at its last beat."""
        return int(self._head[_MEMORY])

    @property
    def isolated_pids(self) -> list[int]:
        """The isolated processes that the worker started and whose end it has not noted yet."""
        return [int(pid) for pid in self._head[_ISOLATED_AT : _ISOLATED_AT + _ISOLATED].tolist() if pid]

    @property
    def was_full(self) -> bool:
        """True if there may have been a run without a row."""
        return self._head[_USED] >= len(self._rows)

    def runs(self) -> list[WatchedRun]:
        """Return the runs that are held, except those that are being written at this moment."""
        return [run for row in range(int(self._head[_USED])) if (run := self._read(row)) is not None]

    def known_runs(self) -> KnownRuns:
        """Return which runs had begun here, which were in isolated processes, and which had not begun."""
        runs = self.runs()
        here = {run.ref for run in runs if run.way != "process" and run.claimed_at != _NEVER}
        isolated = {run.ref for run in runs if run.way == "process" and run.pid} - here
        waiting = {run.ref for run in runs} - here - isolated
        stopped: dict[Ref, StopCode] = {run.ref: run.stopped for run in runs if run.stopped is not None}
        return KnownRuns(None if self.was_full else frozenset(here), frozenset(isolated), frozenset(waiting), stopped)

    def _read(self, row: int) -> WatchedRun | None:
        cells = self._rows[row]
        writes, fence = cells[_WRITES], int(cells[_FENCE])
        if not fence or writes % 2:
            return None
        seen = cells.tolist()
        start = _HEAD + row * _ROW + _TEXT
        text = bytes(self._bytes[start : start + int(seen[_SIZE])])
        if cells[_WRITES] != writes:
            return None
        queue, id_, task = text.decode().split("\0")
        return WatchedRun(
            row=row,
            ref=Ref(queue, id_),
            task=task,
            fence=fence,
            claimed_at=seen[_SINCE],
            signed_at=seen[_SIGNED],
            renewed_at=max(seen[_RENEWED], self.external_renewal(row, fence)),
            lease=seen[_LEASE] / SECOND,
            timeout=seen[_TIMEOUT] / SECOND,
            heartbeat_timeout=seen[_PROGRESS] / SECOND,
            way=_WAYS[int(seen[_WAY])],
            pid=int(seen[_PID]),
            exclusive=seen[_RIGHT] != _SHARED,
            stopped=_CODES[right - _STOPPED] if (right := int(seen[_RIGHT])) >= _STOPPED else None,
        )
