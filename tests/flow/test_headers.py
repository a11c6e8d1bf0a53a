"""Headers of jobs: given with a call, added by sending middleware, inherited by jobs that a handler enqueues."""

import asyncio
import contextvars
import logging
from contextlib import suppress
from typing import Any, Unpack

import pytest

from tenure import (
    Collect,
    Debounce,
    JobFailedError,
    ProceedSending,
    Retry,
    SendCall,
    StorageUnavailableError,
    Tenure,
    UsageError,
    current_job,
)
from tenure.options import TaskSettings
from tests.flow.conftest import Harness, RunScenario

TRACE: contextvars.ContextVar[str | None] = contextvars.ContextVar("trace", default=None)


async def traced(call: SendCall, proceed: ProceedSending) -> None:
    """Do what a tracing library does: put the caller's trace into the headers."""
    trace = TRACE.get()
    if trace is not None:
        call.headers["traceparent"] = f"00-{trace}-{call.id}"
    await proceed()


def showing(app: Tenure, **options: Unpack[TaskSettings]) -> Any:
    @app.task(name="show", **options)
    async def show(number: int = 0) -> dict[str, str]:
        return dict(current_job().headers)

    return show


def test_headers_of_a_call_reach_its_handler(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        show = showing(app)
        await harness.start(app.worker())
        job = await show.options(headers={"tenant": "acme", "größe": "ü"}).enqueue()

        assert await job.result() == {"tenant": "acme", "größe": "ü"}
        assert (await job.info()).job.headers == {"tenant": "acme", "größe": "ü"}
        assert await (await show.enqueue()).result() == {}

    run_scenario(scenario)


def test_a_job_inherits_the_headers_of_the_handler_that_enqueues_it(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        show = showing(app)

        @app.task(name="parent")
        async def parent() -> list[str]:
            one = await show.enqueue()
            two = await show.options(headers={"tenant": "other", "more": "x"}).enqueue()
            many = await app.enqueue_many([show.call(1), show.options(headers={"more": "y"}).call(2)])
            return [job.id for job in (one, two, *many)]

        await harness.start(app.worker())
        job = await parent.options(headers={"tenant": "acme", "trace": "1"}).enqueue()
        results = [await app.job(id_, show).result() for id_ in await job.result()]

        assert results == [
            {"tenant": "acme", "trace": "1"},
            {"tenant": "other", "trace": "1", "more": "x"},
            {"tenant": "acme", "trace": "1"},
            {"tenant": "acme", "trace": "1", "more": "y"},
        ]
        assert await (await show.enqueue()).result() == {}

    run_scenario(scenario)


def test_too_many_headers_with_the_inherited_ones_are_refused(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        show = showing(app)

        @app.task(name="parent", retry=Retry(max_attempts=1))
        async def parent() -> None:
            await show.options(headers={"one more": "x"}).enqueue()

        await harness.start(app.worker())
        job = await parent.options(headers={str(number): "" for number in range(16)}).enqueue()
        with pytest.raises(JobFailedError, match="headers has 'one more' as its number 17"):
            await job.result()

    run_scenario(scenario)


def test_sending_middleware_sees_every_enqueue_in_the_callers_context(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        show = showing(app)

        @app.task(name="index", collect=Collect(delay="1s"))
        async def index(items: list[int]) -> dict[str, str]:
            return dict(current_job().headers)

        app.sending(traced)
        await harness.start(app.worker())
        TRACE.set("abc")
        first = await show.enqueue()
        many = await app.enqueue_many([show.call(1), show.options(headers={"tenant": "acme"}).call(2)])
        (alone,) = await app.enqueue_many([show.call(3)])
        waited = await show.options(id="waited").enqueue_and_wait()
        collected = await index.enqueue(1)
        await index.enqueue(2)

        for job in (first, many[0], alone, collected):
            assert await job.result() == {"traceparent": f"00-abc-{job.id}"}
        assert await many[1].result() == {"tenant": "acme", "traceparent": f"00-abc-{many[1].id}"}
        assert waited == {"traceparent": "00-abc-waited"}

    run_scenario(scenario)


def test_layers_wrap_each_other_and_the_headers_override_inherited_ones(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        show = showing(app)
        notes: list[str] = []

        @app.sending
        async def outer(call: SendCall, proceed: ProceedSending) -> None:
            notes.append(f"> outer {call.task} {call.queue} {call.size} {sorted(call.headers)}")
            call.headers["layer"] = "outer"
            await proceed()
            notes.append("< outer")

        @app.sending
        async def inner(call: SendCall, proceed: ProceedSending) -> None:
            notes.append(f"> inner {call.headers['layer']}")
            call.headers["layer"] = "inner"
            await proceed()
            notes.append("< inner")

        await harness.start(app.worker())

        assert await show.options(headers={"own": "x"}).enqueue_and_wait(7) == {"own": "x", "layer": "inner"}
        assert notes == ["> outer show default 12 ['own']", "> inner outer", "< inner", "< outer"]

    run_scenario(scenario)


def test_headers_survive_retries_redrives_and_schedules(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        seen: list[tuple[str, dict[str, str]]] = []

        @app.task(name="fail", retry=Retry(max_attempts=2, base="1s"))
        async def fail(kind: str) -> None:
            seen.append((kind, dict(current_job().headers)))
            if kind == "fails":
                raise ValueError

        app.sending(traced)
        await harness.start(app.worker())
        TRACE.set("abc")
        job = await fail.options(headers={"tenant": "acme"}).enqueue("fails")
        with pytest.raises(JobFailedError):
            await job.result()
        TRACE.set("later")
        await job.redrive()
        with pytest.raises(JobFailedError):
            await job.result()
        await app.schedules.put("often", fail.options(headers={"from": "schedule"}).call("ticks"), every="10s")
        while seen[-1][0] != "ticks":  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(1)

        assert seen[:4] == [("fails", {"tenant": "acme", "traceparent": f"00-abc-{job.id}"})] * 4
        assert seen[4] == ("ticks", {"from": "schedule"})

    run_scenario(scenario)


def test_a_debounced_job_has_the_headers_of_its_latest_call(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        show = showing(app, debounce=Debounce(delay="5s"))
        job = await show.options(headers={"call": "1"}).enqueue(1)
        await show.options(headers={"call": "2"}).enqueue(2)
        await harness.start(app.worker())

        assert await job.result() == {"call": "2"}

    run_scenario(scenario)


@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
def test_a_layer_that_raises_before_the_request_prevents_it(run_scenario: RunScenario, many: bool) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        show = showing(app)

        @app.sending
        async def refuse(call: SendCall, proceed: ProceedSending) -> None:
            if call.headers.get("refuse"):
                raise PermissionError("no")
            await proceed()

        refused = show.options(headers={"refuse": "x"})
        with pytest.raises(PermissionError, match="no"):
            await (app.enqueue_many([show.call(1), refused.call(2), show.call(3)]) if many else refused.enqueue(2))

        assert not (await app.storage.survey()).queues

    run_scenario(scenario)


@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
def test_a_layer_that_raises_after_the_request_is_logged(
    run_scenario: RunScenario, many: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        show = showing(app)

        @app.sending
        async def late(call: SendCall, proceed: ProceedSending) -> None:
            await proceed()
            raise RuntimeError("export failed")

        await harness.start(app.worker())
        with caplog.at_level(logging.ERROR):
            jobs = await app.enqueue_many([show.call(1), show.call(2)]) if many else [await show.enqueue()]

        assert [await job.result() for job in jobs] == [{}] * len(jobs)
        assert "sending middleware raised after the storage had answered" in caplog.text

    run_scenario(scenario)


@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
def test_an_error_of_the_storage_passes_through_the_layers(
    run_scenario: RunScenario, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        show = showing(app)
        seen: list[type[BaseException]] = []

        @app.sending
        async def swallow(call: SendCall, proceed: ProceedSending) -> None:
            try:
                await proceed()
            except Exception as error:
                seen.append(type(error))

        async def fail(jobs: Any) -> Any:
            raise StorageUnavailableError("down")

        await app.opened()
        monkeypatch.setattr(app.storage, "enqueue", fail)
        with pytest.raises(StorageUnavailableError, match="down") as raised:
            await (app.enqueue_many([show.call(1), show.call(2)]) if many else show.enqueue())

        assert len(raised.value.job_ids) == (2 if many else 1)
        assert seen == [StorageUnavailableError] * (2 if many else 1)

    run_scenario(scenario)


def test_a_layer_that_does_not_wait_for_the_storage_raises_an_error(
    run_scenario: RunScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        show = showing(app)

        @app.sending
        async def hasty(call: SendCall, proceed: ProceedSending) -> None:
            try:
                async with asyncio.timeout(1):
                    await proceed()
            except TimeoutError:
                pass

        async def hang(jobs: Any) -> Any:
            await asyncio.sleep(60)

        await app.opened()
        monkeypatch.setattr(app.storage, "enqueue", hang)
        with pytest.raises(StorageUnavailableError, match="may or may not have been stored") as raised:
            await show.enqueue()

        assert len(raised.value.job_ids) == 1

    run_scenario(scenario)


def test_a_layer_that_stops_waiting_raises_that_the_job_may_be_stored(
    run_scenario: RunScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        show = showing(app)

        @app.sending
        async def hasty(call: SendCall, proceed: ProceedSending) -> None:
            async with asyncio.timeout(0.1):
                await proceed()

        async def hang(jobs: Any) -> Any:
            await asyncio.sleep(60)

        await app.opened()
        monkeypatch.setattr(app.storage, "enqueue", hang)
        with pytest.raises(StorageUnavailableError, match="may or may not have been stored") as raised:
            await show.enqueue()

        assert len(raised.value.job_ids) == 1

    run_scenario(scenario)


@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
def test_a_proceed_after_the_enqueue_has_failed_stores_no_job(run_scenario: RunScenario, many: bool) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        show = showing(app)
        late: list[asyncio.Task[None]] = []
        failed = asyncio.Event()

        async def proceeding(proceed: ProceedSending) -> None:
            await failed.wait()
            await proceed()

        @app.sending
        async def layer(call: SendCall, proceed: ProceedSending) -> None:
            late.append(asyncio.create_task(proceeding(proceed)))

        with pytest.raises(UsageError, match="no job was stored"):
            await (app.enqueue_many([show.call(1), show.call(2)]) if many else show.enqueue())
        failed.set()
        done, _ = await asyncio.wait(late, timeout=10)

        assert len(done) == len(late)
        assert all("after its enqueue had ended" in str(task.exception()) for task in done)
        assert not (await app.storage.survey()).queues

    run_scenario(scenario)


@pytest.mark.parametrize("times", [0, 2])
@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
def test_a_layer_that_does_not_proceed_once_is_an_error(run_scenario: RunScenario, times: int, many: bool) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        show = showing(app)

        @app.sending
        async def layer(call: SendCall, proceed: ProceedSending) -> None:
            for _ in range(times):
                await proceed()

        enqueued = app.enqueue_many([show.call(1), show.call(2)]) if many else show.enqueue()
        if times:
            # The job is stored by then; the error is logged.
            await enqueued
            return
        with pytest.raises(UsageError, match=r"layer returned without `await proceed\(\)`, and no job was stored"):
            await enqueued
        assert not (await app.storage.survey()).queues

    run_scenario(scenario)


@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
def test_an_error_that_a_layer_swallows_is_an_error_of_the_enqueue(run_scenario: RunScenario, many: bool) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        show = showing(app)

        @app.sending
        async def swallow(call: SendCall, proceed: ProceedSending) -> None:
            with suppress(Exception):
                await proceed()

        @app.sending
        async def spoil(call: SendCall, proceed: ProceedSending) -> None:
            if "refuse" in call.headers:
                raise PermissionError
            call.headers["n" * 5000] = ""
            await proceed()

        for options, message in (({}, "must be a text of 1 to 1,024"), ({"refuse": ""}, "swallowed an exception")):
            spoiled = show.options(headers=options)
            with pytest.raises(UsageError, match=message):
                await (app.enqueue_many([spoiled.call(1), spoiled.call(2)]) if many else spoiled.enqueue())
        assert not (await app.storage.survey()).queues

    run_scenario(scenario)


def test_a_cancelled_enqueue_of_many_ends_its_layers(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        show = showing(app)
        ended: list[str] = []

        @app.sending
        async def slow(call: SendCall, proceed: ProceedSending) -> None:
            try:
                await asyncio.sleep(60)
                await proceed()
            finally:
                ended.append(call.id)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await app.enqueue_many([show.call(1), show.call(2)])

        assert len(ended) == 2
        assert not (await app.storage.survey()).queues

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (5, "headers = 5 must be texts by name"),
        ({"tenant": 5}, "headers['tenant'] = 5 must be a text"),
        ({"tenant": "a\0"}, "headers['tenant'] = 'a\\x00' must be a text without NUL"),
        ({"tenant": "\ud800"}, "headers['tenant'] = "),
        ({5: "x"}, "the name of a header = 5 must be a text"),
        ({"": "x"}, "the name of a header = '' must be a text"),
        ({str(number): "" for number in range(17)}, "headers has '16' as its number 17, and a job may have 16"),
        ({"short": "x", "long": "ü" * 2048}, "the limit is 4,096; the longest is 'long' with 4,100"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_invalid_headers_are_refused_by_name(headers: Any, message: str) -> None:
    app = Tenure("memory://")
    show = showing(app)

    @app.sending
    async def add(call: SendCall, proceed: ProceedSending) -> None:
        if headers != 5:
            call.headers.update(headers)
        await proceed()

    with pytest.raises(UsageError) as given:
        show.options(headers=headers)
    assert message in str(given.value)
    if headers != 5:
        with pytest.raises(UsageError) as added:
            await show.enqueue()
        assert message in str(added.value)


def test_headers_at_the_limit_are_accepted() -> None:
    show = showing(Tenure("memory://"))
    headers = {f"{number:02}": "x" * 254 for number in range(16)}

    assert show.options(headers=headers).call().job.headers == headers


async def takes_one(call: SendCall) -> None: ...


@pytest.mark.parametrize("layer", [5, takes_one, print], ids=["number", "one parameter", "not async"])
def test_sending_middleware_of_another_shape_is_refused(layer: Any) -> None:
    with pytest.raises(UsageError, match=r"sending middleware .* write async def layer"):
        Tenure("memory://").sending(layer)


def test_the_context_of_a_caller_without_a_loop_reaches_the_layers() -> None:
    app = Tenure("memory://")
    show = showing(app)
    app.sending(traced)
    token = TRACE.set("sync")
    try:
        one = show.enqueue_sync()
        many = app.enqueue_many_sync([show.call(1), show.call(2)])
        for job in (one, *many):
            assert job.info_sync().job.headers == {"traceparent": f"00-sync-{job.id}"}
    finally:
        TRACE.reset(token)


def test_a_plain_handler_passes_its_headers_on(tmp_path: Any) -> None:
    app = Tenure(f"sqlite:///{tmp_path / 'queue.db'}")
    show = showing(app)

    @app.task(name="parent")
    def parent() -> str:
        return str(show.enqueue_sync().id)

    async def main() -> None:
        async with app, app.worker():
            child = await parent.options(headers={"tenant": "acme"}).enqueue_and_wait()
            assert await app.job(child, show).result() == {"tenant": "acme"}

    asyncio.run(main())
