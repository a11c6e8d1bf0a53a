"""The demo's work: what one file comes to. Pure, so that whoever doubts an answer can compute it again."""

import ast
import hashlib
import io
import lzma
import threading
import tokenize
import warnings
from collections.abc import Callable

from msgspec import Struct

PRESET = 6
"""How hard LZMA tries: its default, some 17 MB of memory a job."""

_SOURCE = "<tenure-demo>"

# CPython 3.11 counts the depth of a tree for all threads together. Where the garbage collector has Python code called
# in the middle of it, another thread gets a turn there, and both are told that they have miscounted (SystemError).
_parsing = threading.Lock()

# The standard library's own test files hold doubtful literals on purpose; nobody wants to read of them here.
warnings.filterwarnings("ignore", module=_SOURCE)


class Facts(Struct, frozen=True):
    """What one file comes to. `tokens` and `nodes` are 0 where the file is not valid Python."""

    sha256: str
    size: int
    lines: int
    tokens: int
    nodes: int
    lzma: int


def nothing() -> None:
    """Do nothing between two steps."""


def examine(data: bytes, *, python: bool, between: Callable[[], object] = nothing) -> Facts:
    """Return what these bytes come to. `between` is called between the steps, and may raise to end the work."""
    digest = hashlib.sha256(data).hexdigest()
    lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    between()
    tokens = _tokens(data) if python else 0
    between()
    nodes = _nodes(data) if python else 0
    between()
    packed = len(lzma.compress(data, preset=PRESET))
    return Facts(sha256=digest, size=len(data), lines=lines, tokens=tokens, nodes=nodes, lzma=packed)


def is_python(path: str) -> bool:
    """Say whether a file of that name should be Python."""
    return path.endswith((".py", ".pyi"))


def _tokens(data: bytes) -> int:
    try:
        return sum(1 for _ in tokenize.tokenize(io.BytesIO(data).readline))
    except (tokenize.TokenError, SyntaxError, ValueError):
        return 0


def _nodes(data: bytes) -> int:
    try:
        with _parsing:
            tree = ast.parse(data, _SOURCE)
        return sum(1 for _ in ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
