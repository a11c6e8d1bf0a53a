"""Durable handlers: steps run once, waits take no slot, and signals arrive, on a clock that the test moves."""

import asyncio
import gc
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from datetime import date
from typing import Any

import pytest
from msgspec import Struct

from tenure import (
    Cancel,
    HandlerSuspended,
    Inject,
    Job,
    JobFailedError,
    MailboxFullError,
    PayloadTooLargeError,
    Proceed,
    Retry,
    RunCall,
    State,
    StepFailedError,
    Tenure,
    UsageError,
    WaitTimeoutError,
    current_job,
    current_step,
)
from tenure.core.waiting import StepRecord
from tenure.testing import JobTester

DAY = 86_400


class Approval(Struct):
    by: str
    at: date


YES = Approval("ann", date(2026, 3, 1))


@pytest.fixture
def app() -> Tenure:
    return Tenure("memory://")


async def steps_of(app: Tenure, job: Job[Any]) -> list[StepRecord]:
    """Return the recorded steps of a job."""
    (detail,) = await app.storage.get([await job.locate()])
    assert detail is not None
    return list(detail.steps)


async def names_of(app: Tenure, job: Job[Any]) -> list[str]:
    """Return the names of the recorded steps of a job."""
    return [step.name for step in await steps_of(app, job)]


async def failure_of(job: Job[Any]) -> JobFailedError:
    """Return the error of a failed job."""
    with pytest.raises(JobFailedError) as caught:
        await job.result()
    return caught.value


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_step_runs_once_although_the_handler_runs_again(app: Tenure) -> None:
    calls: list[str] = []

    async def charge(order_id: str) -> tuple[str, int]:
        calls.append(order_id)
        return order_id, len(calls)

    @app.task(name="order")
    async def order(order_id: str) -> list[int]:
        first = await current_job().step("charge", charge, order_id)
        await current_job().sleep("cooling", "3d")
        second = await current_job().step("charge", charge, order_id)
        assert first == (order_id, 1)
        return [first[1], second[1]]

    with JobTester(app) as jobs:
        job = await order.enqueue("42")
        await jobs.drain()
        assert await job.state() is State.SUSPENDED
        assert await jobs.travel("2d") == 0
        assert await jobs.travel("1d") == 1
        assert await job.result() == [1, 2]
        assert await names_of(app, job) == ["charge", "cooling", "charge#2"]
    assert calls == ["42", "42"]


async def test_the_value_is_the_recorded_one_in_the_first_run_too(app: Tenure) -> None:
    made = Approval("ann", date(2026, 3, 1))
    same: list[bool] = []

    async def approve() -> Approval:
        return made

    @app.task(name="order", retry=Retry(base=0))
    async def order() -> None:
        value = await current_job().step("approve", approve)
        same.append(value is made)
        assert value == made
        if current_job().attempt == 1:
            raise ValueError("again")

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        assert await job.state() is State.COMPLETED
    assert same == [False, False]


async def test_a_plain_function_is_a_step_too_and_runs_in_a_thread(app: Tenure) -> None:
    def add(a: int, b: int) -> int:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        assert current_step().name == "add"
        assert current_job().id == "1"
        return a + b

    async def twice(value: int) -> int:
        return 2 * value

    @app.task(name="sum")
    async def total() -> int:
        job = current_job()
        return await job.step("add", add, 1, b=2) + await job.step("lambda", lambda: twice(2))

    with JobTester(app) as jobs:
        job = await total.options(id="1").enqueue()
        await jobs.drain()
        assert await job.result() == 7


async def test_an_exception_of_a_step_is_that_of_the_run(app: Tenure) -> None:
    calls: list[int] = []

    async def charge() -> int:
        calls.append(current_step().attempt)
        if len(calls) < 3:
            raise ConnectionError("the bank is away")
        return len(calls)

    async def reserve() -> str:
        calls.append(0)
        return "reserved"

    @app.task(name="order", retry=Retry(max_attempts=5, base="10m", jitter=0))
    async def order() -> int:
        await current_job().step("reserve", reserve)
        return await current_job().step("charge", charge)

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.travel("20m")
        assert await job.result() == 3
    assert calls == [0, 1, 1]


