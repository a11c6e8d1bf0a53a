"""Frames: many payloads in one, each behind its length, whatever codec made them."""

_LENGTH = 4


def framed(payload: bytes) -> bytes:
    """Return a payload with its length before it; frames put together are a payload of many."""
    return len(payload).to_bytes(_LENGTH, "big") + payload


def unframed(frames: bytes) -> list[bytes]:
    """Return the payloads that were framed, in order.

    Raises:
        ValueError: these are no frames, or a part of them is missing.
    """
    found: list[bytes] = []
    at = 0
    while at < len(frames):
        end = at + _LENGTH + int.from_bytes(frames[at : at + _LENGTH], "big")
        if at + _LENGTH > len(frames) or end > len(frames):
            raise ValueError(f"the frame at byte {at} of {len(frames)} is cut off")
        found.append(frames[at + _LENGTH : end])
        at = end
    return found
