"""Hides the passwords in the URL of a storage."""

import re

_SECRET = re.compile(r"((?:^|[?&])(?:(?:sentinel_|ssl)?password|listen_url)=)[^&]*")


def shown_of(url: str) -> str:
    """Return a URL without its passwords. It need not be valid, and a password may contain unescaped delimiters."""
    scheme, way, rest = _SECRET.sub(r"\1***", url).rpartition("://")
    user, at, hosts = rest.rpartition("@")
    name, colon, _ = user.partition(":")
    return f"{scheme}{way}{name}{':***' if colon else ''}{at}{hosts}"
