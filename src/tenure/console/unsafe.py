"""What a request that changes something must have: it comes from a page of this console, and its body is JSON.

A page of another site can make a browser send a request here, with the credentials that the browser adds by itself.
But it can neither forge `Sec-Fetch-Site` and `Origin` nor add a bearer token or `Content-Type: application/json`.
"""

import asyncio
import re
from typing import Any, TypeVar, cast, get_args

import msgspec
from msgspec import Struct

from tenure.console.problems import ProblemError, ProblemName, ProblemPart
from tenure.console.requests import ConsoleRequest
from tenure.core.check import shown
from tenure.core.suggestion import did_you_mean
from tenure.health.auth import bearer_of
from tenure.http.asgi import Receive

BODY_WITHIN = 10.0
"""Seconds within which a body must arrive."""

_PORTS = {"http": "80", "https": "443"}

S = TypeVar("S", bound=Struct)


def require_same_origin(request: ConsoleRequest) -> None:
    """Check that a request comes from a page of this console, or has a bearer token.

    Raises:
        ProblemError: it does not show that.
    """
    if any(bearer_of(value.encode("latin-1")) for value in request.headers("authorization")):
        return
    sites = request.headers("sec-fetch-site")
    if sites == ["same-origin"]:
        return
    if sites:
        header, why = "sec-fetch-site", "it is not same-origin"
    elif request.headers("origin"):
        if _authority_of(request.header("origin") or "") in _authorities(request.header("host") or ""):
            return
        header, why = "origin", "it is not the origin of this console, which Host names"
    else:
        header, why = "origin", "it is missing, and so are Sec-Fetch-Site and a bearer token"
    raise ProblemError(
        "cross-site",
        f"a request that changes something must come from a page of this console, and its {header} does not show that",
        f"send Authorization: Bearer TOKEN, or Origin: http://{request.header('host') or 'HOST'}",
        errors=[ProblemPart(f"/header/{header}", why)],
    )


def _authority_of(origin: str) -> str | None:
    found = re.fullmatch(r"(https?)://([^/?#@\s]+)", origin.lower())
    if found is None:
        return None
    return found[2] if re.search(r":\d+$", found[2]) else f"{found[2]}:{_PORTS[found[1]]}"


def _authorities(host: str) -> set[str]:
    """Return the authorities that a `Host` stands for. A proxy may have ended TLS, so both default ports count."""
    host = host.lower()
    if not host:
        return set()
    return {host} if re.search(r":\d+$", host) else {f"{host}:{port}" for port in _PORTS.values()}


async def read_body(request: ConsoleRequest, receive: Receive, kind: type[S], *, most: int) -> S:
    """Read the JSON body of a request; an empty one stands for `{}`.

    Raises:
        ProblemError: it is not declared as JSON, has more than `most` bytes, arrives too late, is not JSON, or has an
            unknown or invalid field.
    """
    types = request.headers("content-type")
    if [value.partition(";")[0].strip().lower() for value in types] != ["application/json"]:
        why = f"Content-Type = {shown(', '.join(types))} is not JSON" if types else "Content-Type is missing"
        raise ProblemError(
            "not-json",
            why,
            "send the body as JSON, with Content-Type: application/json",
            errors=[ProblemPart("/header/content-type", why)],
        )
    declared = request.header("content-length") or ""
    if declared.isdecimal() and int(declared[:20]) > most:
        raise _too_large(most)
    try:
        async with asyncio.timeout(BODY_WITHIN):
            raw = await _received(receive, most)
    except TimeoutError as error:
        raise ProblemError(
            "slow-body", f"the body did not arrive within {BODY_WITHIN:g} s", "send it at once"
        ) from error
    return body_of(raw, kind)


async def _received(receive: Receive, most: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ProblemError("invalid-json", "the client has left before its body was complete", "send it again")
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > most:
            raise _too_large(most)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(most: int) -> ProblemError:
    return ProblemError("body-too-large", f"the body has more than {most:,} bytes", "send less")


def body_of(raw: bytes, kind: type[S]) -> S:
    """Return a body as a Struct.

    Raises:
        ProblemError: it is not a JSON object, or has an unknown or invalid field.
    """
    data = _decoded(raw) if raw.strip() else dict[str, Any]()
    if not isinstance(data, dict):
        raise ProblemError(
            "invalid-body",
            f"the body is {_kind_of(data)}, not an object",
            'write {"field": value}',
            errors=[ProblemPart("/body", "it is not an object")],
        )
    values = cast("dict[str, Any]", data)
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    parts: list[ProblemPart] = []
    name: ProblemName = "invalid-body"
    for key in values:
        if key not in fields:
            name = "unknown-field"
            end = did_you_mean(key, fields) or f"; use {', '.join(sorted(fields))}"
            parts.append(ProblemPart(f"/body/{_escaped(key)}", f"field {shown(key)} is unknown{end}"))
    given: dict[str, Any] = {}
    for key, field in fields.items():
        if key in values:
            try:
                given[field.name] = msgspec.convert(values[key], field.type)
            except (msgspec.ValidationError, OverflowError) as error:
                parts.append(_invalid(key, field.type, str(error)))
        elif field.required:
            parts.append(ProblemPart(f"/body/{key}", f"the field {key} is missing; {_described(key, field.type)}"))
    if parts:
        detail, _, remedy = parts[0].message.partition("; ")
        raise ProblemError(name, detail, remedy, errors=parts)
    return kind(**given)


def _decoded(raw: bytes) -> object:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise _malformed("the body is not UTF-8", len(raw[: error.start].decode()) + 1) from None
    try:
        decoded: object = msgspec.json.decode(raw)
        return decoded
    except RecursionError:
        raise ProblemError("invalid-json", "the body is nested too deeply", "send a flat object") from None
    except (msgspec.DecodeError, ValueError) as error:
        found = re.search(r"\(byte (\d+)\)", str(error))
        place = len(raw[: int(found[1])].decode(errors="ignore")) + 1 if found else len(text) + 1
        why = re.sub(r"^JSON is malformed: | \(byte \d+\)", "", str(error))
        raise _malformed(f"the body is not JSON: {why}", place) from None


def _malformed(why: str, position: int) -> ProblemError:
    return ProblemError(
        "invalid-json",
        f"{why}, at character {position}",
        "send one JSON object",
        errors=[ProblemPart("/body", why, position)],
    )


def _invalid(name: str, kind: Any, error: str) -> ProblemPart:
    why, _, path = error.replace("`", "").partition(" - at $")
    inner = "".join(f"/{step}" for step in re.findall(r"[^.\[\]]+", path) if step != "...")
    return ProblemPart(
        f"/body/{name}{inner}", f"{name}{path} is invalid: {why[0].lower()}{why[1:]}; {_described(name, kind)}"
    )


def _described(name: str, kind: Any) -> str:
    """Return which values a field takes."""
    for meta in (meta for part in (kind, *get_args(kind)) for meta in getattr(part, "__metadata__", ())):
        if isinstance(meta, msgspec.Meta) and meta.description:
            return f"{name}: {meta.description}"
    return "see /api/v1/openapi.json"


def _kind_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case _:
            return "an array"


def _escaped(name: str) -> str:
    """Return a name as a step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
