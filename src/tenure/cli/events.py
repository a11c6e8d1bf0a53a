"""`tenure events`: shows past and new events of the log, line by line."""

import asyncio
import contextlib
import logging
import signal
from collections import deque
from dataclasses import replace
from typing import Any

import click
import msgspec
from msgspec import Struct, structs

from tenure.cli.access import accessed
from tenure.cli.exits import OK
from tenure.cli.lookup import find_job
from tenure.cli.render import as_json, moment_text, printable
from tenure.cli.session import CommandSession, naming, no_cursor, storage
from tenure.core.events import AnyEvent, JobEvent, name_of
from tenure.core.job import RecordedError, Ref
from tenure.core.postmortem import first_line
from tenure.events.follow import follow
from tenure.ops.access import StorageAccess
from tenure.ops.events import KINDS, PAGE, Wanted, events_after, shown_events, wanted_events
from tenure.storage.protocol import EVENTS_END


class EventsView(Struct, frozen=True):
    """Events, oldest first, and the cursor that follows them."""

    events: list[AnyEvent]
    next: str


@click.command()
@storage
@click.option("-f", "--follow", "live", is_flag=True, help="Keep printing new events until interrupted.")
@click.option(
    "--since-cursor", "cursor", metavar="CURSOR", help="Start after the event with this cursor; 0 means the oldest."
)
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(KINDS), metavar="KIND", help="Only events of these kinds."
)
@click.option(
    "--queue", "queues", multiple=True, type=naming("--queue"), metavar="QUEUE", help="Only events of these queues."
)
@click.option("--job", type=naming("--job"), metavar="ID", help="Only events of this job.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of events.  [default: 100; with -f none]")
@click.option("--results", is_flag=True, help="Also show the results of jobs, if the log has them.")
@click.pass_obj
def events(
    session: CommandSession,
    live: bool,
    cursor: str | None,
    kinds: tuple[str, ...],
    queues: tuple[str, ...],
    job: str | None,
    limit: int | None,
    results: bool,
) -> int:
    """Show past events, and follow new ones.

    By default the latest events are printed, oldest first; with --since-cursor those after the cursor, with -f new ones
    as they come.

    The log keeps the events of a week, at most 100,000. An option that is given several times matches any of its
    values.
    """
    wanted = wanted_events(kinds, queues)
    if live:
        logging.basicConfig(format="%(message)s", level=logging.WARNING)
        asyncio.run(_live(session, cursor, wanted, queues, job, limit, results=results))
        return OK
    found = asyncio.run(_past(session, cursor, wanted, queues, job, limit or 100, results=results))
    if not as_json(session, found.events if session.output_format == "jsonl" else found):
        for event in found.events:
            click.echo(_line(event))
        if cursor is not None and found.events and not session.quiet:
            click.echo(f"more: --since-cursor {found.next}", err=True)
    return OK


async def _ref(access: StorageAccess, queues: tuple[str, ...], job: str | None) -> Ref | None:
    if job is None:
        return None
    if len(queues) == 1:
        # Without a look-up, so that events of a deleted job can be shown, too.
        return Ref(queues[0], job)
    return (await find_job(access.storage, job, None)).ref


async def _past(
    session: CommandSession,
    cursor: str | None,
    wanted: Wanted,
    queues: tuple[str, ...],
    job: str | None,
    limit: int,
    *,
    results: bool,
) -> EventsView:
    async with accessed(session) as access:
        ref = await _ref(access, queues, job)
        decode = access.decode if results else None
        start = _place(cursor)
        try:
            if cursor is not None:
                read = await events_after(access.storage, start, wanted=wanted, limit=limit, ref=ref)
                return EventsView(shown_events(read.events, decode), read.next)
            found: deque[AnyEvent] = deque(maxlen=limit)
            while True:
                read = await events_after(access.storage, start, wanted=wanted, limit=PAGE, ref=ref)
                found += read.events
                start = read.next
                if read.end:
                    return EventsView(shown_events(found, decode), read.next)
        except ValueError as error:
            raise no_cursor(_CURSOR, cursor, _TAKE) from error


async def _live(
    session: CommandSession,
    cursor: str | None,
    wanted: Wanted,
    queues: tuple[str, ...],
    job: str | None,
    limit: int | None,
    *,
    results: bool,
) -> None:
    loop = asyncio.get_running_loop()
    lines = replace(session, output_format="jsonl" if session.output_format == "json" else session.output_format)
    async with accessed(session) as access:
        ref = await _ref(access, queues, job)
        decode = access.decode if results else None

        async def show_events() -> None:
            remaining = limit
            start = EVENTS_END if cursor is None else _place(cursor)
            async with contextlib.aclosing(follow(access.storage, start, ref=ref)) as happening:
                async for event in happening:
                    if not wanted(event):
                        continue
                    (shown,) = shown_events([event], decode)
                    if not as_json(lines, shown):
                        click.echo(_line(shown))
                    if remaining is not None and (remaining := remaining - 1) == 0:
                        return

        showing = asyncio.ensure_future(show_events())
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, showing.cancel)
        try:
            await showing
        except asyncio.CancelledError:
            # A signal is the usual end.
            return
        except ValueError as error:
            raise no_cursor(_CURSOR, cursor, _TAKE) from error


def _place(cursor: str | None) -> str | None:
    """Return the cursor in the form that the storage takes; there None means the oldest event.

    Raises:
        UsageError: the cursor is empty; an empty text must not mean the oldest event, too.
    """
    if cursor == "":
        raise no_cursor(_CURSOR, cursor, _TAKE)
    return None if cursor == "0" else cursor


_CURSOR = "--since-cursor"
_TAKE = "take one from an event, or 0 for the oldest"


_SAID = frozenset({"event", "cursor", "at", "queue", "id", "task", "run"})


def _line(event: AnyEvent) -> str:
    """Return an event as one line: time, cursor, name, job, and the other fields by name."""
    words = [moment_text(event.at), event.cursor or "-", name_of(event)]
    if isinstance(event, JobEvent):
        words += [f"{event.queue}/{event.id}", f"task={event.task}", f"run={event.run}"]
    elif (queue := getattr(event, "queue", None)) is not None:
        words.append(f"queue={queue}")
    words += [f"{name}={_value(name, value)}" for name, value in structs.asdict(event).items() if _tells(name, value)]
    return printable("  ".join(words))


def _tells(name: str, value: Any) -> bool:
    return name not in _SAID and value is not None and value != "" and value != ()


def _value(name: str, value: Any) -> str:
    if name in ("post_mortem", "stack"):
        # People see the first line; the JSON has the whole text.
        value = first_line(value)
    if isinstance(value, RecordedError):
        return _value(name, f"{value.type}: {value.message}")
    if isinstance(value, float):
        value = round(value, 3)
    if isinstance(value, str) and value.isprintable() and not set(value) & set(" \"'="):
        return value
    return msgspec.json.encode(value, enc_hook=repr).decode()
