"""Requests: the parts of an ASGI scope, and the query parameters read into a Struct."""

from collections.abc import Sequence
from typing import Any, TypeVar, cast, get_origin
from urllib.parse import parse_qsl, quote, unquote

import msgspec
from msgspec import Struct

from tenure.console.problems import ProblemError, ProblemPart
from tenure.core.check import shown
from tenure.core.suggestion import did_you_mean
from tenure.http.asgi import Scope, path_below_root

MOST_FIELDS = 100
"""The greatest number of fields in a query string."""

S = TypeVar("S", bound=Struct)


class ConsoleRequest:
    """A request, as `auth` functions get it. `client`: the address of the peer, None for a Unix socket.

    `method`: the HTTP method. `path`: below the place where the console is mounted, with its escapes (`%2F`).
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.method = str(scope["method"])
        raw = scope.get("raw_path")
        # `path` is unescaped already, so it cannot tell a slash in a name from one between names.
        path = quote(str(scope["path"])) if raw is None else bytes(raw).partition(b"?")[0].decode("latin-1")
        self.path = path_below_root(path, quote(str(scope.get("root_path", ""))))
        client = cast("Sequence[Any] | None", scope.get("client"))
        self.client: str | None = str(client[0]) if client else None

    def headers(self, name: str) -> list[str]:
        """Return the values of all headers of this name."""
        wanted = name.lower().encode("latin-1")
        return [value.decode("latin-1") for key, value in self._scope["headers"] if key.lower() == wanted]

    def header(self, name: str) -> str | None:
        """Return the value of a header, None if it is missing or stands there more than once."""
        values = self.headers(name)
        return values[0] if len(values) == 1 else None

    @property
    def header_names(self) -> set[str]:
        """The names of all headers, in small letters."""
        return {key.decode("latin-1").lower() for key, _ in self._scope["headers"]}

    def segments(self) -> list[str]:
        """Return the parts of the path between slashes, unescaped.

        Raises:
            ProblemError: a part is not UTF-8.
        """
        try:
            return [unquote(part, errors="strict") for part in self.path.removeprefix("/").split("/")]
        except UnicodeDecodeError:
            raise ProblemError("unknown-route", "the path is not UTF-8", "escape each byte of UTF-8 as %XX") from None

    def query(self, kind: type[S]) -> S:
        """Return the query parameters, one field for each.

        Raises:
            ProblemError: a parameter is unknown or invalid, or stands there more than once and takes one value.
        """
        try:
            text = bytes(self._scope.get("query_string", b"")).decode("ascii")
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
        except ValueError:
            raise ProblemError(
                "invalid-parameter",
                f"the query is not UTF-8, or has more than {MOST_FIELDS} fields",
                "escape each byte of UTF-8 as %XX",
            ) from None
        given: dict[str, list[str]] = {}
        for name, value in pairs:
            given.setdefault(name, []).append(value)
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        unknown = [name for name in given if name not in fields]
        if unknown:
            raise _unknown(unknown, sorted(fields))
        values: dict[str, Any] = {}
        parts: list[ProblemPart] = []
        for name, texts in given.items():
            try:
                values[fields[name].name] = _value(fields[name].type, texts)
            except msgspec.ValidationError as error:
                why = str(error).replace("`", "")
                message = f"{name} = {shown(', '.join(texts))} is invalid: {why[0].lower()}{why[1:]}"
                parts.append(ProblemPart(f"/query/{name}", f"{message}; {_remedy(name, fields[name].type)}"))
        if parts:
            detail, _, remedy = parts[0].message.partition("; ")
            raise ProblemError("invalid-parameter", detail, remedy, errors=parts)
        return kind(**values)


def _value(kind: Any, texts: list[str]) -> Any:
    if _is_list(kind):
        return msgspec.convert(texts, kind, strict=False)
    if len(texts) > 1:
        raise msgspec.ValidationError("it is given more than once")
    return msgspec.convert(texts[0], kind, strict=False)


def _is_list(kind: Any) -> bool:
    """Return True if a parameter takes several values: `queue=mail&queue=web`."""
    return get_origin(getattr(kind, "__origin__", kind)) is tuple or get_origin(kind) is tuple


def _remedy(name: str, kind: Any) -> str:
    """Return which values a parameter may have: the range of a number, or the description."""
    metas = [meta for meta in getattr(kind, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
    for meta in metas:
        if meta.ge is not None and meta.le is not None:
            return f"give a whole number from {meta.ge} to {meta.le}"
    described = next((meta.description for meta in metas if meta.description), "see /api/v1/openapi.json")
    return f"{name}: {described}"


def _unknown(names: list[str], known: list[str]) -> ProblemError:
    parts: list[ProblemPart] = []
    for name in names:
        end = did_you_mean(name, known) or (f"; use {', '.join(known)}" if known else "; the path takes none")
        parts.append(ProblemPart(f"/query/{name}", f"parameter {shown(name)} is unknown{end}"))
    detail, _, remedy = parts[0].message.partition("; ")
    return ProblemError("unknown-parameter", detail, remedy, errors=parts)
