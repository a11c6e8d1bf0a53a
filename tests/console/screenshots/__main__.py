"""Makes the screenshots of the documentation: `make screenshots`.

It runs the shop of `shop.py` on SQLite with real workers, kills one of them, and takes pictures of the console's
pages while the rest still work. `--keep` serves the console until Ctrl-C instead of taking pictures.
"""

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode

from msgspec import Struct
from playwright.async_api import Browser

from tenure.console import Console
from tenure.core.lifecycle import State
from tenure.http.server import HTTPServer, ListenAddress
from tenure.storage.protocol import Query
from tests.browsers import chromium
from tests.console.screenshots import shop

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "images"

LARGEST = 150_000
"""Bytes that a picture may have."""

WITHIN = 120.0
"""Seconds until the load must have come to what the pictures show."""


MOVED = """(folder) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(folder, "/srv/shop");
}"""
"""Replaces the temporary folder in the text of the page."""


class Shot(Struct, frozen=True):
    """A picture: its file, the path of its page, and how it is taken."""

    name: str
    path: str
    scheme: Literal["dark", "light"] = "light"
    width: int = 1200
    height: int = 800
    palette: bool = False


@contextmanager
def worker(url: str, *options: str) -> Generator[subprocess.Popen[bytes]]:
    """Run a worker of the shop in a group of its own, and end it."""
    command = [sys.executable, "-m", "tenure", "worker", "shop:app", "--url", url, *options]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
        process.wait(60)


async def enqueue(size: int) -> None:
    """Enqueue the load; most of it is mail. The first report shows how long one takes, so the stuck one is too slow."""
    many = shop.app.enqueue_many
    await many([shop.report.call("west", month) for month in range(1, 13)])
    await many([shop.welcome.call(f"customer{number}@example.org", number) for number in range(size)])
    await many([shop.render.call(order) for order in range(size // 4)])
    await many([shop.capture.call(number % 40, 900 + number) for number in range(size // 8)])
    await many([shop.index.options(delay="10m").call(product) for product in range(size // 10)])
    await many([shop.thumbnail.call(f"/products/{number}/front.jpg") for number in range(size // 20)])
    for unwanted in await many([shop.thumbnail.call(f"/products/old-{number}.jpg") for number in range(3)]):
        await unwanted.cancel()
    await shop.app.queue("thumbnails").pause()
    await shop.import_catalog.enqueue("suppliers/nord.csv")
    await shop.import_catalog.enqueue("suppliers/huge.csv")
    await shop.settle.enqueue(9)
    await shop.settle.enqueue(9)


async def job_of(task: str, *states: State, traced: bool = False) -> str:
    """Return the queue and the id of the newest job of a task in one of these states, once there is one.

    `traced`: once a beat has brought the stack of its run, too.
    """
    until = time.monotonic() + WITHIN
    while time.monotonic() < until:
        page = await shop.app.storage.find(Query(tasks=(task,), states=states, limit=1))
        details = await shop.app.storage.get([job.ref for job in page.jobs])
        runs = [run for detail in details if detail is not None for run in detail.runs]
        if page.jobs and (not traced or any(run.trace is not None for run in runs)):
            return urlencode({"queue": page.jobs[0].queue, "id": page.jobs[0].id})
        await asyncio.sleep(0.2)
    raise TimeoutError(f"no job of {task} is {' or '.join(states)} after {WITHIN:g} s")


@asynccontextmanager
async def loaded(size: int) -> AsyncGenerator[str]:
    """Run the load; yield the address of the console while workers are at it."""
    with tempfile.TemporaryDirectory(prefix="tenure-shots-") as folder:
        # The pages show the address of the storage and the files of stacks.
        os.chdir(folder)
        shutil.copyfile(str(shop.__file__), "shop.py")
        url = "sqlite:///shop.db"
        shop.app.use_url(url)
        async with shop.app:
            await enqueue(size)
            with worker(url, "--name", "web-1", "--processes", "2", "--concurrency", "6"):
                # Killed with its supervisor, so that its jobs wait until their leases are out.
                with worker(url, "--name", "batch-7", "--queue", "billing", "--no-reaper") as victim:
                    await job_of("payment.settle", State.ACTIVE)
                    os.killpg(victim.pid, signal.SIGKILL)
                await job_of("catalog.import", State.FAILED)
                await job_of("catalog.import", State.COMPLETED)
                await shop.report.enqueue("east", 11)
                await job_of("report.monthly", State.ACTIVE, traced=True)
                async with HTTPServer(
                    Console(shop.app), ListenAddress("127.0.0.1", 0), purpose="the console", protected=False
                ) as server:
                    yield f"http://127.0.0.1:{server.address.port}"


async def shots() -> list[Shot]:
    """Return the pictures to take."""
    crashed = await job_of("catalog.import", State.COMPLETED)
    stuck = await job_of("report.monthly", State.ACTIVE)
    active = await shop.app.storage.find(Query(tasks=("report.monthly",), states=(State.ACTIVE,), limit=1))
    return [
        Shot("overview", ""),
        Shot("job", f"job?{crashed}", height=1000),
        Shot("failures", "failures", height=560),
        Shot("worker", f"workers?worker={active.jobs[0].owner}", scheme="dark"),
        Shot("palette", f"job?{stuck}", scheme="dark", palette=True),
        Shot("phone", "", width=390, height=844),
    ]


async def take(browser: Browser, url: str, shot: Shot) -> None:
    """Take a picture.

    Raises:
        ValueError: it is too large.
    """
    context = await browser.new_context(
        viewport={"width": shot.width, "height": shot.height}, color_scheme=shot.scheme, reduced_motion="reduce"
    )
    page = await context.new_page()
    await page.goto(f"{url}/{shot.path}")
    await page.locator(".loading").wait_for(state="detached")
    await page.locator("main h1").wait_for()
    if shot.palette:
        await page.keyboard.press("Control+k")
        await page.get_by_role("group", name="Queues").wait_for()
    path = FOLDER / f"console-{shot.name}.png"
    await page.evaluate(MOVED, os.getcwd())
    picture = await page.screenshot(path=path, animations="disabled")
    await context.close()
    print(f"{path.relative_to(ROOT)}: {len(picture) / 1000:.0f} kB")
    if len(picture) > LARGEST:
        raise ValueError(f"{path.name} has {len(picture):,} bytes, more than {LARGEST:,}: make its page smaller")


async def main() -> None:
    """Run the load, and take the pictures or serve the pages."""
    parser = argparse.ArgumentParser(prog="make screenshots", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=400, help="how many mails the load has (400)")
    parser.add_argument("--keep", action="store_true", help="serve the console until Ctrl-C")
    args = parser.parse_args()
    async with loaded(args.size) as url:
        if args.keep:
            print(url, flush=True)
            await asyncio.Event().wait()
        async with chromium() as browser:
            for shot in await shots():
                await take(browser, url, shot)


if __name__ == "__main__":
    asyncio.run(main())
