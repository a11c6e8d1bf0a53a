"""Text in a form that every storage can keep."""


def storable(text: str) -> str:
    """Return the text with a question mark for each character that no database can hold (lone surrogates, NUL).

    The message of an outcome must never prevent its recording.
    """
    return text.encode(errors="replace").decode().replace("\0", "?")
