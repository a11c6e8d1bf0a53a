"""`tenure worker`: claims jobs and runs them, in processes under a supervisor, or in this process."""

import asyncio
import contextlib
import functools
import logging
import os
import signal
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import click
from msgspec import structs

from tenure.app import Tenure
from tenure.cli.access import shared
from tenure.cli.exits import OK, leave, report_error
from tenure.cli.http import Http, served
from tenure.cli.load import load
from tenure.cli.logs import logged, set_up
from tenure.cli.session import CommandSession, bytes_of, length, storage
from tenure.client.schedules import put_all
from tenure.clock import SystemClock, entropy
from tenure.core.internal import is_internal
from tenure.core.suggestion import did_you_mean
from tenure.errors import TenureError, UsageError
from tenure.http.server import HTTPServer
from tenure.maintenance.reaper import Reaper
from tenure.ops.access import StorageAccess
from tenure.ops.internal import InternalWorker
from tenure.ops.internal_tasks import internal_worker
from tenure.ops.names import known_names
from tenure.options.timing import DRAIN
from tenure.supervisor.overview import Overview
from tenure.supervisor.reload import Sources
from tenure.supervisor.systemd import Systemd
from tenure.worker.event_loop import LOOP_VARIABLE, LOOPS, Loop, loop_from_environment, loop_runner
from tenure.worker.recycling import staggered
from tenure.worker.stop_signals import SIGNALS, draining, ignore_unused
from tenure.worker.supervised import SupervisorLink
from tenure.worker.worker import Worker

logger = logging.getLogger("tenure.worker")

SUPERVISES = os.name == "posix"
"""True if this system has sessions, socket pairs and inherited descriptors, which a supervisor needs."""

HTTP_VARIABLE = "TENURE_WORKER_HTTP"
"""The environment variable of --http."""

URL_VARIABLE = "TENURE_WORKER_URL"
"""The environment variable of --url."""

LOOK = 2.0
"""Seconds that the storage gets to list its queues before the worker starts."""

CLOSING = 0.3
"""Seconds that the health server and the storage get to close before the process exits; all results are stored then."""


@dataclass(frozen=True)
class WorkerOptions:
    """The options of a worker process. If `queues` is None, the worker serves all queues of the app's tasks."""

    queues: tuple[str, ...] | None
    concurrency: int
    burst: bool
    reaper: bool
    name: str | None
    drain: timedelta
    max_jobs: int | None = None
    max_memory: int | None = None
    prefetch: int | None = None
    internal: bool = False

    def worker(self, app: Tenure, *, child: SupervisorLink | None = None) -> Worker:
        """Return the worker, not yet started.

        Raises:
            UsageError: an option has an invalid value.
        """
        max_jobs = self.max_jobs
        if max_jobs is not None and child is not None and child.siblings:
            max_jobs = staggered(max_jobs, entropy())
        return app.worker(
            queues=self.queues,
            concurrency=self.concurrency,
            name=self.name,
            reaper=self.reaper,
            drain=self.drain,
            burst=self.burst,
            max_jobs=max_jobs,
            max_memory=self.max_memory,
            prefetch=self.prefetch,
            owner_id=None if child is None else child.owner_id,
            scoreboard=None if child is None else child.scoreboard,
        )

    def options(self) -> list[str]:
        """Return the same options as command-line arguments."""
        return [
            *(part for queue in self.queues or () for part in ("-q", queue)),
            *("-c", str(self.concurrency), "--drain", f"{self.drain.total_seconds()}s"),
            *(["--burst"] if self.burst else []),
            *([] if self.reaper else ["--no-reaper"]),
            *([] if self.name is None else ["--name", self.name]),
            *([] if self.max_jobs is None else ["--max-jobs", str(self.max_jobs)]),
            *([] if self.max_memory is None else ["--max-memory", str(self.max_memory)]),
            *([] if self.prefetch is None else ["--prefetch", str(self.prefetch)]),
            *(["--internal"] if self.internal else []),
        ]


