"""`tenure doctor`: looks for problems that endanger jobs, and names the remedy of each."""

import asyncio
import contextlib

import click

from tenure.cli.access import reach
from tenure.cli.exits import FAILURE, OK, UNHEALTHY, leave
from tenure.cli.http import CLOSING, closed
from tenure.cli.logs import set_up
from tenure.cli.render import as_json, printable
from tenure.cli.session import CommandSession
from tenure.cli.session import storage as storage_options
from tenure.errors import UsageError
from tenure.ops.examination import Examination, examine
from tenure.ops.views import DoctorView


@click.command()
@storage_options
@click.argument("target", required=False, metavar="[MODULE:APP]")
@click.option(
    "--deep", is_flag=True, help="Also search the event log for repairs and, on SQLite, check the whole file."
)
@click.option("--strict", is_flag=True, help="Exit with 3 for warnings as well.")
@click.pass_obj
def doctor(session: CommandSession, target: str | None, deep: bool, strict: bool) -> int:
    """Diagnose the storage and the setup, and name the remedy of each finding.

    Checks the storage (is it reachable, its schema version and configuration, does its clock agree with this host's),
    its contents (jobs without a worker, stuck jobs, missing reapers), and, if an app is given, its tasks (without a
    timeout, or unknown). Changes no job, and needs no running worker.

    Exits with 0 without errors, 3 with errors, 1 if the storage is unreachable or refuses. --quiet prints problems
    only.
    """
    # Problems are printed on stdout, so the log does not repeat them.
    set_up("critical", "text", quiet=True)
    if target is not None:
        if session.url is not None:
            raise UsageError(f"{target} has a storage of its own; give either --url or the app")
        session.app = target
    found = asyncio.run(_examined(session, deep=deep))
    if not as_json(session, found.view):
        _shown(session, found.view)
    bad = ("error", "warning") if strict else ("error",)
    code = FAILURE if found.failed else UNHEALTHY if found.view.status in bad else OK
    if found.hangs:
        # A storage that does not answer blocks a thread, and the interpreter would wait for that thread at exit.
        leave(code)
    return code


async def _examined(session: CommandSession, *, deep: bool) -> Examination:
    access = reach(session)
    found = await examine(access, deep=deep)
    if not found.hangs:
        await closed(access.storage)
        if access.outbox is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSING):
                    await access.outbox.close()
    return found


_COLORS = {"ok": "green", "warning": "yellow", "error": "red"}


def _shown(session: CommandSession, view: DoctorView) -> None:
    color = None if session.color else False
    width = max((len(finding.subject) for finding in view.findings), default=0)
    for finding in view.findings:
        if finding.level == "ok" and session.quiet:
            continue
        level = click.style(f"{finding.level:<7}", fg=_COLORS[finding.level])
        click.echo(f"{level}  {printable(finding.subject):<{width}}  {printable(finding.message)}", color=color)
        if finding.remedy:
            click.echo(f"{'':7}  {'':{width}}  remedy: {printable(finding.remedy)}", color=color)
    if not session.quiet:
        errors, warnings = (_counted(view, level) for level in ("error", "warning"))
        click.echo(f"\n{printable(view.url)}: {errors}, {warnings}")


def _counted(view: DoctorView, level: str) -> str:
    count = sum(finding.level == level for finding in view.findings)
    return f"{count} {level}{'' if count == 1 else 's'}"
