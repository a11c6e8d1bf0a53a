"""The replay: a settlement under an old fence, sent through the public verb, is refused and recorded."""

from random import Random

from tenure.app import Tenure
from tenure.core.events import RunFenced
from tenure.core.job import Owner
from tenure.core.outcome import Returned
from tenure.core.settlement import settlement
from tenure.maintenance.lost_runs import settle_stalled
from tenure.storage.protocol import ClaimRequest
from tenure_testing.demo.event_follower import EventFollower
from tenure_testing.demo.gather import replay
from tests.records import detail_of


async def test_the_replayed_settlement_of_a_reclaimed_run_changes_nothing() -> None:
    app = Tenure("memory://")

    @app.task(queue="demo")
    def nothing() -> None: ...

    lost, reaper, heir = Owner("lost"), Owner("reaper"), Owner("heir")
    async with app:
        storage = app.storage
        follower = EventFollower(storage, "demo")
        await follower.begin()
        job = await nothing.enqueue()
        await storage.exchange(lost, (), ClaimRequest(("demo",), 1))
        taken = await storage.reclaim(lost.id, reaper)
        await settle_stalled(storage, reaper, taken.stalled, Random(1))
        again = await storage.exchange(heir, (), ClaimRequest(("demo",), 1))
        await storage.exchange(heir, [settlement(again.leases[0], Returned(b"null"), Random(1))])
        before = await detail_of(job)

        replayed = await replay(storage, {job.id: before}, [])

        assert replayed is not None
        assert (replayed.verdict, replayed.run.run, replayed.run.fence) == ("lost", 1, before.runs[0].fence)
        assert await detail_of(job) == before
        assert [event.write for event in await follower.catch_up() if isinstance(event, RunFenced)] == ["settle"]


async def test_without_a_reclaimed_run_there_is_nothing_to_replay() -> None:
    async with Tenure("memory://") as app:
        assert await replay(app.storage, {"gone": None}, []) is None
