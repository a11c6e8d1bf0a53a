"""The stream of changes in the pages: one for all tabs of a browser, taken over when its tab is closed."""

# The matchers of Playwright take patterns whose type has no parameter.
# pyright: reportUnknownMemberType=false

import asyncio

import pytest
from playwright.async_api import Page, Request

from tenure.console import live
from tests.console.browser.tabs import OpenTab, Site, Tab

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

NEWEST_JOBS = """async () => {
    const main = document.querySelector("script[type=module]").src;
    const { frame } = await import(main.replace("main.js", "stream.js"));
    return frame.value?.kind === "changes" ? frame.value.jobs.map((job) => job.id) : [];
}"""


async def change(site: Site) -> str:
    """Make a job and cancel it, which is recorded as an event; return its id."""
    job = await site.app.find_task("mail.send").enqueue("ann")
    assert await job.cancel()
    return job.id


async def all_notice(site: Site, pages: list[Page]) -> None:
    """Make changes until a frame with one has come to all of these pages."""
    made: set[str] = set()
    async with asyncio.timeout(60):
        while True:
            made.add(await change(site))
            await asyncio.sleep(0.3)
            if all([made & {*await page.evaluate(NEWEST_JOBS)} for page in pages]):
                return


async def test_tabs_of_a_browser_share_one_stream(
    site: Site, new_tab: OpenTab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LIFETIME", 600.0)
    tab: Tab = await new_tab()
    streams: list[str] = []

    def note(request: Request) -> None:
        if request.url.endswith("/events/stream"):
            streams.append(request.url)

    context = tab.page.context
    context.on("request", note)
    await tab.open("jobs", "Jobs")
    others = [Tab(await context.new_page(), site.url) for _ in range(2)]
    for other in others:
        await other.open("events", "Events")

    await all_notice(site, [tab.page, *(other.page for other in others)])

    assert len(streams) == 1

    await tab.page.close()
    await all_notice(site, [other.page for other in others])

    assert len(streams) == 2
