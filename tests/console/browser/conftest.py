"""The site of each file of tests, and the tabs of each test."""

# The matchers of Playwright take patterns whose type has no parameter.
# pyright: reportUnknownMemberType=false

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import ViewportSize

from tenure import Tenure
from tenure.console import Console
from tests.browsers import chromium
from tests.console.browser.tabs import WIDE, OpenTab, Scheme, Site, Tab, serve
from tests.console.browser.world import fill, tasks_of


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> AsyncIterator[Site]:
    path = tmp_path_factory.mktemp("console") / "queue.db"
    shutil.copyfile(empty_database, path)
    app = Tenure(f"sqlite:///{path}")
    tasks_of(app)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app)
        world = await fill(app, size=120)
        browser = await stack.enter_async_context(chromium())
        yield Site(app, world, await serve(stack, Console(app)), browser)


@pytest_asyncio.fixture(loop_scope="module")
async def new_tab(site: Site) -> AsyncIterator[OpenTab]:
    """Return a function that opens a tab. At the end no tab may have complained."""
    tabs: list[Tab] = []

    async def new(
        url: str | None = None, *, scheme: Scheme = "light", size: ViewportSize = WIDE, status: int = 0
    ) -> Tab:
        context = await site.browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        page = await context.new_page()
        page.set_default_timeout(20_000)
        tab = Tab(page, site.url if url is None else url)

        def note(kind: str, text: str) -> None:
            if kind in ("error", "warning") and not (status and f"a status of {status}" in text):
                tab.faults.append(f"{kind}: {text}")

        page.on("console", lambda message: note(message.type, message.text))
        page.on("pageerror", lambda error: note("error", str(error)))
        tabs.append(tab)
        return tab

    yield new
    for tab in tabs:
        await tab.page.context.close()
    assert [tab.faults for tab in tabs] == [[]] * len(tabs)
