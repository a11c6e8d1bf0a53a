"""Dead letters as a user sees them: why jobs failed, with which error, and how they are redriven or deleted."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any, cast

import pytest

from tenure import (
    AutoRedrive,
    DeadFilter,
    DeadLetter,
    Job,
    JobDeleted,
    JobRedriven,
    Reject,
    Retry,
    Stall,
    State,
    Tenure,
    UsageError,
    current_job,
)
from tenure.client import dead_letters as room
from tenure.client.task import TaskDecorator
from tenure.core.job import Owner, Ref
from tenure.core.postmortem import Ending, first_line
from tenure.maintenance.lost_runs import CrashEvidence, settle_stalled
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import Query, Storage
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import FAST, Harness, RunScenario

REASONS = ["exhausted", "stalled", "crashed", "rejected", "undecodable", "timeout"]


def failing(app: Tenure) -> dict[str, Any]:
    """Return a task for each reason why a job can fail."""

    @app.task(name="exhausted", retry=Retry(max_attempts=2, base="1s", jitter=False))
    async def exhausted(number: int) -> None:
        raise ValueError(f"order {number} is unknown")

    @app.task(name="rejected", queue="mail")
    async def rejected(number: int) -> None:
        raise Reject(f"no such address: user{number}@mail.example")

    @app.task(name="undecodable")
    async def undecodable(number: int) -> object:
        return object()

    @app.task(name="timeout", timeout="2s", retry=Retry(max_attempts=1))
    async def timeout(number: int) -> None:
        await asyncio.sleep(3600)

    @app.task(name="stalled", stall=Stall(max_count=0), queue="slow")
    async def stalled(number: int) -> None:
        await asyncio.sleep(3600)

    @app.task(name="crashed", stall=Stall(max_count=0), queue="risky")
    async def crashed(number: int) -> None:
        await asyncio.sleep(3600)

    return {task.name: task for task in (exhausted, stalled, crashed, rejected, undecodable, timeout)}


async def perish(harness: Harness, app: Tenure) -> dict[str, Job[Any]]:
    """Fail a job for each reason; return the jobs by reason, each tagged with it."""
    tasks = failing(app)
    jobs = {reason: await task.options(tags=["nightly", reason]).enqueue(7) for reason, task in tasks.items()}
    victim = app.worker(queues=["slow"], reaper=False)
    doomed = app.worker(queues=["risky"], reaper=False)
    nodes = [await harness.start(victim, "victim"), await harness.start(doomed, "doomed")]
    await harness.start(app.worker(queues=["default", "mail"]), "worker")
    await asyncio.sleep(1)
    for node in nodes:
        harness.loop.kill(node)
    # As a supervisor does that has seen its child exit.
    supervisor = Owner("ab" * 8, "supervisor")
    taken = await harness.storage.reclaim(doomed.owner.id, supervisor)
    await settle_stalled(
        harness.storage, supervisor, taken.stalled, Random(0), evidence=CrashEvidence(Ending("was ended by signal 9"))
    )
    await asyncio.sleep(app.timing.recovery_bound.total_seconds() + 2)
    return jobs


async def bad(harness: Harness, app: Tenure, count: int, **options: Any) -> list[Job[Any]]:
    """Return failed jobs, one a second, the oldest first."""

    defined = cast(TaskDecorator, app.task(name="bad", retry=Retry(max_attempts=1), **options))

    @defined
    async def fail(number: int) -> int:
        if current_job().run == 1:
            raise ValueError(f"order {number} is unknown")
        return number

    await harness.start(app.worker(), "worker")
    jobs: list[Job[Any]] = []
    for number in range(count):
        jobs.append(await fail.enqueue(number))
        await asyncio.sleep(1)
    return jobs


@pytest.mark.statement(88)
def test_every_failed_job_is_listed_with_its_reason_and_runs(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        jobs = await perish(harness, app)
        letters = {letter.job.reason or "": letter for letter in (await app.dead.page()).letters}

        assert {reason: letter.job.id for reason, letter in letters.items()} == {
            reason: job.id for reason, job in jobs.items()
        }
        assert sorted(letters) == sorted(REASONS)
        assert {letter.job.state for letter in letters.values()} == {State.FAILED}
        assert {reason: [run.ended for run in letter.runs] for reason, letter in letters.items()} == {
            "exhausted": ["raised", "raised"],
            "stalled": ["stalled"],
            "crashed": ["stalled"],
            "rejected": ["rejected"],
            "undecodable": ["undecodable"],
            "timeout": ["timed_out"],
        }
        assert [run.reason for run in letters["crashed"].runs] == ["process_died"]
        assert [first_line(run.detail or "") for run in letters["crashed"].runs] == [
            "its process was ended by signal 9"
        ]
        assert letters["stalled"].runs[0].reason == "lease_expired"
        assert all(run.worker and run.end is not None for letter in letters.values() for run in letter.runs)

    run_scenario(scenario)


def test_all_fields_of_a_filter_must_match(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        await perish(harness, app)
        everything = (await app.dead.page()).letters
        names = {letter.job.reason: letter.fingerprint for letter in everything}
        ends = {letter.job.reason or "": letter.job.finished or letter.job.created for letter in everything}
        split = ends["timeout"]

        async def reasons(**fields: Any) -> list[str]:
            page = await app.dead.page(DeadFilter(**fields))
            assert await app.dead.count(DeadFilter(**fields)) == len(page.letters)
            return sorted(letter.job.reason or "" for letter in page.letters)

        assert await reasons() == sorted(REASONS)
        assert await reasons(queues=["mail", "slow"]) == ["rejected", "stalled"]
        assert await reasons(tasks=["timeout"]) == ["timeout"]
        assert await reasons(reasons=["crashed", "stalled"]) == ["crashed", "stalled"]
        assert await reasons(error="JobStalledError") == ["crashed", "stalled"]
        assert await reasons(error="JobStalledError", queues=["slow"]) == ["stalled"]
        assert await reasons(fingerprint=names["rejected"]) == ["rejected"]
        assert await reasons(tags=["nightly", "timeout"]) == ["timeout"]
        assert await reasons(tags=["nightly", "timeout", "never"]) == []
        assert await reasons(since=split) == sorted(reason for reason, end in ends.items() if end >= ends["timeout"])
        assert await reasons(until=split) == sorted(reason for reason, end in ends.items() if end < ends["timeout"])
        assert await reasons(since="1h") == sorted(REASONS)
        assert await reasons(until=timedelta(hours=1)) == []
        assert await reasons(since="2h", until="1h") == []

    run_scenario(scenario)


def test_only_failed_jobs_are_dead_letters(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        jobs = await bad(harness, app, 2)
        cancelled = await app.find_task("bad").options(delay="1h").enqueue(9)
        await cancelled.cancel()
        await jobs[0].redrive()
        await jobs[0].result()

        assert [letter.job.id for letter in (await app.dead.page()).letters] == [jobs[1].id]
        assert await app.dead.count() == 1

    run_scenario(scenario)


def test_pages_are_complete_also_if_the_storage_cannot_filter(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="mixed", retry=Retry(max_attempts=1))
        async def mixed(number: int) -> None:
            raise (KeyError if number % 3 else OSError)("gone")

        jobs = [job.id for job in await app.enqueue_many(mixed.call(number) for number in range(20))]
        await harness.start(app.worker())
        await asyncio.sleep(2)

        async def through(where: DeadFilter, limit: int) -> list[list[str]]:
            pages: list[list[str]] = []
            after: str | None = None
            while not pages or after is not None:
                page = await app.dead.page(where, limit=limit, after=after)
                pages.append([letter.job.id for letter in page.letters])
                after = page.next
            return pages

        keys = [job for number, job in enumerate(jobs) if number % 3][::-1]
        plain = await through(DeadFilter(), 7)
        sifted = await through(DeadFilter(error="KeyError"), 5)
        assert [len(page) for page in plain] == [7, 7, 6]
        assert [job for page in plain for job in page] == jobs[::-1]
        assert [len(page) for page in sifted if page] == [5, 5, 3]
        assert [job for page in sifted for job in page] == keys
        assert await through(DeadFilter(error="NobodysError"), 5) == [[]]
        with pytest.raises(UsageError, match="after = 'soon' is not a cursor"):
            await app.dead.page(after="soon")

    run_scenario(scenario)


def test_groups_are_one_for_each_error_the_biggest_first(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        jobs = await bad(harness, app, 7)

        @app.task(name="other", retry=Retry(max_attempts=1))
        async def other() -> None:
            raise KeyError("name")

        lone = await other.enqueue()
        await asyncio.sleep(1)
        found = await app.dead.groups()
        big, small = found.groups

        assert (found.total, found.others) == (8, 0)
        assert (big.task, big.reason, big.error, big.count) == ("bad", "exhausted", "ValueError", 7)
        assert (small.task, small.error, small.count, small.message) == ("other", "KeyError", 1, "'name'")
        assert big.message == "order 6 is unknown"
        assert [ref.id for ref in big.newest] == [job.id for job in jobs[:1:-1]]
        assert small.newest == (lone.ref,)
        assert timedelta(seconds=5.9) < big.last - big.first < timedelta(seconds=6.1)
        assert {letter.fingerprint for letter in (await app.dead.page()).letters} == {
            *(big.fingerprint, small.fingerprint)
        }
        assert (await app.dead.groups(DeadFilter(error="KeyError"))).groups == (small,)
        assert (await app.dead.groups(DeadFilter(tasks=["unknown"]))).groups == ()

    run_scenario(scenario)


def test_errors_beyond_count_do_not_fill_the_memory(run_scenario: RunScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "GROUPS_KEPT", 4)
    monkeypatch.setattr(room, "PAGE", 3)

    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="words", retry=Retry(max_attempts=1))
        async def words(word: str) -> None:
            raise ValueError(word)

        said = ["often" if place % 2 else chr(97 + place) * 3 for place in range(20)]
        await app.enqueue_many(words.call(word) for word in said)
        await harness.start(app.worker())
        await asyncio.sleep(2)
        found = await app.dead.groups()

        assert (found.groups[0].message, found.groups[0].count) == ("often", 10)
        assert len(found.groups) <= 4
        assert found.total == 20 == found.others + sum(group.count for group in found.groups)

    run_scenario(scenario)


def test_a_redrive_resets_attempts_and_ttl_and_keeps_the_history(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(name="flaky", retry=Retry(max_attempts=2, base="1s", jitter=False), ttl="1h")
        async def flaky() -> int:
            if current_job().run <= 2:
                raise ValueError("not yet")
            return current_job().run

        worker = app.worker()
        job = await flaky.enqueue()
        node = await harness.start(worker)
        await asyncio.sleep(5)
        before = (await job.info()).job
        await harness.stop(node, worker)
        await asyncio.sleep(7200)
        report = await app.dead.redrive(DeadFilter(tasks=["flaky"]), by="me")
        after = (await job.info()).job
        await harness.start(app.worker(), "second")

        assert (before.state, before.failures, before.reason) == (State.FAILED, 2, "exhausted")
        assert report.done == (job.ref,)
        assert (after.state, after.failures, after.reason, after.error) == (State.WAITING, 0, None, None)
        assert after.expires_at == after.run_at + timedelta(hours=1)
        assert await job.result() == 3
        assert [run.ended for run in (await job.info()).runs] == ["raised", "raised", "completed"]
        assert [(event.by, event.was) for event in await harness.events_of(JobRedriven)] == [("me", "failed")]

    run_scenario(scenario)


def test_a_limited_redrive_takes_the_oldest_and_counts_the_rest(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        jobs = await bad(harness, app, 5)

        first = await app.dead.redrive(limit=2)
        second = await app.dead.redrive(limit=2)
        third = await app.dead.redrive()
        fourth = await app.dead.redrive()

        assert [ref.id for ref in first.done] == [jobs[0].id, jobs[1].id]
        assert [ref.id for ref in second.done] == [jobs[2].id, jobs[3].id]
        assert (first.left, second.left, third.left) == (3, 1, 0)
        assert third.done == (jobs[4].ref,)
        assert (fourth.done, fourth.refused, fourth.gone, fourth.left) == ((), (), (), 0)
        assert [await job.result() for job in jobs] == [0, 1, 2, 3, 4]
        assert {(await job.info()).job.starts for job in jobs} == {2}

    run_scenario(scenario)


def test_a_paced_redrive_continues_after_its_caller_has_ended(
    run_scenario: RunScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "BATCH", 3)

    async def scenario(harness: Harness) -> None:
        app = harness.app()
        jobs = await bad(harness, app, 8)
        began = harness.now
        report = await app.dead.redrive(rate=0.5)
        took = harness.now - began
        dues = [(await job.info()).job.run_at for job in jobs]
        await asyncio.sleep(20)
        starts = [(await job.info()).runs[-1].start for job in jobs]

        assert took < 1
        assert (len(report.done), report.duration) == (8, timedelta(seconds=14))
        assert all(later - earlier >= timedelta(seconds=2) for earlier, later in pairwise(dues))
        assert [round((due - dues[0]).total_seconds()) for due in dues] == [0, 2, 4, 6, 8, 10, 12, 14]
        assert [round((start - starts[0]).total_seconds()) for start in starts] == [0, 2, 4, 6, 8, 10, 12, 14]
        assert {await job.state() for job in jobs} == {State.COMPLETED}

    run_scenario(scenario)


def test_two_redrives_at_once_redrive_nothing_twice(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        jobs = await bad(harness, app, 30)
        reports = await asyncio.gather(*(harness.app().dead.redrive() for _ in range(4)))
        await asyncio.sleep(10)

        assert sorted(ref.id for report in reports for ref in report.done) == sorted(job.id for job in jobs)
        assert len(await harness.events_of(JobRedriven)) == 30
        assert {(await job.info()).job.starts for job in jobs} == {2}

    run_scenario(scenario)


class InterruptedMemory(MemoryStorage):
    """Memory in which another caller acts between the reading of dead letters and what is then done with them."""

    interrupt: Callable[[], Awaitable[object]] | None = None

    async def find(self, query: Query) -> Any:
        page = await super().find(query)
        if self.interrupt is not None and page.next is None:
            interrupt, self.interrupt = self.interrupt, None
            await interrupt()
        return page


@pytest.mark.parametrize("verb", ["redrive", "purge"])
def test_a_job_redriven_or_deleted_meanwhile_is_left_alone(verb: str) -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = InterruptedMemory(clock=clock)
        harness = Harness(loop, clock, storage)
        app = harness.app()

        @app.task(name="bad", retry=Retry(max_attempts=1))
        async def fail() -> None:
            raise ValueError("always")

        await harness.start(app.worker())
        lost, again, waiting, plain = [await fail.enqueue() for _ in range(4)]
        await asyncio.sleep(1)

        async def interrupt() -> None:
            await again.redrive()
            await asyncio.sleep(1)
            assert await again.state() is State.FAILED
            await app.queue("default").pause()
            await waiting.redrive()
            # The job that failed first.
            await harness.app().dead.purge(limit=1, everything=True)

        storage.interrupt = interrupt
        report = await (app.dead.redrive() if verb == "redrive" else app.dead.purge(everything=True))

        assert [ref.id for ref in report.gone] == [lost.id]
        assert sorted(ref.id for ref in report.refused) == sorted([again.id, waiting.id])
        assert [ref.id for ref in report.done] == [plain.id]
        assert await waiting.state() is State.WAITING
        assert await again.state() is State.FAILED
        assert len(await harness.events_of(JobRedriven)) == 2 + (verb == "redrive")

    simulate(main)


def test_a_purge_deletes_matching_jobs_permanently(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        jobs = await perish(harness, app)
        with pytest.raises(UsageError, match="everything=True"):
            await app.dead.purge()
        some = await app.dead.purge(DeadFilter(reasons=["rejected", "timeout"]), by="me")
        nothing = await app.dead.purge(DeadFilter(reasons=["rejected", "timeout"]))
        one = await app.dead.purge(limit=1, everything=True)

        assert sorted(ref.id for ref in some.done) == sorted([jobs["rejected"].id, jobs["timeout"].id])
        assert (some.left, nothing.done, len(one.done), one.left) == (0, (), 1, 3)
        assert await harness.storage.get([*some.done]) == [None, None]
        assert await app.dead.count() == 3
        assert [(event.by, event.was) for event in await harness.events_of(JobDeleted)][:2] == [("me", "failed")] * 2

    run_scenario(scenario)


def test_a_rule_redrives_with_growing_delays_up_to_its_count(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        starts: list[float] = []

        @app.task(name="ruled", retry=Retry(max_attempts=1), auto_redrive=AutoRedrive("20s", times=3))
        async def ruled() -> None:
            starts.append(harness.now)
            raise ValueError("still not")

        await harness.start(app.worker())
        job = await ruled.enqueue()
        await asyncio.sleep(10)
        (letter,) = (await app.dead.page()).letters
        await asyncio.sleep(190)
        record = (await job.info()).job

        assert letter.job.finished is not None
        assert letter.job.redrive_at == letter.job.finished + timedelta(seconds=20)
        # A sweep does it; one runs every two seconds.
        assert [(later - earlier) // 5 * 5 for earlier, later in pairwise(starts)] == [20, 40, 80]
        assert (record.state, record.redrives, record.redrive_at) == (State.FAILED, 3, None)
        assert (await app.dead.redrive()).done == (job.ref,)
        await asyncio.sleep(30)
        assert len(starts) == 6

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"queues": "mail"}, r"queues = 'mail' is a single text"),
        ({"tasks": [7]}, r"tasks = 7 must be a text"),
        ({"reasons": ["tired"]}, r"reasons = 'tired' is unknown; use one of 'exhausted'"),
        ({"error": ValueError}, r"error = <class 'ValueError'> must be a text"),
        ({"fingerprint": "abc"}, r"fingerprint = 'abc' must be 12 hexadecimal digits; app.dead.groups"),
        ({"tags": "x"}, r"tags = 'x' is a single text"),
        ({"since": datetime(2026, 1, 1)}, r"since = .* has no time zone"),
        ({"since": "yesterday"}, r"since = 'yesterday' is not a duration"),
        ({"until": [1]}, r"until = \[1\] is not a time; give an aware datetime, or how long ago"),
        ({"since": "1h", "until": "2h"}, r"since = .* must lie before until"),
        ({"since": datetime(2026, 1, 2, tzinfo=UTC), "until": datetime(2026, 1, 1, tzinfo=UTC)}, r"must lie before"),
    ],
)
def test_an_invalid_filter_is_refused_with_field_and_remedy(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DeadFilter(**fields)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit": 0}, r"limit = 0 must be 1 or more"),
        ({"limit": True}, r"limit = True must be a whole number"),
        ({"rate": 0}, r"rate = 0 must be a number of jobs a second"),
        ({"rate": float("nan")}, r"rate = nan must be"),
        ({"rate": "10/s"}, r"rate = '10/s' must be"),
        ({"by": 7}, r"by = 7 must be a text"),
        ({"where": {"tasks": ["x"]}}, r"filter = .* must be a DeadFilter; write DeadFilter"),
    ],
)
def test_invalid_arguments_of_a_redrive_are_refused_before_any_change(arguments: dict[str, Any], message: str) -> None:
    app = Tenure("memory://")

    with pytest.raises(UsageError, match=message):
        app.dead.redrive_sync(**arguments)


def test_a_filter_is_frozen_and_compares_by_value() -> None:
    assert DeadFilter(tasks=["a"]) == DeadFilter(tasks=("a",))
    assert DeadFilter().everything
    assert not DeadFilter(tags=["x"]).everything
    with pytest.raises(AttributeError):
        DeadFilter().queues = ("x",)  # type: ignore[misc]


def test_each_call_has_a_sync_variant() -> None:
    app = Tenure("memory://")

    @app.task(name="bad", retry=Retry(max_attempts=1))
    async def fail() -> None:
        raise ValueError("always")

    ref: Ref = fail.enqueue_sync().ref

    async def work() -> None:
        worker = app.worker(burst=True)
        await worker.start()
        await worker.wait()

    asyncio.run(work())
    storage: Storage = app.storage
    (letter,) = app.dead.page_sync().letters

    assert isinstance(letter, DeadLetter)
    assert (letter.job.ref, app.dead.count_sync(), app.dead.groups_sync().total) == (ref, 1, 1)
    assert app.dead.redrive_sync(rate=10).done == (ref,)
    asyncio.run(work())
    assert app.dead.purge_sync(everything=True).done == (ref,)
    assert asyncio.run(storage.get([ref])) == [None]
