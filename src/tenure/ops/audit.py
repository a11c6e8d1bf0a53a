"""Writes an operator's act into the audit log, before it happens and after; and reads the log."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

from msgspec import Struct, structs

from tenure.clock import SystemClock, entropy
from tenure.core.audit import OperatorAct, Via, fitted, fitted_text
from tenure.core.duration import moment
from tenure.errors import StorageError, StorageUnavailableError, TenureError
from tenure.ids import JobIds
from tenure.storage.protocol import ActsQuery, RevisionResult, Storage

logger = logging.getLogger("tenure.audit")

_make_id = JobIds(SystemClock(), entropy()).make


class ActView(Struct, frozen=True, kw_only=True):
    """An act of an operator; see `OperatorAct`. `done` and `verdict`: None if it is unknown how the act ended."""

    id: str
    asked: datetime
    done: datetime | None
    actor: str
    role: str
    via: Via
    action: str
    target: str
    change: str | None
    filter: str | None
    count: int | None
    op: str | None
    reason: str | None
    verdict: str | None


class ActsView(Struct, frozen=True, kw_only=True):
    """One page of the audit log, newest first, and the cursor of the next page (None: this is the last page)."""

    acts: list[ActView]
    next: str | None


@dataclass
class AuditedAct:
    """An act that is under way. Its block sets the verdict, and the count if that is known only afterwards."""

    id: str
    verdict: str = "done"
    count: int | None = None


@asynccontextmanager
async def audited(
    storage: Storage,
    *,
    actor: str,
    role: str,
    via: Via,
    action: str,
    target: str,
    change: str | None = None,
    filter: str | None = None,  # noqa: A002 - the field's own name
    count: int | None = None,
    op: str | None = None,
    reason: str | None = None,
) -> AsyncGenerator[AuditedAct]:
    """Write the act into the audit log, run the block, and write its verdict.

    The verdict is what the block sets, else `done`. If the block raises an error, the verdict is `failed: ERROR`, or
    `unknown: ERROR` if the storage did not answer, because the act may have happened then; the error is raised again.
    If the block is cancelled, or if the verdict cannot be written, the record stays without one.

    Raises:
        StorageError: the act cannot be written into the log; then the block does not run.
    """
    act = fitted(
        OperatorAct(
            id=_make_id(),
            actor=actor,
            role=role,
            via=via,
            action=action,
            target=target,
            change=change,
            filter=filter,
            count=count,
            op=op,
            reason=reason,
        )
    )
    act = await storage.record_act(act)
    under_way = AuditedAct(act.id, count=count)
    try:
        yield under_way
    except Exception as error:
        result = "unknown" if isinstance(error, StorageUnavailableError | OSError) else "failed"
        # The text of an error that is not ours may quote arguments.
        text = str(error) if isinstance(error, TenureError | OSError) else ""
        under_way.verdict = f"{result}: {text or type(error).__name__}"
        await _conclude(storage, act, under_way)
        raise
    await _conclude(storage, act, under_way)


def verdict_of(answer: RevisionResult) -> str:
    """Return the verdict of an act that revised one job."""
    if answer.verdict != "refused":
        return answer.verdict
    if answer.holder is not None:
        return f"refused: job {answer.holder.id} holds its unique key"
    return "refused" if answer.state is None else f"refused: the job is {answer.state.value}"


async def _conclude(storage: Storage, act: OperatorAct, under_way: AuditedAct) -> None:
    """Write the verdict. The act has happened, so an error of the storage is logged and not raised."""
    ended = fitted(structs.replace(act, verdict=under_way.verdict, count=under_way.count))
    try:
        await storage.record_act(ended)
    except (StorageError, OSError) as error:
        logger.warning("the audit log does not say how %s of %s ended (%s): %s", act.action, act.target, act.id, error)


async def acts_view(storage: Storage, query: ActsQuery) -> ActsView:
    """Return one page of the audit log. A long name in the query selects the acts in which it was cut, too.

    Raises:
        ValueError: the storage did not return this cursor.
        StorageError: the storage cannot be reached.
    """
    names = {name: fitted_text(getattr(query, name), name) for name in ("actor", "action", "target")}
    page = await storage.acts(structs.replace(query, **names))
    return ActsView(acts=[_act_view(act) for act in page.acts], next=page.next)


def _act_view(act: OperatorAct) -> ActView:
    return ActView(
        id=act.id,
        asked=moment(act.asked or 0),
        done=None if act.done is None else moment(act.done),
        actor=act.actor,
        role=act.role,
        via=act.via,
        action=act.action,
        target=act.target,
        change=act.change,
        filter=act.filter,
        count=act.count,
        op=act.op,
        reason=act.reason,
        verdict=act.verdict,
    )