async def test_a_plain_step_that_exits_fails_its_run_and_not_the_worker(app: Tenure) -> None:
    def leave() -> None:
        raise SystemExit(3)

    @app.task(name="coroutine", retry=Retry(max_attempts=1))
    async def coroutine() -> None:
        await current_job().options(retry=Retry(3)).step("leave", leave)

    @app.task(name="plain", retry=Retry(max_attempts=1))
    def plain() -> None:
        current_job().options(retry=Retry(3)).step_sync("leave", leave)

    with JobTester(app) as jobs:
        both = [await coroutine.enqueue(), await plain.enqueue()]
        await jobs.drain()
        assert [(await failure_of(job)).error_type for job in both] == ["SystemExit"] * 2


async def test_a_key_tells_steps_apart_by_their_content(app: Tenure) -> None:
    seen: list[str] = []
    order = ["b", "a"]

    async def load(page: str) -> str:
        seen.append(page)
        return page.upper()

    @app.task(name="pages")
    async def pages() -> list[str]:
        job = current_job()
        found = [await job.options(key=page).step("load", load, page) for page in order]
        await job.sleep("pause", "1h")
        return found

    with JobTester(app) as jobs:
        job = await pages.enqueue()
        await jobs.drain()
        order.reverse()
        await jobs.travel("1h")
        assert await job.result() == ["A", "B"]
        assert await names_of(app, job) == ["load@b", "load@a", "pause"]
    assert seen == ["b", "a"]


async def test_a_key_that_is_used_twice_is_an_error(app: Tenure) -> None:
    async def load() -> int:
        return 1

    @app.task(name="pages", retry=Retry(max_attempts=1))
    async def pages() -> None:
        for _ in range(2):
            await current_job().options(key="a").step("load", load)

    with JobTester(app) as jobs:
        job = await pages.enqueue()
        await jobs.drain()
        assert "was used before in this run" in str(await failure_of(job))


@pytest.mark.parametrize("name", ["", "a b", "a" * 65, "a#2", "a~1", "a@b", None])
async def test_an_invalid_name_is_an_error(app: Tenure, name: Any) -> None:
    async def load() -> int:
        return 1

    @app.task(name="pages", retry=Retry(max_attempts=1))
    async def pages() -> None:
        await current_job().step(name, load)

    with JobTester(app) as jobs:
        job = await pages.enqueue()
        await jobs.drain()
        assert "1 to 64 letters" in str(await failure_of(job))


async def test_the_idempotency_key_is_the_same_in_all_runs(app: Tenure) -> None:
    keys: list[str] = []

    async def charge() -> None:
        keys.append(current_step().idempotency_key)
        if len(keys) == 1:
            raise ConnectionError

    @app.task(name="order", retry=Retry(base=0))
    async def order() -> None:
        await current_job().step("charge", charge)

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        assert keys == [f"{job.id}/charge"] * 2


async def test_current_step_outside_of_a_step_is_an_error() -> None:
    with pytest.raises(UsageError, match="outside of a step"):
        current_step()


async def test_a_value_that_does_not_fit_fails_the_job_at_once(app: Tenure) -> None:
    calls: list[int] = []

    async def charge() -> int:
        calls.append(1)
        return "one"  # type: ignore[return-value] # pyright: ignore[reportReturnType]

    @app.task(name="order")
    async def order() -> None:
        await current_job().step("charge", charge)

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.travel("1d")
        error = await failure_of(job)
        assert error.reason == "undecodable"
        assert "step 'charge'" in str(error)
    assert calls == [1]


async def test_a_value_that_would_change_by_its_record_is_refused(app: Tenure) -> None:
    @app.task(name="order")
    async def order() -> None:
        await current_job().step("when", lambda: date(2026, 1, 1))

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        assert (await failure_of(job)).reason == "undecodable"


async def test_a_value_that_is_too_large_fails_the_job_at_once(app: Tenure) -> None:
    async def load() -> str:
        return "x" * 1024 * 1024

    @app.task(name="order")
    async def order() -> None:
        await current_job().step("load", load)

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        error = await failure_of(job)
        assert error.reason == "undecodable"
        assert "1,048,576" in str(error)
        assert await names_of(app, job) == []


async def test_all_values_together_have_a_limit(app: Tenure) -> None:
    async def load() -> str:
        return "x" * 1_000_000

    @app.task(name="order")
    async def order() -> None:
        for _ in range(17):
            await current_job().step("load", load)

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        error = await failure_of(job)
        assert error.reason == "undecodable"
        assert "16,777,216" in str(error)
        assert len(await names_of(app, job)) == 16


