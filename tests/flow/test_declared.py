"""Declared tasks: typed like any task, enqueued here and run elsewhere; one declaration for both sides."""

import asyncio
from dataclasses import dataclass
from typing import Any, cast

import pytest

from tenure import (
    Collect,
    DeclaredCollectTask,
    DeclaredTask,
    Inject,
    JobReleased,
    Router,
    State,
    TaskOptions,
    Tenure,
    UnknownTaskError,
    UsageError,
)
from tests.flow.conftest import Harness, RunScenario
from tests.records import record_of


@dataclass
class Receipt:
    number: int


def mail() -> tuple[Router, DeclaredTask[..., Receipt]]:
    """Return what producer and worker share, for one app."""
    router = Router(prefix="mail.", defaults=TaskOptions(queue="mail"))

    @router.declare(name="send", timeout="5m", version=2, since=2)
    async def send(to: str, copies: int = 1) -> Receipt: ...  # type: ignore[empty-body]

    return router, send


def test_a_declared_task_runs_in_the_app_that_implements_it(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        producer, worker = harness.app(), harness.app()
        shared, send = mail()
        producer.include(shared)
        shared, declared = mail()
        worker.include(shared)

        @worker.implement(declared)
        async def deliver(to: str, copies: int = 1) -> Receipt:
            return Receipt(copies)

        await harness.start(worker.worker(), "worker")
        job = await send.enqueue("a@b.example", 3)
        record = await record_of(job)

        assert await job.result() == Receipt(3)
        assert await send.options(wait="1m").enqueue_and_wait("a@b.example") == Receipt(1)
        assert (record.task, record.queue, record.timeout, record.policy.version) == (
            *("mail.send", "mail"),
            *(300_000_000, 2),
        )
        assert producer.job(job.id, send).queue == "mail"
        # The app that implements the task may enqueue it too, by either name.
        for task in (declared, deliver):
            assert await (await task.enqueue("x")).result() == Receipt(1)

    run_scenario(scenario)


def index() -> tuple[Router, DeclaredCollectTask[Receipt, int]]:
    """Return the shared declaration of a task that collects, for one app."""
    router = Router()

    @router.declare(collect=Collect("{item.number}", delay="1s"), name="index", queue="docs")
    async def index(docs: list[Receipt]) -> int: ...  # type: ignore[empty-body]

    return router, index


def test_a_declared_collecting_task_sends_batches_to_the_other_app(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        producer, worker = harness.app(), harness.app()
        shared, declared = index()
        producer.include(shared)
        shared, declared_index = index()
        worker.include(shared)

        @worker.implement(declared_index)
        async def store(docs: list[Receipt], hurry: int = Inject(_haste)) -> int:
            return len(docs)

        first, second = await declared.enqueue(Receipt(1)), await declared.enqueue(Receipt(1))
        other = await declared.enqueue(Receipt(2))
        batch = await declared.collected("1")
        await harness.start(worker.worker())

        assert (first.action, second.action, other.action) == ("created", "collected", "created")
        assert batch is not None
        assert (batch.queue, batch.items) == ("docs", [Receipt(1), Receipt(1)])
        assert [await job.result() for job in (first, second, other)] == [2, 2, 1]
        assert await store([Receipt(1)], hurry=1) == 1
        with pytest.raises(UsageError, match="only declared here"):
            declared(Receipt(1))
        with pytest.raises(UsageError, match="only declared here; register its hook"):
            declared.on_cancel(_no_cancel)
        with pytest.raises(UsageError, match="argument 'docs"):
            await declared.enqueue(cast(Any, "no receipt"))

    run_scenario(scenario)


def test_a_declared_task_that_collects_needs_a_handler_of_a_list() -> None:
    app = Tenure("memory://")
    router, declared = index()
    app.include(router)
    implement: Any = app.implement(declared)

    with pytest.raises(UsageError, match=r"'index' takes .*, and a task that collects takes one list of items"):
        implement(receipt)
    with pytest.raises(UsageError, match="implements task 'index', but it "):
        implement(_takes_texts)
    with pytest.raises(UsageError, match="delay and collect contradict"):
        declared.options(delay=1)
    with pytest.raises(UsageError, match="collect = '1s' must be a Collect"):
        app.declare(name="other", collect=cast(Any, "1s"))


def _no_cancel(docs: list[Receipt]) -> None: ...


async def _haste() -> int:
    return 1


async def _takes_texts(docs: list[str]) -> int:
    return len(docs)


def test_a_worker_leaves_a_task_that_it_only_declares_to_others(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        producer, worker = harness.app(), harness.app()
        shared, send = mail()
        producer.include(shared)

        @producer.task(name="own")
        async def own() -> None: ...

        await harness.start(producer.worker(), "by default")
        job = await send.enqueue("a@b.example")
        await asyncio.sleep(30)
        assert await job.state() is State.WAITING

        await harness.start(producer.worker(queues=["mail"]), "with queues")
        await asyncio.sleep(35)
        record = await record_of(job)
        assert (record.state, record.failures, record.stalls, record.releases) == (State.WAITING, 0, 0, 1)
        assert {event.reason for event in await harness.events_of(JobReleased)} == {"unknown_task"}

        shared, declared = mail()
        worker.include(shared)
        worker.implement(declared)(receipt)
        await harness.start(worker.worker(), "worker")
        assert await job.result() == Receipt(1)

    run_scenario(scenario)


async def receipt(to: str, copies: int = 1) -> Receipt:
    return Receipt(copies)


def test_arguments_of_a_declared_task_are_checked_when_it_is_enqueued() -> None:
    shared, send = mail()
    Tenure("memory://").include(shared)
    loose: Any = send

    with pytest.raises(UsageError, match=r"'mail\.send'.*missing a required argument: 'to'"):
        loose.call()
    with pytest.raises(UsageError, match=r"'mail\.send': argument 'copies'"):
        loose.call("a@b.example", "many")


def test_calling_a_declared_task_raises_an_error_that_says_why_not() -> None:
    shared, send = mail()
    app = Tenure("memory://")
    app.include(shared)

    with pytest.raises(UsageError, match=r"'mail\.send' is only declared here, its handler runs elsewhere; enqueue it"):
        send("a@b.example")
    with pytest.raises(UsageError, match=r"register its hook on the result of @app.implement"):
        send.on_cancel(receipt)
    with pytest.raises(UsageError, match=r"register its migrations on the result of @app.implement"):
        send.migrate(from_version=1)
    assert (app.tasks, list(app.declared), app.find_task("mail.send")) == ({}, ["mail.send"], send)
    with pytest.raises(UnknownTaskError, match=r"did you mean .mail.send.. Known are: mail\.send"):
        app.find_task("mail.fetch")


def test_an_app_that_only_declares_serves_the_default_queue(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        app.declare(name="send", queue="mail")(receipt)
        await harness.start(app.worker())

        assert [worker.queues for worker in (await harness.storage.survey()).workers] == [("default",)]

    run_scenario(scenario)


def test_the_app_that_declares_a_task_may_implement_it() -> None:
    app = Tenure("memory://", defaults=TaskOptions(priority=3))

    @app.declare
    async def count(text: str) -> int: ...  # type: ignore[empty-body]

    @app.implement(count)
    def counted(text: str) -> int:
        return len(text)

    assert (counted.name, counted("abc")) == (count.name, 3)
    assert app.tasks == {count.name: counted}
    assert count.call("a").job.priority == counted.call("a").job.priority == 3


def test_a_router_may_implement_a_task_that_another_declares() -> None:
    for later in (False, True):
        app, handlers = Tenure("memory://"), Router(prefix="handlers.", defaults=TaskOptions(queue="handlers"))
        shared, send = mail()
        app.include(shared)
        if later:
            app.include(handlers)
        made = handlers.implement(send)(receipt)
        if not later:
            app.include(handlers)

        assert app.tasks == {"mail.send": made}
        assert made.queue == "mail"


def test_declarations_and_their_implementation_may_be_included_together() -> None:
    app, outer = Tenure("memory://"), Router(prefix="all.")
    handlers = Router()
    shared, send = mail()
    outer.include(handlers)
    outer.include(shared)
    made = handlers.implement(send)(receipt)
    app.include(outer)

    assert app.tasks == {"all.mail.send": made}
    assert made.migrations.version == 2


def test_an_implementation_may_add_optional_parameters() -> None:
    app = Tenure("memory://")

    def connection() -> int:
        return 1

    @app.declare(name="send")
    async def send(to: str) -> Receipt: ...  # type: ignore[empty-body]

    @app.implement(send)
    async def deliver(to: str, retries: int = 3, db: int = Inject(connection)) -> Receipt:
        return Receipt(retries)

    assert deliver.call("a").job.payload == send.call("a").job.payload


def of(function: Any) -> Any:
    """Return what implements that declaration, in a separate app."""
    app = Tenure("memory://")

    @app.declare(name="send")
    async def send(to: str, *copies: int, subject: str = "") -> Receipt: ...  # type: ignore[empty-body]

    implement: Any = app.implement(send)
    return implement(function)


def without(*copies: int, subject: str = "") -> Receipt:
    raise AssertionError


def listed(to: str, copies: list[int], subject: str = "") -> Receipt:
    raise AssertionError


def strict(to: str, *copies: int, subject: str) -> Receipt:
    raise AssertionError


def retyped(to: bytes, *copies: int, subject: str = "") -> Receipt:
    raise AssertionError


def counted(to: str, *copies: str, subject: str = "") -> Receipt:
    raise AssertionError


def greedy(to: str, *copies: int, subject: str = "", body: str) -> Receipt:
    raise AssertionError


def other(to: str, *copies: int, subject: str = "") -> int:
    raise AssertionError


def loose(to: Any, *copies: Any, subject: Any = None) -> Any:
    raise AssertionError


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (without, "does not take to: str"),
        (listed, r"does not take \*copies: int"),
        (strict, "requires 'subject', which callers may leave out"),
        (retyped, "takes to: bytes, not to: str"),
        (counted, r"takes \*copies: str, not \*copies: int"),
        (greedy, "requires body: str, which is not declared"),
        (other, "returns int, not .*Receipt"),
        (5, "cannot be called"),
    ],
)
def test_an_implementation_that_contradicts_its_declaration_is_refused(function: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        of(function)

    assert of(loose).name == "send"


def test_a_name_is_declared_defined_and_implemented_once() -> None:
    app = Tenure("memory://")
    send = app.declare(name="send")(receipt)

    with pytest.raises(UsageError, match=r"'send' is declared already; define it by @app\.implement"):
        app.task(name="send")(receipt)
    with pytest.raises(UsageError, match="'send' is defined twice"):
        app.declare(name="send")(receipt)
    made = app.implement(send)(receipt)
    with pytest.raises(UsageError, match="'send' is implemented twice"):
        app.implement(send)(receipt)
    with pytest.raises(UsageError, match="is a task already"):
        app.implement(send)(made)
    app.task(name="own")(receipt)
    with pytest.raises(UsageError, match="'own' is defined twice"):
        app.declare(name="own")(receipt)
    assert app.tasks["send"] is made


def test_a_declaration_is_implemented_in_the_app_that_holds_it() -> None:
    app, other_app = Tenure("memory://"), Tenure("memory://")
    send = app.declare(name="send")(receipt)
    _, unincluded = mail()
    loose: Any = app

    with pytest.raises(UsageError, match="'send' is declared in another app; implement it there"):
        other_app.implement(send)(receipt)
    with pytest.raises(UsageError, match=r"'mail\.send' belongs to a router that no app includes yet"):
        app.implement(unincluded)(receipt)
    for wrong in (receipt, app.task(name="own")(receipt)):
        with pytest.raises(UsageError, match=r"must be a DeclaredTask; give the result of @app.declare"):
            loose.implement(wrong)
        with pytest.raises(UsageError, match=r"must be a DeclaredTask; give the result of @app.declare"):
            Router().implement(wrong)  # type: ignore[call-overload]  # pyright: ignore
    assert (list(app.tasks), list(other_app.tasks)) == (["own"], [])


@pytest.mark.parametrize(
    "options", [{"ttt": 1}, {"queue": ""}, {"name": ""}, {"version": 0}, {"version": 1, "since": 2}, {"name": 5}]
)
def test_bad_options_of_a_declaration_are_refused(options: dict[str, Any]) -> None:
    for maker in (Tenure("memory://"), Router()):
        with pytest.raises(UsageError, match=r"ttt|queue|name|version"):
            maker.declare(**options)
