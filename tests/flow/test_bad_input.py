"""Bad input gets a clear error that names the field and the remedy, and nothing is lost."""

import asyncio
import functools
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec import Struct

from tenure import (
    JobFailedError,
    JobReleased,
    JobStalled,
    JsonCodec,
    PayloadTooLargeError,
    Retry,
    SchemaMismatchError,
    State,
    StorageUnavailableError,
    Tenure,
    UnknownTaskError,
    UsageError,
    WorkerStarted,
    current_job,
)
from tenure.core.job import NewJob
from tenure.core.lifecycle import TERMINAL
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import EnqueueResult
from tenure.storage.urls import locate
from tests.flow.conftest import Harness, RunScenario


def tasks() -> Any:
    app = Tenure("memory://")

    @app.task(name="pay")
    async def pay(account: int, amount: float = 1.0, *, note: str = "") -> None: ...

    return pay


@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [
        ((), {}, "account"),
        ((1, 2.0, 3), {}, "too many positional arguments"),
        ((1,), {"memo": "x"}, "memo"),
        (("one",), {}, "account"),
        ((1, "much"), {}, "amount"),
        ((1,), {"note": 7}, "note"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_naming_task_and_argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], named: str
) -> None:
    with pytest.raises(UsageError, match=named) as raised:
        tasks().call(*args, **kwargs)

    assert "'pay'" in str(raised.value)


def test_arguments_that_cannot_be_encoded_are_refused_naming_the_argument() -> None:
    app = Tenure("memory://")

    @app.task(name="keep")
    async def keep(thing: Any, other: int) -> None: ...

    with pytest.raises(UsageError, match="argument 'thing' cannot be encoded"):
        keep.call(object(), 1)


def test_an_unset_argument_is_refused_even_with_a_default() -> None:
    app = Tenure("memory://")

    @app.task(name="keep")
    async def keep(thing: Any, other: Any = 3) -> None: ...

    for args in [(1, msgspec.UNSET), (msgspec.UNSET, 1), (msgspec.UNSET,)]:
        with pytest.raises(UsageError, match="cannot be encoded"):
            keep.call(*args)


def test_a_payload_over_a_mebibyte_is_refused_with_size_and_limit() -> None:
    app = Tenure("memory://")

    @app.task(name="keep")
    async def keep(text: str) -> None: ...

    with pytest.raises(PayloadTooLargeError, match="1,048,576") as raised:
        keep.call("x" * 1_100_000)

    assert (raised.value.task, raised.value.limit) == ("keep", 1_048_576)
    assert raised.value.size > 1_100_000


def test_a_large_payload_is_warned_about_once_and_without_showing_it(caplog: pytest.LogCaptureFixture) -> None:
    app = Tenure("memory://")

    @app.task(name="keep")
    async def keep(text: str) -> None: ...

    with caplog.at_level(logging.WARNING):
        keep.call("secret" * 8_000)
        keep.call("secret" * 8_000)

    assert len(caplog.records) == 1
    assert "secret" not in caplog.text


def test_a_result_that_cannot_be_encoded_fails_the_job_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="bad")
        async def bad() -> Any:
            return object()

        @app.task(name="big")
        async def big() -> str:
            return "x" * 1_100_000

        await harness.start(app.worker())
        for task, text in ((bad, "object"), (big, "1,048,576")):
            job = await task.enqueue()
            with pytest.raises(JobFailedError, match=text):
                await job.result()
            record = (await job.info()).job
            assert (record.starts, record.reason) == (1, "undecodable")

    run_scenario(scenario)


