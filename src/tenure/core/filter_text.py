r"""Parses a job filter that people write: `state:failed,expired task:mail.* tag:vip age:>1h`.

    FILTER  = TERM { SPACE TERM }             all terms must hold
    TERM    = FIELD ":" VALUE { "," VALUE }   any of the values
    VALUE   = word | '"' text '"'             in a quoted text, \" stands for " and \\ for \

`*` in a word stands for any characters, except in quotes. A field that is not in `FIELDS` is a tag: `customer:7` means
`tag:"customer:7"`. A field that differs little from one of `FIELDS` is a mistake.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar, get_args

from msgspec import Struct

from tenure.core.check import named, shown
from tenure.core.duration import duration, micros
from tenure.core.fingerprint import LENGTH
from tenure.core.job import DeadReason
from tenure.core.lifecycle import State
from tenure.core.suggestion import did_you_mean
from tenure.errors import UsageError

LONGEST = 4_096
"""The greatest length of a filter, in characters."""

MOST_VALUES = 100
"""How many values a filter may have in all."""

SHORT = 3
"""Known fields with up to this many letters differ by one letter from many words."""

T = TypeVar("T")


class FilterTextError(UsageError):
    """A filter is invalid. `position`: the character where the problem begins; the first one is 1."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(f"filter, character {position}: {message}")
        self.position = position

    def __reduce__(self) -> tuple[type["FilterTextError"], tuple[int, str]]:
        return type(self), (self.position, str(self).partition(": ")[2])


class NamePattern(Struct, frozen=True):
    """A name, or with `glob` a text in which `*` stands for any characters."""

    text: str
    glob: bool = False

    def matches(self, name: str) -> bool:
        """Return True if the pattern matches the whole name."""
        if not self.glob:
            return name == self.text
        first, *middle, last = self.text.split("*")
        if not name.startswith(first) or not name.endswith(last) or len(name) < len(first) + len(last):
            return False
        # The earliest place of each part leaves the most for the others, so no other place needs to be tried.
        place, end = len(first), len(name) - len(last)
        for part in middle:
            found = name.find(part, place, end)
            if found < 0:
                return False
            place = found + len(part)
        return True


def pattern_of(text: str) -> NamePattern:
    """Return the pattern of a text without quotes."""
    return NamePattern(text, "*" in text)


Patterns = tuple[NamePattern, ...]


def exact_names(patterns: Patterns) -> tuple[str, ...]:
    """Return the names among patterns, without those that stand for several."""
    return tuple(pattern.text for pattern in patterns if not pattern.glob)


class JobConditions(Struct, frozen=True, kw_only=True):
    """Which jobs a filter selects; an empty condition selects all. Durations in microseconds.

    `tags`: the job has all of these; of other conditions, any value holds. `errors`: class names of exceptions.
    `owners`: owner ids or names of workers. `keys`: concurrency keys. `older`, `younger`: enqueued longer ago than
    this, or less long ago; `ended_before`, `ended_within`: the same for the end.
    """

    states: tuple[State, ...] = ()
    queues: Patterns = ()
    tasks: Patterns = ()
    tags: tuple[str, ...] = ()
    reasons: tuple[DeadReason, ...] = ()
    errors: Patterns = ()
    faults: tuple[str, ...] = ()
    owners: Patterns = ()
    keys: Patterns = ()
    schedules: Patterns = ()
    id: str | None = None
    older: int | None = None
    younger: int | None = None
    ended_before: int | None = None
    ended_within: int | None = None


class _Value(Struct, frozen=True):
    """A value, the position of its first character, and whether it is quoted."""

    text: str
    position: int
    quoted: bool = False


class _Term(Struct, frozen=True):
    field: str
    position: int
    values: tuple[_Value, ...]