async def test_a_large_value_is_logged_once(app: Tenure, caplog: pytest.LogCaptureFixture) -> None:
    async def load() -> str:
        return "x" * 40_000

    @app.task(name="order")
    async def order() -> None:
        for _ in range(2):
            await current_job().step("load", load)

    with JobTester(app) as jobs, caplog.at_level(logging.WARNING):
        await order.enqueue()
        await jobs.drain()
    assert caplog.text.count("step 'load' has a value of 40002 bytes") == 1


async def test_a_changed_type_fails_the_job_and_a_redrive_may_follow(app: Tenure) -> None:
    kind: list[type] = [int]

    @app.task(name="order")
    async def order() -> Any:
        async def charge() -> Any:
            return 7

        charge.__annotations__["return"] = kind[0]
        value = await current_job().step("charge", charge)
        await current_job().sleep("pause", "1d")
        return value

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        kind[0] = Approval
        await jobs.travel("1d")
        error = await failure_of(job)
        assert (error.reason, error.error_type) == ("undecodable", "StepMismatchError")
        kind[0] = int
        await job.redrive()
        await jobs.drain()
        assert await job.result() == 7


async def test_a_step_of_another_kind_fails_the_job(app: Tenure) -> None:
    changed: list[bool] = []

    async def charge() -> int:
        return 7

    @app.task(name="order")
    async def order() -> None:
        if changed:
            await current_job().sleep("charge", "1d")
        await current_job().step("charge", charge)
        await current_job().sleep("pause", "1d")

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        changed.append(True)
        await jobs.travel("1d")
        assert (await failure_of(job)).error_type == "StepMismatchError"


async def test_steps_may_be_inserted_removed_and_reordered(app: Tenure) -> None:
    names: list[str] = ["a", "b"]
    called: list[str] = []

    async def note(name: str) -> str:
        called.append(name)
        return name

    @app.task(name="order")
    async def order() -> list[str]:
        found = [await current_job().step(name, note, name) for name in names]
        await current_job().sleep("pause", "1d")
        return found

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        names[:] = ["c", "b"]
        await jobs.travel("1d")
        assert await job.result() == ["c", "b"]
    assert called == ["a", "b", "c"]


async def test_a_step_in_a_step_is_an_error(app: Tenure) -> None:
    async def inner() -> int:
        return 1

    async def outer() -> int:
        return await current_job().step("inner", inner)

    @app.task(name="order", retry=Retry(max_attempts=1))
    async def order() -> None:
        await current_job().step("outer", outer)

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        assert "cannot contain steps" in str(await failure_of(job))


async def test_steps_without_a_worker_are_an_error(app: Tenure) -> None:
    with pytest.raises(UsageError, match="outside of a running job"):
        await current_job().sleep("pause", 1)


# ── retries of a step ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_step_with_retry_is_tried_again_and_its_job_suspended(app: Tenure) -> None:
    attempts: list[int] = []

    async def charge() -> str:
        attempts.append(current_step().attempt)
        if len(attempts) < 3:
            raise ConnectionError("away")
        return "paid"

    @app.task(name="order", retry=Retry(max_attempts=1))
    async def order() -> str:
        return await current_job().options(retry=Retry(3, base="10m", jitter=0)).step("charge", charge)

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        assert await job.state() is State.SUSPENDED
        await jobs.travel("10m")
        assert attempts == [1, 2]
        assert await jobs.travel("10m") == 1
        assert await job.result() == "paid"
        assert await names_of(app, job) == ["charge~1", "charge~2", "charge"]
    assert attempts == [1, 2, 3]


async def test_an_exhausted_step_is_recorded_and_a_redrive_tries_it_again(app: Tenure) -> None:
    attempts: list[int] = []
    caught: list[StepFailedError] = []

    async def charge() -> str:
        attempts.append(current_step().attempt)
        if len(attempts) < 4:
            raise ConnectionError("away")
        return "paid"

    @app.task(name="order")
    async def order() -> str:
        try:
            return await current_job().options(retry=Retry(2, base="10m")).step("charge", charge)
        except StepFailedError as error:
            caught.append(error)
            raise

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.travel("1d")
        error = await failure_of(job)
        # Each further run would get the recorded failure again.
        assert (error.reason, error.error_type) == ("rejected", "StepFailedError")
        assert "ConnectionError: away" in str(error)
        assert [(one.step, one.error_type) for one in caught] == [("charge", "ConnectionError")]
        await job.redrive()
        await jobs.travel("20m")
        assert await job.result() == "paid"
    assert attempts == [1, 2, 1, 2]


