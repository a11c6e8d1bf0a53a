"""Text as every storage can keep it."""


def storable(text: str) -> str:
    """Return the text with what no UTF-8 and no database can hold (lone surrogates, NUL) shown as a question mark.

    An outcome must never fail to be recorded for the sake of its message.
    """
    return text.encode(errors="replace").decode().replace("\0", "?")
