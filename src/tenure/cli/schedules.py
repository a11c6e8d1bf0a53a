"""`tenure schedules`: lists schedules, shows their next ticks, pauses, resumes, triggers and removes them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from tenure.cli.access import accessed
from tenure.cli.acts import acting
from tenure.cli.confirm import confirm, confirm_option
from tenure.cli.exits import FAILURE, OK
from tenure.cli.groups import Group
from tenure.cli.render import as_json, moment_text, printable, table
from tenure.cli.session import CommandSession, naming, storage
from tenure.client.schedules import coming, look_up, pause, remove, trigger
from tenure.clock import SECOND, SystemClock, entropy
from tenure.core.duration import duration_text
from tenure.ids import JobIds
from tenure.ops.audit import AuditedAct
from tenure.ops.views import ScheduleView, TickView, TriggeredView, schedule_view, tick_view, triggered_view
from tenure.storage.protocol import Storage

T = TypeVar("T")


@click.group(cls=Group)
@storage
@click.pass_context
def schedules(ctx: click.Context) -> None:
    """List, pause, resume, trigger and remove schedules, and show their next ticks."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@schedules.command("list")
@storage
@click.pass_obj
def list_schedules(session: CommandSession) -> None:
    """List the schedules: what each enqueues, and when.

    Needs neither the app nor a worker: the storage keeps the schedules.
    """
    found = asyncio.run(_listed(session))
    if as_json(session, found):
        return
    if session.quiet:
        for schedule in found:
            click.echo(printable(schedule.name))
        return
    table(session, _COLUMNS, list(map(_row, found)))


async def _listed(session: CommandSession) -> list[ScheduleView]:
    async with accessed(session) as access:
        survey = await access.storage.survey()
        known = sorted(survey.schedules, key=lambda schedule: schedule.name)
        return [schedule_view(schedule, access.decode) for schedule in known]


_COLUMNS = ("name", "when", "task", "queue", "next", "last", "missed", "overlap", "state")


def _row(schedule: ScheduleView) -> list[str]:
    return [
        *(schedule.name, _when(schedule), schedule.task, schedule.queue),
        *("-" if schedule.paused else moment_text(schedule.next_tick), moment_text(schedule.last_tick)),
        schedule.missed if schedule.max is None else f"{schedule.missed}:{schedule.max}",
        schedule.overlap,
        "paused" if schedule.paused else "open",
    ]


def _when(schedule: ScheduleView) -> str:
    return (
        f"{schedule.cron} {schedule.tz}"
        if schedule.every is None
        else f"every {duration_text(round(schedule.every * SECOND))}"
    )


@schedules.command("pause")
@storage
@click.argument("names", nargs=-1, required=True, type=naming("NAME"), metavar="NAME...")
@click.pass_obj
def pause_schedules(session: CommandSession, names: tuple[str, ...]) -> int:
    """Pause these schedules: their ticks enqueue no jobs. Existing jobs continue."""
    return _set(session, names, paused=True)


@schedules.command("resume")
@storage
@click.argument("names", nargs=-1, required=True, type=naming("NAME"), metavar="NAME...")
@click.pass_obj
def resume_schedules(session: CommandSession, names: tuple[str, ...]) -> int:
    """Resume these schedules with their next tick; skipped ticks do not count as missed."""
    return _set(session, names, paused=False)


def _set(session: CommandSession, names: tuple[str, ...], *, paused: bool) -> int:
    changed = asyncio.run(_paused(session, names, paused=paused))
    if not as_json(session, changed) and not session.quiet:
        for schedule in changed:
            state = "paused" if schedule.paused else f"open, its next tick is {moment_text(schedule.next_tick)}"
            click.echo(printable(f"schedule {schedule.name} is {state}"))
    return OK


