"""`tenure health`: shows whether jobs are being run, as text and as an exit code."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import click

from tenure.cli.access import reach
from tenure.cli.exits import FAILURE, NOT_FOUND, OK, UNHEALTHY, leave
from tenure.cli.http import backlog_of, backlogged, closed, opener
from tenure.cli.load import load
from tenure.cli.logs import set_up
from tenure.cli.render import as_json, printable, span_text, table
from tenure.cli.session import CommandSession, storage
from tenure.clock import SystemClock
from tenure.core.check import named
from tenure.errors import UsageError
from tenure.health.asgi import HealthApp
from tenure.health.assessment import Health
from tenure.health.auth import TokenAuth
from tenure.health.build import thresholds
from tenure.health.monitor import StorageMonitor

PACE = 0.5
"""Seconds between two surveys while a backlog is above its threshold."""


@click.command()
@storage
@click.argument("target", required=False, metavar="[MODULE:APP]")
@click.option(
    "-q", "--queue", "queues", multiple=True, metavar="QUEUE,...", help="Check only these queues; by default all."
)
@backlogged
@click.pass_obj
def health(
    session: CommandSession,
    target: str | None,
    queues: tuple[str, ...],
    backlog: tuple[str, ...],
    backlog_for: timedelta,
) -> int:
    """Check that jobs are served; needs no running worker.

    Exits with 0 if all is well, 3 if jobs wait and no live worker serves them or a backlog has lasted too long, 4 if
    the only problem is an unknown queue in -q, 1 if the storage is unreachable. The age of a backlog is unknown at
    first: with --backlog the command watches until the backlog is below its threshold, or has lasted for --backlog-for.
    """
    # Problems are printed on stdout, so the log does not repeat them.
    set_up("critical", "text", quiet=True)
    if target is not None:
        if session.url is not None:
            raise UsageError(f"{target} has a storage of its own; give either --url or the app")
        session.app = target
    only = [named(name.strip(), field="-q") for names in queues for name in names.split(",")]
    found, hangs = asyncio.run(_found(session, only, backlog_of(backlog, backlog_for)))
    if not as_json(session, found):
        _shown(session, found)
    code = _code(found)
    if hangs:
        # A storage that does not answer blocks a thread, and the interpreter would wait for that thread at exit.
        leave(code)
    return code


def _code(found: Health) -> int:
    match found.status:
        case "ok":
            return OK
        case "unreachable":
            return FAILURE
        case _:
            unhealthy = [queue for queue in found.queues.values() if queue.status != "ok"]
            return UNHEALTHY if any(queue.known for queue in unhealthy) else NOT_FOUND


async def _found(
    session: CommandSession, only: list[str], backlog: tuple[dict[str, int], timedelta]
) -> tuple[Health, bool]:
    access = reach(session)
    tasks = load(session.app, folder=session.app_dir).tasks if session.url is None and session.app is not None else {}
    watch = StorageMonitor(opener(access.storage), clock=SystemClock(), thresholds=thresholds(*backlog))
    app = HealthApp(
        watch, TokenAuth(None), timing=lambda: access.timing, queues=lambda: {task.queue for task in tasks.values()}
    )
    survey = await watch.look()
    found = await app.health(only, survey=survey)
    while found.status not in ("unhealthy", "unreachable") and any(
        queue.above_for is not None for queue in found.queues.values()
    ):
        await asyncio.sleep(min(PACE, backlog[1].total_seconds()))
        survey = await watch.look()
        found = await app.health(only, survey=survey)
    if not survey.hung:
        await closed(access.storage)
    return found, survey.hung


def _shown(session: CommandSession, found: Health) -> None:
    click.echo(found.status)
    for complaint in found.complaints:
        click.echo(printable(complaint))
    if found.status != "unreachable" and not session.quiet:
        click.echo()
        counts = (*_COUNTS, "suspended") if any(queue.suspended for queue in found.queues.values()) else _COUNTS
        table(session, ("queue", "status", *counts), [_row(name, found, counts) for name in found.queues])
        alive = sum(worker.state == "alive" for worker in found.workers)
        swept = "never swept" if found.reaper.age is None else f"last swept {span_text(found.reaper.age)} ago"
        quiet_workers = sum(worker.state == "quiet" for worker in found.workers)
        quiet = f", {quiet_workers} quiet" if quiet_workers else ""
        click.echo(f"\n{alive} of {len(found.workers)} workers alive{quiet}, {swept}")


_COUNTS = ("waiting", "delayed", "active", "completed", "failed")


def _row(name: str, found: Health, counts: Sequence[str]) -> list[str]:
    queue = found.queues[name]
    return [name, queue.status, *(str(getattr(queue, state)) for state in counts)]
