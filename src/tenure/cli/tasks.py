"""`tenure tasks`: lists the tasks of an app, or those that workers have published."""

import asyncio

import click

from tenure.cli.access import accessed
from tenure.cli.load import load
from tenure.cli.render import as_json, printable, table
from tenure.cli.session import CommandSession, storage
from tenure.errors import UsageError
from tenure.ops.tasks import TaskView, task_views, view_of_published


@click.command()
@storage
@click.argument("target", required=False, metavar="[MODULE:APP]")
@click.pass_obj
def tasks(session: CommandSession, target: str | None) -> None:
    """List the tasks of an app: queue, signature and options.

    Loads the app and does not use the storage. Without an app, it lists the tasks that workers of the storage (--url)
    have published within the last 30 days.
    """
    name = target or session.app
    if name is not None:
        app = load(name, folder=session.app_dir)
        views = task_views({**app.declared, **app.tasks}.values(), implemented=app.tasks)
    elif session.url is not None or session.fallback is not None:
        views = asyncio.run(_published(session))
    else:
        raise UsageError(
            "tasks needs an app; give one as module:attribute, such as tasks:app, or set TENURE_APP; for the tasks "
            "that workers have published, give --url or set TENURE_URL"
        )
    if as_json(session, views):
        return
    if session.quiet:
        for view in views:
            click.echo(printable(view.name))
        return
    table(session, ("name", "queue", "signature", "options"), list(map(_row, views)))


async def _published(session: CommandSession) -> list[TaskView]:
    async with accessed(session) as access:
        return list(map(view_of_published, await access.storage.published()))


def _row(view: TaskView) -> list[str]:
    facts = [
        *([] if view.implemented else ["declared only"]),
        *([] if view.version == 1 else [f"version:{view.version}"]),
        *(f"{name}:{value}" for name, value in view.options.items()),
    ]
    return [view.name, view.queue, view.signature, ", ".join(facts) or "-"]
