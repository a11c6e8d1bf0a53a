"""Builds the script of each verb from its Lua file and the parts that the file requires.

A part is a file of `lua/parts` that fills one table, for example `local Rates = {}`; its other names are local to it.
In a script, the part's text becomes a function that runs when the table is first asked for a member. So a call defines
only the parts that it needs (docs/decisions/026-short-redis-scripts.md), and a part may only define things while it
loads. The part
`prelude` has no table: it is defined in every call, because all other parts use its functions.

A part's text is placed where a script first requires it. Most calls return early, before the parts that only the rest
of the script needs; those calls do not even make the tables of those parts.

Constants that Python has, too, come from Python (script_constants.py): a line `-- constants: A, B` becomes their
definition.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache

from tenure.storage.redis.script_constants import definition
from tenure.storage.script_files import script as text_of

_PACKAGE = "tenure.storage.redis"
_CONSTANTS = re.compile(r"^( *)-- constants: (.+)$", re.MULTILINE)
_REQUIRES = re.compile(r"^-- requires: (.+)$", re.MULTILINE)
_TABLE = re.compile(r"^local ((?:[A-Z][a-z]+)+) = \{\}$", re.MULTILINE)


@dataclass(frozen=True)
class Script:
    """A script; servers know it by the SHA-1 digest of its text."""

    name: str
    text: str
    sha: str


@cache
def verb(name: str) -> Script:
    """Return the script of a verb, with the parts that it requires in their places."""
    text = _with_parts(text_of(_PACKAGE, "lua", f"{name}.lua"), set())
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _with_parts(text: str, placed: set[str]) -> str:
    """Replace each `-- requires:` line by the parts that it names."""
    return _with_constants(_REQUIRES.sub(lambda line: _parts(line[1], placed), text))


def _with_constants(text: str) -> str:
    """Replace each `-- constants:` line by the definitions of the constants that it names."""
    return _CONSTANTS.sub(lambda line: f"{line[1]}{definition(line[2])}", text)


def _parts(names: str, placed: set[str]) -> str:
    """Return the named parts that are not placed yet, each after the parts that it requires."""
    texts: list[str] = []
    for name in re.split(r",\s*", names.strip()):
        if name not in placed:
            placed.add(name)
            part = text_of(_PACKAGE, "lua/parts", f"{name}.lua")
            texts += [_parts(line, placed) for line in _REQUIRES.findall(part)]
            texts.append(_lazily(part))
    return "\n".join(texts)


def _lazily(part: str) -> str:
    """Return a part that is defined when one of its members is first used; the line numbers stay the same.

    The table is made with room for all members: growing it member by member would take longer than defining them.
    """
    table = _TABLE.search(part)
    if table is None:
        return part
    name = table[1]
    room = ", ".join(f"{member} = nil" for member in sorted(set(re.findall(rf"\b{name}\.(\w+)", part))))
    return f"{part[: table.start()]}local {name} = lazily({{ {room} }}, function({name}){part[table.end() :]}end)\n"
