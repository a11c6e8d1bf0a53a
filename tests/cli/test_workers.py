"""`tenure workers`: the states of workers, orders to them, and the stacks of their runs."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.job import Owner
from tenure.storage.protocol import ClaimRequest, LeaseRenewal, RenewRequest, WorkerInfo
from tests.cli.terminal import EVERYWHERE, Terminal

ANN = Owner("a1b2c3d4e5f60718", "host:7", "host", 7)
BOB = Owner("a1ffffffffffffff", "bob", "host", 8)
TRACE = 'Traceback (most recent call last):\n  File "tasks.py", line 3, in add\n    await nap()\n'
INFO = WorkerInfo(("default", "mail"), 10, 1, lag=250_000, memory=64 << 20)


def beat(there: Terminal, *beats: RenewRequest) -> None:
    """Send beats for workers."""
    app = there.app()

    async def go() -> None:
        async with app:
            for item in beats:
                await app.storage.renew(item)

    asyncio.run(go())


def running(there: Terminal, owner: Owner, *traces: str | None) -> list[str]:
    """Let a worker run a job for each of these traces; return the ids of the jobs, the first claimed first."""
    app = there.app()

    async def go() -> list[str]:
        async with app:
            for _ in traces:
                await app.find_task("add").enqueue(1, 2)
            leases = (await app.storage.exchange(owner, (), ClaimRequest(("default",), len(traces)))).leases
            renewals = [
                LeaseRenewal(lease.ref, lease.fence, trace=trace) for lease, trace in zip(leases, traces, strict=True)
            ]
            await app.storage.renew(RenewRequest(owner, tuple(renewals), INFO))
            return [lease.ref.id for lease in leases]

    return asyncio.run(go())


def orders(there: Terminal, owner: Owner) -> Sequence[str]:
    """Return the orders that a worker gets with its next beat."""
    app = there.app()

    async def go() -> Sequence[str]:
        async with app:
            return (await app.storage.renew(RenewRequest(owner, worker=INFO))).orders or ()

    return asyncio.run(go())


@EVERYWHERE
def test_a_list_shows_the_state_of_each_worker(there: Terminal) -> None:
    beat(
        there,
        RenewRequest(ANN, worker=INFO),
        RenewRequest(BOB, worker=structs.replace(INFO, quiet=True, lag=0, memory=0)),
    )
    ann, bob = there.read("workers", "list")

    assert ann.keys() == {
        *("owner", "name", "host", "pid", "queues", "concurrency", "active", "started", "seen_ago", "turned_ago"),
        *("state", "lag", "memory"),
    }
    assert (ann["owner"], ann["name"], ann["host"], ann["pid"]) == (ANN.id, "host:7", "host", 7)
    assert (ann["state"], ann["lag"], ann["memory"]) == ("alive", 0.25, 64 << 20)
    assert (bob["state"], bob["memory"]) == ("quiet", 0)

    header, first, second = there.run("workers", "list").stdout.splitlines()
    assert header.split() == [*("owner", "name", "host", "pid", "queues", "running", "seen", "state", "lag", "memory")]
    assert first.split()[:6] == [ANN.id, "host:7", "host", "7", "default,mail", "1/10"]
    assert first.endswith("alive  250 ms  64 MiB")
    assert second.split()[-4:] == ["quiet", "0", "ms", "-"]
    assert there.run("workers", "list", "--quiet").stdout.split() == [ANN.id, BOB.id]
    assert [worker["quiet"] for worker in there.read("info")["workers"]] == [False, True]


def test_a_stopping_or_silent_worker_is_shown_as_such(there: Terminal) -> None:
    stopping = structs.replace(INFO, stopping=True, quiet=True)
    beat(
        there,
        RenewRequest(ANN, worker=stopping),
        RenewRequest(BOB, worker=structs.replace(INFO, turned_ago=60 * SECOND, quiet=True)),
    )

    assert [worker["state"] for worker in there.read("workers", "list")] == ["stopping", "stale"]


def test_a_dead_worker_is_shown_as_dead_in_every_command(there: Terminal) -> None:
    app = there.app()

    async def one_dies() -> None:
        async with app:
            for owner in (ANN, BOB):
                await app.storage.renew(RenewRequest(owner, worker=INFO))
            await app.storage.reclaim(BOB.id, ANN)

    asyncio.run(one_dies())

    assert [worker["state"] for worker in there.read("workers", "list")] == ["alive", "died"]
    info = there.read("info")["workers"]
    assert [(worker["stale"], worker["died"]) for worker in info] == [(False, False), (True, True)]
    assert [line.split()[-1] for line in there.run("info").stdout.splitlines() if "default,mail" in line] == [
        "alive",
        "died",
    ]


def test_the_list_is_empty_without_workers(there: Terminal) -> None:
    there.enqueue("add", 1, 2)

    assert there.read("workers", "list") == []
    assert there.run("workers", "stack").stdout == "nothing runs\n"


@EVERYWHERE
def test_a_worker_can_be_made_quiet_and_resumed(there: Terminal) -> None:
    beat(there, RenewRequest(ANN, worker=INFO), RenewRequest(BOB, worker=INFO))

    done = there.run("workers", "quiet", "host:7")
    assert done.stdout == f"worker host:7 ({ANN.id}) was asked to claim no more jobs\n"
    assert (orders(there, ANN), orders(there, BOB)) == (("quiet",), ())

    assert there.read("workers", "quiet", "--undo", ANN.id) == [
        {"owner": ANN.id, "name": "host:7", "quiet": False, "stop": False, "concurrency": None}
    ]
    assert orders(there, ANN) == ()


def test_several_workers_can_be_stopped_with_one_command(there: Terminal) -> None:
    beat(there, RenewRequest(ANN, worker=INFO), RenewRequest(BOB, worker=INFO))

    assert [item["stop"] for item in there.read("workers", "stop", "7", "bob", "8")] == [True, True]
    assert (orders(there, ANN), orders(there, BOB)) == (("stop",), ("stop",))


@pytest.mark.parametrize("name", [ANN.id, ANN.id[:3], "host:7", "7"])
def test_a_worker_is_found_by_id_prefix_name_or_process(there: Terminal, name: str) -> None:
    beat(there, RenewRequest(ANN, worker=INFO), RenewRequest(BOB, worker=INFO))

    assert [item["owner"] for item in there.read("workers", "quiet", name)] == [ANN.id]


def test_an_unknown_or_ambiguous_worker_name_is_refused_without_effect(there: Terminal) -> None:
    beat(there, RenewRequest(ANN, worker=INFO), RenewRequest(BOB, worker=INFO))

    assert "no worker 'carol' exists; see tenure workers list" in there.refused(
        "workers", "stop", "bob", "carol", code=4
    )
    output = there.refused("workers", "stop", "a1")
    assert f"several workers ({ANN.id} (host:7), {BOB.id} (bob))" in output
    assert orders(there, BOB) == ()


@EVERYWHERE
def test_stack_shows_the_position_of_each_run_and_its_age(there: Terminal) -> None:
    known, young = running(there, ANN, TRACE, None)
    (other,) = running(there, BOB, TRACE)
    here, soon = there.read("workers", "stack", "host:7")

    assert here.keys() == {
        *("worker", "owner", "queue", "id", "task", "run", "fence", "started", "ran", "seen_ago", "trace")
    }
    assert (here["id"], here["worker"], here["owner"]) == (known, "host:7", ANN.id)
    assert (here["task"], here["run"], here["trace"]) == ("add", 1, TRACE)
    assert 0 <= here["seen_ago"] < 60
    assert 0 < here["ran"] < 60
    assert (soon["id"], soon["trace"]) == (young, None)

    text = there.run("workers", "stack", "host:7").stdout
    assert f"add {known} of queue default on host:7, run 1, for " in text
    assert " ago it was here:" in text
    assert '  File "tasks.py", line 3, in add' in text
    assert "unknown yet: the first report comes after one beat" in text
    assert other not in text
    shown = there.run("jobs", "show", known).stdout
    assert "where run 1 is, as of a beat of its worker\n" in shown
    assert '    File "tasks.py", line 3, in add' in shown
    assert "where run" not in there.run("jobs", "show", young).stdout
    assert [item["id"] for item in there.read("workers", "stack")] == [known, young, other]
    assert [run["id"] for run in there.read("workers", "stack", "--limit", "1")] == [known]


def test_a_worker_without_runs_has_no_stack(there: Terminal) -> None:
    beat(there, RenewRequest(BOB, worker=INFO))

    assert there.run("workers", "stack", "bob").stdout == "no runs\n"


@EVERYWHERE
def test_a_worker_can_be_paused_and_resumed_and_given_a_concurrency(there: Terminal) -> None:
    beat(there, RenewRequest(ANN, worker=INFO), RenewRequest(BOB, worker=INFO))

    assert there.run("workers", "pause", ANN.id).exit_code == 0
    assert (orders(there, ANN), orders(there, BOB)) == (("quiet",), ())
    assert there.run("workers", "resume", ANN.id).exit_code == 0
    assert there.read("workers", "concurrency", "3", BOB.id)[0]["concurrency"] == 3
    assert (orders(there, ANN), orders(there, BOB)) == ((), ("concurrency:3",))
    assert there.read("workers", "concurrency", "own", BOB.id)[0]["concurrency"] is None
    assert orders(there, BOB) == ()
    assert "NUMBER = 'few' must be a whole number" in there.refused("workers", "concurrency", "few", BOB.id)
    assert "concurrency = 0 must be 1 or more" in there.refused("workers", "concurrency", "0", BOB.id)
