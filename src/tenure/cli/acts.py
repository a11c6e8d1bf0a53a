"""Writes what a command changes into the audit log: who does what to what."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import cast

from tenure.cli.lookup import current_user
from tenure.client.dead_letters import DeadFilter
from tenure.client.jobs import JobFilter
from tenure.core.duration import duration_text, micros
from tenure.ops.audit import AuditedAct, audited
from tenure.storage.protocol import Storage


@asynccontextmanager
async def acting(
    storage: Storage,
    action: str,
    target: str,
    *,
    change: str | None = None,
    where: DeadFilter | JobFilter | None = None,
    reason: str | None = None,
) -> AsyncGenerator[AuditedAct]:
    """Write an act of this command's user into the audit log, before the block and after it; see `audited`.

    `where`: the filter that selects the jobs.

    Raises:
        StorageError: the act cannot be written into the log; then the block does not run.
    """
    async with audited(
        storage,
        actor=current_user(),
        role="shell",
        via="cli",
        action=action,
        target=target,
        change=change,
        filter=None if where is None else filter_text(where),
        reason=reason,
    ) as act:
        yield act


def all_of(queues: Iterable[str]) -> str:
    """Return the target of an act on the jobs of several queues; `*`: of all queues."""
    return ", ".join(queues) or "*"


def filter_text(where: DeadFilter | JobFilter) -> str:
    """Return a filter as text: `queue:mail state:waiting,delayed since:2h`."""
    fields = {
        "fault" if name == "fingerprint" else name.removesuffix("s"): value for name, value in asdict(where).items()
    }
    return " ".join(f"{name}:{_text(value)}" for name, value in fields.items() if value not in (None, ()))


def _text(value: object) -> str:
    match value:
        case tuple():
            return ",".join(map(str, cast("tuple[object, ...]", value)))
        case datetime():
            return value.isoformat()
        case timedelta():
            return duration_text(micros(value))
        case _:
            return str(value)
