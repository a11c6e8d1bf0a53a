"""The numbers by which a program knows whether it can read a call that another one has stored (intake.py).

During a deploy, producers of a newer version store calls while workers of an older version still run.
"""

from collections.abc import Mapping

from msgspec import structs

from tenure.core.job import NewJob

SINCE: Mapping[str, int] = {"links": 2}
"""The fields of a `NewJob` that programs which know only a lower number cannot read.

Add each new field here, with the next number: a call that sets it then waits for a worker that knows it, and older
workers still take all other calls.
"""

FORMAT = max(SINCE.values(), default=1)
"""The highest number that this program knows."""


def format_of(job: NewJob) -> int:
    """Return the lowest number whose programs read all of a call."""
    defaults = {field.name: field.default for field in structs.fields(NewJob) if field.name in SINCE}
    return max((SINCE[name] for name, default in defaults.items() if getattr(job, name) != default), default=1)
