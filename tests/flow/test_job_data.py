"""A job's data, which its handler keeps for the next run, and progress objects: what is stored, found and refused."""

import asyncio
from random import Random
from typing import Any

import pytest
from msgspec import json

from tenure import JobFailedError, PayloadTooLargeError, Retry, Snooze, UsageError, current_job
from tenure.core.job import Owner
from tenure.core.outcome import Interrupted
from tenure.core.settlement import settlement
from tenure.storage.protocol import ClaimRequest, LeaseRenewal, RenewRequest
from tests.flow.conftest import FAST, Harness, RunScenario

OTHER = Owner("00000000000000cc", "other", "here", 3)
AGAIN = Retry(max_attempts=5, base="1s", jitter=False)


def test_a_retry_finds_the_data_of_the_run_before(run_scenario: RunScenario) -> None:
    found: list[dict[str, Any]] = []

    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(retry=AGAIN)
        async def on_loop(number: int) -> int:
            return visit(number)

        @app.task(retry=AGAIN)
        def in_thread(number: int) -> int:
            return visit(number)

        await harness.start(app.worker())
        for task in (on_loop, in_thread):
            found.clear()
            job = await task.enqueue(7)
            assert await job.result() == 4
            assert found == [
                {},
                {"page": 1, "seen": ["a"]},
                {"page": 2, "seen": ["a", "a"]},
                {"page": 3, "seen": ["a", "a", "a"]},
            ]
            assert await job.data() == {"page": 4, "seen": ["a"] * 4}

    def visit(number: int) -> int:
        data = current_job().data
        found.append(json.decode(json.encode(dict(data))))
        data["page"] = data.get("page", 0) + 1
        # A change inside a value is stored when the run ends.
        data.setdefault("seen", []).append("a")
        match current_job().run:
            case 1:
                raise ValueError(number)
            case 2:
                raise Snooze("1s")
            case 3:
                raise ConnectionError
            case _:
                pass
        return int(data["page"])

    run_scenario(scenario)


@pytest.mark.parametrize(
    "body", [b"{", b'{"a":"\xff"}', b'{"a":' + b"[" * 30_000], ids=["cut off", "not UTF-8", "deep"]
)
def test_damaged_data_are_reported_as_such(run_scenario: RunScenario, body: bytes) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(retry=Retry(max_attempts=1))
        async def reads() -> None:
            current_job().data["a"] = 1

        job = await reads.enqueue()
        (lease,) = (await harness.storage.exchange(OTHER, (), ClaimRequest(("default",), 1))).leases
        damage = LeaseRenewal(lease.ref, lease.fence, data=body, data_number=1)
        await harness.storage.renew(RenewRequest(OTHER, (damage,)))
        with pytest.raises(UsageError, match=f"the data of job {job.id} cannot be read"):
            await job.data()
        await harness.storage.exchange(OTHER, [settlement(lease, Interrupted("shutdown"), Random(1))])
        await harness.start(app.worker())

        with pytest.raises(JobFailedError, match=r"UsageError: the stored data of '.*reads' cannot be read"):
            await job.result()

    run_scenario(scenario)


def test_the_data_of_half_a_second_ago_survive_a_dead_worker(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        found: list[dict[str, Any]] = []

        @app.task
        async def counts() -> None:
            data = current_job().data
            found.append(dict(data))
            for number in range(data.get("done", 0), 10):
                data["done"] = number + 1
                await asyncio.sleep(1)

        job = await counts.enqueue()
        node = await harness.start(app.worker(reaper=False), "victim")
        await asyncio.sleep(3.7)
        harness.loop.kill(node)
        await harness.start(app.worker())
        await job.result()

        assert found == [{}, {"done": 4}]
        assert await job.data() == {"done": 10}

    run_scenario(scenario)


def test_data_that_cannot_be_stored_are_refused_and_change_nothing(run_scenario: RunScenario) -> None:
    refused: list[str] = []

    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="keeps")
        async def keeps() -> None:
            data = current_job().data
            data.update(kept=1)
            values: list[Any] = [{1, 2}, (1, 2), b"raw", float("nan"), {1: "a"}, object(), "x" * 70_000]
            for value in values:
                try:
                    data["bad"] = value
                except UsageError as error:
                    refused.append(f"{type(error).__name__}: {error}")
            assert dict(data) == {"kept": 1}
            data["more"] = True
            del data["kept"]
            data["nested"] = {}
            data["nested"]["too large"] = "y" * 70_000

        await harness.start(app.worker())
        job = await keeps.enqueue()
        await job.result()

        assert await job.data() == {"more": True, "nested": {}}
        assert len(refused) == 7
        assert all("'keeps'" in text for text in refused)
        assert refused[-1].startswith("PayloadTooLargeError: the values of the data of 'keeps' take 70,0")
        assert "the limit is 65,536" in refused[-1]
        assert ["are not stored" in line.message for line in (await job.info()).log] == [True]

    run_scenario(scenario)


def test_progress_may_be_an_object_of_four_kibibytes(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="reports")
        async def reports() -> None:
            job = current_job()
            job.progress({"page": 3, "of": 40}, "on the way")
            with pytest.raises(
                PayloadTooLargeError, match=r"of the progress of 'reports' take 5,0.. bytes, the limit is"
            ):
                job.progress({"text": "x" * 5_000})
            with pytest.raises(UsageError, match="'seen'"):
                job.progress({"seen": (1, 2)})

        await harness.start(app.worker())
        job = await reports.enqueue()
        await job.result()
        record = (await job.info()).job

        assert (record.progress, record.progress_note) == ({"page": 3, "of": 40}, "on the way")
        assert await job.data() == {}

    run_scenario(scenario)
