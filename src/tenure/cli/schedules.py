"""`tenure schedules`: lists schedules, shows their next ticks, pauses, resumes, triggers and removes them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from tenure.cli.access import accessed
from tenure.cli.consent import consent, consenting
from tenure.cli.exits import FAILURE, OK
from tenure.cli.render import as_json, moment_text, printable, table
from tenure.cli.session import CommandSession, naming, storage
from tenure.client.schedules import coming, look_up, pause, remove, trigger
from tenure.clock import SECOND, SystemClock, entropy
from tenure.core.duration import duration_text
from tenure.ids import JobIds
from tenure.ops.views import ScheduleView, TickView, TriggeredView, schedule_view, tick_view, triggered_view
from tenure.storage.protocol import Storage

Made = TypeVar("Made")


@click.group(invoke_without_command=True)
@storage
@click.pass_context
def schedules(ctx: click.Context) -> None:
    """List, pause, resume, trigger and remove schedules, and show when they are due."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@schedules.command("list")
@storage
@click.pass_obj
def list_schedules(session: CommandSession) -> None:
    """List the schedules: what each enqueues, and when.

    Needs neither the app nor a worker: schedules live in the storage.
    """
    seen = asyncio.run(_listed(session))
    if as_json(session, seen):
        return
    if session.quiet:
        for one in seen:
            click.echo(printable(one.name))
        return
    table(session, _COLUMNS, list(map(_row, seen)), whole=("name", "next", "last", "state"))


async def _listed(session: CommandSession) -> list[ScheduleView]:
    async with accessed(session) as access:
        survey = await access.storage.survey()
        known = sorted(survey.schedules, key=lambda schedule: schedule.name)
        return [schedule_view(schedule, access.decode) for schedule in known]


_COLUMNS = ("name", "when", "task", "queue", "next", "last", "missed", "overlap", "state")


def _row(one: ScheduleView) -> list[str]:
    return [
        *(one.name, _when(one), one.task, one.queue),
        *("-" if one.paused else moment_text(one.next_tick), moment_text(one.last_tick)),
        one.missed if one.max is None else f"{one.missed}:{one.max}",
        one.overlap,
        "paused" if one.paused else "open",
    ]


def _when(one: ScheduleView) -> str:
    return f"{one.cron} {one.tz}" if one.every is None else f"every {duration_text(round(one.every * SECOND))}"


@schedules.command("pause")
@storage
@click.argument("names", nargs=-1, required=True, type=naming("NAME"), metavar="NAME...")
@click.pass_obj
def pause_schedules(session: CommandSession, names: tuple[str, ...]) -> int:
    """Let the ticks of these schedules make no jobs; the jobs they have made go on."""
    return _set(session, names, paused=True)


@schedules.command("resume")
@storage
@click.argument("names", nargs=-1, required=True, type=naming("NAME"), metavar="NAME...")
@click.pass_obj
def resume_schedules(session: CommandSession, names: tuple[str, ...]) -> int:
    """Let these schedules go on with the tick that comes next; those that went by are not missed."""
    return _set(session, names, paused=False)


def _set(session: CommandSession, names: tuple[str, ...], *, paused: bool) -> int:
    seen = asyncio.run(_paused(session, names, paused=paused))
    if not as_json(session, seen) and not session.quiet:
        for one in seen:
            said = "paused" if one.paused else f"open, its next tick is {moment_text(one.next_tick)}"
            click.echo(printable(f"schedule {one.name} is {said}"))
    return OK


async def _paused(session: CommandSession, names: tuple[str, ...], *, paused: bool) -> list[ScheduleView]:
    async with accessed(session) as access:
        known = await _known(access.storage, names)
        return [schedule_view(await pause(access.storage, name, paused=paused), access.decode) for name in known]


@schedules.command("trigger")
@storage
@click.argument("names", nargs=-1, required=True, type=naming("NAME"), metavar="NAME...")
@click.pass_obj
def trigger_schedules(session: CommandSession, names: tuple[str, ...]) -> int:
    """Enqueue what these schedules enqueue now, paused or not; their ticks come as they would have."""
    ids = JobIds(SystemClock(), entropy())

    async def make(storage: Storage, name: str) -> tuple[str, TriggeredView]:
        receipt, _ = await trigger(storage, name, ids.make())
        return name, triggered_view(receipt)

    seen = asyncio.run(_each(session, names, make))
    if not as_json(session, [one for _, one in seen]):
        for name, one in seen:
            taken = one.made not in _NOT_MADE
            if taken and session.quiet:
                click.echo(printable(one.id))
            else:
                said = _NOT_MADE.get(one.made, "job {0.id} in queue {0.queue}").format(one)
                click.echo(printable(f"schedule {name}: {said}"), err=not taken)
    return FAILURE if any(one.made in _NOT_MADE for _, one in seen) else OK


_NOT_MADE = {
    "duplicate": "no job, for job {0.id} in queue {0.queue} is there already",
    "throttled": "throttled, there is room in {0.retry_in:g} s",
}


@schedules.command("next")
@storage
@click.argument("name", type=naming("NAME"))
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many.")
@click.pass_obj
def next_ticks(session: CommandSession, name: str, count: int) -> None:
    """Show when the next ticks of a schedule are, in UTC and by its own clocks; also of one that is paused."""
    seen = asyncio.run(_next(session, name, count))
    if as_json(session, seen):
        return
    if session.quiet:
        for one in seen:
            click.echo(moment_text(one.tick))
        return
    table(session, ("tick", "local"), [[moment_text(one.tick), one.local] for one in seen])


async def _next(session: CommandSession, name: str, count: int) -> list[TickView]:
    async with accessed(session) as access:
        schedule, _ = await look_up(access.storage, name)
        return [tick_view(tick, schedule) for tick in await coming(access.storage, name, count)]


@schedules.command("remove")
@storage
@click.argument("names", nargs=-1, required=True, type=naming("NAME"), metavar="NAME...")
@consenting
@click.pass_obj
def remove_schedules(session: CommandSession, names: tuple[str, ...], yes: bool) -> int:
    """Forget these schedules; the jobs they have made stay.

    One that code declares comes back when a worker starts: take it out of the code first.
    """
    what = f"schedule {printable(names[0])}" if len(names) == 1 else f"{len(names):,} schedules"
    consent(f"Remove {what} for good?", yes=yes)

    async def forget(storage: Storage, name: str) -> str:
        await remove(storage, name)
        return name

    gone = asyncio.run(_each(session, names, forget))
    if not as_json(session, gone) and not session.quiet:
        for name in gone:
            click.echo(printable(f"schedule {name} is removed"))
    return OK


async def _each(
    session: CommandSession, names: tuple[str, ...], do: Callable[[Storage, str], Awaitable[Made]]
) -> list[Made]:
    async with accessed(session) as access:
        return [await do(access.storage, name) for name in await _known(access.storage, names)]


async def _known(storage: Storage, names: tuple[str, ...]) -> list[str]:
    """Return these names, each once, or refuse all of them if one is unknown."""
    return [(await look_up(storage, name))[0].name for name in dict.fromkeys(names)]
