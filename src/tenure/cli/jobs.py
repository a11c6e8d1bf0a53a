"""`tenure jobs`: lists, redrives, cancels and deletes jobs."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

import click
from msgspec import Struct, structs

from tenure.cli.access import accessed
from tenure.cli.acts import acting
from tenure.cli.bulk import is_bulk, operate, where_options
from tenure.cli.confirm import confirm, confirm_option
from tenure.cli.exits import FAILURE, OK
from tenure.cli.groups import Group
from tenure.cli.lookup import current_user, find_jobs, warn_of_unknown
from tenure.cli.render import as_json, moment_text, printable, table
from tenure.cli.session import CommandSession, naming, no_cursor, since, storage
from tenure.cli.show import show
from tenure.cli.why import why
from tenure.client.filters import in_order
from tenure.client.jobs import JobFilter
from tenure.core.check import remark
from tenure.core.filter_text import JobConditions, exact_names, parse_filter
from tenure.core.job import Ref
from tenure.core.lifecycle import State
from tenure.errors import UsageError
from tenure.ops.audit import verdict_of
from tenure.ops.job_list import Selection, selected_jobs, selection
from tenure.ops.revisions import REFUSALS, revised_view
from tenure.ops.views import JobView, job_view
from tenure.storage.protocol import CancelJob, DeleteJob, ListOrder, RedriveJob, Revision, RevisionResult


@click.group(cls=Group)
@storage
@click.pass_context
def jobs(ctx: click.Context) -> None:
    """List, show, explain, redrive, cancel and delete jobs."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


jobs.add_command(show)
jobs.add_command(why)


class PageView(Struct, frozen=True):
    """One page of jobs, and the cursor of the next page (None: this is the last one)."""

    jobs: list[JobView]
    next: str | None


