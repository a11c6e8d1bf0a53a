"""The stream of changes in the pages: one for all tabs of a browser, taken over when its tab is closed."""

# The matchers of Playwright take patterns whose type has no parameter.
# pyright: reportUnknownMemberType=false

import asyncio

import pytest
from playwright.async_api import Page, Request

from tenure.console import live
from tests.console.browser.tabs import OpenTab, Site, Tab

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

FRAMES = """
    const main = document.querySelector("script[type=module]").src;
    const { frame } = await import(main.replace("main.js", "stream.js"));
"""
"""The module whose signal `frame` has the newest frame."""

FIRST = f"async () => {{ {FRAMES} await new Promise((done) => frame.subscribe((found) => found && done())); }}"
"""Resolves when the tab has a frame."""

ALL_WAIT = """async (tabs) => {
    for (;;) {
        const { held, pending } = await navigator.locks.query();
        if (held.length === 1 && held.length + pending.length === tabs) return;
        await new Promise(requestAnimationFrame);
    }
}"""
"""Resolves when one of so many tabs follows the stream, and the others wait for their turn."""

NAMED = f"""async (id) => {{ {FRAMES}
    const has = (found) => found?.kind === "changes" && found.jobs.some((job) => job.id === id);
    await new Promise((done) => frame.subscribe((found) => has(found) && done()));
}}"""
"""Resolves when a frame names this job."""


async def all_notice(site: Site, pages: list[Page]) -> None:
    """Change a job, and wait until a frame that names it has come to all of these pages."""
    job = await site.app.find_task("mail.send").options(delay="1h").enqueue("ann")
    noticed = [asyncio.create_task(page.evaluate(NAMED, job.id)) for page in pages]
    assert await job.cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(*noticed)


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

    await tab.page.evaluate(ALL_WAIT, 3)
    await tab.page.evaluate(FIRST)

    await all_notice(site, [tab.page, *(other.page for other in others)])

    assert len(streams) == 1

    # The tab that takes over goes on after the last frame, so it misses nothing.
    await tab.page.close()
    await all_notice(site, [other.page for other in others])

    assert len(streams) == 2
