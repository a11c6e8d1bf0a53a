"""The bytes to and from a server: the same with hiredis and without."""

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import InvalidResponse, RedisError, ResponseError

from tenure.storage.redis.resp import (
    INCOMPLETE,
    PythonReplyParser,
    Reply,
    ReplyParser,
    Word,
    packed,
    packed_after,
    plainly_packed,
    reader,
)

READERS = [reader, PythonReplyParser]
"""With hiredis installed, as in these tests, the first reader is hiredis."""

replies = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=12,
)


def said(reply: object) -> bytes:
    match reply:
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case list():
            items = cast("list[object]", reply)
            return b"*%d\r\n" % len(items) + b"".join(map(said, items))
        case _:
            return b"$-1\r\n"


def heard(by: ReplyParser, data: bytes, cuts: list[int]) -> list[Reply]:
    """Return what a reader makes of bytes that come in pieces."""
    found: list[Reply] = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        by.feed(data[start:end])
        while (reply := by.gets()) is not INCOMPLETE:
            found.append(reply)
    return found


@given(said_all=st.lists(replies, max_size=5), data=st.data())
@pytest.mark.parametrize("make", READERS)
def test_replies_are_read_in_pieces_of_any_size(
    make: type[PythonReplyParser], said_all: list[object], data: st.DataObject
) -> None:
    raw = b"".join(map(said, said_all))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))

    assert heard(make(ResponseError), raw, cuts) == said_all


@pytest.mark.parametrize("make", READERS)
def test_a_large_reply_in_pieces_is_read_with_the_reply_after_it(make: type[PythonReplyParser]) -> None:
    many: list[object] = [b"x" * 70_000, *(b"%d" % number for number in range(3_000)), b""]
    raw = said(many) + b"+OK\r\n" + said([None, 7])

    assert heard(make(ResponseError), raw, list(range(1_000, len(raw), 1_000))) == [many, b"OK", [None, 7]]
    assert heard(make(ResponseError), b"*-1\r\n*0\r\n$0\r\n\r\n", []) == [None, [], b""]


@pytest.mark.parametrize("make", READERS)
def test_an_error_is_a_value_also_within_a_list(make: type[PythonReplyParser]) -> None:
    class CustomError(RedisError):
        pass

    by = make(CustomError)
    by.feed(b"-ERR no such thing\r\n*2\r\n:1\r\n-OOM full\r\n")
    first, second = by.gets(), cast("list[object]", by.gets())

    assert isinstance(first, CustomError)
    assert str(first) == "ERR no such thing"
    assert [type(part) for part in second] == [int, CustomError]


@pytest.mark.parametrize("raw", [b"HTTP/1.1 400 Bad Request\r\n", b"$four\r\nfour\r\n"])
@pytest.mark.parametrize("make", READERS)
def test_bytes_of_another_protocol_are_refused(make: type[PythonReplyParser], raw: bytes) -> None:
    by = make(ResponseError)
    by.feed(raw)

    with pytest.raises(InvalidResponse):
        by.gets()


def test_commands_are_packed_as_words_with_their_lengths_in_bytes() -> None:
    assert packed([("SET", b"\x00\xff", 7), ("ECHO", "grün")]) == (
        b"*3\r\n$3\r\nSET\r\n$2\r\n\x00\xff\r\n$1\r\n7\r\n*2\r\n$4\r\nECHO\r\n$5\r\ngr\xc3\xbcn\r\n"
    )


@given(st.lists(st.binary() | st.text(st.characters(codec="utf-8")) | st.integers(), min_size=1))
def test_a_command_is_the_same_with_hiredis_and_without(words: list[bytes | str | int]) -> None:
    assert packed([words, ("PING",)]) == plainly_packed(words) + plainly_packed(("PING",))


words = st.lists(st.binary() | st.text(st.characters(codec="utf-8")) | st.integers())


@given(words, words)
def test_a_command_is_the_same_whose_first_words_are_packed_once(first: list[Word], others: list[Word]) -> None:
    for _ in range(2):
        assert packed([packed_after(tuple(first), others)]) == plainly_packed([*first, *others])


@pytest.mark.parametrize("word", [bytearray(b"x"), memoryview(b"x"), None])
def test_an_argument_of_another_type_is_refused(word: object) -> None:
    with pytest.raises(TypeError):
        packed_after((b"SET",), [cast(Word, word)])
