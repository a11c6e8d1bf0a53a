"""The browser of the tests: the system's Chromium, never one that playwright downloads."""

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import Browser

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")

FLAGS = ("--disable-dev-shm-usage", "--font-render-hinting=none", "--force-color-profile=srgb")


def browser_program() -> str | None:
    """Return the path of the browser, None if it is missing."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


def missing_browser() -> str | None:
    """Return why the browser is missing, None if it is there."""
    return None if browser_program() else f"a browser: none of {', '.join(PROGRAMS)} is on the PATH"


@asynccontextmanager
async def chromium() -> "AsyncGenerator[Browser]":
    """Start the browser."""
    # Importing it takes half a second, and each run of pytest imports this module.
    from playwright.async_api import async_playwright

    # Its sandbox cannot be made by root, who runs the tests in containers.
    flags = [*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=browser_program(), args=flags)
        try:
            yield browser
        finally:
            await browser.close()