FIELDS = {
    "state": "one of " + ", ".join(State),
    "queue": "a queue, or a pattern such as mail.*",
    "task": "a task, or a pattern",
    "tag": "a tag; give several tags in terms of their own",
    "reason": "why the job failed: " + ", ".join(get_args(DeadReason)),
    "error": "the class of the exception, or a pattern",
    "fault": f"the fingerprint of a fault, {LENGTH} hexadecimal digits",
    "owner": "the worker that runs the job, by owner id or name",
    "key": "a concurrency key, or a pattern",
    "schedule": "the schedule that made the job, or a pattern",
    "id": "the id of a job",
    "age": "how long ago the job was enqueued: age:>1h or age:<30m",
    "ended": "how long ago the job ended: ended:<10m or ended:>1d",
}
"""The fields of a filter, each with its values."""

_FIELD = re.compile(r"[^\s:,\"<>]+(?=:)")
_WORD = re.compile(r"[^\s,\"]+")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_SPACE = re.compile(r"\s+")


def parse_filter(text: str) -> JobConditions:
    """Return the conditions of a filter; an empty filter selects all jobs.

    Raises:
        FilterTextError: the text is not a filter; the error names the position.
    """
    if len(text) > LONGEST:
        raise FilterTextError(LONGEST + 1, f"it has more than {LONGEST:,} characters; give fewer terms")
    found: dict[str, Any] = {}
    seen: set[str] = set()
    for term in _terms(text):
        kind = term.values[0].text[:1] if term.field in ("age", "ended") else ""
        if term.field not in ("tag", "age", "ended") and term.field in FIELDS and term.field in seen:
            raise FilterTextError(
                term.position, f"{term.field} is given twice; write its values together: {term.field}:a,b"
            )
        seen.add(term.field)
        for name, value in _condition(term, kind).items():
            if name == "tags":
                value = (*found.get("tags", ()), *value)
            elif name in found:
                raise FilterTextError(term.position, f"{term.field}:{kind} is given twice; leave one of them out")
            found[name] = value
    return JobConditions(**found)


def _terms(text: str) -> list[_Term]:
    terms: list[_Term] = []
    place = count = 0
    while (space := _SPACE.match(text, place)) is not None or place < len(text):
        if space is not None:
            place = space.end()
            if place == len(text):
                break
        field = _FIELD.match(text, place)
        if field is None:
            word = _WORD.match(text, place)
            raise FilterTextError(
                place + 1,
                f"{shown(word[0] if word else text[place])} is not a term; write FIELD:VALUE, such as "
                "state:failed or id:01J...",
            )
        values, end = _values(text, field.end() + 1, field[0])
        count += len(values)
        if count > MOST_VALUES:
            raise FilterTextError(place + 1, f"a filter has at most {MOST_VALUES} values; leave some out")
        terms.append(_Term(field[0], place + 1, values))
        place = end
        if place < len(text) and not text[place].isspace():
            raise FilterTextError(place + 1, f"{text[place]!r} is not expected here; separate terms by a space")
    return terms


def _values(text: str, place: int, field: str) -> tuple[tuple[_Value, ...], int]:
    values: list[_Value] = []
    while True:
        if (quoted := _QUOTED.match(text, place)) is not None:
            values.append(_Value(_ESCAPE.sub(r"\1", quoted[1]), place + 1, quoted=True))
            place = quoted.end()
        elif (word := _WORD.match(text, place)) is not None:
            values.append(_Value(word[0], place + 1))
            place = word.end()
        elif text.startswith('"', place):
            raise FilterTextError(place + 1, 'this quoted value has no end; close it with "')
        else:
            raise FilterTextError(place + 1, f"{field}: has no value here; write {field}:VALUE")
        if not text.startswith(",", place):
            return tuple(values), place
        place += 1


