"""Reads the plain YAML in which the files of examples/production are written, and refuses everything else.

Mappings and lists in blocks or in one line, and scalars in one line: no anchors, tags, folded texts or tabs. So this
reads a file as every YAML parser does, and nothing has to be installed for it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_KEY = re.compile(r"([A-Za-z_][\w./-]*):(?: +(.*))?$")
_TOKEN = re.compile(
    r"""\s*(?:([\[\]{},:])|"((?:[^"\\])*)"|'([^']*)'|([^\[\]{},:"'\s][^\[\]{},"]*?(?=\s*(?:[\[\]{},]|:\s|$))))"""
)


class NotPlainError(Exception):
    """A line is not YAML, or not in the subset that this reads."""


@dataclass
class _Line:
    number: int
    indent: int
    text: str


def documents(text: str) -> list[Any]:
    """Return the contents of the documents of a file.

    Raises:
            NotPlainError: the file contains something else.
    """
    found: list[list[_Line]] = [[]]
    for number, line in enumerate(text.splitlines(), 1):
        if line == "---":
            found.append([])
        elif (bare := _uncommented(line)).strip():
            indent = len(bare) - len(bare.lstrip(" "))
            if "\t" in bare:
                raise NotPlainError(f"line {number}: a tab")
            found[-1].append(_Line(number, indent, bare.strip()))
    return [_whole(lines) for lines in found if lines]


def _uncommented(line: str) -> str:
    quote = ""
    for place, sign in enumerate(line):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign == "#" and (place == 0 or line[place - 1] == " "):
            return line[:place].rstrip()
    return line.rstrip()


def _whole(lines: list[_Line]) -> Any:
    rest = list(lines)
    value = _block(rest, rest[0].indent)
    if rest:
        raise NotPlainError(f"line {rest[0].number}: {rest[0].text!r} stands under nothing")
    return value


def _block(lines: list[_Line], indent: int) -> Any:
    return _list(lines, indent) if lines[0].text.startswith("- ") else _mapping(lines, indent)


def _list(lines: list[_Line], indent: int) -> list[Any]:
    found: list[Any] = []
    while lines and lines[0].indent == indent and lines[0].text.startswith("- "):
        line = lines[0]
        inner = line.text[2:].lstrip()
        if _KEY.match(inner):
            # The mapping that begins on this line continues below, with the indentation of its first key.
            lines[0] = _Line(line.number, indent + len(line.text) - len(inner), inner)
            found.append(_mapping(lines, lines[0].indent))
        else:
            found.append(_scalar(inner, line.number))
            del lines[0]
    return found


def _mapping(lines: list[_Line], indent: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while lines and lines[0].indent == indent and not lines[0].text.startswith("- "):
        line = lines.pop(0)
        match = _KEY.match(line.text)
        if match is None or match[1] in found:
            raise NotPlainError(f"line {line.number}: {line.text!r} is not a new key")
        if match[2] is not None:
            found[match[1]] = _scalar(match[2], line.number)
        elif lines and (lines[0].indent > indent or (lines[0].indent == indent and lines[0].text.startswith("- "))):
            found[match[1]] = _block(lines, lines[0].indent)
        else:
            found[match[1]] = None
    if lines and lines[0].indent > indent:
        raise NotPlainError(f"line {lines[0].number}: {lines[0].text!r} is too far in")
    return found


def _scalar(text: str, number: int) -> Any:
    if text[0] in "&*!|>%@`":
        raise NotPlainError(f"line {number}: {text!r} is more than plain")
    if text[0] not in "[{\"'":
        return _plain(text)
    tokens = list(_tokens(text, number))
    value = _flow(tokens, number)
    if tokens:
        raise NotPlainError(f"line {number}: {text!r} goes on behind its end")
    return value


def _tokens(text: str, number: int) -> Iterator[tuple[str, Any]]:
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise NotPlainError(f"line {number}: {text[place:]!r}")
        place = match.end()
        sign, double, single, plain = match.groups()
        yield (
            ("sign", sign)
            if sign
            else (
                "value",
                next((item for item in (double, single) if item is not None), None) if plain is None else _plain(plain),
            )
        )


def _flow(tokens: list[tuple[str, Any]], number: int) -> Any:
    try:
        kind, value = tokens.pop(0)
        match value if kind == "sign" else None:
            case "[":
                return list(_parts(tokens, "]", number))
            case "{":
                return dict(_pairs(tokens, number))
            case None:
                return value
            case other:
                raise NotPlainError(f"line {number}: {other!r} where a value belongs")
    except IndexError:
        raise NotPlainError(f"line {number}: it ends too early") from None


def _parts(tokens: list[tuple[str, Any]], end: str, number: int) -> Iterator[Any]:
    while tokens[0] != ("sign", end):
        yield _flow(tokens, number)
        _parted(tokens, end, number)
    del tokens[0]


def _pairs(tokens: list[tuple[str, Any]], number: int) -> Iterator[tuple[str, Any]]:
    while tokens[0] != ("sign", "}"):
        _, key = tokens.pop(0)
        if tokens.pop(0) != ("sign", ":"):
            raise NotPlainError(f"line {number}: a key without a value")
        yield str(key), _flow(tokens, number)
        _parted(tokens, "}", number)
    del tokens[0]


def _parted(tokens: list[tuple[str, Any]], end: str, number: int) -> None:
    if tokens[0] == ("sign", ","):
        del tokens[0]
    elif tokens[0] != ("sign", end):
        raise NotPlainError(f"line {number}: neither a comma nor {end!r}")


def _plain(text: str) -> Any:
    if re.search(r": |:$| #", text):
        raise NotPlainError(f"{text!r} needs quotes")
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return {"true": True, "false": False, "null": None, "~": None}.get(text, text)
