"""Where handlers are: the stacks of runs, looked at from beside them, without the values of arguments.

    a coroutine that waits     down the chain of what each one awaits
    a coroutine at work        the stack of its thread, as far down as its own frame
    a plain function           the stack of the thread that it was handed to

Of what a handler has started in tasks of their own (`gather`, a TaskGroup) only the place is seen where it waits.
"""

import asyncio
import gc
import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from operator import attrgetter, methodcaller
from traceback import FrameSummary, StackSummary
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import cast

from tenure.core.job import TRACE_KEPT
from tenure.core.text import storable
from tenure.worker.active_runs import ActiveRun, Mark, Place, Waiting
from tenure.worker.stacks.ours import ASYNCIO, OURS, THREADS, current_frames

DEEPEST = 200
"""So many of a stack's innermost frames are looked at."""

REMEMBERED = 1_000
"""So many texts are kept: thousands of runs wait in few places."""

logger = logging.getLogger("tenure.worker")


class Traces:
    """Tells of each run where its handler is, if that is not where the storage knows it to be."""

    def __init__(self) -> None:
        self._texts: dict[tuple[tuple[int, int], ...], tuple[Mark, str]] = {}
        """By the ids of the codes, for those are slow to hash; the mark beside the text keeps them alive."""

    def news(self, runs: Sequence[ActiveRun], now: float) -> list[str | None]:
        """Return for each of these runs what shall be sent; None where nothing is new, or it is younger than a beat."""
        stacks = _Stacks()
        try:
            return [self._news(one, stacks) if now - one.claimed_at >= one.beat else None for one in runs]
        except Exception:
            # Frames are of all sorts; none of them may keep a lease from being renewed.
            logger.exception("cannot tell where handlers are")
            return [None] * len(runs)

    def _news(self, held: ActiveRun, stacks: "_Stacks") -> str | None:
        if held.elsewhere is not None:
            held.trace = held.elsewhere
        else:
            tip = held.tip
            thread = None if held.lane is None else held.lane.thread
            if thread is None and tip is not None and tip[1] is not None and tip[0].cr_await is tip[1]:
                # It still waits for the very same thing; all that waits for it has not moved either.
                mark = held.mark
            else:
                mark, held.tip = _look(held, thread, stacks)
            if mark and mark != held.mark:
                held.mark, held.trace = mark, self._text(mark)
        return None if held.trace == held.traced else held.trace

    def _text(self, mark: Mark) -> str:
        key = tuple((id(code), place) for code, place in mark)
        known = self._texts.get(key)
        if known is None:
            if len(self._texts) >= REMEMBERED:
                self._texts.clear()
            known = self._texts[key] = mark, written(mark)
        return known[1]


def where(held: ActiveRun) -> str | None:
    """Return where a run's handler is at this moment, as Python writes a traceback; None if that cannot be told."""
    if held.elsewhere is not None:
        return held.elsewhere
    try:
        mark, _ = _look(held, None if held.lane is None else held.lane.thread, _Stacks())
        return written(mark) if mark else None
    except Exception:
        logger.exception("cannot tell where a handler is")
        return None


def written(mark: Mark) -> str:
    """Return a place as Python writes a traceback; of one that is too long, the innermost frames."""
    frames = [FrameSummary(code.co_filename, _line(code, place), code.co_name) for code, place in mark]
    entries = StackSummary.from_list(frames).format()
    head = "Traceback (most recent call last):\n"
    room = TRACE_KEPT - len(head) - 40
    kept: deque[str] = deque()
    for entry in reversed(entries):
        room -= len(entry)
        if room < 0 and kept:
            head += f"  [{len(entries) - len(kept)} outer frames left out]\n"
            break
        kept.appendleft(entry)
    return storable("".join((head, *kept)))[:TRACE_KEPT]


