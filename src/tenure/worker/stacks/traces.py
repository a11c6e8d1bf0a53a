"""Reads the stacks of runs from another thread, without the values of arguments.

    a coroutine that waits     the chain of the awaited objects
    a coroutine at work        the stack of its thread, up to its own frame
    a plain function           the stack of the thread that it runs in

For tasks that a handler has started (`gather`, a TaskGroup), only the place is shown where the handler awaits them.
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
from tenure.worker.stacks.positions import ASYNCIO, OWN_FILES, THREADS, current_frames

FRAMES_READ = 200
"""The maximum number of innermost frames that are read of a stack."""

TEXTS_CACHED = 1_000
"""The maximum number of cached texts: thousands of runs wait in few places."""

logger = logging.getLogger("tenure.worker")


class Traces:
    """Returns the stack of each run's handler, if the storage does not have it yet."""

    def __init__(self) -> None:
        self._texts: dict[tuple[tuple[int, int], ...], tuple[Mark, str]] = {}
        """By the ids of the code objects, because these are slow to hash. The stored mark keeps them alive."""

    def new_texts(self, runs: Sequence[ActiveRun], now: float) -> list[str | None]:
        """Return the text to send for each run. None if nothing is new, or the run is younger than a beat."""
        stacks = _Stacks()
        try:
            return [self._new_text(run, stacks) if now - run.claimed_at >= run.beat else None for run in runs]
        except Exception:
            # An unexpected kind of frame must not prevent the renewal of a lease.
            logger.exception("cannot read the stacks of handlers")
            return [None] * len(runs)

    def _new_text(self, run: ActiveRun, stacks: "_Stacks") -> str | None:
        if run.isolated_position is not None:
            run.trace = run.isolated_position
        else:
            tip = run.tip
            thread = None if run.thread is None else run.thread.ident
            if thread is None and tip is not None and tip[1] is not None and tip[0].cr_await is tip[1]:
                # It still awaits the same object, so all outer coroutines are unchanged, too.
                mark = run.mark
            else:
                mark, run.tip = _look(run, thread, stacks)
            if mark and mark != run.mark:
                run.mark, run.trace = mark, self._text(mark)
        return None if run.trace == run.traced else run.trace

    def _text(self, mark: Mark) -> str:
        key = tuple((id(code), place) for code, place in mark)
        known = self._texts.get(key)
        if known is None:
            if len(self._texts) >= TEXTS_CACHED:
                self._texts.clear()
            known = self._texts[key] = mark, format_stack(mark)
        return known[1]


def stack_of(run: ActiveRun) -> str | None:
    """Return the current stack of a run's handler, formatted as a traceback. None if it is unknown."""
    if run.isolated_position is not None:
        return run.isolated_position
    try:
        mark, _ = _look(run, None if run.thread is None else run.thread.ident, _Stacks())
        return format_stack(mark) if mark else None
    except Exception:
        logger.exception("cannot read the stack of a handler")
        return None


def format_stack(mark: Mark) -> str:
    """Format a stack as a traceback. If it is too long, keep the innermost frames."""
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


def _look(run: ActiveRun, thread: int | None, stacks: "_Stacks") -> tuple[Mark, tuple[Waiting, object] | None]:
    """Return a mark that identifies the stack of a run and is cheap to get; empty if the stack is unknown.

    Also return the innermost waiting coroutine, and the object that it awaits.
    """
    root = run.root
    frames: deque[Place] = deque(maxlen=FRAMES_READ)
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
    """Follow the chain of awaited objects. If it has only coroutines, return the last one and its awaited object.

    A task that is awaited may move while the coroutines that await it do not, and the other way round.
    """
    tip: tuple[Waiting, object] | None = None
    current, alone = cast("object", root), True
    while current is not None:
        kind = type(current)
        if (step := _STEPS.get(kind)) is None:
            current = _beyond(current)
            alone = alone and current is None
            continue
        frame, awaited = step(current)
        if kind is CoroutineType:
            tip = cast("Waiting", current), awaited
        else:
            alone = False
        if frame is not None and _counts(frame.f_code.co_filename, first=not frames):
            frames.append((frame.f_code, frame.f_lasti))
        current = awaited
    return tip if alone else None


def _counts(file: str, *, first: bool) -> bool:
    """Return True if a frame belongs to the handler or to code that it calls, not to our own code around it."""
    return file not in OWN_FILES and not (first and file.startswith(ASYNCIO))


_STEPS: dict[type, Callable[[object], tuple[FrameType | None, object]]] = {
    CoroutineType: attrgetter("cr_frame", "cr_await"),
    GeneratorType: attrgetter("gi_frame", "gi_yieldfrom"),
    AsyncGeneratorType: attrgetter("ag_frame", "ag_await"),
}
"""For each awaitable type: how to get its frame and the object that it awaits."""


def _beyond(step: object) -> object:
    """Return the object that an async generator's step or a task awaits. Only the garbage collector knows it."""
    for referent in gc.get_referents(step):
        if isinstance(referent, AsyncGeneratorType):
            return cast("object", referent)
        if isinstance(referent, asyncio.Task):
            return _coroutine_of(cast("object", referent))
    return None


_coroutine_of: Callable[[object], object] = methodcaller("get_coro")


class _Stacks:
    """The stacks of all threads, shared by several runs. Read again if a thread has moved on since."""

    def __init__(self) -> None:
        self._seen: dict[int, FrameType] = {}

    def of(self, thread: int) -> deque[Place]:
        """Return the stack of the function that a worker thread runs; empty if the function has just returned."""
        for fresh in (False, True):
            found = _up(self._all(fresh=fresh).get(thread), lambda frame: frame.f_code.co_filename == THREADS)
            if found is not None:
                return found
        return deque()

    def below(self, root: Waiting) -> deque[Place]:
        """Return the stack of a coroutine that is at work; empty if it waits by now."""
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
    """Return the frames of a stack from one of our frames inwards, outermost first. None without such a frame."""
    frames: deque[Place] = deque()
    while stack is not None:
        if len(frames) < FRAMES_READ and stack.f_code.co_filename not in OWN_FILES:
            frames.appendleft((stack.f_code, stack.f_lasti))
        if is_end(stack):
            return frames
        stack = stack.f_back
    return None
