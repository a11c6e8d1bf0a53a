"""`tenure dead`: lists failed jobs, groups them by fault, redrives and purges them."""

import asyncio
import functools
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import click
from msgspec import Struct

from tenure.cli.access import accessed
from tenure.cli.acts import acting, all_of
from tenure.cli.confirm import confirm, confirm_option
from tenure.cli.exits import OK
from tenure.cli.groups import Group
from tenure.cli.lookup import current_user, warn_of_unknown
from tenure.cli.render import as_json, moment_text, printable, span_text, table
from tenure.cli.session import CommandSession, naming, no_cursor, since, storage
from tenure.client.dead_letters import CAP, REASONS, DeadFilter, DeadLetters, DeadReport, gap_of
from tenure.client.filters import fault_named, in_order
from tenure.errors import UsageError
from tenure.ops.access import StorageAccess
from tenure.ops.views import (
    DeadGroupsView,
    DeadReportView,
    DeadView,
    dead_groups_view,
    dead_report_view,
    dead_view,
    value_text,
)
from tenure.storage.protocol import Storage

T = TypeVar("T")

SHOWN = 60
"""How many characters of an error message are shown in a table."""


@click.group(cls=Group)
@storage
@click.pass_context
def dead(ctx: click.Context) -> None:
    """List failed jobs, group them by fault, redrive and purge them."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def with_dead_filter(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that filter dead letters to a command; it gets them as one argument `where`."""

    @functools.wraps(command)
    def with_filter(*args: Any, **options: Any) -> Any:
        fields = {name: options.pop(name) for name in _FIELDS}
        in_order(fields["since"], fields["until"], fields=("--since", "--until"))
        # For an option that is not given, click passes None or an empty tuple; an empty text is a given value.
        query = DeadFilter(**{name: value for name, value in fields.items() if value is not None and value != ()})
        return command(*args, where=query, **options)

    decorated: Callable[..., Any] = with_filter
    for option in reversed(_FILTER):
        decorated = option(decorated)
    return decorated


def _fault(value: Any) -> str:
    return fault_named(value, field="--fault")


def _rate(value: Any) -> float:
    try:
        rate = float(value)
    except ValueError:
        rate = math.nan
    gap_of(rate if math.isfinite(rate) else value, field="--rate")
    return rate


_FILTER: list[Callable[[Any], Any]] = [
    click.option(
        "--queue", "queues", multiple=True, metavar="QUEUE", type=naming("--queue"), help="Only jobs of these queues."
    ),
    click.option(
        "--task", "tasks", multiple=True, metavar="TASK", type=naming("--task"), help="Only jobs of these tasks."
    ),
    click.option(
        "--reason",
        "reasons",
        multiple=True,
        type=click.Choice(REASONS),
        help="Only jobs that failed for one of these reasons.",
    ),
    click.option(
        "--error", type=naming("--error"), metavar="NAME", help="Only jobs that failed with an exception of this class."
    ),
    click.option(
        "--fault",
        "fingerprint",
        type=_fault,
        metavar="FINGERPRINT",
        help="Only jobs of this fault; tenure dead groups lists the faults.",
    ),
    click.option(
        "--tag", "tags", multiple=True, type=naming("--tag"), metavar="TAG", help="Only jobs with all of these tags."
    ),
    click.option(
        "--since",
        type=since("--since"),
        metavar="WHEN",
        help="Only jobs that failed at or after this time: 2h (ago) or an instant.",
    ),
    click.option(
        "--until",
        type=since("--until"),
        metavar="WHEN",
        help="Only jobs that failed before this time: 2h (ago) or an instant.",
    ),
]
_FIELDS = ("queues", "tasks", "reasons", "error", "fingerprint", "tags", "since", "until")


class DeadPageView(Struct, frozen=True):
    """One page of dead letters, and the cursor of the next page (None: this is the last one)."""

    letters: list[DeadView]
    next: str | None


