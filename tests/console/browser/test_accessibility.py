"""What axe-core finds on each page, and what a screen reader is given: the files in `goldens`.

`make goldens` rewrites them.
"""

import os
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from tests.console.browser.tabs import NARROW, WIDE, OpenTab, Scheme, Site, Tab
from tests.console.browser.world import beat

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

GOLDENS = Path(__file__).parent / "goldens"

SIZES = {"wide": WIDE, "390 px": NARROW}
SCHEMES: tuple[Scheme, ...] = ("light", "dark")

CHECKED = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations.flatMap(({ id, nodes }) =>
    nodes.map((node) => `${id}: ${node.target.join(" ")}: ${node.failureSummary}`));
}"""


async def violations(tab: Tab) -> list[str]:
    """Return what axe-core finds, in both colour schemes and sizes."""
    # As a text: the policy of the pages allows no script of another origin, and none inline.
    await tab.page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    found: list[str] = []
    for name, size in SIZES.items():
        await tab.page.set_viewport_size(size)
        for scheme in SCHEMES:
            await tab.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            found += [f"{name}, {scheme}: {text}" for text in await tab.page.evaluate(CHECKED)]
    return found


async def test_axe_finds_nothing_on_any_page(site: Site, new_tab: OpenTab) -> None:
    tab = await new_tab(status=404)
    found: dict[str, Any] = {}
    for path, heading in {**site.paths(), "nothing": "This page does not exist"}.items():
        await tab.open(path, heading)
        await tab.be_hidden()
        found[path or "now"] = await violations(tab)

    assert {path: texts for path, texts in found.items() if texts} == {}


async def test_axe_finds_what_is_wrong(site: Site, new_tab: OpenTab) -> None:
    tab = await new_tab()
    await tab.open("jobs", "Jobs")
    await tab.page.evaluate("document.querySelector('label[for=filter]').remove()")
    await tab.page.evaluate("document.querySelector('.help').style.color = 'rgb(170, 180, 190)'")
    found = "\n".join(await violations(tab))

    assert "wide, light: color-contrast: #filter-help" in found
    assert "390 px, dark: label-title-only: #filter" in found


async def test_axe_finds_nothing_in_the_palette_and_on_problems(site: Site, new_tab: OpenTab) -> None:
    tab = await new_tab(status=400)
    await tab.open("jobs?filter=state:faild", "Jobs")
    await tab.be_hidden()
    assert await violations(tab) == []
    await tab.page.keyboard.press("Control+k")
    await expect(tab.page.get_by_role("group", name="Queues")).to_be_visible()

    assert await violations(tab) == []


async def test_axe_finds_nothing_on_a_page_that_is_not_current(site: Site, new_tab: OpenTab) -> None:
    tab = await new_tab()
    await tab.open("", "Now")
    await tab.page.context.set_offline(True)
    # One message says it for all parts of the page.
    await expect(tab.page.get_by_text("Not current.").filter(visible=True)).to_have_count(1)
    await expect(tab.page.locator(".outdated .outdated").first).to_be_visible()
    await tab.be_hidden()
    tab.faults.clear()

    assert await violations(tab) == []


MASKS = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "ID"),
    (r"…[0-9a-f]{6}\b", "…ID"),
    (r"/url: .*", "/url: …"),
    (r"sqlite:///\S+/", "sqlite:///"),
    (r"\b[0-9a-f]{16}\b", "OWNER"),
    (r"\b[\w.-]+:\d{2,}\b", "HOST:PID"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ UTC", "INSTANT"),
    (r"(?:−?\b[\d.]+ (?:ms|s|min|h|d)\b ?)+", "SPAN "),
    (r"(?:in )?SPAN (?:ago)?", "SPAN "),
    (r"time: now", "time: SPAN"),
    # Pauses of less than a millisecond are not shown.
    (r"(?:(?:delayed|back-off|waited) SPAN ?,? ?)+", "PAUSES "),
    # Whether all runs ended within one minute.
    (r"Most SPAN : \d+", "Most SPAN: N"),
    # The newest of the jobs with this fault decides, and they run side by side.
    (r"no route to server \d", "no route to server N"),
)
"""What differs from run to run, and what stands for it in a golden."""


def masked(text: str) -> str:
    for pattern, replacement in MASKS:
        text = re.sub(pattern, replacement, text)
    return re.sub(r" +$", "", text, flags=re.MULTILINE) + "\n"


async def test_a_screen_reader_is_given_what_the_goldens_say(site: Site, new_tab: OpenTab) -> None:
    tab = await new_tab()
    found: dict[str, str] = {}
    for path, heading in site.paths().items():
        await beat(site.app, site.world.lease)
        # Jobs that run side by side end in any order.
        await tab.open(path.replace("events", "events?kind=cancelled"), heading)
        await tab.be_hidden()
        found[heading] = masked(await tab.page.locator(".frame").aria_snapshot())
    await tab.page.keyboard.press("Control+k")
    await expect(tab.page.get_by_role("group", name="Tasks")).to_be_visible()
    found["palette"] = masked(await tab.page.get_by_role("dialog").aria_snapshot())
    names = {heading: f"{re.sub(r'[^a-z]+', '-', heading.lower())[:40]}.yml" for heading in found}
    if os.environ.get("TENURE_WRITE_GOLDENS"):
        for heading, text in found.items():
            (GOLDENS / names[heading]).write_text(text)

    assert set(names.values()) == {path.name for path in GOLDENS.glob("*.yml")}
    for heading, text in found.items():
        assert text == (GOLDENS / names[heading]).read_text(), heading
