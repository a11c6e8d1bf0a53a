"""The recorder of steps: calls are shared, repeated after an outage, and refusals reach the right step."""

import asyncio
import logging
from random import Random

import pytest

from tenure.core.job import NewJob, Owner
from tenure.core.lease import Lease
from tenure.core.outcome import Snoozed
from tenure.core.settlement import settlement
from tenure.core.steps import NewStep
from tenure.errors import FlowError, StorageUnavailableError
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.requests import ClaimRequest, LeaseRenewal, RenewRequest, RenewResult
from tenure.testing import ManualClock
from tenure.worker.active_runs import ActiveRun, StopReason
from tenure.worker.step_recorder import STEPS_SENT, StepRecorder

OWNER = Owner("worker")


class Outages(MemoryStorage):
    """A storage whose renewals fail, or whose answers are lost, as often as the test says."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.calls: list[tuple[LeaseRenewal, ...]] = []
        self.away = self.lost_answers = 0

    async def renew(self, beat: RenewRequest) -> RenewResult:
        """Renew, after an outage."""
        self.calls.append(beat.renewals)
        await asyncio.sleep(0)
        if self.away:
            self.away -= 1
            raise StorageUnavailableError("away")
        answer = await super().renew(beat)
        if self.lost_answers:
            self.lost_answers -= 1
            raise StorageUnavailableError("the answer is lost")
        return answer


class Recording:
    """A recorder, its storage, and the runs that it stopped."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.storage = Outages(self.clock)
        self.stopped: list[tuple[ActiveRun, StopReason]] = []
        self.recorder = StepRecorder(self.storage, self.clock, Random(0), logging.getLogger("test"), stop=self.stop)

    def stop(self, run: ActiveRun, reason: StopReason, detail: str | None) -> None:
        """Note that a run was stopped."""
        self.stopped.append((run, reason))

    async def start(self, count: int = 1) -> list[ActiveRun]:
        """Start some runs."""
        await self.storage.enqueue(
            [NewJob(queue="q", id=f"{number}", task="t", payload=b"") for number in range(count)]
        )
        leases: tuple[Lease, ...] = (await self.storage.exchange(OWNER, order=ClaimRequest(("q",), count))).leases
        return [ActiveRun(lease) for lease in leases]

    async def names(self, run: ActiveRun) -> list[str]:
        """Return the names of the recorded steps of a run."""
        (detail,) = await self.storage.get([run.lease.ref])
        assert detail is not None
        return [step.name for step in detail.steps]


async def test_a_step_is_sent_at_once_and_those_meanwhile_share_a_call() -> None:
    here = Recording()
    runs = await here.start(3)
    answers = [here.recorder.record(run, NewStep(name)) for name in ("a", "b") for run in runs]
    await asyncio.sleep(0)
    later = [here.recorder.record(run, NewStep("c")) for run in runs]

    assert await asyncio.gather(*answers, *later) == [True] * 9
    assert [len(call) for call in here.storage.calls] == [3, 3]
    assert [await here.names(run) for run in runs] == [["a", "b", "c"]] * 3


async def test_a_call_has_a_limited_number_of_steps() -> None:
    here = Recording()
    (run,) = await here.start()
    answers = [here.recorder.record(run, NewStep("a" if not number else f"a#{number + 1}")) for number in range(250)]

    assert await asyncio.gather(*answers) == [True] * 250
    assert [len(call[0].steps) for call in here.storage.calls] == [STEPS_SENT, STEPS_SENT, 50]


@pytest.mark.parametrize("kind", ["away", "lost_answers"])
async def test_a_call_that_fails_is_sent_again_and_recorded_once(kind: str) -> None:
    here = Recording()
    (run,) = await here.start()
    setattr(here.storage, kind, 2)

    assert await here.recorder.record(run, NewStep("a", body=b"1"))
    assert len(here.storage.calls) == 3
    assert await here.names(run) == ["a"]


async def test_a_step_of_a_lost_run_is_refused_and_its_run_stopped() -> None:
    here = Recording()
    lost, other = await here.start(2)
    await here.storage.exchange(OWNER, [settlement(lost.lease, Snoozed(0), Random(0))])
    answers = await asyncio.gather(*(here.recorder.record(run, NewStep("a")) for run in (lost, other)))

    assert answers == [False, True]
    assert here.stopped == [(lost, "lost")]
    assert lost.refused
    assert await here.names(lost) == []


async def test_an_invalid_step_fails_alone() -> None:
    here = Recording()
    one, other = await here.start(2)
    wrong, right = here.recorder.record(one, NewStep("not a name")), here.recorder.record(other, NewStep("a"))

    with pytest.raises(FlowError):
        await wrong
    assert await right
    assert await here.names(other) == ["a"]


async def test_an_outage_does_not_keep_a_run_that_is_over() -> None:
    here = Recording()
    (run,) = await here.start()
    here.storage.away = 1_000_000
    answer = here.recorder.record(run, NewStep("a"))
    await asyncio.sleep(0)
    run.over = True

    assert await answer is False


async def test_a_cancelled_caller_ends_the_attempts() -> None:
    here = Recording()
    (run,) = await here.start()
    here.storage.away = 1_000_000
    answer = here.recorder.record(run, NewStep("a"))
    for _ in range(5):
        await asyncio.sleep(0)
    answer.cancel()
    here.storage.away = 0

    assert await here.recorder.record(run, NewStep("b"))
    assert await here.names(run) == ["b"]
