"""The app of a small shop: three tasks with effects in other systems, each of which may safely run twice.

Workers and reapers load it as `shop:app`. TENURE_URL names the storage. As a program it plays the web application that
takes orders: `python shop.py 100` takes a hundred orders and prints a line for each stored job.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

from tenure import Retry, Stall, TaskOptions, Tenure, Timing, current_job

DATA = Path(os.environ.get("SHOP_DATA", "data"))

app = Tenure(
    # How long a host may be silent before its jobs run elsewhere; see docs/howto/operate.md.
    timing=Timing(lease=os.environ.get("SHOP_LEASE", "20s")),
    defaults=TaskOptions(
        # A default for all tasks, so that no handler can hang for ever.
        timeout="1m",
        retry=Retry(max_attempts=5, base="1s"),
        # A run that was lost with its worker may be repeated, because each effect of these tasks happens once.
        stall=Stall(max_count=3),
    ),
)


class ProviderBusyError(Exception):
    """The payment provider asks for another try."""


class CardDeclinedError(Exception):
    """The payment provider has refused the card; another try would get the same answer."""


@app.task(name="mail", queue="mail", timeout="30s", retry=Retry(max_attempts=8, cap="5m"))
async def send_mail(to: str, subject: str) -> str:
    """Send a mail. The provider ignores a second mail with the same message id."""
    # The same in each run of this job. A provider without such a key may send a mail twice.
    message_id = current_job().idempotency_key
    await provider("mail", message_id, f"{to}: {subject}")
    return message_id


@app.task(
    name="payment",
    queue="payments",
    timeout="20s",
    priority=10,
    retry=Retry(max_attempts=5, base="500ms", never=CardDeclinedError),
    # While a job of an order is unfinished, a second call for that order (a second click) creates no job.
    unique="payment:{order}",
)
async def charge(order: str, cents: int, customer: str) -> str:
    """Charge a card. The key is that of the order, because a second job of an order must not charge it again."""
    if cents > 100_000:
        raise CardDeclinedError(f"{cents} cents are above the limit")
    if order.endswith("7") and current_job().attempt == 1:
        raise ProviderBusyError("try again")
    receipt = await provider("payment", order, f"{cents} cents")
    # With a fixed id, so that a second run of this job does not send a second mail.
    await send_mail.options(id=f"receipt-{order}").enqueue(customer, f"your receipt for order {order}")
    return receipt


@app.task(name="export", queue="exports", timeout="30m", heartbeat_timeout="1m", singleton=True)
def export_orders(day: str, rows: int) -> int:
    """Write the orders of a day to a file, completely or not at all. Runs in a thread."""
    job = current_job()
    target = DATA / "export" / f"{day}.csv"
    target.parent.mkdir(parents=True, exist_ok=True)
    # The name contains the fence: a run that was lost without noticing writes another file than its successor.
    draft = target.with_suffix(f".{job.id}-{job.fence}")
    with draft.open("w") as file:
        for row in range(rows):
            # A thread cannot be cancelled from outside, so it checks for a cancel at each row and reports its progress.
            job.raise_if_cancelled()
            job.progress(row / rows)
            file.write(f"{day},{row}\n")
            time.sleep(0.02)
    os.replace(draft, target)
    return rows


async def provider(kind: str, key: str, text: str) -> str:
    """Play a service with idempotency keys: a second call with the same key has no effect."""
    await asyncio.sleep(0.1)
    done = DATA / kind / key
    done.parent.mkdir(parents=True, exist_ok=True)
    try:
        with done.open("x") as file:
            file.write(text)
    except FileExistsError:
        return f"{kind} {key} was done before"
    return f"{kind} {key} is done"


async def take_orders(count: int) -> None:
    """Play the web application: it answers an order when the jobs are stored."""
    async with app:
        for number in range(count):
            order, customer = f"order-{number:04}", f"customer-{number % 7}@example.org"
            calls = [
                charge.call(order, 100 + number, customer),
                send_mail.call(customer, f"thank you for order {order}"),
                *([export_orders.call(f"day-{number // 20}", 25)] if number % 20 == 0 else []),
            ]
            for job in await app.enqueue_many(calls):
                print(job.queue, job.id, flush=True)
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(take_orders(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
