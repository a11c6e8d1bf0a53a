"""Acts on all jobs that match, from the pages: counted first, with a window to undo them, and in the audit log."""

# The matchers of Playwright take patterns whose type has no parameter.
# pyright: reportUnknownMemberType=false

from contextlib import AsyncExitStack

import pytest
from playwright.async_api import Locator, expect

from tenure import State
from tenure.console import Console, Tokens
from tenure.core.internal import OPS_QUEUE
from tenure.storage.protocol import Query
from tests.console.browser.tabs import NARROW, OpenTab, Site, Tab, serve
from tests.console.browser.test_accessibility import violations

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

SECRET = "0123456789abcdef0123"
REPORT = "Operations, the newest first"


async def enqueue(site: Site, tag: str, count: int) -> None:
    task = site.app.find_task("mail.send").options(tags=[tag], delay="1h")
    await site.app.enqueue_many([task.call(f"{tag}{number}@example.org") for number in range(count)])


def chosen_in(tab: Tab) -> Locator:
    """Return the section of the chosen operation."""
    return tab.page.locator("section", has=tab.page.get_by_role("link", name="Close"))


async def states(site: Site, tag: str) -> set[State]:
    return {job.state for job in (await site.app.storage.find(Query(tags=(tag,), limit=500))).jobs}


async def plan(tab: Tab, filter_: str, action: str) -> None:
    """Open the dialog on all jobs of a filter, and let them be counted."""
    await tab.open(f"jobs?filter={filter_}", "Jobs")
    await tab.page.get_by_role("button", name="Act on all that match").click()
    await tab.page.get_by_label("Action").select_option(action)
    await tab.page.get_by_role("button", name="Count the jobs").click()


async def test_all_jobs_of_a_filter_are_cancelled_after_they_were_counted(site: Site, new_tab: OpenTab) -> None:
    await enqueue(site, "unwanted", 70)
    tab: Tab = await new_tab()
    await plan(tab, "tag:unwanted", "Cancel")
    dialog = tab.page.get_by_role("dialog")
    await expect(dialog.get_by_role("status")).to_contain_text("70 jobs would be cancelled.")
    await expect(dialog.get_by_role("status")).to_contain_text("mail.send: 70")
    await expect(dialog.locator("pre")).to_have_text("tenure jobs cancel --where tag:unwanted")

    await dialog.get_by_label("Reason").fill("sent twice")
    await dialog.get_by_role("button", name="Cancel: 70 jobs").click()
    await tab.settled("Operations")
    chosen = chosen_in(tab)
    await expect(chosen.locator(".badge")).to_have_text("done")
    await expect(chosen.get_by_text("70 of 70")).to_be_visible()
    await expect(tab.table(REPORT).locator("tbody tr")).to_have_count(1)
    await expect(tab.table("What operators did, the newest first")).to_contain_text("sent twice")
    assert await states(site, "unwanted") == {State.CANCELLED}

    await tab.page.get_by_role("link", name="Close").click()
    await expect(tab.page.get_by_role("link", name="Close")).to_have_count(0)
    await expect(tab.table(REPORT).locator("tbody tr")).to_have_count(1)


async def test_a_stop_within_the_window_undoes_an_operation(site: Site, new_tab: OpenTab) -> None:
    await enqueue(site, "kept", 3)
    # However slow this machine is, the operation waits for the stop.
    await site.app.queue(OPS_QUEUE).pause()
    tab: Tab = await new_tab()
    await plan(tab, "tag:kept", "Delete")
    dialog = tab.page.get_by_role("dialog")
    await expect(dialog).to_contain_text("It starts 10 s after the confirmation.")
    await dialog.get_by_role("button", name="Delete: 3 jobs").click()
    await tab.settled("Operations")

    await tab.page.get_by_role("button", name="Stop", exact=True).click()
    await expect(dialog).to_contain_text("If it has not started, nothing happens.")
    await dialog.get_by_role("button", name="Stop", exact=True).click()
    await expect(chosen_in(tab).locator(".badge")).to_have_text("undone")
    assert await states(site, "kept") == {State.DELAYED}
    await site.app.queue(OPS_QUEUE).resume()


async def test_the_jobs_of_a_fault_run_again_at_a_rate(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab()
    await tab.open(f"fault?fault={site.world.fault}", "ConnectionError")
    await tab.page.get_by_role("button", name="Run again").click()
    dialog = tab.page.get_by_role("dialog")
    await dialog.get_by_label("Jobs per second").fill("50")
    await dialog.get_by_role("button", name="Count the jobs").click()
    await dialog.get_by_role("button", name="Run again: 4 jobs").click()
    await tab.settled("Operations")

    chosen = chosen_in(tab)
    await expect(chosen.locator(".badge")).to_have_text("done")
    await expect(chosen).to_contain_text("50/s")
    found = await site.app.storage.find(Query(tasks=("mail.break",), states=(State.WAITING, State.DELAYED)))
    assert len(found.jobs) == 4


async def test_another_choice_must_be_counted_again(site: Site, new_tab: OpenTab) -> None:
    await enqueue(site, "counted", 2)
    tab: Tab = await new_tab(status=422)
    await plan(tab, "tag:counted", "Cancel")
    dialog = tab.page.get_by_role("dialog")
    await expect(dialog.get_by_role("button", name="Cancel: 2 jobs")).to_be_enabled()
    # The second click of a double click on the button that counted.
    await dialog.get_by_role("button", name="Cancel: 2 jobs").dispatch_event("click", {"detail": 2})
    await dialog.get_by_label("At most").fill("1")
    await dialog.get_by_role("button", name="Count the jobs").click()
    await expect(dialog.get_by_role("button", name="Cancel: 1 job")).to_be_visible()

    await dialog.get_by_label("Action").select_option("Run again")
    await dialog.get_by_label("At most").fill("")
    await dialog.get_by_role("button", name="Count the jobs").click()
    await expect(dialog.get_by_role("status")).to_contain_text("0 jobs would be run again.")
    await expect(dialog.get_by_role("button", name="Count the jobs")).to_be_disabled()
    assert await states(site, "counted") == {State.DELAYED}


async def test_axe_finds_nothing_in_the_dialog_and_it_fits_a_phone(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab(size=NARROW)
    await plan(tab, "task:mail.*", "Cancel")
    await expect(tab.page.get_by_role("dialog").get_by_role("status")).to_contain_text("would be cancelled")
    assert await tab.page.evaluate("document.querySelector('dialog[open]').scrollWidth") <= 390
    await tab.be_hidden()

    assert await violations(tab) == []


async def test_a_user_who_reads_has_no_act_on_many_jobs(site: Site, new_tab: OpenTab) -> None:
    async with AsyncExitStack() as stack:
        console = Console(site.app, auth=Tokens(f"ann:read:{SECRET}"))
        tab: Tab = await new_tab(await serve(stack, console, protected=True), status=401)
        stack.push_async_callback(tab.page.close)
        await tab.open("operations", "Sign in")
        await tab.page.get_by_label("Token").fill(SECRET)
        await tab.page.keyboard.press("Enter")
        await tab.settled("Operations")

        await expect(tab.table(REPORT)).to_be_visible()
        await expect(tab.page.get_by_text("The audit log is shown to admins")).to_be_visible()
        await tab.open("jobs", "Jobs")
        await expect(tab.table("Jobs, the newest first")).to_be_visible()
        await expect(tab.page.get_by_role("button", name="Act on all that match")).to_have_count(0)
