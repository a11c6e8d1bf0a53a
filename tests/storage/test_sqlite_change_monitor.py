"""Hints from other processes: each commit wakes the listeners of queues, but an owner only if a run must stop."""

import asyncio
from pathlib import Path
from random import Random

from tenure.core.job import Owner, Ref
from tenure.core.outcome import Returned
from tenure.core.settlement import settlement
from tenure.storage.notifications import Listener
from tenure.storage.protocol import CancelJob, ClaimRequest, owner_topic, queue_topic
from tenure.storage.sqlite import SQLiteStorage
from tenure.storage.sqlite.writer import UNCHECKED_BATCHES
from tenure_testing.conformance.notices import ready
from tests.storage.helpers import job

ANN, BEN = Owner("000000000000000a"), Owner("000000000000000b")


async def next_of(listener: Listener) -> None:
    """Wait for a hint. Other hints of the same commit have arrived then, too."""
    async with asyncio.timeout(30):
        await anext(listener)


async def test_a_cancel_by_another_process_wakes_only_the_owner_of_the_run(tmp_path: Path) -> None:
    # Two storages have two connections, so each sees the other as another process.
    here, there = SQLiteStorage(tmp_path / "jobs.db"), SQLiteStorage(tmp_path / "jobs.db")
    await here.enqueue([job("1"), job("2"), job("3")])
    leases = (await here.exchange(ANN, (), ClaimRequest(("q",), 3))).leases
    queue, ann, ben = (here.notices([topic]) for topic in (queue_topic("q"), owner_topic(ANN.id), owner_topic(BEN.id)))

    await there.enqueue([job("other", delay=3_600_000_000)])
    await next_of(queue)
    assert [await ready(ann), await ready(ben)] == [False, False]

    await there.revise([CancelJob(Ref("q", "1"))])
    await next_of(ann)
    assert [await ready(queue), await ready(ben)] == [True, False]

    # The owner gets no second hint of a cancellation, from this process or another, and none if one is settled.
    await here.revise([CancelJob(Ref("q", "2"))])
    await next_of(ann)
    await here.exchange(ANN, [settlement(leases[0], Returned(b""), Random(1))])
    await there.enqueue([job("another", delay=3_600_000_000)])
    await next_of(queue)
    while await ready(queue):
        pass
    assert [await ready(ann), await ready(ben)] == [False, False]

    await there.revise([CancelJob(Ref("q", "3"))])
    await next_of(ann)
    assert not await ready(ben)

    for listener in (queue, ann, ben):
        listener.close()
    await here.close()
    await there.close()


async def test_a_new_listener_gets_no_earlier_changes(tmp_path: Path) -> None:
    here, there = SQLiteStorage(tmp_path / "jobs.db"), SQLiteStorage(tmp_path / "jobs.db")
    await here.open()
    await there.enqueue([job("1")])
    await here.exchange(ANN)
    notices = here.notices([queue_topic("q")])
    await asyncio.sleep(0.1)
    before = await ready(notices)
    await there.enqueue([job("2")])
    await next_of(notices)
    notices.close()
    await here.close()
    await there.close()

    assert not before


async def test_a_busy_process_still_notices_changes_of_others(tmp_path: Path) -> None:
    here, there = SQLiteStorage(tmp_path / "jobs.db"), SQLiteStorage(tmp_path / "jobs.db")
    await here.open()
    notices = here.notices([queue_topic("other")])
    while await ready(notices):
        pass
    heard = asyncio.create_task(next_of(notices))
    await there.enqueue([job("1", queue="other")])
    written = 0
    while not heard.done():
        # These calls give no hint for the other queue, and leave no pause in which the process could check for changes.
        await here.enqueue([job(f"{written}")])
        written += 1
    await heard
    notices.close()
    await here.close()
    await there.close()

    assert written < 5 * UNCHECKED_BATCHES
