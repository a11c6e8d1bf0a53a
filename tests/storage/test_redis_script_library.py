"""The scripts as joined from their parts: each part can be loaded in each verb, and uses only its partition's keys."""

import re
import struct
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import msgspec
import pytest

from tenure.storage.redis.script_constants import CONSTANTS, definition
from tenure.storage.redis.script_library import verb
from tests.servers import client_of, command

pytestmark = pytest.mark.redis

VERBS = sorted(
    file.name.removesuffix(".lua")
    for file in (files("tenure.storage.redis") / "lua").iterdir()
    if file.name.endswith(".lua")
)

PART = re.compile(r"^local (\w+) = lazily\(function\(\1\)$.*?^end\)$", re.MULTILINE | re.DOTALL)

GIVEN = {
    *("ARGV", "KEYS", "redis", "cmsgpack", "cjson", "struct", "bit"),
    *("math", "string", "table", "unpack", "tonumber", "tostring", "type", "next", "pairs", "ipairs"),
    *("error", "pcall", "getmetatable", "setmetatable"),
}
"""The globals of Redis that our scripts use. It has no others: to read another one is an error."""

GETGLOBAL, SETGLOBAL = 5, 7
"""Two operations of Lua 5.1, by their numbers."""


class Dump:
    """A compiled function of Lua 5.1, read from the bytes that `string.dump` makes of it."""

    def __init__(self, body: bytes) -> None:
        # Its header: the size of a size_t, after the marks of Lua 5.1 and of the byte order.
        assert body[:6] == b"\x1bLua\x51\x00"
        assert body[6:12] == b"\x01\x04\x08\x04\x08\x00"
        self._body, self._at = body, 12

    def _number(self, kind: str) -> Any:
        [number] = struct.unpack_from(f"<{kind}", self._body, self._at)
        self._at += struct.calcsize(f"<{kind}")
        return number

    def _text(self) -> str:
        size = self._number("Q")
        self._at += size
        return self._body[self._at - size : self._at - 1].decode() if size else ""

    def _constant(self) -> object:
        match self._number("B"):
            case 0:
                return None
            case 1:
                return self._number("B")
            case 3:
                return self._number("d")
            case _:
                return self._text()

    def globals(self) -> Iterator[tuple[str, bool]]:
        """Yield the globals that the function and its inner functions name, and whether each is written."""
        self._text()
        self._at += 12
        code = [self._number("I") for _ in range(self._number("I"))]
        constants = [self._constant() for _ in range(self._number("I"))]
        for word in code:
            if word & 63 in (GETGLOBAL, SETGLOBAL):
                yield str(constants[word >> 14]), word & 63 == SETGLOBAL
        for _ in range(self._number("I")):
            yield from self.globals()
        for _ in range(self._number("I")):
            self._at += 4
        for _ in range(self._number("I")):
            self._text()
            self._at += 8
        for _ in range(self._number("I")):
            self._text()


@pytest.mark.parametrize("name", VERBS)
def test_every_part_of_a_script_is_loaded_when_it_is_used(name: str, redis_url: str) -> None:
    text = verb(name).text
    parts = list(PART.finditer(text))
    # The verb's own code is after the first of them, or between them.
    partition = text[: parts[0].start()] if parts else ""
    asks = "".join(f"local _ = {part[1]}.nothing\n" for part in parts)
    made = " ".join(f"and is_made({part[1]})" for part in parts)
    script = "\n".join((partition, *(part[0] for part in parts), f"do {asks} return true {made} end"))
    with client_of(redis_url.partition("?")[0]) as client:
        assert command(client, "EVAL", script, 1, "{partition}", "1", msgspec.msgpack.encode({})) == 1


@pytest.mark.parametrize("name", VERBS)
def test_a_script_names_no_globals_but_those_that_it_is_given(name: str, redis_url: str) -> None:
    text = verb(name).text.partition("\n")[2]
    with client_of(redis_url.partition("?")[0]) as client:
        body = command(client, "EVAL", "return string.dump(assert(loadstring(ARGV[1])))", 0, text)
    named = set(Dump(body).globals())

    assert {name for name, _ in named} <= GIVEN
    assert not [name for name, written in named if written]


def test_a_part_uses_only_the_parts_that_it_requires() -> None:
    parts = files("tenure.storage.redis") / "lua" / "parts"
    texts = {file.name.removesuffix(".lua"): file.read_text() for file in parts.iterdir()}
    table_of = {
        name: re.findall(r"^local ((?:[A-Z][a-z]+)+) = \{\}$", text, re.MULTILINE) for name, text in texts.items()
    }
    part_of = {tables[0]: name for name, tables in table_of.items() if tables}

    assert set(texts) - set(part_of.values()) == {"prelude"}

    for name, text in texts.items():
        code = re.sub(r"--.*", "", text)
        used = {part_of[word] for word in re.findall(r"\b((?:[A-Z][a-z]+)+)\b[.),]", code) if word in part_of} - {name}
        required = set(re.findall(r"\w+", ", ".join(re.findall(r"^-- requires: (.+)$", text, re.MULTILINE))))

        assert used == required - {"prelude"}, name


def test_scripts_take_shared_constants_from_python() -> None:
    lua = files("tenure.storage.redis") / "lua"
    texts = [file.read_text() for folder in (lua, lua / "parts") for file in folder.iterdir() if file.is_file()]
    written = {
        name.strip()
        for text in texts
        for names in re.findall(r"^ *local ([A-Z_, ]+) = ", text, re.MULTILINE)
        for name in names.split(",")
    }
    named = {
        name.strip()
        for text in texts
        for names in re.findall(r"^ *-- constants: (.+)$", text, re.MULTILINE)
        for name in names.split(",")
    }

    assert named == set(CONSTANTS)
    assert not written & set(CONSTANTS)


def test_constants_become_lua_values() -> None:
    assert definition("CLAIM_LIMIT, RATE") == "local CLAIM_LIMIT, RATE = 128, 'rate:'"
    assert definition("EVENTS_KEPT") == "local EVENTS_KEPT = { age = 604800000000, count = 100000 }"
