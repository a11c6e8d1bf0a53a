"""`tenure queues`: lists queues and their settings, pauses, resumes and purges them, sets rates, shows statistics."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import click

from tenure.cli.access import accessed
from tenure.cli.acts import acting, all_of
from tenure.cli.confirm import confirm, confirm_option
from tenure.cli.exits import OK, NotFound
from tenure.cli.groups import Group
from tenure.cli.lookup import check_known, current_user
from tenure.cli.render import as_json, moment_text, printable, span_text, table
from tenure.cli.session import CommandSession, length, naming, storage
from tenure.client.jobs import JobFilter, Jobs
from tenure.clock import SECOND
from tenure.core.duration import duration, duration_text, micros
from tenure.core.job import FOREVER
from tenure.core.lifecycle import State
from tenure.core.suggestion import did_you_mean
from tenure.errors import UsageError
from tenure.ops.access import StorageAccess
from tenure.ops.queue_stats import queue_stats
from tenure.ops.views import (
    KeepView,
    LiftedView,
    PausedView,
    PurgedView,
    QueueSettingsView,
    QueueStatsView,
    QueueView,
    RatedView,
    RateView,
    SpreadView,
    StallView,
    limits_view,
    queue_settings_view,
    rate_view,
    task_rates_view,
)
from tenure.options import Rate
from tenure.options.rate import rate_key, valid_rate
from tenure.storage.protocol import QUEUE_RATE, TASK_RATE, QueueSurvey, Settings, Storage, Survey, Target

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=Group)
@storage
@click.pass_context
def queues(ctx: click.Context) -> None:
    """List, pause, limit and purge queues, show statistics."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@queues.command("list")
@storage
@click.pass_obj
def list_queues(session: CommandSession) -> None:
    """List the queues: jobs by state, and the settings of queues and tasks.

    `oldest`: how long the oldest waiting job has waited. `parked`: waiting jobs that a key, rate or pause holds back.
    `discarded`: jobs that expired without a record.
    """
    views, tasks = asyncio.run(_listed(session))
    if as_json(session, views):
        return
    if session.quiet:
        for queue in views:
            click.echo(printable(queue.queue))
        return
    table(session, QUEUE_COLUMNS, list(map(queue_row, views)), whole=QUEUE_COUNTS)
    click.echo()
    table(session, _SETTING_COLUMNS, [_setting_row(queue) for queue in views], title="set for all jobs of a queue")
    limits = [
        [queue.queue, "all jobs" if limit.rate is None else limit.rate, moment_text(limit.until)]
        for queue in views
        for limit in queue.limits
    ]
    if limits:
        click.echo()
        table(session, ("queue", "rate", "until"), limits, title="limited by RateLimited")
    if tasks:
        click.echo()
        table(session, ("task", "rate", "state"), tasks, title="set for a task, in every queue")


async def _listed(session: CommandSession) -> tuple[list[QueueSettingsView], list[list[str]]]:
    async with accessed(session) as access:
        survey = await access.storage.survey()
        return [queue_settings_view(queue) for queue in survey.queues], _task_rows(survey)


def _task_rows(survey: Survey) -> list[list[str]]:
    rates = task_rates_view(survey)
    states = {name: "no limit" if rate is None else _rate(rate) for name, rate in rates.items()}
    paused = survey.paused_tasks
    return [
        [name, states.get(name, "-"), "paused" if name in paused else "open"] for name in sorted({*states, *paused})
    ]


_STATES = ("waiting", "delayed", "active", "completed", "failed", "cancelled", "expired")
QUEUE_COLUMNS = (
    *("queue", "wait", "delay", "active", "done", "fail", "cancel", "expire"),
    *("oldest", "park", "drop", "state"),
)
"""Short column names, so that a row fits on a terminal of 80 columns; the JSON has the full names of the states."""

QUEUE_COUNTS = QUEUE_COLUMNS[1:]

_SETTING_COLUMNS = ("queue", "kept", "stall", "rate", "recorded")


def queue_row(queue: QueueView) -> list[str]:
    """Return the cells of a queue in these columns."""
    return [
        queue.queue,
        *(str(queue.counts[state]) for state in _STATES),
        *(span_text(queue.oldest_waiting), str(queue.parked), str(queue.discarded)),
        queue_state(queue) + (f", {suspended} suspended" if (suspended := queue.counts.get("suspended", 0)) else ""),
    ]


