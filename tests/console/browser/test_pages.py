"""The pages in a real browser, with jobs from a storage on disk: what they show, and that no policy is violated."""

# The matchers of Playwright take patterns whose type has no parameter.
# pyright: reportUnknownMemberType=false

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
import pytest_asyncio
from fastapi import FastAPI
from playwright.async_api import Browser, Page, ViewportSize, expect

from tenure import Tenure
from tenure.console import Console, Tokens
from tenure.http.asgi import ASGIApp
from tenure.http.server import HTTPServer, ListenAddress
from tests.browsers import chromium
from tests.console.browser.world import HOLDER, LONG, MARKUP, World, fill, tasks_of

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

# The default of 5 s is too short for a machine that does much else.
expect.set_options(timeout=30_000)

SECRET = "0123456789abcdef0123"

NARROW = ViewportSize(width=390, height=844)
WIDE = ViewportSize(width=1280, height=900)


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
            "": "Overview",
            "jobs": "Jobs",
            "failures": "Failures",
            f"workers?worker={HOLDER.id}": "Workers",
            "schedules": "Schedules",
            "events": "Events",
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

    def table(self, caption: str) -> Any:
        return self.page.get_by_role("table", name=caption)


async def serve(stack: AsyncExitStack, app: ASGIApp, *, protected: bool = False) -> str:
    server = HTTPServer(app, ListenAddress("127.0.0.1", 0), purpose="the console", protected=protected)
    await stack.enter_async_context(server)
    return f"http://127.0.0.1:{server.address.port}"


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


Open = Callable[..., Any]


@pytest_asyncio.fixture(loop_scope="module")
async def new_tab(site: Site) -> AsyncIterator[Open]:
    """Return a function that opens a tab. At the end no tab may have complained."""
    tabs: list[Tab] = []

    async def new(
        url: str = site.url, *, scheme: Literal["dark", "light"] = "light", size: ViewportSize = WIDE, status: int = 0
    ) -> Tab:
        """Open a tab. `status`: an answer with this status is expected, which the browser complains about."""
        context = await site.browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        page = await context.new_page()
        page.set_default_timeout(20_000)
        tab = Tab(page, url)

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


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_each_page_shows_its_data_in_readable_colours(site: Site, new_tab: Open, scheme: str) -> None:
    tab: Tab = await new_tab(scheme=scheme)
    for path, heading in site.paths().items():
        await tab.open(path, heading)

        assert await tab.page.evaluate(FAINT) == [], path
        assert await tab.page.locator("main table:not(:has(caption))").count() == 0
        await expect(tab.page.get_by_role("alert")).to_have_count(0)


FAINT = """() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (text) => {
    const linear = (one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = parts(text).map((one) => linear(one / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const back = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (parts(colour)[3] !== 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const [high, low] = [light(style.color), light(back(element))].sort((a, b) => b - a);
    const name = `${element.tagName}.${element.className} ${element.textContent.slice(0, 30)}`;
    if ((high + 0.05) / (low + 0.05) < 4.5) found.push(name);
  }
  return found;
}"""
"""Returns the elements whose text has a contrast of less than 4.5 to what is behind it."""


async def test_no_page_scrolls_sideways_on_a_phone(site: Site, new_tab: Open) -> None:
    tab: Tab = await new_tab(size=NARROW)
    for path, heading in site.paths().items():
        await tab.open(path, heading)

        assert await tab.page.evaluate("document.documentElement.scrollWidth") <= 390, path


async def test_the_overview_shows_queues_workers_and_what_is_paused(site: Site, new_tab: Open) -> None:
    tab: Tab = await new_tab()
    await tab.open("", "Overview")
    queues = tab.table("Queues with their jobs by state")

    await expect(queues.get_by_role("row")).to_have_count(6)
    await expect(queues.get_by_role("row", name="thumbnails")).to_contain_text("paused")
    await expect(tab.table("Workers")).to_contain_text("pay-3")
    await expect(tab.page.locator(".tile", has_text="Delayed")).to_contain_text("13")
    await queues.get_by_role("row", name="pay/eu").get_by_role("link", name="pay/eu").click()
    await tab.settled("pay/eu")
    await expect(tab.table("Newest jobs of this queue").get_by_role("row")).to_have_count(3)


