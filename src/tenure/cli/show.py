"""`tenure jobs show`: shows one job with its runs and log, and why it ran more than once."""

import asyncio

import click

from tenure.cli.access import accessed
from tenure.cli.lookup import find_job
from tenure.cli.render import as_json, block, moment_text, pairs, printable, span_text, table
from tenure.cli.session import CommandSession, naming, storage
from tenure.clock import SECOND
from tenure.core.decision import STALL_ERROR
from tenure.core.document import progress_text
from tenure.core.duration import duration_text
from tenure.core.postmortem import first_line
from tenure.ops.jobs import job_view_of
from tenure.ops.views import DetailView, ErrorView, RetryView, RunView, value_text


@click.command()
@storage
@click.argument("job_id", type=naming("ID"), metavar="ID")
@click.option("--queue", type=naming("--queue"), metavar="QUEUE", help="The job's queue.")
@click.pass_obj
def show(session: CommandSession, job_id: str, queue: str | None) -> None:
    """Show a job: its record, its runs, its log, and why it ran more than once."""
    detail = asyncio.run(_detail(session, job_id, queue))
    if not as_json(session, detail):
        _shown(session, detail)


async def _detail(session: CommandSession, job_id: str, queue: str | None) -> DetailView:
    async with accessed(session) as access:
        job = await find_job(access.storage, job_id, queue)
        return await job_view_of(access, job.ref)


def _shown(session: CommandSession, job: DetailView) -> None:
    pairs(session, [(name, value) for name, value in _facts(job) if value])
    if job.error is not None:
        block(session, "error", _error(job.error))
    if job.runs:
        click.echo()
        table(session, _RUN_COLUMNS, [_run(run) for run in job.runs], title="runs", whole=_WHOLE)
        for run in job.runs:
            if (text := _post_mortem(run)) and not (job.error is not None and text == job.error.traceback):
                block(session, f"post-mortem of run {run.number}", text)
            if run.ended is None and run.trace is not None:
                block(session, f"where run {run.number} is, as of a beat of its worker", run.trace)
    if job.log:
        facts = [
            f"{moment_text(line.at)} run {line.run} {line.level}: {_line(line.message, line.fields)}"
            for line in job.log
        ]
        if job.log_dropped:
            facts.insert(0, f"({job.log_dropped:,} other lines were dropped)")
        block(session, "log", "\n".join(facts))
    if job.why is not None:
        click.echo(f"\n{printable(job.why)}")


def _post_mortem(run: RunView) -> str:
    """Return the post-mortem of a run that was cut off, or an empty text."""
    cause, _, more = (run.detail or "").partition("\n")
    match run.ended:
        case "stalled" if more:
            return f"{cause}\n{more}"
        case "timed_out":
            return more
        case _:
            return ""


def _error(error: ErrorView) -> str:
    text = f"{error.type}: {error.message}"
    # The run of a stalled job already shows the whole post-mortem.
    return text if error.type == STALL_ERROR else error.traceback or text


def _facts(job: DetailView) -> list[tuple[str, str]]:
    stop = f"{moment_text(job.cancel_asked)} {job.cancel_reason or ''}" if job.cancel_asked else ""
    progress = "" if job.progress is None else f"{progress_text(job.progress)} {job.progress_note or ''}"
    tick = "triggered" if job.scheduled_for is None else moment_text(job.scheduled_for)
    return [
        ("id", job.id),
        ("queue", job.queue),
        ("task", job.task),
        ("state", f"{job.state} ({job.reason})" if job.reason else job.state),
        ("arguments", value_text(job.arguments)),
        ("result", value_text(job.result) if job.state == "completed" else ""),
        ("tags", ", ".join(job.tags)),
        ("priority", str(job.priority) if job.priority else ""),
        ("schedule", "" if job.schedule is None else f"{job.schedule}, {tick}"),
        ("created", moment_text(job.created)),
        ("due", moment_text(job.run_at) if job.state in ("delayed", "waiting") else ""),
        ("started", moment_text(job.started) if job.started else ""),
        ("finished", moment_text(job.finished) if job.finished else ""),
        ("lease until", moment_text(job.lease_until) if job.state == "active" else ""),
        ("timeout", "" if job.timeout is None else _span(job.timeout)),
        ("retry", _retry(job.retry)),
        ("asked to stop", stop),
        ("progress", progress),
        ("data", "" if job.data is None else value_text(job.data)),
        ("budgets", _budgets(job)),
    ]


def _retry(rule: RetryView) -> str:
    if rule.max_attempts == 1:
        return "never"
    jitter = f", ±{rule.jitter:.0%}" if rule.jitter else ""
    delay = f"{rule.backoff} delay from {_span(rule.base)} to {_span(rule.cap)}{jitter}"
    return f"up to {rule.max_attempts} attempts, {delay}"


def _span(seconds: float) -> str:
    return duration_text(round(seconds * SECOND))


def _budgets(job: DetailView) -> str:
    return (
        f"{job.failures} of {job.max_attempts} attempts failed, {job.stalls} of {job.max_stalls} stalls allowed; "
        f"starts: {job.starts}, releases: {job.releases}"
    )


_RUN_COLUMNS = ("run", "fence", "worker", "start", "took", "ended", "why")

_WHOLE = ("fence", "start", "took", "ended")


def _run(run: RunView) -> list[str]:
    return [
        str(run.number),
        str(run.fence),
        _worker(run),
        moment_text(run.start),
        span_text(run.took),
        run.ended or "active",
        ": ".join(part for part in (run.reason, first_line(run.detail or "")) if part) or "-",
    ]


def _worker(run: RunView) -> str:
    place = f"{run.host}:{run.pid}"
    # By default this is the name.
    return run.worker if run.worker == place else f"{run.worker} ({place})"


def _line(message: str, fields: dict[str, str]) -> str:
    return " ".join([message, *(f"{name}={value}" for name, value in fields.items())])
