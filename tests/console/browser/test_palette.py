"""The palette and the keys: reached by the keyboard alone, as a combobox, with the focus back where it was."""

import shlex
from urllib.parse import parse_qs, urlsplit

import click
import pytest
from playwright.async_api import Locator, expect

from tenure.cli.main import root
from tests.console.browser.tabs import NARROW, OpenTab, Site, Tab
from tests.console.browser.world import LONG

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]


def field_of(tab: Tab) -> Locator:
    return tab.page.get_by_role("combobox", name="Go to a page")


def entries_of(tab: Tab) -> Locator:
    return tab.page.get_by_role("dialog").get_by_role("option")


async def expect_chosen(tab: Tab, text: str) -> None:
    """Expect that the entry with this text is chosen, and that the field names it as its active one."""
    entry = tab.page.get_by_role("dialog").get_by_role("option", selected=True)
    await expect(entry).to_have_text(text)
    await expect(field_of(tab)).to_have_attribute("aria-activedescendant", await entry.get_attribute("id") or "")


async def test_the_palette_goes_to_a_page_and_returns_the_focus(site: Site, new_tab: OpenTab) -> None:
    tab = await new_tab()
    await tab.open("", "Now")
    link = tab.page.get_by_role("link", name="Workers", exact=True)
    await link.focus()
    await tab.page.keyboard.press("Control+k")
    await expect(field_of(tab)).to_be_focused()
    await tab.page.keyboard.press("Escape")
    await expect(link).to_be_focused()
    # The browser says that the dialog is closed a moment later.
    await expect(tab.page.locator("dialog.palette *")).to_have_count(0)

    await tab.page.keyboard.press("Meta+k")
    await expect(entries_of(tab).first).to_be_visible()
    await expect_chosen(tab, "Now")
    await tab.page.keyboard.press("ArrowDown")
    await expect_chosen(tab, "Jobs")
    await tab.page.keyboard.press("ArrowUp")
    await tab.page.keyboard.press("ArrowUp")
    await expect_chosen(tab, "Turn the key / off")
    await tab.page.keyboard.type("sched")
    await tab.page.keyboard.press("Enter")
    await tab.settled("Schedules")
    await expect(tab.page.get_by_role("heading", level=1)).to_be_focused()
    await expect(tab.page.get_by_role("dialog")).to_have_count(0)


async def test_the_button_opens_the_palette_on_a_phone(site: Site, new_tab: OpenTab) -> None:
    tab = await new_tab(size=NARROW)
    await tab.open("schedules", "Schedules")
    button = tab.page.get_by_role("button", name="Search")
    await button.click()
    await field_of(tab).fill(LONG[:20])
    await expect(entries_of(tab)).to_have_text([LONG])
    assert await tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    await tab.page.get_by_role("button", name="Close").click()
    await expect(button).to_be_focused()

    await button.click()
    await field_of(tab).fill(LONG)
    await entries_of(tab).click()
    await tab.settled(LONG)


async def test_a_job_is_found_by_its_id_with_its_commands(site: Site, new_tab: OpenTab) -> None:
    tab = await new_tab()
    await tab.open("failures", "Failures")
    await tab.page.keyboard.press("Control+k")
    await field_of(tab).fill(site.world.held)

    await expect(tab.page.get_by_role("group", name="Jobs").get_by_role("option")).to_contain_text("charge")
    about = tab.page.get_by_role("group", name="Commands about that job, to copy").get_by_role("option")
    await expect(about.first).to_have_text(f"tenure jobs why {site.world.held}")
    await tab.page.keyboard.press("Enter")
    await tab.settled("charge")


async def test_a_filter_leads_to_the_jobs_that_it_selects(site: Site, new_tab: OpenTab) -> None:
    tab = await new_tab()
    await tab.open("", "Now")
    await tab.page.keyboard.press("/")
    await expect(field_of(tab)).to_be_focused()
    await field_of(tab).fill("task:mail.break state:failed")
    await tab.page.keyboard.press("Enter")
    await tab.settled("Jobs")

    assert parse_qs(urlsplit(tab.page.url).query)["filter"] == ["task:mail.break state:failed"]
    await tab.page.get_by_role("heading", level=1).focus()
    await tab.page.keyboard.press("/")
    await expect(tab.page.get_by_label("Filter", exact=True)).to_be_focused()
    await tab.page.keyboard.type("/")
    await expect(tab.page.get_by_label("Filter", exact=True)).to_have_value("/")


async def test_the_key_slash_can_be_turned_off(site: Site, new_tab: OpenTab) -> None:
    tab = await new_tab()
    await tab.open("jobs", "Jobs")
    await tab.page.keyboard.press("Control+k")
    await field_of(tab).fill("turn the key")
    await tab.page.keyboard.press("Enter")
    await expect(tab.page.get_by_role("dialog").get_by_role("status")).to_have_text("The key / is off.")
    await tab.page.reload()
    await tab.settled("Jobs")
    await tab.page.keyboard.press("/")

    await expect(tab.page.get_by_label("Filter", exact=True)).not_to_be_focused()


async def test_a_command_is_copied_and_said(site: Site, new_tab: OpenTab) -> None:
    tab = await new_tab()
    await tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await tab.open("queue?name=pay/eu", "pay/eu")
    await tab.page.keyboard.press("Control+k")
    await field_of(tab).fill("queues pause")
    await tab.page.keyboard.press("Enter")

    said = tab.page.get_by_role("dialog").get_by_role("status")
    await expect(said).to_have_text("Copied: tenure queues pause pay/eu")
    assert await tab.page.evaluate("navigator.clipboard.readText()") == "tenure queues pause pay/eu"
    await expect(field_of(tab)).to_be_focused()
    await tab.page.evaluate("delete Navigator.prototype.clipboard")
    await field_of(tab).fill("queues resume")
    await tab.page.keyboard.press("Enter")
    await expect(said).to_have_text("Copied: tenure queues resume pay/eu")
    await expect(field_of(tab)).to_have_value("tenure queues resume pay/eu")


async def test_each_command_is_one_that_the_command_line_takes(site: Site, new_tab: OpenTab) -> None:
    tab = await new_tab(status=404)
    paths = {**site.paths(), 'jobs?filter=task:"it\'s a task"': "Jobs", "queue?name=-x": "-x"}
    lines: set[str] = set()
    for path, heading in paths.items():
        await tab.open(path, heading)
        await tab.page.keyboard.press("Control+k")
        await expect(entries_of(tab).first).to_be_visible()
        lines |= set(await tab.page.locator(".entry .id").all_inner_texts())

    assert len(lines) > 30
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "tenure"
        command: click.Command | None = root
        name = program
        with root.make_context("tenure", list(words), resilient_parsing=True) as context:
            while isinstance(command, click.Group):
                found, command, words = command.resolve_command(context, words)
                name = found or name
            assert command is not None, line
            command.make_context(name, list(words), parent=context)
