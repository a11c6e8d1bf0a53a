"""Reading in several steps gives the same as reading in one: listings, details, surveys and the event log of Redis."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random

import msgspec
import pytest

from tenure.clock import SECOND
from tenure.core.events import JobDeleted, QueuePaused, UnreadableEvent
from tenure.core.job import Policy, RecordedError, Redriving, Ref
from tenure.core.lifecycle import State
from tenure.core.outcome import Raised, Returned
from tenure.core.settlement import settlement
from tenure.storage.memory.model import Model
from tenure.storage.protocol import (
    ClaimRequest,
    DeleteJob,
    EventPage,
    LeaseRenewal,
    NewLogLine,
    Page,
    Query,
    RenewRequest,
    Settings,
    Target,
)
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tenure.testing import ManualClock
from tenure.testing.clock import START
from tests.servers import client_of, command
from tests.storage.helpers import job, owner

pytestmark = pytest.mark.redis

QUEUES = tuple(f"q{number:03}" for number in range(150))
BUSY = QUEUES[7]
ENDED = START + 4 * SECOND
"""When the second half of the ended jobs ended."""


@dataclass
class World:
    """A model and a Redis with the same history."""

    model: Model
    storage: RedisStorage
    url: str


@pytest.fixture
async def world(redis_url: str) -> AsyncIterator[World]:
    """More queues, jobs and events than one step reads."""
    clock = ManualClock()
    storage = RedisStorage(read(redis_url), clock=clock)
    model = Model(clock)
    for round_ in range(2):
        clock.advance(1)
        jobs = [job(f"j{round_}", queue, tags=("x",) if round_ else ()) for queue in QUEUES]
        jobs += [job(f"d{round_}", queue, delay=(60 + number % 7) * SECOND) for number, queue in enumerate(QUEUES)]
        assert await storage.enqueue(jobs) == model.enqueue(jobs)
    jobs = [
        job(
            f"b{number}",
            BUSY,
            task="rare" if number % 300 == 5 else "t",
            policy=Policy(result_ttl=60 * SECOND, redrive=Redriving()) if number % 9 == 0 else Policy(),
        )
        for number in range(700)
    ]
    assert await storage.enqueue(jobs) == model.enqueue(jobs)
    dice = Random(1)
    worker = owner(dice, name="w")
    for outcome in (Returned(b"1"), Raised(RecordedError("ValueError", "no"), final=True)):
        clock.advance(1)
        order = ClaimRequest((BUSY,), 100)
        won = await storage.exchange(worker, (), order)
        assert won == model.exchange(worker, (), order)
        settled = [settlement(lease, outcome, dice) for lease in won.leases]
        assert await storage.exchange(worker, settled) == model.exchange(worker, settled)
    yield World(model, storage, redis_url)
    await storage.close()


# ── find ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "query",
    [
        Query(),
        Query(limit=1),
        Query(limit=2000),
        Query(queues=QUEUES[5:120], limit=70),
        Query(queues=(BUSY, BUSY, "unheard-of"), limit=300),
        Query(states=(State.COMPLETED, State.FAILED, State.COMPLETED), limit=90),
        Query(states=(State.WAITING,), limit=400),
        Query(states=(State.EXPIRED,)),
        Query(tasks=("rare",)),
        Query(tasks=("rare", "other"), queues=(BUSY,), limit=1),
        Query(tags=("x",), limit=40),
        Query(reasons=("rejected",), limit=30),
        Query(id="j1", limit=60),
        Query(id="b3", states=(State.COMPLETED,)),
        Query(id="b3", states=(State.WAITING,)),
        Query(states=(State.COMPLETED, State.FAILED), ended_after=ENDED),
        Query(states=(State.COMPLETED, State.FAILED), ended_before=ENDED, limit=7),
        Query(states=(State.FAILED,), ended_after=ENDED - 1, ended_before=ENDED + 1, limit=30),
        Query(states=(State.FAILED, State.WAITING), ended_before=ENDED + 1, limit=30),
        Query(states=(State.EXPIRED, State.CANCELLED), ended_after=0, tags=("x",)),
        Query(ended_after=ENDED, queues=(BUSY,), tasks=("t",), limit=30),
        Query(states=(State.DELAYED,), order="due", limit=40),
        Query(states=(State.DELAYED,), order="due", queues=QUEUES[5:120], created_after=START + 2 * SECOND, limit=7),
    ],
    ids=repr,
)
async def test_a_listing_is_the_models_page_by_page(world: World, query: Query) -> None:
    mine = query
    while True:
        page, expected = await world.storage.find(mine), world.model.find(query)

        assert page.jobs == expected.jobs
        # Each numbers jobs in its own way.
        assert (page.next is None) == (expected.next is None)

        if page.next is None:
            break
        mine = msgspec.structs.replace(mine, after=page.next)
        query = msgspec.structs.replace(query, after=expected.next)


async def test_a_search_for_a_name_looks_at_hundreds_of_jobs_per_script(world: World) -> None:
    server, _, _ = world.url.partition("?")
    # The first call also stores the script.
    await world.storage.find(Query(id="unknown"))
    with client_of(server) as client:
        command(client, "CONFIG", "RESETSTAT")
        page = await world.storage.find(Query(tasks=("unknown",), queues=(BUSY,)))
        stats = command(client, "INFO", "commandstats")
    scripts = sum(int(stats[name]["calls"]) for name in stats if name.startswith("cmdstat_evalsha"))

    assert page == Page()
    # 150 would be too many to decode in one script, and 600 records can be searched.
    assert scripts == 2


# ── get ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_jobs_with_long_logs_are_read_whole(world: World) -> None:
    worker = owner(name="writer")
    order = ClaimRequest((BUSY,), 3)
    won = await world.storage.exchange(worker, (), order)
    assert won == world.model.exchange(worker, (), order)
    lines = tuple(NewLogLine("info", f"line {number}", {"n": str(number)}) for number in range(1000))
    beat = RenewRequest(worker, tuple(LeaseRenewal(lease.ref, lease.fence, log=lines) for lease in won.leases))
    assert await world.storage.renew(beat) == world.model.renew(beat)
    refs = [Ref(BUSY, f"b{number}") for number in range(400)] * 2

    assert await world.storage.get(refs) == world.model.get(refs)


# ── survey ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_survey_of_many_queues_is_the_models(world: World) -> None:
    for names in ((), QUEUES[3:140], (BUSY, "unheard-of"), (BUSY, BUSY)):
        assert await world.storage.survey(names) == world.model.survey(names)


# ── events ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_long_log_is_read_in_one_go_or_in_pages(world: World) -> None:
    target = Target("queue", BUSY)
    for number in range(1200):
        settings = Settings(paused=number % 2 == 0)
        assert await world.storage.tune(target, settings) == world.model.tune(target, settings)
    ref = Ref(BUSY, "b699")
    delete = [DeleteJob(ref)]
    assert await world.storage.revise(delete) == world.model.revise(delete)

    whole = await world.storage.events(limit=5000)
    assert whole == world.model.events(None, 5000)
    assert sum(isinstance(event, QueuePaused) for event in whole.events) == 600
    for limit in (1, 2, 100):
        of_one = await world.storage.events(limit=limit, ref=ref)
        assert of_one == world.model.events(None, limit, None, ref)
        assert isinstance(of_one.events[0], JobDeleted)
    assert await world.storage.events(limit=0) == world.model.events(None, 0)
    cursor: str | None = None
    pages: list[EventPage] = []
    while not pages or pages[-1].events:
        pages.append(await world.storage.events(cursor, limit=333))
        assert pages[-1] == world.model.events(cursor, 333)
        cursor = pages[-1].next


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (msgspec.msgpack.encode({"event": "from_the_future", "n": 1}), '{"event":"from_the_future","n":1}'),
        (msgspec.msgpack.encode({"event": "queue_paused"}), '{"event":"queue_paused"}'),
        (msgspec.msgpack.encode({"event": "enqueued", "due_at": 1e30}), '{"event":"enqueued","due_at":1e30}'),
        (
            msgspec.msgpack.encode({"event": "schedule_fired", "tick": 2**62}),
            '{"event":"schedule_fired","tick":4611686018427387904}',
        ),
        (msgspec.msgpack.encode(["no", "event"]), '["no","event"]'),
        (msgspec.msgpack.encode(7), "7"),
        (b"no msgpack at all", "no msgpack at all"),
        (b"\xff\xc1", "\ufffd\ufffd"),
        (b"", ""),
    ],
    ids=repr,
)
async def test_an_unreadable_event_is_shown_unchanged_and_blocks_no_other(
    redis_url: str, body: bytes, shown: str
) -> None:
    storage = RedisStorage(read(redis_url))
    server, _, namespace = redis_url.partition("?")
    await storage.tune(Target("queue", "before"), Settings(paused=True))
    with client_of(server) as client:
        stream = f"{{{namespace.rpartition('namespace=')[2]}}}:events"
        # A script adds its own fields to an event apart from the body, which a worker has encoded.
        added = msgspec.msgpack.encode({"by": "ops"})
        command(client, "XADD", stream, "0-*", "e", body, "t", 1_700_000_000_000_000, "o", added)
    await storage.tune(Target("queue", "after"), Settings(paused=True))
    before, unreadable, after = (await storage.events()).events
    await storage.close()

    assert (before.cursor, unreadable.cursor, after.cursor) == ("1", "2", "3")
    assert isinstance(unreadable, UnreadableEvent)
    assert unreadable.body == shown
    assert isinstance(after, QueuePaused)


async def test_a_damaged_log_is_read_to_its_end(redis_url: str) -> None:
    storage = RedisStorage(read(redis_url))
    server, _, namespace = redis_url.partition("?")
    for number in range(9):
        await storage.tune(Target("queue", "q"), Settings(paused=number % 2 == 0))
    with client_of(server) as client:
        stream = f"{{{namespace.rpartition('namespace=')[2]}}}:events"
        command(client, "XDEL", stream, "0-4", "0-9")
    whole = await storage.events()
    one_by_one = [(await storage.events(str(place), limit=1)).events for place in range(9)]
    of_one = await storage.events(ref=Ref("q", "unknown"))
    await storage.close()

    assert [event.cursor for event in whole.events] == ["1", "2", "3", "5", "6", "7", "8"]
    assert [event.cursor for events in one_by_one for event in events] == ["1", "2", "3", "5", "5", "6", "7", "8"]
    assert (whole.next, of_one.next, of_one.events) == ("9", "9", ())
