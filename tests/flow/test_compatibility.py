"""Snapshots of task signatures, and which changes would break waiting jobs: for a check in CI."""

import datetime
import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import pytest
from msgspec import Meta, Struct

from tenure import Inject, Router, Tenure, UsageError, incompatible


def seen(function: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Return the snapshot of an app with one task, as read back from a file."""
    app = Tenure("memory://")
    app.task(name="task", **options)(function)
    read: dict[str, Any] = json.loads(json.dumps(app.signatures()))
    return read


def test_a_snapshot_has_name_version_and_parameters_of_every_task() -> None:
    app, router = Tenure("memory://"), Router(prefix="mail.")

    @app.task(name="pay", version=3, since=3)
    async def pay(
        cents: int, /, note: str | None = None, *tags: str, when: datetime.datetime, **more: float
    ) -> None: ...

    @router.declare(name="send")
    async def send(to: Any, db: int = Inject(lambda: 1)) -> None: ...

    app.include(router)

    assert json.loads(json.dumps(app.signatures())) == {
        "mail.send": {"version": 1, "parameters": {"to": {"type": "any", "required": True}}},
        "pay": {
            "version": 3,
            "parameters": {
                "cents": {"type": "int", "required": True},
                "note": {"type": {"any of": ["str", "none"]}},
                "tags": {"type": "str", "gathers": "several"},
                "when": {"type": "datetime", "required": True},
                "more": {"type": "float", "gathers": "named"},
            },
        },
    }


def base(a: int, b: str = "") -> None: ...
def same(b: str = "", *, a: int) -> None: ...
def more(a: int, b: str = "", c: int = 0, *d: int, **e: int) -> None: ...
def optional(a: int = 1, b: str = "") -> None: ...
def wider(a: float | None, b: Any = "") -> None: ...
def collected(a: int, **b: str) -> None: ...
def fewer(a: int) -> None: ...
def kept(a: int, **more: str) -> None: ...
def strict(a: int, b: str) -> None: ...
def added(a: int, c: int, b: str = "") -> None: ...
def retyped(a: str, b: str = "") -> None: ...


@pytest.mark.parametrize("after", [base, same, more, optional, wider])
def test_changes_that_older_jobs_fit_pass(after: Callable[..., Any]) -> None:
    assert incompatible(seen(base), seen(after)) == []


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (fewer, "parameter 'b' was removed"),
        (strict, "parameter 'b' has no default any more"),
        (added, "parameter 'c' is new and has no default"),
        (retyped, "parameter 'a' was int, and is str"),
        (collected, "parameter 'b' collects its arguments in another way"),
        (kept, "parameter 'b' was removed"),
    ],
)
def test_breaking_changes_are_reported_unless_the_version_is_raised(after: Callable[..., Any], message: str) -> None:
    assert incompatible(seen(base), seen(after)) == [f"task 'task': {message}"]
    assert incompatible(seen(base), seen(after, version=2)) == []


def test_a_breaking_change_is_one_that_a_new_worker_cannot_decode() -> None:
    """The verdict on each pair of signatures is the same as a worker's."""
    functions = (base, same, more, optional, wider, collected, fewer, kept, strict, added, retyped)
    calls: dict[Callable[..., Any], list[dict[str, Any]]] = {
        base: [{"a": 1}, {"a": 1, "b": "x"}],
        fewer: [{"a": 1}],
        strict: [{"a": 1, "b": "x"}],
        retyped: [{"a": "x"}, {"a": "x", "b": "y"}],
        optional: [{}, {"a": 1}, {"b": "x"}],
    }
    for before, call in calls.items():
        for after in functions:
            app = Tenure("memory://")
            old, new = app.task(name="old")(before), app.task(name="new")(after)
            payloads = [old.call(**arguments).job.payload for arguments in call]

            assert all(_readable(app, new, payload) for payload in payloads) == (
                incompatible(seen(before), seen(after)) == []
            ), (before, after)


def _readable(app: Tenure, task: Any, payload: bytes) -> bool:
    try:
        task.signature.decode(app.codec, payload)
    except Exception:
        return False
    return True


def test_a_removed_task_or_a_lowered_version_is_reported() -> None:
    old = seen(base, version=3)

    assert incompatible(old, {}) == ["task 'task' was removed: its jobs would wait for a worker that knows it"]
    assert incompatible(old, seen(base, version=2)) == [
        "task 'task' goes back from version 3 to 2: its jobs would wait for newer workers"
    ]
    assert incompatible({}, old) == []


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Shade(enum.Enum):
    RED = "red"
    BLUE = "blue"
    DARK = "dark"


@dataclass
class Address:
    street: str
    zip: str | None = None


@dataclass
class Richer:
    street: str
    zip: str | None = None
    lines: list[str] = field(default_factory=list[str])


@dataclass
class Stricter:
    street: str
    zip: str | None
    country: str


class Open(TypedDict):
    street: str


class Closed(Struct, forbid_unknown_fields=True):
    street: str


class Tagged(Struct, tag="address"):
    street: str


class Row(Struct, array_like=True):
    street: str


class LongRow(Struct, array_like=True):
    street: str
    zip: str


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Node:
    children: list["Node"]


WIDENED: list[tuple[Any, Any]] = [
    (int, float),
    (int, int | None),
    (int | None, None | str | float),
    (list[int], set[int]),
    (set[int], list[float]),
    (tuple[int, int], tuple[float, int | None]),
    (tuple[int, ...], list[int]),
    (Point, tuple[int, int]),
    (dict[str, int], dict[str, float]),
    (Literal["a"], Literal["a", "b"]),
    (Literal["a", "b"], str),
    (Colour, Shade),
    (Colour, str),
    (Address, Richer),
    (Richer, Address),
    (Address, Open),
    (Open, Closed),
    (list[Address], list[Richer]),
    (Node, Node),
    (Annotated[int, Meta(ge=1)], int),
    (Annotated[int, Meta(ge=1, le=9)], Annotated[int, Meta(ge=1)]),
    (Annotated[int, Meta(title="a number")], int),
    (Row, Row),
]
NARROWED: list[tuple[Any, Any]] = [
    (float, int),
    (int | None, int),
    (list[int | None], list[int]),
    (list[int], tuple[int, int]),
    (tuple[int, int], tuple[int, int, int]),
    (dict[str, int], dict[int, int]),
    (Literal["a", "b"], Literal["a"]),
    (Literal["a", 1], str),
    (Shade, Colour),
    (str, Colour),
    (Address, Stricter),
    (Richer, Closed),
    (Open, Tagged),
    (Row, LongRow),
    (Row, Open),
    (int, Annotated[int, Meta(ge=1)]),
    (Annotated[int, Meta(ge=1)], Annotated[int, Meta(ge=2)]),
    (Annotated[int, Meta(ge=1)], str),
    (Any, int),
    (datetime.datetime, datetime.date),
]


def taking(kind: Any) -> Callable[..., Any]:
    def function(value: Any) -> None: ...

    function.__annotations__["value"] = kind
    return function


@pytest.mark.parametrize(("before", "after"), WIDENED)
def test_a_type_may_become_wider(before: Any, after: Any) -> None:
    assert incompatible(seen(taking(before)), seen(taking(after))) == []


@pytest.mark.parametrize(("before", "after"), NARROWED)
def test_a_narrower_parameter_type_is_reported(before: Any, after: Any) -> None:
    [change] = incompatible(seen(taking(before)), seen(taking(after)))

    assert change.startswith("task 'task': parameter 'value' was ")


@pytest.mark.parametrize(
    "wrong", [None, 5, [], {"task": 5}, {"task": {"version": "1", "parameters": {}}}, {"task": {}}]
)
def test_an_invalid_snapshot_is_refused(wrong: Any) -> None:
    with pytest.raises(
        UsageError, match=r"old is not a snapshot of tasks: .*; give the return value of app\.signatures\(\)"
    ):
        incompatible(wrong, {})
    with pytest.raises(UsageError, match="new is not a snapshot"):
        incompatible({}, wrong)