async def test_a_filter_is_the_address_and_pages_follow(site: Site, new_tab: Open) -> None:
    tab: Tab = await new_tab()
    await tab.open("jobs", "Jobs")
    rows = tab.table("Jobs, the newest first").locator("tbody tr")
    await expect(rows).to_have_count(50)
    newest = await rows.first.inner_text()

    await tab.page.get_by_role("link", name="Older").click()
    await expect(rows.first).not_to_have_text(newest)
    await tab.page.get_by_role("link", name="Newest").click()
    await expect(tab.page.get_by_role("link", name="Newest")).to_have_count(0)

    await tab.page.get_by_label("Filter", exact=True).fill("task:mail.break error:Value*")
    await tab.page.keyboard.press("Enter")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text(MARKUP)
    assert parse_qs(urlsplit(tab.page.url).query)["filter"] == ["task:mail.break error:Value*"]

    await tab.page.get_by_role("link", name="failed", exact=True).click()
    await expect(tab.page.get_by_label("Filter", exact=True)).to_have_value("state:failed task:mail.break error:Value*")
    await tab.page.go_back()
    await expect(tab.page.get_by_label("Filter", exact=True)).to_have_value("task:mail.break error:Value*")


async def test_a_wrong_filter_is_shown_with_its_remedy(site: Site, new_tab: Open) -> None:
    tab: Tab = await new_tab(status=400)
    await tab.open("jobs?filter=state:faild", "Jobs")

    await expect(tab.page.get_by_role("alert")).to_contain_text("The filter is invalid")
    await expect(tab.page.get_by_role("alert")).to_contain_text("did you mean 'failed'?")


async def test_a_job_shows_why_it_does_not_run(site: Site, new_tab: Open) -> None:
    tab: Tab = await new_tab()
    await tab.open(site.job("pay/eu", site.world.held), "charge")

    await expect(tab.page.locator(".why .cause")).to_contain_text("concurrency key 'account:9' is full")
    await tab.page.locator(".why .cause").get_by_role("link", name="Show that job").click()
    await expect(tab.page.locator(".facts").first).to_contain_text(site.world.active)
    await expect(tab.page.get_by_role("heading", level=1)).to_be_focused()


async def test_a_job_shows_each_run_with_its_post_mortem(site: Site, new_tab: Open) -> None:
    tab: Tab = await new_tab()
    await tab.open(site.job(LONG, site.world.retried), "report.write")
    runs = tab.page.locator(".runs > li")

    await expect(runs).to_have_count(3)
    await expect(runs.nth(0)).to_contain_text("raised: TimeoutError")
    await expect(runs.nth(1)).to_contain_text("the warehouse did not answer report 1")
    await expect(runs.nth(2)).to_contain_text("completed")


async def test_a_job_shows_its_log_and_large_integers_exactly(site: Site, new_tab: Open) -> None:
    tab: Tab = await new_tab()
    await tab.open(site.job("mail", site.world.sent), "mail.send")

    await expect(tab.table("What the handler has logged")).to_contain_text("to=ann@example.org")
    await expect(tab.page.locator("pre.value").nth(1)).to_contain_text(str(2**60))
    when = tab.page.locator("time").first
    assert str(await when.get_attribute("title")).endswith(" UTC")


async def test_markup_in_errors_is_text(site: Site, new_tab: Open) -> None:
    tab: Tab = await new_tab()
    await tab.open("failures", "Failures")

    await expect(tab.page.get_by_text(MARKUP).first).to_be_visible()
    await expect(tab.page).to_have_title("Failures · Tenure")


async def test_workers_show_the_stacks_of_their_runs(site: Site, new_tab: Open) -> None:
    tab: Tab = await new_tab()
    await tab.open("workers", "Workers")
    await tab.page.get_by_role("link", name="pay-3").click()

    await expect(tab.page.locator("pre")).to_contain_text("in transfer")


async def test_events_are_shown_newest_first_and_by_kind(site: Site, new_tab: Open) -> None:
    tab: Tab = await new_tab()
    await tab.open("events", "Events")
    rows = tab.table("Newest events").locator("tbody tr")

    await expect(rows.first).to_contain_text("queue paused")
    await tab.page.get_by_label("Kind").select_option("failed")
    await expect(rows.first).to_contain_text("mail.break")
    assert set(await rows.locator("td:nth-child(2)").all_inner_texts()) == {"failed"}


