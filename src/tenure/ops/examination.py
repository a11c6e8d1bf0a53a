"""The examination of `tenure doctor`: reads a storage in parts, and turns each failure into a finding."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from msgspec import Struct

from tenure.clock import SystemClock
from tenure.core.events import EventsTrimmed, JobRepaired, at_micros
from tenure.core.job import JobRecord
from tenure.core.lifecycle import State
from tenure.errors import SchemaMismatchError, StorageUnavailableError, TenureError, UsageError
from tenure.ops.access import StorageAccess, must_exist
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


class Examination(Struct, frozen=True, kw_only=True):
    """The result: the findings. `failed`: the storage could not be read. `hangs`: it does not answer."""

    view: DoctorView
    failed: bool
    hangs: bool


async def examine(access: StorageAccess, *, deep: bool = False) -> Examination:
    """Open and examine a storage, and leave it open. No error ends this: a failure is a finding.

    `deep`: also read the event log for repairs and let the storage check all of its data, which may take minutes.
    """
    return await _Visit(access).made(deep=deep)


class _Visit:
    """One examination of a storage: a part that fails becomes a finding, and the other parts still run."""

    def __init__(self, access: StorageAccess) -> None:
        self._access = access
        self._storage = access.storage
        self._clock = SystemClock()
        self._findings: list[Finding] = []
        self._failed = False
        self._hangs = False

    async def made(self, *, deep: bool) -> Examination:
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
        levels = {finding.level for finding in self._findings}
        status = "error" if "error" in levels else "warning" if "warning" in levels else "ok"
        view = DoctorView(url=self._storage.url, status=status, findings=self._findings)
        return Examination(view=view, failed=self._failed, hangs=self._hangs)

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
        found = diagnose(await self._diagnosis_input(), self._access.timing)
        if any(finding.level == "error" for finding in found):
            await asyncio.sleep(SECOND_LOOK)
            found = diagnose(await self._diagnosis_input(), self._access.timing)
        return found

    async def _outbox(self, outbox: Outbox) -> list[Finding]:
        """Examine the outbox. Its failure says nothing about the storage."""
        try:
            async with asyncio.timeout(LIMIT):
                found = outbox_findings(await outbox.state() if await outbox.exists() else None)
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

    async def _diagnosis_input(self) -> DiagnosisInput:
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
            tasks=_facts(self._access),
        )


def _facts(access: StorageAccess) -> Mapping[str, TaskFacts] | None:
    if access.tasks is None:
        return None
    return {
        name: TaskFacts(
            queue=task.queue,
            bounded=task.settings.timeout is not None or task.settings.heartbeat_timeout is not None,
        )
        for name, task in access.tasks.items()
        if name in access.implemented
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
