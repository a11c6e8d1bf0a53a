"""The pages in a real browser, with jobs from a storage on disk: what they show, and that no policy is violated."""

# The matchers of Playwright take patterns whose type has no parameter.
# pyright: reportUnknownMemberType=false

import re
from contextlib import AsyncExitStack
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi import FastAPI
from playwright.async_api import expect

from tenure import Tenure
from tenure.console import Console, Tokens
from tests.console.browser.tabs import NARROW, OpenTab, Site, Tab, serve
from tests.console.browser.world import LONG, MARKUP, beat

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

SECRET = "0123456789abcdef0123"


async def test_no_page_scrolls_sideways_on_a_phone(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab(size=NARROW)
    for path, heading in site.paths().items():
        await tab.open(path, heading)

        assert await tab.page.evaluate("document.documentElement.scrollWidth") <= 390, path


async def test_the_first_page_shows_queues_findings_and_faults(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab()
    await tab.open("", "Now")
    queues = tab.table("Queues with their jobs by state")

    await expect(queues.get_by_role("row")).to_have_count(6)
    await expect(queues.get_by_role("row", name="thumbnails")).to_contain_text("paused")
    await expect(queues.get_by_role("img", name="61 completed, 5 failed; 95 % waited up to")).to_be_visible()
    await expect(tab.page.locator(".callout").first).to_contain_text("which is paused")
    await expect(tab.page.locator(".callout").first).to_contain_text("tenure queues resume thumbnails")
    await expect(tab.page.locator(".tile", has_text="Delayed")).to_contain_text("13")
    await expect(tab.page.locator(".tile", has_text="Failed")).to_contain_text("5 in the last hour")
    await expect(tab.table("The newest stalls")).to_have_count(0)
    await tab.table("The faults with the most failed jobs").get_by_role("link", name="ConnectionError").click()
    await tab.settled("ConnectionError")
    await tab.page.go_back()
    await queues.get_by_role("row", name="pay/eu").get_by_role("link", name="pay/eu").click()
    await tab.settled("pay/eu")
    await expect(tab.table("Newest jobs of this queue").get_by_role("row")).to_have_count(3)


async def test_a_chart_has_its_numbers_in_words_and_in_a_table(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab()
    await tab.open("queue?name=mail", "mail")
    chart = tab.page.locator("figure").first

    await expect(chart.get_by_role("img", name="61 completed, 5 failed. Most in 1 min")).to_be_visible()
    await chart.get_by_text("Show the numbers").click()
    rows = tab.table("What ended in each step, the newest first").locator("tbody tr")
    numbers = await rows.locator("td:nth-child(2)").all_inner_texts()
    assert sum(map(int, numbers)) == 61
    waited = tab.page.get_by_role("img", name="66 durations: 50 % ≈")
    await expect(waited).to_have_count(2)

    await tab.page.get_by_label("In the last").select_option("30 days")
    await expect(chart).to_contain_text("each bar: 12 h")
    await expect(chart.get_by_role("img", name="61 completed, 5 failed. Most in 12 h: 66.")).to_be_visible()
    assert parse_qs(urlsplit(tab.page.url).query)["within"] == ["30d"]


async def test_a_task_shows_its_figures_and_is_paused(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab()
    await tab.open("tasks", "Tasks")
    await tab.table("Tasks that the app").get_by_role("link", name="mail.break").click()
    await tab.settled("mail.break")

    await expect(tab.page.get_by_role("img", name="5 failed. Most in 1 min")).to_be_visible()
    await expect(tab.page.locator(".facts").first).to_contain_text("number: int")
    for name, other in (("Pause", "Resume"), ("Resume", "Pause")):
        await tab.page.get_by_role("button", name=name, exact=True).click()
        await tab.page.get_by_role("dialog").get_by_role("button", name=name, exact=True).click()
        await expect(tab.page.get_by_role("button", name=other, exact=True)).to_be_visible()


async def test_leases_show_the_time_left_and_what_stalled(site: Site, new_tab: OpenTab) -> None:
    await beat(site.app, site.world.lease)
    tab: Tab = await new_tab()
    await tab.open("leases", "Leases")
    row = tab.table("Leases, the one with the least time left first").locator("tbody tr")

    await expect(row).to_have_count(1)
    await expect(row).to_contain_text("pay-3")
    await expect(row.locator("td").first).to_have_text(re.compile(r"^\d+ s$"))
    await expect(tab.page.get_by_text("No run has stalled")).to_be_visible()
    await row.get_by_role("link", name="pay-3").click()
    await expect(tab.page.locator("pre")).to_contain_text("in transfer")


async def test_a_fault_shows_when_its_jobs_failed(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab()
    await tab.open("failures", "Failures")
    await tab.page.get_by_role("link", name="ConnectionError").click()
    await tab.settled("ConnectionError")

    await expect(tab.page.get_by_role("img", name="4 failed within 48 hours")).to_be_visible()
    await expect(tab.table("Newest jobs with this fault").locator("tbody tr")).to_have_count(4)


async def test_a_filter_is_the_address_and_pages_follow(site: Site, new_tab: OpenTab) -> None:
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


async def test_a_wrong_filter_is_shown_with_its_remedy(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab(status=400)
    await tab.open("jobs?filter=state:faild", "Jobs")

    await expect(tab.page.get_by_role("alert")).to_contain_text("The filter is invalid")
    await expect(tab.page.get_by_role("alert")).to_contain_text("did you mean 'failed'?")


async def test_a_job_shows_why_it_does_not_run(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab()
    await tab.open(site.job("pay/eu", site.world.held), "charge")

    await expect(tab.page.locator(".why .cause")).to_contain_text("concurrency key 'account:9' is full")
    await tab.page.locator(".why .cause").get_by_role("link", name="Show that job").click()
    await expect(tab.page.locator(".facts").first).to_contain_text(site.world.active)
    await expect(tab.page.get_by_role("heading", level=1)).to_be_focused()


async def test_a_job_shows_each_run_with_its_post_mortem(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab()
    await tab.open(site.job(LONG, site.world.retried), "report.write")
    runs = tab.page.locator(".runs > li")

    await expect(runs).to_have_count(3)
    await expect(runs.nth(0)).to_contain_text("raised: TimeoutError")
    await expect(runs.nth(1)).to_contain_text("the warehouse did not answer report 1")
    await expect(runs.nth(2)).to_contain_text("completed")
    await expect(runs.nth(1)).to_contain_text("back-off")


async def test_a_job_shows_its_log_and_large_integers_exactly(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab()
    await tab.open(site.job("mail", site.world.sent), "mail.send")

    await expect(tab.table("What the handler has logged")).to_contain_text("to=ann@example.org")
    await expect(tab.page.locator("pre.value").nth(1)).to_contain_text(str(2**60))
    when = tab.page.locator("time").first
    assert str(await when.get_attribute("title")).endswith(" UTC")


async def test_faults_are_ordered_by_their_number_of_jobs_or_by_time(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab()
    await tab.open("failures", "Failures")
    rows = tab.table("Faults, the one with the most jobs first").locator("tbody tr")
    await expect(rows.first).to_contain_text("no route to server")

    await tab.page.get_by_label("Order").select_option("last seen")
    times = tab.table("Faults, the last seen first").locator("td:nth-child(6) time")
    await expect(times).to_have_count(2)
    seen = await times.evaluate_all("(found) => found.map((time) => time.dateTime)")
    assert seen == sorted(seen, reverse=True)
    assert parse_qs(urlsplit(tab.page.url).query)["order"] == ["last"]


async def test_markup_in_errors_is_text(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab()
    await tab.open("failures", "Failures")

    await expect(tab.page.get_by_text(MARKUP).first).to_be_visible()
    await expect(tab.page).to_have_title("Failures · Tenure")


async def test_workers_show_the_stacks_of_their_runs(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab()
    await tab.open("workers", "Workers")
    await tab.page.get_by_role("link", name="pay-3").click()

    await expect(tab.page.locator("pre")).to_contain_text("in transfer")


async def test_events_are_shown_newest_first_and_by_kind(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab()
    await tab.open("events", "Events")
    rows = tab.table("Newest events").locator("tbody tr")

    await expect(rows.first).to_contain_text("queue paused")
    await tab.page.get_by_label("Kind").select_option("failed")
    await expect(rows.first).to_contain_text("mail.break")
    assert set(await rows.locator("td:nth-child(2)").all_inner_texts()) == {"failed"}


async def test_a_token_is_asked_for_and_kept_in_the_tab(site: Site, new_tab: OpenTab) -> None:
    async with AsyncExitStack() as stack:
        console = Console(site.app, auth=Tokens(f"ann:read:{SECRET}"))
        tab: Tab = await new_tab(await serve(stack, console, protected=True), status=401)
        stack.push_async_callback(tab.page.close)
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
async def test_it_works_below_a_path(site: Site, new_tab: OpenTab, entry: str) -> None:
    web = FastAPI()
    web.mount("/a/b", Console(site.app))
    async with AsyncExitStack() as stack:
        tab: Tab = await new_tab(await serve(stack, web))
        stack.push_async_callback(tab.page.close)
        await tab.open(entry.removeprefix("/"))
        await tab.page.get_by_role("link", name="Jobs", exact=True).click()
        await tab.settled("Jobs")

        await expect(tab.table("Jobs, the newest first").locator("tbody tr")).to_have_count(50)
        assert urlsplit(tab.page.url).path == "/a/b/jobs"


async def test_the_theme_can_be_chosen_and_is_kept(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab(scheme="light")
    await tab.open("", "Now")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = await tab.page.evaluate(colour)

    await tab.page.get_by_label("Theme").select_option("dark")
    dark = await tab.page.evaluate(colour)
    await tab.page.reload()

    assert dark != light
    assert await tab.page.evaluate(colour) == dark


async def test_the_keyboard_reaches_the_content_and_shows_the_focus(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab()
    await tab.open("", "Now")
    await tab.page.keyboard.press("Tab")
    await expect(tab.page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await tab.page.keyboard.press("Tab")
    await tab.page.keyboard.press("Tab")
    await expect(tab.page.get_by_role("button", name="Search")).to_be_focused()
    await tab.page.keyboard.press("Tab")
    await tab.page.keyboard.press("Tab")

    link = tab.page.get_by_role("link", name="Jobs", exact=True)
    await expect(link).to_be_focused()
    assert await link.evaluate("(link) => getComputedStyle(link).outlineStyle") == "solid"
    await tab.page.keyboard.press("Enter")
    await tab.settled("Jobs")
    await expect(tab.page.get_by_role("heading", level=1)).to_be_focused()


async def test_a_hidden_tab_asks_for_nothing(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab()
    await tab.page.add_init_script("Object.defineProperty(document, 'hidden', {get: () => globalThis.unseen ?? false})")
    await tab.page.clock.install()
    await tab.open("schedules", "Schedules")
    asked: list[str] = []

    await tab.page.evaluate("globalThis.unseen = true; document.dispatchEvent(new Event('visibilitychange'))")
    tab.page.on("request", lambda request: asked.append(request.url))
    await tab.page.clock.run_for(60_000)
    assert asked == []

    async with tab.page.expect_request("**/api/v1/schedules"):
        await tab.page.evaluate("globalThis.unseen = false; document.dispatchEvent(new Event('visibilitychange'))")


async def test_data_that_is_not_current_is_marked(site: Site, new_tab: OpenTab) -> None:
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


async def test_a_long_table_is_shown_in_parts(new_tab: OpenTab) -> None:
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(Tenure("memory://"))

        @app.task(name="one")
        async def one() -> None: ...

        await app.enqueue_many([one.options(queue=f"queue-{number:04}").call() for number in range(1_000)])
        tab: Tab = await new_tab(await serve(stack, Console(app)))
        stack.push_async_callback(tab.page.close)
        await tab.open("", "Now")
        rows = tab.table("Queues with their jobs by state").locator("tbody tr")
        await expect(rows).to_have_count(100)
        await tab.page.get_by_role("button", name="Show 100 more of 1000").click()

        await expect(rows).to_have_count(200)
        await expect(rows.last).to_contain_text("queue-0199")
