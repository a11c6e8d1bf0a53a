"""What a job waits for, and which of it has arrived.

A suspended job has a `Wait`: a list of needs. Ends of jobs, and signals, arrive as tokens in the job's inbox. The
inbox sorts them into boxes, and in each box a key has one token. `evaluate` compares the wait with the inbox.

Tokens form a lattice: no token < failed < completed. The inbox keeps the maximum of what arrived under a key. So a
token may arrive twice, late, or in another order, and the inbox is the same. A completed job never runs again, so the
maximum is also the latest truth: a token "failed" that arrives after "completed" is from an earlier end of the job.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Literal

from msgspec import Struct, field

from tenure.core.ref import Ref

NEEDS_LIMIT = 64
"""How many needs a wait may have."""

DEPENDENTS_LIMIT = 64
"""How many dependents a call may name. A job may get more of them by `Subscribe`."""

SIGNAL = "signal:"
"""The prefix of boxes whose tokens are signals: their keys are the ids of their senders' messages."""

EARLY_FAILURE = "early_failure"
"""The box of a flow in which the first failure of a member arrives, before the flow itself ends. No need names it."""

TokenOutcome = Literal["failed", "completed"]
"""How the thing that a token stands for ended. Every end of a job except completion is "failed"."""

NeedMode = Literal["fail", "count", "tally", "only", "unless"]
"""What a failed token does to the job that waits.

"fail": it breaks the wait at once. "count": it counts like a completed one. "tally": it counts, and when all tokens
have arrived, it breaks the wait. "only": the wait is for completed tokens only, and a failed one skips the job.
"unless": the wait is for failed tokens only, and a completed one skips the job.
"""

MetBy = Literal["failed", "completed", "timer"]
"""What met a need: its tokens, one of which failed or all of which completed; or its time."""


class JobKind(StrEnum):
    """What a job is for. Only a `JOB` has a handler; the others are never claimed, and end when their wait is over."""

    JOB = "job"
    FLOW = "flow"
    GROUP = "group"


class WaitToken(Struct, frozen=True, gc=False):
    """A message for a job: what `key` stands for in `box` has ended. `body`: the content of a signal."""

    box: str
    key: str
    outcome: TokenOutcome = "completed"
    body: bytes | None = None


class Dependent(Struct, frozen=True, gc=False):
    """A job that is to be notified of the end of another one, and the box and key of the token that it gets then."""

    to: Ref
    box: str
    key: str


