"""An act is written into the audit log before it happens, and its verdict after it."""

import asyncio
import logging
from pathlib import Path

import pytest

from tenure.errors import JobNotFoundError, StorageUnavailableError, UsageError
from tenure.ops.audit import ActsView, acts_view, audited
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import ActsQuery, Storage
from tenure.storage.sqlite.storage import SQLiteStorage


async def listed(storage: Storage) -> ActsView:
    return await acts_view(storage, ActsQuery())


async def test_an_act_is_in_the_log_while_it_is_under_way() -> None:
    storage = MemoryStorage()
    async with audited(
        storage, actor="ann", role="admin", via="api", action="dead.purge", target="mail", filter="task:a", reason="old"
    ) as act:
        [asked] = (await listed(storage)).acts
        act.verdict, act.count = "changed", 3
    [done] = (await listed(storage)).acts

    assert (asked.actor, asked.role, asked.via, asked.action) == ("ann", "admin", "api", "dead.purge")
    assert (asked.target, asked.filter, asked.reason) == ("mail", "task:a", "old")
    assert (asked.done, asked.verdict, asked.count) == (None, None, None)
    assert (done.id, done.verdict, done.count) == (asked.id, "changed", 3)
    assert done.done is not None
    assert asked.asked <= done.done


async def test_an_act_without_a_verdict_of_its_own_is_done() -> None:
    storage = MemoryStorage()
    async with audited(storage, actor="ann", role="operate", via="api", action="jobs.cancel", target="a/1", count=1):
        pass
    [act] = (await listed(storage)).acts

    assert (act.verdict, act.count) == ("done", 1)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (JobNotFoundError("1", "no job 1"), "failed: no job 1"),
        (ValueError(), "failed: ValueError"),
        (StorageUnavailableError("no answer"), "unknown: no answer"),
    ],
)
async def test_an_error_is_the_verdict_and_is_raised_again(error: Exception, verdict: str) -> None:
    storage = MemoryStorage()
    with pytest.raises(type(error)) as raised:
        async with audited(storage, actor="ann", role="admin", via="cli", action="jobs.delete", target="mail/1"):
            raise error
    [act] = (await listed(storage)).acts

    assert raised.value is error
    assert act.verdict == verdict


async def test_an_act_that_cannot_be_written_does_not_happen(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "queue.db")
    await storage.open()
    await storage.close()
    happened = False
    with pytest.raises(StorageUnavailableError):
        async with audited(storage, actor="ann", role="admin", via="api", action="queues.pause", target="mail"):
            happened = True

    assert not happened


async def test_an_act_whose_end_cannot_be_written_stays_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = SQLiteStorage(tmp_path / "queue.db")
    with caplog.at_level(logging.WARNING, "tenure.audit"):
        async with audited(storage, actor="ann", role="admin", via="api", action="queues.pause", target="mail"):
            await storage.close()
    await storage.open()
    [act] = (await listed(storage)).acts
    await storage.close()

    assert (act.done, act.verdict) == (None, None)
    assert "queues.pause of mail" in caplog.text


async def test_an_act_that_is_cancelled_stays_unknown() -> None:
    storage = MemoryStorage()
    begun = asyncio.Event()

    async def act_for_ever() -> None:
        async with audited(storage, actor="ann", role="admin", via="api", action="queues.pause", target="mail"):
            begun.set()
            await asyncio.Event().wait()

    acting = asyncio.create_task(act_for_ever())
    await begun.wait()
    acting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acting
    [act] = (await listed(storage)).acts

    assert (act.done, act.verdict) == (None, None)


async def test_hostile_texts_do_not_prevent_an_act() -> None:
    storage = MemoryStorage()
    with pytest.raises(UsageError, match="x"):
        async with audited(
            storage, actor="a\0\ud800", role="admin", via="api", action="jobs.cancel", target="t" * 9_000
        ):
            raise UsageError("x\0" * 9_000)
    [act] = (await listed(storage)).acts

    assert (act.actor, len(act.target), len(act.verdict or "")) == ("a??", 500, 500)


async def test_the_text_of_a_foreign_error_is_not_recorded() -> None:
    storage = MemoryStorage()
    with pytest.raises(ValueError, match="hunter2"):
        async with audited(storage, actor="ann", role="admin", via="api", action="jobs.cancel", target="mail/1"):
            raise ValueError("password=hunter2")
    [act] = (await listed(storage)).acts

    assert act.verdict == "failed: ValueError"
