"""Kills a process at every call of the script, and checks what is left; it runs as a separate process.

    python -m tests.system.crash_runner STORAGE FOLDER INSIDE SHARE SEED [FROM TO]

It imports everything once, and forks a lane for each point while it has no thread. The lane forks the process that is
killed, then opens the storage as a new process does, compares it with the model, lets a normal worker finish the work
at its SHARE of the points, and compares the records with the event log. It prints one line of JSON for each point.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec

from tenure import Tenure, Timing
from tenure.core.deduplication import merge_name
from tenure.core.events import (
    AnyEvent,
    JobCancelled,
    JobCompleted,
    JobDeleted,
    JobEvent,
    JobExpired,
    JobFailed,
    JobRedriven,
    JobReleased,
    JobRetried,
    JobStalled,
)
from tenure.core.frames import unframed
from tenure.core.job import JobDetail, Ref
from tenure.core.lifecycle import TERMINAL, State
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import Query, Settings, Storage, Target
from tenure.testing import ManualClock
from tests.system.crash_script import (
    ACTS,
    CALLS,
    MAY_VANISH,
    MERGE_KEYS,
    QUEUES,
    THROTTLE,
    Play,
    call,
)
from tests.system.crash_storages import LANES, CrashEnvironment, CrashStorage, RedisEnvironment, SQLiteEnvironment

PATIENCE = 30.0
"""Seconds that the normal worker gets; it needs a few tenths."""


@dataclass(frozen=True)
class Point:
    """Where a process is killed: after this many answers, or `inside` the next call.

    That is after this many seconds, or while its request is unread at a server, which carries it out anyway.
    """

    calls: int
    inside: float | Literal["unread"] | None = None
    finish: bool = True
    """Whether a normal worker continues from there."""


@dataclass(frozen=True)
class Snapshot:
    """Everything visible in a storage, and the instant of the reading."""

    at: int
    seen: tuple[Any, ...]


async def look(storage: Storage) -> tuple[Any, ...]:
    """Return everything visible in a storage."""
    listed = (await storage.find(Query(limit=1000))).jobs
    details = await storage.get([job.ref for job in listed])
    # The holder of each key, and the job that each call belongs to.
    holders = [(await storage.find(Query(merge=merge_name(key)))).jobs for key in MERGE_KEYS]
    answers = await storage.get(CALLS)
    survey = await storage.survey()
    return listed, details, holders, answers, survey, (await storage.events(limit=10_000)).events


async def snapshots(start: int) -> list[Snapshot]:
    """Return the model's state after none, one, two ... calls."""
    clock = ManualClock(start)
    play = Play(MemoryStorage(clock=clock), clock)
    found = [Snapshot(clock.now(), await look(play.storage))]
    for act in ACTS:
        clock.advance(act.rest)
        await act.call(play)
        found.append(Snapshot(clock.now(), await look(play.storage)))
    return found


# ── the process that is killed ────────────────────────────────────────────────────────────────────────────────────────


async def perform(crash_storage: CrashStorage, start: int, point: Point, tell: int) -> None:
    """Run the script up to a point and die; each answer is announced, with the seconds that the call took."""
    clock = ManualClock(start)
    storage = crash_storage.storage(clock)
    await storage.open()
    play = Play(storage, clock)
    due = threading.Event()
    if isinstance(point.inside, float):
        threading.Thread(target=strike, args=(due, point.inside), daemon=True).start()
    for number, act in enumerate(ACTS):
        if number == point.calls:
            if point.inside is None:
                os.kill(os.getpid(), signal.SIGKILL)
            if point.inside == "unread":
                crash_storage.freeze()
                os.write(tell, b"unread\n")
            due.set()
        clock.advance(act.rest)
        began = time.perf_counter()
        await act.call(play)
        os.write(tell, f"{time.perf_counter() - began:.6f}\n".encode())
        if number == point.calls:
            await asyncio.sleep(PATIENCE)
    os.kill(os.getpid(), signal.SIGKILL)


def strike(due: threading.Event, after: float) -> None:
    """Kill this process this many seconds after it has become due."""
    due.wait()
    time.sleep(after)
    os.kill(os.getpid(), signal.SIGKILL)


