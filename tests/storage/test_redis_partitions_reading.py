"""Many partitions of a Cluster are read as one storage: no job and no event twice, none left out."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tenure.core.events import AnyEvent, EventsTrimmed, JobDeleted
from tenure.core.job import JobRecord, Ref
from tenure.core.lifecycle import State
from tenure.storage.protocol import EVENTS_END, DeleteJob, EventReader, Query
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tenure.testing import ManualClock
from tests.storage.helpers import job

pytestmark = pytest.mark.cluster

QUEUES = tuple(f"queue-{number}" for number in range(40))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def storage(cluster_url: str, clock: ManualClock) -> AsyncIterator[RedisStorage]:
    storage = RedisStorage(read(cluster_url), clock=clock)
    for number in range(4):
        clock.advance(1)
        await storage.enqueue([job(f"j{number}", queue) for queue in QUEUES])
    yield storage
    await storage.close()


async def listed(storage: RedisStorage, query: Query) -> list[JobRecord]:
    found: list[JobRecord] = []
    while True:
        page = await storage.find(query)
        assert len(page.jobs) == query.limit or page.next is None
        found += page.jobs
        if page.next is None:
            return found
        query = Query(queues=query.queues, states=query.states, limit=query.limit, after=page.next)


async def test_the_jobs_of_all_partitions_are_listed_newest_first_page_by_page(storage: RedisStorage) -> None:
    for query in (Query(limit=7), Query(states=(State.WAITING,), limit=33), Query(queues=QUEUES[:9], limit=5)):
        jobs = await listed(storage, query)

        assert [job.created for job in jobs] == sorted((job.created for job in jobs), reverse=True)
        assert sorted(job.ref for job in jobs) == sorted(
            Ref(queue, f"j{number}") for queue in query.queues or QUEUES for number in range(4)
        )


async def test_a_survey_counts_the_queues_of_all_partitions(storage: RedisStorage) -> None:
    whole, some = await storage.survey(), await storage.survey([QUEUES[3], QUEUES[1], "unheard-of"])

    assert [(queue.queue, queue.counts) for queue in whole.queues] == [
        (queue, {State.WAITING: 4}) for queue in sorted(QUEUES)
    ]
    assert [queue.queue for queue in some.queues] == [QUEUES[1], QUEUES[3], "unheard-of"]


async def deleted(storage: RedisStorage, clock: ManualClock, number: int) -> None:
    for queue in QUEUES:
        clock.advance(0.001)
        await storage.revise([DeleteJob(Ref(queue, f"j{number}"))])


def names(events: list[AnyEvent]) -> list[tuple[str, str]]:
    return [(event.queue, event.id) for event in events if isinstance(event, JobDeleted)]


async def test_the_log_of_all_partitions_is_in_order_and_resumes_at_any_event(
    storage: RedisStorage, clock: ManualClock
) -> None:
    await deleted(storage, clock, 0)
    end = (await storage.events(EVENTS_END)).next
    await deleted(storage, clock, 1)
    events: list[AnyEvent] = []
    cursor: str | None = None
    while page := (await storage.events(cursor, limit=7)).events:
        events += page
        cursor = page[-1].cursor
    expected = [(queue, f"j{number}") for number in range(2) for queue in QUEUES]

    assert names(events) == expected
    for at in (0, 20, 79):
        assert names(list((await storage.events(events[at].cursor)).events)) == expected[at + 1 :]
    assert names(list((await storage.events(end)).events)) == expected[40:]
    assert names(list((await storage.events(ref=Ref(QUEUES[5], "j1"))).events)) == [(QUEUES[5], "j1")]


async def test_a_named_reader_gets_each_event_once_with_many_callers(storage: RedisStorage, clock: ManualClock) -> None:
    await storage.events(reader=EventReader("app", "process-0"))
    await deleted(storage, clock, 2)
    heard: list[AnyEvent] = []

    async def listen(caller: str) -> None:
        reader, cursor, idle = EventReader("app", caller), None, 0
        while idle < 3:
            page = await storage.events(cursor, limit=7, reader=reader)
            heard.extend(page.events)
            cursor, idle = page.next, 0 if page.events else idle + 1

    await asyncio.gather(*(listen(f"process-{number}") for number in range(3)))
    await listen("process-0")

    assert not any(isinstance(event, EventsTrimmed) for event in heard)
    assert sorted(names(heard)) == sorted((queue, "j2") for queue in QUEUES)
