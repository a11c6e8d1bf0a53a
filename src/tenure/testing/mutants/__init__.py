"""Models with one guard taken out each: a simulation that lets one of them pass is worth nothing.

To add one, derive it from `Model` below `@mutant`; its docstring says what it does, in the words of the table that
`python -m tenure.testing.mutants` prints. One that does no harm is a control: what is not needed must not be caught.
"""

from tenure.testing.mutants import calls, flow, turns
from tenure.testing.mutants.register import MUTANTS, Mutant, mutant

__all__ = ["MUTANTS", "Mutant", "calls", "flow", "mutant", "turns"]
