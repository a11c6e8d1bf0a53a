"""The webhooks on the page of operations: their deliveries, a test message, a message that is sent again."""

# The matchers of Playwright take patterns whose type has no parameter.
# pyright: reportUnknownMemberType=false

from contextlib import AsyncExitStack

import pytest
from playwright.async_api import expect

from tenure import Retry
from tenure.console import Console
from tests.console.browser.tabs import OpenTab, Tab, serve
from tests.console.browser.test_accessibility import violations
from tests.console.browser.test_acts import confirm
from tests.webhooks.receivers import SECRET, answer, receiving
from tests.webhooks.test_deliveries import begin_to_read, fail, shop

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]


async def test_deliveries_are_shown_and_sent_again(new_tab: OpenTab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAY_SECRET", SECRET)
    up = False
    async with AsyncExitStack() as stack:
        hooks = await stack.enter_async_context(receiving(lambda _: answer("200 OK") if up else answer("500 Oh no")))
        app = await stack.enter_async_context(shop(hooks, retry=Retry(max_attempts=1)))
        await begin_to_read(app.storage)
        tab: Tab = await new_tab(await serve(stack, Console(app)))
        stack.push_async_callback(tab.page.close)
        await tab.open("operations", "Operations")
        await fail(app)
        await tab.table("Webhooks").get_by_role("link", name="pay", exact=True).click()
        row = tab.table("Deliveries of pay, the newest first").locator("tbody tr")

        await expect(row).to_contain_text("failed")
        await expect(row).to_contain_text("the receiver answered 500 Oh no")
        await expect(row.get_by_role("link", name="pay")).to_be_visible()
        await tab.page.get_by_role("button", name="Send a test").click()
        dialog = tab.page.get_by_role("dialog")
        await dialog.get_by_role("button", name="Send a test").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("the receiver answered 500 Oh no")
        await dialog.get_by_role("button", name="Back").click()
        await expect(dialog).to_have_count(0)

        up = True
        await confirm(tab, "Send a test")
        await expect(dialog).to_have_count(0)
        await confirm(tab, "Send again")
        await expect(row.locator(".badge")).to_have_text("completed")
        await confirm(tab, "Pause")
        await expect(tab.table("Webhooks")).to_contain_text("paused")
        await confirm(tab, "Resume")
        await expect(tab.page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
        await tab.be_hidden()
        assert await violations(tab) == []
