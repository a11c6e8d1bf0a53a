"""`tenure serve`: serves health over HTTP, in a process that runs no jobs."""

import asyncio
import contextlib
import logging
import signal

import click

from tenure.cli.access import reach
from tenure.cli.exits import OK
from tenure.cli.http import DEFAULT_ADDRESS, Http, closed, opener, served_at
from tenure.cli.load import load
from tenure.cli.logs import logged, set_up
from tenure.cli.session import CommandSession, storage
from tenure.clock import SystemClock
from tenure.errors import StorageError, UsageError
from tenure.health.monitor import LIMIT
from tenure.health.process_health import ProcessHealth

logger = logging.getLogger("tenure.serve")


@click.command()
@storage
@click.argument("target", required=False, metavar="[MODULE:APP]")
@logged
@served_at(DEFAULT_ADDRESS)
@click.pass_obj
def serve(session: CommandSession, target: str | None, http: Http, log_level: str, log_format: str) -> int:
    """Serve health and metrics over HTTP, until SIGTERM or SIGINT: /live, /ready, /health/queues, /metrics.

    Runs no jobs and needs no workers. It needs an app or the URL of a storage; an app also defines the queues and the
    durations.
    """
    set_up(log_level, log_format, quiet=session.quiet)
    if target is not None:
        if session.url is not None:
            raise UsageError(f"{target} has a storage of its own; give either --url or the app")
        session.app = target
    asyncio.run(_serve(session, http))
    return OK


async def _serve(session: CommandSession, http: Http) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    access = reach(session)
    tasks = load(session.app, folder=session.app_dir).tasks if session.url is None and session.app is not None else {}
    # A storage that is out of reach may come back; a URL that can never work raises UsageError now.
    with contextlib.suppress(StorageError, TimeoutError):
        async with asyncio.timeout(LIMIT):
            await access.storage.open()
    server = http.server(
        opener(access.storage),
        timing=lambda: access.timing,
        clock=SystemClock(),
        queues=lambda: {task.queue for task in tasks.values()},
        process_health=lambda: ProcessHealth(stopping=stopped.is_set()),
        outbox=lambda: access.outbox,
    )
    async with server:
        await stopped.wait()
    await closed(access.storage)
    logger.info("serve has stopped")
