"""Versions of payloads: older ones are upgraded step by step, newer ones are left to newer workers."""

import asyncio
from typing import Any

import pytest

from tenure import Cancel, JobFailedError, JobReleased, Retry, Router, State, Task, Tenure, UsageError, current_job
from tests.flow.conftest import Harness, RunScenario
from tests.records import record_of

Arguments = dict[str, Any]


def old_pay(app: Tenure) -> Task[[str], str]:
    """Define the task of the old code: one amount as a text."""

    @app.task(name="pay")
    async def pay(amount: str) -> str:
        return f"old {amount}"

    return pay


def new_pay(app: Tenure) -> Task[[int, str], str]:
    """Define the task of the new code: version 3, which older payloads reach in two steps."""

    @app.task(name="pay", version=3)
    async def pay(cents: int, currency: str) -> str:
        return f"new {cents} {currency}"

    # Registered in the wrong order: the version decides.
    @pay.migrate(from_version=2)
    def add_currency(arguments: Arguments) -> Arguments:
        return {"cents": arguments["hundredths"], "currency": "EUR"}

    @pay.migrate(from_version=1)
    def count_hundredths(arguments: Arguments) -> Arguments:
        return {"hundredths": round(float(arguments["amount"]) * 100)}

    return pay


@pytest.mark.fault("W-T27")
def test_an_older_payload_takes_every_step_from_its_version_on_in_order(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        old, new = old_pay(harness.app()), harness.app()
        task, second = new_pay(new), harness.app()

        @second.task(name="pay", version=2, since=2)
        async def of_version_two(hundredths: int) -> str:
            raise AssertionError("no worker serves it")

        first = await old.enqueue("1.50")
        middle = await of_version_two.enqueue(250)
        last = await task.enqueue(350, "USD")
        payload = (await record_of(first)).payload
        await harness.start(new.worker())

        assert [await job.result() for job in (first, middle, last)] == ["new 150 EUR", "new 250 EUR", "new 350 USD"]
        assert [(await record_of(job)).policy.version for job in (first, middle, last)] == [1, 2, 3]
        assert (await record_of(first)).payload == payload

    run_scenario(scenario)


def test_an_upgraded_payload_is_checked_against_the_signature(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        old, new = old_pay(harness.app()), harness.app()

        @new.task(name="pay", version=2)
        async def pay(cents: int) -> None: ...

        pay.migrate(1)(lambda arguments: {"cents": arguments["amount"]})
        await harness.start(new.worker())
        job = await old.enqueue("1.50")
        with pytest.raises(JobFailedError, match="Expected `int`, got `str`") as raised:
            await job.result()

        assert (raised.value.reason, (await record_of(job)).starts) == ("undecodable", 1)

    run_scenario(scenario)


@pytest.mark.fault("W-T24")
def test_a_newer_payload_is_left_to_newer_workers_without_a_hot_loop(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        old, new = harness.app(), harness.app()
        old_pay(old)
        task = new_pay(new)
        await harness.start(old.worker(), "old")
        job = await task.enqueue(150, "EUR")
        await asyncio.sleep(35)
        record = await record_of(job)

        assert (record.state, record.failures, record.stalls, record.releases) == (State.WAITING, 0, 0, 1)
        released = await harness.events_of(JobReleased)
        assert [(event.reason, event.delay) for event in released] == [("newer_payload", 0.0)]
        await harness.start(new.worker(), "new")
        assert await job.result() == "new 150 EUR"

    run_scenario(scenario)


def test_in_a_mixed_fleet_every_newer_payload_ends_with_a_newer_worker(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        old, new = harness.app(), harness.app()
        before = old_pay(old)
        task = new_pay(new)
        await harness.start(old.worker(), "old")
        await harness.start(new.worker(), "new")
        newer = [await task.enqueue(number, "EUR") for number in range(30)]
        older = [await before.enqueue("1.00") for _ in range(30)]

        assert [await job.result(timeout="10m") for job in newer] == [f"new {number} EUR" for number in range(30)]
        assert {await job.result(timeout="10m") for job in older} <= {"old 1.00", "new 100 EUR"}
        records = [(await record_of(job)) for job in (*newer, *older)]
        assert {record.failures for record in records} == {0}

    run_scenario(scenario)


def test_a_payload_older_than_since_fails_at_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        old, new = old_pay(harness.app()), harness.app()

        @new.task(name="pay", version=3, since=3)
        async def pay(cents: int) -> None: ...

        await harness.start(new.worker())
        job = await old.enqueue("1.50")
        with pytest.raises(JobFailedError, match="version 1, and the task accepts none older than since=3") as raised:
            await job.result()

        assert (raised.value.reason, (await record_of(job)).starts) == ("undecodable", 1)

    run_scenario(scenario)


def test_a_migration_that_raises_fails_the_job_at_once_with_its_traceback(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        old, new = old_pay(harness.app()), harness.app()

        @new.task(name="pay", version=2, retry=Retry(max_attempts=5))
        async def pay(cents: int) -> None: ...

        kinds: list[type[BaseException]] = [ValueError, SystemExit]

        @pay.migrate(from_version=1)
        def guess(arguments: Arguments) -> Arguments:
            raise kinds[int(arguments["amount"])]("no idea")

        await harness.start(new.worker())
        for number in range(2):
            job = await old.enqueue(str(number))
            with pytest.raises(JobFailedError, match="no idea") as raised:
                await job.result()

            assert (raised.value.reason, (await record_of(job)).starts) == ("undecodable", 1)
            assert "in guess" in (raised.value.traceback or "")

    run_scenario(scenario)


def test_a_migration_that_returns_no_dict_fails_the_job_at_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        old, new = old_pay(harness.app()), harness.app()

        @new.task(name="pay", version=3)
        async def pay(cents: int) -> None: ...

        for version in (1, 2):
            pay.migrate(version)(lambda arguments: None)  # type: ignore[arg-type,return-value]  # pyright: ignore
        await harness.start(new.worker())
        job = await old.enqueue("1.50")
        with pytest.raises(JobFailedError, match="the arguments of version 2 must be a dict, not None"):
            await job.result()

    run_scenario(scenario)


def test_the_cancel_hook_gets_an_older_payload_upgraded_too(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        old, new, hooked = old_pay(harness.app()), harness.app(), list[int]()

        @new.task(name="pay", version=2)
        async def pay(cents: int) -> None:
            raise Cancel("enough")

        @pay.on_cancel
        async def undo(cents: int) -> None:
            hooked.append(cents)

        pay.migrate(from_version=1)(lambda arguments: {"cents": round(100 * float(arguments["amount"]))})
        await harness.start(new.worker())
        job = await old.enqueue("1.50")
        await harness.until(lambda: _over(job))

        assert (await job.state(), hooked) == (State.CANCELLED, [150])

    run_scenario(scenario)


async def _over(job: Any) -> bool:
    return await job.state() is State.CANCELLED


def test_a_retry_keeps_the_version_that_the_job_was_enqueued_with(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        old, new = old_pay(harness.app()), harness.app()

        @new.task(name="pay", version=2)
        async def pay(cents: int) -> int:
            if current_job().attempt == 1:
                raise OSError("again")
            return cents

        pay.migrate(1)(lambda arguments: {"cents": round(100 * float(arguments["amount"]))})
        await harness.start(new.worker())
        job = await old.options(result_ttl="1d").enqueue("1.50")
        await harness.until(lambda: _completed(job))

        assert ((await record_of(job)).result, (await record_of(job)).policy.version) == (b"150", 1)

    run_scenario(scenario)


async def _completed(job: Any) -> bool:
    return await job.state() is State.COMPLETED


@pytest.mark.fault("W-T27")
async def test_a_gap_in_the_migrations_is_refused_before_a_worker_claims() -> None:
    app = Tenure("memory://")

    @app.task(name="pay", version=3)
    async def pay(cents: int) -> None: ...

    pay.migrate(from_version=1)(same)
    with pytest.raises(UsageError, match=r"'pay' has version 3 and no migration from version 2; write .* since=3"):
        app.worker()
    pay.migrate(from_version=2)(same)
    worker = app.worker()

    @app.task(name="late", version=2)
    async def late() -> None: ...

    with pytest.raises(UsageError, match="'late' has version 2 and no migration from version 1"):
        await worker.start()
    await app.close()


def test_a_router_gives_its_tasks_versions_as_the_app_does() -> None:
    app, router = Tenure("memory://"), Router()

    @router.task(name="pay", version=3, since=2)
    async def pay(cents: int) -> None: ...

    pay.migrate(from_version=2)(same)
    app.include(router)

    assert pay.call(1).job.policy.version == 3
    assert pay.options(priority=1).call(1).job.policy.version == 3


def same(arguments: Arguments) -> Arguments:
    return arguments


def empty() -> Arguments:
    return {}


def double(arguments: Arguments, more: int) -> Arguments:
    return arguments


async def waiting(arguments: Arguments) -> Arguments:
    return arguments


def yielding(arguments: Arguments) -> Any:
    yield arguments


@pytest.mark.parametrize(
    ("version", "since", "message"),
    [
        (0, 1, "version = 0 must be 1 or more"),
        ("2", 1, "version = '2' must be a whole number"),
        (True, 1, "version = True must be a whole number"),
        (2, 0, "since = 0 must be 1 or more"),
        (2, 3, r"since = 3 is after version = 2: .* write version=3"),
    ],
)
def test_bad_versions_are_refused_naming_the_remedy(version: Any, since: Any, message: str) -> None:
    for maker in (Tenure("memory://"), Router()):
        with pytest.raises(UsageError, match=message):
            maker.task(name="pay", version=version, since=since)


@pytest.mark.parametrize(
    ("start", "step", "message"),
    [
        (0, same, "from_version = 0 must be 1 or more"),
        ("1", same, "from_version = '1' must be a whole number"),
        (4, same, "from version 4 exceeds its version 4; write version=5"),
        (1, same, "never be used: payloads older than since=2 are refused"),
        (2, same, "from version 2 is defined twice"),
        (3, 5, "must be a function, not 5"),
        (3, dict, "must be a function, not <class 'dict'>"),
        (3, waiting, "must be a plain function that returns the new arguments"),
        (3, yielding, "must be a plain function that returns the new arguments"),
        (3, empty, "is called with the arguments as one dict: too many positional"),
        (3, double, "is called with the arguments as one dict: missing a required"),
    ],
)
def test_a_bad_migration_is_refused_naming_task_and_version(start: Any, step: Any, message: str) -> None:
    app = Tenure("memory://")

    @app.task(name="pay", version=4, since=2)
    async def pay(cents: int) -> None: ...

    pay.migrate(2)(same)
    with pytest.raises(UsageError, match=message):
        pay.migrate(start)(step)