def _condition(term: _Term, kind: str) -> dict[str, Any]:
    match term.field:
        case "state":
            return {"states": _each(term, _state)}
        case "reason":
            return {"reasons": _each(term, _reason)}
        case "fault":
            return {"faults": _each(term, _fault)}
        case "queue" | "task" | "error" | "owner" | "key" | "schedule":
            return {f"{term.field}s": _each(term, _pattern)}
        case "tag":
            return {"tags": (_name(_single(term, "a job must have all of its tags; write tag:a tag:b")),)}
        case "id":
            return {"id": _name(_single(term, "give the id of one job"))}
        case "age" | "ended":
            value = _single(term, f"give one duration, such as {term.field}:<1h")
            names = ("older", "younger") if term.field == "age" else ("ended_before", "ended_within")
            if kind not in ("<", ">"):
                raise FilterTextError(
                    value.position,
                    f"{term.field}:{value.text} has neither < nor >; for less long ago write "
                    f"{term.field}:<{value.text}",
                )
            return {names[kind == "<"]: _span(value)}
        case other:
            return {"tags": (_search_tag(term, other),)}


def _search_tag(term: _Term, field: str) -> str:
    meant = any(_is_misspelt(field.casefold(), known) for known in FIELDS)
    value = _single(term, f"a job must have all of its tags; write {field}:a {field}:b")
    if meant:
        raise FilterTextError(
            term.position,
            f'field {field!r} is unknown{did_you_mean(field, FIELDS)} If it is a tag, write tag:"{field}:{value.text}"',
        )
    return _name(_Value(f"{field}:{value.text}", term.position))


def _is_misspelt(field: str, known: str) -> bool:
    """Return True if a field is probably a known one: its plural, or it with one letter changed or two swapped.

    Names that are less similar are those of search fields: `region` is not `reason`, and `page` is not `age`.
    """
    if len(known) <= SHORT or abs(len(field) - len(known)) > 1:
        return field in (known, f"{known}s")
    start = next((at for at, (one, other) in enumerate(zip(field, known, strict=False)) if one != other), None)
    if start is None:
        return True
    rest, known_rest = field[start:], known[start:]
    return (
        rest[1:] in (known_rest, known_rest[1:])
        or rest == known_rest[1:]
        or (rest[:2] == known_rest[:2][::-1] and rest[2:] == known_rest[2:])
    )


def _each(term: _Term, read: Callable[[_Value], T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(read(value) for value in term.values))


def _single(term: _Term, remedy: str) -> _Value:
    value, *more = term.values
    if more:
        raise FilterTextError(more[0].position, f"{term.field} takes one value; {remedy}")
    return value


def _state(value: _Value) -> State:
    if value.text not in State.__members__.values():
        raise FilterTextError(value.position, _unknown("state", value.text, [state.value for state in State]))
    return State(value.text)


def _reason(value: _Value) -> DeadReason:
    for reason in get_args(DeadReason):
        if value.text == reason:
            known: DeadReason = reason
            return known
    raise FilterTextError(value.position, _unknown("reason", value.text, [*get_args(DeadReason)]))


def _unknown(field: str, text: str, known: list[str]) -> str:
    meant = did_you_mean(text, known)
    return f"{field} {shown(text)} is unknown{f'{meant} Use' if meant else '; use'} one of {', '.join(known)}"


def _fault(value: _Value) -> str:
    if len(value.text) != LENGTH or not set(value.text) <= set("0123456789abcdef"):
        raise FilterTextError(
            value.position,
            f"fault {shown(value.text)} must be {LENGTH} hexadecimal digits; the groups of dead letters show them",
        )
    return value.text


def _name(value: _Value) -> str:
    try:
        return named(value.text, field="value")
    except UsageError as error:
        raise FilterTextError(value.position, str(error)) from None


def _pattern(value: _Value) -> NamePattern:
    name = _name(value)
    return NamePattern(name) if value.quoted else pattern_of(name)


def _span(value: _Value) -> int:
    try:
        return micros(duration(value.text[1:], field="duration"))
    except UsageError as error:
        raise FilterTextError(value.position + 1, str(error)) from None
