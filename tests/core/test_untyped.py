"""Which values an untyped position accepts, and how others are refused."""

import math
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, NamedTuple, TypedDict, cast
from uuid import UUID

import pytest
from msgspec import Struct

from tenure import JsonCodec, Tenure, UsageError
from tenure.client.untyped import check_of


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    YES = "yes"


@dataclass
class Point:
    x: int


class Pair(NamedTuple):
    one: int
    two: int


class Two(NamedTuple):
    a: int
    b: int


class Doc(Struct):
    name: str
    meta: dict[str, Any]
    inner: "Doc | None" = None


class Typed(TypedDict):
    share: float | None


app = Tenure("memory://")


async def takes(value: Any, *more: Any, **named: Any) -> None: ...


async def takes_dict(value: dict[Any, Any]) -> None: ...


takes.__annotations__.clear()
takes_dict.__annotations__["value"] = dict
free: Any = app.task(takes)
bare: Any = app.task(takes_dict)


@app.task
async def typed(
    day: datetime,
    money: Decimal,
    keys: dict[int, str],
    colour: Colour,
    point: Point,
    seen: set[int],
    doc: Doc,
    raw: bytes,
) -> None: ...


@app.task
async def shares(share: float, maybe: float | None = None, several: list[float | None] | None = None) -> None: ...


@app.task
async def documents(doc: Doc, others: list[Doc] | None = None, typed: Typed | None = None) -> None: ...


PLAIN = [None, True, 0, -(10**300), 1.5, -0.0, "text", "☃", [], [1, ["two", None]], {}, {"a": {"b": [1.5, False]}}]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_data_comes_back_equal(value: Any) -> None:
    payload = free.call(value, value, more=value).job.payload
    args, kwargs = free.signature.decode(app.codec, payload)

    assert (args, kwargs) == ((value, value), {"more": value})


def test_tuples_come_back_as_lists() -> None:
    payload = free.call((1, ("two", [(3,)]))).job.payload

    assert free.signature.decode(app.codec, payload) == (([1, ["two", [[3]]]],), {})


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)

CHANGED: list[tuple[Any, str, str]] = [
    (math.nan, "value", "nan, which JSON cannot express"),
    ([1, math.inf], "value[1]", "inf, which JSON cannot express"),
    ({"a": [{"b": -math.inf}]}, "value['a'][0]['b']", "-inf, which JSON cannot express"),
    (b"bytes", "value", "a bytes"),
    ({"seen": {1}}, "value['seen']", "a set"),
    (frozenset(), "value", "a frozenset"),
    ({1: "one"}, "value", "a dict with the key 1, which is an int and not a text"),
    ({"a": {1.5: 0}}, "value['a']", "a dict with the key 1.5"),
    (datetime(2026, 1, 1, tzinfo=UTC), "value", "a datetime"),
    (date(2026, 1, 1), "value", "a date"),
    (timedelta(1), "value", "a timedelta"),
    (Decimal("1.5"), "value", "a Decimal"),
    (UUID(int=1), "value", "an UUID"),
    (Colour.RED, "value", "a member of the enum Colour"),
    (Level.LOW, "value", "a member of the enum Level"),
    (Word.YES, "value", "a member of the enum Word"),
    (Point(1), "value", "the dataclass Point"),
    (Pair(1, 2), "value", "a Pair, a subclass of tuple"),
    (Two(1, 2), "value", "a Two, a subclass of tuple"),
    (OrderedDict(a=1), "value", "an OrderedDict, a subclass of dict"),
    (defaultdict(list), "value", "a defaultdict, a subclass of dict"),
    (Doc("x", {}), "value", "a Doc"),
]


@pytest.mark.parametrize(("value", "path", "what"), CHANGED, ids=lambda value: repr(value)[:30])
def test_a_value_that_would_change_is_refused_with_its_path_and_remedy(value: Any, path: str, what: str) -> None:
    with pytest.raises(UsageError) as raised:
        free.call(value)
    error = str(raised.value)

    assert f"argument {path!r} is {what}" in error
    assert "annotate" in error or "pass another value" in error
    with pytest.raises(UsageError):
        free.call(0, value)
    with pytest.raises(UsageError, match="named"):
        free.call(0, name=value)
    if type(value) is dict:
        with pytest.raises(UsageError):
            bare.call(value)


ANOTHER, ANNOTATE = "pass another value", "annotate the parameter with the type, or pass plain data"


