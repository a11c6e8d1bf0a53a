"""Log lines of a worker and of handlers: how a worker and its runs start and end, and the fields of each line."""

import logging
import threading
import traceback
from typing import Any

import pytest

from tenure import Reject, Retry, Snooze, Task, current_job
from tenure.cli.logs import JsonLines
from tenure.handlers.log_fields import JobRecordFactory, add_log_fields
from tests.flow.conftest import Harness, RunScenario

FIELDS = ("tenure_job_id", "tenure_task", "tenure_queue", "tenure_run", "tenure_fence")
log = logging.getLogger("shop.orders")


def fields(record: logging.LogRecord) -> tuple[object, ...]:
    """Return the job's fields of a record; missing ones are None."""
    return tuple(getattr(record, name, None) for name in FIELDS)


def named(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    """Return the records of one logger."""
    return [record for record in caplog.records if record.name == name]


def test_a_worker_logs_its_settings_at_its_start(run_scenario: RunScenario, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tenure")

    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def mail() -> None: ...

        @app.task
        async def bill() -> None: ...

        await harness.start(app.worker(queues=["default", "night"], concurrency=7))

    run_scenario(scenario)
    (line,) = [record.getMessage() for record in named(caplog, "tenure") if " starts: " in record.getMessage()]
    for part in ("tenure 0.", "storage ", "queues default, night", "concurrency 7", "mail", "bill"):
        assert part in line


def test_a_run_is_logged_when_it_starts_and_completes(
    run_scenario: RunScenario, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tenure")
    seen: list[Any] = []

    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def quick() -> None: ...

        await harness.start(app.worker())
        job = await quick.enqueue()
        await job.result()
        seen.append(job.id)

    run_scenario(scenario)
    began, ended = named(caplog, "tenure.jobs")
    assert (began.levelname, ended.levelname) == ("INFO", "INFO")
    assert began.getMessage().startswith(f"job {seen[0]} (")
    assert began.getMessage().endswith("started, run 1")
    assert " completed in " in ended.getMessage()
    assert ended.getMessage().endswith(" ms")
    assert fields(began) == fields(ended)
    assert fields(began)[0] == seen[0]


@pytest.mark.thorough
@pytest.mark.parametrize("level", [logging.WARNING, logging.INFO])
def test_a_failure_is_logged_with_its_exception(
    run_scenario: RunScenario, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(level, "tenure")
    raised: list[BaseException] = []

    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(retry=Retry(max_attempts=2, base="1s"))
        def fragile() -> None:
            raised.append(ConnectionError("the mail server refuses"))
            raise raised[-1]

        await harness.start(app.worker())
        job = await fragile.enqueue()
        with pytest.raises(Exception, match="refuses"):
            await job.result()

    run_scenario(scenario)
    retried, failed = [record for record in named(caplog, "tenure.jobs") if record.levelno > logging.INFO]
    assert (retried.levelname, failed.levelname) == ("WARNING", "ERROR")
    assert "ConnectionError: the mail server refuses; retrying in" in retried.getMessage()
    assert "ConnectionError: the mail server refuses; details: tenure jobs show" in failed.getMessage()
    for record, error in zip((retried, failed), raised, strict=True):
        assert record.exc_info is not None
        assert record.exc_info[1] is error
        assert traceback.extract_tb(record.exc_info[2])[0].name == "fragile"
    assert (fields(retried)[3], fields(failed)[3]) == (1, 2)


def test_the_log_names_each_other_end_of_a_run(run_scenario: RunScenario, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tenure")

    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def sleepy() -> None:
            if current_job().run == 1:
                raise Snooze("1s")

        @app.task
        async def refused() -> None:
            raise Reject("not ours")

        @app.task(timeout="1s", retry=Retry(max_attempts=1))
        async def slow() -> None:
            await harness.until(never)

        async def never() -> bool:
            return False

        await harness.start(app.worker())
        some: list[Task[..., Any]] = [sleepy, refused, slow]
        for task in some:
            job = await task.enqueue()
            await harness.until(lambda job=job: ended(job))  # type: ignore[misc]

    async def ended(job: Any) -> bool:
        return (await job.info()).job.finished is not None

    run_scenario(scenario)
    text = "\n".join(record.getMessage() for record in named(caplog, "tenure.jobs"))
    assert "(snoozed); due again in 1.0 s" in text
    assert "reason rejected: Reject: not ours" in text
    assert "reason timeout: TimeoutError: the run passed its timeout of 1 s" in text
    (timed_out,) = [record for record in named(caplog, "tenure.jobs") if "reason timeout" in record.getMessage()]
    assert timed_out.exc_info is not None
    assert isinstance(timed_out.exc_info[1], TimeoutError)


def test_a_stored_traceback_begins_in_the_users_code(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(retry=Retry(max_attempts=1), timeout="1m")
        async def on_loop() -> None:
            raise ValueError("bad")

        @app.task(retry=Retry(max_attempts=1))
        def in_thread() -> None:
            raise ValueError("bad")

        await harness.start(app.worker())
        some: list[Task[..., Any]] = [on_loop, in_thread]
        for task in some:
            job = await task.enqueue()
            with pytest.raises(Exception, match="bad"):
                await job.result()
            error = (await job.info()).job.error
            assert error is not None
            first, frame, *_ = error.traceback.splitlines()
            assert first == "Traceback (most recent call last):"
            assert frame.endswith(task.function.__name__), frame

    run_scenario(scenario)


def test_each_line_of_a_handler_carries_its_job(run_scenario: RunScenario, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    refs: list[Any] = []

    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def on_loop() -> None:
            log.info("a line", extra={"task": "mine", "job_id": 7})

        @app.task
        def in_thread() -> None:
            log.info("a line")
            alone = threading.Thread(target=log.info, args=("no job here",))
            alone.start()
            alone.join()

        await harness.start(app.worker())
        some: list[Task[..., Any]] = [on_loop, in_thread]
        for task in some:
            job = await task.enqueue()
            await job.result()
            refs.append((job.id, task.name, "default", 1))
        log.info("outside")

    run_scenario(scenario)
    lines = named(caplog, "shop.orders")
    assert [fields(line)[:4] for line in lines if line.getMessage() == "a line"] == refs
    assert all(isinstance(fields(line)[4], int) for line in lines if line.getMessage() == "a line")
    assert {fields(line) for line in lines if line.getMessage() != "a line"} == {(None,) * 5}
    assert (vars(lines[0])["task"], vars(lines[0])["job_id"]) == ("mine", 7)
    assert f'"tenure_job_id":"{refs[0][0]}"' in JsonLines().format(lines[0])


def test_the_fields_are_added_once_to_a_factory_of_other_code() -> None:
    def custom(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = inner(*args, **kwargs)
        vars(record)["trace_id"] = "t"
        return record

    add_log_fields()
    inner = logging.getLogRecordFactory()
    add_log_fields()
    assert logging.getLogRecordFactory() is inner
    logging.setLogRecordFactory(custom)
    add_log_fields()
    assert logging.getLogRecordFactory() is custom
    logging.setLogRecordFactory(logging.LogRecord)
    add_log_fields()
    assert isinstance(logging.getLogRecordFactory(), JobRecordFactory)


def test_the_log_of_a_job_merges_positional_arguments(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def talkative() -> None:
            job_log = current_job().log
            job_log.info("x %d of %s", 1, "2", page=3)
            job_log.warning("%(left)d left", {"left": 4})
            job_log.error("100 %")
            job_log.debug("x %d", "no number")

        await harness.start(app.worker())
        job = await talkative.enqueue()
        await job.result()
        lines = (await job.info()).log
        assert [(line.level, line.message, line.fields) for line in lines] == [
            ("info", "x 1 of 2", {"page": "3"}),
            ("warning", "4 left", {}),
            ("error", "100 %", {}),
            ("debug", "x %d ('no number',)", {}),
        ]

    run_scenario(scenario)