def test_a_result_that_does_not_fit_its_annotation_fails_the_job_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        given: Any = {"text": "12", "none": None, "short": [1], "nan": float("nan"), "wrong": {"cents": "many"}}

        @app.task(name="whole")
        async def whole(key: str) -> int:
            return given[key]  # type: ignore[no-any-return]

        @app.task(name="pair")
        async def pair(key: str) -> tuple[int, str]:
            return given[key]  # type: ignore[no-any-return]

        @app.task(name="share")
        async def share(key: str) -> float:
            return given[key]  # type: ignore[no-any-return]

        @app.task(name="nothing")
        async def nothing(key: str) -> None:
            return given[key]  # type: ignore[no-any-return]

        @app.task(name="priced")
        async def priced(key: str) -> Priced:
            return given[key]  # type: ignore[no-any-return]

        await harness.start(app.worker())
        wrong: list[tuple[Any, str]] = [
            *((whole, "text"), (whole, "none"), (pair, "short"), (share, "nan"), (nothing, "text"), (priced, "wrong")),
        ]
        for task, key in wrong:
            job = await task.enqueue(key)
            with pytest.raises(
                JobFailedError, match=f"'{task.name}': the result does not fit the handler's return annotation"
            ):
                await job.result()
            record = (await job.info()).job
            assert (record.starts, record.reason, record.failures) == (1, "undecodable", 1)

    run_scenario(scenario)


class Closed(Struct, forbid_unknown_fields=True, tag=True):
    number: int


class Wider(Closed):
    more: int


class Sealed(JsonCodec):
    """A user's own codec."""

    def encode(self, value: Any, /) -> bytes:
        return super().encode(value)[::-1]

    def decode(self, data: bytes, /) -> Any:
        return super().decode(data[::-1])


