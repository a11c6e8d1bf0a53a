"""The scripts of the verbs, each joined at load from the parts that it names.

A part is a file of `lua/parts` that fills one table, `local Shelf = {}`, and keeps what else it has to itself. In a
script its text becomes a function, run when something first asks that table for a member: a call makes the parts that
it needs, and no others (docs/why/short-scripts.md). So a part may do nothing while it is made but define what it is
made of. The one that is no table, `cell`, is made for every call: it has the words that all others are written in.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache

from holdfast.storage.scripts import script as text_of

_PACKAGE = "holdfast.storage.redis"
_REQUIRES = re.compile(r"^-- requires: (.+)$", re.MULTILINE)
_TABLE = re.compile(r"^local ([A-Z][a-z]+) = \{\}$", re.MULTILINE)


@dataclass(frozen=True)
class Script:
    """A script as a server knows it: by the digest of its text."""

    name: str
    text: str
    sha: str


@cache
def verb(name: str) -> Script:
    """Return the script of a verb, with all that it rests on before it."""
    parts: dict[str, str] = {}
    # The first line tells the server what the script may do, and must stay the first.
    flags, _, body = text_of(_PACKAGE, "lua", f"{name}.lua").partition("\n")
    _require(body, parts)
    text = "\n".join((flags, *parts.values(), body))
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _require(body: str, parts: dict[str, str]) -> None:
    """Put the parts that a text names before it, each once, with what they name before them."""
    for line in _REQUIRES.findall(body):
        for name in re.split(r",\s*", line.strip()):
            if name not in parts:
                text = text_of(_PACKAGE, "lua/parts", f"{name}.lua")
                _require(text, parts)
                parts[name] = _lazily(text)


def _lazily(part: str) -> str:
    """Return a part as it is made when somebody first asks for one of its members; each line stays where it was."""
    wrapped, tables = _TABLE.subn(r"local \1 = lazily(function(\1)", part, count=1)
    return f"{wrapped}end)\n" if tables else part
