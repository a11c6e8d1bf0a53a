"""`tenure doctor`: looks for problems that endanger jobs, and names the remedy of each."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import click

from tenure.cli.access import StorageAccess, must_exist, reach
from tenure.cli.exits import FAILURE, OK, UNHEALTHY, leave
from tenure.cli.http import closed
from tenure.cli.load import load
from tenure.cli.logs import set_up
from tenure.cli.render import as_json, printable
from tenure.cli.session import CommandSession
from tenure.cli.session import storage as storage_options
from tenure.clock import SystemClock
from tenure.core.events import EventsTrimmed, JobRepaired, at_micros
from tenure.core.job import JobRecord
from tenure.core.lifecycle import State
from tenure.errors import SchemaMismatchError, StorageUnavailableError, TenureError, UsageError
from tenure.ops.diagnosis import PENDING, DiagnosisInput, TaskFacts, diagnose, outbox_findings, repairs
from tenure.ops.views import DoctorView
from tenure.outbox.outbox import Outbox
from tenure.storage.protocol import Finding, Query, Storage

LIMIT = 10.0
"""Seconds that the storage gets for each part of the examination, except for deep parts."""

SEEN = 2_000
"""How many jobs are read, of the active ones and of those that have not run yet: the newest."""

SECOND_LOOK = 1.0
"""Seconds until errors are checked a second time: a state in transition has settled by then."""

_PAGE = 500

T = TypeVar("T")


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
    view, code, hangs = asyncio.run(_Visit(session).made(deep=deep))
    if not as_json(session, view):
        _shown(session, view)
    if code == OK and strict and view.status == "warning":
        code = UNHEALTHY
    if hangs:
        # A storage that does not answer blocks a thread, and the interpreter would wait for that thread at exit.
        leave(code)
    return code


class _Visit:
    """One examination of a storage: a part that fails becomes a finding, and the other parts still run."""

    def __init__(self, session: CommandSession) -> None:
        self._access: StorageAccess = reach(session)
        self._tasks = _facts(session)
        self._clock = SystemClock()
        self._findings: list[Finding] = []
        self._failed = False
        self._hangs = False

    async def made(self, *, deep: bool) -> tuple[DoctorView, int, bool]:
        """Return the findings, the exit code, and whether the storage hangs."""
        at = self._clock.uptime()
        if await self._part(self._opened) is not None:
            took = (self._clock.uptime() - at) * 1000
            self._findings.append(Finding("ok", "reachability", f"opened within {took:.0f} ms"))
        refused = self._failed
        # A storage that cannot be used may still be able to describe what is wrong with it.
        own = await self._part(lambda: self._storage.examine(deep=deep), limit=None if deep else LIMIT) or []
        if refused and any(finding.level == "error" for finding in own):
            # Its own finding is more precise than the error of `open`.
            self._findings.clear()
        self._findings += own
        if self._access.outbox is not None:
            self._findings += await self._outbox(self._access.outbox)
        if not refused:
            self._findings += await self._part(self._diagnosed) or []
            if deep:
                self._findings += await self._part(self._repairs, limit=None) or []
        if not self._hangs:
            await closed(self._storage)
        levels = {finding.level for finding in self._findings}
        status = "error" if "error" in levels else "warning" if "warning" in levels else "ok"
        view = DoctorView(url=self._storage.url, status=status, findings=self._findings)
        return view, FAILURE if self._failed else UNHEALTHY if status == "error" else OK, self._hangs

    @property
    def _storage(self) -> Storage:
        return self._access.storage

    async def _part(self, part: Callable[[], Awaitable[T]], *, limit: float | None = LIMIT) -> T | None:
        """Return the result of a part; None if it failed. The first failure becomes a finding."""
        if self._hangs:
            return None
        try:
            async with asyncio.timeout(limit):
                return await part()
        except TimeoutError:
            self._hangs = True
            trouble = Finding(
                "error",
                "reachability",
                f"the storage did not answer within {limit:g} s",
                "check whether it is overloaded or stopped, and whether a firewall drops the packets",
            )
        except (TenureError, OSError) as error:
            trouble = _trouble(error)
        if not self._failed:
            self._findings.append(trouble)
        self._failed = True
        return None

    async def _opened(self) -> bool:
        must_exist(self._storage)
        await self._storage.open()
        return True

    async def _diagnosed(self) -> list[Finding]:
        found = diagnose(await self._gathered(), self._access.timing)
        if any(finding.level == "error" for finding in found):
            await asyncio.sleep(SECOND_LOOK)
            found = diagnose(await self._gathered(), self._access.timing)
        return found

    async def _outbox(self, outbox: Outbox) -> list[Finding]:
        """Examine the outbox. Its failure says nothing about the storage."""
        try:
            async with asyncio.timeout(LIMIT):
                found = outbox_findings(await outbox.state() if await outbox.exists() else None)
                await outbox.close()
        except TimeoutError:
            why = f"{outbox.url} did not answer within {LIMIT:g} s"
        except (TenureError, OSError) as error:
            why = str(error)
        else:
            return found
        return [Finding("error", "outbox", why, "check its address, Tenure(outbox=...), and that the database runs")]

    async def _repairs(self) -> list[Finding]:
        """Read the event log up to now for repairs; the sweeps of some storages audit their records and repair them."""
        now = (await self._storage.survey()).now
        found: list[JobRepaired] = []
        count = 0
        cursor: str | None = None
        while True:
            page = await self._storage.events(cursor, limit=_PAGE)
            past = [event for event in page.events if not isinstance(event, EventsTrimmed) and at_micros(event) <= now]
            found += (event for event in past if isinstance(event, JobRepaired))
            count += len(past)
            # A page may be empty before the end. If events come faster than they are read, stop at the start time.
            if page.next == cursor or (page.events and not past):
                return [repairs(found, count)]
            cursor = page.next

    async def _gathered(self) -> DiagnosisInput:
        storage = self._storage
        asked_at = self._clock.now()
        survey = await storage.survey()
        answered_at = self._clock.now()
        pending, all_pending = await _listed(storage, *PENDING)
        # Read active jobs after waiting ones, so that a job released meanwhile is seen holding its key.
        active, all_active = await _listed(storage, State.ACTIVE)
        return DiagnosisInput(
            survey=survey,
            asked_at=asked_at,
            answered_at=answered_at,
            active=active,
            pending=pending,
            complete=all_pending and all_active,
            tasks=self._tasks,
        )


def _facts(session: CommandSession) -> Mapping[str, TaskFacts] | None:
    if session.url is not None or session.app is None:
        return None
    return {
        name: TaskFacts(
            queue=task.queue,
            bounded=task.settings.timeout is not None or task.settings.heartbeat_timeout is not None,
        )
        for name, task in load(session.app, folder=session.app_dir).tasks.items()
    }


async def _listed(storage: Storage, *states: State) -> tuple[tuple[JobRecord, ...], bool]:
    """Return the newest jobs in these states, and whether they are all."""
    jobs: list[JobRecord] = []
    after: str | None = None
    while len(jobs) < SEEN:
        page = await storage.find(Query(states=states, limit=_PAGE, after=after))
        jobs += page.jobs
        after = page.next
        if after is None:
            return tuple(jobs), True
    return tuple(jobs), False


def _trouble(error: TenureError | OSError) -> Finding:
    message, _, remedy = str(error).partition("; ")
    match error:
        case SchemaMismatchError():
            return Finding("error", "schema", message, remedy or "name another storage, or run tenure migrate up")
        case UsageError():
            return Finding("error", "storage", message, remedy or "name another storage with --url or TENURE_URL")
        case StorageUnavailableError() | OSError():
            known = "start the storage, and check its address (--url, TENURE_URL) and the network between"
            return Finding("error", "reachability", f"the storage is unreachable: {message}", remedy or known)
        case _:
            return Finding("error", "storage", message, remedy or "fix the reported problem and run doctor again")


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
