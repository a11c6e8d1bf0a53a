"""Arguments that are results of other jobs: how they are decoded, and what happens if one is missing."""

import asyncio
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tenure import JobFailedError, JobNotFoundError, Retry, State, StorageUnavailableError, Tenure, current_job
from tenure.core.job import Ref
from tenure.storage.memory.storage import MemoryStorage
from tenure.testing import JobTester
from tests.flow.compositions import RunFlow, Steps, records
from tests.flow.compositions import run_flow as run_flow
from tests.flow.conftest import FAST, Harness


class Packed:
    """A codec whose bytes are not JSON."""

    def encode(self, value: Any, /) -> bytes:
        """Return the value, compressed."""
        return zlib.compress(msgspec.json.encode(value))

    def decode(self, data: bytes, /) -> Any:
        """Return the plain data."""
        return msgspec.json.decode(zlib.decompress(data))


@dataclass
class Bill:
    day: date
    share: Fraction
    ids: dict[UUID, tuple[int, bytes]]


BILL = Bill(date(2026, 5, 1), Fraction(1, 3), {UUID(int=7): (2**60 + 1, b"\x00\xff")})


@pytest.mark.parametrize("codec", [None, Packed()])
async def test_results_of_any_type_reach_the_next_call_unchanged(codec: Any) -> None:
    app = Tenure("memory://", codec=codec, types={Fraction: (str, Fraction)})
    seen: list[Any] = []

    @app.task
    async def bill(share: Fraction) -> Bill:
        return Bill(BILL.day, share, BILL.ids)

    @app.task
    async def several(*bills: Bill, **named: Bill) -> list[Bill]:
        seen.append((bills, named))
        return [*bills, *named.values()]

    @app.task
    def last(pair: tuple[Bill, list[Bill]], at: dict[str, list[Bill]] | None = None) -> int:
        seen.append((pair, at))
        return len(pair[1])

    with app.flow("bills") as dag:
        one = dag.add(bill.call(Fraction(1, 3)))
        more = dag.add(several.call(one.value, BILL, third=one.value))
        end = dag.add(last.call((one.value, more.value), at={"x": [one.value]}))
    async with app, app.worker():
        job = await dag.enqueue()
        await job.result(timeout=10)
        assert await job.node(end).result() == 3
        assert await job.node(more).result() == [BILL] * 3

    assert seen == [((BILL, BILL), {"third": BILL}), ((BILL, [BILL] * 3), {"x": [BILL]})]


