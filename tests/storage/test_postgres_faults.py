"""PostgreSQL fails in the middle of a call: nothing is lost or done twice."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from random import Random
from urllib.parse import urlsplit

import psycopg
import pytest

from tenure.core.job import Owner, Ref
from tenure.core.lane import Lane
from tenure.core.lifecycle import State
from tenure.errors import StorageUnavailableError
from tenure.storage.postgres.address import read
from tenure.storage.postgres.connection import IDLE
from tenure.storage.postgres.storage import PostgresStorage
from tenure.storage.protocol import ClaimRequest, ExchangeResult, Query, Settings, Target
from tenure.storage.sql import exchange
from tenure.storage.sql.transaction import Transaction
from tenure_testing.conformance.helpers import ALICE, BOB, QUEUE, new_job, new_jobs, settled
from tenure_testing.proxy import Proxy
from tests.postgres_servers import PostgresServer
from tests.storage.helpers import child

pytestmark = pytest.mark.postgres

ROOM = 20.0
"""Seconds that a slow machine may add to a wait."""


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    port = urlsplit(postgres_url).port
    assert port is not None
    with Proxy(port) as proxy:
        yield proxy


@pytest.fixture
def proxied(postgres_url: str, proxy: Proxy) -> str:
    """Return the test's address through the proxy."""
    host = urlsplit(postgres_url).netloc.rpartition("@")[2]
    return postgres_url.replace(f"@{host}/", f"@{proxy.address}/")


def terminate(url: str, *, application: str = "tenure") -> int:
    """End the backends of all storages; return how many there were."""
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        rows = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = %s AND datname = current_database()",
            [application],
        ).fetchall()
    return len(rows)


async def test_a_connection_lost_in_a_transaction_repeats_it(proxied: str, proxy: Proxy) -> None:
    storage = PostgresStorage(read(proxied))
    await storage.enqueue([new_job("first")])
    tries: list[int] = []

    def run(tx: Transaction) -> str:
        tx.run("tune.set", {"kind": "queue", "name": "q", "body": "{}"})
        tries.append(len(tries))
        if len(tries) == 1:
            proxy.reset()
        return "done"

    assert await storage.flow.submit(run) == "done"
    assert len(tries) == 2
    await storage.close()


async def test_a_commit_whose_answer_is_lost_is_not_repeated(proxied: str, proxy: Proxy) -> None:
    storage = PostgresStorage(read(proxied))
    await storage.enqueue([new_job("first")])
    tries: list[int] = []

    def run(tx: Transaction) -> str:
        tries.append(tx.run("exchange.delete_slot", {"queue": "q", "key": "k", "id": "i"}))
        tx.run("tune.set", {"kind": "queue", "name": "q", "body": '{"paused":true}'})
        # The next answer of the server is that of the commit.
        proxy.set_faults(cuts=1)
        return "done"

    assert await storage.flow.submit(run) == "done"
    assert len(tries) == 1
    assert [one.queue for one in (await storage.survey()).queues if one.paused] == ["q"]
    await storage.close()


async def test_a_claim_whose_answer_is_lost_gives_out_its_jobs(proxied: str, proxy: Proxy) -> None:
    storage = PostgresStorage(read(proxied))
    await storage.enqueue(new_jobs(3))
    order = ClaimRequest((QUEUE,), 2, lane=Lane(0, 1))

    def claim(tx: Transaction) -> ExchangeResult:
        answer = exchange.exchange(tx, ALICE, (), order)
        tx.flush()
        # The next answer of the server is that of the commit.
        proxy.set_faults(cuts=1)
        return answer

    answer = await storage.flow.submit(claim)
    again = await storage.exchange(ALICE, (), order)
    rest = await storage.exchange(BOB, (), ClaimRequest((QUEUE,), 3))

    assert [lease.ref.id for lease in answer.leases] == ["job-0000", "job-0001"]
    assert again.seen
    assert [lease.ref.id for lease in rest.leases] == ["job-0002"]
    await storage.close()


