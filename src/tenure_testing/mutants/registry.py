"""The registry of the mutants."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenure.storage.memory.model import Model

M = TypeVar("M", bound=type[Model])


@dataclass(frozen=True)
class Mutant:
    """A model, and where its mutation shows: in a predefined world, or in drawn worlds if `scenario` is empty."""

    name: str
    model: type[Model]
    scenario: str
    harmless: bool

    @property
    def guard(self) -> str:
        """What the mutant leaves out or does instead: the first line of its docstring."""
        return (self.model.__doc__ or "").strip().partition("\n")[0].rstrip(".")


MUTANTS: dict[str, Mutant] = {}


def mutant(scenario: str = "noise", *, harmless: bool = False) -> Callable[[M], M]:
    """Register a model as a mutant."""

    def enter(model: M) -> M:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", model.__name__).lower()
        MUTANTS[name] = Mutant(name, model, scenario, harmless)
        return model

    return enter
