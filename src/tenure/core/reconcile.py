"""Which ends a job that waits has not been notified of, so that a sweep can ask for them.

A token may be lost with the last second of a server that failed over. The jobs that it stood for are known: the needs
of the wait, the plan of a flow, and the numbers of a group name them.
"""

from collections.abc import Iterator

from msgspec import Struct

from tenure.core.ref import Ref
from tenure.core.waiting import Dependent, Inbox, JobKind, Links, Need, missing_sources


class MissingEnd(Struct, frozen=True, gc=False):
    """A job whose end has not reached a job that waits.

    `dependent`: the token that its end brings, if its own record does not say so. `lost`: if the job does not exist, it
    was never written, and will not come: its flow lists it and is sealed, and was not written together with its
    members. Of any other job that does not exist nothing is known: it may have ended and have been deleted.
    """

    ref: Ref
    dependent: Dependent
    lost: bool = False


class StaleWait(Struct, frozen=True, gc=False):
    """A job that has waited for long without a token, and some of the jobs whose ends it misses."""

    ref: Ref
    missing: tuple[MissingEnd, ...]


def asks_for_jobs(links: Links) -> bool:
    """Return True if a job waits for the ends of jobs that are known, and not only for signals or a time."""
    needs = () if links.wait is None else links.wait.needs
    return links.kind is not JobKind.JOB or any(need.source is not None for need in needs)


def missing_ends(job: Ref, links: Links, inbox: Inbox) -> list[MissingEnd]:
    """Return the jobs whose ends the wait of a job still misses, in an order that does not depend on the inbox."""
    if links.wait is None:
        return []
    edges = [
        MissingEnd(source, Dependent(job, need.box, source.id)) for need, source in missing_sources(links.wait, inbox)
    ]
    boxes = [need for need in links.wait.needs if need.source is None and links.kind is not JobKind.JOB]
    return [*edges, *(end for need in boxes for end in _members(job, links, need, inbox))]


def _members(job: Ref, links: Links, need: Need, inbox: Inbox) -> Iterator[MissingEnd]:
    """Yield the members that have no token in the box of a need, if the number of members is known."""
    box = inbox.box(need.box)
    total = box.total if need.count is None else need.count
    if total is None or box.arrived >= total:
        return
    nodes = {} if links.plan is None else links.plan.nodes
    # The members of a flow that was written in one step were written with it.
    lost = need.count is None
    keys = [f"{number}" for number in range(1, total + 1)] if links.kind is JobKind.GROUP else list(nodes)
    for key in keys:
        if key not in box.failed and key not in box.completed:
            # A member of a group is in the queue of the group, unless the plan says otherwise.
            ref = nodes.get(key) or Ref(job.queue, f"{job.id}~{key}")
            yield MissingEnd(ref, Dependent(job, need.box, key), lost)


def is_open(links: Links, inbox: Inbox) -> bool:
    """Return True if a flow or a group is not sealed: it is not known how many members it will have."""
    needs = () if links.wait is None else links.wait.needs
    return any(need.count is None and need.source is None and inbox.box(need.box).total is None for need in needs)


def known_members(job: Ref, links: Links, inbox: Inbox) -> list[Ref]:
    """Return the members of a flow, the last ones of its plan first, or those of a group, as far as they are known.

    A plan lists a job after those that it needs. So a job that waits comes before the jobs that it waits for.
    """
    nodes = {} if links.plan is None else links.plan.nodes
    if links.kind is not JobKind.GROUP:
        return list(nodes.values())[::-1]
    needs = () if links.wait is None else links.wait.needs
    totals = [inbox.box(need.box).total if need.count is None else need.count for need in needs if need.source is None]
    numbers = range(1, max((total for total in totals if total is not None), default=0) + 1)
    own = [nodes.get(f"{number}") or Ref(job.queue, f"{job.id}~{number}") for number in numbers]
    return list(dict.fromkeys([*own, *nodes.values()]))