@click.command()
@storage
@click.argument("target", required=False, metavar="MODULE:APP")
@click.option(
    "-q",
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE,...",
    help="Serve these queues; by default all of the app's.",
)
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Number of concurrent runs in each process.",
)
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="Worker processes.")
@click.option("--no-supervisor", is_flag=True, help="Run jobs in this process, without a supervisor (for debuggers).")
@click.option("--burst", is_flag=True, help="Exit when no job can run now.")
@click.option("--no-reaper", is_flag=True, help="Do not recover jobs of dead workers.")
@click.option("--name", metavar="NAME", help="The worker's name in the run history.  [default: host:pid]")
@click.option(
    "--drain",
    type=length("--drain", zero=True),
    metavar="DURATION",
    default=DRAIN,
    show_default="25s",
    help="How long runs may continue after a stop.",
)
@click.option("--max-jobs", type=click.IntRange(1), metavar="N", help="Replace a process after this many jobs.")
@click.option(
    "--max-memory",
    type=bytes_of("--max-memory"),
    metavar="SIZE",
    help="Replace a process that uses more memory, such as 500MB, between two jobs.",
)
@click.option(
    "--prefetch",
    type=click.IntRange(0),
    metavar="N",
    help="Prefetch at most N jobs while jobs are short; 0 for none.",
)
@click.option(
    "--internal", is_flag=True, help="Also carry out bulk operations and send webhooks, as each console does."
)
@click.option(
    "--loop",
    type=click.Choice(LOOPS),
    default="auto",
    help="The event loop of the handlers.  [default: uvloop if it is installed]",
)
@click.option("--reload", is_flag=True, help="Replace the processes when their code changes; for development.")
@click.option(
    "--reload-dir",
    "reload_dirs",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Watch this directory; by default the working directory.",
)
@logged
@served
@click.pass_obj
def worker(
    session: CommandSession,
    target: str | None,
    queues: tuple[str, ...],
    concurrency: int,
    processes: int,
    no_supervisor: bool,
    burst: bool,
    no_reaper: bool,
    name: str | None,
    drain: timedelta,
    max_jobs: int | None,
    max_memory: int | None,
    prefetch: int | None,
    internal: bool,
    loop: Loop,
    reload: bool,
    reload_dirs: tuple[Path, ...],
    http: Http | None,
    log_level: str,
    log_format: str,
) -> int:
    """Claim jobs and run them, until SIGTERM or SIGINT.

    This process runs no jobs. It supervises the worker processes, renews their leases while they cannot, recovers their
    jobs when they die, and replaces them. With --no-supervisor this process itself is the worker.

    The first signal lets runs continue for up to --drain; the second hands them back and exits at once. SIGHUP and
    SIGQUIT count as first signals; SIGUSR1, SIGUSR2 and SIGALRM are ignored. Even if the storage is unreachable, the
    process exits within 5 s after the drain. Only the supervisor counts signals, so you may send them to all processes.
    With --http the supervisor serves the health of all processes. With --url the app uses this storage instead of its
    own, also where its handlers enqueue.
    """
    set_up(log_level, log_format, quiet=session.quiet)
    # Before any user code, which may install handlers for these signals.
    ignore_unused()
    target = _target(session, target)
    options = WorkerOptions(
        _queues(queues), concurrency, burst, not no_reaper, name, drain, max_jobs, max_memory, prefetch, internal
    )
    # Before any user code: processes that it starts must not inherit the socket to our supervisor.
    child = SupervisorLink.from_environment()
    # Check the loop here once, not in each process: every process runs handlers, or starts processes that do.
    loop_runner(loop)
    os.environ[LOOP_VARIABLE] = loop
    if child is None and _supervises(processes, without=no_supervisor):
        sources = Sources(reload_dirs or [session.app_dir or Path.cwd()]) if reload or reload_dirs else None
        more = ["--log-level", log_level, "--log-format", log_format, *(["--quiet"] if session.quiet else [])]
        if session.app_dir is not None:
            more += ["--app-dir", str(session.app_dir.absolute())]
        if session.url is not None:
            # Process lists show arguments, and a URL may hold a password.
            os.environ[URL_VARIABLE] = session.url
        _supervised(target, options, processes, http, more, sources=sources)
    if child is None and (reload or reload_dirs):
        raise UsageError("--reload needs a supervisor; leave --no-supervisor out")
    app = load(target, folder=session.app_dir)
    if session.url is not None:
        app.use_url(session.url)
    if child is not None and child.siblings:
        shared(app.storage)
    run_worker(app, options, child=child, http=http)


def run_worker(
    app: Tenure, options: WorkerOptions, *, child: SupervisorLink | None = None, http: Http | None = None
) -> NoReturn:
    """Run a worker in this process until it is asked to stop; then exit, even if threads still hang.

    Raises:
        UsageError: an option has an invalid value.
    """
    app_worker = options.worker(app, child=child)
    # The health of a child is served by its supervisor, which starts it without --http.
    server = None if http is None else _server(app, app_worker, http)
    if child is not None:
        # Before the first claim, so that the supervisor knows the storage of a child that holds jobs. After all checks
        # of options, because the supervisor restarts a child that has said hello.
        queues = {task.queue for task in app.tasks.values()}
        outbox = None if app.outbox is None else app.outbox.address
        child.hello(app.url, app.timing, queues=queues, serves=options.queues or (), outbox=outbox)
    _handle_early_and_late_signals(app_worker, child)
    # The runner is never closed: closing waits for threads, and one of them may never end.
    runner = loop_runner(loop_from_environment())
    try:
        runner.run(_work(app, app_worker, options, server, child))
        if child is not None:
            child.goodbye(dismissed=app_worker.dismissed, recycled=app_worker.recycle_reason)
        code = OK
    except BaseException as error:
        code = report_error(error)
    leave(code)


def _handle_early_and_late_signals(app_worker: Worker, child: SupervisorLink | None) -> None:
    """Exit cleanly on a signal that arrives after the worker has ended, or before a child's worker has begun."""

    def minded(number: int, _: object) -> None:
        if child is not None:
            # It holds no jobs yet. Once it works, it has its own signal handlers, until its end.
            child.goodbye()
        os._exit(OK if app_worker.ended or child is not None else 128 + number)

    for number in (*SIGNALS, *draining()):
        signal.signal(number, minded)


