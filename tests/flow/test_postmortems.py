"""The post-mortems of runs of dead and silent workers; writing them delays no job's next run."""

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from tenure import State
from tenure.core.events import JobFailed, JobReleased, JobStalled
from tenure.core.figures import FiguresQuery
from tenure.core.fingerprint import fingerprint
from tenure.core.job import JobDetail, LogLine, NewJob, Owner, Policy, Ref, StallTerms
from tenure.core.lease import Lease
from tenure.core.postmortem import Ending, Workplace
from tenure.core.settlement import Settlement
from tenure.maintenance.lost_runs import FREE_DEATHS, CrashEvidence, settle_stalled
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import (
    ClaimRequest,
    ExchangeResult,
    LeaseRenewal,
    NewLogLine,
    ReclaimResult,
    RenewRequest,
    StalledLease,
    Survey,
    SweepRequest,
    WorkerInfo,
)
from tenure.testing.clock import ManualClock

SECOND = 1_000_000
WORKER = Owner("a" * 16, "web-1:42", "web-1", 42)
TAKER = Owner("b" * 16, "supervisor")
DEATH = CrashEvidence(Ending("was killed by signal 9 (SIGKILL), cause unknown", peak_memory=1 << 30))
TRACE = 'Traceback (most recent call last):\n  File "/srv/app/mail.py", line 12, in send\n    body = render(order)\n'


class FailingReads(MemoryStorage):
    """A storage whose reads fail or hang."""

    trouble: Exception | None = None

    async def get(self, refs: Sequence[Ref]) -> list[JobDetail | None]:
        await self._fail()
        return await super().get(refs)

    async def survey(
        self, queues: Sequence[str] = (), *, faults: int = 0, figures: FiguresQuery | None = None
    ) -> Survey:
        await self._fail()
        return await super().survey(queues, faults=faults, figures=figures)

    async def _fail(self) -> None:
        if self.trouble is None:
            await asyncio.Event().wait()
        else:
            raise self.trouble


class InvalidInstant(MemoryStorage):
    """A storage that returns an instant that cannot be represented."""

    async def get(self, refs: Sequence[Ref]) -> list[JobDetail | None]:
        line = LogLine(at=10**30, run=1, level="info", message="from another age")
        return [JobDetail(item.job, item.runs, (line,)) for item in await super().get(refs) if item is not None]


class CountingMemory(MemoryStorage):
    """A storage that notes how many settlements each call has."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        self.batches.append(len(settlements))
        return await super().exchange(owner, settlements, order)


async def held(
    storage: MemoryStorage,
    *tasks: str,
    max_stalls: int = 1,
    timeout: int | None = None,
    policy: Policy = Policy(),  # noqa: B008 - frozen
) -> list[Lease]:
    """Let a worker hold a job of each of these tasks."""
    jobs = [
        NewJob(
            queue="mail", id=f"{number:04}", task=task, payload=b"[]", stall=StallTerms(max_stalls=max_stalls),
            timeout=timeout, policy=policy,
        )
        for number, task in enumerate(tasks)
    ]  # fmt: skip
    await storage.enqueue(jobs)
    leases = list((await storage.exchange(WORKER, (), ClaimRequest(("mail",), len(jobs)))).leases)
    return sorted(leases, key=lambda lease: lease.ref)


async def taken(storage: MemoryStorage) -> Sequence[StalledLease]:
    found: ReclaimResult = await storage.reclaim(WORKER.id, TAKER)
    return found.stalled


async def detail_of(storage: MemoryStorage, lease: Lease) -> JobDetail:
    (found,) = await MemoryStorage.get(storage, [lease.ref])
    assert found is not None
    return found


async def post_mortem(storage: MemoryStorage, lease: Lease) -> str:
    """Return the post-mortem of a job's first run."""
    return (await detail_of(storage, lease)).runs[0].detail or ""