async def test_a_handler_may_go_on_after_a_failed_step(app: Tenure) -> None:
    attempts: list[int] = []

    async def charge() -> None:
        attempts.append(1)
        raise ConnectionError("away")

    @app.task(name="order")
    async def order() -> str:
        try:
            await current_job().options(retry=Retry(1)).step("charge", charge)
        except StepFailedError:
            await current_job().sleep("pause", "1d")
            return "free"
        return "paid"

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.travel("1d")
        assert await job.result() == "free"
    assert attempts == [1]


async def test_a_failed_step_in_a_group_is_final(app: Tenure) -> None:
    async def charge() -> None:
        raise ConnectionError("away")

    @app.task(name="order", retry=Retry(max_attempts=3, base=0))
    async def order() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(current_job().options(retry=Retry(1)).step("charge", charge))

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        assert (await failure_of(job)).reason == "rejected"
        assert (await job.info()).job.starts == 1


async def test_a_final_exception_and_a_control_are_not_retried(app: Tenure) -> None:
    attempts: list[int] = []

    async def fail() -> None:
        attempts.append(1)
        raise KeyError("unknown")

    async def cancel() -> None:
        raise Cancel("no more")

    @app.task(name="order")
    async def order() -> None:
        retry = Retry(5, never=KeyError)
        with suppress(StepFailedError):
            await current_job().options(retry=retry).step("fail", fail)
        await current_job().options(retry=retry).step("cancel", cancel)

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        assert await job.state() is State.CANCELLED
        assert [(step.name, step.by) for step in await steps_of(app, job)] == [("fail", "failed")]
    assert attempts == [1]


# ── waits ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_sleep_ends_at_its_time_although_its_job_runs_meanwhile(app: Tenure) -> None:
    ended: dict[str, int] = {}

    with JobTester(app) as jobs:
        begin = jobs.clock.now()

        @app.task(name="order")
        async def order() -> None:
            job = current_job()

            async def long() -> None:
                await job.sleep("long", "5d")
                ended.setdefault("long", jobs.clock.now())

            async def go() -> None:
                for _ in range(3):
                    await job.wait_signal("go", str)
                ended.setdefault("go", jobs.clock.now())

            await asyncio.gather(long(), go())

        job = await order.enqueue()
        for _ in range(3):
            await jobs.travel("1d")
            assert await app.signal(job.id, "go", "on", queue=job.queue)
        await jobs.travel("2d")
        assert await job.state() is State.COMPLETED
    assert {name: (at - begin) / 1_000_000 / DAY for name, at in ended.items()} == {"go": 3, "long": 5}


async def test_a_signal_wakes_the_job_with_its_content(app: Tenure) -> None:
    @app.task(name="order")
    async def order() -> str:
        approval = await current_job().wait_signal("approved", Approval, timeout="7d")
        assert approval.at == date(2026, 3, 1)
        return approval.by

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.travel("2d")
        assert await job.state() is State.SUSPENDED
        assert await app.signal(job.id, "approved", YES, queue=job.queue)
        await jobs.drain()
        assert await job.result() == "ann"
        # It has ended, so it takes no signal any more.
        assert not await app.signal(job.id, "approved", YES)


async def test_signals_are_kept_and_read_in_order(app: Tenure) -> None:
    @app.task(name="order")
    async def order() -> list[int]:
        await current_job().sleep("pause", "1h")
        return [await current_job().wait_signal("item", int) for _ in range(3)]

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await app.signal(job.id, "item", 3, message_id="a")
        await jobs.drain()
        await app.signal(job.id, "item", 1)
        await app.signal(job.id, "item", 4, message_id="a")
        await jobs.travel("1h")
        assert await job.state() is State.SUSPENDED
        await app.signal(job.id, "item", 2)
        await jobs.drain()
        assert await job.result() == [3, 1, 2]


