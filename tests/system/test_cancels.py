"""A cancel from another process reaches a run long before its worker's next beat."""

from collections.abc import Callable

import pytest

from tenure.core.lifecycle import State
from tenure.storage.protocol import CancelJob
from tests.system.worker_fleet import WorkerFleet

pytestmark = pytest.mark.system

USUAL = {"lease": "20s", "sweep": "2s", "grace": "3s"}
"""The built-in timing, with a beat of 5 s."""


@pytest.mark.parametrize("options", [("--no-supervisor",), ("--processes", "2")], ids=["alone", "supervised"])
async def test_a_cancel_from_another_process_stops_a_coroutine_in_a_second(
    make_fleet: Callable[..., WorkerFleet], options: tuple[str, ...]
) -> None:
    there = make_fleet(**USUAL)
    there.worker(*options)
    refs = there.enqueue("patient", 60, times=6)

    async def all_run() -> bool:
        return sum(line.what == "start" for line in there.lines()) == len(refs)

    async def all_over() -> bool:
        return await there.count(State.CANCELLED) == len(refs)

    await there.until(all_run, within=30)
    for ref in refs:
        (revised,) = await there.storage.revise([CancelJob(ref, "enough", "me")])
        assert revised.verdict == "asked"
    await there.until(all_over, within=10)
    jobs = [detail.job for detail in await there.details(refs)]
    waits = [(job.finished or 0) - (job.cancel_at or 0) for job in jobs]

    assert max(waits) < 1_000_000, waits
    assert [job.reason for job in jobs] == ["enough"] * len(refs)
    for ref in refs:
        mine = [line.what for line in there.lines() if line.id == ref.id]
        assert mine == ["start", "end", "tidied"]
