"""Arguments and results beyond plain data: pydantic models, paths, IP addresses, an app's own types; and refusals."""

import asyncio
import inspect
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import Path, PurePosixPath
from textwrap import dedent
from typing import Annotated, Any, Generic, Literal, NoReturn, Optional, Protocol, TypedDict, TypeVar, Union, cast
from uuid import UUID

import msgspec
import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PrivateAttr, RootModel, SecretStr, computed_field
from pydantic.v1 import BaseModel as OldModel
from typing_extensions import TypeAliasType

from tenure import Collect, JobFailedError, JsonCodec, Router, Tenure, UsageError, incompatible
from tests.flow.conftest import Harness, RunScenario

T = TypeVar("T")


class Line(BaseModel):
    sku: str
    count: int = Field(gt=0)


class Order(BaseModel):
    id: UUID
    at: datetime
    total: Decimal
    day: date | None = None
    lines: list[Line] = []
    tags: set[str] = set()


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    at: datetime
    ids: tuple[UUID, ...]


class Named(BaseModel):
    first: str = Field(alias="firstName")
    last: str = Field(validation_alias=AliasChoices("last_name", "surname"), serialization_alias="family")


class Squared(BaseModel):
    side: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.side**2


class Page(BaseModel, Generic[T]):
    items: list[T]


class Numbers(RootModel[list[int]]):
    pass


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str = "Rex"


class Puppy(Dog):
    weeks: int = 3


class Kennel(BaseModel):
    dog: Dog


Animal = TypeAliasType("Animal", Cat | Dog)
Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


@dataclass
class Shelter:
    cat: Cat
    others: list[Dog]
    where: Path | None = None


class Box(msgspec.Struct):
    order: Order
    host: IPv4Address


class Filed(TypedDict):
    order: Order
    file: Path


class Unsupported(Generic[T]):
    pass


class Opaque:
    """A class that no codec can decode."""


class Readable(Protocol):
    def read(self) -> bytes: ...


class Nested(msgspec.Struct):
    inner: Opaque


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and type(other) is type(self) and other.cents == self.cents

    def __hash__(self) -> int:
        return hash(self.cents)


class Coin(Money):
    pass


def from_money(money: Money) -> int:
    return money.cents


NOON = datetime(2026, 5, 4, 12, 30, 0, 5, tzinfo=UTC)
ORDER = Order(id=UUID(int=7), at=NOON, total=Decimal("9.90"), lines=[Line(sku="a", count=2)], tags={"x", "y", "z"})
NAMED = Named.model_validate({"firstName": "Ada", "surname": "L"})

VALUES: list[tuple[Any, Any]] = [
    (Order, ORDER),
    (Strict, Strict(at=NOON, ids=(UUID(int=1), UUID(int=2)))),
    (Named, NAMED),
    (Squared, Squared(side=3)),
    (Page[Line], Page[Line](items=[Line(sku="a", count=1)])),
    (Numbers, Numbers([1, 2])),
    (list[Order], [ORDER, ORDER]),
    (dict[str, Order], {"a": ORDER}),
    (tuple[Order, int], (ORDER, 1)),
    (tuple[Cat, ...], (Cat(), Cat(lives=8))),
    (set[Strict], cast(Any, set)([Strict(at=NOON, ids=())])),
    (Order | None, ORDER),
    (Order | None, None),
    (Cat | Dog, Dog(name="Bo")),
    (Cat | Dog | None, None),
    (Pet, Cat(lives=1)),
    (list[Pet], [Cat(), Dog()]),
    (dict[str, Cat | Dog], {"a": Dog(), "b": Cat()}),
    (Animal, Dog()),
    (Animal | None, None),
    (list[Animal], [Cat(), Dog()]),
    (Animal | str, "text"),
    (Optional[Pet], Dog()),  # noqa: UP045 - an Annotated has no `|` for pyright
    (Union[Pet, int], Dog()),  # noqa: UP007
    (Order | str, "text"),
    (Order | str, ORDER),
    (Order | list[Order] | None, [ORDER]),
    (Shelter, Shelter(Cat(), [Dog(), Dog(name="Bo")], Path("a/b"))),
    (Box, Box(ORDER, IPv4Address("10.0.0.1"))),
    (list[Box], [Box(ORDER, IPv4Address("10.0.0.1"))]),
    (Filed, {"order": ORDER, "file": Path("/tmp/x")}),
    (Path, Path("/tmp/ä b")),
    (PurePosixPath, PurePosixPath("a/../b")),
    (Path | None, None),
    (dict[Path, int], {Path("a"): 1}),
    (IPv4Address, IPv4Address("10.0.0.1")),
    (IPv6Address, IPv6Address("::1")),
    (IPv4Interface, IPv4Interface("10.0.0.1/8")),
    (IPv6Interface, IPv6Interface("::1/64")),
    (IPv4Network, IPv4Network("10.0.0.0/8")),
    (IPv6Network, IPv6Network("fe80::/64")),
    (IPv4Address | IPv6Address, IPv6Address("::1")),
    (list[IPv4Address | IPv6Address], [IPv4Address("10.0.0.1"), IPv6Address("::1")]),
    (Path | int, 5),
    (Money, Money(5)),
    (list[Money | None], [Money(5), None]),
    (Fraction, Fraction(1, 3)),
    (Fraction | Cat, Cat()),
]


