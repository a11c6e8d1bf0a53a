"""A Redis is killed at many moments of a stream of calls: nothing answered is lost, and no script is half done.

It writes to its disk before it answers (`appendfsync always`): what else it can lose, docs/guarantee.md says.
`TENURE_SEED=7` chooses other moments.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from statistics import median

import pytest

from tenure.core.job import Ref
from tenure.errors import StorageUnavailableError
from tenure.testing import ManualClock
from tests.servers import RedisServer
from tests.system.crash_runner import finish, matching, snapshots
from tests.system.crash_script import ACTS, Play
from tests.system.crash_storages import RedisCrashStorage

pytestmark = [pytest.mark.system, pytest.mark.slow]

SEED = int(os.environ.get("TENURE_SEED", "0"))

TORN = 60
"""How many moments are checked at which the server was about to write."""

ROUNDS = 10
"""How many streams are cut short; in each the server is also killed between two calls, twice."""


def begun() -> int:
    return time.time_ns() // 1000 - 600_000_000


def place_of(server: RedisServer, name: str) -> RedisCrashStorage:
    return RedisCrashStorage(server.url, server.port, server.pid, name)


@pytest.mark.timeout(300)
async def test_a_half_written_command_has_no_effect_after_a_restart(start_redis: Callable[..., RedisServer]) -> None:
    print(f"TENURE_SEED={SEED}")
    server, dice, start = start_redis(appendonly=True, appendfsync="always"), Random(SEED), begun()
    states = await snapshots(start)
    crash_storage, clock = place_of(server, "torn"), ManualClock(start)
    play = Play(crash_storage.storage(clock), clock)
    await play.storage.open()
    (file,) = (server.folder / "appendonlydir").glob("*.incr.aof")
    sizes = [file.stat().st_size]
    for act in ACTS:
        clock.advance(act.rest)
        await act.call(play)
        sizes.append(file.stat().st_size)
    await play.storage.close()

    writing = [calls for calls in range(len(ACTS)) if sizes[calls + 1] > sizes[calls]]
    # Backwards, so that each step only has to cut off more of the file.
    for calls in sorted(dice.sample(writing, TORN), reverse=True):
        server.kill()
        os.truncate(file, dice.randrange(sizes[calls], sizes[calls + 1]))
        server.start()
        await matching(crash_storage, [(calls, states[calls])])
        crash_storage.prove_whole()


@pytest.mark.timeout(300)
async def test_a_server_may_be_killed_at_any_moment(
    start_redis: Callable[..., RedisServer], capsys: pytest.CaptureFixture[str]
) -> None:
    server, dice, start = start_redis(appendonly=True, appendfsync="always"), Random(SEED), begun()
    states = await snapshots(start)
    found = Counter[str]()
    for number in range(ROUNDS):
        last = dice.randrange(len(ACTS))
        between = dice.sample(range(last), min(last, 2))
        crash_storage = place_of(server, f"killed-{number}")
        where = f"TENURE_SEED={SEED}, round {number}, at {ACTS[last].name!r}"
        print(where)
        answered = await killed_at(server, crash_storage, ManualClock(start), last, between, dice.random())
        server.start()
        candidates = [last + 1] if answered else [last, last + 1]
        state = await matching(crash_storage, [(calls, states[calls]) for calls in candidates])
        crash_storage.prove_whole()
        refs: set[Ref] = {job.ref for job in states[state].seen[0]}
        await finish(crash_storage, refs)
        crash_storage.prove_whole()
        found["answered" if answered else "done" if state > last else "undone"] += 1

    with capsys.disabled():
        print(f"\n{ROUNDS} streams that a server's death cut short (TENURE_SEED={SEED}): {dict(found)}")
    assert len(found) >= 2, found  # otherwise it is always killed too early or too late, and proves little


async def killed_at(
    server: RedisServer,
    crash_storage: RedisCrashStorage,
    clock: ManualClock,
    last: int,
    between: list[int],
    part: float,
) -> bool:
    """Run the script up to a call, within which the server is killed; return whether it was answered.

    `part`: the part of the time of a usual call after which it is killed. Between two calls the server is killed and
    restarted; the storage continues with what it has.
    """
    play = Play(crash_storage.storage(clock), clock)
    await play.storage.open()
    took = [0.0005]
    for number, act in enumerate(ACTS[: last + 1]):
        if number in between:
            await asyncio.to_thread(server.restart, kill=True)
        clock.advance(act.rest)
        if number < last:
            began = time.perf_counter()
            await act.call(play)
            took.append(time.perf_counter() - began)
            continue
        blow = asyncio.get_running_loop().run_in_executor(None, strike, server, part * median(took))
        try:
            await act.call(play)
        except StorageUnavailableError:
            return False
        finally:
            await blow
            await play.storage.close()
    return True


def strike(server: RedisServer, after: float) -> None:
    time.sleep(after)
    server.kill()
