"""What workers publish of their tasks, and what a console without the code of the app knows by it."""

import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import pytest
from msgspec import Meta, Struct
from pydantic import BaseModel

from tenure import Collect, Retry, Tenure
from tenure.client.json_schema import schema_of_arguments, schema_of_result
from tenure.client.publication import SCHEMA_LIMIT, publication
from tenure.client.task import Task
from tenure.core.published import PublishedTask
from tenure.errors import StorageFullError
from tenure.ops.schema_check import PROBLEMS, SchemaProblem, problems
from tenure.ops.task_schemas import argument_problems, published_task
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import Storage
from tenure.testing.clock import ManualClock
from tenure.worker.task_publisher import TaskPublisher
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import FAST, Harness, RunScenario

HOUR = 3_600


class Line(BaseModel):
    sku: str
    count: int = 1


class Invoice(BaseModel):
    number: int


@dataclass
class Order:
    id: int
    lines: list[Line]


class Node(Struct):
    value: int
    next: "Node | None" = None


def shop(app: Tenure, ran: list[Any] | None = None) -> Task[..., Any]:
    """Give an app a task with a plain and a nested argument, and return it."""

    @app.task(name="charge", queue="pay", search=("customer", "order.id", "note"), retry=Retry(max_attempts=7))
    async def charge(customer: int, order: Order, note: str | None = None) -> bool:
        """Charge an order.

        More of it.
        """
        if ran is not None:
            ran.append((customer, order, note))
        return True

    return charge


class RefusingStorage(MemoryStorage):
    """Refuses the first publications with these errors."""

    def __init__(self, errors: Sequence[Exception], **options: Any) -> None:
        super().__init__(**options)
        self.errors = list(errors)
        self.calls: list[bool] = []

    async def publish(self, tasks: Sequence[PublishedTask], *, renewal: bool = False) -> None:
        self.calls.append(renewal)
        if self.errors:
            raise self.errors.pop(0)
        await super().publish(tasks, renewal=renewal)


# ── what is published ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_publishes_its_tasks_when_it_starts(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        shop(app)
        await harness.start(app.worker(queues=["pay"]))
        await harness.until(lambda: is_published(harness.storage))
        task = await published_task(harness.storage, "charge")
        assert task is not None
        assert (task.queue, task.version, task.help, task.search) == (
            "pay",
            1,
            "Charge an order.",
            ("customer", "order.id", "note"),
        )
        assert task.options == {"retry": "max_attempts=7", "search": "customer,order.id,note"}
        assert task.signature.startswith("(customer: int, order: ")
        assert task.arguments is not None
        assert task.arguments["required"] == ["customer", "order"]
        assert task.returns == {"type": "boolean"}
        assert await published_task(harness.storage, "other") is None

    run_scenario(scenario)


def test_the_same_code_has_the_same_digest_and_other_code_another() -> None:
    def digest(**options: Any) -> str:
        app = Tenure("memory://")

        async def charge(customer: int, order: Order) -> bool:
            return True

        cast(Any, app.task(name="charge", **options))(charge)
        return publication(app.find_task("charge"))[0].digest

    assert digest() == digest() != digest(timeout="5m")
    assert digest(fair_key="a", fair_weight=Weight()) == digest(fair_key="a", fair_weight=Weight())


class Weight:
    """A function without a name, whose text has an address."""

    def __call__(self, *args: object, **kwargs: object) -> int:
        return 1


def on_refusing_storage(
    errors: Sequence[Exception], scenario: Callable[[Harness, RefusingStorage], Coroutine[Any, Any, None]]
) -> None:
    """Run a scenario on a storage that refuses the first publications."""

    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = RefusingStorage(errors, clock=clock)
        await scenario(Harness(loop, clock, storage), storage)

    simulate(main)


def test_a_worker_starts_without_its_publication_and_tries_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: Harness, storage: RefusingStorage) -> None:
        app = harness.app(timing=FAST)
        charge = shop(app)
        await harness.start(app.worker(queues=["pay"]))

        assert await (await charge.enqueue(7, Order(8, []))).result()
        assert storage.calls == [False]

        await harness.until(lambda: is_published(storage))

        assert storage.calls == [False, False, False]

    with caplog.at_level(logging.WARNING, "tenure"):
        on_refusing_storage([StorageFullError("full"), RuntimeError("unexpected")], scenario)
    assert [line.getMessage() for line in caplog.records] == [
        "cannot publish the tasks, trying again: StorageFullError('full')"
    ]


async def is_published(storage: Storage) -> bool:
    return await published_task(storage, "charge") is not None


