"""`tenure top`: shows queues, workers, faults and runs on the whole terminal, again and again."""

import asyncio
import signal
from dataclasses import replace
from datetime import timedelta

import click

from tenure.cli.access import accessed, reach
from tenure.cli.exits import OK
from tenure.cli.render import as_json, styled, terminal_width
from tenure.cli.screen import Screen, has_screen
from tenure.cli.session import CommandSession, length, storage
from tenure.cli.top_frame import frame
from tenure.errors import SchemaMismatchError, StorageError
from tenure.ops.access import StorageAccess, must_exist
from tenure.ops.top import Top, TopView
from tenure.waiting import first

LIMIT = 5.0
"""Seconds that the storage gets to answer; then it is shown as unreachable."""


@click.command()
@storage
@click.option(
    "--every",
    type=length("--every"),
    metavar="DURATION",
    default="2s",
    show_default=True,
    help="Time between two refreshes.",
)
@click.option("--once", is_flag=True, help="Print one frame and exit, as without a terminal.")
@click.pass_obj
def top(session: CommandSession, every: timedelta, once: bool) -> int:
    """Watch queues, workers, faults and runs live.

    Needs no running worker. It fits the terminal; `q` or Ctrl-C ends it. Jobs per second are averaged over the last ten
    seconds; they come from the event log, so that deleted jobs count, too. The queue with the most active and waiting
    jobs is first. Faults are the newest of those with the most failed jobs. `oldest`: how long the oldest waiting job
    has waited. `lag`: of the worker's event loop. `beat`: how long ago the worker's last beat was.
    """
    if once or session.output_format != "table" or not has_screen():
        return asyncio.run(_once(session))
    return asyncio.run(_live(session, every.total_seconds()))


async def _once(session: CommandSession) -> int:
    async with accessed(session) as access:
        view = await Top(access).look()
    if not as_json(session, view):
        # A terminal shows the beginning of the frame, and can scroll to the rest.
        for line in frame(view, url=view.url, width=terminal_width() or 80, height=None):
            click.echo(styled(line), color=None if session.color else False)
    return OK


async def _live(session: CommandSession, every: float) -> int:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    # A warning would be written into the frame.
    access = reach(replace(session, quiet=True))
    must_exist(access.storage)
    display = _Display(access, color=session.color)

    def pressed(key: str) -> None:
        if key in _QUIT:
            stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        with Screen(pressed=pressed, changed=display.draw) as screen:
            await first(display.refresh(screen, every), stopped.wait())
    finally:
        await access.storage.close()
    return OK


class _Display:
    """The frame on the screen: the last figures, and why there are no newer ones."""

    def __init__(self, access: StorageAccess, *, color: bool) -> None:
        self._storage = access.storage
        self._top = Top(access)
        self._color = color
        self._screen: Screen | None = None
        self._view: TopView | None = None
        self._trouble = "connecting"

    async def refresh(self, screen: Screen, every: float) -> None:
        """Read the figures and draw them, until cancelled. A storage that is unreachable is asked again.

        Raises:
            SchemaMismatchError: the storage is not Tenure's, or has another schema version.
        """
        self._screen = screen
        self.draw()
        while True:
            try:
                async with asyncio.timeout(LIMIT):
                    await self._storage.open()
                    self._view, self._trouble = await self._top.look(), ""
            except SchemaMismatchError:
                raise
            except (StorageError, TimeoutError) as error:
                # The line above names the storage.
                why = str(error).removeprefix(f"{self._storage.url} ") or f"no answer within {LIMIT:g} s"
                self._trouble = f"{'trying again' if self._view is None else 'old figures, trying again'}: {why}"
            self.draw()
            await asyncio.sleep(every)

    def draw(self) -> None:
        """Draw the frame in the present size of the screen."""
        if self._screen is None:
            return
        width, height = self._screen.size
        lines = frame(
            self._view, url=self._storage.url, width=width, height=height, trouble=self._trouble, hint="q: quit"
        )
        self._screen.draw([styled(line) if self._color else "".join(text for text, _ in line) for line in lines])


_QUIT = ("q", "Q", "")
"""The keys that end the command; an empty text: the terminal is gone."""
