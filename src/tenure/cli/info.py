"""`tenure info`: shows queues, workers and the leader, once or live."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from tenure.cli.access import StorageAccess, accessed
from tenure.cli.exits import OK, UNHEALTHY
from tenure.cli.queues import QUEUE_COLUMNS, queue_row
from tenure.cli.render import as_json, console, drawn, moment_text, on_terminal, printable, span_text, table
from tenure.cli.session import CommandSession, length, storage
from tenure.ops.slow_runs import Slow
from tenure.ops.views import InfoView, WorkerView, info_view

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN = 10
"""How many slow runs are listed."""


@click.command()
@storage
@click.option("-w", "--watch", is_flag=True, help="Go on showing it until interrupted.")
@click.option(
    "--every",
    type=length("--every"),
    metavar="DURATION",
    default="1s",
    show_default=True,
    help="How often, with --watch.",
)
@click.option("--check", is_flag=True, help="Exit with 3 if something needs a person.")
@click.pass_obj
def info(session: CommandSession, watch: bool, every: timedelta, check: bool) -> int:
    """Show queues, workers and who leads.

    Needs no worker to be running. Runs are named that go on for more than ten times as long as is usual for their task,
    and for a minute at least. With --check it exits with 3 if jobs wait and nobody serves their queue, if a
    worker is stale, or if work is under way and nobody sweeps.
    """
    return asyncio.run(_watched(session, every.total_seconds()) if watch else _once(session, check=check))


async def _once(session: CommandSession, *, check: bool) -> int:
    async with accessed(session) as access:
        seen = await _look(access, Slow())
    if not as_json(session, seen):
        _shown(session, seen)
    return UNHEALTHY if check and seen.complaints else OK


async def _watched(session: CommandSession, every: float) -> int:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    slow = Slow()
    async with accessed(session) as access:
        with _screen(session) as show:
            while not over.is_set():
                show(await _look(access, slow))
                try:
                    async with asyncio.timeout(every):
                        await over.wait()
                except TimeoutError:
                    continue
    return OK


async def _look(access: StorageAccess, slow: Slow) -> InfoView:
    survey = await access.storage.survey()
    found = await slow.look(access.storage, survey)
    return info_view(survey, url=access.storage.url, timing=access.timing, slow=found)


@contextmanager
def _screen(session: CommandSession) -> Generator[Callable[[InfoView], None]]:
    if session.form != "table" or not on_terminal():
        yield lambda seen: _line(session, seen)
        return
    from rich.live import Live

    with Live(console=console(session), auto_refresh=False) as live:
        yield lambda seen: live.update(_drawn(seen), refresh=True)


def _shown(session: CommandSession, seen: InfoView) -> None:
    if on_terminal():
        console(session).print(_drawn(seen))
        return
    table(session, QUEUE_COLUMNS, list(map(queue_row, seen.queues)), title="queues", whole=QUEUE_COLUMNS)
    click.echo()
    table(session, _WORKER_COLUMNS, _worker_rows(seen), title="workers")
    click.echo()
    for said in (*_paused(seen), _leading(seen), *_slow(seen), *seen.complaints):
        click.echo(printable(said))


def _line(session: CommandSession, seen: InfoView) -> None:
    """Print a survey as one line, so that a log of them can be read."""
    # Print one object per line: indented objects could not be separated.
    if session.form != "table" and as_json(replace(session, form="jsonl"), seen):
        return
    queues = "; ".join(
        f"{queue.queue}{' (paused)' if queue.paused else ''}: "
        + (", ".join(f"{count} {state}" for state, count in queue.counts.items() if count) or "empty")
        for queue in seen.queues
    )
    died = sum(worker.died for worker in seen.workers)
    stale = sum(worker.stale for worker in seen.workers) - died
    workers = f"{len(seen.workers) - stale - died} workers alive, {stale} stale" + f", {died} died" * (died > 0)
    slow = [f"{len(seen.slow)} runs far beyond their usual time"] if seen.slow else []
    parts = (queues or "no queues", *_paused(seen), workers, _leading(seen), *slow)
    click.echo(printable(f"{moment_text(seen.now)}  {' | '.join(parts)}"))


def _drawn(seen: InfoView) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    return Group(
        drawn(QUEUE_COLUMNS, list(map(queue_row, seen.queues)), title="queues", whole=QUEUE_COLUMNS),
        drawn(_WORKER_COLUMNS, _worker_rows(seen), title="workers"),
        *(Text(printable(said), style="yellow") for said in _paused(seen)),
        Text(printable(_leading(seen))),
        *(Text(printable(said), style="yellow") for said in _slow(seen)),
        *(Text(printable(complaint), style="red") for complaint in seen.complaints),
    )


_WORKER_COLUMNS = ("worker", "host", "pid", "queues", "running", "seen", "state")


def _worker_rows(seen: InfoView) -> list[list[str]]:
    return [
        [
            worker.name,
            worker.host,
            str(worker.pid),
            ",".join(worker.queues),
            f"{worker.active}/{worker.concurrency}",
            f"{span_text(worker.seen_ago)} ago",
            _state(worker),
        ]
        for worker in seen.workers
    ]


def _state(worker: WorkerView) -> str:
    if worker.died:
        return "died"
    return "stale" if worker.stale else "stopping" if worker.stopping else "quiet" if worker.quiet else "alive"


def _paused(seen: InfoView) -> list[str]:
    return [f"paused tasks: {', '.join(seen.paused_tasks)}"] if seen.paused_tasks else []


def _slow(seen: InfoView) -> list[str]:
    said = [
        f"job {one.id} ({one.task}) has run for {span_text(one.ran)}, and 19 in 20 of its task's take no longer than "
        f"{span_text(one.usual)}"
        for one in seen.slow[:SHOWN]
    ]
    more = len(seen.slow) - len(said)
    if said:
        said.append(f"{f'and {more} more; ' if more else ''}tenure workers stack shows where they are")
    return said


def _leading(seen: InfoView) -> str:
    names = {worker.owner: worker.name for worker in seen.workers}
    # On a Redis Cluster each partition has a leader, usually the same one.
    cells = Counter(names.get(leader.owner, leader.owner) for leader in seen.leaders)
    leaders = ", ".join(name if count == 1 else f"{name} ({count} cells)" for name, count in cells.items())
    swept = "never swept" if seen.swept_ago is None else f"last swept {span_text(seen.swept_ago)} ago"
    return f"leader: {leaders or 'none'}, {swept}"