@jobs.command("list")
@storage
@click.option("--state", "states", multiple=True, type=click.Choice([state.value for state in State]))
@click.option("--queue", "queues", multiple=True, type=naming("--queue"), metavar="QUEUE")
@click.option("--task", "tasks", multiple=True, type=naming("--task"), metavar="TASK")
@click.option(
    "--tag", "tags", multiple=True, type=naming("--tag"), metavar="TAG", help="Only jobs with all these tags."
)
@click.option(
    "--since",
    "begin",
    type=since("--since"),
    metavar="WHEN",
    help="Enqueued at this instant or later, or at most this long ago: 2h.",
)
@click.option(
    "--until", "end", type=since("--until"), metavar="WHEN", help="Enqueued before this instant, or longer ago: 1h."
)
@click.option(
    "--where",
    metavar="FILTER",
    help='Only jobs that a filter selects, such as "state:failed task:mail.* age:>1h"; instead of the options above.',
)
@click.option(
    "--order",
    type=click.Choice(["newest", "due"]),
    default="newest",
    show_default=True,
    help="due: the job that falls due first is the first; only with the state delayed.",
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--after", metavar="CURSOR", help="Continue after the page that ended with this cursor.")
@click.pass_obj
def list_jobs(
    session: CommandSession,
    states: tuple[str, ...],
    queues: tuple[str, ...],
    tasks: tuple[str, ...],
    tags: tuple[str, ...],
    begin: datetime | timedelta | None,
    end: datetime | timedelta | None,
    where: str | None,
    order: ListOrder,
    limit: int,
    after: str | None,
) -> None:
    """List jobs, newest first or by due instant.

    An option that is given several times matches any of its values; several --tag must all match.

    The terms of --where must all match: FIELD:VALUE,VALUE, where * stands for any characters. The fields are state,
    queue, task, tag, reason, error, fault, owner, key, schedule, id, age and ended (age:>1h ended:<10m). A term with
    another field is a tag: customer:7.
    """
    in_order(begin, end, fields=("--since", "--until"))
    chosen = JobFilter(
        queues=queues or None,
        states=states or None,
        tasks=tasks or None,
        tags=tags or None,
        since=begin,
        until=end,
    )
    if where is not None and not chosen.everything:
        raise UsageError("--where replaces the other filters; give all conditions in it: state:failed queue:mail")
    page = asyncio.run(_page(session, chosen if where is None else parse_filter(where), order, limit, after))
    if as_json(session, page.jobs if session.output_format == "jsonl" else page):
        return
    if session.quiet:
        for job in page.jobs:
            click.echo(printable(job.id))
    else:
        columns = tuple("due" if name == "finished" and order == "due" else name for name in _COLUMNS)
        table(session, columns, [_row(job, order) for job in page.jobs], whole=("id",))
    if page.next is not None:
        click.echo(f"more: --after {page.next}", err=True)


async def _page(
    session: CommandSession, where: JobFilter | JobConditions, order: ListOrder, limit: int, after: str | None
) -> PageView:
    async with accessed(session) as access:
        if isinstance(where, JobFilter):
            query = where.query((await access.storage.survey()).now if where.has_ages else 0)
            selected = Selection(structs.replace(query, order=order))
            queues, tasks = where.queues, where.tasks
        else:
            selected = selection(where, await access.storage.survey(), order=order)
            queues, tasks = exact_names(where.queues), exact_names(where.tasks)
        try:
            page = await selected_jobs(access.storage, selected, limit=limit, after=after)
        except UsageError as error:
            raise no_cursor("--after", after) from error
        if not page.jobs:
            await warn_of_unknown(access, queues, tasks)
        return PageView([job_view(job, access.decode) for job in page.jobs], page.next)


_COLUMNS = ("id", "queue", "task", "state", "reason", "starts", "created", "finished")


def _row(job: JobView, order: ListOrder) -> list[str]:
    created, last = moment_text(job.created), moment_text(job.run_at if order == "due" else job.finished)
    return [job.id, job.queue, job.task, job.state, job.reason or "-", str(job.starts), created, last]


@jobs.command()
@storage
@click.argument("ids", nargs=-1, type=naming("ID"), metavar="ID...")
@click.option("--queue", type=naming("--queue"), metavar="QUEUE", help="The queue of the jobs.")
@where_options
@confirm_option
@click.pass_obj
def redrive(
    session: CommandSession, ids: tuple[str, ...], queue: str | None, where: str | None, rate: str | None, yes: bool
) -> int:
    """Put failed, cancelled or expired jobs back into their queues, with new budgets."""
    if is_bulk(ids, queue, where, rate):
        return operate(session, "redrive", where or "", rate, reason=None, yes=yes)
    by = current_user()
    return asyncio.run(_revise(session, ids, queue, "redrive", lambda ref: RedriveJob(ref, by), _REDRIVEN))


@jobs.command()
@storage
@click.argument("ids", nargs=-1, type=naming("ID"), metavar="ID...")
@click.option("--queue", type=naming("--queue"), metavar="QUEUE", help="The queue of the jobs.")
@click.option("--reason", metavar="TEXT", help="A reason, which the job's record keeps.")
@where_options
@confirm_option
@click.pass_obj
def cancel(
    session: CommandSession,
    ids: tuple[str, ...],
    queue: str | None,
    reason: str | None,
    where: str | None,
    rate: str | None,
    yes: bool,
) -> int:
    """Cancel jobs: a waiting job at once; of an active job, the run is asked to stop."""
    by = current_user()
    why = remark(reason, field="--reason")
    if is_bulk(ids, queue, where, rate):
        return operate(session, "cancel", where or "", rate, reason=why, yes=yes)
    return asyncio.run(_revise(session, ids, queue, "cancel", lambda ref: CancelJob(ref, why, by), _CANCELLED, why))


@jobs.command()
@storage
@click.argument("ids", nargs=-1, type=naming("ID"), metavar="ID...")
@click.option("--queue", type=naming("--queue"), metavar="QUEUE", help="The queue of the jobs.")
@where_options
@confirm_option
@click.pass_obj
def delete(
    session: CommandSession, ids: tuple[str, ...], queue: str | None, where: str | None, rate: str | None, yes: bool
) -> int:
    """Delete jobs that are not running, with their runs and logs."""
    if is_bulk(ids, queue, where, rate):
        return operate(session, "delete", where or "", rate, reason=None, yes=yes)
    subject = f"job {printable(ids[0])}" if len(ids) == 1 else f"{len(ids):,} jobs"
    confirm(f"Delete {subject} for good?", yes=yes)
    by = current_user()
    return asyncio.run(_revise(session, ids, queue, "delete", lambda ref: DeleteJob(ref, by), _DELETED))


_REDRIVEN = {"done": "is back in its queue", "refused": REFUSALS[RedriveJob]}
_DELETED = {"done": "is deleted", "refused": REFUSALS[DeleteJob]}
_CANCELLED = {
    "done": "is cancelled",
    "asked": "is running; its run was asked to stop",
    "refused": REFUSALS[CancelJob],
}


async def _revise(
    session: CommandSession,
    ids: tuple[str, ...],
    queue: str | None,
    verb: str,
    revision: Callable[[Ref], Revision],
    words: Mapping[str, str],
    reason: str | None = None,
) -> int:
    answers: list[RevisionResult] = []
    async with accessed(session) as access:
        for job in await find_jobs(access.storage, ids, queue):
            async with acting(access.storage, f"jobs.{verb}", f"{job.queue}/{job.id}", reason=reason) as act:
                [answer] = await access.storage.revise([revision(job.ref)])
                act.verdict = verdict_of(answer)
            answers.append(answer)
    results = list(map(revised_view, answers))
    if not as_json(session, results):
        for view in results:
            done = view.verdict in ("done", "asked")
            if not (done and session.quiet):
                result = words.get(view.verdict, "is gone").format(view.was)
                if view.holder is not None:
                    result = f"is not redriven: job {view.holder} holds its unique key"
                click.echo(printable(f"job {view.id} of queue {view.queue} {result}"), err=not done)
    return OK if all(view.verdict in ("done", "asked") for view in results) else FAILURE
