"""Who may see the figures: a token, as a bearer or as the password of basic authentication."""

import base64
import binascii
import hmac

from tenure.errors import UsageError


class TokenAuth:
    """Lets through who has the token; without a token, everybody."""

    def __init__(self, token: str | None) -> None:
        """Take the token.

        Raises:
            UsageError: it is empty, or of characters that no header can carry.
        """
        if token is not None and not _visible(token):
            # Not shown: it may be a real one with a slip in it, and errors end up in logs.
            raise UsageError("the token must be a text of visible ASCII characters, without spaces; make a random one")
        self._token = None if token is None else token.encode()

    @property
    def closed(self) -> bool:
        """Whether a token is asked for."""
        return self._token is not None

    def admits(self, authorization: list[bytes]) -> bool:
        """Say whether these `Authorization` headers carry the token; two of them are none."""
        if self._token is None:
            return True
        given = _credentials(authorization[0]) if len(authorization) == 1 else b""
        # In constant time, whatever was given: how long it takes must not tell how much of it was right.
        return hmac.compare_digest(given, self._token)


def _visible(token: object) -> bool:
    return isinstance(token, str) and bool(token) and all("!" <= one <= "~" for one in token)


def _credentials(header: bytes) -> bytes:
    scheme, _, rest = header.strip().partition(b" ")
    match scheme.lower():
        case b"bearer":
            return rest.strip()
        case b"basic":
            try:
                pair = base64.b64decode(rest.strip(), validate=True)
            except binascii.Error:
                return b""
            return pair.partition(b":")[2]
        case _:
            return b""
