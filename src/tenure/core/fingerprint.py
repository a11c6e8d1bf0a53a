"""Faults: what several failures have in common, and its fingerprint, a short name without the values of a single case.

Two failures have the same fingerprint if their task, reason and error type are the same, their messages are the same
except for numbers, ids, addresses, paths and quoted values, and the innermost frames of their tracebacks are the same
function of the same file, on any line and wherever the file is installed. A task's stalls are one fault, whichever
post-mortems they have. So are its timeouts, wherever the handler was.
"""

import hashlib
import re
from re import Match

from msgspec import Struct

from tenure.core.job import RecordedError

LENGTH = 12
"""How many hexadecimal digits a fingerprint has."""

NEWEST = 5
"""How many of its jobs a fault names."""

MESSAGE_SHOWN = 200
"""How many characters of a message a fault shows."""

_BY_STALLS = ("stalled", "crashed")

_LOOKED_AT = 2000
_COMPARED = 400

_QUOTED = re.compile(
    r"""(?<!\w)(?:[bB][rR]?|[rRuU])?(?:'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")(?!\w)"""
    r"""|[“„][^“”\n]*[“”]|‘[^’\n]*’(?!\w)|«[^»\n]*»""",
)
_CUT = re.compile(r"""(?<!\w)['"“„‘«][^\n]*\Z""")
_URL = re.compile(r"\b[a-zA-Z][\w+.-]*://[^\s'\"<>]+")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*")
_PATH = re.compile(
    r"(?<![\w<])(?:[A-Za-z]:\\|\\\\|(?:~|\.{1,2})?/(?=[\w.~-]))[^\s'\"<>,;:()\[\]{}|]*"
    r"|(?<![\w./-])[\w.-]+/(?:[\w.-]+/)+[\w.-]*"
    r"|(?<![\w./-])[\w.-]+/[\w-]+\.[A-Za-z]\w*"
)
_ID = re.compile(
    r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"
    r"|\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|(?<![\w:])(?=[0-9a-fA-F:]*\d)(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:])"
    r"|(?<!\w)[-+]?\d+(?:[.,:/-]\d+)*(?:[eE][-+]?\d+)?[^\W\d_]{0,3}(?![^\W_])"
)
_WORD = re.compile(r"(?<![^\W_])(?:(?=[^\W\d_]*\d)[^\W_]+(?:\.\d+[^\W_]*)*|[0-9a-fA-F]{8,}(?![^\W_]))")
_NAMED = re.compile(r"(?=[^\W\d_]*[^\Wa-fA-F\d_])([^\W\d_]+)\d+")
_REPEATED = re.compile(r"(#|<\w+>)(?:(?:\s*[,;]\s*|\s+)(?:and\s+|or\s+)?\1)+")
_SPACE = re.compile(r"\s+")

_SLASH = re.compile(r"[/\\]")
_FRAME = re.compile(r"""[\s|+-]*File "([^"\n]+)", line \d+, in ([^\n]+)""")


class FaultSurvey(Struct, frozen=True, kw_only=True):
    """The failed jobs of a queue that have the same fault, which its fingerprint names.

    `first` and `last`: when the first and the last of them failed, in microseconds. `newest`: the last `NEWEST` of
    them, each with the instant when it failed and its id, the last one first. `error`: the error of the last one
    (`shown_error`).
    """

    queue: str
    fault: str
    count: int
    first: int
    last: int
    newest: tuple[tuple[int, str], ...]
    task: str
    reason: str | None = None
    error: RecordedError | None = None


def by_frequency(fault: FaultSurvey) -> tuple[int, int, str, str]:
    """Return a sort key: the fault with the most jobs first, of equal ones that which occurred last."""
    return -fault.count, -fault.last, fault.queue, fault.fault


def shown_error(error: RecordedError | None) -> RecordedError | None:
    """Return an error as a fault shows it: without its traceback, and the beginning of its message."""
    return None if error is None else RecordedError(error.type, error.message[:MESSAGE_SHOWN])


def fingerprint(task: str, reason: str | None, error: RecordedError | None) -> str:
    """Return twelve hexadecimal digits that all failures of one fault share, and failures of other faults do not."""
    compared = RecordedError("", "") if error is None else error
    if reason in _BY_STALLS:
        # The text after the semicolon and the traceback describe the end of the last run only, so they are left out.
        compared = RecordedError(compared.type, compared.message.partition("; ")[0])
    elif reason == "timeout":
        # The position at the timeout differs each time and does not show the fault.
        compared = RecordedError(compared.type, compared.message)
    parts = (task, reason or "", compared.type, normalized(compared.message), innermost(compared))
    # The parts contain no NUL, because no storage could keep one.
    return hashlib.blake2s("\0".join(parts).encode(errors="replace"), digest_size=LENGTH // 2).hexdigest()


def normalized(message: str) -> str:
    """Return a message without the values of a single case."""
    text = _QUOTED.sub("<text>", message[:_LOOKED_AT])
    if len(message) > _LOOKED_AT:
        text = _CUT.sub("<text>", text)
    if "/" in text or "\\" in text:
        text = _PATH.sub("<path>", _URL.sub("<url>", text))
    if "@" in text:
        text = _MAIL.sub("<mail>", text)
    text = _ID.sub("#", text)
    text = _WORD.sub(_without_number, text)
    text = _REPEATED.sub(r"\1", text)
    return _SPACE.sub(" ", text).strip()[:_COMPARED]


def innermost(error: RecordedError) -> str:
    """Return where an error was raised, as `folder/file.py:function`; empty if its traceback does not show it."""
    text, message = error.traceback.rstrip(), error.message.rstrip()
    if message and text.endswith(message):
        # A message may quote another traceback.
        text = text[: -len(message)]
    # Search from the end: the rest of a long traceback does not matter.
    position = len(text)
    while (position := text.rfind('File "', 0, position)) >= 0:
        frame = _FRAME.match(text, text.rfind("\n", 0, position) + 1)
        if frame is not None and frame.start(1) == position + 6:
            # Keep only the last folder: the place of installation does not matter.
            return f"{'/'.join(_SLASH.split(frame[1])[-2:])}:{frame[2].rstrip()}"
    return ""


def _without_number(found: Match[str]) -> str:
    """Keep the word that a number is part of, so that `user42` and `order42` stay different."""
    found_word = _NAMED.fullmatch(found[0])
    return "#" if found_word is None else f"{found_word[1]}#"