async def test_a_token_is_asked_for_and_kept_in_the_tab(site: Site, new_tab: Open) -> None:
    async with AsyncExitStack() as stack:
        console = Console(site.app, auth=Tokens(f"ann:read:{SECRET}"))
        tab: Tab = await new_tab(await serve(stack, console, protected=True), status=401)
        asked: list[str] = []
        tab.page.on("request", lambda request: asked.extend([request.url] if "/api/" in request.url else []))
        await tab.open("schedules", "Sign in")

        await tab.page.get_by_label("Token").fill("wrong-wrong-wrong-wrong")
        await tab.page.keyboard.press("Enter")
        await expect(tab.page.get_by_role("alert")).to_contain_text("The token is not valid")
        assert len(asked) <= 4
        await tab.page.get_by_label("Token").fill(SECRET)
        await tab.page.keyboard.press("Enter")
        await tab.settled("Schedules")
        await expect(tab.table("Schedules with their last and next ticks")).to_contain_text("Europe/Vienna")
        await tab.page.reload()
        await tab.settled("Schedules")
        await tab.page.get_by_role("button", name="Sign out").click()
        await tab.settled("Sign in")


@pytest.mark.parametrize("entry", ["/a/b", "/a/b/", "/a/b/failures", "/a/b/no/such/page"])
async def test_it_works_below_a_path(site: Site, new_tab: Open, entry: str) -> None:
    web = FastAPI()
    web.mount("/a/b", Console(site.app))
    async with AsyncExitStack() as stack:
        tab: Tab = await new_tab(await serve(stack, web))
        await tab.open(entry.removeprefix("/"))
        await tab.page.get_by_role("link", name="Jobs", exact=True).click()
        await tab.settled("Jobs")

        await expect(tab.table("Jobs, the newest first").locator("tbody tr")).to_have_count(50)
        assert urlsplit(tab.page.url).path == "/a/b/jobs"


async def test_the_theme_can_be_chosen_and_is_kept(site: Site, new_tab: Open) -> None:
    tab: Tab = await new_tab(scheme="light")
    await tab.open("", "Overview")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = await tab.page.evaluate(colour)

    await tab.page.get_by_label("Theme").select_option("dark")
    dark = await tab.page.evaluate(colour)
    await tab.page.reload()

    assert dark != light
    assert await tab.page.evaluate(colour) == dark


async def test_the_keyboard_reaches_the_content_and_shows_the_focus(site: Site, new_tab: Open) -> None:
    tab: Tab = await new_tab()
    await tab.open("", "Overview")
    await tab.page.keyboard.press("Tab")
    await expect(tab.page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await tab.page.keyboard.press("Tab")
    await tab.page.keyboard.press("Tab")
    await tab.page.keyboard.press("Tab")

    link = tab.page.get_by_role("link", name="Jobs", exact=True)
    await expect(link).to_be_focused()
    assert await link.evaluate("(link) => getComputedStyle(link).outlineStyle") == "solid"
    await tab.page.keyboard.press("Enter")
    await tab.settled("Jobs")
    await expect(tab.page.get_by_role("heading", level=1)).to_be_focused()


async def test_a_hidden_tab_asks_for_nothing(site: Site, new_tab: Open) -> None:
    tab: Tab = await new_tab()
    await tab.page.add_init_script("Object.defineProperty(document, 'hidden', {get: () => globalThis.unseen ?? false})")
    await tab.page.clock.install()
    await tab.open("schedules", "Schedules")
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))

    await tab.page.evaluate("globalThis.unseen = true")
    await tab.page.clock.run_for(60_000)
    assert asked == []

    async with tab.page.expect_request("**/api/v1/schedules"):
        await tab.page.evaluate("globalThis.unseen = false; document.dispatchEvent(new Event('visibilitychange'))")


async def test_data_that_is_not_current_is_marked(site: Site, new_tab: Open) -> None:
    async with AsyncExitStack() as stack:
        tab: Tab = await new_tab(await serve(stack, Console(site.app)))
        await tab.page.clock.install()
        await tab.open("schedules", "Schedules")
    await tab.page.clock.run_for(5_000)

    await expect(tab.page.get_by_text("Not current.")).to_be_visible()
    await expect(tab.page.get_by_text("The console cannot be reached").first).to_be_visible()
    await expect(tab.table("Schedules with their last and next ticks")).to_be_visible()
    await tab.page.clock.run_for(1_000)
    await expect(tab.page.locator("#announcer")).to_contain_text("The console cannot be reached")
    tab.faults.clear()
