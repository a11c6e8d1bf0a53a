"""The scripts of the verbs, each joined at load from the parts that it names.

A part is a file of `lua/parts` that fills one table, `local Shelf = {}`, and keeps what else it has to itself. In a
script its text becomes a function, run when something first asks that table for a member: a call makes the parts that
it needs, and no others (docs/why/short-scripts.md). So a part may do nothing while it is made but define what it is
made of. The one that is no table, `cell`, is made for every call: it has the words that all others are written in.

A part stands where a script first requires it. So a script that is done early, as most are, returns before the parts
that only the others need: of those not even the tables are made.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache

from tenure.storage.script_files import script as text_of

_PACKAGE = "tenure.storage.redis"
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
    """Return the script of a verb, with all that it rests on where it requires that."""
    text = _with_parts(text_of(_PACKAGE, "lua", f"{name}.lua"), set())
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _with_parts(text: str, placed: set[str]) -> str:
    """Return a text with the parts that each of its lines requires put there."""
    return _REQUIRES.sub(lambda line: _parts(line[1], placed), text)


def _parts(names: str, placed: set[str]) -> str:
    """Return parts that are not placed yet, each after those that it rests on."""
    texts: list[str] = []
    for name in re.split(r",\s*", names.strip()):
        if name not in placed:
            placed.add(name)
            part = text_of(_PACKAGE, "lua/parts", f"{name}.lua")
            texts += [_parts(line, placed) for line in _REQUIRES.findall(part)]
            texts.append(_lazily(part))
    return "\n".join(texts)


def _lazily(part: str) -> str:
    """Return a part as it is made when somebody first asks for one of its members; each line stays where it was.

    Its table has room for all of them from the first: to grow member by member would take longer than to make them.
    """
    table = _TABLE.search(part)
    if table is None:
        return part
    name = table[1]
    room = ", ".join(f"{member} = nil" for member in sorted(set(re.findall(rf"\b{name}\.(\w+)", part))))
    return f"{part[: table.start()]}local {name} = lazily({{ {room} }}, function({name}){part[table.end() :]}end)\n"
