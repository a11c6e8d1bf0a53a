"""An event loop in virtual time, which takes every choice from a seed.

Time stands still while anything is ready, and then jumps to the next timer. So an hour passes in milliseconds.
Callbacks of different nodes run in a random order; callbacks of one node run in the order in which they were made. A
killed node never runs again, not even its `finally` blocks. A paused node runs nothing until it is woken.

The loop uses private parts of asyncio, the ready queue and `_run_once`. A test fails if they change.
"""

import asyncio
import contextlib
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from random import Random
from typing import Any, TypeVar, TypeVarTuple, cast

from tenure.background_loop import SameLoop as SameLoop
from tenure.clock import SECOND

T = TypeVar("T")
Args = TypeVarTuple("Args")

EPOCH = 1_800_000_000 * SECOND
"""The start of virtual time, in microseconds since 1970."""


class Node:
    """One simulated process: its name, and whether it runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.paused = False
        self.held: list[asyncio.Handle] = []

    def __repr__(self) -> str:
        return f"<node {self.name}>"


_NODE: contextvars.ContextVar[Node | None] = contextvars.ContextVar("tenure_node", default=None)


class Quiet(RuntimeError):
    """Nothing is ready and no timer is set: the world would stand still forever."""


class SimTask(asyncio.Task[Any]):
    """A task that hashes to its number. asyncio keeps tasks in sets, whose order must not depend on addresses."""

    def __init__(self, coro: Any, *, number: int, **kwargs: Any) -> None:
        self._number = number
        super().__init__(coro, **kwargs)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng
        self._virtual = 0.0
        self._ready: deque[asyncio.Handle]
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._alive: dict[asyncio.Task[Any], None] = {}
        self._made = 0
        self._failure: BaseException | None = None

    def create_task(self, coro: Any, **kwargs: Any) -> "asyncio.Task[Any]":
        """Create a task and keep a reference to it. If a killed node's task were collected, its `finally` would run."""
        self._made += 1
        task = SimTask(coro, loop=self, number=self._made, **kwargs)
        self._alive[task] = None
        task.add_done_callback(lambda done: self._alive.pop(done, None))
        return task

    @property
    def node(self) -> Node | None:
        """The node that the caller runs on."""
        return _NODE.get()

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._virtual

    def start(self, node: Node, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start a coroutine on a node. All tasks that it starts belong to the node as well."""
        return self.create_task(coroutine, context=self.context(node))

    def context(self, node: Node) -> contextvars.Context:
        """Return a copy of the caller's context that belongs to a node: its callbacks run as long as the node does."""
        context = contextvars.copy_context()
        context.run(_NODE.set, node)
        return context

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """End the simulation with the exception of a callback, so that no failure goes unnoticed."""
        if "handle" in context and self._failure is None:
            self._failure = context.get("exception")

    def kill(self, node: Node) -> None:
        """Stop a node forever, as SIGKILL does."""
        node.dead = True
        node.held.clear()

    def pause(self, node: Node) -> None:
        """Stop a node until it is woken, as SIGSTOP does."""
        node.paused = True

    def wake(self, node: Node) -> None:
        """Continue a paused node, as SIGCONT does."""
        node.paused = False
        self._ready.extend(node.held)
        node.held.clear()

    def block(self, seconds: float) -> None:
        """Let time pass while nothing else runs, as with a handler that holds the interpreter."""
        self._virtual += seconds

    def abandon(self) -> None:
        """Close the coroutines that killed nodes have left and that will never end."""
        for task in self._alive:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if task.done():
                # Python 3.12.1 crashes when asked for the coroutine of a task that was done as soon as it was made.
                continue
            with contextlib.suppress(RuntimeError):
                coroutine: Any = task.get_coro()
                coroutine.close()

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Args], T], *args: *Args
    ) -> "asyncio.Future[T]":
        """Call the function at once on this thread. A real thread does not follow virtual time."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _write_to_self(self) -> None:
        """Do nothing: this loop does not sleep in a selector."""

    def _process_events(self, event_list: Any) -> None:
        """Do nothing: there are no descriptors."""

    def call_at(
        self,
        when: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Set a timer. Timers of one instant fire in the order in which they were set."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._made += 1
        heapq.heappush(self._timers, (when, self._made, timer))
        return timer

    def _run_once(self) -> None:
        """Run what is ready, or jump to the next timer."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not self._ready:
            if not timers:
                raise Quiet("nothing is ready and no timer is set")
            self._virtual = max(self._virtual, timers[0][0])
        while timers and timers[0][0] <= self._virtual:
            self._ready.append(heapq.heappop(timers)[2])
        ready = self._ready
        if len(ready) == 1:
            handle = ready.popleft()
            order = [(_node_of(handle), handle)]
        else:
            order = self._shuffled(list(ready))
            ready.clear()
        for node, handle in order:
            if node is not None and node.dead:
                continue
            if node is not None and node.paused:
                node.held.append(handle)
            elif not handle.cancelled():
                handle._run()
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure

    def _shuffled(self, batch: list[asyncio.Handle]) -> list[tuple[Node | None, asyncio.Handle]]:
        """Return the handles in a random order that keeps the order of each node."""
        nodes = [_node_of(handle) for handle in batch]
        lines: dict[Node | None, deque[asyncio.Handle]] = {}
        for node, handle in zip(nodes, batch, strict=True):
            lines.setdefault(node, deque()).append(handle)
        if len(lines) > 1:
            self._rng.shuffle(nodes)
        return [(node, lines[node].popleft()) for node in nodes]


def _node_of(handle: asyncio.Handle) -> Node | None:
    context = cast(contextvars.Context, handle._context)  # type: ignore[attr-defined]
    return context.get(_NODE)


class SimClock:
    """The clocks of a simulated host: the wall clock may be stepped, the uptime only increases."""

    def __init__(self, loop: SimLoop, tick: int = 1) -> None:
        """Create the clocks on a loop. `tick`: the step in microseconds in which the wall clock advances."""
        self._loop = loop
        self._tick = tick
        self._offset = 0

    def now(self) -> int:
        """Return the virtual wall clock, in microseconds since 1970."""
        now = EPOCH + round(self._loop.time() * SECOND) + self._offset
        return now - now % self._tick

    def uptime(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._loop.time()

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back."""
        self._offset += round(seconds * SECOND)


def simulate(main: Callable[[SimLoop], Coroutine[Any, Any, T]], *, seed: int = 0, limit: float = 86_400.0) -> T:
    """Run a coroutine to its end in virtual time. `limit`: the virtual seconds it may take.

    Raises:
        TimeoutError: the coroutine took longer than `limit`.
    """
    loop = SimLoop(Random(seed))
    asyncio.set_event_loop(loop)
    try:

        async def bounded() -> T:
            async with asyncio.timeout(limit):
                return await main(loop)

        return loop.run_until_complete(bounded())
    finally:
        asyncio.set_event_loop(None)
        loop.abandon()
        loop.close()
