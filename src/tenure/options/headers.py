"""Headers: short texts by name that a job carries in addition to its arguments, for tracing, tenants and the like."""

from collections.abc import Mapping
from typing import Any, cast

from tenure.core.check import named, shown
from tenure.core.text import storable
from tenure.errors import UsageError

HEADERS = 16
"""The most headers of a job."""

HEADERS_SIZE = 4096
"""The most bytes that a job's headers take, names and values together, in UTF-8."""


def valid_headers(value: object) -> dict[str, str]:
    """Return a copy of the headers.

    Raises:
        UsageError: they are not texts by name, there are more than 16, or they take more than 4 KiB. The message names
            the header.
    """
    if not isinstance(value, Mapping):
        raise UsageError(f'headers = {shown(value)} must be texts by name; write headers={{"tenant": "acme"}}')
    headers: dict[str, str] = {}
    for name, text in cast(Any, value).items():
        headers[named(name, field="the name of a header")] = _valid_text(text, name)
        if len(headers) > HEADERS:
            raise UsageError(
                f"headers has {name!r} as its number {HEADERS + 1}, and a job may have {HEADERS}; put the rest into "
                "its arguments"
            )
    sizes = {name: len(name.encode()) + len(text.encode()) for name, text in headers.items()}
    if sum(sizes.values()) > HEADERS_SIZE:
        longest = max(sizes, key=sizes.__getitem__)
        raise UsageError(
            f"headers takes {sum(sizes.values()):,} bytes, and the limit is {HEADERS_SIZE:,}; the longest is "
            f"{longest!r} with {sizes[longest]:,}; store the data elsewhere and pass a reference"
        )
    return headers


def _valid_text(text: object, name: object) -> str:
    if not isinstance(text, str) or storable(text) != text:
        raise UsageError(f"headers[{name!r}] = {shown(text)} must be a text without NUL or lone surrogates")
    return text
