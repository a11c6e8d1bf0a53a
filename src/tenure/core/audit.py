"""The record of an operator's act: who did what to what, asked when, done when, and with which result."""

from typing import Literal

from msgspec import Struct, structs

from tenure.core.retention import KeepRule
from tenure.core.text import storable

Via = Literal["api", "cli", "console", "webhook"]
"""The way by which an act came. `webhook`: the answer of a receiver caused it."""

ACTS_KEPT = KeepRule(365 * 86_400 * 1_000_000, 100_000)
"""How long the audit log keeps its records: a year, and at most the newest 100,000."""

LONGEST = {
    "actor": 200,
    "role": 100,
    "action": 100,
    "target": 500,
    "change": 500,
    "filter": 2_000,
    "op": 500,
    "reason": 500,
    "verdict": 500,
}
"""The greatest length of each text of a record, in characters."""


class OperatorAct(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An act of an operator, as the audit log keeps it.

    It is written twice under the same `id`: before the act without a verdict, and after it with one. If the first write
    fails, the act must not happen; that is the rule of the caller. A record without `done` says that the act was asked
    for, and that its result is unknown.

    `actor`: the operator's name. `role`: the role that allowed the act. `action`: the kind of the target and the verb,
    as `jobs.cancel` or `queues.pause`. `target`: a queue, task, schedule or worker by its name or id, a job as
    `QUEUE/ID`. `change`: the new values, as `rate=10/s`. `filter`: the filter that selected the jobs of a bulk
    operation; `count`: how many jobs it applied to; `op`: the id of the bulk operation. `reason`: the operator's own
    words. `asked` and `done`: the instants of the two writes, in microseconds on the storage's clock. `verdict`: the
    result, as `done`, `changed`, `gone` or `refused: ...`.
    """

    id: str
    actor: str
    role: str
    via: Via
    action: str
    target: str
    change: str | None = None
    filter: str | None = None
    count: int | None = None
    op: str | None = None
    reason: str | None = None
    asked: int | None = None
    done: int | None = None
    verdict: str | None = None

    def written(self, kept: "OperatorAct | None", now: int) -> "OperatorAct":
        """Return the record after this write; `kept`: the record of this id that exists, None if the id is unknown.

        The first write with a verdict decides. So a repeated write, or one that arrives late, changes nothing. If the
        record does not exist, a write with a verdict creates it whole.
        """
        if kept is None:
            asked = now if self.asked is None else self.asked
            return structs.replace(self, asked=asked, done=None if self.verdict is None else now)
        if self.verdict is None or kept.done is not None:
            return kept
        return structs.replace(kept, done=now, verdict=self.verdict, count=self.count)


def fitted(act: OperatorAct) -> OperatorAct:
    """Return the act with texts that every storage can keep: without NUL, and cut at `LONGEST` with a mark."""
    return structs.replace(act, **{name: fitted_text(getattr(act, name), name) for name in LONGEST})


def fitted_text(text: str | None, field: str) -> str | None:
    """Return the text of a field as a record keeps it; see `fitted`."""
    if text is None:
        return None
    most, clean = LONGEST[field], storable(text)
    return clean if len(clean) <= most else f"{clean[: most - 1]}…"
