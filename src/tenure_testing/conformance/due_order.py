"""Conformance tests of listings by due instant: the delayed job that falls due first comes first."""

from random import Random

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.job import JobRecord, Key, NewJob, Ref
from tenure.core.lifecycle import State
from tenure.errors import UsageError
from tenure.storage.protocol import CancelJob, Query, RescheduleJob, Storage
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import Conformance, claim_one, enqueue, new_job

DUE = Query(states=(State.DELAYED,), order="due")


async def pages(storage: Storage, query: Query) -> list[list[JobRecord]]:
    """Return all pages of a listing."""
    found: list[list[JobRecord]] = []
    while True:
        page = await storage.find(query)
        found.append(list(page.jobs))
        if page.next is None:
            return found
        query = structs.replace(query, after=page.next)


async def listed(storage: Storage, query: Query = DUE) -> list[str]:
    """Return the ids of all jobs of a listing."""
    return [job.id for page in await pages(storage, query) for job in page]


def scattered(count: int, dice: Random) -> list[NewJob]:
    """Return delayed jobs of several queues, many of which fall due at the same instant."""
    queues = ("a", "b", "ä", "b2", "z/1")
    return [
        new_job(
            f"{dice.choice(('', 'é', 'B', '~'))}{number}",
            queue=dice.choice(queues),
            delay=dice.choice((1, 1, 2, 5)) * SECOND,
            tags=("odd",) if number % 2 else (),
        )
        for number in range(count)
    ]


class DueOrderConformance(Conformance):
    """A listing by due instant has the delayed jobs in the order in which they fall due."""

    async def test_the_job_that_falls_due_first_is_listed_first(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(
            storage,
            new_job("late", delay=9 * SECOND),
            new_job("now"),
            new_job("soon", delay=SECOND, queue="mail"),
            new_job("next", delay=5 * SECOND),
            new_job("moved", delay=SECOND),
            new_job("gone", delay=SECOND),
        )
        await storage.revise([RescheduleJob(Ref("default", "moved"), delay=7 * SECOND)])
        await storage.revise([CancelJob(Ref("default", "gone"))])

        assert await listed(storage) == ["soon", "next", "moved", "late"]
        assert await listed(storage, structs.replace(DUE, queues=("default",))) == ["next", "moved", "late"]
        assert await listed(storage, structs.replace(DUE, queues=("none",))) == []

        clock.advance(6.0)
        await claim_one(storage)

        assert (await listed(storage))[-2:] == ["moved", "late"]

    @pytest.mark.parametrize("limit", [1, 7, 60, 200])
    async def test_pages_by_due_instant_neither_overlap_nor_omit_jobs(self, storage: Storage, limit: int) -> None:
        jobs = scattered(60, Random(limit))
        await enqueue(storage, *jobs)
        expected = sorted(jobs, key=lambda job: (job.delay, job.queue, job.id))

        found = await pages(storage, structs.replace(DUE, limit=limit))

        assert [(job.queue, job.id) for page in found for job in page] == [(job.queue, job.id) for job in expected]
        assert {len(page) for page in found[:-1]} <= {limit}

    async def test_a_page_by_due_instant_follows_one_whose_last_job_is_gone(self, storage: Storage) -> None:
        names = [f"{number:02}" for number in range(40)]
        await enqueue(storage, *(new_job(name, delay=SECOND) for name in names))
        page = await storage.find(structs.replace(DUE, limit=20))
        await storage.revise([CancelJob(job.ref) for job in page.jobs[5:]])

        assert await listed(storage, structs.replace(DUE, after=page.next)) == names[20:]

    async def test_a_listing_by_due_instant_checks_all_conditions(self, storage: Storage) -> None:
        key = new_job("keyed", delay=2 * SECOND, keys=(Key("k"),), schedule="hourly", tags=("a", "b"))
        await enqueue(storage, key, new_job("other", delay=SECOND), new_job("task", delay=3 * SECOND, task="other"))

        for condition in ({"key": "k"}, {"schedule": "hourly"}, {"tags": ("b",)}):
            assert await listed(storage, structs.replace(DUE, **condition)) == ["keyed"]
        assert await listed(storage, structs.replace(DUE, tasks=("other",))) == ["task"]

    @pytest.mark.parametrize("looks", [1, 10, 1_000])
    async def test_a_bounded_listing_by_due_instant_finds_all_jobs_by_pages(self, storage: Storage, looks: int) -> None:
        jobs = scattered(50, Random(looks))
        await enqueue(storage, *jobs)
        expected = sorted((job for job in jobs if job.tags), key=lambda job: (job.delay, job.queue, job.id))

        found = await listed(storage, structs.replace(DUE, tags=("odd",), looks=looks, limit=5))

        assert found == [job.id for job in expected]

    @pytest.mark.parametrize("cursor", ["7", "x.y", "1.", "-1.YQ==", "1.é", "1.YQ", "99999999999999999999.YQBi"])
    async def test_a_cursor_of_another_order_is_refused(self, storage: Storage, cursor: str) -> None:
        await enqueue(storage, new_job(delay=SECOND), new_job("b", delay=SECOND))
        page = await storage.find(structs.replace(DUE, limit=1))

        with pytest.raises(ValueError, match="is not a cursor of this order"):
            await storage.find(structs.replace(DUE, after=cursor))
        with pytest.raises(ValueError, match="cursor"):
            await storage.find(Query(after=page.next))

    async def test_only_delayed_jobs_have_an_order_by_due_instant(self, storage: Storage) -> None:
        wrong: list[tuple[State, ...]] = [(), (State.WAITING,), (State.DELAYED, State.WAITING)]
        for states in wrong:
            with pytest.raises(UsageError, match=r'order = "due" lists delayed jobs only'):
                Query(order="due", states=states)
        with pytest.raises(UsageError, match="and not by id"):
            structs.replace(DUE, id="a")