async def test_the_last_report_of_a_run_is_in_its_history_and_its_event() -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    lease, other = await held(storage, "send", "resize")
    line = NewLogLine("info", "page 17 of 40", {"size": "3"})
    renewal = LeaseRenewal(lease.ref, lease.fence, progress=0.4, note="page 17", log=(line,), trace=TRACE)
    await storage.renew(RenewRequest(WORKER, (renewal,), worker=WorkerInfo(("mail",))))
    clock.advance(3.2)
    await settle_stalled(storage, TAKER, await taken(storage), Random(0), evidence=DEATH)
    text = await post_mortem(storage, lease)
    events = [event for event in (await storage.events(None)).events if isinstance(event, JobStalled)]

    assert text.startswith("its process was killed by signal 9 (SIGKILL), cause unknown\n")
    assert f"run 1, fence {lease.fence}\nworker: web-1:42, host web-1, pid 42\n" in text
    assert "last sign of life 3.2 s before it died; lease 20s" in text
    assert "1.0 GiB at most" in text
    assert "other runs in its process: 1 other, of resize" in text
    assert "progress: 0.4 (page 17)" in text
    assert "info: page 17 of 40 size=3" in text
    assert "where its handler was at its last beat, 3.2 s before it died:\n  Traceback" in text
    assert [event.post_mortem for event in events if event.id == lease.job.id] == [text]
    assert "other runs in its process: 1 other, of send" in await post_mortem(storage, other)


@pytest.mark.parametrize("trouble", [None, OSError("gone"), ValueError("not of ours")])
async def test_unreadable_evidence_shortens_a_post_mortem_without_delay(
    trouble: Exception | None,
) -> None:
    storage = FailingReads()
    storage.trouble = trouble
    (lease,) = await held(storage, "send")
    await settle_stalled(storage, TAKER, await taken(storage), Random(0), within=0.01)
    detail = await detail_of(storage, lease)

    assert (detail.job.state, detail.job.stalls) == (State.WAITING, 1)
    assert (detail.runs[0].detail or "").startswith(
        "its process died, and its exit status is unknown\njob: 0000 of queue mail"
    )


async def test_unusual_records_do_not_break_a_post_mortem() -> None:
    storage = InvalidInstant()
    (lease,) = await held(storage, "send")
    await settle_stalled(storage, TAKER, await taken(storage), Random(0), evidence=DEATH)

    assert await post_mortem(storage, lease) == "its process was killed by signal 9 (SIGKILL), cause unknown"


async def test_the_error_of_a_failed_job_has_the_last_cause_and_one_fault() -> None:
    faults: set[str] = set()
    for how in ("crashed: signal 11 (SIGSEGV)", "was killed by signal 9 (SIGKILL), cause unknown"):
        storage = MemoryStorage()
        (lease,) = await held(storage, "send", max_stalls=0)
        if how.startswith("crashed"):
            await storage.renew(RenewRequest(WORKER, (LeaseRenewal(lease.ref, lease.fence, trace=TRACE),)))
        await settle_stalled(storage, TAKER, await taken(storage), Random(0), evidence=CrashEvidence(Ending(how)))
        job = (await detail_of(storage, lease)).job
        failed = [event for event in (await storage.events(None)).events if isinstance(event, JobFailed)]

        assert job.error is not None
        assert (job.state, job.reason, job.error.type) == (State.FAILED, "crashed", "JobStalledError")
        assert (
            job.error.message
            == f"the job stalled 1 times, more than its max_count of 0; the last time its process {how}"
        )
        assert job.error.traceback.startswith(f"its process {how}\n")
        assert job.error.traceback.endswith(f"JobStalledError: {job.error.message}")
        assert [event.error for event in failed] == [job.error]
        faults.add(fingerprint(job.task, job.reason, job.error))

    assert len(faults) == 1


async def test_a_hung_process_that_was_killed_names_its_blocked_loop() -> None:
    storage = MemoryStorage()
    (lease,) = await held(storage, "send")
    ending = Ending("was killed by its supervisor", stack="Current thread 0x1:\n  File x, line 3 in spin")
    await settle_stalled(storage, TAKER, await taken(storage), Random(0), evidence=CrashEvidence(ending, hung=True))
    detail = await detail_of(storage, lease)

    assert detail.runs[0].reason == "loop_blocked"
    assert (detail.job.stalls, detail.job.quarantined) == (1, True)
    assert (detail.runs[0].detail or "").endswith(
        "when it was killed:\n  Current thread 0x1:\n    File x, line 3 in spin"
    )