class Deflated(JsonCodec):
    """Deflated JSON: a codec that is not the default."""

    def encode(self, value: Any, /) -> bytes:
        return zlib.compress(super().encode(value))

    def decode(self, data: bytes, /) -> Any:
        return super().decode(zlib.decompress(data))


TYPES: dict[type[Any], Any] = {Money: (from_money, Money), Fraction: (str, Fraction)}


def typed(function: Any, parameter: Any = object, result: Any = object) -> Any:
    """Return a handler with these annotations."""
    function.__annotations__ = {"value": parameter, "return": result}
    return function


def taking(hint: Any, app: Tenure | None = None, **options: Any) -> Any:
    async def take(value: Any) -> None: ...

    owner = app or Tenure("memory://", types=TYPES)
    return cast(Any, owner.task(name="take", **options))(typed(take, hint))


def test_values_arrive_and_return_as_the_annotated_class(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        seen: list[Any] = []
        for codec in (JsonCodec(), Deflated()):
            app = harness.app(types=TYPES, codec=codec)
            tasks: list[Any] = []
            for number, (hint, _) in enumerate(VALUES):

                async def echo(value: Any) -> Any:
                    seen.append(value)
                    return value

                tasks.append(app.task(name=f"echo {number}")(typed(echo, hint, hint)))
            seen.clear()
            worker = app.worker()
            node = await harness.start(worker)
            jobs = [await task.enqueue(value) for task, (_, value) in zip(tasks, VALUES, strict=True)]
            results = [await job.result() for job in jobs]
            await harness.stop(node, worker)

            for (_, value), result, arrived in zip(VALUES, results, sorted_like(seen, VALUES), strict=True):
                assert result == value == arrived
                assert type(result) is type(value) is type(arrived)

    run_scenario(scenario)


def sorted_like(seen: list[Any], values: list[tuple[Any, Any]]) -> list[Any]:
    """Return the arrived values in the order of the sent ones."""
    left = list(seen)
    return [left.pop(next(place for place, item in enumerate(left) if item == value)) for _, value in values]


def test_a_model_in_args_kwargs_and_defaults_arrives_as_a_model(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        seen: list[Any] = []

        @app.task(name="many")
        async def many(*several: Cat, dog: Dog = Dog(name="default"), **named: Path) -> None:  # noqa: B008
            seen.append((several, dog, named))

        await harness.start(app.worker())
        await (await many.enqueue(Cat(), Cat(lives=2), here=Path("a"))).result()
        await (await many.enqueue(dog=Dog())).result()

        assert seen == [((Cat(), Cat(lives=2)), Dog(name="default"), {"here": Path("a")}), ((), Dog(), {})]

    run_scenario(scenario)


def test_collected_items_arrive_as_models(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        seen: list[list[Line]] = []

        @app.task(name="index", collect=Collect(delay="1s", key="{item.sku}"))
        async def index(lines: list[Line]) -> None:
            seen.append(lines)

        first = await index.enqueue(Line(sku="a", count=1))
        await index.enqueue(Line(sku="a", count=2))
        batch = await index.collected("a")
        assert batch is not None
        assert batch.items == [Line(sku="a", count=1), Line(sku="a", count=2)]
        await harness.start(app.worker())
        await first.result()

        assert seen == [[Line(sku="a", count=1), Line(sku="a", count=2)]]

    run_scenario(scenario)


def test_a_schedule_creates_jobs_with_a_model(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        seen: list[Cat] = []

        @app.every("10s", args=[Cat(lives=3)])
        async def feed(cat: Cat) -> None:
            seen.append(cat)

        await harness.start(app.worker())
        while not seen:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(1)

        assert seen[0] == Cat(lives=3)

    run_scenario(scenario)


def test_migrations_see_plain_data_and_the_result_is_validated(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        old, new = harness.app(), harness.app()

        @old.task(name="feed")
        async def feed(cat: Cat) -> None: ...

        before = [await feed.enqueue(Cat(lives=lives)) for lives in (1, -1)]

        @new.task(name="feed", version=2)
        async def feed_dog(dog: Dog) -> str:
            return dog.name

        @feed_dog.migrate(from_version=1)
        def to_dog(arguments: dict[str, Any]) -> dict[str, Any]:
            lives = arguments["cat"]["lives"]
            return {"dog": {"name": "Rex"} if lives > 0 else {"name": lives}}

        await harness.start(new.worker())

        assert await new.job(before[0].id, feed_dog).result() == "Rex"
        with pytest.raises(JobFailedError, match="undecodable"):
            await before[1].result()

    run_scenario(scenario)


def test_a_model_that_the_worker_does_not_accept_is_undecodable(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        class Narrow(BaseModel):
            lives: int = Field(le=7)

        old, new = harness.app(), harness.app()
        job = await taking(Cat, old).enqueue(Cat(lives=9))
        taking(Narrow, new)
        await harness.start(new.worker())
        with pytest.raises(JobFailedError) as raised:
            await job.result()
        detail = await job.info()

        assert (raised.value.reason, detail.job.starts, detail.job.failures) == ("undecodable", 1, 1)
        assert detail.job.error is not None
        assert "lives: Input should be less than or equal to 7" in detail.job.error.message

    run_scenario(scenario)


def test_equal_models_have_one_unique_key(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        take = taking(Order, harness.app(), unique=True)
        tags = [str(number) for number in range(50)]
        first = ORDER.model_copy(update={"tags": set(tags)})
        backwards = tags[::-1]
        second = ORDER.model_copy(update={"tags": set(backwards)})
        other = ORDER.model_copy(update={"tags": set(tags[1:])})

        assert [(await take.enqueue(order)).action for order in (first, second, other)] == [
            "created",
            "duplicate",
            "created",
        ]

    run_scenario(scenario)


@pytest.mark.thorough
def test_a_digest_is_the_same_in_every_process() -> None:
    code = """
        from pydantic import BaseModel
        from tenure import Tenure

        class Tagged(BaseModel):
            tags: set[str]
            more: dict[str, frozenset[str]] = {}

        app = Tenure("memory://")

        @app.task(name="take", unique=True)
        def take(value: Tagged) -> None: ...

        words = [str(number) for number in range(50)]
        print(take.call(Tagged(tags=set(words), more={"a": frozenset(words)})).job.merge.key)
    """
    keys = {run(code, PYTHONHASHSEED=seed) for seed in ("1", "2", "3")}

    assert len(keys) == 1


def test_a_key_can_be_made_of_a_field() -> None:
    call = taking(Cat, unique="cat:{value.lives}").call(Cat(lives=3))

    assert call.job.merge.key == "cat:3"


class Word(RootModel[str]):
    pass


@pytest.mark.parametrize(
    ("hint", "plain", "other"),
    [
        (Fraction | str, "1/2", None),
        (Fraction | int, 5, Fraction(1, 2)),
        (Word | str, "a", None),
        (Word | int, 5, Word("a")),
    ],
)
def test_a_plain_value_of_a_union_arrives_as_it_is(
    run_scenario: RunScenario, hint: Any, plain: Any, other: Any
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(types={Fraction: (str, Fraction)})

        async def take(value: Any) -> str:
            return repr(value)

        take.__annotations__["value"] = list[hint]
        task = app.task(name="take")(take)
        await harness.start(app.worker())
        values = [plain] if other is None else [plain, other]

        assert await task.enqueue_and_wait(values) == repr(values)
        if other is None:
            with pytest.raises(UsageError, match="would come back as"):
                task.call([Fraction(1, 2) if hint == Fraction | str else Word("a")])

    run_scenario(scenario)


# ── refused when a call is made ───────────────────────────────────────────────────────────────────────────────────


class Login(BaseModel):
    user: str
    password: SecretStr


class Hidden(BaseModel):
    name: str
    token: str = Field(default="", exclude=True)


class Required(BaseModel):
    token: str = Field(exclude=True)


class Private(BaseModel):
    name: str
    _cache: int = PrivateAttr(default=0)


def private() -> Private:
    model = Private(name="a")
    model._cache = 5  # pyright: ignore[reportPrivateUsage]
    return model


class Measured(BaseModel):
    value: float


REFUSED: list[tuple[Any, Any, str]] = [
    (Login, Login(user="a", password=SecretStr("hush")), "value.password is of the class SecretStr"),
    (list[Login], [Login(user="a", password=SecretStr("hush"))], r"value[0].password is of the class SecretStr"),
    (Hidden, Hidden(name="a", token="t"), "value.token is 't', and would come back as ''"),
    (Required, Required(token="t"), "token: Field required"),
    (Private, private(), "value has private attributes (_cache)"),
    (Dog, Puppy(), "value is of the class Puppy, and would come back as Dog"),
    (dict[str, Dog], {"a": Puppy()}, "value['a'] is of the class Puppy, and would come back as Dog"),
    (Cat | Dog, Puppy(), "value is of the class Puppy, and would come back as Dog"),
    (Kennel, Kennel(dog=Puppy()), "value.dog is of the class Puppy, and would come back as Dog"),
    (Shelter, Shelter(Cat(), [Dog(), Puppy()]), "value.others[1] is of the class Puppy"),
    (Measured, Measured(value=float("nan")), "value: Input should be a valid number"),
    (Money, Coin(5), "value is of the class Coin, and would come back as"),
    (Line, Line.model_construct(sku="a", count="many"), "count: Input should be a valid integer"),
    (Line, {"sku": "a"}, "count: Field required"),
    (Path, 5, "a Path is encoded as text, not as 5"),
    (IPv4Address, "10.0.0.300", "not permitted"),
]


@pytest.mark.parametrize(("hint", "value", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_a_value_that_would_not_come_back_equal_is_refused_at_enqueue(hint: Any, value: Any, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        taking(hint).call(value)

    assert "'take'" in str(raised.value)
    assert message in str(raised.value)
    assert "hush" not in str(raised.value)


def test_a_hidden_part_at_its_default_is_accepted() -> None:
    taking(Hidden).call(Hidden(name="a"))
    taking(Private).call(Private(name="a"))


def test_a_result_that_would_not_come_back_equal_fails_its_job(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="login")
        async def login() -> Login:
            return Login(user="a", password=SecretStr("hush"))

        @app.task(name="dog")
        async def dog() -> Dog:
            return Puppy()

        await harness.start(app.worker())
        for task, message in ((login, "result.password is of the class SecretStr"), (dog, "result is of the class")):
            job = await task.enqueue()
            with pytest.raises(JobFailedError) as raised:
                await job.result()
            record = (await job.info()).job
            assert (raised.value.reason, record.starts) == ("undecodable", 1)
            assert record.error is not None
            assert message in record.error.message
            assert "hush" not in record.error.message

    run_scenario(scenario)


def test_a_model_without_an_annotation_is_refused_with_the_annotation() -> None:
    with pytest.raises(UsageError, match=r"argument 'value' cannot be encoded .*annotate the parameter"):
        taking(Any).call(ORDER)


# ── refused when a task is defined ────────────────────────────────────────────────────────────────────────────────


class Ancient(OldModel):
    a: int


UNDECODABLE: list[tuple[Any, str]] = [
    (Opaque, "is of type Opaque, which cannot be decoded; use plain data, a dataclass"),
    (Opaque, "Tenure(types={Opaque: (to_plain, from_plain)})"),
    (list[Opaque], "is of type Opaque"),
    (Opaque | None, "is of type Opaque"),
    (Opaque | str, "is of type Opaque"),
    (Nested, "is of type Opaque"),
    (list[Nested], "is of type Opaque"),
    (Readable, "is of type Readable"),
    (Unsupported[int], "is of type Unsupported"),
    (Callable[[], int], "is of type Callable"),
    (Iterable[int], "is of type Iterable, which cannot be decoded; write list[...]"),
    (complex, "is of type complex"),
    (Coin, "is of type Coin"),
    (Ancient, "is of type Ancient, a model of pydantic 1, which is not supported; make it a model of pydantic 2"),
    (list[Ancient], "a model of pydantic 1"),
    (Cat | Ancient, "a model of pydantic 1"),
    (Shelter | Filed, "cannot be decoded: Type unions may not contain more than one dict-like type"),
    (Path | str, "several of these types are encoded as text"),
    (Path | PurePosixPath, "several of these types are encoded as text"),
    (IPv4Address | datetime, "several of these types are encoded as text"),
    (Cat | dict[str, int], "several of these types are encoded as a dict"),
    (Cat | Shelter, "several of these types are encoded as a dict"),
]


@pytest.mark.parametrize(("hint", "message"), UNDECODABLE, ids=lambda value: str(value)[:40])
def test_a_type_that_cannot_be_decoded_is_refused_with_the_task(hint: Any, message: str) -> None:
    async def give() -> Any: ...

    app = Tenure("memory://", types=TYPES)
    with pytest.raises(UsageError) as taken:
        taking(hint, app)
    with pytest.raises(UsageError) as given:
        app.task(name="give")(typed(give, result=hint))
    with pytest.raises(UsageError):
        app.declare(name="give")(typed(give, result=hint))

    assert "task 'take': parameter 'value'" in str(taken.value)
    assert "task 'give': the result" in str(given.value)
    assert message in str(taken.value)
    assert message in str(given.value)
    assert not app.tasks


def test_a_routers_types_are_those_of_the_app_that_includes_it() -> None:
    router, other = Router(), Router()
    for each in (router, other):
        taking(Money, cast(Any, each))

    Tenure("memory://", types=TYPES).include(router)
    with pytest.raises(UsageError, match="parameter 'value' is of type Money"):
        Tenure("memory://").include(other)


def test_an_annotation_that_cannot_be_read_is_refused() -> None:
    async def take(value: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore

    async def give(value: int) -> "Missing": ...  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore

    app = Tenure("memory://")
    with pytest.raises(UsageError, match="parameter 'value' is annotated 'Missing', which cannot be read at run time"):
        app.task(take)  # pyright: ignore
    with pytest.raises(UsageError, match="the result is annotated 'Missing', which cannot be read at run time"):
        app.task(give)  # pyright: ignore


def test_an_annotation_of_a_decorators_own_signature_is_used() -> None:
    async def take(*args: Any) -> None: ...

    shape = inspect.Parameter("value", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Cat)
    cast(Any, take).__signature__ = inspect.Signature([shape])
    task: Any = Tenure("memory://").task(take)

    assert task.signature.decode(JsonCodec(), task.call(Cat()).job.payload)[0] == (Cat(),)


def test_a_handler_that_never_returns_is_accepted() -> None:
    async def stop() -> Any: ...

    Tenure("memory://").task(typed(stop, result=NoReturn))


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (5, "types = 5 is not a dict"),
        ({"Money": (str, Money)}, "types has 'Money', which is not a class"),
        ({Money: Money}, "is not a pair of functions"),
        ({Money: (str, 5)}, "is not a pair of functions"),
        ({int: (str, int)}, "types has int, which is encoded without functions"),
        ({Shelter: (str, int)}, "types has Shelter, which is encoded without functions"),
    ],
    ids=str,
)
def test_a_wrong_table_of_types_is_refused(types: Any, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        Tenure("memory://", types=types)

    assert message in str(raised.value)


def test_a_function_of_the_app_that_raises_names_the_argument() -> None:
    def broken(money: Money) -> int:
        raise LookupError("no rate")

    with pytest.raises(UsageError, match=r"argument 'value' cannot be encoded .*no rate"):
        taking(Money, Tenure("memory://", types={Money: (broken, Money)})).call(Money(1))


# ── compatibility ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_change_of_a_model_that_breaks_jobs_is_found() -> None:
    def shape(**fields: Any) -> dict[str, Any]:
        model = type(
            "Order", (BaseModel,), {"__annotations__": fields, **{name: None for name in fields if name == "x"}}
        )
        app = Tenure("memory://")
        taking(model, app)
        return app.signatures()

    assert incompatible(shape(a=int), shape(a=int, x=int | None)) == []
    assert incompatible(shape(a=int), shape(a=int | str)) == []
    assert incompatible(shape(a=int), shape(a=int, b=int)) != []
    assert incompatible(shape(a=int), shape(a=str)) != []


# ── pydantic is optional ──────────────────────────────────────────────────────────────────────────────────────────


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_app_without_models_does_not_import_pydantic() -> None:
    code = """
        import sys
        from dataclasses import dataclass
        from pathlib import Path
        from tenure import Tenure

        @dataclass
        class Point:
            x: int

        app = Tenure("memory://")

        @app.task(unique=True)
        async def take(point: Point, path: Path | None = None) -> Point:
            return point

        async def main():
            async with app, app.worker():
                assert await take.enqueue_and_wait(Point(1), Path("a")) == Point(1)

        import asyncio
        asyncio.run(main())
        print([name for name in sys.modules if name.startswith("pydantic")])
    """

    assert run(code) == "[]\n"
