"""Mutants: copies of the model with one guard taken out each. The simulation must catch all of them.

To add one, derive it from `Model` and decorate it with `@mutant`. Its docstring is the text of the table that `python
-m tenure_testing.mutants` prints. A harmless mutant is a control, which the simulation must not catch.
"""

from tenure_testing.mutants import enqueue, rates, runs
from tenure_testing.mutants.registry import MUTANTS, Mutant, mutant

__all__ = ["MUTANTS", "Mutant", "enqueue", "mutant", "rates", "runs"]
