"""Redis fails in every way it can, under real workers: none ends, nothing is lost, work continues at once."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure import Tenure
from tenure.core.events import JobReleased
from tenure.core.lifecycle import State
from tenure.errors import StorageFullError, StorageUnavailableError
from tenure_testing.proxy import Proxy
from tests.sentinels import RedisSentinels
from tests.servers import RedisServer
from tests.system.outage_scenario import BOUND, ROOM, SECOND, OutageScenario
from tests.system.worker_fleet import WorkerFleet

pytestmark = pytest.mark.system

MakeFleet = Callable[..., WorkerFleet]
StartRedis = Callable[..., RedisServer]

SAFE = {"appendonly": True, "appendfsync": "always"}
"""The settings under which Redis itself loses nothing that it has acknowledged."""

REAL = [pytest.mark.slow, pytest.mark.patient, pytest.mark.timeout(240)]
"""Tests that take minutes, because they use the real durations."""


async def resumed(scenario: OutageScenario) -> None:
    """Check that every worker runs jobs again as soon as was promised."""
    took = await scenario.recover()
    print(f"recovered in {sorted(round(each / 1_000) for each in took.values())} ms")
    assert max(took.values()) < BOUND + ROOM, took


# --- the server ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kill", [False, True], ids=["in order", "killed"])
async def test_a_restart_of_a_server_with_appendfsync_always_loses_nothing(
    make_fleet: MakeFleet, start_redis: StartRedis, kill: bool
) -> None:
    server = start_redis(**SAFE)
    scenario = OutageScenario(make_fleet(url=server.url))
    await scenario.begin()
    async with scenario.producing():
        for _ in range(2):
            await asyncio.to_thread(server.restart, kill=kill)
            await resumed(scenario)
    await scenario.finish()
    await scenario.check()


@pytest.mark.parametrize("bounded", [True, False])
async def test_waiting_for_a_result_continues_over_a_restart(start_redis: StartRedis, bounded: bool) -> None:
    server = start_redis(**SAFE)
    app = Tenure(server.url, name="waiting")

    @app.task
    async def work() -> str:
        return "done"

    async with app:
        job = await work.enqueue()
        waiting = asyncio.create_task(job.result(timeout=60 if bounded else None))
        assert not (await asyncio.wait({waiting}, timeout=0.5))[0]
        await asyncio.to_thread(server.stop)
        assert not (await asyncio.wait({waiting}, timeout=1.5))[0]
        await asyncio.to_thread(server.start)
        async with app.worker(burst=True) as worker:
            await worker.wait()
        assert await waiting == "done"


async def test_waiting_for_a_result_raises_when_the_server_stays_away(start_redis: StartRedis) -> None:
    server = start_redis(**SAFE)
    app = Tenure(server.url, name="waiting")

    @app.task
    async def work() -> None:
        pass

    async with app:
        job = await work.enqueue()
        await asyncio.to_thread(server.stop)
        with pytest.raises(StorageUnavailableError):
            await job.result(timeout=2)


async def test_a_restart_of_a_server_without_files_loses_its_jobs_and_no_worker(
    make_fleet: MakeFleet, start_redis: StartRedis
) -> None:
    server = start_redis()
    scenario = OutageScenario(make_fleet(url=server.url))
    await scenario.begin()
    await asyncio.to_thread(server.restart, kill=True)
    assert server.command("DBSIZE") < 100  # what workers have begun to write again, and nothing from before
    scenario.acknowledged.clear()
    await resumed(scenario)
    await scenario.finish()
    assert [worker.poll() for worker in scenario.workers] == [None, None], scenario.fleet.log()
    details = await scenario.fleet.details(scenario.acknowledged)
    assert {detail.job.state for detail in details} == {State.COMPLETED}


async def test_a_server_that_is_shut_down_for_a_while_is_waited_for(
    make_fleet: MakeFleet, start_redis: StartRedis
) -> None:
    server = start_redis(**SAFE)
    scenario = OutageScenario(make_fleet(url=server.url))
    await scenario.begin()
    async with scenario.producing():
        await asyncio.to_thread(server.stop)
        await asyncio.sleep(5)
        await asyncio.to_thread(server.start)
        await resumed(scenario)
    assert scenario.refused
    await scenario.finish()
    await scenario.check()


async def test_jobs_of_a_worker_that_died_in_an_outage_run_after_the_outage(
    make_fleet: MakeFleet, start_redis: StartRedis
) -> None:
    server = start_redis(**SAFE)
    # No reaper acts before the lease expires.
    here = make_fleet(url=server.url, lease="2m")
    here.worker("--processes", "2", "-c", "1")
    (ref,) = here.enqueue("wait_for_file", "go")

    async def begun() -> bool:
        return bool(here.lines())

    async def over() -> bool:
        return await here.count(State.COMPLETED) == 1

    await here.until(begun, within=30)
    await asyncio.to_thread(server.stop)
    os.kill(here.lines()[0].pid, signal.SIGKILL)
    await here.said("cannot recover the jobs", within=20)
    await asyncio.sleep(2)
    await asyncio.to_thread(Path(f"{here.handler_log}go").touch)
    await asyncio.to_thread(server.start)
    await here.until(over, within=20)

    (detail,) = await here.details([ref])
    assert [run.reason for run in detail.runs] == ["process_died", None]
    assert [line.run for line in here.lines() if line.what == "start"] == [1, 2]


async def test_a_server_frozen_for_ten_seconds_costs_no_job_its_run(
    make_fleet: MakeFleet, start_redis: StartRedis
) -> None:
    server = start_redis()
    scenario = OutageScenario(make_fleet(url=server.url), seconds=1)
    await scenario.begin()
    async with scenario.producing():
        await asyncio.to_thread(server.command, "DEBUG", "SLEEP", 10)
        await resumed(scenario)
    await scenario.finish()
    await scenario.check()


async def test_scripts_that_the_server_has_forgotten_are_loaded_again(
    make_fleet: MakeFleet, start_redis: StartRedis
) -> None:
    server = start_redis()
    scenario = OutageScenario(make_fleet(url=server.url))
    await scenario.begin()
    async with scenario.producing():
        for _ in range(20):
            server.command("SCRIPT", "FLUSH")
            await asyncio.sleep(0.05)
        await resumed(scenario)
    assert scenario.refused == []
    await scenario.finish()
    await scenario.check(stalls=False)


async def test_a_full_server_refuses_new_jobs_and_lets_the_old_ones_end(
    make_fleet: MakeFleet, start_redis: StartRedis
) -> None:
    server = start_redis()
    here = make_fleet(url=server.url, lease="4s", sweep="1s")
    scenario = OutageScenario(here, seconds=0.5)
    await scenario.begin(jobs=150)
    server.command("CONFIG", "SET", "maxmemory", 1)
    taken = len(scenario.acknowledged)
    with pytest.raises(StorageFullError):
        await scenario.nap.enqueue(0.1)
    full_at = here.storage_now()
    await scenario.finish()
    # Longer than any lease: for so long it was renewed, settled and swept without one free byte.
    await asyncio.sleep(6 - (here.storage_now() - full_at) / SECOND)
    assert here.run("info").returncode == 0  # new jobs are accepted
    assert len(scenario.acknowledged) == taken
    await scenario.check(stalls=False)
    server.command("CONFIG", "SET", "maxmemory", 0)
    await resumed(scenario)
    await scenario.finish()
    await scenario.check(stalls=False)


# --- the network -----------------------------------------------------------------------------------


async def partition(
    make_fleet: MakeFleet, server: RedisServer, faults: dict[str, object], seconds: float, **settings: str
) -> None:
    """Put workers and producer behind a network that fails for a while, and check that they recover."""
    with Proxy(server.port) as proxy:
        through = f"redis://{proxy.address}/0"
        scenario = OutageScenario(make_fleet(url=server.url, through=through, **settings), through=through)
        await scenario.begin()
        async with scenario.producing():
            proxy.set_faults(**faults)
            await asyncio.sleep(seconds)
            proxy.clean()
            await resumed(scenario)
        await scenario.finish()
        await scenario.check()
        await scenario.leave()


@pytest.mark.parametrize(
    "faults", [{"refuse": True}, {"hold": True}, {"swallow": True}], ids=["refused", "held", "swallowed"]
)
async def test_a_ten_second_outage_costs_only_this_many_runs(
    make_fleet: MakeFleet, start_redis: StartRedis, faults: dict[str, object]
) -> None:
    await partition(make_fleet, start_redis(), faults, 10)


@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.timeout(240)
async def test_a_two_minute_outage_costs_only_this_many_runs(make_fleet: MakeFleet, start_redis: StartRedis) -> None:
    await partition(make_fleet, start_redis(), {"refuse": True}, 120, lease="20s", sweep="2s", grace="3s")


async def test_work_continues_under_latency_resets_and_cut_replies(
    make_fleet: MakeFleet, start_redis: StartRedis
) -> None:
    server = start_redis()
    with Proxy(server.port) as proxy:
        through = f"redis://{proxy.address}/0"
        scenario = OutageScenario(make_fleet(url=server.url, through=through, lease="8s"), through=through)
        await scenario.begin()
        async with scenario.producing():
            for number in range(8):
                # Each way a quarter of a second; at times a reply is cut in the middle, or all connections break.
                proxy.set_faults(latency=0.25, cuts=2, cut_after=10 * number)
                await asyncio.sleep(1)
                proxy.reset()
                await asyncio.sleep(0.5)
            proxy.clean()
            await resumed(scenario)
        assert scenario.refused
        await scenario.finish()
        await scenario.check()
        await scenario.leave()


async def test_connections_that_are_silent_for_ever_are_given_up(
    make_fleet: MakeFleet, start_redis: StartRedis
) -> None:
    server = start_redis()
    with Proxy(server.port) as proxy:
        through = f"redis://{proxy.address}/0"
        scenario = OutageScenario(make_fleet(url=server.url, through=through, lease="8s"), through=through)
        await scenario.begin(jobs=400)
        async with scenario.producing():
            for _ in range(2):
                proxy.abandon()
                await resumed(scenario)
        await scenario.finish()
        await scenario.check()
        await scenario.leave()


# --- a failover ------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True], ids=["in order", "the master is lost"])
async def test_a_failover_loses_nothing_that_a_replica_has_confirmed(
    make_fleet: MakeFleet, start_sentinels: Callable[..., RedisSentinels], killed: bool
) -> None:
    # A write is confirmed by one replica: with two, the other may be the one that is promoted. So there is one, unless
    # that would be left alone and could have nothing confirmed.
    # With the usual 500 ms, a busy machine makes the Sentinels fail over a second time, while we measure.
    await fail_over(make_fleet, start_sentinels(replicas=2 if killed else 1, down_after=2_000), killed=killed)


@pytest.mark.valkey
async def test_a_failover_loses_nothing_that_a_replica_has_confirmed_on_disk(
    make_fleet: MakeFleet, start_sentinels: Callable[..., RedisSentinels]
) -> None:
    await fail_over(make_fleet, start_sentinels(**SAFE), killed=True)


async def fail_over(make_fleet: MakeFleet, servers: RedisSentinels, *, killed: bool) -> None:
    """Promote a replica in place of a master under work that replicas confirm."""
    scenario = OutageScenario(make_fleet(url=f"{servers.url}?durability=replicated", lease="4s", sweep="1s"))
    await scenario.begin()
    async with scenario.producing():
        await asyncio.to_thread(servers.lose if killed else servers.fail_over)
        await resumed(scenario)
    await scenario.finish()
    await scenario.check()


# --- what runs meanwhile ---------------------------------------------------------------------------


async def freeze(server: RedisServer, seconds: float) -> None:
    """Freeze a server for this long."""
    server.freeze()
    try:
        await asyncio.sleep(seconds)
    finally:
        server.thaw()


@pytest.mark.parametrize(
    ("timing", "seconds", "nap"),
    [
        ({"lease": "5s", "sweep": "500ms", "grace": "750ms"}, 15, 5),
        pytest.param({"lease": "20s", "sweep": "2s", "grace": "3s"}, 60, 20, marks=REAL),
    ],
    ids=["a quarter of it", "60 s"],
)
async def test_runs_that_continue_are_not_repeated_after_a_three_lease_freeze(
    make_fleet: MakeFleet, start_redis: StartRedis, timing: dict[str, str], seconds: float, nap: float
) -> None:
    server = start_redis()
    here = make_fleet(url=server.url, **timing)
    scenario = OutageScenario(here, seconds=nap)
    await scenario.produce(8)
    # Some runs end while no server answers, some continue beyond that.
    scenario.seconds = seconds + nap
    await scenario.begin(jobs=8, concurrency=8)
    await scenario.began(16)
    await freeze(server, seconds)
    await scenario.finish()
    await scenario.check(stalls=False)
    assert {line.run for line in scenario.starts()} == {1}
    assert len(scenario.starts()) == 16


@pytest.mark.parametrize(
    ("timing", "lease", "seconds"),
    [
        ({"lease": "5s", "sweep": "500ms", "grace": "750ms"}, 5, 15),
        pytest.param({"lease": "20s", "sweep": "2s", "grace": "3s"}, 20, 60, marks=REAL),
    ],
    ids=["a quarter of it", "60 s"],
)
async def test_runs_that_stop_end_before_their_lease_and_are_released(
    make_fleet: MakeFleet, start_redis: StartRedis, timing: dict[str, str], lease: float, seconds: float
) -> None:
    server = start_redis()
    here = make_fleet(url=server.url, **timing)
    scenario = OutageScenario(here, task="careful", seconds=2 * lease)
    await scenario.begin(jobs=8)
    await asyncio.sleep(0.5)
    frozen_at = here.storage_now()
    await freeze(server, seconds)
    thawed_at = here.storage_now()
    await scenario.finish()
    await scenario.check(stalls=False)
    stopped = [line for line in here.lines() if line.what == "stop"]
    assert {line.id for line in stopped} == {ref.id for ref in scenario.acknowledged}
    # The last renewal was before the freeze; what a busy machine adds comes out of the margin.
    after = [(line.at - frozen_at) / SECOND for line in stopped]
    assert min(after) > 0, after
    assert max(after) < lease, after
    released = [event for event in await here.events() if isinstance(event, JobReleased)]
    handed_back = {(event.id, event.run) for event in released if event.reason == "unreachable"}
    assert handed_back == {(line.id, 1) for line in stopped}
    # The call whose error said so may have taken effect after all, with a claim in it; no worker ran those jobs.
    assert {event.reason for event in released} <= {"unreachable", "prefetch"}
    for detail in await here.details(scenario.acknowledged):
        assert (detail.job.failures, detail.job.stalls) == (0, 0)
        again = [line for line in scenario.starts() if line.id == detail.job.id and line.run > 1]
        assert len(again) == 1
        assert again[0].at > thawed_at
