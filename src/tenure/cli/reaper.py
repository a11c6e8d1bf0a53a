"""`tenure reaper`: recovers the jobs of dead and silent workers, and runs no jobs."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from datetime import timedelta

import click

from tenure.app import DEFAULT_URL
from tenure.cli.access import shared
from tenure.cli.exits import OK, leave
from tenure.cli.http import Http, opener, served
from tenure.cli.load import load
from tenure.cli.logs import logged, set_up
from tenure.cli.session import CommandSession, length
from tenure.cli.session import storage as storage_options
from tenure.core.events import JobStalled, LeadershipAcquired, LeadershipLost
from tenure.errors import UsageError
from tenure.health.process_health import ProcessHealth
from tenure.http.server import HTTPServer
from tenure.maintenance.reaper import Reaper
from tenure.options import LeaderElection, Timing
from tenure.runtime import Runtime, runtime_from_url

logger = logging.getLogger("tenure.reaper")


@click.command()
@storage_options
@click.argument("target", required=False, metavar="[MODULE:APP]")
@click.option(
    "--no-election", is_flag=True, help="Sweep without leader election. Safe: jobs are never recovered twice."
)
@click.option("--sweep", type=length("--sweep"), metavar="DURATION", help="Time between two sweeps.  [default: 2s]")
@click.option(
    "--grace",
    type=length("--grace"),
    metavar="DURATION",
    help="Grace before an expired lease is reclaimed.  [default: 3s]",
)
@click.option(
    "--leader-ttl",
    type=length("--leader-ttl"),
    metavar="DURATION",
    help="Length of a leader's term.  [default: two sweeps]",
)
@logged
@served
@click.pass_obj
def reaper(
    session: CommandSession,
    target: str | None,
    no_election: bool,
    sweep: timedelta | None,
    grace: timedelta | None,
    leader_ttl: timedelta | None,
    http: Http | None,
    log_level: str,
    log_format: str,
) -> int:
    """Recover jobs of dead and silent workers, until SIGTERM or SIGINT.

    Every worker also does this; this process runs no jobs. It needs an app or the URL of a storage. Each job stores the
    length of its own lease; the app defines the other durations.
    """
    set_up(log_level, log_format, quiet=session.quiet)
    durations = {"sweep": sweep, "grace": grace, "leader_ttl": leader_ttl}
    runtime = _runtime(session, target, {name: value for name, value in durations.items() if value is not None})
    shared(runtime.storage)
    # The Runner is never closed: closing waits for threads and tasks of event handlers, and one may never end.
    asyncio.Runner().run(_reap(runtime, None if no_election else LeaderElection(), http))
    leave(OK)


def _runtime(session: CommandSession, target: str | None, timing: dict[str, timedelta]) -> Runtime:
    if target is not None and session.url is not None:
        raise UsageError(f"{target} has a storage of its own; give either --url or the app")
    app = target or (session.app if session.url is None else None)
    if app is None:
        return runtime_from_url(session.url or session.fallback or DEFAULT_URL, timing=Timing(**timing))
    if timing:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in timing)
        raise UsageError(f"{app} has its own timing; leave {flags} out, or give --url instead of the app")
    return load(app, folder=session.app_dir).runtime()


async def _reap(runtime: Runtime, election: LeaderElection | None, http: Http | None) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    storage = runtime.storage
    reaper = Reaper(runtime, election=election)
    reaper.on(LeadershipAcquired)(_acquired)
    reaper.on(LeadershipLost)(_lost)

    @reaper.on(JobStalled, scope="every")
    def stalled(event: JobStalled) -> None:
        # Followers do not report: the leader does.
        if election is None or reaper.leads:
            _recovered(event)

    server = None if http is None else _server(runtime, http, stopped.is_set)
    try:
        async with server or contextlib.nullcontext():
            await reaper.start()
            logger.info("reaper %s sweeps %s", reaper.id, storage.url)
            await stopped.wait()
            await reaper.stop()
    finally:
        await storage.close()
    logger.info("reaper %s has stopped", reaper.id)


def _server(runtime: Runtime, http: Http, stopping: Callable[[], bool]) -> HTTPServer:
    return http.server(
        opener(runtime.storage),
        timing=lambda: runtime.timing,
        clock=runtime.clock,
        queues=lambda: {task.queue for task in runtime.tasks.values()},
        process_health=lambda: ProcessHealth(stopping=stopping(), metrics=runtime.metrics.totals()),
        outbox=lambda: runtime.outbox,
    )


def _recovered(event: JobStalled) -> None:
    logger.warning(
        "%s job %s of task %s in queue %s: run %d stalled (%s), %.1f s after its last sign of life",
        event.action,
        event.id,
        event.task,
        event.queue,
        event.run,
        event.reason,
        event.silent_for,
    )


def _acquired(event: LeadershipAcquired) -> None:
    logger.info("is now the leader (scope %s, epoch %d)", event.scope, event.epoch)


def _lost(event: LeadershipLost) -> None:
    logger.info("has lost the leadership: %s (scope %s, epoch %d)", event.reason, event.scope, event.epoch)
