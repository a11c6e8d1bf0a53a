"""The command `python -m tenure_testing.demo`: real work, killed workers, an audit that does not ask the queue."""

import asyncio
import contextlib
import signal
import sys
from typing import NoReturn

import click

from tenure.cli.exits import FAILURE, OK, report_error
from tenure.cli.render import as_json, console, draws
from tenure.cli.session import CommandSession, storage
from tenure.errors import UsageError
from tenure_testing.demo.output import Lively, PlainOutput, Show, Silent
from tenure_testing.demo.report import Report
from tenure_testing.demo.run import MOST_JOBS, DemoPlan, conduct


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@storage
@click.option("--jobs", type=click.IntRange(3, MOST_JOBS), default=1500, show_default=True, help="How many jobs.")
@click.option("--kills", type=click.IntRange(0, 10), default=2, show_default=True, help="How many workers are killed.")
@click.option("--seed", type=int, default=1, show_default=True, help="Which files, in which order.")
@click.option("--plain", is_flag=True, help="Plain lines, also on a terminal.")
@click.option("--open", "browse", is_flag=True, help="Open the console that shows the run in a browser.")
@click.option("--keep", is_flag=True, help="Leave the temporary folder behind.")
@click.make_pass_decorator(CommandSession, ensure=True)
def demo(session: CommandSession, jobs: int, kills: int, seed: int, plain: bool, browse: bool, keep: bool) -> int:
    """Run real work, kill its workers, and audit that nothing was lost.

    The demo runs one job for each file of this Python's library and packages, in three worker processes on a SQLite
    file of its own (or --url, an otherwise unused storage). A handler blocks the interpreter of one worker beyond its
    lease. Busy workers are killed: first the leader, and last one whose handler hangs. One worker is paused until its
    jobs are taken from it. Then every result is computed again, and the queue's history is compared with what the
    handlers wrote down themselves. Exits with 0 only if all of it matches.

    Without --plain a console shows the run live, at an address of this machine that the demo prints.
    """
    if browse and plain:
        raise UsageError("--plain has no console that --open could open; leave one of them out")
    shows = not plain and session.output_format == "table" and not session.quiet
    plan = DemoPlan(url=session.url, jobs=jobs, kills=kills, seed=seed, keep=keep, console=shows, browse=browse)
    with _shown(session, plain=plain) as show:
        report = asyncio.run(_interruptible(plan, show))
        show.verdict(report)
    if not as_json(session, report):
        _ended(report)
    return OK if report.ok else FAILURE


def _shown(session: CommandSession, *, plain: bool) -> Show:
    if session.output_format != "table" or session.quiet:
        return Silent()
    return Lively(console(session)) if draws() and not plain else PlainOutput(_line)


def _line(text: str) -> None:
    click.echo(text)
    # Flush, so that a reader of a pipe sees each line at once.
    sys.stdout.flush()


async def _interruptible(plan: DemoPlan, show: Show) -> Report:
    """Run the demo; if a signal ends it, it still cleans up."""
    conducting = asyncio.create_task(conduct(plan, show))
    loop = asyncio.get_running_loop()

    def asked() -> None:
        # Cancel only once: a second signal must not interrupt the clean-up that the first one began.
        if not conducting.cancelling():
            conducting.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, asked)
    try:
        await asyncio.wait({conducting})
        with contextlib.suppress(asyncio.CancelledError):
            return conducting.result()
        raise KeyboardInterrupt
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)


def _ended(report: Report) -> None:
    if report.stderr:
        click.echo("what the supervisor and its workers wrote to stderr:", err=True)
        for line in report.stderr:
            click.echo(f"  {line}", err=True)
    if report.trouble is not None:
        click.echo(f"the demo did not get to its end: {report.trouble}", err=True)
    if report.kept is not None:
        click.echo(f"kept: {report.kept}")
    verdict = "all of it holds" if report.ok else "NOT all of it holds"
    click.echo(
        f"{verdict}: {report.jobs:,} jobs in {report.runs:,} runs, {report.working_seconds:.1f} s of three workers "
        f"({report.per_second:.0f} jobs/s), {report.core_seconds:.1f} s of one core to compute them again, "
        f"{report.seconds:.1f} s in all"
    )


def main() -> NoReturn:
    """Run the demo and end with its exit code; an error is one line on stderr."""
    try:
        code: object = demo.main(prog_name="tenure_testing.demo", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        code = report_error(error)
    sys.exit(code if isinstance(code, int) else OK)


if __name__ == "__main__":
    main()
