"""Callers that share a call, on a real server: it does less work for the same jobs, and each gets its refusal."""

import asyncio

from tenure import Job, State, StorageFullError, Tenure
from tests.servers import RedisServer

CALLERS = 20
EACH = 10


async def test_concurrent_callers_share_calls_without_lost_or_doubled_jobs(redis_server: RedisServer) -> None:
    app = Tenure(redis_server.url)

    @app.task(name="noted")
    async def noted(number: int) -> None: ...

    async def caller(place: int) -> list[Job[None]]:
        return [await noted.enqueue(EACH * place + number) for number in range(EACH)]

    async with app:
        await noted.enqueue(-1)
        before = calls(redis_server)
        made = await asyncio.gather(*(caller(place) for place in range(CALLERS)))

        # One for the first caller, then as many as each of them makes, and one more for the first caller again.
        assert calls(redis_server) - before <= EACH + 2
        jobs = [job for some in made for job in some]
        assert all(job.created for job in jobs)
        assert len({job.id for job in jobs}) == CALLERS * EACH
        storage = await app.opened()
        scores = [[(await storage.get([job.ref]))[0] for job in some] for some in made]
        for row in scores:
            line = [detail.job.score for detail in row if detail is not None]
            assert len(line) == EACH
            assert line == sorted(line)
        [queue] = (await storage.survey()).queues
        assert queue.counts == {State.WAITING: CALLERS * EACH + 1}


async def test_a_full_server_raises_for_each_caller_with_its_own_job_id(redis_server: RedisServer) -> None:
    app = Tenure(redis_server.url)

    @app.task(name="noted")
    async def noted(number: int) -> None: ...

    async with app:
        await noted.enqueue(-1)
        redis_server.command("CONFIG", "SET", "maxmemory", "1kb")
        outcomes = await asyncio.gather(
            *(noted.options(id=f"job-{number}").enqueue(number) for number in range(CALLERS)), return_exceptions=True
        )
        redis_server.command("CONFIG", "SET", "maxmemory", "0")

        assert [outcome.job_ids for outcome in outcomes if isinstance(outcome, StorageFullError)] == [
            (f"job-{number}",) for number in range(CALLERS)
        ]
        [queue] = (await (await app.opened()).survey()).queues
        assert queue.counts == {State.WAITING: 1}


def calls(server: RedisServer) -> int:
    """Return how many scripts it has run so far."""
    return int(server.command("INFO", "commandstats")["cmdstat_evalsha"]["calls"])