def queue_state(queue: QueueView) -> str:
    """Return whether a queue gives out jobs: paused, limited, or open."""
    if queue.paused:
        return "paused"
    return "limited" if any(limit.rate is None for limit in queue.limits) else "open"


def _setting_row(queue: QueueSettingsView) -> list[str]:
    return [
        queue.queue,
        " ".join(f"{state}:{_keep(keep)}" for state, keep in queue.retention.items()),
        "-" if queue.stall is None else _stall(queue.stall),
        "-" if queue.rate is None else _rate(queue.rate),
        " ".join(queue.record) or "-",
    ]


def _keep(keep: KeepView) -> str:
    age = _length(keep.age)
    return age if keep.count is None else f"{age}/{keep.count}"


def _stall(stall: StallView) -> str:
    values = {
        "interval": None if stall.lease is None else _length(stall.lease),
        "max_count": stall.max_stalls,
        "start_grace": None if stall.start_grace is None else _length(stall.start_grace),
        "heartbeat": stall.renewed,
    }
    if stall.lease is not None and round(stall.lease * SECOND) >= FOREVER:
        values |= {"interval": None, "enabled": False}
    return " ".join(f"{name}={value}" for name, value in values.items() if value is not None) or "-"


def _rate(rate: RateView) -> str:
    burst = f" burst={rate.burst}" if rate.burst > 1 else ""
    return f"{_pace(round(rate.every * SECOND))}{burst}"


def _pace(interval: int) -> str:
    """Return an interval between two starts, in microseconds, as a rate: 10/s, 100/m, and so on."""
    for unit, span in _UNITS.items():
        # An interval that was not a whole number was rounded up.
        count = -(-span // interval)
        if -(-span // count) == interval:
            return f"{count}/{unit}"
    return f"1/{duration_text(interval)}"


_UNITS = {unit: micros(duration(f"1{unit}", field="unit")) for unit in ("s", "m", "h", "d")}


def _length(seconds: float) -> str:
    return duration_text(round(seconds * SECOND))


def targeted(command: F) -> F:
    """Add the arguments for queues and tasks to a command; it gets them as `names`, `tasks` and `force`."""
    queues_meant = click.argument("names", nargs=-1, type=naming("QUEUE"), metavar="[QUEUE...]")
    tasks_meant = click.option(
        "--task",
        "tasks",
        multiple=True,
        type=naming("--task"),
        metavar="TASK",
        help="A task, in every queue.",
    )
    forced = click.option("--force", is_flag=True, help="Also set queues and tasks that nothing uses yet.")
    return queues_meant(tasks_meant(forced(command)))


@queues.command()
@storage
@targeted
@click.pass_obj
def pause(session: CommandSession, names: tuple[str, ...], tasks: tuple[str, ...], force: bool) -> int:
    """Start no more jobs of these queues or tasks; running jobs continue.

    A name that no job, worker, schedule or task of the app uses is an error, with exit code 4.
    """
    return _set(session, names, tasks, paused=True, force=force)


@queues.command()
@storage
@targeted
@click.pass_obj
def resume(session: CommandSession, names: tuple[str, ...], tasks: tuple[str, ...], force: bool) -> int:
    """Start jobs of these queues or tasks again.

    A name that no job, worker, schedule or task of the app uses is an error, with exit code 4.
    """
    return _set(session, names, tasks, paused=False, force=force)


@queues.command("rate")
@storage
@click.argument("limit", metavar="RATE")
@targeted
@click.pass_obj
def set_rate(session: CommandSession, limit: str, names: tuple[str, ...], tasks: tuple[str, ...], force: bool) -> int:
    """Limit how often jobs of these queues or tasks start: 100/s, 5/30s, or none for no limit.

    For a task this replaces its own rate and any earlier setting. A name that no job, worker, schedule or task of the
    app uses is an error, with exit code 4.
    """
    rate = None if limit == "none" else valid_rate(limit, field="RATE", remedy="write 10/s, 100/m or 5/30s, or none")
    changed = asyncio.run(_rated(session, _targets(names, tasks, "limit"), rate, force=force))
    if not as_json(session, changed) and not session.quiet:
        for view in changed:
            result = "has no limit" if view.rate is None else f"is limited to {_rate(view.rate)}"
            click.echo(printable(f"{view.kind} {view.name} {result}"))
    return OK


@queues.command("lift")
@storage
@click.argument("names", nargs=-1, required=True, type=naming("QUEUE"), metavar="QUEUE...")
@click.option(
    "--rate", type=naming("--rate"), metavar="NAME", help="Only the limit of this rate; `queue`: that of all jobs."
)
@click.pass_obj
def lift(session: CommandSession, names: tuple[str, ...], rate: str | None) -> int:
    """End the limits that handlers have set with RateLimited; `queues list` shows them."""
    lifted = asyncio.run(_lifted(session, tuple(dict.fromkeys(names)), rate))
    if not as_json(session, lifted) and not session.quiet:
        for view in lifted:
            click.echo(printable(f"queue {view.queue} has {len(view.limits) or 'no'} limits left"))
    return OK


async def _lifted(session: CommandSession, names: tuple[str, ...], rate: str | None) -> list[LiftedView]:
    by = current_user()
    async with accessed(session) as access:
        for name in names:
            async with acting(access.storage, "queues.lift", name, change=f"rate={rate or '*'}"):
                await access.storage.tune(Target("queue", name), Settings(lift=rate or "*"), by=by)
        survey = await access.storage.survey(names)
        return [LiftedView(queue=queue.queue, limits=limits_view(queue)) for queue in survey.queues]


@queues.command()
@storage
@click.argument("names", nargs=-1, required=True, type=naming("QUEUE"), metavar="QUEUE...")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in State if state is not State.ACTIVE]),
    default=("waiting", "delayed"),
    show_default=True,
    help="Only jobs in these states.",
)
@click.option("--task", "tasks", multiple=True, type=naming("--task"), metavar="TASK", help="Only jobs of these tasks.")
@click.option("--dry-run", is_flag=True, help="Only print the number of matching jobs.")
@confirm_option
@click.pass_obj
def purge(
    session: CommandSession,
    names: tuple[str, ...],
    states: tuple[str, ...],
    tasks: tuple[str, ...],
    dry_run: bool,
    yes: bool,
) -> int:
    """Delete the jobs of queues for good: those that have not started, or those in other states.

    Running jobs stay; cancel them with `jobs cancel`. A queue that nothing uses is an error, with exit code 4.
    """
    where = JobFilter(queues=names, states=states, tasks=tasks or None)
    purged = PurgedView(matched=asyncio.run(_counted(session, where)), deleted=0, changed=0)
    if purged.matched and not dry_run:
        confirm(f"Delete {_jobs(purged.matched)} of {_named(names)} for good?", yes=yes)
        purged = asyncio.run(_purged(session, where, purged.matched))
    if as_json(session, purged) or session.quiet:
        return OK
    if dry_run:
        click.echo(f"{_jobs(purged.matched)} would be deleted")
        return OK
    changed = f"; {_jobs(purged.changed)} changed meanwhile and stayed" if purged.changed else ""
    click.echo(f"{_jobs(purged.deleted)} {'was' if purged.deleted == 1 else 'were'} deleted{changed}")
    return OK