async def test_a_run_killed_at_its_timeout_timed_out_and_others_are_released() -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    lease, other = await held(storage, "send", "resize", timeout=10 * SECOND)
    clock.advance(12.5)
    ending = Ending("was killed by its supervisor", stack="  File x, line 3 in spin")
    evidence = CrashEvidence(
        ending, Workplace(lag=12 * SECOND), overdue=frozenset({lease.ref}), causes=frozenset({lease.ref})
    )
    await settle_stalled(storage, TAKER, await taken(storage), Random(0), evidence=evidence)
    blamed, innocent = await detail_of(storage, lease), await detail_of(storage, other)
    released = [event for event in (await storage.events(None)).events if isinstance(event, JobReleased)]

    assert (blamed.job.failures, blamed.job.stalls, blamed.runs[0].ended) == (1, 0, "timed_out")
    assert blamed.job.error is not None
    assert blamed.job.error.message == (
        "the run passed its timeout of 10s and would not stop for 12.5 s in all; its process was killed"
    )
    assert "File x, line 3 in spin" in blamed.job.error.traceback
    assert (innocent.job.state, innocent.job.releases, innocent.job.stalls) == (State.WAITING, 1, 0)
    assert [event.id for event in released] == [other.job.id]


async def test_isolated_or_undelivered_runs_are_not_charged_for_a_worker_death() -> None:
    storage = MemoryStorage()
    alone, suspected = await held(storage, "send", "resize")
    evidence = CrashEvidence(DEATH.ending, suspects=frozenset({suspected.ref}))
    await settle_stalled(storage, TAKER, await taken(storage), Random(0), evidence=evidence)
    innocent, suspect = (await detail_of(storage, alone)).job, (await detail_of(storage, suspected)).job

    assert (innocent.state, innocent.releases, innocent.stalls) == (State.WAITING, 1, 0)
    assert (suspect.state, suspect.releases, suspect.stalls) == (State.WAITING, 0, 1)


async def test_the_fourth_death_in_a_row_is_charged_to_an_isolated_run() -> None:
    storage = MemoryStorage()
    apart, waiting = await held(storage, "send", "resize")
    evidence = CrashEvidence(
        DEATH.ending, suspects=frozenset(), isolated=frozenset({apart.ref}), waiting=frozenset({waiting.ref})
    )
    for _ in range(2 * FREE_DEATHS + 2):
        await settle_stalled(storage, TAKER, await taken(storage), Random(0), evidence=evidence)
        await storage.exchange(WORKER, (), ClaimRequest(("mail",), 2))
    killer, other = await detail_of(storage, apart), await detail_of(storage, waiting)

    # It may be what kills them. Before: it was released for ever.
    assert [run.ended for run in killer.runs] == [*["released"] * FREE_DEATHS, "stalled"] * 2
    assert (killer.job.state, killer.job.stalls, killer.job.releases) == (State.FAILED, 2, 2 * FREE_DEATHS)
    assert killer.job.error is not None
    assert "its worker died while it ran, for the 4th time in a row" in killer.job.error.message
    # A job that has not begun never is.
    assert (other.job.stalls, other.job.releases) == (0, 2 * FREE_DEATHS + 2)


@pytest.mark.parametrize("cause", ["not begun", "another", "blocked", "from outside"])
async def test_deaths_with_another_cause_do_not_count_as_deaths_by_a_run(cause: str) -> None:
    storage = MemoryStorage()
    apart, other = await held(storage, "send", "resize", max_stalls=10)
    refs, none = frozenset({apart.ref}), frozenset[Ref]()
    unknown = CrashEvidence(DEATH.ending, suspects=none, isolated=refs)
    known = {
        "not begun": CrashEvidence(DEATH.ending, suspects=none, waiting=refs),
        "another": CrashEvidence(DEATH.ending, suspects=none, isolated=refs, causes=frozenset({other.ref})),
        "blocked": CrashEvidence(DEATH.ending, suspects=none, isolated=refs, hung=True),
        "from outside": CrashEvidence(DEATH.ending, suspects=none, isolated=refs, blameless=True),
    }[cause]
    # None of the known deaths is charged, and none counts for the unknown ones.
    for evidence in (*[known] * (FREE_DEATHS + 1), *[unknown] * FREE_DEATHS, known, unknown):
        await settle_stalled(storage, TAKER, await taken(storage), Random(0), evidence=evidence)
        await storage.exchange(WORKER, (), ClaimRequest(("mail",), 2))
    detail = await detail_of(storage, apart)

    assert [run.ended for run in detail.runs[:-1]] == [*["released"] * (2 * FREE_DEATHS + 2), "stalled"]
    assert detail.job.stalls == 1


