"""One job for many calls: unique, debounced and throttled calls, and what their callers get.

Run it: python examples/uniqueness.py
"""

import asyncio

from tenure import Debounce, DuplicateJobError, Tenure, Throttle, ThrottledError, Unique

app = Tenure("memory://")
saved: list[str] = []


@app.task(unique="report:{customer}")
async def report(customer: int) -> str:
    return f"the report of {customer}"


@app.task(unique=Unique(scope="1h"))
async def remind(user: str, about: str = "") -> None: ...


@app.task(debounce=Debounce("{doc}", delay="300ms", max_wait="2s"))
async def save(doc: str, text: str) -> str:
    saved.append(text)
    return text


@app.task(throttle=Throttle("{user}", max=2, window="1m"))
async def text_message(user: str) -> None: ...


async def main() -> None:
    async with app, app.worker():
        # The first job has not run yet, so the second call gets that job.
        first, second = await app.enqueue_many([report.call(7), report.call(7)])
        print(f"{first.action}, then {second.action}: both wait for {await second.result()!r}")
        assert (first.action, second.action, second.id) == ("created", "duplicate", first.id)
        # When the job has ended, its key is free.
        assert (await report.enqueue(7)).created

        # Without a key, equal arguments are the same call. This key is held for an hour, however its job ends.
        reminder = await remind.enqueue("ann", about="tea")
        await reminder.result()
        try:
            await remind.options(throw_on_duplicate=True).enqueue("ann", about="tea")
        except DuplicateJobError as error:
            known = error.job_id
        else:
            raise AssertionError("a duplicate was enqueued")
        print("a duplicate raised an error")
        assert known == reminder.id

        # Each keystroke is a call. Only the last one runs, and all callers get its result.
        jobs = [await save.enqueue("notes", "tea and cake"[:length]) for length in range(1, 13)]
        assert {await job.result() for job in jobs} == {"tea and cake"}
        print(f"{len(jobs)} keystrokes were saved {len(saved)} time")
        assert saved == ["tea and cake"]

        for _ in range(2):
            await text_message.enqueue("ann")
        try:
            await text_message.enqueue("ann")
        except ThrottledError as error:
            print(f"a third message may be sent in {error.retry_in:.0f} s")
        else:
            raise AssertionError("a third message was enqueued")
        assert (await text_message.enqueue("bob")).created


asyncio.run(main())
