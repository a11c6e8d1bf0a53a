"""A storage with varied jobs for the pages: all states, retries, faults, a held job, schedules, long names."""

from dataclasses import dataclass
from datetime import timedelta

from tenure import Retry, Snooze, Tenure, current_job
from tenure.core.job import Owner
from tenure.core.lease import Lease
from tenure.storage.protocol import ClaimRequest, LeaseRenewal, RenewRequest, SweepRequest, WorkerInfo

HOLDER = Owner("00aa00aa00aa00aa", "pay-3", "host-7.example", 77)

LONG = "reports." + "monthly-" * 12 + "eu"
"""A name that does not fit on a narrow page."""

MARKUP = "<script>document.title='broken'</script>"


@dataclass(frozen=True)
class World:
    """Ids of some of its jobs. `lease`: that of the active one. `fault`: the one with the most jobs."""

    held: str
    active: str
    failed: str
    sent: str
    retried: str
    lease: Lease
    fault: str


def tasks_of(app: Tenure) -> None:
    """Give an app its tasks and schedules."""

    @app.task(name="mail.send", queue="mail")
    async def send(to: str, number: int = 0) -> dict[str, object]:
        current_job().log.info("sending", to=to)
        current_job().log.warning("the server was slow")
        current_job().progress(0.5, "half")
        return {"to": to, "number": 2**60 + number, "accepted": True}

    @app.task(name="mail.break", queue="mail", retry=Retry(max_attempts=1))
    async def break_mail(number: int) -> None:
        if number % 3:
            raise ConnectionError(f"no route to server {number % 2}")
        raise ValueError(f"{MARKUP} is not an address")

    @app.task(name="report.write", queue=LONG, retry=Retry(max_attempts=4, base=timedelta(milliseconds=2), jitter=0))
    async def report(number: int) -> None:
        if current_job().run < 3:
            raise TimeoutError(f"the warehouse did not answer report {number}")

    @app.task(name="poll", queue="poll")
    async def poll() -> None:
        raise Snooze("1h")

    @app.task(name="charge", queue="pay/eu", concurrency_key="account:{account}")
    async def charge(account: int) -> None: ...

    @app.task(name="thumbnail", queue="thumbnails")
    async def thumbnail(path: str) -> None: ...

    @app.every("1h", name="hourly", queue="mail")
    async def hourly() -> None: ...

    @app.cron("0 3 * * 1", name="weekly digest of all accounts in Europe", queue="mail", tz="Europe/Vienna")
    async def weekly() -> None: ...


async def fill(app: Tenure, *, size: int) -> World:
    """Enqueue and run jobs, about `size` of them."""
    send, broken, report, poll, charge, thumbnail = (
        app.find_task(name) for name in ("mail.send", "mail.break", "report.write", "poll", "charge", "thumbnail")
    )
    sent = await send.options(tags=["vip", "customer:7"], headers={"trace": "4bf92f35"}).enqueue("ann@example.org")
    for number in range(size // 2):
        await send.options(tags=[f"customer:{number % 5}"]).enqueue(f"user{number}@example.org", number=number)
    failed = [await broken.enqueue(number) for number in range(1, max(size // 20, 4))]
    retried = await report.enqueue(1)
    await poll.enqueue()
    worker = app.worker(queues=["mail", LONG, "poll"], burst=True, name="mailer")
    await worker.start()
    await worker.wait()
    active = await charge.enqueue(9)
    (lease,) = (await app.storage.exchange(HOLDER, (), ClaimRequest(("pay/eu",), 1))).leases
    await beat(app, lease)
    held = await charge.enqueue(9)
    # A claim that cannot start the job parks it under its key.
    await app.storage.exchange(HOLDER, (), ClaimRequest(("pay/eu",), 1))
    for number in range(size // 10):
        await send.options(delay=timedelta(minutes=number + 10)).enqueue(f"later{number}@example.org")
        await thumbnail.enqueue(f"/images/{number}.png")
    for number in range(3):
        await (await thumbnail.enqueue(f"/images/unwanted{number}.png")).cancel()
    await app.queue("thumbnails").pause()
    fault = (await app.dead.groups()).groups[0].fingerprint
    return World(
        held=held.id,
        active=active.id,
        failed=failed[-1].id,
        sent=sent.id,
        retried=retried.id,
        lease=lease,
        fault=fault,
    )


async def beat(app: Tenure, lease: Lease) -> None:
    """Renew the lease of the active job and sweep, so that the pages show a worker that is alive."""
    info = WorkerInfo(("pay/eu",), 8, 1, tasks={"charge": 1})
    trace = 'File "pay.py", line 31, in charge\n  await bank.transfer(account)\nFile "bank.py", line 7, in transfer'
    await app.storage.renew(RenewRequest(HOLDER, (LeaseRenewal(lease.ref, lease.fence, trace=trace),), info))
    await app.storage.sweep(SweepRequest(HOLDER, term=None))
