"""Frames: several payloads in one, each preceded by its length. They work with any codec."""

_LENGTH = 4


def framed(payload: bytes) -> bytes:
    """Return a payload preceded by its length; the concatenation of frames is a payload of several."""
    return len(payload).to_bytes(_LENGTH, "big") + payload


def unframed(frames: bytes) -> list[bytes]:
    """Return the payloads that were framed, in order.

    Raises:
        ValueError: the bytes are not frames, or are incomplete.
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
