"""Gathers the evidence after all workers have stopped, and computes every answer again."""

import asyncio
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from msgspec import structs

from tenure.clock import entropy
from tenure.core.job import JobDetail, Owner, Ref
from tenure.core.lease import Lease
from tenure.core.outcome import Returned
from tenure.core.settlement import settlement
from tenure.storage.protocol import Query, Storage
from tenure_testing.demo import handler_log as handler_logs
from tenure_testing.demo import tasks
from tenure_testing.demo.event_follower import EventFollower
from tenure_testing.demo.evidence import DemoBounds, DemoEvidence, Fault, HeldRun, Replay
from tenure_testing.demo.work import Facts, examine, is_python

PAGE = 200


async def gather(
    storage: Storage,
    follower: EventFollower,
    enqueued: dict[str, str],
    *,
    queue: str,
    kills: int,
    faults: list[Fault],
    hung: str | None,
    gil_holder: str | None,
    handler_log: Path,
) -> tuple[DemoEvidence, float]:
    """Return the input of the audit, and the CPU seconds that it took to compute the answers again."""
    lines, pieces = await asyncio.to_thread(handler_logs.read, handler_log, handler_logs.HandlerLogLine)
    details = await _details(storage, queue, enqueued)
    # A file without an answer needs no comparison.
    answered = {job for job, detail in details.items() if detail is not None and detail.job.result is not None}
    answered |= {line.job for line in lines if line.answer is not None}
    began = _core_seconds()
    expected: dict[str, Facts] = {}
    for path in sorted({enqueued[job] for job in answered & enqueued.keys()}):
        # Use a thread, so that Ctrl-C works. Compute one file at a time, so that Ctrl-C need not wait long.
        if (facts := await asyncio.to_thread(_computed, path)) is not None:
            expected[path] = facts
    computing = _core_seconds() - began
    await follower.catch_up()
    replayed = None
    if not any(getattr(event, "write", None) == "settle" for event in follower.events):
        replayed = await replay(storage, details, faults)
        # The audit must see any effect of the replay.
        await follower.catch_up()
        details = await _details(storage, queue, enqueued)
    evidence = DemoEvidence(
        enqueued=enqueued,
        expected=expected,
        details=details,
        found=await _found(storage, queue),
        lines=lines,
        pieces=pieces,
        events=follower.events,
        faults=faults,
        kills=kills,
        hung=hung,
        gil_holder=gil_holder,
        replay=replayed,
        bounds=DemoBounds.of(tasks.TIMING, gil_lease=timedelta(seconds=tasks.GIL_LEASE)),
    )
    return evidence, computing


async def replay(storage: Storage, details: dict[str, JobDetail | None], faults: Sequence[Fault]) -> Replay | None:
    """Settle a run that was taken from its worker, in that worker's name, as if its answer arrived late."""
    runs = [
        (detail.job, run)
        for detail in details.values()
        if detail is not None
        for run in detail.runs[:-1]
        if run.ended == "stalled"
    ]
    if not runs:
        return None
    woken = {fault.owner.id for fault in faults if fault.kind == "pause"}
    job, run = next((item for item in runs if item[1].owner in woken), runs[0])
    late = Lease(structs.replace(job, fence=run.fence, starts=run.number, owner=run.owner))
    sent = settlement(late, Returned(b'"an answer that came too late"'), entropy())
    answer = await storage.exchange(Owner(run.owner, run.worker, run.host, run.pid), [sent])
    return Replay(HeldRun(job.id, run.number, run.fence), answer.verdicts[0].verdict)


async def _details(storage: Storage, queue: str, enqueued: dict[str, str]) -> dict[str, JobDetail | None]:
    refs = [Ref(queue, job) for job in enqueued]
    details: dict[str, JobDetail | None] = {}
    for start in range(0, len(refs), PAGE):
        page = refs[start : start + PAGE]
        details.update(zip((ref.id for ref in page), await storage.get(page), strict=True))
    return details


async def _found(storage: Storage, queue: str) -> list[Ref]:
    found: list[Ref] = []
    after: str | None = None
    while True:
        page = await storage.find(Query(queues=(queue,), limit=PAGE, after=after))
        found += [job.ref for job in page.jobs]
        if (after := page.next) is None:
            return found


def _core_seconds() -> float:
    """Return the CPU seconds that this process has used. Waiting for a busy machine does not count."""
    times = os.times()
    return times.user + times.system


def _computed(path: str) -> Facts | None:
    """Return the facts of a file, or None if it has vanished meanwhile."""
    try:
        return examine(Path(path).read_bytes(), python=is_python(path))
    except OSError:
        return None
