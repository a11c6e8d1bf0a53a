"""`tenure audit`: shows what operators did, from the audit log."""

import asyncio

import click

from tenure.cli.access import accessed
from tenure.cli.render import as_json, moment_text, printable, table
from tenure.cli.session import CommandSession, naming, no_cursor, storage
from tenure.ops.audit import ActsView, ActView, acts_view
from tenure.storage.protocol import ActsQuery


@click.command()
@storage
@click.option("--actor", type=naming("--actor"), metavar="NAME", help="Only acts of this operator: ann@host.")
@click.option("--action", type=naming("--action"), metavar="NAME", help="Only acts of this kind: jobs.cancel.")
@click.option(
    "--target",
    type=naming("--target"),
    metavar="TARGET",
    help="Only acts on this queue, task, schedule, worker or job (QUEUE/ID).",
)
@click.option(
    "-n", "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Maximum number of acts."
)
@click.option("--after", metavar="CURSOR", help="Continue after the page that ended with this cursor.")
@click.pass_obj
def audit(
    session: CommandSession, actor: str | None, action: str | None, target: str | None, limit: int, after: str | None
) -> None:
    """Show what operators did, newest first: who did what to what, and the result.

    The acts of the console and of commands are recorded, but not `tenure enqueue`. An act whose result is unknown was
    asked for, and may have happened. The log keeps the acts of a year, at most 100,000. It stays in its storage if jobs
    move to another one.
    """
    page = asyncio.run(_page(session, ActsQuery(actor=actor, action=action, target=target, limit=limit, after=after)))
    if as_json(session, page.acts if session.output_format == "jsonl" else page):
        return
    if session.quiet:
        for act in page.acts:
            click.echo(printable(act.id))
    else:
        table(session, _COLUMNS, [_row(act) for act in page.acts], whole=("target",))
    if page.next is not None:
        click.echo(f"more: --after {page.next}", err=True)


async def _page(session: CommandSession, query: ActsQuery) -> ActsView:
    async with accessed(session) as access:
        try:
            return await acts_view(access.storage, query)
        except ValueError as error:
            raise no_cursor("--after", query.after) from error


_COLUMNS = ("asked", "actor", "action", "result", "target", "details")


def _row(act: ActView) -> list[str]:
    details = {"filter": act.filter, "count": act.count, "op": act.op, "reason": act.reason}
    words = [f"{name}={value}" for name, value in details.items() if value is not None]
    return [
        moment_text(act.asked),
        act.actor,
        act.action,
        act.verdict or "unknown",
        act.target,
        " ".join(words if act.change is None else [act.change, *words]) or "-",
    ]