async def test_a_wait_that_is_too_long_raises_and_is_recorded(app: Tenure) -> None:
    runs: list[bool] = []

    @app.task(name="order")
    async def order() -> str:
        try:
            await current_job().wait_signal("approved", Approval, timeout="7d")
        except TimeoutError as error:
            runs.append(isinstance(error, WaitTimeoutError) and error.step == "approved")
            # A late signal does not change what this wait has come to.
            await current_job().sleep("pause", "1d")
            return (await current_job().wait_signal("approved", Approval)).by
        return "in time"

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.travel("7d")
        await app.signal(job.id, "approved", YES)
        await jobs.travel("1d")
        assert await job.result() == "ann"
    assert runs == [True, True, True]


async def test_a_redrive_waits_again_for_what_came_too_late(app: Tenure) -> None:
    @app.task(name="order")
    async def order() -> str:
        return (await current_job().wait_signal("approved", Approval, timeout="7d")).by

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.travel("7d")
        assert (await failure_of(job)).error_type == "WaitTimeoutError"
        await job.redrive()
        await jobs.travel("6d")
        assert await job.state() is State.SUSPENDED
        await app.signal(job.id, "approved", YES)
        await jobs.drain()
        assert await job.result() == "ann"


async def test_first_returns_what_came_first(app: Tenure) -> None:
    @app.task(name="order")
    async def order() -> list[str]:
        job = current_job()
        found: list[str] = []
        while True:
            which, value = await job.first(job.on_signal("item", str), job.on_sleep("end", "1d"))
            if value is None:
                return [*found, which]
            found.append(value)

    with JobTester(app) as jobs:
        job = await order.enqueue()
        for item in "ab":
            await jobs.travel("20h")
            await app.signal(job.id, "item", item)
        await jobs.travel("20h")
        assert await job.state() is State.SUSPENDED
        await jobs.travel("4h")
        assert await job.result() == ["a", "b", "end"]


@pytest.mark.parametrize("kind", [None, type(None)])
async def test_first_takes_signals_without_content(app: Tenure, kind: Any) -> None:
    @app.task(name="order")
    async def order() -> str:
        job = current_job()
        which, _ = await job.first(job.on_signal("stop", kind), job.on_sleep("end", "1d"))
        return which

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        await app.signal(job.id, "stop", None)
        await jobs.drain()
        assert await job.result() == "stop"


async def test_a_signal_of_another_type_fails_the_job(app: Tenure) -> None:
    @app.task(name="order")
    async def order() -> None:
        await current_job().wait_signal("approved", Approval)

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await app.signal(job.id, "approved", "yes")
        await jobs.drain()
        error = await failure_of(job)
        assert (error.reason, error.error_type) == ("undecodable", "StepMismatchError")


async def test_a_signal_is_checked_before_it_is_sent(app: Tenure) -> None:
    @app.task(name="order")
    async def order() -> None:
        await current_job().sleep("pause", "1d")

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        with pytest.raises(UsageError, match="1 to 64 letters"):
            await app.signal(job.id, "not a name")
        with pytest.raises(UsageError, match="cannot be encoded"):
            await app.signal(job.id, "go", object())
        with pytest.raises(PayloadTooLargeError):
            await app.signal(job.id, "go", "x" * 32 * 1024)
        for number in range(1000):
            await app.signal(job.id, "go", number, queue=job.queue)
        with pytest.raises(MailboxFullError, match="1,000 unread"):
            await app.signal(job.id, "go", 1000, queue=job.queue)


async def test_a_cancel_ends_a_suspended_job_at_once(app: Tenure) -> None:
    @app.task(name="order")
    async def order() -> None:
        await current_job().wait_signal("approved", Approval)

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        assert await job.cancel()
        assert await job.state() is State.CANCELLED


# ── unwinding ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_finally_blocks_and_providers_end_before_the_job_waits(app: Tenure) -> None:
    log: list[str] = []

    async def connection() -> AsyncGenerator[str]:
        log.append("open")
        try:
            yield "connection"
        finally:
            log.append("close")

    @app.task(name="order")
    async def order(db: str = Inject(connection)) -> None:
        try:
            await current_job().sleep("pause", "1d")
        except Exception:
            log.append("except")
            raise
        finally:
            await asyncio.sleep(0)
            log.append("finally")

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        assert log == ["open", "finally", "close"]
        await jobs.travel("1d")
        assert await job.state() is State.COMPLETED
    assert log == ["open", "finally", "close"] * 2