class Need(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A condition: `count` keys of a box have arrived. None: as many as the box is sealed with.

    `until`: the instant, in microseconds, at which the need is met by time alone. `step`: the name under which the
    outcome of the need is recorded. `source`: the job whose end the need waits for, if it is one job.
    """

    box: str
    count: int | None = 1
    mode: NeedMode = "fail"
    until: int | None = None
    step: str | None = None
    source: Ref | None = None


class Wait(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a job waits for: all of the needs, or any one of them."""

    needs: tuple[Need, ...]
    want: Literal["all", "any"] = "all"


class Plan(Struct, frozen=True, omit_defaults=True, gc=False):
    """The members of a flow, by the keys of their tokens."""

    nodes: dict[str, Ref]


class Links(Struct, frozen=True, omit_defaults=True, gc=False):
    """How a job depends on others. A plain job has none of this.

    `wait`: what it waits, or has waited, for last. `dependents`: the jobs that are notified of its end. `flow`: the
    flow that it is a member of. `plan`: the members of a flow. `wake_at`: of a suspended job, the instant at which time
    alone ends its wait, or its deadline passes.
    """

    wait: Wait | None = None
    dependents: tuple[Dependent, ...] = ()
    kind: JobKind = JobKind.JOB
    flow: Ref | None = None
    plan: Plan | None = None
    wake_at: int | None = None


class StepRecord(Struct, frozen=True, gc=False):
    """The recorded outcome of a step, which is a need of a wait so far.

    `run`: the number of the job's last run before. `at`: when it was recorded, in microseconds. `body`: the content of
    a signal.
    """

    name: str
    run: int
    at: int
    by: MetBy
    body: bytes | None = None


class Box(Struct):
    """The tokens of one box, by key, in the order of their arrival. `total`: how many there will be, once known."""

    failed: dict[str, WaitToken] = field(default_factory=dict[str, WaitToken])
    completed: dict[str, WaitToken] = field(default_factory=dict[str, WaitToken])
    total: int | None = None

    @property
    def arrived(self) -> int:
        """How many keys have a token."""
        return len(self.failed) + len(self.completed)

    @property
    def first_failed(self) -> str | None:
        """The failed key that comes first: short keys before long ones, so that numbers are in their order.

        It does not depend on the order of arrival.
        """
        return min(self.failed, key=lambda key: (len(key), key), default=None)


_EMPTY = Box()


class Inbox(Struct):
    """The tokens that arrived for a job."""

    boxes: dict[str, Box] = field(default_factory=dict[str, Box])

    def box(self, name: str) -> Box:
        """Return a box; it is empty if nothing arrived in it. The caller must not change it."""
        return self.boxes.get(name, _EMPTY)

    def deliver(self, token: WaitToken) -> bool:
        """Keep the maximum of a token and the one under its key; return True if that changed the inbox."""
        box = self.boxes.setdefault(token.box, Box())
        if token.key in box.completed or (token.outcome == "failed" and token.key in box.failed):
            return False
        if token.outcome == "failed":
            box.failed[token.key] = token
        else:
            box.failed.pop(token.key, None)
            box.completed[token.key] = token
        return True

    def seal(self, name: str, total: int) -> bool:
        """Record how many keys a box will have; return True if that changed the inbox. The largest number counts."""
        box = self.boxes.setdefault(name, Box())
        if box.total is not None and box.total >= total:
            return False
        box.total = total
        return True


class NeedOutcome(Struct, frozen=True, gc=False):
    """What met, or broke, one need of a wait. `body`: the content of the signal that met it."""

    need: Need
    by: MetBy
    body: bytes | None = None


class Open(Struct, frozen=True):
    """Something is missing."""


class Met(Struct, frozen=True):
    """The wait is over. `outcomes`: of each need that is met; of any one need, only that need."""

    outcomes: tuple[NeedOutcome, ...] = ()

    @property
    def by_time(self) -> bool:
        """True if a need was met by time alone."""
        return any(outcome.by == "timer" for outcome in self.outcomes)


class Broken(Struct, frozen=True):
    """A token failed that the wait needs completed. `key`: the failed key in the box of `need`."""

    need: Need
    key: str
    outcomes: tuple[NeedOutcome, ...] = ()


class Skipped(Struct, frozen=True):
    """The job is not needed: the thing that it was meant to react to did not happen."""

    need: Need


Verdict = Open | Met | Broken | Skipped

_OPEN = Open()


def evaluate(wait: Wait, inbox: Inbox, now: int) -> Verdict:
    """Compare a wait with what has arrived by `now`, in microseconds.

    The answer does not depend on the order in which the tokens arrived, except for the body of a signal. For all needs,
    a broken need decides before one that skips the job. For any need, the first met one in the order of the wait
    decides, then a broken one, then one that skips the job.
    """
    verdicts = [_evaluate(need, inbox, now) for need in wait.needs]
    met = [verdict for verdict in verdicts if isinstance(verdict, NeedOutcome)]
    broken = next((verdict for verdict in verdicts if isinstance(verdict, Broken)), None)
    skipped = next((verdict for verdict in verdicts if isinstance(verdict, Skipped)), None)
    if wait.want == "any" and met:
        return Met((met[0],))
    if broken is not None:
        return Broken(broken.need, broken.key, (*met, NeedOutcome(broken.need, "failed")))
    if skipped is not None:
        return skipped
    return Met(tuple(met)) if wait.want == "all" and len(met) == len(verdicts) else _OPEN


def due_at(wait: Wait, inbox: Inbox) -> int | None:
    """Return the instant at which time alone ends an open wait; None if it needs a token."""
    missing = [need for need in wait.needs if isinstance(_evaluate(need, inbox, None), Open)]
    times = [need.until for need in missing if need.until is not None]
    if wait.want == "any":
        return min(times, default=None)
    return max(times, default=None) if len(times) == len(missing) else None


def missing_sources(wait: Wait, inbox: Inbox) -> list[tuple[Need, Ref]]:
    """Return the needs that are still open and wait for the end of one job, each with that job."""
    return [
        (need, need.source)
        for need in wait.needs
        if need.source is not None and isinstance(_evaluate(need, inbox, None), Open)
    ]


def added(dependents: tuple[Dependent, ...], more: Iterable[Dependent]) -> tuple[Dependent, ...]:
    """Return dependents with others added, each once, in order."""
    return tuple(dict.fromkeys((*dependents, *more)))


def failure_cause(need: Need, key: str, job: Ref, kind: JobKind, plan: Plan | None) -> Ref | None:
    """Return the job whose end broke a need of `job`; None if the key does not lead to a job.

    A member of a group is in the queue of the group, and its id is that of the group, `~` and its key.
    """
    if need.source is not None:
        return need.source
    nodes: Mapping[str, Ref] = {} if plan is None else plan.nodes
    if key in nodes:
        return nodes[key]
    return Ref(job.queue, f"{job.id}~{key}") if kind is JobKind.GROUP else None


def _evaluate(need: Need, inbox: Inbox, now: int | None) -> Open | NeedOutcome | Broken | Skipped:
    """Compare one need with its box. `now`: None leaves the need's time out."""
    box = inbox.box(need.box)
    failed = box.first_failed if need.mode in ("fail", "only", "tally") and box.failed else None
    if need.mode == "fail" and failed is not None:
        return Broken(need, failed)
    if (need.mode == "only" and failed is not None) or (need.mode == "unless" and box.completed):
        return Skipped(need)
    count = box.total if need.count is None else need.count
    if count is not None and box.arrived >= count:
        if need.mode == "tally" and failed is not None:
            return Broken(need, failed)
        return NeedOutcome(need, "failed" if box.failed else "completed", _body(box, count))
    if now is not None and need.until is not None and need.until <= now:
        return NeedOutcome(need, "timer")
    return _OPEN


def _body(box: Box, count: int) -> bytes | None:
    """Return the content of the last token that a need counts, in the order of arrival."""
    if not 0 < count <= len(box.completed):
        return None
    return list(box.completed.values())[count - 1].body