@dead.command("list")
@storage
@with_dead_filter
@click.option("--arguments", is_flag=True, help="Also show the arguments of the jobs.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--after", metavar="CURSOR", help="Continue after the page that ended with this cursor.")
@click.pass_obj
def list_dead(session: CommandSession, where: DeadFilter, arguments: bool, limit: int, after: str | None) -> None:
    """List failed jobs, newest first, each with its fault; JSON also contains all runs.

    An option that is given several times matches any of its values; several --tag must all match.
    """
    page = asyncio.run(_page(session, where, limit, after, arguments=arguments))
    if as_json(session, page.letters if session.output_format == "jsonl" else page):
        return
    if session.quiet:
        for row in page.letters:
            click.echo(printable(row.id))
    else:
        columns = (*_COLUMNS, "arguments") if arguments else _COLUMNS
        table(
            session,
            columns,
            [_row(row, arguments=arguments) for row in page.letters],
            whole=("id", "fault"),
        )
    if page.next is not None:
        click.echo(f"more: --after {page.next}", err=True)


async def _page(
    session: CommandSession, where: DeadFilter, limit: int, after: str | None, *, arguments: bool
) -> DeadPageView:
    async with _opened(session) as (letters, access):
        try:
            page = await letters.page(where, limit=limit, after=after)
        except UsageError as error:
            # The other options were validated before.
            raise no_cursor("--after", after) from error
        if not page.letters:
            await warn_of_unknown(access, where.queues, where.tasks)
    decode = access.decode if arguments else None
    return DeadPageView([dead_view(letter, decode) for letter in page.letters], page.next)


_COLUMNS = ("id", "queue", "task", "reason", "error", "runs", "failed", "fault")


def _row(letter: DeadView, *, arguments: bool) -> list[str]:
    error = "-" if letter.error is None else _short(f"{letter.error.type}: {letter.error.message}")
    row = [
        letter.id,
        letter.queue,
        letter.task,
        letter.reason or "-",
        error,
        str(letter.starts),
        moment_text(letter.failed),
        letter.fault,
    ]
    return [*row, value_text(letter.arguments)] if arguments else row


@dead.command()
@storage
@with_dead_filter
@click.pass_obj
def groups(session: CommandSession, where: DeadFilter) -> None:
    """Group failed jobs by fault, largest group first.

    Failures have the same fault if their task, reason and error class are the same, their messages differ only in
    numbers, ids, paths and quoted values, and the same function raised them.
    """
    found = asyncio.run(_groups(session, where))
    if as_json(session, found.groups if session.output_format == "jsonl" else found):
        return
    if session.quiet:
        for group in found.groups:
            click.echo(group.fault)
        return
    rows = [
        [
            *(
                group.fault,
                str(group.count),
                group.task,
                group.reason,
                _short(f"{group.error or '-'}: {group.message}"),
            ),
            *(moment_text(group.first), moment_text(group.last)),
        ]
        for group in found.groups
    ]
    table(session, ("fault", "jobs", "task", "reason", "error", "first", "last"), rows, whole=("fault", "jobs"))
    if found.others:
        click.echo(f"and {found.others:,} more jobs of smaller faults", err=True)


async def _groups(session: CommandSession, where: DeadFilter) -> DeadGroupsView:
    async with _opened(session) as (letters, _):
        return dead_groups_view(await letters.groups(where))


@dead.command()
@storage
@with_dead_filter
@click.option("--limit", type=click.IntRange(1), default=CAP, show_default=True, help="Maximum number of jobs.")
@click.option("--rate", type=_rate, metavar="PER_SECOND", help="Jobs per second; without it, all at once.")
@click.option("--dry-run", is_flag=True, help="Only print the number of matching jobs.")
@confirm_option
@click.pass_obj
def redrive(
    session: CommandSession, where: DeadFilter, limit: int, rate: float | None, dry_run: bool, yes: bool
) -> int:
    """Put failed jobs back into their queues with new budgets, the earliest failure first.

    Safe to repeat: a job that is back in its queue is not redriven again. With --rate each job gets its own due time at
    once, so the command returns immediately.
    """
    by = current_user()
    return _done(
        session,
        where,
        limit,
        action="dead.redrive",
        words=("Redrive", "put back into their queues"),
        do=lambda letters: letters.redrive(where, limit=limit, rate=rate, by=by),
        dry_run=dry_run,
        yes=yes,
    )


