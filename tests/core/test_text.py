"""Text as every storage can keep it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.text import storable


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", ""),
        ("größe 🪢\n", "größe 🪢\n"),
        ("a\0b", "a?b"),
        ("lone \ud800 surrogate", "lone ? surrogate"),
    ],
)
def test_what_no_storage_can_hold_is_shown_as_a_question_mark(text: str, kept: str) -> None:
    assert storable(text) == kept


@given(st.text(st.characters()))
def test_what_is_storable_can_be_encoded_and_stays_as_it_is(text: str) -> None:
    kept = storable(text)

    assert "\0" not in kept
    assert kept.encode().decode() == kept == storable(kept)
    assert len(kept) == len(text)