async def test_an_unreachable_server_is_reported_and_used_again_later(proxied: str, proxy: Proxy) -> None:
    storage = PostgresStorage(read(proxied))
    await storage.enqueue([new_job("first")])
    proxy.set_faults(refuse=True)
    with pytest.raises(StorageUnavailableError, match="cannot be reached") as failed:
        await storage.enqueue([new_job("second")])
    with pytest.raises(StorageUnavailableError, match="cannot be reached"):
        await storage.get([Ref(QUEUE, "first")])
    proxy.clean()
    await storage.enqueue([new_job("third")])

    assert str(urlsplit(proxied).password) not in str(failed.value)
    assert {job.id for job in (await storage.find(Query())).jobs} == {"first", "third"}
    await storage.close()


async def test_terminated_backends_under_load_lose_and_repeat_nothing(postgres_url: str) -> None:
    storages = [PostgresStorage(read(postgres_url)) for _ in range(2)]
    # On a slow machine the schema takes longer to create than the connections live.
    for storage in storages:
        await storage.open()
    dice, stop, ended = Random(7), asyncio.Event(), 0
    done: list[Ref] = []
    made: list[Ref] = []

    async def produce() -> None:
        for number in range(120):
            job = new_job(f"job-{number}")
            await storages[0].enqueue([job])
            made.append(job.ref)
        stop.set()

    async def consume(owner: Owner, storage: PostgresStorage) -> None:
        while True:
            last = stop.is_set()
            leases = (await storage.exchange(owner, (), ClaimRequest((QUEUE,), 4))).leases
            verdicts = (await storage.exchange(owner, [settled(lease) for lease in leases])).verdicts
            done.extend(one.ref for one in verdicts if one.verdict == "done")
            if last and not leases:
                return

    async def disturb() -> None:
        nonlocal ended
        while not stop.is_set():
            await asyncio.sleep(0.05 + dice.random() / 5)
            ended += await asyncio.to_thread(terminate, postgres_url)

    async with asyncio.timeout(100):
        await asyncio.gather(produce(), consume(ALICE, storages[0]), consume(BOB, storages[1]), disturb())
    jobs = (await storages[0].find(Query(limit=1000))).jobs
    findings = await storages[0].examine()
    for storage in storages:
        await storage.close()

    assert ended > 5
    assert sorted(done) == sorted(made)
    assert {job.ref for job in jobs} == set(made)
    assert {job.state for job in jobs} == {State.COMPLETED}
    assert {job.starts for job in jobs} == {1}
    assert [finding for finding in findings if finding.level == "error"] == []


FROZEN = """
import asyncio, sys
from tenure.storage.postgres.address import read
from tenure.storage.postgres.storage import PostgresStorage

async def main():
    storage, tries = PostgresStorage(read(sys.argv[1])), []
    await storage.open()

    def hold(tx):
        tx.run("tune.set", {"kind": "queue", "name": "frozen", "body": '{"paused":true}'})
        tries.append(tx)
        if len(tries) == 1:
            print("holds the gate", flush=True)
            sys.stdin.readline()

    await storage.flow.submit(hold)
    print(f"committed in try {len(tries)}", flush=True)
    await storage.close()

asyncio.run(main())
"""


async def test_a_frozen_process_holds_the_gate_for_a_moment_only(postgres_url: str) -> None:
    storage = PostgresStorage(read(postgres_url))
    await storage.open()
    with child(FROZEN, postgres_url) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "holds the gate\n"
        process.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        # Reads need no gate.
        assert await storage.get([Ref(QUEUE, "first")]) == [None]
        await storage.enqueue([new_job("first")])
        waited = time.monotonic() - begun
        unpaused = await storage.survey(["frozen"])
        process.stdin.write("go on\n")
        process.stdin.flush()
        process.send_signal(signal.SIGCONT)
        # The server has ended its transaction, so it runs the operation again.
        said = process.stdout.readline()
    paused = await storage.survey(["frozen"])
    await storage.close()

    assert waited < IDLE / 1000 + ROOM
    assert said == "committed in try 2\n"
    assert [one.paused for one in (*unpaused.queues, *paused.queues)] == [False, True]