def _line(code: CodeType, place: int) -> int:
    """Return the line of an instruction."""
    found = next(islice(code.co_positions(), max(0, place) // 2, None), (None,))[0]
    return found or code.co_firstlineno


def _look(held: ActiveRun, thread: int | None, stacks: "_Stacks") -> tuple[Mark, tuple[Waiting, object] | None]:
    """Return what tells the place where a run is from others, cheap to come by; empty if that cannot be told.

    With it, the last coroutine that waits, and what it waits for.
    """
    root = held.root
    frames: deque[Place] = deque(maxlen=DEEPEST)
    tip: tuple[Waiting, object] | None = None
    if isinstance(root, CoroutineType):
        if root.cr_running:
            frames.extend(stacks.below(root))
        else:
            tip = _go_down(root, frames)
    if thread is not None:
        frames.extend(stacks.of(thread))
    return tuple(frames), tip


def _go_down(root: Waiting, frames: deque[Place]) -> tuple[Waiting, object] | None:
    """Go down the chain of what waits for what; return the last coroutine and what that waits for, if no more is in it.

    What is awaited in a task of its own may move while those who wait for it do not, and the other way round.
    """
    tip: tuple[Waiting, object] | None = None
    one, alone = cast("object", root), True
    while one is not None:
        kind = type(one)
        if (step := _STEPS.get(kind)) is None:
            one = _beyond(one)
            alone = alone and one is None
            continue
        frame, awaited = step(one)
        if kind is CoroutineType:
            tip = cast("Waiting", one), awaited
        else:
            alone = False
        if frame is not None and _counts(frame.f_code.co_filename, first=not frames):
            frames.append((frame.f_code, frame.f_lasti))
        one = awaited
    return tip if alone else None


def _counts(file: str, *, first: bool) -> bool:
    """Say whether a frame is the handler's, or what that has called; what is called by ours is none of it."""
    return file not in OURS and not (first and file.startswith(ASYNCIO))


_STEPS: dict[type, Callable[[object], tuple[FrameType | None, object]]] = {
    CoroutineType: attrgetter("cr_frame", "cr_await"),
    GeneratorType: attrgetter("gi_frame", "gi_yieldfrom"),
    AsyncGeneratorType: attrgetter("ag_frame", "ag_await"),
}
"""What each kind of thing that can wait is at, and waits for."""


def _beyond(step: object) -> object:
    """Return what is waited for by a step of an async generator, or of a task; only garbage collection knows it."""
    for one in gc.get_referents(step):
        if isinstance(one, AsyncGeneratorType):
            return cast("object", one)
        if isinstance(one, asyncio.Task):
            return _coroutine_of(cast("object", one))
    return None


_coroutine_of: Callable[[object], object] = methodcaller("get_coro")


class _Stacks:
    """The stacks of all threads, for several runs at once; looked at anew where a thread has moved on meanwhile."""

    def __init__(self) -> None:
        self._seen: dict[int, FrameType] = {}

    def of(self, thread: int) -> deque[Place]:
        """Return where a thread of ours is in what it was handed; empty if it has just come back from it."""
        for fresh in (False, True):
            found = _up(self._all(fresh=fresh).get(thread), lambda frame: frame.f_code.co_filename == THREADS)
            if found is not None:
                return found
        return deque()

    def below(self, root: Waiting) -> deque[Place]:
        """Return where a coroutine is that is at work; empty if it waits by now."""
        for fresh in (False, True):
            for stack in self._all(fresh=fresh).values():
                found = _up(stack, lambda frame: frame is root.cr_frame)
                if found is not None:
                    return found
        return deque()

    def _all(self, *, fresh: bool) -> dict[int, FrameType]:
        if fresh or not self._seen:
            self._seen = current_frames()
        return self._seen


def _up(stack: FrameType | None, is_end: Callable[[FrameType], bool]) -> deque[Place] | None:
    """Return the frames of a stack down to one of ours, the outermost first; None if there is no such one."""
    frames: deque[Place] = deque()
    while stack is not None:
        if len(frames) < DEEPEST and stack.f_code.co_filename not in OURS:
            frames.appendleft((stack.f_code, stack.f_lasti))
        if is_end(stack):
            return frames
        stack = stack.f_back
    return None
