"""`tenure info`: what it shows with and without workers, which problems it reports, and live updates."""

import asyncio
import json
import signal
import time
from random import Random

import pytest

from tenure import Tenure
from tenure.clock import SECOND
from tenure.core.job import Owner
from tenure.core.outcome import Returned
from tenure.core.settlement import settlement
from tenure.storage.protocol import ClaimRequest, RenewRequest, SweepRequest, WorkerInfo
from tenure.storage.urls import locate
from tenure.testing.clock import ManualClock
from tests.cli.terminal import EVERYWHERE, Terminal
from tests.clusters import RedisCluster

KEYS = {
    "url",
    "now",
    "queues",
    "paused_tasks",
    "task_rates",
    "workers",
    "leaders",
    "swept_ago",
    "slow",
    "slow_capped",
    "complaints",
}


@EVERYWHERE
def test_it_works_with_zero_workers(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    seen = there.read("info")

    assert seen.keys() == KEYS
    assert seen["url"] == there.url
    assert seen["workers"] == []
    (queue,) = seen["queues"]
    assert queue.keys() == {"queue", "paused", "oldest_waiting", "parked", "discarded", "counts", "limits"}
    assert queue["queue"] == "default"
    assert queue["oldest_waiting"] > 0
    assert list(queue["counts"].items()) == [
        *(("delayed", 0), ("waiting", 1), ("active", 0), ("suspended", 0), ("completed", 0), ("failed", 0)),
        ("cancelled", 0),
        ("expired", 0),
    ]


def test_plain_lines_name_every_queue(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    there.enqueue("elsewhere")
    lines = there.run("info").stdout.splitlines()

    assert lines[1].split()[:3] == ["queue", "wait", "delay"]
    assert [line.split()[:2] for line in lines[2:4]] == [["default", "1"], ["elsewhere", "1"]]
    assert "leader: none, never swept" in lines


@EVERYWHERE
def test_check_exits_with_3_while_jobs_wait_without_a_worker(there: Terminal) -> None:
    there.enqueue("add", 1, 2)

    assert there.run("info").exit_code == 0
    assert there.read("info", "--check", code=3)["complaints"] == [
        "queue 'default': 1 job waits and no live worker serves it"
    ]

    there.enqueue("add", 1, 2, work=True)
    assert there.read("info", "--check")["complaints"] == []


@pytest.mark.system
def test_one_leader_of_all_partitions_is_named_once(there: Terminal, cluster_url: str) -> None:
    app = Tenure(cluster_url)

    async def lead() -> None:
        async with app:
            await app.storage.sweep(SweepRequest(Owner("one", "one", "host", 7), term=60 * SECOND))

    asyncio.run(lead())
    cells = len(there.read("info", "--url", cluster_url)["leaders"])
    lines = there.run("info", "--url", cluster_url).stdout.splitlines()

    assert cells > 1
    assert any(line.startswith(f"leader: one ({cells} partitions), last swept") for line in lines)


FAST = """
from tenure import Tenure, Timing

app = Tenure(timing=Timing.fast())
"""


# The first includes the start of the commands; on a busy machine that is half a second and more.
@pytest.mark.parametrize(("turned_ago", "stale"), [(7.5, False), (9.1, True)])
def test_check_assesses_a_worker_as_health_does(there: Terminal, turned_ago: float, stale: bool) -> None:
    there.write("quick.py", FAST)
    app = there.app()

    async def beat() -> None:
        async with app:
            info = WorkerInfo(queues=("default",), concurrency=1, turned_ago=round(turned_ago * SECOND))
            await app.storage.renew(RenewRequest(Owner("one", "idle", "host", 7), worker=info))

    # An idle loop turns every 5 s, which is nearly three beats of 2 s.
    asyncio.run(beat())
    health = there.read("health", "quick:app")
    info = there.read("--app", "quick:app", "info", "--check", code=3 if stale else 0)

    assert [worker["state"] == "stale" for worker in health["workers"]] == [stale]
    assert [worker["stale"] for worker in info["workers"]] == [stale]
    assert len(info["complaints"]) == len(health["complaints"]) == stale


@EVERYWHERE
def test_runs_far_beyond_the_typical_duration_are_listed(there: Terminal) -> None:
    ann = Owner("one", "ann", "host", 7)

    async def run(app: Tenure, clock: ManualClock, task: str, times: int, *, ends: bool) -> list[str]:
        for _ in range(times):
            await app.find_task(task).enqueue(*((1, 2) if task == "add" else ()))
        leases = (await app.storage.exchange(ann, (), ClaimRequest(("default",), times))).leases
        clock.advance(1)
        if ends:
            over = [settlement(lease, Returned(b"null"), Random(0)) for lease in leases]
            await app.storage.exchange(ann, over, None)
        return [lease.ref.id for lease in leases]

    async def prepare() -> list[str]:
        clock = ManualClock(time.time_ns() // 1000 - 330 * SECOND)
        async with there.app(storage=locate(there.url, clock=clock)) as app:
            await run(app, clock, "add", 20, ends=True)
            # These have no typical duration.
            await run(app, clock, "hang", 9, ends=True)
            slow = await run(app, clock, "add", 2, ends=False)
            await run(app, clock, "hang", 1, ends=False)
            clock.advance(300)
            await run(app, clock, "add", 1, ends=False)
            return slow

    ids = asyncio.run(prepare())
    slow = there.read("info")["slow"]

    assert slow[0].keys() == {"queue", "id", "task", "run", "owner", "ran", "usual"}
    assert [job["id"] for job in slow] == ids
    assert [(item["task"], item["run"], item["owner"], item["usual"]) for item in slow] == [("add", 1, ann.id, 1.0)] * 2
    assert all(300 < run["ran"] < 400 for run in slow)
    text = there.run("info").stdout
    assert f"job {ids[0]} (add) has run for 5." in text
    assert " m; 95 % of its task's runs take at most 1.0 s\n" in text
    assert text.count("see their stacks with tenure workers stack") == 1


@pytest.mark.system
def test_no_heading_is_broken_on_a_narrow_terminal(there: Terminal) -> None:
    there.enqueue("add", 1, 2, work=True)
    headings = [
        "queue",
        "wait",
        "delay",
        "active",
        "done",
        "fail",
        "cancel",
        "expire",
        "oldest",
        "park",
        "drop",
        "state",
    ]

    assert headings in [line.split() for line in there.drawn("info").splitlines()]
    assert headings in [line.split() for line in there.drawn("queues", "list").splitlines()]


@pytest.mark.system
def test_watch_continues_until_it_is_interrupted(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    with there.start("info", "-w", "--every", "20ms", "-o", "json") as process:
        assert process.stdout is not None
        first, second = json.loads(process.stdout.readline()), json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)

    assert process.returncode == 0
    assert first.keys() == KEYS
    assert second["now"] > first["now"]


@pytest.mark.system
def test_watch_prints_a_line_per_turn_without_a_terminal(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    with there.start("info", "-w", "--every", "20ms") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        process.terminate()
        process.communicate(timeout=30)

    assert process.returncode == 0
    assert all("default: 1 waiting | 0 workers alive, 0 stale | leader: none" in line for line in lines)


@pytest.mark.system
def test_warnings_of_a_storage_are_one_line_and_hidden_with_quiet(
    terminal: Terminal, redis_cluster: RedisCluster
) -> None:
    for node in redis_cluster.masters:
        node.command("CONFIG", "SET", "appendonly", "no", "save", "")
    loud = terminal.ended("info", "--url", redis_cluster.url)
    quiet = terminal.ended("info", "--url", redis_cluster.url, "--quiet")

    (line,) = loud.stderr.splitlines()
    assert line.startswith("warning: ")
    assert "keeps NOTHING on disk" in line
    assert all(node.address in line for node in redis_cluster.masters)
    assert (loud.returncode, quiet.returncode, quiet.stderr) == (0, 0, "")
