"""`tenure enqueue`: enqueues one job."""

import asyncio
import json
from datetime import timedelta
from typing import Any, cast

import click

from tenure.cli.access import accessed, shared
from tenure.cli.exits import FAILURE, OK
from tenure.cli.load import load
from tenure.cli.lookup import check_known
from tenure.cli.render import as_json, printable
from tenure.cli.session import CommandSession, length, naming, storage
from tenure.clock import SystemClock, entropy
from tenure.errors import DuplicateJobError, ThrottledError, UsageError
from tenure.ids import JobIds
from tenure.ops.enqueueing import DEFAULT_QUEUE, NamedCall, enqueue_job, job_of
from tenure.ops.views import TriggeredView, triggered_view
from tenure.options.tasks import CallOptions, valid_priority
from tenure.storage.protocol import Target


@click.command()
@storage
@click.argument("task", type=naming("TASK"), metavar="TASK")
@click.argument("arguments", required=False, metavar="[JSON]")
@click.option(
    "--arg",
    "named",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument; its value is JSON, or a text without quotes.",
)
@click.option("--queue", type=naming("--queue"), metavar="QUEUE", help="The queue, instead of the task's.")
@click.option("--id", "job_id", type=naming("--id"), metavar="ID", help="The id; a second job with it is not made.")
@click.option("--delay", type=length("--delay"), metavar="DURATION", help="Start the job after this time.")
@click.option("--priority", type=int, metavar="N", help="From -500 to 500.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="A word by which the job can be found.")
@click.option("--force", is_flag=True, help="Without an app: also enqueue a task that nothing uses yet.")
@click.pass_obj
def enqueue(
    session: CommandSession,
    task: str,
    arguments: str | None,
    named: tuple[str, ...],
    queue: str | None,
    job_id: str | None,
    delay: timedelta | None,
    priority: int | None,
    tags: tuple[str, ...],
    force: bool,
) -> int:
    """Enqueue one job: tenure enqueue send --arg to=ann@example.org, or tenure enqueue send '{"to": "ann"}'.

    With an app, the arguments are checked against the signature of its task, and the options of the task apply.
    --url replaces the storage of the app.

    Without an app, the job goes by its name into the storage, to the queue "default" or --queue: the arguments are not
    checked, they must be given by name, and retries, timeout, keys and rates are the defaults, not those of the task.

    Exits with 0 if the job exists now, also if it existed before; 1 if it was throttled.
    """
    options: CallOptions = {}
    if queue is not None:
        options["queue"] = queue
    if job_id is not None:
        options["id"] = job_id
    if delay is not None:
        options["delay"] = delay
    if priority is not None:
        options["priority"] = valid_priority(priority)
    if tags:
        options["tags"] = tags
    call = NamedCall(task, _arguments(arguments, named), options)
    try:
        job = asyncio.run(_by_app(session, call) if session.app is not None else _by_name(session, call, force=force))
    except (ThrottledError, DuplicateJobError) as error:
        raise click.ClickException(str(error)) from error
    if not as_json(session, job):
        if session.quiet:
            click.echo(printable(job.id))
        else:
            click.echo(printable(_RESULTS[job.action].format(job)), err=job.action not in ("created", "collected"))
    return FAILURE if job.action == "throttled" else OK


_RESULTS = {
    "created": "job {0.id} in queue {0.queue}",
    "replaced": "job {0.id} in queue {0.queue} has the new arguments",
    "collected": "job {0.id} in queue {0.queue} has collected this call",
    "duplicate": "no new job: job {0.id} in queue {0.queue} exists already",
    "throttled": "no job: the task is throttled, its latest job is {0.id} in queue {0.queue}",
}


def _arguments(text: str | None, named: tuple[str, ...]) -> dict[str, Any] | list[Any]:
    """Return the arguments of the call.

    Raises:
        UsageError: they are not JSON, or are given twice.
    """
    if text is not None and named:
        raise UsageError("give the arguments either as one JSON text or with --arg")
    if text is not None:
        try:
            read: Any = json.loads(text)
        except ValueError as error:
            raise UsageError(
                f'the arguments are not JSON: {error}; write \'{{"to": "ann"}}\', or --arg to=ann'
            ) from None
        if not isinstance(read, (dict, list)):
            raise UsageError(f"the arguments are {text}; write them as a JSON object or array, or with --arg")
        return cast("dict[str, Any] | list[Any]", read)
    arguments: dict[str, Any] = {}
    for argument in named:
        name, mark, value = argument.partition("=")
        if not mark or not name:
            raise UsageError(f"--arg {argument!r} has no name; write --arg name=value")
        if name in arguments:
            raise UsageError(f"--arg {name} is given twice; write a list as JSON: --arg '{name}=[1, 2]'")
        arguments[name] = _value(name, value)
    return arguments


def _value(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        if text.lstrip()[:1] in ("{", "[", '"'):
            raise UsageError(f"--arg {name} = {text!r} is not JSON: {error}; quote it for the shell") from None
        return text


async def _by_app(session: CommandSession, call: NamedCall) -> TriggeredView:
    app = load(session.app or "", folder=session.app_dir)
    if session.url is not None:
        app.use_url(session.url)
    shared(app.storage)
    task = app.find_task(call.task)
    args, kwargs = task.signature.from_plain(call.arguments)
    async with app:
        job = await task.options(**call.options).enqueue(*args, **kwargs)
    return TriggeredView(queue=job.queue, id=job.id, action=job.action, retry_in=None)


async def _by_name(session: CommandSession, call: NamedCall, *, force: bool) -> TriggeredView:
    if isinstance(call.arguments, list):
        raise UsageError("arguments in order need an app, which knows their names; give --app, or a JSON object")
    queue = call.options.get("queue", DEFAULT_QUEUE)
    async with accessed(session) as access:
        await check_known(access, [Target("task", call.task), Target("queue", queue)], force=force)
        new_id = JobIds(SystemClock(), entropy()).make()
        receipt = await enqueue_job(access, job_of(access, call, await access.storage.survey(), new_id))
    click.echo(
        f"warning: enqueued by name, without an app: the arguments and the options of task {call.task!r} are not "
        "checked; give --app",
        err=True,
    )
    return triggered_view(receipt)
