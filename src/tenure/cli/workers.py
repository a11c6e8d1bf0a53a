"""`tenure workers`: lists workers, gives them orders, and shows the stacks of their runs."""

import asyncio
from collections.abc import Sequence

import click

from tenure.cli.access import accessed
from tenure.cli.acts import acting
from tenure.cli.exits import OK
from tenure.cli.groups import Group
from tenure.cli.lookup import current_user, find_worker
from tenure.cli.render import as_json, block, printable, size_text, span_text, table
from tenure.cli.session import CommandSession, naming, storage
from tenure.client.workers import valid_concurrency
from tenure.errors import UsageError
from tenure.ops.workers import ListedWorker, OrderedView, StackView, give_order, listed_worker, stacks
from tenure.storage.protocol import Settings


@click.group(cls=Group)
@storage
@click.pass_context
def workers(ctx: click.Context) -> None:
    """List, pause and stop workers, set their concurrency, and show the stacks of their runs.

    Name a worker by its owner id or the beginning of it, by its name (host:pid by default), or by its process id.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@workers.command("list")
@storage
@click.pass_obj
def list_workers(session: CommandSession) -> None:
    """List the workers: active jobs, last beat, event loop lag and memory.

    A worker that died or disappeared is shown for ten minutes after its last beat.
    """
    found = asyncio.run(_listed(session))
    if as_json(session, found):
        return
    if session.quiet:
        for worker in found:
            click.echo(worker.owner)
        return
    table(session, _COLUMNS, [_row(worker) for worker in found], whole=("owner",))


async def _listed(session: CommandSession) -> list[ListedWorker]:
    async with accessed(session) as access:
        survey = await access.storage.survey()
    return [listed_worker(worker, access.timing) for worker in survey.workers]


_COLUMNS = ("owner", "name", "host", "pid", "queues", "running", "seen", "state", "lag", "memory")


def _row(worker: ListedWorker) -> list[str]:
    return [
        worker.owner,
        worker.name,
        worker.host,
        str(worker.pid),
        ",".join(worker.queues),
        f"{worker.active}/{worker.concurrency}",
        f"{span_text(worker.seen_ago)} ago",
        worker.state,
        span_text(worker.lag),
        size_text(worker.memory),
    ]


@workers.command()
@storage
@click.argument("names", nargs=-1, required=True, type=naming("WORKER"), metavar="WORKER...")
@click.option("--undo", is_flag=True, help="Let them claim jobs again.")
@click.pass_obj
def quiet(session: CommandSession, names: tuple[str, ...], undo: bool) -> int:
    """Let workers claim no more jobs. Their runs continue, and the workers do not exit.

    Workers are notified at once, or learn of it with their next beat. The setting holds until --undo, or until the
    worker exits.
    """
    result = "was asked to claim jobs again" if undo else "was asked to claim no more jobs"
    return _ordered(session, names, Settings(quiet=not undo), result)


@workers.command()
@storage
@click.argument("names", nargs=-1, required=True, type=naming("WORKER"), metavar="WORKER...")
@click.pass_obj
def pause(session: CommandSession, names: tuple[str, ...]) -> int:
    """Pause workers: they claim no more jobs. The same as `quiet`; it ends with `resume` or with the worker."""
    return _ordered(session, names, Settings(quiet=True), "was asked to claim no more jobs")


@workers.command()
@storage
@click.argument("names", nargs=-1, required=True, type=naming("WORKER"), metavar="WORKER...")
@click.pass_obj
def resume(session: CommandSession, names: tuple[str, ...]) -> int:
    """Resume paused workers: they claim jobs again."""
    return _ordered(session, names, Settings(quiet=False), "was asked to claim jobs again")


@workers.command()
@storage
@click.argument("number", metavar="NUMBER")
@click.argument("names", nargs=-1, required=True, type=naming("WORKER"), metavar="WORKER...")
@click.pass_obj
def concurrency(session: CommandSession, number: str, names: tuple[str, ...]) -> int:
    """Set how many jobs workers run at once, until they exit; `own`: as many as they were started with.

    No run is cancelled: with a smaller number, a worker claims again once fewer runs go on.
    """
    if number == "own":
        return _ordered(session, names, Settings(concurrency=0), "was asked to use its own concurrency again")
    if not number.isdecimal():
        raise UsageError(f"NUMBER = {number!r} must be a whole number, 1 or more, or own")
    settings = Settings(concurrency=valid_concurrency(int(number)))
    return _ordered(session, names, settings, f"was asked to run {number} jobs at once")


@workers.command()
@storage
@click.argument("names", nargs=-1, required=True, type=naming("WORKER"), metavar="WORKER...")
@click.pass_obj
def stop(session: CommandSession, names: tuple[str, ...]) -> int:
    """Let workers drain and exit, as SIGTERM does.

    A supervisor does not restart a stopped worker, and exits after its last one; systemd or Kubernetes may restart it
    by their own rules.
    """
    return _ordered(session, names, Settings(stop=True), "was asked to stop")


def _ordered(session: CommandSession, names: Sequence[str], settings: Settings, result: str) -> int:
    ordered = asyncio.run(_give_orders(session, names, settings))
    if not as_json(session, ordered) and not session.quiet:
        for worker in ordered:
            click.echo(printable(f"worker {worker.name} ({worker.owner}) {result}"))
    return OK


def _order(settings: Settings) -> tuple[str, str | None]:
    """Return the name of an order and its value, as the audit log has them."""
    if settings.concurrency is not None:
        return "concurrency", f"concurrency={settings.concurrency or 'own'}"
    if settings.quiet is not None:
        return "quiet" if settings.quiet else "resume", None
    return "stop", None


async def _give_orders(session: CommandSession, names: Sequence[str], settings: Settings) -> list[OrderedView]:
    by = current_user()
    verb, change = _order(settings)
    async with accessed(session) as access:
        survey = await access.storage.survey()
        # Find all workers before the first one gets its order.
        meant = {worker.owner.id: worker.owner for worker in (find_worker(survey, name) for name in names)}
        views: list[OrderedView] = []
        for owner in meant.values():
            async with acting(access.storage, f"workers.{verb}", owner.id, change=change):
                views.append(await give_order(access.storage, owner, settings, by=by))
        return views


@workers.command()
@storage
@click.argument("name", required=False, type=naming("WORKER"), metavar="[WORKER]")
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000),
    default=50,
    show_default=True,
    help="Maximum number of runs, the longest first.",
)
@click.pass_obj
def stack(session: CommandSession, name: str | None, limit: int) -> None:
    """Show the stack of each running handler of a worker; without a name, of all workers.

    A worker records the stacks with each beat, first one beat after the start of a run. The output shows the last
    record, without values of arguments.
    """
    found = asyncio.run(_stacks(session, name, limit))
    if as_json(session, found):
        return
    if not found:
        click.echo("no runs" if name is not None else "nothing runs")
    for run in found:
        duration_text = "" if run.ran is None else f", for {span_text(run.ran)}"
        title = printable(f"{run.task} {run.id} of queue {run.queue} on {run.worker}, run {run.run}{duration_text}")
        if run.trace is None:
            block(session, title, "unknown yet: the first report comes after one beat")
        else:
            block(session, f"{title}; {span_text(run.seen_ago)} ago it was here:", run.trace)


async def _stacks(session: CommandSession, name: str | None, limit: int) -> list[StackView]:
    async with accessed(session) as access:
        survey = await access.storage.survey()
        owners = None if name is None else {find_worker(survey, name).owner.id}
        return await stacks(access.storage, survey, owners, limit=limit)
