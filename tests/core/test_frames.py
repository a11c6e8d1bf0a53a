"""Frames: many payloads in one, and every truncation is detected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.frames import framed, unframed


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_framed_payloads_are_decoded_whole_and_in_order(payloads: list[bytes]) -> None:
    assert unframed(b"".join(map(framed, payloads))) == payloads


@pytest.mark.parametrize("kept", [1, 3, 4, 6])
def test_a_truncation_is_detected(kept: int) -> None:
    with pytest.raises(ValueError, match=r"frame at byte 6 of"):
        unframed(framed(b"ab") + framed(b"abc")[:kept])
