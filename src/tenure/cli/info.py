"""`tenure info`: shows queues, workers and the leader, once or live."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from tenure.cli.access import accessed
from tenure.cli.exits import OK, UNHEALTHY
from tenure.cli.queues import QUEUE_COLUMNS, QUEUE_COUNTS, queue_row
from tenure.cli.render import as_json, console, drawn, draws, moment_text, printable, span_text, table
from tenure.cli.session import CommandSession, length, storage
from tenure.ops.access import StorageAccess
from tenure.ops.slow_runs import Slow
from tenure.ops.views import InfoView, LeaderView, WorkerView, info_view

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN = 10
"""How many slow runs are listed."""


@click.command()
@storage
@click.option("-w", "--watch", is_flag=True, help="Refresh until interrupted.")
@click.option(
    "--every",
    type=length("--every"),
    metavar="DURATION",
    default="1s",
    show_default=True,
    help="Time between two refreshes with --watch.",
)
@click.option("--check", is_flag=True, help="Exit with 3 if something needs attention.")
@click.pass_obj
def info(session: CommandSession, watch: bool, every: timedelta, check: bool) -> int:
    """Show queues, workers and the leader.

    Needs no running worker. Runs are listed if they take over ten times as long as is usual for their task, and a
    minute or more. With --check it exits with 3 if jobs wait and no worker serves their queue, if a worker is stale, or
    if jobs are active and no process sweeps.
    """
    return asyncio.run(_watched(session, every.total_seconds()) if watch else _once(session, check=check))


async def _once(session: CommandSession, *, check: bool) -> int:
    async with accessed(session) as access:
        info = await _look(access, Slow())
    if not as_json(session, info):
        _shown(session, info)
    return UNHEALTHY if check and info.complaints else OK


async def _watched(session: CommandSession, every: float) -> int:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    slow = Slow()
    async with accessed(session) as access:
        with _screen(session) as show:
            while not stopped.is_set():
                show(await _look(access, slow))
                try:
                    async with asyncio.timeout(every):
                        await stopped.wait()
                except TimeoutError:
                    continue
    return OK


async def _look(access: StorageAccess, slow: Slow) -> InfoView:
    survey = await access.storage.survey()
    found = await slow.look(access.storage, survey)
    return info_view(survey, url=access.storage.url, timing=access.timing, slow=found)


@contextmanager
def _screen(session: CommandSession) -> Generator[Callable[[InfoView], None]]:
    if session.output_format != "table" or not draws():
        yield lambda info: _line(session, info)
        return
    from rich.live import Live

    with Live(console=console(session), auto_refresh=False) as live:
        yield lambda info: live.update(_drawn(info), refresh=True)


def _shown(session: CommandSession, info: InfoView) -> None:
    table(session, QUEUE_COLUMNS, list(map(queue_row, info.queues)), title="queues", whole=QUEUE_COUNTS)
    click.echo()
    table(session, _WORKER_COLUMNS, _worker_rows(info), title="workers")
    click.echo()
    color = None if session.color else False
    for line, style in _remarks(info):
        click.echo(click.style(printable(line), fg=style), color=color)


def _remarks(info: InfoView) -> list[tuple[str, str | None]]:
    """Return the lines below the tables, each with its colour."""
    return [
        *((line, "yellow") for line in _paused(info)),
        (_leading(info), None),
        *((line, "yellow") for line in _slow(info)),
        *((complaint, "red") for complaint in info.complaints),
    ]


def _line(session: CommandSession, info: InfoView) -> None:
    """Print a survey as one line, so that a log of them can be read."""
    # Print one object per line: indented objects could not be separated.
    if session.output_format != "table" and as_json(replace(session, output_format="jsonl"), info):
        return
    queues = "; ".join(
        f"{queue.queue}{' (paused)' if queue.paused else ''}: "
        + (", ".join(f"{count} {state}" for state, count in queue.counts.items() if count) or "empty")
        for queue in info.queues
    )
    died = sum(worker.died for worker in info.workers)
    stale = sum(worker.stale for worker in info.workers) - died
    workers = f"{len(info.workers) - stale - died} workers alive, {stale} stale" + f", {died} died" * (died > 0)
    slow = [f"{len(info.slow)} runs far longer than usual"] if info.slow else []
    parts = (queues or "no queues", *_paused(info), workers, _leading(info), *slow)
    click.echo(printable(f"{moment_text(info.now)}  {' | '.join(parts)}"))


def _drawn(info: InfoView) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    return Group(
        drawn(QUEUE_COLUMNS, list(map(queue_row, info.queues)), title="queues", whole=QUEUE_COUNTS),
        Text(),
        drawn(_WORKER_COLUMNS, _worker_rows(info), title="workers"),
        Text(),
        *(Text(printable(line), style=style or "") for line, style in _remarks(info)),
    )


_WORKER_COLUMNS = ("worker", "host", "pid", "queues", "running", "seen", "state")


def _worker_rows(info: InfoView) -> list[list[str]]:
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
        for worker in info.workers
    ]


def _state(worker: WorkerView) -> str:
    if worker.died:
        return "died"
    return "stale" if worker.stale else "stopping" if worker.stopping else "quiet" if worker.quiet else "alive"


def _paused(info: InfoView) -> list[str]:
    return [f"paused tasks: {', '.join(info.paused_tasks)}"] if info.paused_tasks else []


def _slow(info: InfoView) -> list[str]:
    lines = [
        f"job {run.id} ({run.task}) has run for {span_text(run.ran)}; 95 % of its task's runs take at most "
        f"{span_text(run.usual)}"
        for run in info.slow[:SHOWN]
    ]
    more = len(info.slow) - len(lines)
    if lines:
        lines.append(f"{f'and {more} more; ' if more else ''}see their stacks with tenure workers stack")
    return lines


def leading(leaders: Iterable[LeaderView], names: Mapping[str, str], swept_ago: float | None) -> str:
    """Return who leads, and when a leader last swept. `names`: the names of workers by their owner ids."""
    # On a Redis Cluster each partition has a leader, usually the same one.
    partitions = Counter(names.get(leader.owner, leader.owner) for leader in leaders)
    shown = ", ".join(name if count == 1 else f"{name} ({count} partitions)" for name, count in partitions.items())
    swept = "never swept" if swept_ago is None else f"last swept {span_text(swept_ago)} ago"
    return f"leader: {shown or 'none'}, {swept}"


def _leading(info: InfoView) -> str:
    return leading(info.leaders, {worker.owner: worker.name for worker in info.workers}, info.swept_ago)
