"""The app of a small shop: three tasks that reach into the world outside, each of which may be run twice.

Workers and reapers load it as `shop:app`; where the jobs lie, TENURE_URL says. As a program it stands for the web
application that takes orders: `python shop.py 100` takes a hundred and prints a line for each once it is kept.
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
        # Nothing here may hang for ever, and whoever adds a task need not think of it.
        timeout="1m",
        retry=Retry(max_attempts=5, base="1s"),
        # A run that was lost with its worker may be repeated: all that these tasks do, they do once.
        stall=Stall(max_count=3),
    ),
)


class ProviderBusyError(Exception):
    """The payment provider asks to come again."""


class CardDeclinedError(Exception):
    """The payment provider has said no, and will say so again."""


@app.task(name="mail", queue="mail", timeout="30s", retry=Retry(max_attempts=8, cap="5m"))
async def send_mail(to: str, subject: str) -> str:
    """Send a mail: the provider drops what comes a second time under one message id."""
    # The same in each run of this job. A provider that knows no such key may send a mail twice.
    message_id = current_job().idempotency_key
    await provider("mail", message_id, f"{to}: {subject}")
    return message_id


@app.task(
    name="payment",
    queue="payments",
    timeout="20s",
    priority=10,
    retry=Retry(max_attempts=5, base="500ms", never=CardDeclinedError),
    # While one job of an order is unfinished, a second call of that order (a second click) makes none.
    unique="payment:{order}",
)
async def charge(order: str, cents: int, customer: str) -> str:
    """Charge a card: the key is the order's, for a second job of one order must not charge again either."""
    if cents > 100_000:
        raise CardDeclinedError(f"{cents} cents are above the limit")
    if order.endswith("7") and current_job().attempt == 1:
        raise ProviderBusyError("come again")
    receipt = await provider("payment", order, f"{cents} cents")
    # By a name of its own: a second run of this job comes to the mail that the first one made.
    await send_mail.options(id=f"receipt-{order}").enqueue(customer, f"your receipt for order {order}")
    return receipt


@app.task(name="export", queue="exports", timeout="30m", heartbeat_timeout="1m", singleton=True)
def export_orders(day: str, rows: int) -> int:
    """Write a day's orders into a file, which is there as a whole or not at all. Runs in a thread."""
    job = current_job()
    target = DATA / "export" / f"{day}.csv"
    target.parent.mkdir(parents=True, exist_ok=True)
    # Under the fence: a run that is lost and does not know it writes beside its successor, not into it.
    draft = target.with_suffix(f".{job.id}-{job.fence}")
    with draft.open("w") as file:
        for row in range(rows):
            # A thread cannot be cancelled from outside. Once a row it asks, and tells that it gets on.
            job.raise_if_cancelled()
            job.progress(row / rows)
            file.write(f"{day},{row}\n")
            time.sleep(0.02)
    os.replace(draft, target)
    return rows


async def provider(kind: str, key: str, text: str) -> str:
    """Stand for a service that honours an idempotency key: what it has done under a key, it does not do again."""
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
    """Stand for the web application: an order is answered once its jobs are kept."""
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
