"""Token authentication for health and metrics: a bearer token, or the password of basic authentication."""

import base64
import binascii
import hmac

from tenure.errors import UsageError


class TokenAuth:
    """Admits requests that carry the token; without a token, all requests."""

    def __init__(self, token: str | None) -> None:
        """Take the token.

        Raises:
            UsageError: it is empty, or has characters that a header cannot carry.
        """
        if token is not None and not visible(token):
            # The message does not show it: it may be a real token with a typing error, and errors end up in logs.
            raise UsageError("the token must be a text of visible ASCII characters, without spaces; make a random one")
        self._token = None if token is None else token.encode()

    @property
    def closed(self) -> bool:
        """Return True if a token is required."""
        return self._token is not None

    def admits(self, authorization: list[bytes]) -> bool:
        """Return True if these `Authorization` headers carry the token; more than one header is refused."""
        if self._token is None:
            return True
        credentials = _credentials(authorization[0]) if len(authorization) == 1 else b""
        # Compare in constant time, so that the duration does not show how much of the token was right.
        return hmac.compare_digest(credentials, self._token)


def visible(token: object) -> bool:
    """Return True if a header can carry this token."""
    return isinstance(token, str) and bool(token) and all("!" <= character <= "~" for character in token)


def bearer_of(header: bytes) -> bytes:
    """Return the token of an `Authorization` header, empty if it has another scheme."""
    scheme, _, rest = header.strip().partition(b" ")
    return rest.strip() if scheme.lower() == b"bearer" else b""


def _credentials(header: bytes) -> bytes:
    scheme, _, rest = header.strip().partition(b" ")
    match scheme.lower():
        case b"bearer":
            return bearer_of(header)
        case b"basic":
            try:
                pair = base64.b64decode(rest.strip(), validate=True)
            except binascii.Error:
                return b""
            return pair.partition(b":")[2]
        case _:
            return b""
