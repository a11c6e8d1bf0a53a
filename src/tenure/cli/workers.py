"""`tenure workers`: lists workers, gives them orders, and shows the stacks of their runs."""

import asyncio
from collections.abc import Sequence
from datetime import datetime

import click
from msgspec import Struct

from tenure.cli.access import StorageAccess, accessed
from tenure.cli.exits import OK
from tenure.cli.lookup import find_worker, who
from tenure.cli.render import as_json, block, printable, size_text, span_text, table
from tenure.cli.session import CommandSession, naming, storage
from tenure.clock import SECOND
from tenure.core.duration import moment
from tenure.core.job import JobDetail, JobRecord
from tenure.core.lifecycle import State
from tenure.health.assessment import state_of
from tenure.options import Timing
from tenure.storage.protocol import Query, Settings, Survey, Target, WorkerSurvey

PAGE = 200
"""How many active jobs one call reads."""

MOST = 20_000
"""How many active jobs are searched for those of one worker."""

DETAILS = 50
"""How many jobs one call reads with their runs and logs."""


class CrewView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker. `state`: alive, quiet, stopping, stale, died. `lag` in seconds, `memory` in bytes, 0 if unknown.

    `why`: the reason if it has stopped claiming by itself, else empty.
    """

    owner: str
    name: str
    host: str
    pid: int
    queues: tuple[str, ...]
    concurrency: int
    active: int
    started: datetime
    seen_ago: float
    turned_ago: float
    state: str
    lag: float
    memory: int
    why: str = ""


class OrderedView(Struct, frozen=True, kw_only=True):
    """A worker, and the orders that apply to it."""

    owner: str
    name: str
    quiet: bool
    stop: bool


class StackView(Struct, frozen=True, kw_only=True):
    """A run of a worker. `trace`: the stack of its handler `seen_ago` seconds ago; None if it was not recorded yet."""

    worker: str
    owner: str
    queue: str
    id: str
    task: str
    run: int
    fence: int
    started: datetime | None
    ran: float | None
    seen_ago: float
    trace: str | None


@click.group(invoke_without_command=True)
@storage
@click.pass_context
def workers(ctx: click.Context) -> None:
    """List workers, quiet and stop them, and show where their runs are.

    A worker is named by its owner id, by the beginning of that, by its name (host:pid unless it has another), or by
    its process id.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@workers.command("list")
@storage
@click.pass_obj
def list_workers(session: CommandSession) -> None:
    """List the workers: what each runs, when it was last seen, how long its event loop lags, and its memory.

    A worker that died, or went away without a word, is shown for ten minutes after its last beat.
    """
    seen = asyncio.run(_listed(session))
    if as_json(session, seen):
        return
    if session.quiet:
        for one in seen:
            click.echo(one.owner)
        return
    table(session, _COLUMNS, [_row(one) for one in seen], whole=("owner",))


async def _listed(session: CommandSession) -> list[CrewView]:
    async with accessed(session) as access:
        survey = await access.storage.survey()
    return [_crew(worker, access.timing) for worker in survey.workers]


def _crew(worker: WorkerSurvey, timing: Timing) -> CrewView:
    return CrewView(
        owner=worker.owner.id,
        name=worker.owner.name,
        host=worker.owner.host,
        pid=worker.owner.pid,
        queues=worker.queues,
        concurrency=worker.concurrency,
        active=worker.active,
        started=moment(worker.started),
        seen_ago=worker.seen_ago / SECOND,
        turned_ago=worker.turned_ago / SECOND,
        state="died" if worker.died else state_of(worker, timing),
        lag=worker.lag / SECOND,
        memory=worker.memory,
        why=worker.why,
    )


_COLUMNS = ("owner", "name", "host", "pid", "queues", "running", "seen", "state", "lag", "memory")


def _row(one: CrewView) -> list[str]:
    return [
        one.owner,
        one.name,
        one.host,
        str(one.pid),
        ",".join(one.queues),
        f"{one.active}/{one.concurrency}",
        f"{span_text(one.seen_ago)} ago",
        one.state,
        span_text(one.lag),
        size_text(one.memory),
    ]


@workers.command()
@storage
@click.argument("names", nargs=-1, required=True, type=naming("WORKER"), metavar="WORKER...")
@click.option("--undo", is_flag=True, help="Let them claim again.")
@click.pass_obj
def quiet(session: CommandSession, names: tuple[str, ...], undo: bool) -> int:
    """Let workers claim no more jobs; what they run goes on, and so do they.

    They hear of it at once, or with their next beat. It holds until --undo, or until the worker ends.
    """
    said = "is told to claim jobs again" if undo else "is told to claim no more jobs"
    return _ordered(session, names, Settings(quiet=not undo), said)


