"""Suggests known names for a misspelt one."""

from collections.abc import Iterable

SUGGESTED = 3
"""How many names one message suggests."""

COMPARED = 2_000
"""Above this number of names nothing is suggested: 10,000 comparisons block an event loop for 0.4 s."""


def close_to(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that are most similar to this one, the best first; upper and lower case count as equal."""
    # Errors are rare, and this import costs as much as all others of the core.
    from difflib import get_close_matches

    by_folded: dict[str, str] = {}
    for other in known:
        by_folded.setdefault(other.casefold(), other)
    if len(by_folded) > COMPARED:
        return []
    return [by_folded[found] for found in get_close_matches(name.casefold(), by_folded, n=SUGGESTED)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message, "; did you mean 'mail' or 'main'?"; empty if no known name is similar."""
    found = [repr(other) for other in close_to(name, known)]
    return f"; did you mean {alternatives(found)}?" if found else ""


def alternatives(words: list[str]) -> str:
    """Return words as a list: "a", "a or b", "a, b or c"."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
