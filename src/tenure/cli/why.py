"""`tenure jobs why`: explains why a job does not run now, or how it ended."""

import asyncio

import click

from tenure.cli.access import accessed
from tenure.cli.lookup import find_job
from tenure.cli.render import as_json, printable
from tenure.cli.session import CommandSession, naming, storage
from tenure.ops.jobs import reasons_of
from tenure.ops.views import ReasonView


@click.command()
@storage
@click.argument("job_id", type=naming("ID"), metavar="ID")
@click.option("--queue", type=naming("--queue"), metavar="QUEUE", help="The job's queue.")
@click.pass_obj
def why(session: CommandSession, job_id: str, queue: str | None) -> None:
    """Explain why a job does not run now, or how it ended.

    The first cause decides; the others matter once it is gone. Each has its remedy, if one is needed.
    """
    reasons = asyncio.run(_reasons(session, job_id, queue))
    if as_json(session, reasons):
        return
    for number, reason in enumerate(reasons):
        click.echo(printable(f"{'' if number == 0 else 'also: '}{reason.text}"))
        if reason.remedy:
            click.echo(printable(f"  remedy: {reason.remedy}"))


async def _reasons(session: CommandSession, job_id: str, queue: str | None) -> list[ReasonView]:
    async with accessed(session) as access:
        job = await find_job(access.storage, job_id, queue)
        return await reasons_of(access, job.ref)