async def test_no_run_is_charged_for_a_worker_death_if_none_had_begun() -> None:
    storage = MemoryStorage()
    apart, waiting, unheard = await held(storage, "send", "resize", "resize")
    evidence = CrashEvidence(
        DEATH.ending, suspects=frozenset(), isolated=frozenset({apart.ref}), waiting=frozenset({waiting.ref})
    )
    await settle_stalled(storage, TAKER, await taken(storage), Random(0), evidence=evidence)
    jobs = [(await detail_of(storage, lease)).job for lease in (apart, waiting, unheard)]

    assert [(job.state, job.releases, job.stalls) for job in jobs] == [(State.WAITING, 1, 0)] * 3


async def test_with_unknown_runs_only_known_innocent_runs_are_not_charged() -> None:
    storage = MemoryStorage()
    apart, waiting, unknown = await held(storage, "send", "resize", "resize")
    evidence = CrashEvidence(DEATH.ending, isolated=frozenset({apart.ref}), waiting=frozenset({waiting.ref}))
    await settle_stalled(storage, TAKER, await taken(storage), Random(0), evidence=evidence)
    jobs = [(await detail_of(storage, lease)).job for lease in (apart, waiting, unknown)]

    assert [(job.releases, job.stalls) for job in jobs] == [(1, 0), (1, 0), (0, 1)]


async def test_an_unbegun_job_runs_after_its_worker_died_although_it_runs_once() -> None:
    storage = MemoryStorage()
    policy = Policy(on_worker_lost="fail")
    apart, waiting = await held(storage, "send", "resize", policy=policy)
    evidence = CrashEvidence(
        DEATH.ending, suspects=frozenset(), isolated=frozenset({apart.ref}), waiting=frozenset({waiting.ref})
    )
    await settle_stalled(storage, TAKER, await taken(storage), Random(0), evidence=evidence)
    lost, free = [(await detail_of(storage, lease)).job for lease in (apart, waiting)]

    assert (lost.state, lost.reason) == (State.FAILED, "crashed")
    assert (free.state, free.releases) == (State.WAITING, 1)


async def test_a_post_mortem_leaves_out_isolated_and_unbegun_runs() -> None:
    storage = MemoryStorage()
    alone, one, other = await held(storage, "send", "resize", "resize")
    evidence = CrashEvidence(DEATH.ending, suspects=frozenset({one.ref, other.ref}))
    await settle_stalled(storage, TAKER, await taken(storage), Random(0), evidence=evidence)

    assert "other runs in its process" not in await post_mortem(storage, alone)
    assert "other runs in its process: 1 other, of resize\n" in await post_mortem(storage, one)
    assert "other runs in its process: 1 other, of resize\n" in await post_mortem(storage, other)


@pytest.mark.parametrize(("lag", "reason"), [(600 * SECOND, "loop_blocked"), (599 * SECOND, "lease_expired")])
async def test_a_reaper_distinguishes_a_blocked_loop_from_a_silent_worker(lag: int, reason: str) -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    (lease,) = await held(storage, "send")
    info = WorkerInfo(("mail",), lag=lag, memory=64 << 20)
    await storage.renew(RenewRequest(WORKER, worker=info))
    stalled: Sequence[StalledLease] = ()
    while not stalled:
        clock.advance(2)
        stalled = (await storage.sweep(SweepRequest(TAKER))).stalled
    await settle_stalled(storage, TAKER, stalled, Random(0), max_block=600 * SECOND)
    detail = await detail_of(storage, lease)

    assert (detail.runs[0].reason, detail.job.stalls) == (reason, 1)
    assert "64.0 MiB of memory at its last beat" in (detail.runs[0].detail or "")
    assert "before it was given up" in (detail.runs[0].detail or "")


async def test_many_long_post_mortems_are_written_a_few_at_a_time() -> None:
    storage = CountingMemory()
    leases = await held(storage, *["send"] * 100)
    for lease in leases:
        await storage.renew(RenewRequest(WORKER, (LeaseRenewal(lease.ref, lease.fence, trace=TRACE * 100),)))
    storage.batches.clear()
    await settle_stalled(storage, TAKER, await taken(storage), Random(0), evidence=DEATH, within=5)

    assert sum(storage.batches) == 100
    assert max(storage.batches) < 50
