"""Short chaos: real processes are killed and frozen, and the audit finds nothing; the long one is `make chaos`."""

import sys
from pathlib import Path

import pytest

from tenure.clock import SystemClock
from tenure.options import Timing
from tenure.storage.urls import locate
from tenure_testing.chaos.postgres_storage import ChaosPostgres
from tenure_testing.chaos.run import Act, play
from tests.servers import Brand
from tests.storage.helpers import job

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for workers in /proc"),
]

SECONDS = 8.0


async def strike(storage: str, seed: int) -> None:
    act = Act(name="quick", storage=storage, timing=Timing.fast(), seconds=SECONDS, seed=seed)
    messages: list[str] = []

    outcome = await play(act, clock=SystemClock(), say=messages.append)

    # In such a short run a slow fault leaves no time for others of its kind; the long one has all kinds.
    checks = [check for check in outcome.finding.checks if check.name != "faults were committed"]
    wrong = {check.name: check.examples for check in checks if not check.holds}
    assert messages
    assert not wrong, (messages, outcome.folder, outcome.stderr)
    assert outcome.finding.jobs["completed"] > 0


async def test_on_sqlite_no_job_is_lost_or_silently_run_twice_under_chaos() -> None:
    # This seed begins with: a stopped host, a killed supervisor, a stopped worker, all killed in a commit.
    await strike("sqlite", 6)


@pytest.mark.usefixtures("start_redis")
async def test_on_redis_no_job_is_lost_or_silently_run_twice_under_chaos(brand: Brand) -> None:
    # This seed begins with: a killed supervisor, a killed server, a stopped worker, a frozen server.
    await strike(brand.name, 122)


@pytest.mark.postgres
async def test_on_postgres_a_damaged_index_is_found_and_conflicts_come_twice(tmp_path: Path) -> None:
    server = ChaosPostgres(tmp_path)
    await server.open()
    storage = locate(server.url(""))
    try:
        await storage.enqueue([job("indexed")])
        sound = await server.flaws()
        for _ in range(2):
            await server.sabotage(on=True)
            await server.sabotage(on=False)
        ready = f"UPDATE pg_index SET indisready = %s WHERE indexrelid = '{server.schema}.job_waiting'::regclass"
        await server.execute(ready, [False])
        await storage.enqueue([job("not indexed")])
        await server.execute(ready, [True])
        damaged = await server.flaws()
    finally:
        await storage.close()
        await server.close()

    assert sound == []
    assert [flaw.partition(":")[0] for flaw in damaged] == ["an index is damaged"]
