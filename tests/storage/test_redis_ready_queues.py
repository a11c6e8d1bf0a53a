"""The cost of a claim over many queues on Redis: few more commands than over one, for any content of the others."""

from collections.abc import AsyncIterator, Sequence

import pytest

from tenure.clock import SECOND
from tenure.core.job import NewJob, Ref
from tenure.storage.protocol import (
    PLACE_LIMIT,
    CancelJob,
    ClaimRequest,
    DeleteJob,
    Settings,
    Storage,
    SweepRequest,
    Target,
)
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tenure.testing import ManualClock
from tenure_testing.conformance.helpers import ALICE, QUEUE, new_job
from tenure_testing.conformance.unknown_tasks import park_under_many
from tests.redis_consistency import inconsistencies
from tests.servers import client_of, command

pytestmark = pytest.mark.redis

QUEUES = tuple(f"queue-{number}" for number in range(200))

A_SEARCH = 17
"""The most commands that it takes to find the first of 200 queues that has a job: eight to find the range in growing
steps, seven to halve that range, and two for the rest."""

A_LOOK = 4
"""How many commands one look saves that shows for a few queues that nothing delays their jobs."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def storage(redis_url: str, clock: ManualClock) -> AsyncIterator[Storage]:
    storage = RedisStorage(read(redis_url), clock=clock)
    await storage.open()
    yield storage
    with client_of(redis_url.partition("?")[0]) as client:
        assert inconsistencies(client, read(redis_url).bases[0]) == []
    await storage.close()


async def commands(
    url: str, storage: Storage, queues: Sequence[str], *, room: int, tasks: dict[str, int] | None = None
) -> int:
    """Return how many commands a claim calls."""
    with client_of(url.partition("?")[0]) as client:
        command(client, "CONFIG", "RESETSTAT")
        await storage.exchange(ALICE, (), ClaimRequest(tuple(queues), room, tasks=tasks))
        info: dict[str, dict[str, int]] = command(client, "INFO", "commandstats")
    return sum(stats["calls"] for name, stats in info.items() if name.partition("_")[2] not in ("evalsha", "info"))


@pytest.mark.parametrize("filled", [1, 2, 57, 128, 200])
async def test_each_queue_without_jobs_costs_a_claim_one_cheap_check(
    redis_url: str, storage: Storage, filled: int
) -> None:
    await storage.enqueue([new_job(f"{number}", queue=QUEUES[filled - 1]) for number in range(20)])
    alone = await commands(redis_url, storage, QUEUES[filled - 1 : filled], room=3)
    among_all = await commands(redis_url, storage, QUEUES, room=3)

    assert among_all <= alone + A_LOOK + A_SEARCH


async def test_queues_beyond_the_room_of_a_claim_cost_no_commands(redis_url: str, storage: Storage) -> None:
    await storage.enqueue([new_job(f"{number}", queue=queue) for queue in QUEUES for number in range(5)])
    alone = await commands(redis_url, storage, QUEUES[:1], room=2)
    among_all = await commands(redis_url, storage, QUEUES, room=2)

    assert among_all <= alone + A_LOOK + 2


async def test_queues_whose_jobs_are_not_due_cost_a_claim_nothing(
    redis_url: str, storage: Storage, clock: ManualClock
) -> None:
    late: list[NewJob] = [new_job("late", queue=queue, delay=3600 * SECOND) for queue in QUEUES]
    await storage.enqueue([*late, *(new_job(f"{number}", queue=QUEUES[0]) for number in range(20))])
    await storage.tune(Target("queue", QUEUES[100]), Settings(paused=True))
    alone = await commands(redis_url, storage, QUEUES[:1], room=2)
    among_all = await commands(redis_url, storage, QUEUES, room=2)

    # None of them has a job that waits for a rate, which costs as much to see as an empty line.
    assert among_all <= alone + A_SEARCH


async def test_an_outdated_due_time_is_checked_once(redis_url: str, storage: Storage, clock: ManualClock) -> None:
    await storage.enqueue([new_job("soon", queue=queue, delay=SECOND) for queue in QUEUES])
    await storage.enqueue([new_job("late", queue=QUEUES[7], delay=9 * SECOND)])
    await storage.revise([DeleteJob(Ref(queue, "soon")) for queue in QUEUES[:100]])
    await storage.revise([CancelJob(Ref(queue, "soon")) for queue in QUEUES[100:]])
    # Each claim looks into some of them, and trusts the due times of the rest.
    looks = [await commands(redis_url, storage, QUEUES, room=2) for _ in range(4)]
    then = await commands(redis_url, storage, QUEUES, room=2)

    assert all(50 < at_first <= 2 * 50 + 3 * A_SEARCH for at_first in looks)
    assert then <= 3 * A_SEARCH

    clock.advance(9)
    answer = await storage.exchange(ALICE, (), ClaimRequest(QUEUES, 2))

    assert [lease.ref.id for lease in answer.leases] == ["late"]


async def test_jobs_promoted_by_a_claim_are_not_promoted_again(
    redis_url: str, storage: Storage, clock: ManualClock
) -> None:
    await storage.enqueue([new_job(f"{n}", queue=queue, delay=SECOND) for queue in QUEUES[:50] for n in range(2)])
    clock.advance(1)
    at_first = await commands(redis_url, storage, QUEUES, room=1)
    then = await commands(redis_url, storage, QUEUES, room=1)
    await storage.sweep(SweepRequest(ALICE, None))

    assert at_first > 50
    assert then <= 3 * A_SEARCH


async def test_outdated_due_times_make_next_due_early_and_never_late(
    redis_url: str, storage: Storage, clock: ManualClock
) -> None:
    await storage.enqueue([new_job("soon", queue=queue, delay=n + SECOND) for n, queue in enumerate(QUEUES)])
    await storage.enqueue([new_job("late", queue=QUEUES[170], delay=9 * SECOND)])
    await storage.revise([CancelJob(Ref(queue, "soon")) for queue in QUEUES[:199]])
    next_dues = [(await storage.exchange(ALICE, (), ClaimRequest(QUEUES, 2))).next_due for _ in range(6)]

    assert next_dues == [SECOND + 50, SECOND + 100, SECOND + 150, *[SECOND + 199] * 3]


async def test_a_claim_that_promotes_jobs_does_not_return_them_as_next_due(
    redis_url: str, storage: Storage, clock: ManualClock
) -> None:
    await storage.enqueue([new_job("soon", queue=queue, delay=SECOND) for queue in QUEUES[:80]])
    await storage.enqueue([new_job("late", queue=QUEUES[7], delay=9 * SECOND)])
    clock.advance(1)

    assert (await storage.exchange(ALICE, (), ClaimRequest(QUEUES, 1))).next_due == 8 * SECOND


@pytest.mark.parametrize(("known", "most"), [("others", 20), ("parked", PLACE_LIMIT + 100)])
async def test_a_claim_looks_at_a_bounded_number_of_parked_tasks(
    redis_url: str, storage: Storage, known: str, most: int
) -> None:
    tasks = await park_under_many(storage, 600)
    knows = {f"{known}-{number}": 1 for number in range(400)} | dict.fromkeys(tasks if known == "parked" else [], 1)

    assert await commands(redis_url, storage, [QUEUE], room=1, tasks=knows) <= most
