"""`tenure move`: moves jobs, schedules and settings to another storage."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager

import click

from tenure.cli.access import shared
from tenure.cli.acts import acting
from tenure.cli.exits import OK, UNHEALTHY
from tenure.cli.logs import warn
from tenure.cli.render import as_json, console, draws, printable, table
from tenure.cli.session import CommandSession, output
from tenure.clock import SystemClock
from tenure.ops.access import must_exist
from tenure.ops.move import Move, MoveReport
from tenure.storage.protocol import Storage
from tenure.storage.urls import locate

_COLUMNS = ("queue", "wait", "delay", "fail", "active", "moved", "held", "known")
_EVERY = 1.0
"""Seconds between two lines about the progress."""

OnProgress = Callable[[str, int, int], None]


@click.command()
@output
@click.option("--from", "source", required=True, metavar="URL", help="The storage that the jobs leave.")
@click.option("--to", "target", required=True, metavar="URL", help="The storage that they move to.")
@click.option("--dry-run", is_flag=True, help="Count what would move, and change nothing.")
@click.option("--while-running", is_flag=True, help="Move although workers of the source run; they claim no more jobs.")
@click.option("--plain", is_flag=True, help="Show the progress as lines, not as a bar.")
@click.pass_obj
def move(session: CommandSession, source: str, target: str, dry_run: bool, while_running: bool, plain: bool) -> int:
    """Move waiting, delayed and failed jobs to another storage.

    The jobs keep their ids, records, runs and logs; schedules and settings move with them. Active, completed, cancelled
    and expired jobs stay. The source is marked: it gives out no jobs, and an enqueue there raises StorageMovedError
    with the new address. Safe to repeat after a kill at any point: no job is lost or runs twice. To undo it, move back.

    Exits with 0 if everything has moved, 3 if jobs, schedules or calls stay that a later run can move.
    """
    warn(quiet=session.quiet)
    report = asyncio.run(_moved(session, source, target, dry_run=dry_run, while_running=while_running, plain=plain))
    if not as_json(session, report) and not session.quiet:
        _show(session, report)
    return OK if report.complete or report.dry_run else UNHEALTHY


async def _moved(
    session: CommandSession, source: str, target: str, *, dry_run: bool, while_running: bool, plain: bool
) -> MoveReport:
    async with AsyncExitStack() as stack:
        leaves, arrives = await _opened(stack, source), await _opened(stack, target, create=not dry_run)
        if dry_run:
            return await Move(leaves, arrives, while_running=while_running).plan()
        # Each storage keeps its own audit log, so both have the act.
        acts = [
            await stack.enter_async_context(acting(leaves, "jobs.move", "*", change=f"to={arrives.url}")),
            await stack.enter_async_context(acting(arrives, "jobs.move", "*", change=f"from={leaves.url}")),
        ]
        with _progress(session, plain=plain) as on_progress:
            report = await Move(leaves, arrives, while_running=while_running, on_progress=on_progress).run()
        for act in acts:
            act.verdict = "done" if report.complete else "incomplete"
            act.count = sum(queue.moved for queue in report.queues)
        return report


async def _opened(stack: AsyncExitStack, url: str, *, create: bool = False) -> Storage:
    storage = shared(locate(url, auto_migrate=create))
    if not create:
        must_exist(storage)
    await storage.open()
    stack.push_async_callback(storage.close)
    return storage


@contextmanager
def _progress(session: CommandSession, *, plain: bool) -> Generator[OnProgress]:
    """Yield a function that shows the progress on stderr: as a bar if rich can draw one, else a line each second."""
    if session.quiet or session.output_format != "table":
        yield lambda queue, done, total: None
    elif draws() and not plain:
        from rich.progress import Progress, TaskID

        with Progress(console=console(session), transient=True) as progress:
            bars: dict[str, TaskID] = {}

            def draw(queue: str, done: int, total: int) -> None:
                if queue not in bars:
                    bars[queue] = progress.add_task(printable(queue))
                progress.update(bars[queue], completed=done, total=total)

            yield draw
    else:
        clock, said_at = SystemClock(), float("-inf")

        def write(queue: str, done: int, total: int) -> None:
            nonlocal said_at
            if (now := clock.uptime()) - said_at >= _EVERY:
                said_at = now
                click.echo(printable(f"queue {queue}: {done} of {total} jobs"), err=True)

        yield write


def _show(session: CommandSession, report: MoveReport) -> None:
    rows = [
        [
            one.queue,
            *(str(count) for count in (one.waiting, one.delayed, one.failed, one.active)),
            *("-" if report.dry_run else str(count) for count in (one.moved, one.held, one.known)),
        ]
        for one in report.queues
    ]
    table(session, _COLUMNS, rows, whole=_COLUMNS[1:])
    click.echo()
    for line in _remarks(report):
        click.echo(printable(line))


def _remarks(report: MoveReport) -> list[str]:
    """Return what the columns do not say."""
    moved = sum(one.moved for one in report.queues)
    lines = [
        f"would move from {report.source} to {report.target}; schedules: {report.schedules}"
        if report.dry_run
        else f"moved {moved} jobs and {report.schedules} schedules from {report.source} to {report.target}"
    ]
    if active := sum(one.active for one in report.queues):
        lines.append(
            f"{active} active jobs stay: they end where they run, or a reaper recovers them there (tenure reaper); "
            "then run this command again"
        )
    if held := sum(one.held for one in report.queues):
        lines.append(f"{held} jobs are held: an active job of the source has their concurrency key; run this again")
    if report.schedules_held:
        lines.append(f"{report.schedules_held} schedules are held: a job of theirs is active; run this command again")
    if known := sum(one.known for one in report.queues):
        lines.append(f"{known} jobs stay: the target knows their ids, or another job there holds their unique keys")
    if report.newer_calls:
        lines.append(
            f"{report.newer_calls} calls of users' transactions stay: a newer version stored them; "
            "run tenure move of that version"
        )
    if report.clock_ahead:
        lines.append(f"the target's clock is {report.clock_ahead:+.0f} s from the source's; times move as they are")
    return lines
