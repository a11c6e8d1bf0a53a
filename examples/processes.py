"""Work that uses a whole processor core, or that may crash, in its own processes. The worker and all other jobs go on.

Run it: python examples/processes.py
"""

import asyncio
import os
import signal

from tenure import JobFailedError, Retry, Stall, TaskOptions, Tenure

app = Tenure("memory://", defaults=TaskOptions(retry=Retry(max_attempts=1), stall=Stall(max_count=0)))


@app.task(run="process")
def count(least: int, below: int) -> int:
    """Count primes. In the worker's process this would block threads and the event loop."""
    return sum(all(number % divisor for divisor in range(2, int(number**0.5) + 1)) for number in range(least, below))


@app.task(run="process", timeout="500ms")
def endless() -> None:
    """Never end, and ignore cancellation: at its timeout its process is killed."""
    while True:
        os.getpid()


@app.task(run="process")
async def crash() -> None:
    """Kill its own process, as a fault in a C library does."""
    os.kill(os.getpid(), signal.SIGSEGV)


@app.task
async def where() -> int:
    """Return the id of the process in which the handler runs."""
    return os.getpid()


async def main() -> None:
    async with app, app.worker(concurrency=4):
        primes = await app.enqueue_many(count.call(start, start + 25_000) for start in (2, 25_002))
        failing = [await endless.enqueue(), await crash.enqueue()]
        print("primes below 50,002:", sum([await job.result(timeout=60) for job in primes]))
        for job in failing:
            try:
                await job.result(timeout=60)
            except JobFailedError as error:
                print(f"{(await job.info()).job.reason}: {str(error).splitlines()[0]}")
        reasons = [(await job.info()).job.reason for job in failing]
        worker = await where.enqueue_and_wait()

    assert reasons == ["timeout", "crashed"]
    assert worker == os.getpid()


# The processes load this file, too, and must not start another worker.
if __name__ == "__main__":
    asyncio.run(main())
