"""Merges options field by field, including the fields of nested options."""

from dataclasses import fields
from typing import Any, TypeVar


class NestedOptions:
    """Options that are a field of other options and are merged field by field there."""


class Layer:
    """Options that are merged with the options of the levels above and below."""


Merged = TypeVar("Merged", bound=NestedOptions | Layer)


def overlay(above: Merged, below: Merged) -> Merged:
    """Return the fields that are set in `above`, and the rest from `below`; nested options are merged too."""
    merged: dict[str, Any] = {}
    for spec in fields(above):  # type: ignore[arg-type]  # all of them are dataclasses
        upper, lower = getattr(above, spec.name), getattr(below, spec.name)
        if isinstance(upper, NestedOptions) and isinstance(lower, NestedOptions):
            merged[spec.name] = overlay(upper, lower)
        else:
            merged[spec.name] = lower if upper is None else upper
    # Skip __init__, which only checks: all values are valid already.
    result = object.__new__(type(above))
    fill(result, **merged)
    return result


def fill(options: object, **values: Any) -> None:
    """Set the fields of frozen options while they are being made."""
    for name, value in values.items():
        object.__setattr__(options, name, value)
