"""Messages between a supervisor and its children, in parts of any size."""

import tracemalloc

import pytest

from tenure.worker.supervisor_messages import (
    LONGEST,
    ChildLeaving,
    ChildMessage,
    ChildStarted,
    MessageReader,
    encode_message,
)

SAID: list[ChildMessage] = [ChildStarted("sqlite:////a/b.db", 0.5, 60.0), ChildLeaving(dismissed=True), ChildLeaving()]


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_messages_in_pieces_of_any_size_are_read_in_order(size: int) -> None:
    line, reader = b"".join(map(encode_message, SAID)), MessageReader()

    heard = [message for start in range(0, len(line), size) for message in reader.feed(line[start : start + size])]

    assert heard == SAID


@pytest.mark.parametrize(
    "nonsense",
    [b"good morning", b"{}", b'{"say": "hello"}', b'{"say": "hello", "url": 7}', b'{"say": "sing"}', b"\xff"],
)
def test_an_invalid_message_is_ignored_and_the_next_one_is_read(nonsense: bytes) -> None:
    assert MessageReader().feed(nonsense + b"\n" + encode_message(ChildLeaving())) == [ChildLeaving()]


def test_a_hello_with_only_the_address_of_the_jobs_is_valid() -> None:
    [hello] = MessageReader().feed(b'{"say": "hello", "url": "redis://here"}\n')

    assert hello == ChildStarted("redis://here")


def test_an_endless_message_is_dropped_and_later_ones_are_read() -> None:
    reader = MessageReader()
    tracemalloc.start()
    for _ in range(100):
        assert reader.feed(b"x" * LONGEST) == []
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert kept < 3 * LONGEST
    assert reader.feed(b"\n" + encode_message(ChildLeaving())) == [ChildLeaving()]