def killed(crash_storage: CrashStorage, start: int, point: Point) -> list[float]:
    """Have a process perform and die; return how long each answered call took."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            asyncio.run(perform(crash_storage, start, point, writing))
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(writing)
    answered: list[float] = []
    try:
        with os.fdopen(reading) as lines:
            for line in lines:
                if line == "unread\n":
                    crash_storage.await_request()
                    os.kill(child, signal.SIGKILL)
                else:
                    answered.append(float(line))
        _, status = os.waitpid(child, 0)
    finally:
        crash_storage.thaw()
    assert os.WIFSIGNALED(status), "the script failed"
    assert os.WTERMSIG(status) == signal.SIGKILL
    return answered


# ── what is left of it ────────────────────────────────────────────────────────────────────────────────────────────────


def examine(crash_storage: CrashStorage, start: int, point: Point, states: Sequence[Snapshot]) -> dict[str, Any]:
    """Kill a process at a point and check what is left; return the result."""
    answered = len(killed(crash_storage, start, point))
    assert answered in (point.calls, point.calls + 1), f"{answered} calls were answered"
    crash_storage.prove_whole()
    # A call in flight has been done or not; nothing of it is half done, and nothing is lost that was answered.
    candidates = [answered, answered + 1]
    if point.inside is None or answered > point.calls:
        candidates = [answered]
    elif point.inside == "unread":
        candidates = [answered + 1]
    found = asyncio.run(matching(crash_storage, [(number, states[number]) for number in candidates]))
    if point.finish:
        asyncio.run(finish(crash_storage, {job.ref for job in states[found].seen[0]}))
        crash_storage.prove_whole()
        crash_storage.prove_empty()
    return {
        "calls": point.calls,
        "inside": point.inside,
        "answered": answered > point.calls,
        "done": found > point.calls,
        "finished": point.finish,
    }


async def matching(crash_storage: CrashStorage, candidates: Sequence[tuple[int, Snapshot]]) -> int:
    """Return the state of the model that the storage equals."""
    *others, (last, expected) = candidates
    for number, state in others:
        if await seen_at(crash_storage, state.at) == state.seen:
            return number
    for part, wanted in zip(await seen_at(crash_storage, expected.at), expected.seen, strict=True):
        assert part == wanted
    return last


async def seen_at(crash_storage: CrashStorage, at: int) -> tuple[Any, ...]:
    """Return everything visible in a storage at an instant."""
    storage = crash_storage.storage(ManualClock(at))
    try:
        return await look(storage)
    finally:
        await storage.close()


async def finish(crash_storage: CrashStorage, refs: set[Ref]) -> None:
    """Let a normal worker finish, and compare the records with the events."""
    app = Tenure(crash_storage.url, timing=Timing(lease=1, sweep=0.1, grace=0.1))

    @app.task(name="t")
    async def task() -> str:
        return "done"

    @app.task(name="gather")
    async def gather(numbers: list[int]) -> list[int]:
        return numbers

    async with app:
        storage = app.storage
        survey = await storage.survey()
        for queue in survey.queues:
            if queue.paused:
                await storage.tune(Target("queue", queue.queue), Settings(paused=False))
        for name in survey.paused_tasks:
            await storage.tune(Target("task", name), Settings(paused=False))
        async with app.worker(queues=QUEUES, drain=1):
            until = time.monotonic() + PATIENCE
            while not await over(storage):
                assert time.monotonic() < until, (await storage.find(Query(limit=1000))).jobs
                await asyncio.sleep(0.01)
        details = {detail.job.ref: detail for detail in await storage.get(sorted(refs)) if detail is not None}
        survey = await storage.survey()
        listed = (await storage.find(Query(limit=1000))).jobs
        events = (await storage.events(limit=100_000)).events
        findings = await storage.examine()
        await every_key_is_free(storage)
    assert not [finding for finding in findings if finding.level == "error"], findings
    assert {job.ref for job in listed} == set(details)
    assert refs - set(details) <= MAY_VANISH
    assert {
        (queue.queue, state): count for queue in survey.queues for state, count in queue.counts.items() if count
    } == (Counter((job.queue, job.state) for job in listed))
    assert not any(queue.parked for queue in survey.queues)
    for ref in sorted(refs):
        ended_once(ref, details.get(ref), [event for event in events if concerns(event, ref)])


async def every_key_is_free(storage: Storage) -> None:
    """Check that no key has outlived the jobs, now that all have ended, and that every timed key ends with its time."""
    calls = [call(f"last-{number}", key) for number, key in enumerate(MERGE_KEYS)]
    receipts = await storage.enqueue([*calls, call("last", throttle=THROTTLE)])
    assert [receipt.action for receipt in receipts] == ["created"] * (len(MERGE_KEYS) + 1), receipts


async def over(storage: Storage) -> bool:
    """Return whether all jobs have ended, and no rule is about to redrive one."""
    survey = await storage.survey()
    if any(count and state not in TERMINAL for queue in survey.queues for state, count in queue.counts.items()):
        return False
    failed = (await storage.find(Query(states=(State.FAILED,), limit=1000))).jobs
    return all(job.redrive_at is None for job in failed)


def concerns(event: AnyEvent, ref: Ref) -> bool:
    return isinstance(event, JobEvent) and (event.queue, event.id) == (ref.queue, ref.id)


def ended_once(ref: Ref, detail: JobDetail | None, events: Sequence[AnyEvent]) -> None:
    """Compare the record of one job with its events: one end, and one outcome for each run."""
    deleted = sum(isinstance(event, JobDeleted) for event in events)
    redriven = sum(isinstance(event, JobRedriven) for event in events)
    ends = sum(isinstance(event, JobCompleted | JobFailed | JobCancelled | JobExpired) for event in events)
    outcomes = Counter(
        event.run
        for event in events
        if isinstance(event, JobCompleted | JobFailed | JobRetried | JobReleased)
        or (isinstance(event, JobCancelled) and event.was == State.ACTIVE)
        or (isinstance(event, JobStalled) and event.action == "recovered")
    )
    if detail is None:
        assert ends >= 1 or deleted, ref
        return
    if ref not in MAY_VANISH:  # else the id may have been another job's before
        assert (ends, deleted) == (redriven + 1, 0), (ref, events)
        assert outcomes == dict.fromkeys(range(1, detail.job.starts + 1), 1), (ref, outcomes, detail)
    assert detail.job.state in TERMINAL
    if detail.job.collected and detail.job.state is State.COMPLETED:
        frames = [msgspec.json.decode(frame)["numbers"] for frame in unframed(detail.job.payload)]
        assert msgspec.json.decode(detail.job.result or b"") == [number for frame in frames for number in frame], ref
    assert detail.job.owner is None
    assert [run.number for run in detail.runs] == list(range(1, detail.job.starts + 1)), ref
    assert all(run.end is not None and run.ended for run in detail.runs), ref
    fences = [run.fence for run in detail.runs]
    assert fences == sorted(set(fences)), ref


# ── all points ────────────────────────────────────────────────────────────────────────────────────────────────────────


def lane(crash_storage: CrashStorage, start: int, point: Point, states: Sequence[Snapshot]) -> int:
    """Fork a process that examines one point and prints what it found; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        found = examine(crash_storage, start, point, states)
    except BaseException as error:
        name = ACTS[point.calls].name if point.calls < len(ACTS) else "the end"
        trouble = "".join(traceback.format_exception(error))[-3000:]
        found = {"calls": point.calls, "inside": point.inside, "trouble": f"at {name!r}: {trouble}"}
    # A single write of less than a pipe's buffer is whole.
    os.write(1, json.dumps(found).encode() + b"\n")
    os._exit(0)


