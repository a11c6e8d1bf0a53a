"""The list of the mutants, and how one is entered."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenure.storage.memory.model import Model

M = TypeVar("M", bound=type[Model])


@dataclass(frozen=True)
class Mutant:
    """A model, and where its mutation shows: in a set piece, or (without a name) in worlds drawn from the dice."""

    name: str
    model: type[Model]
    scenario: str
    harmless: bool

    @property
    def guard(self) -> str:
        """What is taken out, or done instead."""
        return (self.model.__doc__ or "").strip().partition("\n")[0].rstrip(".")


MUTANTS: dict[str, Mutant] = {}


def mutant(scenario: str = "noise", *, harmless: bool = False) -> Callable[[M], M]:
    """Enter a model among the mutants."""

    def enter(model: M) -> M:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", model.__name__).lower()
        MUTANTS[name] = Mutant(name, model, scenario, harmless)
        return model

    return enter
