"""Carries out the steps and waits of handlers, and unwinds a handler that waits.

    step ──► its record is known ──► the recorded value
         └─► the function is called, in flight ──► recorded ──► the recorded value
    wait ──► its outcome is known ──► the outcome
         └─► open ──no step is in flight──► all open waits are unwound ──► one `Wait` for any of them

A run reads the records of earlier runs once, when its handler comes to its first step or wait.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec

from tenure.client.step_values import StepType, StepValues
from tenure.clock import SECOND
from tenure.core.duration import duration, micros
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.job import RecordedError
from tenure.core.steps import STEPS_BYTES, STEPS_LIMIT, NewStep, is_step_key, is_step_name
from tenure.core.suspension import HandlerSuspended
from tenure.core.waiting import NEEDS_LIMIT, SIGNAL, SLEEP, Need, StepKind, StepRecord, Wait
from tenure.errors import (
    LeaseLostError,
    StepFailedError,
    StepMismatchError,
    StorageUnavailableError,
    UsageError,
    WaitTimeoutError,
)
from tenure.failures import is_a, recorded
from tenure.handlers.context import job_of
from tenure.handlers.control import Control
from tenure.handlers.durable import OpenStep, StepContext, StepEngine, StepRetry, WaitFor, in_step
from tenure.options.retry import Retry, valid_retry
from tenure.runtime import Runtime
from tenure.threads import ThreadPool, unwrapped
from tenure.worker.active_runs import CANCEL_GRACE, Abandoned, ActiveRun
from tenure.worker.step_recorder import StepRecorder, StopRun

T = TypeVar("T")

BODY_WARNED = 32 * 1024
"""Size of a recorded value, in bytes, from which on a warning is logged, once per name."""

TURNS = 3
"""How many turns of the event loop an open wait gives other branches to begin a step, before it suspends the job."""

_RETRY = ExponentialDelay(0.1, 1.0)


class DurableSteps:
    """Opens the engines of the runs of one process."""

    def __init__(
        self, runtime: Runtime, threads: ThreadPool, abandoned: Abandoned, *, stop: StopRun, isolated: bool = False
    ) -> None:
        """`isolated`: this is the process of one isolated run."""
        self.storage, self.clock, self.rng, self.logger = runtime.storage, runtime.clock, runtime.rng, runtime.logger
        self.threads, self.abandoned, self.isolated = threads, abandoned, isolated
        self.short_wait = round(runtime.short_wait * SECOND)
        self.values = StepValues(runtime.codec, runtime.types)
        self.recorder = StepRecorder(runtime.storage, runtime.clock, runtime.rng, runtime.logger, stop=stop)
        self.warned: set[tuple[str, str]] = set()
        """The tasks and the names of the steps whose values were found to be large."""

    def open(self, run: ActiveRun) -> StepEngine:
        """Return the engine of a run.

        Raises:
            UsageError: the run is over, or cannot reach the storage from its own process.
        """
        if run.over or run.settled:
            raise UsageError("this run is settled already, so it can neither record steps nor wait")
        if self.isolated and not self.storage.shared:
            raise UsageError(
                f"steps and waits: this run has a process of its own, which cannot reach {self.storage.url}; use "
                "another storage, or run the task in the worker's process"
            )
        steps = run.steps
        if not isinstance(steps, RunSteps):
            steps = run.steps = RunSteps(self, run)
        return steps.engine


class RunSteps:
    """The steps and waits of one run. Its methods run on the event loop of the worker, except `from_thread`."""

    def __init__(self, all_steps: DurableSteps, run: ActiveRun) -> None:
        self.all = all_steps
        self.run = run
        self.wait: Wait | None = None
        """What the job waits for, once its handler is unwound."""
        self.failure: BaseException | None = None
        """The error of a value that cannot be recorded or read: a further run would change nothing."""
        self._loop = run.task.get_loop() if run.task is not None else asyncio.get_running_loop()
        self._records: dict[str, StepRecord] = {}
        self._loading: asyncio.Task[None] | None = None
        self._size = 0
        self._calls: Counter[str] = Counter()
        self._names: set[str] = set()
        """The names that this run has used."""
        self._pauses: Counter[str] = Counter()
        """For each step, the last attempt that was followed by a pause which is over."""
        self._read: Counter[str] = Counter()
        """How many signals of each name were read."""
        self._open: dict[asyncio.Future[None], tuple[Need, ...]] = {}
        self._in_flight = 0
        self._looking = False
        self._closed = False
        self._in_steps: set[StepOfRun] = set()
        """The steps whose functions are at work."""
        self._step_ended = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        wait = None if run.lease.job.links is None else run.lease.job.links.wait
        self._before = {} if wait is None else {need.step: need for need in wait.needs if need.step is not None}
        """The needs of the last wait. A wait that is still open keeps its time."""

    @property
    def engine(self) -> StepEngine:
        """What the context of the job calls."""
        return StepEngine(self.open_step, self.in_thread, self.sleep, self.wait_signal, self.first, self.from_thread)

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def open_step(
        self, name: str, function: Callable[..., Any], key: str | None, retry: StepRetry | None
    ) -> OpenStep:
        """See `StepEngine.open_step`."""
        if not callable(function):
            raise UsageError(f"step {name!r}: the second argument must be a function")
        stored = self._name(name, key)
        await self._enter()
        rule = None if retry is None else valid_retry(retry)
        kind = self.all.values.returned_by(function, f"step {stored!r}")
        record = self.find(stored, "step")
        step = StepOfRun(self, stored, kind, record, rule)
        if record is None:
            await self._end_pause(stored)
            step.attempt = self._pauses[stored] + 1
            self._check_room(stored)
            self.begin_step(step)
        return OpenStep(step.context, step.recorded, step.done, step.failed)

    async def _end_pause(self, stored: str) -> None:
        """Wait for the end of the pause after an attempt of a step, if it is still open."""
        for name, need in self._before.items():
            # A redrive that forgets the attempts sets the time to 0.
            if not need.until or not name.startswith(f"{stored}~") or name in self._records:
                continue
            if need.until > self.now:
                await self._wait((need,))
            self._pauses[stored] = max(self._pauses[stored], int(name.rpartition("~")[2]))

    def pause(self, stored: str, attempt: int, length: int) -> Need:
        """Return the need of a pause after an attempt of a step."""
        return Need(box=SLEEP, until=self.now + length, step=f"{stored}~{attempt}")

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """See `StepEngine.in_thread`."""
        thread = self.all.threads.worker_thread()
        work = self._loop.create_task(thread.run(function))
        # Otherwise asyncio would log the exception of a call whose caller was cancelled.
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if thread.busy:
                self.run.abandon_task(work)
                self.all.abandoned.add_thread(thread)
            raise
        finally:
            thread.close()

    # ── waits ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def sleep(self, name: str, length: int) -> None:
        """See `StepEngine.sleep`."""
        stored = self._name(name)
        await self._enter()
        if self.find(stored, "sleep") is not None:
            return
        if length >= self.all.short_wait or stored in self._before:
            await self._wait((self._need(stored, None, length),))
        self._check_room(stored)
        self.begin_flight()
        try:
            await asyncio.sleep(length / SECOND)
            await self.record(NewStep(stored, "sleep", "timer"))
        finally:
            self.end_flight()

    async def wait_signal(self, name: str, kind: Any, timeout: int | None) -> Any:
        """See `StepEngine.wait_signal`."""
        stored = self._name(name)
        await self._enter()
        record = self.find(stored, "signal")
        if record is None:
            await self._wait((self._need(stored, name, timeout),))
        return self._signal(record, kind)

    async def first(self, waits: Sequence[WaitFor[Any]]) -> tuple[str, Any]:
        """See `StepEngine.first`."""
        if not waits:
            raise UsageError("first() needs at least one wait: first(job.on_signal(...), job.on_sleep(...))")
        names = [self._name(one.name) for one in waits]
        await self._enter()
        for stored, one in zip(names, waits, strict=True):
            record = self.find(stored, "sleep" if one.pause else "signal")
            if record is not None:
                return one.name, None if one.pause else self._signal(record, one.kind)
        needs = [
            self._need(stored, None if one.pause else one.name, one.length)
            for stored, one in zip(names, waits, strict=True)
        ]
        await self._wait(tuple(needs))

    def _need(self, stored: str, signal: str | None, length: int | None) -> Need:
        """Return the need of a wait. If the last wait had it, its time goes on."""
        before = self._before.get(stored)
        # A redrive that forgets the time of a wait sets it to 0.
        until = before.until if before is not None and before.until else None
        if until is None and length is not None:
            until = self.now + length
        if signal is None:
            return Need(box=SLEEP, until=until, step=stored)
        box = f"{SIGNAL}{signal}"
        others = sum(need.box == box for needs in self._open.values() for need in needs)
        return Need(box=box, count=self._read[signal] + others + 1, until=until, step=stored)

    def _signal(self, record: StepRecord, kind: Any) -> Any:
        """Return the content of a signal."""
        if record.by == "timer":
            raise WaitTimeoutError(record.name)
        what = f"the signal {record.name!r}"
        return self.decode(self.all.values.of_type(kind, what), record, what)

    async def _wait(self, needs: tuple[Need, ...]) -> NoReturn:
        """Wait until the handler is unwound.

        Raises:
            HandlerSuspended: always, unless the caller is cancelled.
        """
        if self.wait is not None:
            raise HandlerSuspended
        unwound: asyncio.Future[None] = self._loop.create_future()
        self._open[unwound] = needs
        self._look_soon()
        try:
            await unwound
        finally:
            self._open.pop(unwound, None)
        raise HandlerSuspended

    def _look_soon(self) -> None:
        if self._open and not self._in_flight and not self._looking and self.wait is None:
            self._looking = True
            self._loop.call_soon(self._look, TURNS)

    def _look(self, turns: int) -> None:
        """Unwind the handler, if no step is in flight. Other branches that can go on at once get some turns before."""
        if turns and not self._in_flight:
            self._loop.call_soon(self._look, turns - 1)
            return
        self._looking = False
        if self._in_flight or not self._open or self._closed:
            return
        needs = tuple(need for needs in self._open.values() for need in needs)
        error: BaseException = HandlerSuspended()
        if len(needs) > NEEDS_LIMIT:
            error = UsageError(f"the branches of this run wait for {len(needs)} things, the limit is {NEEDS_LIMIT}")
        else:
            self.wait = Wait(needs, "any")
        for unwound in list(self._open):
            if not unwound.done():
                unwound.set_exception(error)
                # If its branch was cancelled meanwhile, asyncio would log that it was not retrieved.
                unwound.exception()

    async def close(self, limit: float | None) -> None:
        """End the branches that are left of a handler that has ended. They can begin no step any more.

        `limit`: for how many seconds steps that are at work may go on to their record; None: until they end. Then all
        branches are cancelled, and get some time to end.
        """
        self._closed = True
        try:
            async with asyncio.timeout(limit):
                while self._in_steps:
                    self._step_ended.clear()
                    await self._step_ended.wait()
        except TimeoutError:
            # Their effects are not recorded; the next run calls them again.
            pass
        finally:
            left = self._cancel_branches()
        if left:
            _, late = await asyncio.wait(left, timeout=CANCEL_GRACE)
            for task in late:
                self.run.abandon_task(task)
                self.all.abandoned.add_task(task)

    def _cancel_branches(self) -> set[asyncio.Task[Any]]:
        """Cancel the branches that are left, and return them."""
        left = {task for task in self._tasks if not task.done()} | set(self._own_tasks())
        left -= {asyncio.current_task(), self.run.task}
        for task in left:
            task.cancel()
        return left

    def _own_tasks(self) -> Iterable[asyncio.Task[Any]]:
        """Yield the tasks that the handler has started, where Python can tell."""
        for task in asyncio.all_tasks(self._loop):
            get_context = getattr(task, "get_context", None)
            if get_context is not None and job_of(get_context()) is self.run.context:
                yield task

    # ── records ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def now(self) -> int:
        """The storage's time: that of the claim, and what has passed since."""
        run, job = self.run, self.run.lease.job
        if job.started is None:
            return self.all.clock.now()
        since = run.granted_at or run.claimed_at
        return job.started + round((self.all.clock.uptime() - since) * SECOND)

    def find(self, stored: str, kind: StepKind) -> StepRecord | None:
        """Return the record of a step.

        Raises:
            StepMismatchError: it is of another kind.
            HandlerSuspended: it is not there, and the handler is being unwound.
        """
        record = self._records.get(stored)
        if record is None:
            if self.wait is not None:
                raise HandlerSuspended
            return None
        if record.kind != kind:
            raise self.fail(
                StepMismatchError(
                    stored,
                    f"the record of {stored!r} is of a {record.kind}, and the handler calls it as a {kind}; give a "
                    "changed step another name",
                )
            )
        return record

    def decode(self, kind: StepType, record: StepRecord, what: str) -> Any:
        """Return the value of a record.

        Raises:
            StepMismatchError: it does not fit the type.
        """
        try:
            return kind.decode(record.body or b"")
        except Exception as error:
            mismatch = StepMismatchError(
                record.name, f"{what}: its recorded value does not fit the type any more: {error}; change one of them"
            )
            raise self.fail(mismatch) from error

    async def record(self, step: NewStep) -> StepRecord:
        """Record a step, and return its record.

        Raises:
            LeaseLostError: the run is not the current one any more.
            StorageError: the storage refuses it.
        """
        run, job = self.run, self.run.lease.job
        run.signs.sign(self.all.clock.uptime())
        answer = self.all.recorder.record(run, step)
        try:
            done = await asyncio.shield(answer)
        except asyncio.CancelledError:
            if not self.all.recorder.failures:
                # The step has had its effect, and the record is on its way.
                await asyncio.wait([answer], timeout=CANCEL_GRACE / 2)
            answer.cancel()
            raise
        if not done:
            run.refused = True
            raise LeaseLostError(
                f"job {job.id}: this run is not the current one any more (its lease ran out, or it was stopped), so "
                f"its step {step.name!r} was not recorded"
            )
        record = StepRecord(step.name, job.starts, self.now, step.by, step.body, step.kind, step.took)
        self._records[step.name] = record
        self._size += len(step.body or b"")
        return record

    def fail(self, error: BaseException) -> BaseException:
        """Note an error that a further run would not change, and return it."""
        self.failure = error
        return error

    def warn_if_large(self, stored: str, body: bytes) -> None:
        """Log a warning about a large value, once per name."""
        name, job = stored.partition("#")[0], self.run.lease.job
        if len(body) >= BODY_WARNED and (job.task, name) not in self.all.warned:
            self.all.warned.add((job.task, name))
            self.all.logger.warning(
                "task %r: step %r has a value of %d bytes; each later run of the job reads it; store the data "
                "elsewhere and return a reference",
                job.task,
                name,
                len(body),
            )

    def check_size(self, stored: str, body: bytes) -> None:
        """Check that the values of all steps fit.

        Raises:
            UsageError: they take too many bytes.
        """
        if self._size + len(body) > STEPS_BYTES:
            raise self.fail(
                UsageError(
                    f"step {stored!r}: the values of all steps take more than {STEPS_BYTES:,} bytes; store the data "
                    "elsewhere and return a reference"
                )
            )

    def _check_room(self, stored: str) -> None:
        if len(self._records) >= STEPS_LIMIT:
            raise self.fail(
                UsageError(f"step {stored!r}: the job has {STEPS_LIMIT:,} steps, the most that a job may have")
            )

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _name(self, name: str, key: str | None = None) -> str:
        """Return the name under which a step is stored. Called before anything is awaited, in the order of the code."""
        if not is_step_name(name):
            raise UsageError(f"the name {name!r} of a step must have 1 to 64 letters, digits, '_' or '-'")
        if key is not None:
            if not is_step_key(key):
                raise UsageError(f"step {name!r}: key = {key!r} must have 1 to 64 visible ASCII characters without '~'")
            stored = f"{name}@{key}"
            if stored in self._names:
                raise UsageError(f"step {name!r}: the key {key!r} was used before in this run; a key names one step")
        else:
            self._calls[name] += 1
            stored = name if self._calls[name] == 1 else f"{name}#{self._calls[name]}"
        self._names.add(stored)
        return stored

    async def _enter(self) -> None:
        """Prepare for a step or a wait.

        Raises:
            UsageError: the handler may not call it here.
        """
        if in_step():
            raise UsageError("a step cannot contain steps or waits; call them in the handler itself")
        if self.run.in_transaction:
            raise UsageError("steps and waits are not possible in transaction(): call them before the block")
        if self._closed:
            # The handler has ended; this branch is left of it.
            raise asyncio.CancelledError
        if self.failure is not None:
            raise self.failure
        if (task := asyncio.current_task()) is not None:
            self._tasks.add(task)
        job = self.run.lease.job
        if job.starts == 1 and job.links is None:
            # Nothing can be recorded.
            return
        if self._loading is None:
            self._loading = self._loop.create_task(self._load())
        self._in_flight += 1
        try:
            await asyncio.shield(self._loading)
        finally:
            self.end_flight()

    async def _load(self) -> None:
        """Read the records of earlier runs."""
        failures = 0
        while True:
            try:
                (detail,) = await self.all.storage.get([self.run.lease.ref])
                break
            except StorageUnavailableError:
                if self.run.over:
                    raise
                failures += 1
                await asyncio.sleep(_RETRY.rest(failures, self.all.rng))
        for record in () if detail is None else detail.steps:
            self._records[record.name] = record
            self._size += len(record.body or b"")
            stored, _, pause = record.name.partition("~")
            if pause:
                self._pauses[stored] = max(self._pauses[stored], int(pause))
            elif record.kind == "signal" and record.by != "timer":
                self._read[record.name.partition("#")[0]] += 1

    def begin_flight(self) -> None:
        """Note that a step is in flight."""
        self._in_flight += 1

    def end_flight(self) -> None:
        """Note that a step is not in flight any more."""
        self._in_flight -= 1
        self._look_soon()

    def begin_step(self, step: "StepOfRun") -> None:
        """Note that the function of a step is at work."""
        if self._closed:
            raise asyncio.CancelledError
        self._in_steps.add(step)
        self.begin_flight()

    def end_step(self, step: "StepOfRun") -> None:
        """Note that a step is not at work any more."""
        self._in_steps.discard(step)
        self._step_ended.set()
        self.end_flight()

    async def suspend(self, need: Need) -> NoReturn:
        """Wait for one need.

        Raises:
            HandlerSuspended: always, unless the caller is cancelled.
        """
        await self._wait((need,))

    def from_thread(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """See `StepEngine.from_thread`."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


class StepOfRun:
    """A step of a run; see `OpenStep`."""

    def __init__(
        self, steps: RunSteps, stored: str, kind: StepType, record: StepRecord | None, retry: Retry | None
    ) -> None:
        self._steps, self._stored, self._kind, self._record, self._retry = steps, stored, kind, record, retry
        self._began = steps.all.clock.uptime()
        self.attempt = 1
        """The number of the attempt, from 1."""

    def context(self) -> StepContext:
        """See `OpenStep.context`."""
        return StepContext(self._stored, self.attempt, f"{self._steps.run.lease.job.id}/{self._stored}")

    def recorded(self) -> tuple[Any] | None:
        """See `OpenStep.recorded`."""
        record = self._record
        if record is None:
            return None
        if record.by == "failed":
            raise _step_failed(record)
        return (self._steps.decode(self._kind, record, f"step {self._stored!r}"),)

    async def done(self, value: object) -> Any:
        """See `OpenStep.done`."""
        steps = self._steps
        try:
            try:
                body = self._kind.encode(value)
            except UsageError as error:
                raise steps.fail(error) from error.__cause__
            steps.check_size(self._stored, body)
            steps.warn_if_large(self._stored, body)
            self._record = await steps.record(NewStep(self._stored, body=body, took=self._took()))
        finally:
            steps.end_step(self)
        return steps.decode(self._kind, self._record, f"step {self._stored!r}")

    async def failed(self, error: BaseException) -> bool:
        """See `OpenStep.failed`."""
        steps, retry = self._steps, self._retry
        # A plain function may have raised an exception that no future carries.
        raised = unwrapped(error)
        try:
            if (
                retry is None
                or not is_a(raised, Exception)
                or is_a(raised, Control, LeaseLostError)
                or steps.run.stop is not None
            ):
                return False
            rule = retry.rule()
            if retry.final(raised) or self.attempt >= rule.max_attempts:
                body = msgspec.json.encode(recorded(raised))
                self._record = await steps.record(NewStep(self._stored, by="failed", body=body, took=self._took()))
                raise _step_failed(self._record) from error
            length = _delay(retry, self.attempt, raised)
            if length is None:
                length = rule.delay(self.attempt, steps.all.rng)
            short = length < steps.all.short_wait
            if short:
                # Its function is not at work, but it is still in flight.
                steps.begin_flight()
        finally:
            steps.end_step(self)
        if short:
            try:
                await asyncio.sleep(length / SECOND)
                steps.begin_step(self)
            finally:
                steps.end_flight()
        else:
            await steps.suspend(steps.pause(self._stored, self.attempt, length))
        self.attempt += 1
        return True

    def _took(self) -> int:
        return max(0, round((self._steps.all.clock.uptime() - self._began) * SECOND))


def _delay(retry: Retry, attempt: int, error: BaseException) -> int | None:
    """Return the delay by the function of a `Retry`, in microseconds; None: the default delay applies."""
    if retry.delay is None:
        return None
    value = retry.delay(attempt, error)
    return None if value is None else micros(duration(value, field="the result of Retry.delay", zero=True))


def _step_failed(record: StepRecord) -> StepFailedError:
    """Return the error of a step whose failure is recorded."""
    error = msgspec.json.decode(record.body or b"{}", type=RecordedError)
    return StepFailedError(
        record.name,
        f"step {record.name!r} has failed: {error.type}: {error.message}",
        error_type=error.type,
        traceback=error.traceback,
    )
