"""The steps of a durable handler: their names, their limits, and the records that a run sends.

A step is stored under its name. The same name once more in a run gets a number: `page`, `page#2`. A key of the
caller replaces the number: `page@eu`. A pause between two attempts of a step is stored under `page~1`, `page~2`.
"""

import re
from collections.abc import Iterable

from msgspec import Struct

from tenure.core.waiting import MetBy, StepKind, StepRecord

STEPS_LIMIT = 10_000
"""How many steps a job may have."""

STEP_BYTES = 1024 * 1024
"""The most bytes of the recorded value of one step."""

STEPS_BYTES = 16 * 1024 * 1024
"""The most bytes of all recorded values of a job."""

SIGNALS_LIMIT = 1_000
"""How many signals of one name a job may have that it has not read."""

SIGNAL_BYTES = 32 * 1024
"""The most bytes of the content of a signal."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_STORED = re.compile(r"[A-Za-z0-9_-]{1,64}(#[1-9][0-9]{0,5}|@[!-}]{1,64})?(~[1-9][0-9]{0,5})?")
_KEY = re.compile(r"[!-}]{1,64}")


class NewStep(Struct, frozen=True, gc=False):
    """A record of a step that is not stored yet; the storage adds the run and the instant.

    `by`: "completed" if it has a value, which is the body; "failed" if it failed for good, and the body is its error as
    JSON; "timer" for a pause that is over. `took`: its microseconds.
    """

    name: str
    kind: StepKind = "step"
    by: MetBy = "completed"
    body: bytes | None = None
    took: int | None = None

    def record(self, run: int, now: int) -> StepRecord:
        """Return the record of this step. `run`: the run that brings it."""
        return StepRecord(self.name, run, now, self.by, self.body, self.kind, self.took)


def forgotten_by_redrive(steps: Iterable[StepRecord]) -> set[str]:
    """Return the names of the steps that a redrive forgets: failures, and the pauses between their attempts."""
    records = list(steps)
    failed = {record.name for record in records if record.is_failure}
    return failed | {record.name for record in records if record.name.rpartition("~")[0] in failed}


def is_step_name(name: object) -> bool:
    """Return True if a handler may use this name for a step or a signal."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def is_step_key(key: object) -> bool:
    """Return True if a handler may use this text as the key of a step."""
    # Without "~", which begins the number of a pause.
    return isinstance(key, str) and _KEY.fullmatch(key) is not None


def step_problem(step: NewStep) -> str | None:
    """Return why a storage must refuse the record of a step, or None if it may store it."""
    if _STORED.fullmatch(step.name) is None:
        return f"has a step of the name {step.name[:100]!r}; a name has 1 to 64 letters, digits, '_' or '-'"
    if step.body is not None and len(step.body) > STEP_BYTES:
        return f"has {len(step.body):,} bytes in its step {step.name!r}, the limit is {STEP_BYTES:,}"
    return None