async def test_a_live_worker_renews_its_tasks_and_leaves_those_of_later_workers() -> None:
    clock = ManualClock()
    storage = RefusingStorage([], clock=clock)
    old, new = Tenure("memory://"), Tenure("memory://")
    shop(old)

    @new.task(name="charge", version=2, since=2)
    async def charge(customer: str) -> None: ...

    def publisher(app: Tenure) -> TaskPublisher:
        return TaskPublisher(storage, app.tasks, clock, logging.getLogger("tenure"), seed="a")

    earlier, later = publisher(old), publisher(new)
    await earlier.turn()
    clock.advance(60)
    for _ in range(40):
        assert await later.turn() == HOUR
        assert await earlier.turn() == HOUR
        clock.advance(HOUR)

    assert storage.calls.count(False) == 2
    assert [task.version for task in await storage.published()] == [2]

    # Without a worker of its version, a task is that of the others.
    for _ in range(3):
        await earlier.turn()
        clock.advance(HOUR)

    assert [task.version for task in await storage.published()] == [1]


def test_a_schema_that_is_too_large_or_impossible_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(BaseModel):
        call: Callable[[], int]

    app = Tenure("memory://")

    @app.task(name="large")
    async def large(word: Literal["a"], long: Annotated[int, Meta(description="x" * SCHEMA_LIMIT)]) -> int:
        return 1

    @app.task(name="odd")
    async def odd(value: Odd) -> int:
        return 1

    found = [publication(app.find_task(name)) for name in ("large", "odd")]
    assert [(task.arguments, task.returns) for task, _ in found] == [(None, {"type": "integer"})] * 2
    assert "the schema of its arguments has 65,689 bytes, and the limit is 65,536" in found[0][1][0]
    assert "the schema of its arguments cannot be made: " in found[1][1][0]


# ── schemas ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def schema(function: Any, **options: Any) -> dict[str, Any]:
    task: Any = cast(Any, Tenure("memory://").task(name="task", **options))(function)
    return schema_of_arguments(task.signature)


def test_a_schema_has_the_arguments_as_a_payload_stores_them() -> None:
    async def call(when: datetime, *rest: int, path: Path = Path("/tmp"), odd: Any = None, **more: str) -> None: ...

    assert schema(call) == {
        "type": "object",
        "properties": {
            "when": {"type": "string"},
            "rest": {"type": "array", "items": {"type": "integer"}},
            "path": {"type": "string", "default": "/tmp"},
            "odd": {"default": None},
            "more": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["when"],
        "additionalProperties": False,
    }


def test_the_schema_of_a_task_that_collects_is_that_of_one_item() -> None:
    async def index(docs: list[Line]) -> None: ...

    made = schema(index, collect=Collect(delay="1s"))
    assert (list(made["properties"]), made["required"]) == (["item"], ["item"])
    assert made["properties"]["item"]["title"] == "Line"


def test_models_and_classes_of_one_name_have_definitions_of_their_own() -> None:
    class Order(BaseModel):
        parent: "Order | None" = None
        lines: list[Line] = []

    async def call(mine: Any, again: Any, either: Any, node: Any, theirs: Any) -> None: ...

    Order.model_rebuild(_types_namespace={"Order": Order})
    kinds: tuple[Any, ...] = (Order, Order, Order | Invoice | None, Node, globals()["Order"])
    call.__annotations__.update(zip(("mine", "again", "either", "node", "theirs"), kinds, strict=True))
    made = schema(call)

    assert sorted(name.rpartition(".")[2] for name in made["$defs"]) == ["Line", "Node", "Order", "Order"]
    document = {
        "mine": {"parent": {"lines": [{"sku": "a"}]}},
        "again": {},
        "either": {"number": 7},
        "node": {"value": 1, "next": {"value": 2}},
        "theirs": {"id": 1, "lines": [{"sku": "b"}]},
    }
    assert problems(document, made) == []
    wrong: list[tuple[str, Any, str]] = [
        ("mine", {"parent": {"lines": [{"count": 1}]}}, "/mine/parent/lines/0"),
        ("node", {"value": 1, "next": {"value": "2"}}, "/node/next/value"),
        ("theirs", {"lines": []}, "/theirs"),
        ("either", 7, "/either"),
    ]
    for name, value, pointer in wrong:
        assert [problem.pointer for problem in problems({**document, name: value}, made)] == [pointer]


# ── checks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("schema", "data", "found"),
    [
        ({"type": "integer"}, "7", ("", "'7' is not a whole number")),
        ({"type": "integer"}, True, ("", "True is not a whole number")),
        ({"type": "integer"}, 7.5, ("", "7.5 is not a whole number")),
        ({"type": "integer"}, 7.0, None),
        ({"type": "number"}, 7, None),
        ({"type": ["string", "null"]}, 7, ("", "7 is not a text or null")),
        ({"type": "unheard of"}, 7, None),
        ({"enum": ["a", 1]}, True, ("", "True is unknown; use one of 'a', 1")),
        ({"const": "a"}, "b", ("", "'b' is not 'a'")),
        ({"minimum": 1, "maximum": 3}, 0, ("", "0 must be at least 1")),
        ({"minimum": 1, "maximum": 3}, 4, ("", "4 must be at most 3")),
        ({"exclusiveMinimum": 1}, 1, ("", "1 must be greater than 1")),
        ({"exclusiveMaximum": 1}, 1, ("", "1 must be less than 1")),
        ({"minLength": 2}, "a", ("", "it has 1 characters, and at least 2 are needed")),
        ({"maxItems": 1}, [1, 2], ("", "it has 2 items, and at most 1 are needed")),
        ({"items": {"type": "string"}}, ["a", 7], ("/1", "7 is not a text")),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a", 7], ("/1", "it must be left out")),
        ({"required": ["a"]}, {"b": 1}, ("", "'a' is missing")),
        ({"properties": {"name": {}}, "additionalProperties": False}, {"nam": 1}, ("/nam", "did you mean 'name'")),
        ({"additionalProperties": {"type": "string"}}, {"a/b~c": 1}, ("/a~1b~0c", "1 is not a text")),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 7, ("", "7 is not a text")),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, None, ("", "None fits none of the 2 kinds")),
        ({"oneOf": [{"type": "string"}, {"minimum": 3}]}, 7, None),
        ({"allOf": [{"minimum": 3}, {"maximum": 5}]}, 7, ("", "7 must be at most 5")),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}}, 7, ("", "7 is not a text")),
        ({"$ref": "#/$defs/loop", "$defs": {"loop": {"$ref": "#/$defs/loop"}}}, 7, ("", "nested too deep")),
    ],
)
def test_data_is_checked_against_the_words_of_a_schema(
    schema: dict[str, Any], data: Any, found: tuple[str, str] | None
) -> None:
    named = problems(data, schema)
    assert [problem.pointer for problem in named] == ([] if found is None else [found[0]])
    assert found is None or found[1] in named[0].message