@pytest.mark.parametrize(
    ("value", "path", "remedy"),
    [
        ("\ud800", "value", ANOTHER),
        ({"a": ["\udfff"]}, "value['a'][0]", ANOTHER),
        ({"\ud800": 1}, "value['\\ud800']", ANOTHER),
        ([10**4300], "value[0]", ANOTHER),
        ({"a": {None: 1}}, "value['a']", ANNOTATE),
        ([object()], "value[0]", ANNOTATE),
    ],
    ids=["text", "inner", "key", "integer", "keys", "object"],
)
def test_a_value_that_cannot_be_encoded_is_refused_with_path_and_remedy(value: Any, path: str, remedy: str) -> None:
    with pytest.raises(UsageError) as raised:
        free.call(value)

    assert f"argument {path!r} cannot be encoded" in str(raised.value)
    assert str(raised.value).endswith(remedy)


@pytest.mark.parametrize(
    ("hint", "value"), [(str, "\ud800"), (list[str], ["\udfff"]), (int, 10**4300)], ids=["text", "inner", "integer"]
)
def test_for_a_typed_value_without_encoding_the_remedy_is_another_value(hint: Any, value: Any) -> None:
    async def takes_hint(value: Any) -> None: ...

    takes_hint.__annotations__["value"] = hint
    task: Any = Tenure("memory://").task(takes_hint)
    with pytest.raises(UsageError, match=r"argument 'value' cannot be encoded .*; pass another value$"):
        task.call(value)


@pytest.mark.parametrize(
    "hint",
    [
        int,
        float,
        str,
        bytes,
        None,
        bool | None,
        int | str,
        list[int],
        set[float],
        tuple[int, ...],
        tuple[str, float],
        dict[str, int],
        dict[int, datetime],
        datetime,
        Decimal,
        Colour,
        Point,
        list[Point],
        Point | None,
    ],
    ids=repr,
)
def test_typed_parameters_are_not_checked_a_second_time(hint: Any) -> None:
    assert check_of(hint) is None


def test_a_circular_value_is_refused() -> None:
    with pytest.raises(UsageError):
        free.call(CIRCLE)


def test_annotated_values_are_decoded_unchanged() -> None:
    given: Any = (
        datetime(2026, 1, 1, tzinfo=UTC),
        Decimal("1.5"),
        {1: "one"},
        Colour.RED,
        Point(1),
        {1, 2},
        Doc("x", {}),
        b"raw",
    )

    assert typed.signature.decode(app.codec, typed.call(*given).job.payload)[0] == given


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_refused_with_float_annotations(number: float) -> None:
    message = f"is {number!r}, which JSON cannot express"
    with pytest.raises(UsageError, match=message):
        shares.call(number)
    with pytest.raises(UsageError, match=message):
        shares.call(1.0, number)
    with pytest.raises(UsageError, match=message):
        shares.call(1.0, several=[1.0, None, number])
    with pytest.raises(UsageError, match=message):
        documents.call(Doc("x", {}), typed={"share": number})
    shares.call(1.0, None, [None, 2.0])


def test_untyped_fields_of_typed_values_are_checked_however_deep() -> None:
    good, bad = Doc("x", {"a": (1,)}), Doc("x", {"a": Decimal(1)})

    documents.call(good, [Doc("y", {}, good)])
    with pytest.raises(UsageError, match=r"doc.meta\['a'\].* is a Decimal"):
        documents.call(bad)
    with pytest.raises(UsageError, match=r"others\[1\].inner.meta\['a'\].* is a Decimal"):
        documents.call(good, [good, Doc("y", {}, bad)])


class Keeping(JsonCodec):
    """A codec that supports sets."""

    def encode(self, value: Any, /) -> bytes:
        return super().encode({"set": sorted(cast("set[int]", value))} if type(value) is set else value)

    def decode(self, data: bytes, /) -> Any:
        value: Any = super().decode(data)
        return set[int](value["set"]) if "set" in value else value


def test_a_codec_of_the_app_may_support_more_types() -> None:
    other = Tenure("memory://", codec=Keeping())

    @other.task
    async def keep(value: Any) -> Any: ...

    assert keep.signature.encode_result(other.codec, {3, 1}) == b'{"set":[1,3]}'
    with pytest.raises(UsageError, match="is a Decimal"):
        keep.call(Decimal(1))