@dead.command()
@storage
@with_dead_filter
@click.option("--all", "everything", is_flag=True, help="Required if no other filter is given.")
@click.option("--limit", type=click.IntRange(1), default=CAP, show_default=True, help="Maximum number of jobs.")
@click.option("--dry-run", is_flag=True, help="Only print the number of matching jobs.")
@confirm_option
@click.pass_obj
def purge(session: CommandSession, where: DeadFilter, everything: bool, limit: int, dry_run: bool, yes: bool) -> int:
    """Delete failed jobs with their runs and logs, the earliest failure first."""
    if where.everything and not everything:
        raise UsageError(
            "purge without a filter deletes every failed job; narrow it, with --task for example, or give --all"
        )
    by = current_user()
    return _done(
        session,
        where,
        limit,
        action="dead.purge",
        words=("Delete", "deleted"),
        do=lambda letters: letters.purge(where, limit=limit, everything=everything, by=by),
        dry_run=dry_run,
        yes=yes,
    )


def _done(
    session: CommandSession,
    where: DeadFilter,
    limit: int,
    *,
    action: str,
    words: tuple[str, str],
    do: Callable[[DeadLetters], Awaitable[DeadReport]],
    dry_run: bool,
    yes: bool,
) -> int:
    """Count the matching letters, ask for confirmation, act, and print the result."""
    verb, done = words
    report = DeadReportView(done=[], refused=[], gone=[], held=[], left=0, duration=0.0)
    if dry_run or not yes:
        found = asyncio.run(_with_dead_letters(session, lambda letters: letters.count(where)))
        if dry_run:
            report = DeadReportView(done=[], refused=[], gone=[], held=[], left=found, duration=0.0)
        elif found:
            of_all = f" of {found:,}" if found > limit else ""
            confirm(f"{verb} {_letters(min(found, limit), of_all)}?", yes=yes)
            yes = True
    if yes and not dry_run:
        report = dead_report_view(asyncio.run(_act(session, where, action, do)))
    if as_json(session, report) or session.quiet:
        return OK
    if dry_run:
        click.echo(f"{_letters(min(report.left, limit))} would be {done}; {report.left:,} match")
        return OK
    duration = f", the last of them in {span_text(report.duration)}" if report.duration else ""
    more = f"; {report.left:,} more match" if report.left else ""
    were = "was" if len(report.done) == 1 else "were"
    click.echo(f"{_letters(len(report.done))} {were} {done}{duration}{more}")
    held = {(held_job.queue, held_job.id): held_job.holder for held_job in report.held}
    for ref in report.refused:
        holder = held.get((ref.queue, ref.id))
        result = "was back in its queue already" if holder is None else f"stays: job {holder} holds its unique key"
        click.echo(printable(f"job {ref.id} of queue {ref.queue} {result}"), err=True)
    for ref in report.gone:
        click.echo(printable(f"job {ref.id} of queue {ref.queue} is gone"), err=True)
    return OK


async def _act(
    session: CommandSession, where: DeadFilter, action: str, do: Callable[[DeadLetters], Awaitable[DeadReport]]
) -> DeadReport:
    async with _opened(session) as (letters, access):
        async with acting(access.storage, action, all_of(where.queues), where=where) as act:
            report = await do(letters)
            act.count = len(report.done)
        return report


async def _with_dead_letters(session: CommandSession, ask: Callable[[DeadLetters], Awaitable[T]]) -> T:
    async with _opened(session) as (letters, _):
        return await ask(letters)


@asynccontextmanager
async def _opened(session: CommandSession) -> AsyncGenerator[tuple[DeadLetters, StorageAccess]]:
    async with accessed(session) as access:

        async def ready() -> Storage:
            return access.storage

        yield DeadLetters(ready), access


def _letters(count: int, of_all: str = "") -> str:
    return f"{count:,}{of_all} dead letter{'' if count == 1 and not of_all else 's'}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 1]}…"
