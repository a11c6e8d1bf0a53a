"""The demo's work: the facts of one file. It is a pure function, so that the audit can compute each answer again."""

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
"""The compression level of LZMA: its default, with some 17 MB of memory per job."""

_SOURCE = "<tenure-demo>"

# CPython 3.11 counts the depth of a tree for all threads together. If the garbage collector runs Python code in the
# middle, another thread may run, and both raise SystemError because of a wrong count.
_parsing = threading.Lock()

# The standard library's test files contain invalid literals on purpose. Their warnings are not useful here.
warnings.filterwarnings("ignore", module=_SOURCE)


class Facts(Struct, frozen=True):
    """The facts of one file. `tokens` and `nodes` are 0 if the file is not valid Python."""

    sha256: str
    size: int
    lines: int
    tokens: int
    nodes: int
    lzma: int


def nothing() -> None:
    """Do nothing between two steps."""


def examine(data: bytes, *, python: bool, between: Callable[[], object] = nothing) -> Facts:
    """Return the facts of these bytes. `between` is called between the steps, and may raise to end the work."""
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
    """Return True if the name is that of a Python file."""
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
