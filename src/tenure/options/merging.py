"""How options are laid over each other: field by field, and policies inside."""

from dataclasses import fields
from typing import Any, TypeVar


class NestedOptions:
    """Options that stand in a field of other options, and are merged there."""


class Layer:
    """Options that are merged with those above and below them."""


Merged = TypeVar("Merged", bound=NestedOptions | Layer)


def overlay(above: Merged, below: Merged) -> Merged:
    """Return what is set above, and the rest as below; policies merge inside."""
    merged: dict[str, Any] = {}
    for spec in fields(above):  # type: ignore[arg-type]  # all of them are dataclasses
        upper, lower = getattr(above, spec.name), getattr(below, spec.name)
        if isinstance(upper, NestedOptions) and isinstance(lower, NestedOptions):
            merged[spec.name] = overlay(upper, lower)
        else:
            merged[spec.name] = lower if upper is None else upper
    # These are made by checking, not by copying; the fields are valid already.
    made = object.__new__(type(above))
    fill(made, **merged)
    return made


def fill(made: object, **values: Any) -> None:
    """Set the fields of options that are being made; from there on they are frozen."""
    for name, value in values.items():
        object.__setattr__(made, name, value)
