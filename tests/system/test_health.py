"""Health of real processes over real sockets: killed, blocked, cut off from their storage, several at one address."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.core.lifecycle import State
from tests.cli.probe import Response, probe
from tests.exposition import Family, read
from tests.system.worker_fleet import WorkerFleet

pytestmark = pytest.mark.system

MakeFleet = Callable[..., WorkerFleet]

TOKEN = "s3cret"
PATIENCE = 20.0
"""Seconds that a slow machine gets; not a bound of ours."""


async def served(fleet: WorkerFleet) -> int:
    """Return the port that a process of the fleet serves health on."""
    found: list[str] = []

    async def said() -> bool:
        found[:] = re.findall(r"health is served on http://127\.0\.0\.1:(\d+)", fleet.log())
        return bool(found)

    await fleet.until(said, within=PATIENCE)
    return int(found[-1])


async def ask(port: int, path: str = "/health/queues", **options: Any) -> Response:
    """Ask in a thread, so that nothing else here waits."""
    return await asyncio.to_thread(probe, port, path, **options)


def http(fleet: WorkerFleet, *command: str) -> "subprocess.Popen[bytes]":
    """Start a command that serves health on a free port."""
    return fleet.process("-m", "tenure", *command, "--http", "0")


async def state(port: int, pid: int) -> str:
    """Return the state of a worker."""
    workers = (await ask(port)).json["workers"]
    return next((str(worker["state"]) for worker in workers if worker["pid"] == pid), "unknown")


@pytest.mark.statement(47, 48)
async def test_a_killed_worker_is_stale_in_three_beats_and_its_queue_degraded(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(lease="2s")
    http(fleet, "serve", "fleet_app:app")
    port = await served(fleet)
    worker = fleet.alone()

    async def alive() -> bool:
        return await state(port, worker.pid) == "alive"

    async def stale() -> bool:
        return await state(port, worker.pid) == "stale"

    await fleet.until(alive, within=PATIENCE)
    worker.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    worker.wait()
    fleet.enqueue("quick", 1)
    await fleet.until(stale, within=PATIENCE)
    seen = (await ask(port)).json
    took = time.monotonic() - killed
    (record,) = seen["workers"]

    # Three beats of half a second; the age is the storage's own and does not depend on how busy this machine is.
    assert record["age"] > 1.5
    assert record["age"] < 0.5 + took + 1.0
    assert (seen["status"], seen["queues"]["default"]["waiting"]) == ("degraded", 1)


async def test_a_supervisor_serves_at_the_port_that_the_environment_names(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    fleet.env["TENURE_WORKER_HTTP"] = str(port)
    parent = fleet.worker("--log-level", "info")

    async def ready() -> bool:
        return await served(fleet) == port and (await ask(port, "/ready")).status == 200

    await fleet.until(ready, within=PATIENCE)
    parent.send_signal(signal.SIGTERM)

    assert await asyncio.to_thread(parent.wait, PATIENCE) == 0


@pytest.mark.slow
@pytest.mark.statement(47, 48)
async def test_a_silent_worker_counts_as_stale_after_15_seconds_by_default(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(lease="20s")
    http(fleet, "serve", "fleet_app:app")
    port = await served(fleet)
    worker = fleet.alone()
    ages: list[tuple[float, str]] = []

    async def alive() -> bool:
        return await state(port, worker.pid) == "alive"

    async def stale() -> bool:
        (record,) = (await ask(port)).json["workers"]
        ages.append((record["age"], record["state"]))
        return bool(record["state"] == "stale")

    await fleet.until(alive, within=PATIENCE)
    worker.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    await fleet.until(stale, within=PATIENCE)

    assert time.monotonic() - killed < 15 + 2
    assert all((age > 15) == (found == "stale") for age, found in ages)


@pytest.mark.statement(45, 51)
async def test_an_unreadable_storage_gives_503_within_two_seconds(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    fleet.enqueue("quick", 1)
    serving = http(fleet, "serve", "fleet_app:app")
    port = await served(fleet)

    async def well() -> bool:
        return (await ask(port)).status == 200

    await fleet.until(well, within=PATIENCE)
    # Another kind of file in its place, without a log file: even root cannot read that as a database.
    files = [*fleet.folder.glob("queue.db*")]
    for file in files:
        os.rename(file, file.with_name(f"kept {file.name}"))
    fleet.database.write_bytes(b"not a database, and long enough to be looked at as if it were one" * 100)
    began = time.monotonic()
    ill = await ask(port)
    took = time.monotonic() - began
    live = await ask(port, "/live")
    for file in files:
        os.rename(file.with_name(f"kept {file.name}"), file)
    await fleet.until(well, within=PATIENCE)
    serving.send_signal(signal.SIGTERM)

    assert took < 2.0
    assert (ill.status, ill.json["status"], ill.json["queues"]) == (503, "unreachable", {})
    assert (live.status, live.body) == (200, b"yes")
    assert await asyncio.to_thread(serving.wait, PATIENCE) == 0


@pytest.mark.statement(46)
async def test_requests_without_the_token_get_only_liveness_and_readiness(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    fleet.env["TENURE_HTTP_TOKEN"] = TOKEN
    http(fleet, "worker", "fleet_app:app")
    port = await served(fleet)

    async def ready() -> bool:
        return (await ask(port, "/ready")).status == 200

    # Until a child has reported the storage, the supervisor does not know of any jobs.
    await fleet.until(ready, within=PATIENCE)
    stranger, friend = await ask(port), await ask(port, token=TOKEN)

    assert (stranger.status, stranger.body) == (401, b'{"error":"unauthorized"}')
    assert (friend.status, friend.json["queues"].keys()) == (200, {"default"})
    assert (await ask(port, "/live")).status == 200


@pytest.mark.slow
@pytest.mark.statement(49, 51)
@pytest.mark.parametrize("options", [("--no-supervisor",), ()], ids=["alone", "supervised"])
async def test_a_blocked_worker_is_live_and_after_three_beats_not_ready(
    make_fleet: MakeFleet, options: tuple[str, ...]
) -> None:
    fleet = make_fleet(lease="2s")
    http(fleet, "worker", "fleet_app:app", *options)
    port = await served(fleet)

    async def ready() -> bool:
        return (await ask(port, "/ready")).body == b"yes"

    async def unready() -> bool:
        assert (await ask(port, "/live", within=2)).body == b"yes"
        return not await ready()

    async def stale() -> bool:
        return await state(port, pid) == "stale"

    await fleet.until(ready, within=PATIENCE)
    (pid,) = await fleet.pids()
    fleet.enqueue("block_loop", 12)
    await fleet.until(unready, within=PATIENCE)
    # It renews all the while; its claim loop does not turn.
    await fleet.until(stale, within=PATIENCE)
    (record,) = (await ask(port)).json["workers"]
    await fleet.until(ready, within=PATIENCE)

    assert record["seen_ago"] < 1.5 < record["turned_ago"]


@pytest.mark.statement(51)
async def test_a_worker_that_stops_is_not_ready_from_that_moment_on(make_fleet: MakeFleet) -> None:
    # Its record would show that with the next beat only: in 15 s.
    fleet = make_fleet(lease="60s")
    worker = http(fleet, "worker", "fleet_app:app")
    port = await served(fleet)
    fleet.enqueue("nap", 60)

    async def ready() -> bool:
        return (await ask(port, "/ready")).status == 200 and await fleet.count(State.ACTIVE) == 1

    async def unready() -> bool:
        return (await ask(port, "/ready")).status == 503

    await fleet.until(ready, within=PATIENCE)
    worker.send_signal(signal.SIGTERM)
    took = await fleet.until(unready, within=PATIENCE)
    live = await ask(port, "/live")
    worker.send_signal(signal.SIGTERM)

    assert took < 3
    assert live.status == 200
    assert await asyncio.to_thread(worker.wait, PATIENCE) == 0


@pytest.mark.statement(44, 46)
async def test_the_supervisor_serves_all_children_at_one_port_through_deaths(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    fleet.env["TENURE_HTTP_TOKEN"] = TOKEN
    parent = http(fleet, "worker", "fleet_app:app", "--processes", "2", "-c", "3")
    port = await served(fleet)

    async def metrics() -> dict[str, Family]:
        return read((await ask(port, "/metrics", token=TOKEN)).body)

    async def two() -> bool:
        return len(await fleet.pids()) == 2 and (await ask(port, "/ready")).status == 200

    async def all_counted() -> bool:
        found = await metrics()
        return found["tenure_jobs_total"].total("tenure_jobs_total", outcome="completed") == 40

    await fleet.until(two, within=PATIENCE)
    fleet.enqueue("quick", 1, times=40)
    await fleet.until(all_counted, within=PATIENCE)
    fleet.enqueue("kill_itself")
    unserved = 0

    async def replaced() -> bool:
        nonlocal unserved
        unserved += (await ask(port, "/live")).status != 200
        found = await metrics()
        return found["tenure_stalled_total"].total("tenure_stalled_total", reason="process_died") >= 1

    await fleet.until(replaced, within=PATIENCE)
    await fleet.until(two, within=PATIENCE)
    found = await metrics()
    strange = await ask(port, "/metrics")
    parent.send_signal(signal.SIGTERM)

    assert unserved == 0
    assert strange.status == 401
    # What dead children have counted is still included.
    assert found["tenure_jobs_total"].total("tenure_jobs_total", task="fleet_app.quick") == 40
    assert found["tenure_job_duration_seconds"].total("tenure_job_duration_seconds_count", task="fleet_app.quick") == 40
    assert await asyncio.to_thread(parent.wait, PATIENCE) == 0


async def test_a_supervisor_serves_the_figures_of_the_outbox(make_fleet: MakeFleet, tmp_path: Path) -> None:
    fleet = make_fleet()
    fleet.env |= {"TENURE_HTTP_TOKEN": TOKEN, "FLEET_OUTBOX": f"sqlite:///{tmp_path}/shop.db"}
    parent = http(fleet, "worker", "fleet_app:app", "--processes", "2")
    port = await served(fleet)

    async def counted() -> bool:
        answer = await ask(port, "/metrics", token=TOKEN)
        return answer.status == 200 and "tenure_outbox_calls" in read(answer.body)

    await fleet.until(counted, within=PATIENCE)
    found = read((await ask(port, "/metrics", token=TOKEN)).body)
    parent.send_signal(signal.SIGTERM)

    assert found["tenure_outbox_calls"].total("tenure_outbox_calls", state="waiting") == 0
    assert found["tenure_outbox_oldest_seconds"].total("tenure_outbox_oldest_seconds") == 0
    assert await asyncio.to_thread(parent.wait, PATIENCE) == 0


@pytest.mark.slow
@pytest.mark.statement(49, 51)
async def test_liveness_of_an_unsupervised_worker_fails_beyond_max_block(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(lease="2s", max_block="2s")
    http(fleet, "worker", "fleet_app:app", "--no-supervisor")
    port = await served(fleet)

    async def ready() -> bool:
        return (await ask(port, "/ready")).body == b"yes"

    async def dead() -> bool:
        return (await ask(port, "/live", within=2)).status == 503

    async def lives_again() -> bool:
        return not await dead()

    await fleet.until(ready, within=PATIENCE)
    fleet.enqueue("block_loop", 6)
    await fleet.until(dead, within=PATIENCE)
    why = await ask(port, "/live")
    await fleet.until(lives_again, within=PATIENCE)

    assert re.fullmatch(rb"no: its event loop has been blocked for \d+\.\d s, more than 2 s", why.body)


@pytest.mark.statement(44, 51)
async def test_a_reaper_serves_health_with_the_age_of_its_sweep(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    reaper = http(fleet, "reaper", "fleet_app:app")
    port = await served(fleet)

    async def swept() -> bool:
        return (await ask(port)).json["reaper"]["age"] is not None

    await fleet.until(swept, within=PATIENCE)
    seen = (await ask(port)).json
    words = [(await ask(port, path)).body for path in ("/live", "/ready")]
    reaper.send_signal(signal.SIGTERM)

    assert 0 <= seen["reaper"]["age"] < 60
    assert json.dumps(seen["workers"]) == "[]"
    assert words == [b"yes", b"yes"]
    assert await asyncio.to_thread(reaper.wait, PATIENCE) == 0


async def test_a_silent_connection_delays_neither_other_requests_nor_the_stop(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    serving = http(fleet, "serve")
    port = await served(fleet)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
    silent[0][1].write(b"GET /live HTTP/1.1\r\nhost: x\r\n")
    live = await ask(port, "/live")
    serving.send_signal(signal.SIGTERM)

    assert live.body == b"yes"
    assert await asyncio.to_thread(serving.wait, PATIENCE) == 0
    for _, writer in silent:
        writer.close()


@pytest.mark.statement(51)
async def test_silent_connections_starve_no_probe_and_are_closed(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    http(fleet, "serve")
    port = await served(fleet)
    began = time.monotonic()
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
    # A byte at intervals does not make a request either.
    drip = asyncio.create_task(dripping(silent[-1][1]))
    ends = [asyncio.create_task(reader.read()) for reader, _ in silent]
    live: list[int] = []
    while not all(end.done() for end in ends) and time.monotonic() - began < PATIENCE:
        live.append((await ask(port, "/live", within=2)).status)
    over = all(end.done() for end in ends)
    drip.cancel()
    for _, writer in silent:
        writer.close()
    heard = await asyncio.gather(*ends, return_exceptions=True)

    assert set(live) == {200}
    assert over
    # One that continues to send learns of it by a reset.
    assert [item for item in heard if item != b"" and not isinstance(item, ConnectionResetError)] == []


async def dripping(writer: asyncio.StreamWriter) -> None:
    """Send the head of a request without an end."""
    writer.write(b"GET /live HTTP/1.1\r\nhost: ")
    while True:
        writer.write(b"x")
        await asyncio.sleep(0.2)


async def test_a_connection_that_sends_more_requests_is_kept(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    http(fleet, "serve")
    port = await served(fleet)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers: list[bytes] = []
    # Two of them at once, as a client may.
    for _ in range(20):
        writer.write(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
        answers += [(await reader.readuntil(b"yes"))[:12] for _ in range(2)]
    writer.close()

    assert answers == [b"HTTP/1.1 200"] * 40
