"""`tenure relay`: enqueues the calls of an outbox in a process of its own."""

import asyncio
import contextlib
import logging
import signal

import click

from tenure.app import Tenure
from tenure.cli.access import shared
from tenure.cli.exits import OK, leave
from tenure.cli.http import Http, opener, served
from tenure.cli.load import load
from tenure.cli.logs import logged, set_up
from tenure.cli.session import CommandSession
from tenure.cli.session import storage as storage_options
from tenure.errors import UsageError
from tenure.health.process_health import ProcessHealth
from tenure.maintenance.relay import Relay
from tenure.runtime import Runtime

logger = logging.getLogger("tenure.relay")


@click.command()
@storage_options
@click.argument("target", required=False, metavar="[MODULE:APP]")
@click.option("--outbox", metavar="URL", help="The outbox, if no app is given: postgresql://... or sqlite:///...")
@logged
@served
@click.pass_obj
def relay(
    session: CommandSession, target: str | None, outbox: str | None, http: Http | None, log_level: str, log_format: str
) -> int:
    """Enqueue the calls of an outbox, until SIGTERM or SIGINT.

    Every worker of an app with an outbox also does this; this process runs no jobs. It needs an app, or --url and
    --outbox. Any number of relays may run, and each call is enqueued once.
    """
    set_up(log_level, log_format, quiet=session.quiet)
    app = _app(session, target, outbox)
    shared(app.storage)
    runtime = app.runtime()
    relaying = Relay(runtime)
    # The Runner is never closed: closing waits for threads, and one may wait for a database that does not answer.
    asyncio.Runner().run(_relay(app, runtime, relaying, http))
    leave(OK)


def _app(session: CommandSession, target: str | None, outbox: str | None) -> Tenure:
    name = target or (session.app if session.url is None else None)
    if name is not None:
        if outbox is not None or session.url is not None:
            raise UsageError(f"{name} has a storage and an outbox of its own; leave out --url and --outbox")
        return load(name, folder=session.app_dir)
    if outbox is None:
        raise UsageError("give an app that has an outbox, as MODULE:APP, or --url and --outbox")
    return Tenure(session.url or session.fallback, outbox=outbox)


async def _relay(app: Tenure, runtime: Runtime, relaying: Relay, http: Http | None) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = None
    if http is not None:
        server = http.server(
            opener(runtime.storage),
            timing=lambda: runtime.timing,
            clock=runtime.clock,
            process_health=lambda: ProcessHealth(stopping=stopped.is_set(), metrics=runtime.metrics.totals()),
            outbox=lambda: runtime.outbox,
        )
    async with server or contextlib.nullcontext():
        logger.info("relays the calls of %s to %s", "" if app.outbox is None else app.outbox.url, app.storage.url)
        running = asyncio.create_task(relaying.run(), name="tenure relay")
        await stopped.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await app.close()
    logger.info("relay has stopped")
