"""`tenure move`: moves jobs from one storage to another, and lists what it does not move."""

import asyncio
from pathlib import Path

import pytest

from tenure.core.job import Owner
from tenure.storage.protocol import ClaimRequest, RenewRequest, WorkerInfo
from tenure.storage.urls import locate
from tests.cli.terminal import Terminal

WORKER = Owner("00000000000a11ce", "alice", "host-1", 101)


@pytest.fixture
def other(there: Terminal, tmp_path: Path) -> str:
    """Return the address of a second, empty storage."""
    url = f"sqlite:///{tmp_path / 'other.db'}"
    assert there.run("migrate", "up", "--quiet", "--url", url).exit_code == 0
    return url


def test_move_counts_the_jobs_and_the_old_storage_refuses_later_calls(there: Terminal, other: str) -> None:
    done = there.enqueue("add", 1, 1, work=True)
    moved = {there.enqueue("add", number, 1) for number in range(3)} | {there.enqueue("add", 5, 5, delay="1h")}
    way = ("move", "--from", there.url, "--to", other)

    planned = there.read(*way, "--dry-run")
    assert there.read(*way, "--dry-run") == planned
    [queue] = planned["queues"]
    assert (planned["source"], planned["target"], planned["dry_run"]) == (there.url, other, True)
    assert (queue["waiting"], queue["delayed"], queue["moved"]) == (3, 1, 0)

    result = there.run(*way, "--plain")
    assert result.exit_code == 0, result.output
    assert result.stderr == "queue default: 4 of 4 jobs\n"
    assert f"moved 4 jobs and 0 schedules from {there.url} to {other}" in result.stdout
    assert {job["id"] for job in there.read("jobs", "list", "--url", other)["jobs"]} == moved
    assert [job["id"] for job in there.read("jobs", "list")["jobs"]] == [done]
    assert there.read(*way)["queues"] == []
    there.write("tasks.py", f"from tenure import Tenure\napp = Tenure({there.url!r})\n\n@app.task\ndef add(): ...\n")
    refused = there.refused("enqueue", "--app", "tasks:app", "tasks.add", code=1)
    assert f"were moved to {other}; use that storage from now on" in refused


@pytest.mark.thorough
def test_move_draws_a_bar_on_a_terminal_and_prints_lines_without_one(there: Terminal, other: str) -> None:
    for number in range(60):
        there.enqueue("add", number, 1)
    way = ("move", "--from", there.url, "--to", other)

    assert "of 60 jobs" not in there.drawn(*way)
    assert "queue default: 50 of 60 jobs" in there.drawn("move", "--from", other, "--to", there.url, "--plain")


def test_move_refuses_while_workers_live_and_exits_with_3_for_active_jobs(there: Terminal, other: str) -> None:
    there.enqueue("add", 1, 1)
    there.enqueue("add", 2, 2)

    async def work() -> None:
        storage = locate(there.url)
        await storage.open()
        await storage.renew(RenewRequest(WORKER, worker=WorkerInfo()))
        await storage.exchange(WORKER, order=ClaimRequest(("default",), 1))
        await storage.close()

    asyncio.run(work())
    way = ("move", "--from", there.url, "--to", other)
    assert "workers of" in there.refused(*way)
    assert "are running: alice; stop them first" in there.refused(*way, "--dry-run")
    result = there.run(*way, "--while-running")
    assert result.exit_code == 3, result.output
    assert "1 active jobs stay" in result.stdout
    assert len(there.read("jobs", "list", "--url", other)["jobs"]) == 1


def test_move_refuses_missing_and_equal_storages(there: Terminal, other: str, tmp_path: Path) -> None:
    missing = f"sqlite:///{tmp_path / 'missing.db'}"
    assert "no database exists" in there.refused("move", "--from", missing, "--to", other)
    (tmp_path / "link.db").symlink_to(tmp_path / "other.db")
    for same in (other, f"sqlite:///{tmp_path / 'link.db'}"):
        assert "the same storage" in there.refused("move", "--from", other, "--to", same)
    assert "belongs to one process" in there.refused("move", "--from", "memory://", "--to", other)
