"""The limits on order and rates at scale, in virtual time: on the memory storage and on SQLite."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random

import pytest

from tenure.clock import SECOND
from tenure.core.job import NewJob, Owner, RateKey
from tenure.core.lease import Lease
from tenure.core.outcome import Returned
from tenure.core.settlement import settlement
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import ClaimRequest, Storage
from tenure.storage.sqlite.storage import SQLiteStorage
from tenure.testing import ManualClock
from tests.storage.helpers import job, owner

pytestmark = pytest.mark.thorough

STEP = 60 * SECOND
TRIP = 1000
SLOTS = 10
LASTS = 0.1


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
async def storage(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Storage]:
    storage: Storage = MemoryStorage(clock=clock)
    if request.param == "sqlite":
        storage = SQLiteStorage(tmp_path / "jobs.db", clock=clock, durability="fast")
    await storage.open()
    yield storage
    await storage.close()


class Pool:
    """Ten slots whose jobs take a tenth of a second each, all of them at once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._owner = owner(Random(1))
        self._dice = Random(2)
        self._held: tuple[Lease, ...] = ()

    async def turn(self) -> tuple[Lease, ...]:
        """Settle what has run, and start the next."""
        settled = [settlement(lease, Returned(b""), self._dice) for lease in self._held]
        self._held = (await self._storage.exchange(self._owner, settled, ClaimRequest(("q",), SLOTS))).leases
        return self._held


async def fill(storage: Storage, jobs: Iterator[NewJob]) -> None:
    """Enqueue jobs, a thousand a call."""
    while batch := [job for job, _ in zip(jobs, range(TRIP), strict=False)]:
        await storage.enqueue(batch)


def of(tenant: str, count: int, *, weight: int = 1) -> Iterator[NewJob]:
    """Yield the jobs of a tenant."""
    return (job(f"{tenant}{number}", fair_key=tenant, weight=weight) for number in range(count))


@pytest.mark.parametrize(
    ("boost", "later"), [(STEP, 59), (5 * STEP, 299), (10**15, 86_400)], ids=["a step", "five steps", "strict"]
)
async def test_one_high_job_behind_ten_thousand_low_ones_is_the_next_one_claimed(
    storage: Storage, clock: ManualClock, boost: int, later: int
) -> None:
    await fill(storage, (job(f"low{number}") for number in range(10_000)))
    clock.advance(later)
    await storage.enqueue([job("high", boost=boost)])
    first = (await storage.exchange(owner(), order=ClaimRequest(("q",), 1))).leases

    assert [lease.ref.id for lease in first] == ["high"]


@pytest.mark.slow
async def test_a_tenant_with_100000_jobs_delays_no_other_by_a_second(storage: Storage, clock: ManualClock) -> None:
    # The memory storage shows it with a hundred thousand jobs, SQLite with a fifth of them, to save time.
    await fill(storage, of("a", 100_000 if isinstance(storage, MemoryStorage) else 20_000))
    pool = Pool(storage)
    dice = Random(4)
    since: dict[str, int] = {}
    waits: list[float] = []
    for number in range(600):
        for lease in await pool.turn():
            if lease.ref.id in since:
                waits.append((clock.now() - since.pop(lease.ref.id)) / SECOND)
        comes = dice.uniform(0, LASTS)
        clock.advance(comes)
        await storage.enqueue([job(f"b{number}", fair_key="b")])
        since[f"b{number}"] = clock.now()
        clock.advance(LASTS - comes)
    waits.sort()

    assert len(waits) >= 599
    assert waits[int(len(waits) * 0.99)] < 1


async def test_a_weight_of_three_to_one_is_a_share_of_three_quarters(storage: Storage, clock: ManualClock) -> None:
    await fill(storage, of("a", 2000, weight=3))
    await fill(storage, of("b", 2000))
    pool = Pool(storage)
    started: Counter[str] = Counter()
    for turn in range(150):
        started.update(lease.ref.id[0] for lease in await pool.turn())
        clock.advance(LASTS)
        if turn in (10, 75, 149):
            share = started["a"] / started.total()

            assert abs(share - 0.75) <= 0.05 * 0.75


async def test_ten_a_second_over_twenty_workers_are_ten_a_second(storage: Storage, clock: ManualClock) -> None:
    rate = RateKey("mail", SECOND // 10)
    await fill(storage, (job(f"m{number}", rates=(rate,)) for number in range(1000)))
    workers = [Owner(f"{number:016x}") for number in range(20)]
    dice = Random(3)
    instants: list[int] = []
    end = clock.now() + 60 * SECOND
    while clock.now() < end:
        answer = await storage.exchange(dice.choice(workers), order=ClaimRequest(("q",), dice.choice((1, 5, 10))))
        instants += [clock.now()] * len(answer.leases)
        clock.advance(dice.choice((0.001, 0.005, 0.02, (answer.next_due or 0) / SECOND)))

    assert max(sum(at <= other < at + SECOND for other in instants) for at in instants) <= 11
    assert abs(len(instants) - 600) <= 6