def test_a_result_that_does_not_fit_the_parameter_fails_as_undecodable(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        link: Any = steps.sizes.take()
        job = await (steps.note.call("no rows") | link).enqueue()
        with pytest.raises(JobFailedError):
            await job.result()
        failed = (await records(harness))["~2"]

        assert (failed.reason, failed.starts) == ("undecodable", 1)
        assert failed.error is not None
        assert "Expected `array`, got `str` - at `$.given`" in failed.error.message
        assert steps.runs == ["note(no rows)"]

    run_flow(scenario)


def test_a_result_that_was_deleted_fails_the_job_and_names_it(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        steps.broken = {2}
        job = await (steps.double.call(1) | steps.double.take()).enqueue()
        with pytest.raises(JobFailedError):
            await job.result()
        stored = await records(harness)
        await steps.app.job(stored["~1"].id, queue="default").delete()
        await steps.app.job(stored["~2"].id, queue="default").redrive()

        async def failed_again() -> bool:
            return (await records(harness))["~2"].reason == "undecodable"

        await harness.until(failed_again)
        error = (await records(harness))["~2"].error
        assert error is not None
        assert f"argument 'number' is the result of the job {stored['~1'].id!r}" in error.message
        assert "deleted, or its retention is over" in error.message

    run_flow(scenario)


async def test_a_completed_member_is_kept_for_those_that_wait_for_it() -> None:
    steps = Steps(Tenure("memory://"))

    @steps.app.task(name="own", result_ttl="2h")
    async def own() -> int:
        return 1

    @steps.app.task(name="slow", retry=Retry(max_attempts=2, base="30h", cap="30h", jitter=0))
    async def slow(numbers: list[int]) -> int:
        if current_job().attempt == 1:
            raise ConnectionError("away")
        return sum(numbers)

    with steps.app.flow("long") as dag:
        kept = dag.add(steps.double.call(4))
        brief = dag.add(own.call())
        total = dag.add(slow.call([kept.value]), after=[brief])
    with JobTester(steps.app) as jobs:
        job = await dag.enqueue(timeout="3d")
        await jobs.travel("31h")

        assert await job.node(total).result() == 8
        assert await job.node(kept).state() is State.COMPLETED
        with pytest.raises(JobNotFoundError):
            await job.node(brief).state()


async def test_a_failed_member_is_redriven_after_two_days_with_its_arguments() -> None:
    steps = Steps(Tenure("memory://"))
    steps.broken = {2}
    with JobTester(steps.app) as jobs:
        flow = await (steps.double.call(1) | steps.double.take()).enqueue()
        await jobs.drain()
        [failed] = [job async for job in steps.app.jobs.list() if job.state is State.FAILED and job.task == "double"]
        await jobs.travel("2d")
        steps.broken.clear()
        await steps.app.job(failed.id, queue=failed.queue).redrive()
        await jobs.drain()

        assert await flow.result() == 4


def test_each_run_reads_the_latest_results(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        versions = iter(["old", "new"])

        @steps.app.task(name="version")
        async def version() -> str:
            return next(versions)

        await harness.start(steps.app.worker(), "second")
        job = await (version.call() | steps.note.take()).enqueue()
        assert await job.result() == "old"
        stored = await records(harness)
        await steps.app.job(stored["~1"].id, queue="default").delete()
        again = await (version.call() | steps.note.take()).enqueue(id="second")

        assert await again.result() == "new"
        assert b"old" not in stored["~2"].payload

    run_flow(scenario)


async def test_results_that_are_too_large_together_are_refused() -> None:
    app = Tenure("memory://")

    @app.task
    async def large() -> str:
        return "x" * 1_000_000

    @app.task
    async def count(texts: list[str]) -> int:
        return sum(map(len, texts))

    async with app, app.worker():
        fits = await (app.group([large.call() for _ in range(16)]) | count.take()).enqueue()
        assert await fits.result(timeout=30) == 16_000_000
        too_large = await (app.group([large.call() for _ in range(17)]) | count.take()).enqueue()
        with pytest.raises(JobFailedError, match="take over 16,777,216 bytes"):
            await too_large.result(timeout=30)


class Flaky(MemoryStorage):
    """A storage that cannot read jobs for a while."""

    failing = 0
    on_failure: Callable[[], None] = staticmethod(lambda: None)

    async def get(self, refs: Any) -> Any:
        if self.failing and all(ref.id.startswith("~") for ref in refs):
            self.failing -= 1
            self.on_failure()
            raise StorageUnavailableError("away")
        return await super().get(refs)


async def test_a_run_waits_for_an_unreachable_storage_before_it_begins() -> None:
    storage = Flaky()
    steps = Steps(Tenure(storage=storage))
    async with steps.app, steps.app.worker():
        storage.failing = 3
        job = await (steps.double.call(1) | steps.text.take()).enqueue()

        assert await job.result(timeout=10) == "2!"
        assert storage.failing == 0
        assert steps.runs == ["double(1)", "text(2)"]


async def test_a_run_that_waits_for_the_storage_can_be_cancelled() -> None:
    storage = Flaky()
    steps = Steps(Tenure(storage=storage, timing=FAST))
    reading = asyncio.Event()
    storage.on_failure = reading.set
    async with steps.app, steps.app.worker():
        storage.failing = 1_000_000
        job = await (steps.double.call(1) | steps.text.take()).enqueue()
        await asyncio.wait_for(reading.wait(), 10)
        flow = (await storage.get([job.ref]))[0]
        assert flow is not None
        assert flow.job.links is not None
        assert flow.job.links.plan is not None
        second = flow.job.links.plan.nodes["2"]
        await steps.app.job(second.id, queue=second.queue).cancel("enough")
        with pytest.raises(JobFailedError):
            await job.result(timeout=30)
        storage.failing = 0

        assert await steps.app.job(second.id, queue=second.queue).state() is State.CANCELLED
        assert steps.runs == ["double(1)"]


async def test_a_worker_that_stops_hands_a_run_back_that_waits_for_the_storage() -> None:
    storage = Flaky()
    steps = Steps(Tenure(storage=storage))
    reading = asyncio.Event()
    storage.on_failure = reading.set
    async with steps.app:
        worker = steps.app.worker()
        await worker.start()
        storage.failing = 1_000_000
        job = await (steps.double.call(1) | steps.text.take()).enqueue()
        await asyncio.wait_for(reading.wait(), 10)
        await worker.stop(force=True)
        storage.failing = 0
        async with steps.app.worker():
            assert await job.result(timeout=30) == "2!"


async def test_the_testing_kit_runs_flows_and_knows_their_calls() -> None:
    steps = Steps(Tenure("memory://"))
    with JobTester(steps.app) as jobs:
        with jobs.expect(steps.sizes, least=1), jobs.expect(steps.sizes):
            job = await (steps.rows.call(3) | steps.sizes.take(least=1) | steps.text.take()).enqueue()
        assert await jobs.drain() == 3
        assert await job.result() == "3!"
        assert [await each.result() for each in jobs.enqueued(steps.sizes)] == [3]
        assert jobs.enqueued(steps.sizes, least=2) == []

        late = await (steps.double.options(delay="1h").call(4) | steps.text.take()).enqueue(timeout="1d")
        await jobs.travel("61m")
        assert await late.result() == "8!"
        slow = await (steps.double.options(delay="2d").call(4) | steps.text.take()).enqueue(timeout="1d")
        await jobs.travel("1d")
        assert await slow.state() is State.FAILED
        shown = r"expected 1 jobs note\(\), found 0; .* sizes\(least=2\)"
        with pytest.raises(AssertionError, match=shown), jobs.expect(steps.note):
            await (steps.rows.call(1) | steps.sizes.take(least=2)).enqueue()


async def test_a_handler_that_changes_its_argument_changes_no_result() -> None:
    app = Tenure("memory://")

    @app.task
    async def numbers() -> list[int]:
        return [1, 2]

    @app.task
    async def change(given: list[int]) -> int:
        given.append(current_job().run)
        return sum(given)

    with app.flow("twice") as dag:
        first = dag.add(numbers.call())
        nodes = [dag.add(change.call(first.value), name=name) for name in ("a", "b")]
    async with app, app.worker():
        job = await dag.enqueue()
        await job.result(timeout=10)
        assert [await job.node(node).result() for node in nodes] == [4, 4]


def test_refs_of_members_are_those_that_the_core_builds() -> None:
    from tenure.client.references import GroupResult, jobs_of
    from tenure.core.waiting import JobKind, Need, failure_cause

    source = GroupResult("q", "~g", 2)
    built = [failure_cause(Need(box="members"), key, Ref("q", "~g"), JobKind.GROUP, None) for key in ("1", "2")]
    assert list(jobs_of(source)) == built
