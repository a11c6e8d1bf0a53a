"""Signs messages as Standard Webhooks does: HMAC-SHA256 over `id.timestamp.body`.

See https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md.
"""

import base64
import binascii
import hmac
from collections.abc import Mapping, Sequence

from tenure.errors import UsageError

PREFIX = "whsec_"

SHORTEST, LONGEST = 24, 64
"""The bounds of a secret, in bytes."""

MOST = 2
"""How many secrets a webhook may have at a time: during a rotation the new one and the old one."""


def secrets_of(text: str, *, name: str) -> tuple[bytes, ...]:
    """Return the secrets in a text: one, or two that are separated by spaces. `name`: of the variable that holds it.

    Raises:
        UsageError: a secret is invalid. The message does not show it.
    """
    words = text.split()
    if not 0 < len(words) <= MOST:
        raise UsageError(f"{name} has {len(words)} secrets; give one, or during a rotation two, separated by a space")
    return tuple(_secret(word, name) for word in words)


def _secret(word: str, name: str) -> bytes:
    remedy = f"make one: echo {PREFIX}$(openssl rand -base64 32)"
    if not word.startswith(PREFIX):
        raise UsageError(f"{name} has a secret that does not begin with {PREFIX}; {remedy}")
    try:
        secret = base64.b64decode(word.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise UsageError(f"{name} has a secret that is not base64 after {PREFIX}; {remedy}") from None
    if not SHORTEST <= len(secret) <= LONGEST:
        raise UsageError(f"{name} has a secret of {len(secret)} bytes; it needs {SHORTEST} to {LONGEST}; {remedy}")
    return secret


def signed_headers(message: str, timestamp: int, body: bytes, secrets: Sequence[bytes]) -> Mapping[str, str]:
    """Return the headers that show who has sent a message, and when: one signature for each secret.

    `timestamp`: seconds since 1970, of this attempt. A receiver refuses old ones, so that no third party repeats it.
    """
    content = b"%s.%d.%s" % (message.encode(), timestamp, body)
    signatures = [base64.b64encode(hmac.digest(secret, content, "sha256")).decode() for secret in secrets]
    return {
        "webhook-id": message,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
