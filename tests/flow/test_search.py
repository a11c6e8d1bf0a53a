"""Search fields as a user sees them: values of arguments become tags, by which jobs are found."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, TypedDict, cast
from uuid import UUID

import pytest
from msgspec import Struct
from pydantic import BaseModel, Field

from tenure import Collect, Debounce, JobFilter, Router, TaskOptions, Tenure, UsageError
from tenure.maintenance.relay import Relay
from tests.flow.conftest import Harness, RunScenario


class Level(Enum):
    GOLD = "gold"


class Price(BaseModel):
    currency: str = Field(alias="cur")


class Sizes(TypedDict, total=False):
    width: int


class Place(Struct):
    city: str | None = None


@dataclass
class Order:
    id: int
    place: Place | None = None
    price: Price | None = None

    @property
    def label(self) -> str:
        return f"#{self.id}"


def tags(search: tuple[str, ...], function: Any, *args: Any, **kwargs: Any) -> tuple[str, ...]:
    """Return the tags of a call of a function as a task."""
    task = cast(Any, Tenure("memory://").task(search=search, name="charge"))(function)
    made: tuple[str, ...] = task.call(*args, **kwargs).job.tags
    return made


async def charge(customer: int | None, order: Order, *, note: Any = None) -> None: ...


def test_values_of_arguments_and_of_their_fields_become_tags() -> None:
    price = Price(cur="EUR")
    search = ("customer", "order.id", "order.place.city", "order.price.currency", "order.label")

    assert tags(search, charge, 7, Order(1234, Place("Rome"), price)) == (
        "customer:7",
        "order.id:1234",
        "order.place.city:Rome",
        "order.price.currency:EUR",
        "order.label:#1234",
    )


def test_none_and_what_a_dict_does_not_have_make_no_tag() -> None:
    search = ("customer", "order.place.city", "note.kind")

    assert tags(search, charge, None, Order(1)) == ()
    assert tags(search, charge, None, Order(1, Place()), note={"other": 1}) == ()
    assert tags(search, charge, None, Order(1), note={"kind": ""}) == ("note.kind:",)


def test_each_scalar_becomes_the_text_that_json_has_for_it() -> None:
    async def report(
        a: bool, b: UUID, c: Decimal, d: date, e: datetime, f: Level, g: Sizes, *, h: str = "usual", **rest: int
    ) -> None: ...

    number, at = UUID(int=7), datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    search = ("a", "b", "c", "d", "e", "f", "g.width", "h", "rest.i")
    expected = (
        "a:true",
        f"b:{number}",
        "c:9.90",
        "d:2026-01-02",
        "e:2026-01-02T03:04:00Z",
        "f:gold",
        "g.width:4",
        "h:usual",
        "rest.i:5",
    )

    assert tags(search, report, True, number, Decimal("9.90"), at.date(), at, Level.GOLD, {"width": 4}, i=5) == expected
    # The same values as plain data have the same tags.
    plain: Any = ("9.90", "2026-01-02", "2026-01-02T03:04:00Z", "gold", {"width": 4})
    assert tags(search, report, True, str(number), *plain, i=5) == expected


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("customr", r"names 'customr', which task 'charge' does not take; did you mean 'customer'\?"),
        ("x", r"names 'x', which task 'charge' does not take; it takes customer, order, note"),
        ("order.idd", r"'order' of task 'charge' has no field 'idd'; did you mean 'id'\?"),
        ("order.place.city.x", r"'order.place.city' of task 'charge' has no fields; write 'order.place.city'"),
        ("order.price.cur", r"'order.price' of task 'charge' has no field 'cur'; it has currency"),
        ("order", r"search = 'order' of task 'charge' is not a text, .*; name one of its fields"),
        ("order.price", r"search = 'order.price' of task 'charge' is not a text, .*; name one of its fields"),
        ("order..id", r"search = 'order..id' has a part without a name"),
        ("", r"search = '' must be a text"),
    ],
)
def test_a_path_that_names_no_value_is_refused_at_definition(search: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tags((search,), charge)


def test_an_argument_that_is_not_a_scalar_is_refused_at_definition() -> None:
    async def collect(weight: float, sizes: list[int], *rest: int) -> None: ...

    for name, message in (("weight", "another argument"), ("sizes", "another argument"), ("rest", r"names \*rest")):
        with pytest.raises(UsageError, match=message):
            tags((name,), collect)
    with pytest.raises(UsageError, match=r"search = 'weight' is a single text"):
        Tenure("memory://").task(search="weight")


@pytest.mark.parametrize(
    ("note", "message"),
    [
        (1.5, r"search field 'note' is 1.5, which is not a text, .* take 'note' out of the task's search"),
        ([1], r"search field 'note' is \[1\], which is not a text"),
        ("x" * 1020, r"'note' makes a tag of 1,025 bytes, and the limit is 1,024; search by another value"),
        ("a\0b", r"search field 'note' makes the tag 'note:a\\x00b', which has NUL or lone surrogates"),
    ],
)
def test_a_value_that_cannot_be_a_tag_is_refused_at_enqueue(note: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tags(("note",), charge, 1, Order(1), note=note)


def test_a_field_of_a_value_without_fields_is_refused_at_enqueue() -> None:
    with pytest.raises(UsageError, match=r"search field 'note.kind' reads 'kind' of 5, which has no such field"):
        tags(("note.kind",), charge, 1, Order(1), note=5)


def test_search_adds_to_the_tags_of_a_call_up_to_their_limit() -> None:
    task = Tenure("memory://").task(search=("customer", "order.id"), name="charge")(charge)

    assert task.options(tags=["vip", "order.id:1"]).call(7, Order(1)).job.tags == ("vip", "order.id:1", "customer:7")
    words = [str(number) for number in range(99)]
    assert len(task.options(tags=words).call(None, Order(1)).job.tags) == 100
    with pytest.raises(UsageError, match=r"would have 101 tags, 2 of them by search, and a job may have 100"):
        task.options(tags=words).call(7, Order(1))


def test_search_is_inherited_and_an_empty_one_ends_that() -> None:
    app = Tenure("memory://", defaults=TaskOptions(search=("customer",)))
    router = Router(defaults=TaskOptions(search=["region"]))

    @app.task
    async def inherits(customer: int) -> None: ...

    @app.task(search=())
    async def without(other: int) -> None: ...

    @router.task
    async def routed(region: str) -> None: ...

    app.include(router)
    assert [call.job.tags for call in (inherits.call(7), without.call(7), routed.call("eu"))] == [
        ("customer:7",),
        (),
        ("region:eu",),
    ]


def test_a_task_that_collects_has_no_search_fields() -> None:
    async def index(items: list[int]) -> None: ...

    with pytest.raises(UsageError, match="search and collect contradict each other"):
        Tenure("memory://").task(collect=Collect(delay="1s"), search=("item",))(index)


def test_jobs_of_every_way_to_enqueue_are_found_by_their_values(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(search=("customer",), debounce=Debounce("{group}", delay="1h"))
        async def notify(customer: int, group: str) -> None: ...

        one = await notify.enqueue(1, "a")
        many = await app.enqueue_many([notify.call(2, "b"), notify.call(3, "c")])
        await app.schedules.put("hourly", notify.call(4, "d"), every="1h")
        triggered = await app.schedules.trigger("hourly")
        assert (await notify.enqueue(5, "a")).id == one.id

        async def found(customer: int) -> list[str]:
            return [row.id async for row in app.jobs.list(JobFilter(tags=[f"customer:{customer}"]))]

        # A debounced job has the tags of its latest call.
        assert [await found(customer) for customer in (1, 2, 3, 4, 5)] == [
            [],
            [many[0].id],
            [many[1].id],
            [triggered.id],
            [one.id],
        ]

    run_scenario(scenario)


@pytest.mark.parametrize("queue", ["sqlite", "memory"])
async def test_a_call_in_a_users_transaction_has_the_tags_of_its_search_fields(queue: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    app = Tenure(url) if queue == "sqlite" else Tenure("memory://", outbox=url)

    @app.task(search=("customer",))
    async def notify(customer: int) -> None: ...

    async with app:
        with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
            job = await notify.options(tx=connection).enqueue(7)
            connection.commit()
        if app.outbox is not None:
            await Relay(app.runtime()).turn()
        page = await app.jobs.page(JobFilter(tags=["customer:7"]))

        assert [row.id for row in page.jobs] == [job.id]


def test_a_synchronous_call_has_the_tags_of_its_search_fields() -> None:
    app = Tenure("memory://")

    @app.task(search=("customer",))
    def notify(customer: int) -> None: ...

    assert notify.enqueue_sync(7).info_sync().job.tags == ("customer:7",)
