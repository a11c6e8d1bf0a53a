"""Which failures share a fingerprint: what of a message, a traceback and a job counts, and what does not."""

import traceback
from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tenure.core.fingerprint import LENGTH, fingerprint, innermost, normalized
from tenure.core.job import RecordedError

TRACE = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 12, in send
    deliver(to)
  File "/srv/shop/mail/smtp.py", line 80, in deliver
    raise Refused(to)
"""


def of(
    message: str, *, task: str = "send", reason: str = "exhausted", kind: str = "ValueError", trace: str = ""
) -> str:
    return fingerprint(task, reason, RecordedError(kind, message, trace))


@pytest.mark.parametrize(
    ("message", "norm"),
    [
        ("user 42 not found", "user # not found"),
        ("user42 not found", "user# not found"),
        ("took -1.5e3 s, at most 10%", "took # s, at most #%"),
        ("timed out after 1.5s", "timed out after #"),
        ("timed out after 300ms", "timed out after #"),
        ("missing 1, 2 and 3", "missing #"),
        ("<Shop object at 0x7f00aa12bc>", "<Shop object at #>"),
        ("order 0197A3B4-1111-7222-8333-123456789abc", "order #"),
        ("commit deadbeefcafe is gone", "commit # is gone"),
        ("charge ch_9s6XKzkNRiz8i3 was refused", "charge ch_# was refused"),
        ("at 2026-01-01T10:00:00.123Z", "at #"),
        ("at 2026-01-01 10:00:00+02:00", "at #"),
        ("no column 'total', see \"orders\"", "no column <text>, see <text>"),
        ("b'\\xff\\'' is not text", "<text> is not text"),
        ("keys ['a', 'b', 'c'] are missing", "keys [<text>] are missing"),
        ("it isn't there, it can't be", "it isn't there, it can't be"),
        ("[Errno 2] No such file: /var/tmp/x/y.csv", "[Errno #] No such file: <path>"),
        (r"cannot open C:\data\new.csv, sorry", "cannot open <path>, sorry"),
        ("in uploads/alice/photo.png and in data/a.csv", "in <path> and in <path>"),
        ("either/or, read/write", "either/or, read/write"),
        ("GET https://shop.example/orders/7?a=b failed", "GET <url> failed"),
        ("bounced: jane.doe+x@mail.example", "bounced: <mail>"),
        ("connect to 10.0.0.1:5432 failed", "connect to # failed"),
        ("connect to fe80::1 failed", "connect to # failed"),
        ("db-3.internal:5432 refused", "db-#.internal:# refused"),
        ("one\n  two\tthree ", "one two three"),
        ("", ""),
    ],
)
def test_a_message_loses_the_values_of_the_single_case(message: str, norm: str) -> None:
    assert normalized(message) == norm


@pytest.mark.parametrize(
    "other",
    [
        of("connection refused", trace=TRACE, task="other"),
        of("connection refused", trace=TRACE, reason="rejected"),
        of("connection refused", trace=TRACE, kind="KeyError"),
        of("connection reset", trace=TRACE),
        of("connection refused"),
        of("connection refused", trace=TRACE.replace("in deliver", "in connect")),
        of("connection refused", trace=TRACE.replace("smtp.py", "imap.py")),
        of("connection refused", trace=TRACE.replace("shop/mail/", "shop/post/")),
        fingerprint("send", "exhausted", None),
    ],
)
def test_another_task_reason_error_message_or_place_is_another_fault(other: str) -> None:
    assert of("connection refused", trace=TRACE) != other


@pytest.mark.parametrize(
    "same",
    [
        TRACE.replace("line 80", "line 97").replace("line 12", "line 3"),
        TRACE.replace("/srv/", "/home/me/venv/"),
        TRACE.replace("/srv/shop/mail/smtp.py", "C:\\srv\\shop\\mail\\smtp.py"),
        TRACE.replace("tasks.py", "jobs.py").replace("in send", "in resend"),
        TRACE + "ValueError: connection refused\n",
    ],
)
def test_line_numbers_install_paths_and_callers_do_not_change_the_fault(same: str) -> None:
    assert of("connection refused", trace=TRACE) == of("connection refused", trace=same)


def test_the_position_of_a_timeout_does_not_change_the_fault() -> None:
    error = RecordedError("TimeoutError", "the run passed its timeout of 5 s", TRACE)
    elsewhere = structs.replace(error, traceback=TRACE.replace("in deliver", "in wait"))

    assert fingerprint("send", "timeout", error) == fingerprint("send", "timeout", elsewhere)
    assert fingerprint("send", "exhausted", error) != fingerprint("send", "exhausted", elsewhere)


def test_the_innermost_frame_is_that_of_a_real_traceback() -> None:
    def fall() -> None:
        raise ValueError('File "/elsewhere/remote.py", line 3, in afar')

    def caught(function: Callable[[], None]) -> RecordedError:
        try:
            function()
        except Exception as error:
            return RecordedError(type(error).__name__, str(error), "".join(traceback.format_exception(error)))
        raise AssertionError

    def within_a_group() -> None:
        try:
            fall()
        except ValueError as error:
            raise ExceptionGroup("several", [error]) from None

    assert innermost(caught(fall)) == "core/test_fingerprint.py:fall"
    assert innermost(caught(within_a_group)).startswith("core/test_fingerprint.py:")
    assert innermost(RecordedError("TimeoutError", "the run passed its timeout of 5 s")) == ""


VALUES = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(str),
    st.uuids().map(str),
    st.uuids().map(lambda made: made.hex),
    st.integers(0, 2**64 - 1).map(lambda number: f"{number:#x}"),
    st.binary(min_size=4, max_size=20).map(bytes.hex),
)
"""Numbers and ids, which may replace each other."""

TEMPLATES = st.sampled_from(
    [
        "order {} not found",
        "{}",
        "no order {}: gave up",
        "key={} (see {})",
        "{}: refused",
        "[{}, {}] are missing, as is {}",
        "after {} s.",
    ]
)


@given(TEMPLATES, st.data())
def test_ids_and_numbers_in_a_message_do_not_change_the_fingerprint(template: str, data: st.DataObject) -> None:
    def raised() -> str:
        return of(template.format(*(data.draw(VALUES) for _ in range(template.count("{}")))), trace=TRACE)

    assert raised() == raised()


@given(st.text(), st.text())
def test_text_in_python_quotes_counts_as_a_value(one: str, other: str) -> None:
    # A KeyError's message is only the quoted key.
    assert of(repr(one), kind="KeyError") == of(repr(other), kind="KeyError")
    assert of(f"no {one!r} here") == of(f"no {other!r} here")


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz_", min_size=1), st.text(alphabet="abcdefghijklmnopqrstuvwxyz_"))
def test_folders_and_files_of_a_path_are_a_value(one: str, other: str) -> None:
    assert normalized(f"cannot read /{one}/{other}") == "cannot read <path>"


@given(st.text(max_size=3000), st.uuids())
def test_any_message_can_be_normalized_and_makes_a_short_name(message: str, job: UUID) -> None:
    name = of(message, trace=message)

    assert len(name) == LENGTH
    assert set(name) <= set("0123456789abcdef")
    assert name == of(message, trace=message)
    assert len(normalized(message)) <= 400
    assert normalized(f"{job} {message}") == normalized(f"{job.int} {message}")


def test_a_long_message_that_is_cut_within_a_quotation_is_the_same_fault() -> None:
    assert of(f"bad value '{'a' * 5000}'") == of(f"bad value '{'b' * 9000}'")
    assert normalized(f"bad value '{'a' * 5000}'") == "bad value <text>"