CLAIMS = """
import asyncio, sys
from tenure.core.job import Owner
from tenure.storage.postgres.address import read
from tenure.storage.postgres.storage import PostgresStorage
from tenure.storage.protocol import ClaimRequest

async def main():
    storage, owner = PostgresStorage(read(sys.argv[1])), Owner(sys.argv[2] * 16)
    await storage.open()
    print("open", flush=True)
    sys.stdin.readline()
    while leases := (await storage.exchange(owner, (), ClaimRequest(("default",), 2))).leases:
        print(*(lease.ref.id for lease in leases), flush=True)
    await storage.close()

asyncio.run(main())
"""


async def test_two_processes_claim_each_job_once(postgres_url: str) -> None:
    storage = PostgresStorage(read(postgres_url))
    await storage.enqueue(new_jobs(60))
    await storage.close()
    with child(CLAIMS, postgres_url, "a") as first, child(CLAIMS, postgres_url, "b") as second:
        pipes = [(one.stdin, one.stdout) for one in (first, second)]
        for _, output in pipes:
            assert output is not None
            assert output.readline() == "open\n"
        for pipe, _ in pipes:
            assert pipe is not None
            pipe.write("go\n")
            pipe.flush()
        taken = [output.read().split() for _, output in pipes if output is not None]

    assert all(taken)
    assert sorted([*taken[0], *taken[1]]) == [job.id for job in new_jobs(60)]


def test_a_forked_child_waits_for_no_thread_of_its_parent(postgres_url: str) -> None:
    storage = PostgresStorage(read(postgres_url))
    asyncio.run(storage.enqueue([new_job("parent")]))
    # A thread of the parent is in the middle of a transaction.
    with storage.claims.turns:
        child = os.fork()
        if not child:
            signal.alarm(20)
            asyncio.run(storage.enqueue([new_job("child")]))
            os._exit(0)
        _, status = os.waitpid(child, 0)
    jobs = asyncio.run(storage.find(Query())).jobs
    asyncio.run(storage.close())

    assert status == 0
    assert {job.id for job in jobs} == {"parent", "child"}


async def test_a_held_gate_delays_writes_but_no_reads(postgres_url: str) -> None:
    storage = PostgresStorage(read(postgres_url))
    await storage.enqueue([new_job("first")])
    with psycopg.connect(postgres_url.partition("?")[0]) as holder:
        holder.execute("SELECT pg_advisory_xact_lock(%s)", [read(postgres_url).gate])
        write = asyncio.ensure_future(storage.enqueue([new_job("second")]))
        (found,) = await storage.get([Ref(QUEUE, "first")])
        waits = not write.done()
        holder.rollback()
    await write
    await storage.close()

    assert found is not None
    assert waits


async def test_a_restarted_server_is_used_again(postgres_server: PostgresServer) -> None:
    storage = PostgresStorage(read(f"{postgres_server.url}?schema=jobs"))
    await storage.enqueue([new_job("first")])
    postgres_server.stop("immediate")
    write = asyncio.ensure_future(storage.enqueue([new_job("second")]))
    await asyncio.to_thread(postgres_server.start)
    await write

    assert {job.id for job in (await storage.find(Query())).jobs} == {"first", "second"}
    await storage.close()


async def test_jobs_run_through_pgbouncer_in_transaction_mode(pgbouncer_url: str) -> None:
    storages = [PostgresStorage(read(pgbouncer_url + "&listen=off")) for _ in range(3)]
    await storages[0].enqueue(new_jobs(20))
    await storages[1].tune(Target("queue", "other"), Settings(paused=True))
    for storage, owner in ((storages[1], ALICE), (storages[2], BOB)):
        leases = (await storage.exchange(owner, (), ClaimRequest((QUEUE,), 10))).leases
        answer = await storage.exchange(owner, [settled(lease) for lease in leases])
        assert [one.verdict for one in answer.verdicts] == ["done"] * 10
    (queue,) = (await storages[0].survey([QUEUE])).queues
    for storage in storages:
        await storage.close()

    assert queue.counts[State.COMPLETED] == 20
