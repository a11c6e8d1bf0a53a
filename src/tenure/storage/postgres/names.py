"""Checks the names of new jobs, waits and tokens: PostgreSQL holds no text with a NUL."""

from collections.abc import Iterable, Iterator, Sequence

from tenure.core.check import shown
from tenure.core.decision import Suspend
from tenure.core.job import JobRecord, NewJob
from tenure.core.settlement import Settlement
from tenure.core.waiting import Dependent, Links, StepRecord, Wait
from tenure.errors import UsageError
from tenure.storage.revisions import Revision
from tenure.storage.waiting import DeliverToken, SealBox, Subscribe


def require_storable(job: NewJob | JobRecord) -> None:
    """Check all names of a job.

    Raises:
        UsageError: one of them contains NUL.
    """
    _require(_names(job))


def require_storable_steps(steps: Iterable[StepRecord]) -> None:
    """Check the names of steps that come from another storage.

    Raises:
        UsageError: one of them contains NUL.
    """
    _require(("step", step.name) for step in steps)


def require_storable_waits(settlements: Sequence[Settlement]) -> None:
    """Check all names in the waits of runs that are suspended.

    Raises:
        UsageError: one of them contains NUL.
    """
    for settlement in settlements:
        if isinstance(settlement.decision, Suspend):
            _require(_names_of_wait(settlement.decision.wait))


def require_storable_tokens(revisions: Sequence[Revision]) -> None:
    """Check all names in tokens and dependents.

    Raises:
        UsageError: one of them contains NUL.
    """
    for revision in revisions:
        match revision:
            case DeliverToken(token=token):
                _require((("box", token.box), ("key", token.key)))
            case SealBox(box=box):
                _require((("box", box),))
            case Subscribe(dependent=dependent):
                _require(_names_of_dependent(dependent))
            case _:
                continue


def _require(names: Iterable[tuple[str, str | None]]) -> None:
    for field, name in names:
        if name is not None and "\0" in name:
            raise UsageError(f"{field} = {shown(name)} contains NUL, which PostgreSQL cannot hold; use another name")


def _names_of_links(links: Links) -> Iterator[tuple[str, str | None]]:
    for dependent in links.dependents:
        yield from _names_of_dependent(dependent)
    if links.wait is not None:
        yield from _names_of_wait(links.wait)
    if links.flow is not None:
        yield "flow", links.flow.queue
        yield "flow", links.flow.id


def _names_of_dependent(dependent: Dependent) -> Iterator[tuple[str, str | None]]:
    yield "dependent", dependent.to.queue
    yield "dependent", dependent.to.id
    yield "box", dependent.box
    yield "key", dependent.key


def _names_of_wait(wait: Wait) -> Iterator[tuple[str, str | None]]:
    for need in wait.needs:
        yield "box", need.box
        yield "step", need.step
        if need.source is not None:
            yield "source", need.source.queue
            yield "source", need.source.id


def _names(job: NewJob | JobRecord) -> Iterator[tuple[str, str | None]]:
    yield "queue", job.queue
    yield "id", job.id
    yield "task", job.task
    yield "fair_key", job.fair_key
    yield "schedule", job.schedule
    yield "parent", job.parent
    yield "throttle", job.throttle.key if isinstance(job, NewJob) and job.throttle is not None else None
    yield "merge", None if job.merge is None else job.merge.key
    for tag in job.tags:
        yield "tags", tag
    for key in job.keys:
        yield "concurrency_key", key.name
    for rate in job.rates:
        yield "rate", rate.name
    if job.links is not None:
        yield from _names_of_links(job.links)
