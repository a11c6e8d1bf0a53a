"""The buttons of the pages that change something: who has them, what they do, and what they say when refused."""

# The matchers of Playwright take patterns whose type has no parameter.
# pyright: reportUnknownMemberType=false

from contextlib import AsyncExitStack
from typing import Any

import pytest
from playwright.async_api import expect

from tenure import State
from tenure.console import Console, Tokens
from tenure.storage.protocol import ActsQuery
from tests.console.browser.tabs import OpenTab, Site, Tab, serve
from tests.console.browser.world import HOLDER

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

SECRET = "0123456789abcdef0123"


async def confirm(tab: Tab, name: str, *, reason: str = "") -> None:
    """Press a button of the page, and then the one in the dialog."""
    await tab.page.get_by_role("button", name=name, exact=True).first.click()
    dialog = tab.page.get_by_role("dialog")
    if reason:
        await dialog.get_by_label("Reason").fill(reason)
    await dialog.get_by_role("button", name=name, exact=True).click()


async def newest_act(site: Site) -> tuple[str, str, str | None, str | None]:
    (act,) = (await site.app.storage.acts(ActsQuery(limit=1))).acts
    return act.action, act.target, act.reason, act.verdict


async def test_a_job_is_cancelled_run_again_and_deleted(site: Site, new_tab: OpenTab) -> None:
    job = await site.app.find_task("mail.send").options(delay="1h").enqueue("ann")
    tab: Tab = await new_tab()
    await tab.open(site.job("mail", job.id), "mail.send")
    state = tab.page.locator("h1 ~ .badge")

    await tab.page.get_by_role("button", name="Cancel", exact=True).click()
    await tab.page.get_by_text("As a command").click()
    command = tab.page.get_by_role("dialog").locator("pre")
    await expect(command).to_contain_text(f"curl -X POST {tab.url}/api/v1/jobs/mail/{job.id}/cancel")
    await expect(command).to_contain_text("""-d '{"ended":null}'""")
    await tab.page.get_by_role("button", name="Back").click()
    await expect(tab.page.get_by_role("dialog")).to_have_count(0)
    await confirm(tab, "Cancel", reason="a mistake")
    await expect(state).to_have_text("cancelled")
    assert await newest_act(site) == ("jobs.cancel", f"mail/{job.id}", "a mistake", "done")

    await confirm(tab, "Run again")
    await expect(state).to_have_text("waiting")

    await confirm(tab, "Delete")
    await expect(tab.page.get_by_text("The job does not exist")).to_be_visible()
    assert await newest_act(site) == ("jobs.delete", f"mail/{job.id}", None, "done")
    # The page asks for the job that is gone.
    tab.faults.clear()


async def test_an_act_on_a_job_that_has_changed_is_refused(site: Site, new_tab: OpenTab) -> None:
    job = await site.app.find_task("mail.send").options(delay="1h").enqueue("ann")
    tab: Tab = await new_tab(status=409)
    await tab.open(site.job("mail", job.id), "mail.send")
    await tab.page.get_by_role("button", name="Cancel", exact=True).click()
    dialog: Any = tab.page.get_by_role("dialog")
    await expect(dialog).to_contain_text("It will not run.")
    await job.cancel()

    await dialog.get_by_role("button", name="Cancel", exact=True).click()
    await expect(dialog.get_by_role("alert")).to_contain_text("The job has changed since it was seen")
    await dialog.get_by_role("button", name="Back").click()
    await expect(dialog).to_have_count(0)


async def test_queues_schedules_and_workers_have_their_buttons(site: Site, new_tab: OpenTab) -> None:
    tab: Tab = await new_tab()
    await tab.open("queue?name=pay/eu", "pay/eu")
    await confirm(tab, "Pause")
    await expect(tab.page.get_by_role("button", name="Resume", exact=True)).to_be_visible()
    assert (await site.app.queue("pay/eu").settings()).paused
    await confirm(tab, "Resume")
    await expect(tab.page.get_by_role("button", name="Pause", exact=True)).to_be_visible()

    await tab.open("schedules", "Schedules")
    await tab.page.get_by_role("link", name="hourly", exact=True).click()
    await confirm(tab, "Run now")
    await expect(tab.page.get_by_role("dialog")).to_have_count(0)
    action, _, _, verdict = await newest_act(site)
    assert (action, verdict) == ("schedules.trigger", "created")

    await tab.open(f"workers?worker={HOLDER.id}", "Workers")
    await expect(tab.page.get_by_role("button", name="Quiet", exact=True)).to_be_visible()


@pytest.mark.parametrize(("role", "read_only"), [("read", False), ("admin", True)])
async def test_who_may_not_act_sees_no_button(site: Site, new_tab: OpenTab, role: str, read_only: bool) -> None:
    async with AsyncExitStack() as stack:
        console = Console(site.app, auth=Tokens(f"ann:{role}:{SECRET}"), read_only=read_only)
        tab: Tab = await new_tab(await serve(stack, console, protected=True), status=401)
        stack.push_async_callback(tab.page.close)
        await tab.open(site.job("mail", site.world.failed), "Sign in")
        await tab.page.get_by_label("Token").fill(SECRET)
        await tab.page.keyboard.press("Enter")
        await tab.settled("mail.break")
        await expect(tab.page.locator(".user")).to_contain_text("ann")

        await expect(tab.page.locator(".acts button")).to_have_count(0)
    assert (await site.app.job(site.world.failed, queue="mail").state()) is State.FAILED