async def test_middleware_sees_the_suspension_as_its_own_class(app: Tenure) -> None:
    seen: list[str] = []

    @app.middleware
    async def layer(call: RunCall, proceed: Proceed) -> Any:
        try:
            return await proceed()
        except HandlerSuspended:
            seen.append(call.task)
            raise

    @app.task(name="coroutine")
    async def coroutine() -> None:
        await current_job().sleep("pause", "1d")

    @app.task(name="plain")
    def plain() -> None:
        current_job().sleep_sync("pause", "1d")

    with JobTester(app) as jobs:
        await coroutine.enqueue()
        await plain.enqueue()
        await jobs.travel("1d")
    assert sorted(seen) == ["coroutine", "plain"]


async def test_on_cancel_is_not_called_for_a_suspension(app: Tenure) -> None:
    called: list[str] = []

    @app.task(name="order")
    async def order() -> None:
        await current_job().sleep("pause", "1d")

    @order.on_cancel
    async def tidy() -> None:
        called.append("tidy")

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.travel("1d")
        assert await job.state() is State.COMPLETED
    assert called == []


async def _bare_except() -> str:
    try:
        await current_job().sleep("pause", "1d")
    except BaseException:
        return "returned"
    return "slept"


async def _gathered() -> str:
    await asyncio.gather(current_job().sleep("pause", "1d"), return_exceptions=True)
    return "returned"


async def _in_a_task() -> str:
    await asyncio.wait([asyncio.create_task(current_job().sleep("pause", "1d"))])
    return "returned"


@pytest.mark.parametrize("handler", [_bare_except, _gathered, _in_a_task])
async def test_a_handler_that_swallows_the_suspension_is_rejected(
    app: Tenure, handler: Callable[[], Coroutine[Any, Any, str]]
) -> None:
    task = app.task(name="order")(handler)

    with JobTester(app) as jobs:
        job = await task.enqueue()
        await jobs.drain()
        error = await failure_of(job)
        assert (error.reason, error.error_type) == ("rejected", "HandlerSuspended")
        assert "catch Exception" in str(error)


async def test_an_error_in_finally_wins(app: Tenure) -> None:
    @app.task(name="order", retry=Retry(max_attempts=1))
    async def order() -> None:
        try:
            await current_job().sleep("pause", "1d")
        finally:
            raise ValueError("the connection does not close")

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        assert (await failure_of(job)).error_type == "ValueError"


async def test_a_raised_suspension_without_a_wait_is_rejected(app: Tenure) -> None:
    @app.task(name="order")
    async def order() -> None:
        raise HandlerSuspended

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        assert (await failure_of(job)).reason == "rejected"


# ── branches ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", ["gather", "group", "nested"])
async def test_branches_wait_together_and_end_one_by_one(app: Tenure, way: str) -> None:
    log: list[str] = []

    async def note(name: str) -> str:
        await asyncio.sleep(0.01)
        log.append(name)
        return name

    async def branch(name: str, days: int) -> None:
        await current_job().step(f"begin-{name}", note, name)
        await current_job().sleep(name, f"{days}d")
        await current_job().step(f"end-{name}", note, name.upper())

    @app.task(name="order")
    async def order() -> None:
        if way == "gather":
            await asyncio.gather(branch("a", 1), branch("b", 2))
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(branch("a", 1))
            if way == "group":
                group.create_task(branch("b", 2))
                return
            async with asyncio.TaskGroup() as inner:
                inner.create_task(branch("b", 2))

    with JobTester(app) as jobs:
        job = await order.enqueue()
        assert await jobs.drain() == 1
        assert log == ["a", "b"]
        assert await jobs.travel("1d") == 1
        assert log == ["a", "b", "A"]
        assert await jobs.travel("1d") == 1
        assert await job.state() is State.COMPLETED
    assert log == ["a", "b", "A", "B"]