async def _paused(session: CommandSession, names: tuple[str, ...], *, paused: bool) -> list[ScheduleView]:
    async with accessed(session) as access:
        views: list[ScheduleView] = []
        for name in await _known(access.storage, names):
            async with acting(access.storage, f"schedules.{'pause' if paused else 'resume'}", name):
                views.append(schedule_view(await pause(access.storage, name, paused=paused), access.decode))
        return views


@schedules.command("trigger")
@storage
@click.argument("names", nargs=-1, required=True, type=naming("NAME"), metavar="NAME...")
@click.pass_obj
def trigger_schedules(session: CommandSession, names: tuple[str, ...]) -> int:
    """Enqueue the jobs of these schedules now, even if paused; the next ticks do not change."""
    ids = JobIds(SystemClock(), entropy())

    async def make(storage: Storage, name: str, act: AuditedAct) -> tuple[str, TriggeredView]:
        receipt, _ = await trigger(storage, name, ids.make())
        act.verdict = receipt.action
        return name, triggered_view(receipt)

    triggered = asyncio.run(_each(session, names, "trigger", make))
    if not as_json(session, [job for _, job in triggered]):
        for name, job in triggered:
            enqueued = job.action not in _NOT_MADE
            if enqueued and session.quiet:
                click.echo(printable(job.id))
            else:
                result = _NOT_MADE.get(job.action, "job {0.id} in queue {0.queue}").format(job)
                click.echo(printable(f"schedule {name}: {result}"), err=not enqueued)
    return FAILURE if any(job.action in _NOT_MADE for _, job in triggered) else OK


_NOT_MADE = {
    "duplicate": "no job: job {0.id} in queue {0.queue} exists already",
    "throttled": "throttled; possible again in {0.retry_in:g} s",
}


@schedules.command("next")
@storage
@click.argument("name", type=naming("NAME"))
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many.")
@click.pass_obj
def next_ticks(session: CommandSession, name: str, count: int) -> None:
    """Show the next ticks of a schedule, in UTC and in its own time zone, even if it is paused."""
    found = asyncio.run(_next(session, name, count))
    if as_json(session, found):
        return
    if session.quiet:
        for tick in found:
            click.echo(moment_text(tick.tick))
        return
    table(session, ("tick", "local"), [[moment_text(tick.tick), tick.local] for tick in found])


async def _next(session: CommandSession, name: str, count: int) -> list[TickView]:
    async with accessed(session) as access:
        schedule, _ = await look_up(access.storage, name)
        return [tick_view(tick, schedule) for tick in await coming(access.storage, name, count)]


@schedules.command("remove")
@storage
@click.argument("names", nargs=-1, required=True, type=naming("NAME"), metavar="NAME...")
@confirm_option
@click.pass_obj
def remove_schedules(session: CommandSession, names: tuple[str, ...], yes: bool) -> int:
    """Remove these schedules; their jobs stay.

    A schedule that is declared in code returns when a worker starts: remove it from the code first.
    """
    subject = f"schedule {printable(names[0])}" if len(names) == 1 else f"{len(names):,} schedules"
    confirm(f"Remove {subject} for good?", yes=yes)

    async def forget(storage: Storage, name: str, act: AuditedAct) -> str:
        await remove(storage, name)
        return name

    removed = asyncio.run(_each(session, names, "remove", forget))
    if not as_json(session, removed) and not session.quiet:
        for name in removed:
            click.echo(printable(f"schedule {name} is removed"))
    return OK


async def _each(
    session: CommandSession, names: tuple[str, ...], verb: str, do: Callable[[Storage, str, AuditedAct], Awaitable[T]]
) -> list[T]:
    results: list[T] = []
    async with accessed(session) as access:
        for name in await _known(access.storage, names):
            async with acting(access.storage, f"schedules.{verb}", name) as act:
                results.append(await do(access.storage, name, act))
    return results


async def _known(storage: Storage, names: tuple[str, ...]) -> list[str]:
    """Return these names, each once, or refuse all of them if one is unknown."""
    return [(await look_up(storage, name))[0].name for name in dict.fromkeys(names)]