def test_a_check_ends_however_large_and_nested_the_data_is() -> None:
    either = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}
    part = {"type": "object", "properties": {"next": either, "end": {"type": "string"}}}
    nested: dict[str, Any] = {"end": 7}
    for _ in range(40):
        nested = {"next": nested}

    assert "too large or nested too deep" in problems(nested, {**either, "$defs": {"a": part, "b": part}})[-1].message
    assert len(problems(["a"] * 1_000, {"items": {"type": "integer"}})) == PROBLEMS


# ── without the app's code ───────────────────────────────────────────────────────────────────────────────────────────


def test_arguments_are_checked_by_a_published_schema() -> None:
    app = Tenure("memory://")
    task, _ = publication(shop(app))
    lacking: dict[str, Any] = {"customer": "7", "order": {"id": 8, "lines": [{}]}}

    assert argument_problems(task, {"customer": 7, "order": {"id": 8, "lines": [{"sku": "a", "count": 2}]}}) == []
    assert argument_problems(task, lacking) == [
        SchemaProblem("/customer", "'7' is not a whole number"),
        SchemaProblem("/order/lines/0", "'sku' is missing"),
    ]


def test_a_task_whose_keys_need_the_arguments_is_enqueued_by_its_app() -> None:
    app = Tenure("memory://")

    @app.task(name="keyed", concurrency_key="customer:{customer}")
    async def keyed(customer: int) -> None: ...

    @app.task(name="plain", singleton=True)
    async def plain(text: str) -> None: ...

    made = {name: publication(app.find_task(name))[0].job for name in ("keyed", "plain")}
    assert made["keyed"] is None
    assert made["plain"] is not None
    assert made["plain"].keys == plain.call("x").job.keys


def test_the_result_of_a_task_without_an_annotation_has_no_schema() -> None:
    app = Tenure("memory://")

    @app.task
    async def open_ended(a, b=1):  # type: ignore[no-untyped-def]
        ...

    assert schema_of_result(open_ended.signature) is None
    assert schema_of_arguments(open_ended.signature)["properties"] == {"a": {}, "b": {"default": 1}}