def points(environment: CrashEnvironment, start: int, inside: int, share: float, dice: Random) -> Iterator[Point]:
    """Yield each point of the whole script."""
    # On each server, because it has to learn the scripts.
    usual = [0.0] * len(ACTS)
    for number in range(LANES):
        usual = killed(environment.crash_storage(f"rehearsal-{number}", number), start, Point(len(ACTS)))
    for calls in range(len(ACTS) + 1):
        yield Point(calls, None, dice.random() < share)
        if calls < len(ACTS):
            if environment.freezes:
                yield Point(calls, "unread", dice.random() < share)
            for _ in range(inside):
                yield Point(calls, dice.random() ** 2 * usual[calls], dice.random() < share)


def main(storage: str, folder: str, inside: str, share: str, seed: str, first: str = "0", last: str = "1000") -> None:
    """Examine every point from one to another."""
    start = time.time_ns() // 1000 - 600_000_000
    states = asyncio.run(snapshots(start))
    environment: CrashEnvironment = (
        RedisEnvironment(Path(folder)) if storage == "redis" else SQLiteEnvironment(Path(folder))
    )
    lanes: dict[int, int] = {}
    for number, point in enumerate(points(environment, start, int(inside), float(share), Random(seed))):
        if not int(first) <= point.calls <= int(last):
            continue
        if len(lanes) == LANES:
            del lanes[os.wait()[0]]
        free = min(set(range(LANES)) - set(lanes.values()))
        lanes[lane(environment.crash_storage(f"point-{number}", free), start, point, states)] = free
    for _ in range(len(lanes)):
        os.wait()
    environment.close()


if __name__ == "__main__":
    sys.stdout.flush()
    main(*sys.argv[1:])
