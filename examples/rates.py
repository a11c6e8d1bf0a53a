"""Rates: a limit of starts per second across two workers, a limit for each host, and a limit set at run time.

Run it: python examples/rates.py
"""

import asyncio
from collections import Counter

from tenure import Job, Rate, State, Tenure

app = Tenure("memory://")
fetched: Counter[str] = Counter()


@app.task(queue="api", rate="20/s")
async def call(number: int) -> None: ...


@app.task(queue="crawl", rate=Rate(5, per="1s", key="{host}"))
async def fetch(host: str) -> None:
    fetched[host] += 1


@app.task(queue="mail")
async def send(number: int) -> None: ...


async def began(job: Job[None]) -> float:
    """Return when a job started, in seconds on the storage's clock."""
    await job.result()
    started = (await job.info()).job.started
    assert started is not None
    return started.timestamp()


def most_within_a_second(instants: list[float]) -> int:
    return max(sum(at <= other < at + 1 for other in instants) for at in instants)


async def main() -> None:
    # Two workers of one app share the rate, because the storage counts it with each claim.
    async with app, app.worker(), app.worker():
        jobs = await app.enqueue_many(call.call(number) for number in range(40))
        instants = sorted([await began(job) for job in jobs])
        busiest = most_within_a_second(instants)
        print(f"40 calls began within {instants[-1] - instants[0]:.1f} s, {busiest} in the busiest second")
        # With a burst of one, at most 21 jobs start in any second.
        assert busiest <= 21
        assert instants[-1] - instants[0] >= 1.8

        both = await app.enqueue_many(fetch.call(host) for host in ["slow.example"] * 6 + ["other.example"])
        await both[-1].result()
        print(f"another host did not wait: {fetched['slow.example']} of the first one's 6 had begun by then")
        assert fetched["slow.example"] < 6
        for job in both:
            await job.result()

        # A limit set at run time, for all jobs of a queue or a task, and removed again.
        await app.queue("mail").set_rate("2/s")
        jobs = await app.enqueue_many(send.call(number) for number in range(200))
        await asyncio.sleep(1)
        waiting = (await app.storage.survey(["mail"])).queues[0].counts[State.WAITING]
        print(f"a second after the limit was set, {waiting} of 200 mails wait")
        assert waiting >= 190
        await app.queue("mail").set_rate(None)
        await jobs[-1].result(timeout="10s")
        print("without the limit, none waits")


asyncio.run(main())
