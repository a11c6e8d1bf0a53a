"""Checks of user input: a refusal names the field, shows the value, and names the remedy."""

from collections.abc import Callable

import pytest

from tenure.core.check import LARGEST, flag, named, no_others, of_kind, one_of, remark, several, shown, whole
from tenure.errors import UsageError


class FailingRepr:
    def __repr__(self) -> str:
        raise RuntimeError("not today")


@pytest.mark.parametrize("name", ["a", "a:b/..", "größe 🪢", "x" * 1024])
def test_a_name_is_any_text_of_up_to_a_kilobyte(name: str) -> None:
    assert named(name, field="queue") == name


def test_a_remark_is_kept_as_every_storage_can_hold_it() -> None:
    assert remark("a\0b", field="reason") == "a?b"
    assert remark(None, field="reason") is None


def test_valid_values_are_returned_unchanged() -> None:
    assert whole(0, field="room", least=0) == 0
    assert whole(LARGEST, field="room", least=0) == LARGEST
    assert (flag(True, field="paused"), flag(False, field="paused"), flag(None, field="paused")) == (True, False, None)
    assert one_of("fail", ("fail", "discard"), field="on_expire") == "fail"
    assert one_of(None, ("fail", None), field="on_expire") is None
    assert of_kind(3, int, field="n", remedy="give one") == 3
    assert several(["a", "b"], field="tags") == ("a", "b")
    assert several(iter((1, 2)), field="tags") == (1, 2)
    no_others(["ttl"], ["ttl", "queue"])


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: named("", field="queue"), "queue = '' must be a text of 1 to 1,024 bytes"),
        (lambda: named("ü" * 513, field="queue"), "must be a text of 1 to 1,024 bytes"),
        (lambda: named("a\0", field="queue"), "without NUL"),
        (lambda: named(3, field="queue"), "queue = 3 must be a text"),
        (lambda: remark(3, field="reason"), "reason = 3 must be a text"),
        (lambda: whole(True, field="room", least=0), "room = True must be a whole number, 0 or more"),
        (lambda: whole(1.5, field="room", least=1), "room = 1.5 must be a whole number, 1 or more"),
        (lambda: whole(0, field="max_attempts", least=1, meaning="1 is never again"), "1 or more; 1 is never again"),
        (lambda: whole(LARGEST + 1, field="room", least=0), "must be 2,147,483,647 or less"),
        (lambda: flag("no", field="paused"), "paused = 'no' must be True or False"),
        (lambda: one_of("drop", ("fail", "discard"), field="on_expire"), "unknown; use one of 'fail', 'discard'"),
        (lambda: of_kind("3", int, field="n", remedy="give one"), "n = '3' must be a int; give one"),
        (lambda: several("eu", field="tags"), "tags = 'eu' is a single text, not several; write tags=['eu']"),
        (lambda: several(3, field="tags"), "tags = 3 must be several, in a list"),
        (lambda: no_others(["tll"], ["ttl", "queue"]), "option 'tll' is unknown; known are ttl, queue"),
    ],
)
def test_an_error_has_the_field_the_value_and_the_remedy(check: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        check()

    assert message in str(refused.value)


def test_a_value_is_shortened_and_shown_although_its_repr_fails() -> None:
    assert shown("x" * 100) == "'" + "x" * 56 + "..."
    assert shown(FailingRepr()) == "<FailingRepr>"
