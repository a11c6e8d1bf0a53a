"""The demo's run that holds the interpreter: when the other jobs may follow."""

from tenure.core.job import Ref
from tenure.storage.memory.storage import MemoryStorage
from tenure_testing.conformance.helpers import ALICE, BOB, claim_one, enqueue, new_job, settle
from tenure_testing.demo.gil_holding import GilHolding


async def test_other_jobs_follow_when_another_worker_leads_or_the_run_has_ended() -> None:
    storage = MemoryStorage()

    async def begin() -> Ref:
        [ref] = await enqueue(storage, new_job())
        return ref

    part = GilHolding(storage, begin)
    await part.turn()
    assert not part.lets_in([BOB.id])

    lease = await claim_one(storage)
    assert "GIL HELD" in (await part.turn() or "")
    assert not part.lets_in([])
    assert not part.lets_in([ALICE.id])
    assert part.lets_in([BOB.id])

    # On a busy machine the other workers may begin only after the run, and its worker leads all the time.
    await settle(storage, ALICE, lease)
    await part.turn()
    assert part.lets_in([ALICE.id])