@pytest.mark.parametrize("codec", [JsonCodec(), Sealed()])
def test_a_result_of_a_subclass_comes_back_as_the_class_that_is_annotated(
    run_scenario: RunScenario, codec: JsonCodec
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(codec=codec)
        noon = datetime(2026, 5, 4, 12, tzinfo=UTC)

        @app.task(name="whole")
        async def whole() -> int:
            return True

        @app.task(name="share")
        async def share() -> float:
            return True

        @app.task(name="day")
        async def day() -> date:
            return noon

        @app.task(name="perhaps")
        async def perhaps() -> date | None:
            return noon

        @app.task(name="days")
        async def days() -> list[date]:
            return [noon, noon.date()]

        @app.task(name="counted")
        async def counted() -> dict[str, tuple[int, str]]:
            return {"all": (True, "a")}

        @app.task(name="based")
        async def based() -> list[Closed]:
            return [Wider(1, 2), Closed(3)]

        @app.task(name="strict")
        async def strict() -> bool:
            return cast(bool, 1)

        await harness.start(app.worker())
        results = [await (await task.enqueue()).result() for task in (whole, share, day, perhaps, days, counted)]

        assert results == [1, 1.0, noon.date(), noon.date(), [noon.date()] * 2, {"all": (1, "a")}]
        assert await (await based.enqueue()).result() == [Closed(1), Closed(3)]
        assert [type(item) for item in results[:4]] == [int, float, date, date]
        with pytest.raises(JobFailedError, match="the result does not fit the handler's return annotation"):
            await (await strict.enqueue()).result()

    run_scenario(scenario)


@dataclass
class Priced:
    cents: int


def test_a_result_passes_that_fits_or_has_no_annotation(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="free")
        async def free():  # type: ignore[no-untyped-def]
            return 1

        @app.task(name="keyed")
        async def keyed(counts: dict[int, int]) -> dict[int, Priced]:
            return {key: Priced(cents) for key, cents in counts.items()}

        @app.task(name="pair")
        async def pair() -> tuple[int, str]:
            return 1, "a"

        await harness.start(app.worker())

        assert await (await free.enqueue()).result() == 1  # pyright: ignore[reportUnknownMemberType]
        assert await (await keyed.enqueue({7: 100})).result() == {7: Priced(100)}
        assert await (await pair.enqueue()).result() == (1, "a")

    run_scenario(scenario)


class WithoutText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_without_a_text_is_recorded_anyway(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(retry=Retry(max_attempts=1))
        async def without_text() -> None:
            raise WithoutText

        await harness.start(app.worker())
        job = await without_text.enqueue()
        with pytest.raises(JobFailedError, match="WithoutText"):
            await job.result()
        error = (await job.info()).job.error

        assert error is not None
        assert "cannot be made" in error.message

    run_scenario(scenario)


def test_text_that_no_storage_can_hold_is_recorded_as_far_as_it_goes(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(retry=Retry(max_attempts=1))
        async def odd() -> None:
            current_job().log.info("\ud800 line", more="\0")
            current_job().progress(1, "\udfff")
            raise ValueError("lone \ud800 surrogate and \0")

        await harness.start(app.worker())
        job = await odd.options(tags=["\ud800"]).enqueue()
        with pytest.raises(JobFailedError, match=r"lone \? surrogate and \?"):
            await job.result()
        later = await odd.options(delay="1h").enqueue()
        assert await later.cancel("\ud800")
        detail = await job.info()

        assert (detail.log[0].message, detail.job.progress_note, detail.job.tags) == ("? line", "?", ("?",))
        with pytest.raises(UsageError, match="surrogate"):
            odd.options(id="\ud800").call()

    run_scenario(scenario)


class Buffered(JsonCodec):
    """A codec that returns a buffer instead of bytes, except for small values."""

    def encode(self, value: Any, /) -> bytes:
        data = super().encode(value)
        return data if len(data) < 20 else cast(bytes, bytearray(data))


def test_a_codec_result_that_is_not_bytes_is_refused_and_not_stored(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(codec=Buffered())

        @app.task(name="fourfold")
        async def fourfold(text: str) -> str:
            return 4 * text

        await harness.start(app.worker())
        with pytest.raises(UsageError, match=r"Buffered.encode\(\) must return bytes, not bytearray"):
            fourfold.call("twenty letters and more")
        with pytest.raises(JobFailedError, match="must return bytes, not bytearray"):
            await (await fourfold.enqueue("eleven")).result()
        assert await (await fourfold.enqueue("ten")).result() == 4 * "ten"

    run_scenario(scenario)


class Leaving(JsonCodec):
    """A codec that ends the program at values that it does not accept."""

    def encode(self, value: Any, /) -> bytes:
        if value == "odd":
            raise SystemExit("no such value")
        return super().encode(value)


def test_a_codec_that_exits_over_a_result_fails_the_job_not_the_worker(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(codec=Leaving())

        @app.task(name="give")
        async def give(number: int) -> str:
            return "even" if number % 2 == 0 else "odd"

        await harness.start(app.worker())
        job = await give.enqueue(1)
        with pytest.raises(JobFailedError, match="no such value"):
            await job.result()

        assert ((await job.info()).job.reason, await (await give.enqueue(2)).result()) == ("undecodable", "even")

    run_scenario(scenario)


def test_exits_and_odd_exceptions_of_a_handler_are_outcomes_like_any_other(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(retry=Retry(max_attempts=1))
        async def leave(kind: str) -> None:
            raise {"exit": SystemExit(3), "keyboard": KeyboardInterrupt(), "cancelled": asyncio.CancelledError()}[kind]

        await harness.start(app.worker())
        for kind in ("exit", "keyboard", "cancelled"):
            job = await leave.enqueue(kind)
            with pytest.raises(JobFailedError):
                await job.result()

    run_scenario(scenario)


@pytest.mark.parametrize("code", [None, 0, 3, "no settings"])
def test_an_exit_reads_the_same_in_a_thread_and_in_a_coroutine(run_scenario: RunScenario, code: object) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="coroutine", retry=Retry(max_attempts=1))
        async def coroutine() -> None:
            sys.exit(code)  # type: ignore[arg-type]

        @app.task(name="thread", retry=Retry(max_attempts=1))
        def thread() -> None:
            sys.exit(code)  # type: ignore[arg-type]

        await harness.start(app.worker())
        ends: list[object] = []
        for job in (await coroutine.enqueue(), await thread.enqueue()):
            with pytest.raises(JobFailedError):
                await job.result()
            record = (await job.info()).job
            assert record.error is not None
            assert "HandlerExit" not in record.error.traceback
            ends.append((record.state, record.reason, record.error.type, record.error.message))

        assert ends[0] == ends[1]
        assert ends[0] == (State.FAILED, "exhausted", "SystemExit", "" if code is None else str(code))

    run_scenario(scenario)


@pytest.mark.fault("W-T26")
def test_a_payload_that_cannot_be_read_goes_to_the_dead_letters_at_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="task")
        async def task(number: int) -> None: ...

        for number, payload in enumerate((b"\xff\x00 not json", b'{"number": "x"}', b"[1]", b'{"other": 1}')):
            await harness.storage.enqueue([NewJob(queue="default", id=str(number), task="task", payload=payload)])
        await harness.start(app.worker())
        for number in range(4):
            job = app.job(str(number), task)
            with pytest.raises(JobFailedError):
                await job.result()
            record = (await job.info()).job
            assert (record.reason, record.starts) == ("undecodable", 1)

    run_scenario(scenario)


@pytest.mark.fault("W-T24")
def test_a_job_of_an_unknown_task_waits_for_a_worker_that_knows_it(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        old, new = harness.app(), harness.app()

        @new.task(name="new")
        async def task() -> int:
            return current_job().attempt

        await harness.start(old.worker(), "old")
        job = await task.enqueue()
        await asyncio.sleep(35)
        record = (await job.info()).job

        assert (record.state, record.failures, record.stalls, record.releases) == (State.WAITING, 0, 0, 1)
        assert [event.reason for event in await harness.events_of(JobReleased)] == ["unknown_task"]
        await harness.start(new.worker(), "new")
        assert await job.result() == 1

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"delay": "soon"}, "delay"),
        ({"delay": -1}, "delay"),
        ({"run_at": datetime(2026, 1, 1)}, "run_at"),
        ({"delay": "1s", "run_at": datetime(2026, 1, 1, tzinfo=UTC)}, "contradict"),
        ({"priority": 501}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"queue": ""}, "queue"),
        ({"dely": "1s"}, "dely"),
        ({"run_at": "2026-01-01"}, "run_at = '2026-01-01' is not a datetime"),
        ({"run_at": None}, "run_at"),
        ({"id": 5}, "id = 5 must be a text"),
        ({"id": ""}, "id"),
        ({"queue": 5}, "queue = 5 must be a text"),
        ({"priority": True}, "priority"),
        ({"stall": "30s"}, r"stall = '30s' must be a Stall; write stall=Stall\(interval"),
        ({"timeout": 0}, "timeout = 0 must be longer than zero"),
        ({"timeout": None}, "timeout = None is not a duration"),
        ({"retry": 3}, r"retry = 3 must be a Retry; write retry=Retry\(max_attempts"),
        ({"retry": Retry(on=OSError)}, r"Retry.on cannot be set for one call.*set it on the task"),
        ({"retry": Retry(never=[OSError])}, r"Retry.never cannot be set for one call"),
        ({"retry": Retry(delay=lambda attempt, error: 1)}, r"Retry.delay cannot be set for one call"),
        ({"tags": 5}, r"tags = 5 must be several, in a list; write tags=\["),
        ({"tags": [5]}, "tags has 5, which is not a text"),
        ({"tags": "urgent"}, r"tags = 'urgent' is a single text, not several; write tags=\['urgent'\]"),
    ],
)
def test_an_invalid_call_option_is_refused_before_the_call(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        tasks().options(**options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"retry": 3}, r"retry = 3 must be a Retry; write retry=Retry\(max_attempts"),
        ({"stall": "30s"}, r"stall = '30s' must be a Stall; write stall=Stall\(interval"),
        ({"bogus": 1}, "option 'bogus' is unknown; known are name, queue, retry"),
        ({"queue": 5}, "queue = 5 must be a text"),
        ({"name": 5}, "name = 5 must be a text"),
        ({"name": ""}, "name = '' must be a text"),
        ({"priority": 501}, "priority = 501 must be 500 or less"),
        ({"strict": "yes"}, "strict = 'yes' must be True or False"),
        ({"timeout": "soon"}, "timeout"),
        ({"on_unreachable": ["stop"]}, "on_unreachable"),
    ],
)
def test_an_invalid_task_option_is_refused_before_the_function_is_given(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Tenure("memory://").task(**options)


async def trickle() -> AsyncIterator[int]:
    yield 1


def drip() -> Iterator[int]:
    yield 1


class Streaming:
    async def __call__(self) -> AsyncIterator[int]:
        yield 1


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (5, "5 cannot be called"),
        ("pay", "'pay' cannot be called"),
        (Streaming, "is a class"),
        (trickle, "trickle yields"),
        (drip, "drip yields"),
        (functools.partial(drip), "drip yields"),
        (Streaming(), "Streaming yields"),
        (iter, "wrap it in a function"),
        (tasks(), "is a task already"),
    ],
)
def test_a_function_that_a_worker_cannot_run_is_refused(function: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Tenure("memory://").task(function)


async def add(a: int, b: int) -> int:
    return a + b


def join(left: str, right: str) -> str:
    return left + right


class Multiplier:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    async def __call__(self, number: int) -> int:
        return self.factor * number


class Greeter:
    def __call__(self, name: str) -> str:
        return f"hello {name}"


HERE = __name__


@pytest.mark.parametrize(
    ("function", "name", "args", "is_async", "result"),
    [
        (functools.partial(add, 1), "add", (2,), True, 3),
        (functools.partial(add, b=5), "add", (2,), True, 7),
        (functools.partial(join, right="!"), "join", ("hey",), False, "hey!"),
        (Multiplier(3), "Multiplier", (4,), True, 12),
        (functools.partial(Multiplier(3), 5), "Multiplier", (), True, 15),
        (Greeter(), "Greeter", ("you",), False, "hello you"),
        (staticmethod(join), "join", ("a", "b"), False, "ab"),
        (Greeter().__call__, "Greeter.__call__", ("you",), False, "hello you"),
    ],
)
async def test_partials_and_callable_objects_are_tasks_with_typed_arguments(
    function: Any, name: str, args: tuple[Any, ...], is_async: bool, result: object
) -> None:
    app: Any = Tenure("memory://")
    task = app.task(function)
    async with app.worker():
        job = await task.enqueue(*args)
        outcome = await job.result(timeout=10)

    assert (task.name, task.is_async, outcome) == (f"{HERE}.{name}", is_async, result)
    for place in range(len(args)):
        with pytest.raises(UsageError, match="Expected"):
            task.call(*args[:place], [], *args[place + 1 :])


@pytest.mark.parametrize(
    ("args", "options", "named"),
    [
        ((5,), {}, "storage URL 5 is not a string; use"),
        (("",), {}, "storage URL '' is not supported; use"),
        (("redis://[x",), {}, r"storage URL 'redis://\[x' cannot be read .*; use"),
        (("sqlite://q.db",), {}, "storage URL 'sqlite://q.db' names no file; use"),
        (("sqlite:///:memory:",), {}, "names no file; use"),
        (("sqlite:///q.db?durability=some",), {}, "durability"),
        ((), {"timing": "fast"}, r"timing = 'fast' must be a Timing; write timing=Timing.fast"),
        ((), {"defaults": {}}, r"defaults = {} must be a TaskOptions; write defaults="),
        ((), {"codec": "json"}, "codec = 'json' must have encode"),
        ((), {"name": 5}, "name = 5 must be a text"),
    ],
)
def test_an_app_with_a_bad_address_or_option_is_not_created(
    args: tuple[Any, ...], options: dict[str, Any], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        Tenure(*args, **options)


def test_an_invalid_url_in_the_environment_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_URL", "sqlite://q.db")

    with pytest.raises(UsageError, match="names no file"):
        Tenure()


def test_creating_an_app_imports_no_driver_and_touches_no_file(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from tenure import Tenure\n"
        "Tenure(); Tenure('sqlite:///other.db')\n"
        "assert 'tenure.storage.sqlite.storage' not in sys.modules\n"
        "assert 'tenure.storage.memory.storage' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={}, check=True)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"queues": "reports"}, r"queues = 'reports' is a single text, not several; write queues=\['reports'\]"),
        ({"queues": 5}, r"queues = 5 must be several, in a list; write queues=\["),
        ({"queues": [5]}, "queue = 5 must be a text"),
        ({"queues": []}, "queues is empty"),
        ({"concurrency": "10"}, "concurrency = '10' must be a whole number, 1 or more"),
        ({"concurrency": 1.5}, "concurrency = 1.5 must be a whole number"),
        ({"concurrency": 0}, "concurrency = 0 must be 1 or more"),
        ({"concurrency": True}, "concurrency = True must be a whole number"),
        ({"name": 5}, "name = 5 must be a text"),
        ({"reaper": "no"}, "reaper = 'no' must be True or False"),
        ({"burst": 1}, "burst = 1 must be True or False"),
        ({"election": "4s"}, r"election = '4s' must be a LeaderElection; write election=LeaderElection\("),
        ({"drain": "soon"}, "drain"),
    ],
)
def test_an_option_of_a_worker_without_a_valid_value_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Tenure("memory://").worker(**options)


@pytest.mark.parametrize("owner", [Tenure("memory://"), tasks()], ids=["app", "task"])
@pytest.mark.parametrize(
    ("kind", "scope", "named"),
    [
        ("JobStalled", "once", "'JobStalled' is not an event class.*; use a class such as JobStalled"),
        (print, "once", "is not an event class"),
        (ValueError, "once", "is not an event class"),
        (JobStalled, "all", "scope = 'all' is unknown; use one of 'once', 'every'"),
    ],
)
def test_a_class_that_is_not_an_event_is_refused_before_a_handler(
    owner: Any, kind: Any, scope: str, named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        owner.on(kind, scope=scope)


def test_a_task_accepts_only_job_events_and_callable_handlers() -> None:
    with pytest.raises(UsageError, match="not an event class of jobs"):
        tasks().on(WorkerStarted)
    with pytest.raises(UsageError, match="5 cannot be called"):
        tasks().on(JobStalled)(5)


@pytest.mark.parametrize(
    "calls",
    [5, "abc", [tasks()], [tasks().call(1), tasks()], tasks().call(1)],
    ids=["number", "text", "task", "second", "bare call"],
)
async def test_enqueue_many_refuses_values_that_are_not_calls(calls: Any) -> None:
    with pytest.raises(UsageError, match=r"write (\[task\.call\(1\)|task\.call\(\.\.\.\))"):
        await Tenure("memory://").enqueue_many(calls)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"job_id": ""}, "id = '' must be a text"),
        ({"job_id": 5}, "id = 5 must be a text"),
        ({"job_id": "a", "queue": ""}, "queue = '' must be a text"),
        ({"job_id": "a", "queue": 5}, "queue = 5 must be a text"),
    ],
)
def test_an_invalid_job_id_has_no_handle(options: dict[str, Any], named: str) -> None:
    for owner in (Tenure("memory://"), tasks()):
        with pytest.raises(UsageError, match=named):
            owner.job(**options)


