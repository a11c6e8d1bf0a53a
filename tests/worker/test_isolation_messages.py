"""Messages of an isolated process: complete in parts of any size, and invalid input is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.job import JobRecord, Key, RecordedError, Ref, UniqueKey
from tenure.core.lifecycle import State
from tenure.core.outcome import (
    Cancelled,
    Interrupted,
    Outcome,
    Raised,
    RateLimitHit,
    Rejected,
    Returned,
    Snoozed,
    Stalled,
    Suspended,
    TimedOut,
    Unknown,
    Unreadable,
)
from tenure.core.waiting import Need, Wait
from tenure.worker.isolation.messages import (
    LONGEST,
    InvalidMessageError,
    RunEnded,
    RunJob,
    RunSigns,
    answer_reader,
    encode_frame,
    order_reader,
)

JOB = JobRecord(
    queue="default",
    id="1",
    task="shop.pay",
    state=State.ACTIVE,
    payload=b"\x00\xff" * 1000,
    headers={"trace": "7"},
    keys=(Key("account:1", 2),),
    merge=UniqueKey("k"),
    score=1,
    run_at=2,
    created=3,
    fence=2**53,
    cancel_at=4,
)
ERROR = RecordedError("ValueError", "too bad", "Traceback")
OUTCOMES: list[Outcome] = [
    Returned(b"1"),
    Raised(ERROR, final=True, after=7),
    TimedOut(ERROR),
    Rejected(ERROR),
    Unreadable(ERROR),
    Unknown("newer_payload"),
    Snoozed(1),
    Suspended(Wait((Need(box="signal:approved", until=5, source=Ref("q", "a")),))),
    RateLimitHit(1),
    Interrupted("shutdown", 5),
    Cancelled("enough", by="handler"),
    Stalled("process_died", 1, "owner", "detail"),
]


@given(st.lists(st.integers(1, 500)))
def test_messages_in_pieces_of_any_size_are_read_completely(cuts: list[int]) -> None:
    said = encode_frame(RunJob(JOB)) + encode_frame(RunJob(JOB))
    reader, heard, at = order_reader(), list[object](), 0
    for cut in [*cuts, len(said)]:
        heard += reader.feed(said[at : at + cut])
        at += cut

    assert heard == [RunJob(JOB), RunJob(JOB)]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_every_outcome_can_be_encoded_and_decoded(outcome: Outcome) -> None:
    assert answer_reader().feed(encode_frame(RunEnded(7, outcome))) == [RunEnded(7, outcome)]


def test_heartbeats_of_a_handler_can_be_encoded_and_decoded() -> None:
    said = RunSigns(7, 1.5, (0.5, None), ((1.25, "info", "so far", {"seen": "yes"}, 1),), True, "Traceback")

    assert answer_reader().feed(encode_frame(said)) == [said]


@pytest.mark.parametrize(
    "garbage",
    [
        (LONGEST + 1).to_bytes(4, "big"),
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x03abc",
        b"\x00\x00\x00\x01\xc1",
        (100_000).to_bytes(4, "big") + b"\x91" * 100_000,
        # Only the worker may send this kind of message.
        encode_frame(RunJob(JOB)),
    ],
    ids=["too long", "nothing", "text", "no msgpack", "nested", "another's word"],
)
def test_an_invalid_message_is_refused(garbage: bytes) -> None:
    with pytest.raises(InvalidMessageError):
        answer_reader().feed(garbage)


@given(st.binary(max_size=200))
def test_any_input_is_a_message_or_refused_or_incomplete(noise: bytes) -> None:
    reader = answer_reader()
    try:
        messages = reader.feed(noise)
    except InvalidMessageError:
        return

    assert isinstance(messages, list)
