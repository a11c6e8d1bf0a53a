"""What the tests of the pages share: an app with its jobs, the address of its console, and tabs of a browser."""

# The matchers of Playwright take patterns whose type has no parameter.
# pyright: reportUnknownMemberType=false

from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from urllib.parse import urlencode

from playwright.async_api import Browser, Page, ViewportSize, expect

from tenure import Tenure
from tenure.http.asgi import ASGIApp
from tenure.http.server import HTTPServer, ListenAddress
from tests.console.browser.world import HOLDER, LONG, World

# The default of 5 s is too short for a machine that does much else.
expect.set_options(timeout=30_000)

NARROW = ViewportSize(width=390, height=844)
WIDE = ViewportSize(width=1280, height=900)

Scheme = Literal["dark", "light"]


@dataclass
class Site:
    """An app with its jobs, the address of its console, and the browser."""

    app: Tenure
    world: World
    url: str
    browser: Browser

    def paths(self) -> dict[str, str]:
        """Return the path of each page, with its heading."""
        return {
            "": "Now",
            "jobs": "Jobs",
            "failures": "Failures",
            f"fault?fault={self.world.fault}": "ConnectionError",
            "leases": "Leases",
            f"workers?worker={HOLDER.id}": "Workers",
            "schedules": "Schedules",
            "tasks": "Tasks",
            "task?name=poll": "poll",
            "events": "Events",
            "operations": "Operations",
            "queue?name=pay/eu": "pay/eu",
            f"queue?name={LONG}": LONG,
            self.job("mail", self.world.sent): "mail.send",
            self.job("mail", self.world.failed): "mail.break",
            self.job(LONG, self.world.retried): "report.write",
            self.job("pay/eu", self.world.held): "charge",
        }

    def job(self, queue: str, job_id: str) -> str:
        return "job?" + urlencode({"queue": queue, "id": job_id})


@dataclass
class Tab:
    """A page of the browser. `faults`: what the console of the browser has complained about."""

    page: Page
    url: str
    faults: list[str] = field(default_factory=list[str])

    async def open(self, path: str, heading: str | None = None) -> None:
        """Open a page and wait until it shows its data."""
        await self.page.goto(f"{self.url}/{path}")
        await self.settled(heading)

    async def settled(self, heading: str | None = None) -> None:
        if heading is not None:
            await expect(self.page.get_by_role("heading", level=1)).to_have_text(heading)
        await expect(self.page.locator(".loading")).to_have_count(0)

    async def be_hidden(self) -> None:
        """From now on the pages believe that the tab is hidden, so they do not change by themselves."""
        await self.page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true, configurable: true})")

    def table(self, caption: str) -> Any:
        return self.page.get_by_role("table", name=caption)


class OpenTab(Protocol):
    """Opens a tab. `status`: an answer with this status is expected, which the browser complains about."""

    def __call__(
        self, url: str | None = None, *, scheme: Scheme = "light", size: ViewportSize = WIDE, status: int = 0
    ) -> Awaitable[Tab]: ...


async def serve(stack: AsyncExitStack, app: ASGIApp, *, protected: bool = False) -> str:
    server = HTTPServer(app, ListenAddress("127.0.0.1", 0), purpose="the console", protected=protected)
    await stack.enter_async_context(server)
    return f"http://127.0.0.1:{server.address.port}"
