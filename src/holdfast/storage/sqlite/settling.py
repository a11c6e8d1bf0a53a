"""Settlements in SQL: the only way out of active, guarded by fence and owner."""

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.core.decision import Finish, PutBack
from holdfast.core.job import Key, Owner, Ref
from holdfast.core.lifecycle import State
from holdfast.core.settlement import Settlement, when_cancelling
from holdfast.core.transition import refused
from holdfast.storage.protocol import Verdict, job_topic, queue_topic
from holdfast.storage.sqlite import line, rows, slots
from holdfast.storage.sqlite.moving import find_job, tell_if_drained
from holdfast.storage.sqlite.queries import query
from holdfast.storage.sqlite.rows import Row
from holdfast.storage.sqlite.step import Step

_STANDING = query("exchange", "standing")
_FINISH = query("exchange", "finish")
_PUT_BACK = query("exchange", "put_back")
_CLOSE_RUN = query("exchange", "close_run")


def settle(step: Step, owner: Owner, settlements: Sequence[Settlement]) -> tuple[Verdict, ...]:
    """Apply each settlement whose run is the current one, in order."""
    verdicts: list[Verdict] = []
    for batch in _without_repeats(settlements):
        page = _Page()
        verdicts += [_settle(step, owner, asked, page) for asked in batch]
        page.write(step)
    slots.let_in(step)
    return tuple(verdicts)


class _Page:
    """What a batch of settlements changes, to be written statement by statement."""

    def __init__(self) -> None:
        self.finished: list[Row] = []
        self.put_back: list[dict[str, Any]] = []
        self.closed: list[Row] = []

    def write(self, step: Step) -> None:
        changed = step.many(_FINISH, self.finished) + step.many(_PUT_BACK, self.put_back)
        if changed != len(self.closed):
            raise AssertionError(f"{len(self.closed)} runs are held, but {changed} were settled")
        step.many(_CLOSE_RUN, self.closed)


def _without_repeats(settlements: Sequence[Settlement]) -> Iterator[list[Settlement]]:
    """Yield the settlements in runs that name no job twice: what follows must see what came before."""
    batch: list[Settlement] = []
    named: set[Ref] = set()
    for asked in settlements:
        if asked.ref in named:
            yield batch
            batch, named = [], set()
        batch.append(asked)
        named.add(asked.ref)
    if batch:
        yield batch


def _settle(step: Step, owner: Owner, asked: Settlement, page: _Page) -> Verdict:
    row = step.one(_STANDING, (asked.ref.queue, asked.ref.id))
    if row is None:
        return Verdict(asked.ref, asked.fence, "gone")
    seq, state, fence, holder, run, cancel_at, named, boost = row
    if state != "active" or fence != asked.fence or holder != owner.id:
        return _refused(step, owner, asked)
    if cancel_at is not None:
        asked = _heeding_the_cancel(step, asked)
    _note(step, owner, asked, seq, boost, page)
    if named is not None:
        _leave(step, asked, rows.keys(named))
    ended = asked.ended
    page.closed.append((step.now, ended.ended, ended.reason, ended.detail, seq, run))
    for event in asked.events:
        step.record(event)
    tell_if_drained(step, asked.ref.queue)
    return Verdict(asked.ref, asked.fence, "done")


def _refused(step: Step, owner: Owner, asked: Settlement) -> Verdict:
    found = find_job(step, asked.ref)
    if found is None:
        return Verdict(asked.ref, asked.fence, "gone")
    _, job = found
    if job.settled_fence == asked.fence:
        return Verdict(asked.ref, asked.fence, "duplicate")
    step.record(refused(job, owner.id, asked.fence, "settle"))
    return Verdict(asked.ref, asked.fence, "lost")


def _heeding_the_cancel(step: Step, asked: Settlement) -> Settlement:
    """Return what a settlement becomes of a job that was asked to stop."""
    found = find_job(step, asked.ref)
    return asked if found is None else when_cancelling(asked, found[1])


def _note(step: Step, owner: Owner, asked: Settlement, seq: int, boost: int, page: _Page) -> None:
    ref, charge = asked.ref, asked.decision.charge
    failures, stalls, releases = charge == "failures", charge == "stalls", charge == "releases"
    match asked.decision:
        case Finish(state=state, result=result, error=error, reason=reason, keep=keep, redrive_after=redrive_after):
            step.moved(ref.queue, left="active", to=state.value)
            if keep is not None and state is State.COMPLETED:
                step.moved(ref.queue, to="kept")
            if redrive_after is not None and state is State.FAILED:
                step.moved(ref.queue, to="ruled")
            page.finished.append(
                (
                    state.value,
                    step.now,
                    None if keep is None else step.now + keep,
                    None if redrive_after is None else step.now + redrive_after,
                    result,
                    rows.error_text(error),
                    reason,
                    failures,
                    stalls,
                    releases,
                    seq,
                    asked.fence,
                    owner.id,
                )
            )
        case PutBack(after=after, error=error, reason=reason, quarantine=quarantine):
            step.moved(ref.queue, left="active", to="delayed" if after else "waiting")
            step.knocked.append(queue_topic(ref.queue))
            page.put_back.append(
                {
                    "after": after,
                    "now": step.now,
                    "reached": step.now if after else line.reached(step, ref.queue, boost),
                    "error": rows.error_text(error),
                    "reason": reason,
                    "failures": failures,
                    "stalls": stalls,
                    "releases": releases,
                    "quarantine": quarantine,
                    "seq": seq,
                    "fence": asked.fence,
                    "owner": owner.id,
                }
            )
    step.knocked.append(job_topic(ref))


def _leave(step: Step, asked: Settlement, keys: Sequence[Key]) -> None:
    """Leave the slots of a run."""
    ref = asked.ref
    slots.leave(step, ref.queue, ref.id, keys)
    if isinstance(asked.decision, Finish):
        slots.count(step, ref.queue, keys, -1)
    slots.offer(step, ref.queue, keys)