async def _counted(session: CommandSession, where: JobFilter) -> int:
    async with accessed(session) as access:
        await check_known(access, [Target("queue", name) for name in where.queues], force=False)
        return await _jobs_of(access).count(where)


async def _purged(session: CommandSession, where: JobFilter, matched: int) -> PurgedView:
    by = current_user()
    async with accessed(session) as access:
        async with acting(access.storage, "queues.purge", all_of(where.queues), where=where) as act:
            report = await _jobs_of(access).purge(where, by=by)
            act.count = report.deleted
        return PurgedView(matched=matched, deleted=report.deleted, changed=report.changed)


def _jobs_of(access: StorageAccess) -> Jobs:
    async def opened() -> Storage:
        return access.storage

    return Jobs(opened)


def _jobs(count: int) -> str:
    return f"{count:,} job{'' if count == 1 else 's'}"


def _named(queues: tuple[str, ...]) -> str:
    return printable(f"{'queue' if len(queues) == 1 else 'queues'} {', '.join(queues)}")


async def _rated(session: CommandSession, targets: list[Target], rate: Rate | None, *, force: bool) -> list[RatedView]:
    by = current_user()
    async with accessed(session) as access:
        await check_known(access, targets, force=force)
        views: list[RatedView] = []
        for target in targets:
            key = rate_key(rate, QUEUE_RATE if target.kind == "queue" else TASK_RATE + target.name)
            view = rate_view(key)
            change = f"rate={'none' if view is None else _rate(view)}"
            async with acting(access.storage, f"{target.kind}s.rate", target.name, change=change):
                settings = await access.storage.tune(target, Settings(rate=key), by=by)
            views.append(RatedView(kind=target.kind, name=target.name, rate=rate_view(settings.rate)))
        return views


