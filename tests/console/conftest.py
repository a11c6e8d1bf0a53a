"""A shop with jobs in all states on each storage, and its console on a socket."""

import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenure import JobFailed, Retry, Tenure, Webhook, current_job
from tenure.console import Console
from tenure.core.job import Owner
from tenure.http.server import HTTPServer, ListenAddress
from tenure.storage.protocol import ClaimRequest, LeaseRenewal, RenewRequest, WorkerInfo
from tests.console.site import Headers, Reply, act_headers, get

ALERTS = Webhook("alerts", "https://hooks.example.com/", events=(JobFailed,), secret_env="ALERTS_SECRET")

HOLDER = Owner("00aa00aa00aa00aa", "web-3", "host", 77)

EVERY_STORAGE = pytest.mark.parametrize(
    "shop", ["memory", "sqlite", pytest.param("redis", marks=pytest.mark.redis)], indirect=True
)


@dataclass
class Shop:
    """An app, its jobs by name, and the port of its console."""

    app: Tenure
    jobs: dict[str, str]
    port: int = 0

    async def get(self, path: str, *, headers: Headers = (), method: str = "GET") -> Reply:
        """Ask its console."""
        return await get(self.port, path, headers=headers, method=method)

    async def act(self, path: str, body: object = None, *, headers: Headers = (), method: str = "POST") -> Reply:
        """Let its console do something, as a page of it does."""
        sent = b"" if body is None else msgspec.json.encode(body)
        return await get(self.port, path, headers=[*act_headers(self.port), *headers], method=method, body=sent)


def tasks_of(app: Tenure) -> None:
    """Give an app its tasks."""

    @app.task(name="mail.send", queue="mail")
    async def send(to: str, password: str = "") -> str:
        current_job().log.info("sending", password=password)
        current_job().progress(0.5, "half")
        return f"sent to {to}"

    @app.task(name="mail.break", queue="mail", retry=Retry(max_attempts=1))
    async def break_mail(number: int) -> None:
        raise ValueError(f"no route to {number}, password=hunter2")

    @app.task(name="charge", queue="pay/eu", concurrency_key="account:{account}")
    async def charge(account: int) -> None: ...

    @app.every("1h", name="hourly", queue="mail")
    async def hourly() -> None: ...


async def fill(app: Tenure) -> dict[str, str]:
    """Enqueue and run jobs; return their ids by name."""
    send, broken, charge = (app.find_task(name) for name in ("mail.send", "mail.break", "charge"))
    jobs = {
        "sent": await send.options(tags=["vip", "customer:7"]).enqueue("ann", password="hunter2"),
        "failed": await broken.enqueue(1),
        "failed too": await broken.enqueue(2),
    }
    worker = app.worker(queues=["mail"], burst=True, name="mailer")
    await worker.start()
    await worker.wait()
    jobs["active"] = await charge.enqueue(9)
    (lease,) = (await app.storage.exchange(HOLDER, (), ClaimRequest(("pay/eu",), 1))).leases
    info = WorkerInfo(("pay/eu",), 1, 1, tasks={"charge": 1})
    trace = 'File "pay.py", line 3, in charge'
    await app.storage.renew(RenewRequest(HOLDER, (LeaseRenewal(lease.ref, lease.fence, trace=trace),), info))
    jobs["held"] = await charge.enqueue(9)
    # A claim that cannot start the job parks it under its key.
    await app.storage.exchange(HOLDER, (), ClaimRequest(("pay/eu",), 1))
    jobs["delayed"] = await send.options(delay="1h").enqueue("bob")
    jobs["waiting"] = await send.enqueue("eve")
    return {name: job.id for name, job in jobs.items()}


@asynccontextmanager
async def served(app: Tenure, **options: Any) -> AsyncGenerator[int]:
    """Serve the console of an app; yield its port."""
    console = Console(app, **options)
    server = HTTPServer(console, ListenAddress("127.0.0.1", 0), purpose="the console", protected=console.protected)
    async with server:
        yield server.address.port


@pytest.fixture
async def shop(request: pytest.FixtureRequest, tmp_path: Path, empty_database: Path) -> AsyncIterator[Shop]:
    """A shop whose console is served on a socket."""
    kind = getattr(request, "param", "memory")
    if kind == "redis":
        url = request.getfixturevalue("redis_url")
    elif kind == "sqlite":
        shutil.copyfile(empty_database, tmp_path / "queue.db")
        url = f"sqlite:///{tmp_path}/queue.db"
    else:
        url = "memory://"
    app = Tenure(url, webhooks=[ALERTS])
    tasks_of(app)
    async with app:
        made = Shop(app, await fill(app))
        async with served(app) as made.port:
            yield made