def _server(app: Tenure, app_worker: Worker, http: Http) -> HTTPServer:
    runtime = app.runtime()
    return http.server(
        app.opened,
        timing=lambda: runtime.timing,
        clock=runtime.clock,
        queues=lambda: {task.queue for task in app.tasks.values()},
        process_health=app_worker.vitals,
        outbox=lambda: app.outbox,
    )


async def _work(
    app: Tenure, app_worker: Worker, options: WorkerOptions, server: HTTPServer | None, child: SupervisorLink | None
) -> None:
    try:
        if server is not None:
            # Serve health while the worker starts, which an absent storage may delay, and while it drains.
            await server.start()
        if options.queues is not None:
            await _warn_of_unknown_queues(app, options.queues)
        if not options.reaper:
            await _sweep_once(app)
        async with _internal(app) if options.internal else contextlib.nullcontext():
            await (app_worker.run() if child is None else child.work(app_worker, app.runtime().metrics))
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSING):
                await asyncio.gather(app.close(), *([] if server is None else [server.stop()]))
    logger.info("worker %s (%s) has stopped", app_worker.owner.name, app_worker.owner.id)


def _internal(app: Tenure) -> InternalWorker:
    async def access() -> StorageAccess:
        return StorageAccess(await app.opened(), app.codec.decode, app.timing, webhooks=app.webhooks)

    return internal_worker(access)


async def _warn_of_unknown_queues(app: Tenure, queues: tuple[str, ...]) -> None:
    """Log a warning for each queue that neither a task of the app nor the storage knows; its name may be misspelt."""
    with contextlib.suppress(TenureError, TimeoutError):
        async with asyncio.timeout(LOOK):
            survey = await (await app.opened()).survey()
            tasks = {name: task.queue for name, task in {**app.declared, **app.tasks}.items()}
            # Another worker may serve the same misspelt queue.
            known = known_names(structs.replace(survey, workers=()), tasks).queues
            for queue in queues:
                if queue not in known:
                    meant = did_you_mean(queue, sorted(known))
                    logger.warning("no task of the app uses queue %r, and it has no jobs yet%s", queue, meant)


async def _sweep_once(app: Tenure) -> None:
    """Recover jobs of dead workers once, so that a restart after a crash resumes its own jobs at once."""
    # Store the schedules first, so that the sweep fires the ticks that the code declares now.
    await put_all(await app.opened(), app.runtime().schedules.values())
    reaper = Reaper(app, election=None)
    while await reaper.turn() == 0:
        # A wait of 0 means that there is more to sweep.
        continue


def _supervises(processes: int, *, without: bool) -> bool:
    """Return True if this process should be a supervisor.

    Raises:
        UsageError: several processes are requested without a supervisor.
    """
    if processes > 1 and (without or not SUPERVISES):
        why = "leave --no-supervisor out" if without else "this system lacks the process features that it needs"
        raise UsageError(f"--processes {processes} needs a supervisor; {why}, or start that many workers yourself")
    if without or not SUPERVISES:
        if not without:
            logger.warning("this system lacks the process features of a supervisor; the worker runs without one")
        return False
    return True


def _supervised(
    target: str,
    options: WorkerOptions,
    processes: int,
    http: Http | None,
    more_options: list[str],
    *,
    sources: Sources | None,
) -> NoReturn:
    """Supervise worker processes until a stop is requested, then end this process.

    The supervisor runs no user code and does not load the app: the first child reports errors of the app.
    """
    from tenure.supervisor.supervisor import supervise

    # Only this process serves health. A child that inherits the variable would bind the same port.
    os.environ.pop(HTTP_VARIABLE, None)
    own = [sys.executable, "-m", "tenure", "worker", target, *options.options(), *more_options]
    command = [*own, "--processes", "1"]
    code = supervise(
        command,
        processes=processes,
        drain=options.drain,
        burst=options.burst,
        sources=sources,
        systemd=Systemd.from_environment(),
        serve=None if http is None else functools.partial(_overseer, http),
        logger=logger,
    )
    leave(code)


def _overseer(http: Http, overview: Overview) -> HTTPServer:
    """Return the server for the health of all children."""
    return http.server(
        overview.opened,
        timing=lambda: overview.timing,
        clock=SystemClock(),
        queues=lambda: overview.queues,
        process_health=overview.vitals,
        outbox=lambda: overview.outbox,
    )


def _target(session: CommandSession, target: str | None) -> str:
    name = target or session.app
    if name is None:
        raise UsageError("worker needs an app; give one as module:attribute, such as tasks:app, or set TENURE_APP")
    return name


def _queues(values: tuple[str, ...]) -> tuple[str, ...] | None:
    names = [name.strip() for text in values for name in text.split(",")]
    if not all(names):
        raise UsageError(f"-q {','.join(values)!r} names an empty queue; write -q mail,default")
    for name in names:
        if is_internal(name):
            raise UsageError(f"-q {name!r} is an internal queue; leave it out, and serve such queues with --internal")
    return tuple(dict.fromkeys(names)) or None
