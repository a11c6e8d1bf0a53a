"""Which active jobs the search for slow runs looks at, if there are more than it may read."""

from random import Random

from tenure.core.job import Ref
from tenure.core.outcome import Returned
from tenure.core.settlement import settlement
from tenure.ops.slow_runs import MOST, TASKS, Slow
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import ClaimRequest, Storage
from tenure.testing import ManualClock
from tests.storage.helpers import job, owner

HOUR = 3_600


async def begin(storage: Storage, name: str, count: int) -> list[Ref]:
    """Enqueue jobs and claim them; return their refs."""
    await storage.enqueue([job(f"{name}-{number}") for number in range(count)])
    refs: list[Ref] = []
    while len(refs) < count:
        claimed = await storage.exchange(owner(), (), ClaimRequest(("q",), count - len(refs)))
        refs += [lease.ref for lease in claimed.leases]
    return refs


async def test_of_many_active_jobs_the_old_ones_are_looked_at_first() -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    old = await begin(storage, "old", 3)
    clock.advance(2 * HOUR)
    young = await begin(storage, "young", MOST)
    clock.advance(90)
    worker = owner()
    await storage.enqueue([job(f"done-{number}") for number in range(20)])
    done = await storage.exchange(worker, (), ClaimRequest(("q",), 20))
    clock.advance(1)
    await storage.exchange(worker, [settlement(lease, Returned(b"1"), Random(1)) for lease in done.leases])
    await begin(storage, "new", MOST)
    found = await Slow().look(storage, await storage.survey())
    slow = found.runs

    assert [Ref(run.queue, run.id) for run in slow[:3]] == old
    assert {Ref(run.queue, run.id) for run in slow[3:]} < set(young)
    assert (len(slow), found.capped) == (MOST, True)


async def test_many_new_runs_do_not_mean_that_slow_ones_were_missed() -> None:
    storage = MemoryStorage(clock=ManualClock())
    await begin(storage, "new", MOST + 1)

    assert not (await Slow().look(storage, await storage.survey())).capped


async def test_tasks_whose_usual_duration_was_not_looked_up_are_reported() -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    await storage.enqueue([job(str(number), task=f"task {number}") for number in range(TASKS + 1)])
    await storage.exchange(owner(), (), ClaimRequest(("q",), TASKS + 1))
    clock.advance(HOUR)

    assert (await Slow().look(storage, await storage.survey())).capped