def _targets(names: tuple[str, ...], tasks: tuple[str, ...], verb: str) -> list[Target]:
    targets = [Target("queue", name) for name in dict.fromkeys(names)]
    targets += [Target("task", name) for name in dict.fromkeys(tasks)]
    if not targets:
        raise UsageError(f"give one or more queues to {verb}, or --task TASK")
    return targets


def _set(session: CommandSession, names: tuple[str, ...], tasks: tuple[str, ...], *, paused: bool, force: bool) -> int:
    targets = _targets(names, tasks, "pause" if paused else "resume")
    changed = asyncio.run(_tuned(session, targets, paused=paused, force=force))
    if not as_json(session, changed) and not session.quiet:
        for view in changed:
            click.echo(printable(f"{view.kind} {view.name} is {'paused' if view.paused else 'open'}"))
    return OK


async def _tuned(session: CommandSession, targets: list[Target], *, paused: bool, force: bool) -> list[PausedView]:
    by = current_user()
    async with accessed(session) as access:
        await check_known(access, targets, force=force)
        views: list[PausedView] = []
        for target in targets:
            async with acting(access.storage, f"{target.kind}s.{'pause' if paused else 'resume'}", target.name):
                settings = await access.storage.tune(target, Settings(paused=paused), by=by)
            views.append(PausedView(kind=target.kind, name=target.name, paused=bool(settings.paused)))
        return views


@queues.command()
@storage
@click.argument("names", nargs=-1, type=naming("QUEUE"), metavar="[QUEUE...]")
@click.option(
    "--window",
    type=length("--window"),
    metavar="DURATION",
    default="1h",
    show_default=True,
    help="The period before now.",
)
@click.option(
    "--most",
    type=click.IntRange(1),
    default=2000,
    show_default=True,
    help="Maximum number of ended jobs that are read of a queue.",
)
@click.pass_obj
def stats(session: CommandSession, names: tuple[str, ...], window: timedelta, most: int) -> None:
    """Show statistics of queues: outcomes, waiting times, durations, and reasons of failures.

    An unknown queue is an error, with exit code 4.

    Waiting times and durations are those of each job's last run: the median, the 95th percentile, and the longest.
    """
    found = asyncio.run(_stats(session, names, window, most))
    if as_json(session, found):
        return
    table(session, _STAT_COLUMNS, [_stat_row(queue) for queue in found], whole=_STAT_NUMBERS)
    for queue in found:
        if queue.capped:
            note = f"queue {queue.queue}: only the newest {most:,} of its jobs were read; see --most, --window"
            click.echo(printable(note), err=True)


_STAT_NUMBERS = ("state", "wait", "done", "fail", "cancel", "expire", "/min")
_STAT_COLUMNS = ("queue", *_STAT_NUMBERS, "waited", "ran", "why")


def _stat_row(queue: QueueStatsView) -> list[str]:
    return [
        *(queue.queue, "paused" if queue.paused else "open", str(queue.counts["waiting"])),
        *(str(count) for count in queue.ended.values()),
        f"{queue.per_minute:g}",
        _spread(queue.waited),
        _spread(queue.ran),
        " ".join(f"{reason}:{count}" for reason, count in queue.reasons.items()) or "-",
    ]


def _spread(spread: SpreadView | None) -> str:
    if spread is None:
        return "-"
    return " / ".join(span_text(part) for part in (spread.half, spread.most, spread.longest))


async def _stats(session: CommandSession, names: tuple[str, ...], window: timedelta, most: int) -> list[QueueStatsView]:
    async with accessed(session) as access:
        survey = await access.storage.survey()
        queues = {queue.queue: queue for queue in survey.queues}
        known = access.known(survey).queues
        if unknown := sorted(set(names) - known):
            meant = did_you_mean(unknown[0], sorted(known))
            listed = f"{meant} See" if meant else "; see"
            raise NotFound(f"unknown queue: {', '.join(map(repr, unknown))}{listed} tenure queues list")
        return [
            await queue_stats(
                access.storage, queues.get(name, QueueSurvey(queue=name)), now=survey.now, window=window, most=most
            )
            for name in sorted(set(names) or queues)
        ]
