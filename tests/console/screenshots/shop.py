"""The app of the screenshots: a shop whose jobs succeed, fail, crash their process, and get stuck."""

import asyncio
import os
import signal
import threading
from datetime import timedelta

from tenure import Retry, Stall, Tenure, current_job

app = Tenure()

TWICE = Retry(max_attempts=2, base=timedelta(milliseconds=200))

LONG = "reports.monthly-statements-for-all-subsidiaries-in-central-and-eastern-europe"
"""A queue whose name does not fit into its column."""

warehouse = threading.Lock()


@app.task(name="mail.welcome", queue="mail", retry=TWICE)
async def welcome(to: str, number: int) -> dict[str, object]:
    current_job().log.info("connected", server="smtp.example.net", tls="1.3")
    await asyncio.sleep(0.02 + number % 7 / 100)
    if number % 41 == 7:
        raise ConnectionError("smtp.example.net closed the connection: 421 too many messages from this address")
    if number % 83 == 11:
        raise ValueError(f"{to!r} is not an address")
    current_job().log.info("accepted", to=to)
    return {"to": to, "message": f"<{number}@shop.example>"}


@app.task(name="invoice.render", queue="billing", retry=Retry(max_attempts=1))
async def render(order: int) -> str:
    await asyncio.sleep(0.05)
    if order % 23 == 5:
        raise KeyError("vat_rate")
    return f"/invoices/{order}.pdf"


@app.task(name="payment.capture", queue="billing", concurrency_key="account:{account}", timeout="1s", retry=TWICE)
async def capture(account: int, cents: int) -> str:
    current_job().progress(0.5, "the bank was asked")
    await asyncio.sleep(3 if cents % 17 == 4 else 0.03)
    return "captured"


@app.task(name="payment.settle", queue="billing", concurrency_key="account:{account}")
async def settle(account: int) -> None:
    current_job().progress(0.4, "page 2 of 5")
    await asyncio.sleep(600)


@app.task(name="catalog.import", queue="catalog", stall=Stall(max_count=2))
def import_catalog(file: str) -> int:
    job = current_job()
    job.log.info("reading", file=file)
    job.progress(0.3, "12,000 of 40,000 rows")
    if file.endswith("huge.csv") or job.run == 1:
        # As the kernel does with the process that uses most memory.
        os.kill(os.getpid(), signal.SIGKILL)
    job.progress(1.0, "40,000 of 40,000 rows")
    return 40_000


@app.task(name="report.monthly", queue=LONG)
def report(region: str, month: int) -> str:
    with warehouse:
        if region == "east":
            read_stock()
    return f"/reports/{region}-{month}.xlsx"


def read_stock() -> None:
    # Its caller holds the lock already: this waits for ever.
    with warehouse:
        raise AssertionError("the lock is held twice")


@app.task(name="search.index", queue="search")
async def index(product: int) -> None: ...


@app.task(name="thumbnail.make", queue="thumbnails")
async def thumbnail(path: str) -> None: ...


@app.every("30s", name="refresh exchange rates", queue="billing")
async def rates() -> None: ...


@app.cron("0 6 * * 1", name="weekly digest of all accounts in Austria", queue="mail", tz="Europe/Vienna")
async def digest() -> None: ...


@app.cron("*/5 * * * *", name="abandoned baskets", queue="mail")
async def baskets() -> None: ...
