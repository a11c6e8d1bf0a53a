"""The filter of jobs that people write: what each term selects, and which mistakes name which position."""

import pickle
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenure.core.filter_text import LONGEST, FilterTextError, JobConditions, NamePattern, parse_filter, pattern_of
from tenure.core.lifecycle import State

SECOND = 1_000_000


def name(text: str) -> NamePattern:
    return NamePattern(text)


@pytest.mark.parametrize(
    ("text", "conditions"),
    [
        ("", {}),
        ("  \n ", {}),
        ("state:failed,expired", {"states": (State.FAILED, State.EXPIRED)}),
        ("state:failed,failed", {"states": (State.FAILED,)}),
        ("queue:mail,pay.*", {"queues": (name("mail"), NamePattern("pay.*", glob=True))}),
        ('queue:"pay.*"', {"queues": (name("pay.*"),)}),
        ('task:"a \\"b\\", c\\\\",d', {"tasks": (name('a "b", c\\'), name("d"))}),
        ("tag:vip  tag:new", {"tags": ("vip", "new")}),
        ("customer:7 order.id:8", {"tags": ("customer:7", "order.id:8")}),
        ("order:7 region:eu page:3 task_id:4", {"tags": ("order:7", "region:eu", "page:3", "task_id:4")}),
        ("tag:stat:x", {"tags": ("stat:x",)}),
        ('tag:"stat:x"', {"tags": ("stat:x",)}),
        ("key:account:9", {"keys": (name("account:9"),)}),
        ("reason:crashed", {"reasons": ("crashed",)}),
        ("error:*Error", {"errors": (NamePattern("*Error", glob=True),)}),
        ("fault:0123456789ab", {"faults": ("0123456789ab",)}),
        ("owner:web-3", {"owners": (name("web-3"),)}),
        ("schedule:nightly", {"schedules": (name("nightly"),)}),
        ("id:a*b", {"id": "a*b"}),
        ("age:>1h", {"older": 3600 * SECOND}),
        ("age:<1h age:>1m", {"younger": 3600 * SECOND, "older": 60 * SECOND}),
        ("ended:<10m ended:>1.5s", {"ended_within": 600 * SECOND, "ended_before": 1_500_000}),
    ],
)
def test_a_filter_has_its_conditions(text: str, conditions: dict[str, Any]) -> None:
    assert parse_filter(text) == JobConditions(**conditions)


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("failed", 1, "'failed' is not a term; write FIELD:VALUE"),
        ("  failed", 3, "is not a term"),
        (":x", 1, "is not a term"),
        ('"state":x', 1, "is not a term"),
        ("state:", 7, "state: has no value here"),
        ("state:failed,", 14, "state: has no value here"),
        ("state:,failed", 7, "has no value here"),
        ("state:faild", 7, "did you mean 'failed'? Use one of delayed,"),
        ("queue:x state:failed,x", 22, "state 'x' is unknown; use one of"),
        ("reason:crash", 8, "did you mean 'crashed'?"),
        ("tags:x", 1, """field 'tags' is unknown; did you mean 'tag' or 'task'? If it is a tag, write tag:"tags:x\""""),
        *(
            (f"{wrong}:x", 1, f"field {wrong!r} is unknown; did you mean")
            for wrong in ("State", "stat", "sttae", "stage")
        ),
        *(
            (f"{wrong}:x", 1, f"field {wrong!r} is unknown; did you mean")
            for wrong in ("statex", "xstate", "ids", "queues")
        ),
        ("tag:a,b", 7, "write tag:a tag:b"),
        ("customer:7,8", 12, "write customer:a customer:b"),
        ("id:1,2", 6, "id takes one value"),
        ("fault:12", 7, "must be 12 hexadecimal digits"),
        ("state:failed state:failed", 14, "state is given twice; write its values together"),
        ("age:1h", 5, "for less long ago write age:<1h"),
        ("age:>1x", 6, "is not a duration"),
        ("age:>", 6, "is not a duration"),
        ("age:>1h age:>2h", 9, "age:> is given twice"),
        ("age:>1h,<2h", 9, "age takes one value"),
        ('queue:"abc', 7, "this quoted value has no end"),
        ('queue:"abc\\"', 7, "this quoted value has no end"),
        ('queue:a"b"', 8, "is not expected here; separate terms by a space"),
        ('queue:""', 7, "must be a text of 1 to 1,024 bytes"),
        ("queue:a\0b", 7, "without NUL"),
        ("queue:" + ",".join("a" * 101), 1, "at most 100 values"),
        ("x" * (LONGEST + 1), LONGEST + 1, "more than 4,096 characters"),
    ],
)
def test_a_mistake_in_a_filter_names_its_position(text: str, position: int, message: str) -> None:
    with pytest.raises(FilterTextError) as caught:
        parse_filter(text)

    assert caught.value.position == position
    assert str(caught.value).startswith(f"filter, character {position}: ")
    assert message in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.position) == (str(caught.value), position)


@given(st.text(max_size=80))
@example('a:"')
def test_any_text_is_a_filter_or_a_mistake_at_a_position(text: str) -> None:
    position = 1
    try:
        parse_filter(text)
    except FilterTextError as error:
        position = error.position

    assert 1 <= position <= len(text) + 1


@given(st.text("ab*", max_size=8), st.text("ab", max_size=10))
def test_a_star_stands_for_any_characters(pattern: str, text: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None

    assert pattern_of(pattern).matches(text) is expected


def test_a_pattern_with_many_stars_is_matched_in_linear_time() -> None:
    assert not pattern_of("*a" * 500 + "*b").matches("a" * 100_000)