@pytest.mark.parametrize("waits_first", [True, False])
async def test_a_wait_lets_steps_in_flight_end_first(app: Tenure, waits_first: bool) -> None:
    log: list[str] = []
    release = asyncio.Event()

    async def slow() -> None:
        await release.wait()
        log.append("slow")

    async def waits() -> None:
        log.append("waits")
        asyncio.get_running_loop().call_later(0.05, release.set)
        await current_job().sleep("pause", "1d")

    @app.task(name="order")
    async def order() -> None:
        branches = [current_job().step("slow", slow), waits()]
        await asyncio.gather(*(branches[::-1] if waits_first else branches))

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        assert log == ["waits", "slow"]
        assert await names_of(app, job) == ["slow"]
        assert await job.state() is State.SUSPENDED


async def test_a_real_error_in_a_branch_wins(app: Tenure) -> None:
    async def waits() -> None:
        try:
            await current_job().sleep("pause", "1d")
        except HandlerSuspended:
            raise ValueError("wrong") from None

    @app.task(name="order", retry=Retry(max_attempts=1))
    async def order() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(current_job().sleep("other", "1d"))
            group.create_task(waits())

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        error = await failure_of(job)
        assert error.error_type == "ExceptionGroup"
        assert "ValueError: wrong" in (error.traceback or "")


async def test_branches_that_are_left_are_cancelled_before_the_job_waits(app: Tenure) -> None:
    log: list[str] = []

    async def other() -> None:
        await current_job().step("note", lambda: None)
        try:
            await asyncio.Event().wait()
        finally:
            log.append("cancelled")

    @app.task(name="order")
    async def order() -> None:
        await asyncio.gather(other(), current_job().sleep("pause", "1d"))

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        assert log == ["cancelled"]
        assert await job.state() is State.SUSPENDED


@pytest.mark.parametrize("ends", ["fails", "returns"])
async def test_a_step_of_a_left_branch_ends_before_the_run_does(app: Tenure, ends: str) -> None:
    log: list[str] = []
    kept: list[object] = []

    async def slow() -> None:
        await asyncio.sleep(0.05)
        log.append("slow")

    async def other() -> None:
        await current_job().step("slow", slow)
        await current_job().step("next", lambda: log.append("next"))

    async def fails() -> None:
        # The other branch begins its step first.
        await current_job().step("short", lambda: None)
        raise ValueError("wrong")

    @app.task(name="order", retry=Retry(max_attempts=2, base=0))
    async def order() -> None:
        log.append("run")
        if ends == "returns":
            kept.append(asyncio.create_task(other()))
            await current_job().step("short", lambda: None)
        elif current_job().run == 1:
            await asyncio.gather(other(), fails())

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        assert await job.state() is State.COMPLETED
        assert sorted(await names_of(app, job)) == ["short", "slow"]
    assert log == ["run", "slow", "run"][: 3 if ends == "fails" else 2]


async def test_a_wait_may_be_given_up(app: Tenure) -> None:
    async def slow() -> str:
        await asyncio.sleep(0.05)
        return "slow"

    @app.task(name="order")
    async def order() -> str:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.gather(current_job().step("slow", slow), current_job().sleep("pause", "1d"))
        return await current_job().step("slow", slow)

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        assert await job.result() == "slow"


async def test_branches_that_read_one_signal_get_one_each(app: Tenure) -> None:
    @app.task(name="order")
    async def order() -> list[str]:
        return sorted(await asyncio.gather(*(current_job().wait_signal("item", str) for _ in range(3))))

    with JobTester(app) as jobs:
        job = await order.enqueue()
        for item in "cab":
            await jobs.drain()
            await app.signal(job.id, "item", item)
        await jobs.drain()
        assert await job.result() == ["a", "b", "c"]


async def test_too_many_open_waits_are_an_error(app: Tenure) -> None:
    @app.task(name="order", retry=Retry(max_attempts=1))
    async def order() -> None:
        await asyncio.gather(*(current_job().sleep("pause", "1d") for _ in range(65)))

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        assert "the limit is 64" in str(await failure_of(job))