@workers.command()
@storage
@click.argument("names", nargs=-1, required=True, type=naming("WORKER"), metavar="WORKER...")
@click.pass_obj
def stop(session: CommandSession, names: tuple[str, ...]) -> int:
    """Let workers drain and leave, as SIGTERM does.

    No supervisor of ours starts another in its place, and one whose last worker was stopped ends, too; systemd or
    Kubernetes may start it again, by rules of their own.
    """
    return _ordered(session, names, Settings(stop=True), "is told to stop")


def _ordered(session: CommandSession, names: Sequence[str], settings: Settings, said: str) -> int:
    seen = asyncio.run(_told(session, names, settings))
    if not as_json(session, seen) and not session.quiet:
        for one in seen:
            click.echo(printable(f"worker {one.name} ({one.owner}) {said}"))
    return OK


async def _told(session: CommandSession, names: Sequence[str], settings: Settings) -> list[OrderedView]:
    by = who()
    async with accessed(session) as access:
        survey = await access.storage.survey()
        # Find all workers before the first one gets its order.
        meant = {worker.owner.id: worker.owner for worker in (find_worker(survey, name) for name in names)}
        seen: list[OrderedView] = []
        for owner in meant.values():
            now = await access.storage.tune(Target("worker", owner.id), settings, by=by)
            seen.append(OrderedView(owner=owner.id, name=owner.name, quiet=bool(now.quiet), stop=bool(now.stop)))
        return seen


@workers.command()
@storage
@click.argument("name", required=False, type=naming("WORKER"), metavar="[WORKER]")
@click.option(
    "--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="So many runs, the longest first."
)
@click.pass_obj
def stack(session: CommandSession, name: str | None, limit: int) -> None:
    """Show where the runs of a worker are, of all workers if none is named: the stack of each handler.

    A worker looks at its runs with each beat, from a beat after their start. What stands here was so when it was last
    heard of; the values of arguments are not in it.
    """
    seen = asyncio.run(_stacks(session, name, limit))
    if as_json(session, seen):
        return
    if not seen:
        click.echo("nothing runs there" if name is not None else "nothing runs")
    for one in seen:
        ran = "" if one.ran is None else f", for {span_text(one.ran)}"
        title = printable(f"{one.task} {one.id} of queue {one.queue} on {one.worker}, run {one.run}{ran}")
        if one.trace is None:
            block(session, title, "not known yet: a run is looked at when it is a beat old")
        else:
            block(session, f"{title}; {span_text(one.seen_ago)} ago it was here:", one.trace)


async def _stacks(session: CommandSession, name: str | None, limit: int) -> list[StackView]:
    async with accessed(session) as access:
        survey = await access.storage.survey()
        owners = None if name is None else {find_worker(survey, name).owner.id}
        jobs = await _active(access, owners)
        # The longest runs are the most interesting ones.
        jobs.sort(key=lambda job: (job.started or 0, job.id))
        found: list[StackView] = []
        for start in range(0, min(len(jobs), limit), DETAILS):
            some = jobs[start : min(start + DETAILS, limit)]
            details = await access.storage.get([job.ref for job in some])
            found += [
                _stack(one, survey)
                for one in details
                if one is not None and one.job.state is State.ACTIVE and (owners is None or one.job.owner in owners)
            ]
        return found


async def _active(access: StorageAccess, owners: set[str] | None) -> list[JobRecord]:
    """Return the active jobs of these owners, or of all owners if None."""
    found: list[JobRecord] = []
    looked, after = 0, None
    while looked < MOST:
        page = await access.storage.find(Query(states=(State.ACTIVE,), limit=PAGE, after=after))
        found += [job for job in page.jobs if owners is None or job.owner in owners]
        looked, after = looked + len(page.jobs), page.next
        if after is None:
            break
    return found


def _stack(detail: JobDetail, survey: Survey) -> StackView:
    job = detail.job
    worker = next((one for one in survey.workers if one.owner.id == job.owner), None)
    run = next((one for one in reversed(detail.runs) if one.fence == job.fence), None)
    return StackView(
        worker=run.worker if worker is None and run is not None else worker.owner.name if worker is not None else "",
        owner=job.owner or "",
        queue=job.queue,
        id=job.id,
        task=job.task,
        run=job.starts,
        fence=job.fence,
        started=None if run is None else moment(run.start),
        ran=None if run is None else max(0, survey.now - run.start) / SECOND,
        seen_ago=0.0 if worker is None else worker.seen_ago / SECOND,
        trace=None if run is None else run.trace,
    )
