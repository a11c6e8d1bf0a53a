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
def test_characters_that_no_storage_can_hold_become_question_marks(text: str, kept: str) -> None:
    assert storable(text) == kept


@given(st.text(st.characters()))
def test_storable_text_can_be_encoded_and_does_not_change_again(text: str) -> None:
    kept = storable(text)

    assert "\0" not in kept
    assert kept.encode().decode() == kept == storable(kept)
    assert len(kept) == len(text)