async def test_unwound_branches_leave_no_warning(app: Tenure, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(name="order")
    async def order() -> None:
        await asyncio.gather(*(current_job().sleep("pause", "1d") for _ in range(3)))

    with JobTester(app) as jobs, caplog.at_level(logging.WARNING):
        job = await order.enqueue()
        await jobs.travel("1d")
        assert await job.state() is State.COMPLETED
        del job
        gc.collect()
        await asyncio.sleep(0)
    assert caplog.records == []


# ── plain handlers ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_plain_handler_has_steps_and_waits(app: Tenure) -> None:
    log: list[str] = []

    def charge(order_id: str) -> str:
        log.append(current_step().idempotency_key)
        return f"paid {order_id}"

    @app.task(name="order")
    def order(order_id: str) -> list[str]:
        job = current_job()
        paid = job.step_sync("charge", charge, order_id)
        job.sleep_sync("cooling", "3d")
        approval = job.wait_signal_sync("approved", Approval, timeout="7d")
        which, value = job.first_sync(job.on_signal("stop", str), job.on_sleep("end", "1d"))
        assert value is None
        return [paid, approval.by, which]

    with JobTester(app) as jobs:
        job = order.enqueue_sync("42")
        jobs.travel_sync("3d")
        assert app.signal_sync(job.id, "approved", YES)
        jobs.travel_sync("1d")
        assert job.result_sync() == ["paid 42", "ann", "end"]
        assert log == [f"{job.id}/charge"]


def test_a_plain_step_with_retry_is_tried_again(app: Tenure) -> None:
    attempts: list[int] = []

    def charge() -> str:
        attempts.append(current_step().attempt)
        if len(attempts) < 3:
            raise ConnectionError("away")
        return "paid"

    @app.task(name="order")
    def order() -> str:
        return current_job().options(retry=Retry(3, base="10m")).step_sync("charge", charge)

    with JobTester(app) as jobs:
        job = order.enqueue_sync()
        jobs.travel_sync("30m")
        assert job.result_sync() == "paid"
    assert attempts == [1, 2, 3]


def test_a_plain_handler_that_swallows_the_suspension_is_rejected(app: Tenure) -> None:
    @app.task(name="order")
    def order() -> str:
        with suppress(BaseException):
            current_job().sleep_sync("pause", "1d")
        return "returned"

    with JobTester(app) as jobs:
        job = order.enqueue_sync()
        jobs.drain_sync()
        with pytest.raises(JobFailedError) as caught:
            job.result_sync()
        assert caught.value.reason == "rejected"


async def test_the_calls_for_plain_handlers_are_refused_in_coroutines(app: Tenure) -> None:
    @app.task(name="order", retry=Retry(max_attempts=1))
    async def order() -> None:
        current_job().sleep_sync("pause", "1d")

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        assert "would block the event loop" in str(await failure_of(job))


# ── faults ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_crashed_worker_loses_no_step(app: Tenure) -> None:
    calls: list[str] = []

    async def charge() -> str:
        calls.append("charge")
        return "paid"

    @app.task(name="order")
    async def order() -> str:
        paid = await current_job().step("charge", charge)
        await current_job().sleep("cooling", "1d")
        return paid

    with JobTester(app) as jobs:
        job = await order.enqueue()
        await jobs.drain()
        jobs.crash_worker(order)
        await jobs.travel("1d")
        assert await job.result() == "paid"
        assert (await job.info()).job.stalls == 1
    assert calls == ["charge"]


async def test_a_worker_that_dies_before_the_record_repeats_the_step(app: Tenure) -> None:
    calls: list[str] = []

    async def charge(name: str) -> str:
        calls.append(f"{name} {current_step().idempotency_key.partition('/')[2]}")
        return name

    @app.task(name="order")
    async def order() -> list[str]:
        return [await current_job().step("charge", charge, name) for name in "ab"]

    with JobTester(app) as jobs:
        jobs.crash_worker(order, step="charge#2")
        job = await order.enqueue()
        await jobs.drain()
        assert await job.result() == ["a", "b"]
        assert (await job.info()).job.stalls == 1
    # The effect is there twice, under one key; that of the step before is not.
    assert calls == ["a charge", "b charge#2", "b charge#2"]


async def test_a_run_that_is_cut_off_records_nothing_and_another_goes_on(app: Tenure) -> None:
    calls: list[int] = []

    async def charge() -> int:
        calls.append(current_job().run)
        return current_job().run

    @app.task(name="order")
    async def order() -> int:
        return await current_job().step("charge", charge)

    with JobTester(app) as jobs:
        jobs.cut_off(order)
        job = await order.enqueue()
        await jobs.travel("1m")
        assert await job.result() == 2
        assert [(step.name, step.run) for step in await steps_of(app, job)] == [("charge", 2)]
    assert calls == [1, 2]
