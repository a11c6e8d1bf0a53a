"""`tenure jobs why`: explains why a job does not run now, or how it ended."""

import asyncio

import click

from tenure.cli.access import accessed
from tenure.cli.lookup import find_job
from tenure.cli.render import as_json, printable
from tenure.cli.session import CommandSession, naming, storage
from tenure.core.lifecycle import State
from tenure.errors import JobNotFoundError
from tenure.ops.views import ReasonView, reason_view
from tenure.ops.why import WhyInput, explain
from tenure.storage.protocol import Query

_LOOKED_AT = 500
"""How many active jobs of the queue are read, to find the one that holds a key or has run longest."""


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
        active = Query(queues=(job.queue,), states=(State.ACTIVE,), limit=_LOOKED_AT)
        # The survey comes last: its clock is then not behind an instant of the job.
        [detail] = await access.storage.get([job.ref])
        page = await access.storage.find(active)
        survey = await access.storage.survey()
        if detail is None:
            raise JobNotFoundError(job_id, f"job {job_id!r} was deleted just now")
        evidence = WhyInput(detail=detail, survey=survey, active=page.jobs, complete=page.next is None)
        return [reason_view(reason) for reason in explain(evidence, access.timing)]