def test_the_task_of_a_handle_is_the_task_itself() -> None:
    with pytest.raises(UsageError, match="task = 'pay' must be a Task; give the task itself"):
        Tenure("memory://").job("a", "pay")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_a_caller_name_or_reason_that_is_not_text_is_refused(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def task() -> None: ...

        job: Any = await task.options(delay="1h").enqueue()
        queue: Any = app.queue("default")
        refused: list[tuple[Callable[[], Any], str]] = [
            (lambda: job.cancel(42), "reason = 42 must be a text"),
            (lambda: job.cancel("x", by=42), "by = 42 must be a text"),
            (lambda: job.redrive(by=42), "by = 42 must be a text"),
            (lambda: queue.pause(by=42), "by = 42 must be a text"),
            (lambda: queue.resume(by=42), "by = 42 must be a text"),
            (lambda: queue.set_stall("30s"), "stall = '30s' must be a Stall"),
        ]
        for verb, named in refused:
            with pytest.raises(UsageError, match=named):
                await verb()

        assert await job.state() is State.DELAYED
        assert await harness.events_of() == []
        await job.cancel("\ud800", by="\0")
        detail = await job.info()
        assert (detail.job.cancel_reason or detail.job.reason, detail.job.state in TERMINAL) == ("?", True)
        assert len(await harness.events_of()) == 1

    run_scenario(scenario)


def test_a_result_of_an_unexpected_type_names_its_job_and_task(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, other = harness.app(), harness.app()

        @app.task(name="count")
        async def count() -> int:
            return 1

        @other.task(name="count")
        async def counted() -> str:
            return "many"

        await harness.start(other.worker())
        job = await count.options(id="a").enqueue()
        with pytest.raises(UsageError, match=r"job a of task 'count' is completed.*Expected `int`, got `str`; fix"):
            await job.result()

        assert await job.state() is State.COMPLETED
        assert await app.job("a").result() == "many"

    run_scenario(scenario)


class LostAnswer(MemoryStorage):
    """Stores the jobs and loses the first answer."""

    lost = False
    error = StorageUnavailableError("the answer was lost")

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        receipts = await super().enqueue(jobs)
        if not self.lost:
            self.lost = True
            raise self.error
        return list(receipts)


async def test_an_enqueue_that_fails_names_the_ids_with_which_it_can_be_repeated() -> None:
    app = Tenure(storage=LostAnswer())

    @app.task
    async def task(number: int) -> None: ...

    with pytest.raises(StorageUnavailableError, match="the answer was lost") as raised:
        await task.enqueue(1)
    [job_id] = raised.value.job_ids
    job = await task.options(id=job_id).enqueue(1)

    assert f"'{job_id}'" in raised.value.__notes__[0]
    assert (job.id, job.created) == (job_id, False)


async def test_many_that_fail_can_be_enqueued_again_as_they_are() -> None:
    storage = LostAnswer()
    app = Tenure(storage=storage)

    @app.task
    async def task(number: int) -> None: ...

    calls = [task.call(number) for number in range(5)]
    with pytest.raises(StorageUnavailableError) as raised:
        await app.enqueue_many(calls)
    jobs = await app.enqueue_many(calls)

    assert raised.value.job_ids == tuple(job.id for job in jobs)
    assert "and 2 more" in raised.value.__notes__[0]
    assert not any(job.created for job in jobs)
    # The storage may raise one error for several callers; the ids of one caller do not concern the others.
    assert storage.error.job_ids == ()


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("", "sqlite:///"),
        ("mysql://x", "mysql"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///a.db?durability=perhaps", "durability"),
        ("sqlite:///a.db?fast=yes", "fast"),
        ("memory://?x=1", "x"),
        ("redis://[x", "cannot be read"),
        ("sqlite://q.db", "names no file"),
        ("sqlite:///:memory:", "names no file"),
    ],
)
def test_a_bad_url_is_refused_naming_it_and_the_remedy(url: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        locate(url)


async def test_a_file_that_is_not_a_database_is_refused_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary, " * 100)
    app = Tenure(f"sqlite:///{path}")

    with pytest.raises(SchemaMismatchError):
        await app.opened()
    await app.close()

    assert path.read_text() == "dear diary, " * 100


def test_a_task_is_defined_once_and_found_by_name() -> None:
    app = Tenure("memory://")

    @app.task(name="one")
    async def one() -> None: ...

    with pytest.raises(UsageError, match="twice"):
        app.task(name="one")(one.function)
    with pytest.raises(UnknownTaskError, match="two"):
        app.find_task("two")
    assert app.find_task("one") is one


async def test_a_sync_call_within_a_running_loop_is_refused() -> None:
    with pytest.raises(UsageError, match="await enqueue"):
        tasks().enqueue_sync(1)
