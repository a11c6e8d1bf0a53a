"""The flows of a simulated world: graphs, wide joins, groups, and handlers that suspend their jobs.

No call of a client can suspend a job yet, so a handler asks for it: it registers its wait and snoozes, and the network
of its node sends a suspension instead of the put-back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from msgspec import structs

from tenure.app import Tenure
from tenure.clock import SECOND, Clock
from tenure.core.decision import PutBack, RunEnd, Suspend
from tenure.core.events import JobReleased
from tenure.core.job import NewJob, Ref
from tenure.core.settlement import Settlement
from tenure.core.waiting import Dependent, JobKind, Links, Need, NeedMode, Wait

PAUSING = "pausing"
"""The task whose handler suspends its job."""

END = "end"
MEMBERS = "members"
SIGNAL_BOX = "signal:go"
MODES: tuple[NeedMode, ...] = ("fail", "fail", "fail", "count", "tally", "only", "unless")
TASKS = ("quick", "quick", "steady", "flaky", "broken", "careful", "choosy", PAUSING)

WIDTH = 11
"""The jobs of a wide flow. All but one wait for the first, so that its end leaves an entry in the outbox."""

LONGEST_WAIT = 40
"""The longest time in seconds for which a job waits for a signal."""

PAUSES = 3
"""From this run on, a handler does not suspend its job any more."""


@dataclass
class SimulatedFlow:
    """A flow as its client sends it: the calls in order, the boxes to seal then, and the jobs that may get signals."""

    calls: list[list[NewJob]]
    seals: list[tuple[Ref, int]] = field(default_factory=list[tuple[Ref, int]])

    @property
    def refs(self) -> list[Ref]:
        """All jobs of the flow."""
        return [job.ref for call in self.calls for job in call]


class Pauses:
    """The waits that handlers have registered, by run. They outlive the processes of the handlers."""

    def __init__(self) -> None:
        self._waits: dict[tuple[Ref, int], Wait] = {}

    def register(self, ref: Ref, fence: int, wait: Wait) -> None:
        """Note that a run is to be suspended."""
        self._waits[ref, fence] = wait

    def sent(self, settlements: Sequence[Settlement]) -> tuple[Settlement, ...]:
        """Return settlements with a suspension in the place of each snooze that stands for one."""
        if not self._waits:
            return tuple(settlements)
        return tuple(map(self._suspended, settlements))

    def _suspended(self, sent: Settlement) -> Settlement:
        wait = self._waits.get((sent.ref, sent.fence))
        if wait is None or not isinstance(sent.decision, PutBack) or sent.decision.reason != "snoozed":
            return sent
        events = tuple(
            structs.replace(event, reason="suspended", delay=0.0) if isinstance(event, JobReleased) else event
            for event in sent.events
        )
        return structs.replace(sent, decision=Suspend(wait=wait), ended=RunEnd("released", "suspended"), events=events)


def flow(app: Tenure, rng: Random, number: int, clock: Clock) -> SimulatedFlow:
    """Return a random flow."""
    return rng.choice((_graph, _graph, _wide, _group, _pausing))(_Drawer(app, rng, f"f{number}", clock))


def pause(app: Tenure, rng: Random, ref: Ref, run: int, clock: Clock) -> tuple[list[NewJob], Wait | None]:
    """Return the children that a handler enqueues, and what its job waits for then; None if it does not wait."""
    if run > PAUSES or rng.random() < 0.2:
        return [], None
    # The children do not depend on the run, so a later run finds those of an earlier one.
    drawer = _Drawer(app, Random(f"children of {ref.id}"), f"{ref.id}.c", clock)
    size, mode = drawer.rng.randint(1, 4), drawer.rng.choice(MODES[3:5])
    group = drawer.group(size, mode, (Dependent(ref, "children", END),))
    go = signal(clock, rng, f"go-{run}")
    if rng.random() < 0.4:
        return [], Wait((go,))
    children = Need(box="children", source=group[0].ref, mode=rng.choice(MODES[:4]), step=f"children-{run}")
    if rng.random() < 0.3:
        return group, Wait((go, children), "any")
    return group, Wait((children,))


class _Drawer:
    """Draws the jobs of one flow."""

    def __init__(self, app: Tenure, rng: Random, name: str, clock: Clock) -> None:
        self.rng = rng
        self.name = name
        self._app = app
        self._clock = clock
        self._tasks = [task for task in TASKS if task in app.tasks] or [PAUSING]

    def job(self, name: str, *, tasks: Sequence[str] = ()) -> NewJob:
        """Return a plain job of the flow."""
        task = self._app.tasks[self.rng.choice(tasks or self._tasks)]
        job = structs.replace(task.call(self.rng.randrange(1000)).job, id=f"{self.name}.{name}")
        if self.rng.random() < 0.1:
            expiry: Literal["fail", "discard"] = self.rng.choice(("fail", "discard"))
            job = structs.replace(job, ttl=15 * SECOND, policy=structs.replace(job.policy, on_expire=expiry))
        return job

    def signal(self, step: str) -> Need:
        """Return a need that a signal meets, or its time."""
        return signal(self._clock, self.rng, step)

    def group(
        self, size: int, mode: NeedMode, dependents: tuple[Dependent, ...], *, sealed: bool = True
    ) -> list[NewJob]:
        """Return a group and its members."""
        kind = self.job("group", tasks=["quick"] if "quick" in self._app.tasks else ())
        need = Need(box=MEMBERS, count=size if sealed else None, mode=mode)
        group = linked(kind, Links(Wait((need,)), dependents, JobKind.GROUP))
        members = [
            linked(
                self.job(f"group~{number}", tasks=[task for task in self._tasks if task != PAUSING]),
                Links(dependents=(Dependent(group.ref, MEMBERS, f"{number}"),)),
            )
            for number in range(size)
        ]
        return [group, *members]


def signal(clock: Clock, rng: Random, step: str) -> Need:
    """Return a need that a signal meets, or its time."""
    until = clock.now() + rng.randint(0, LONGEST_WAIT) * SECOND
    return Need(box=SIGNAL_BOX, until=until, step=step)


def linked(job: NewJob, links: Links) -> NewJob:
    """Return a job that waits, or that others wait for."""
    if links.wait is not None:
        job = structs.replace(job, delay=0, run_at=None)
    return structs.replace(job, links=links)


def _graph(drawer: _Drawer) -> SimulatedFlow:
    """Return a graph of three to six jobs, each of which waits for one or two earlier ones."""
    rng = drawer.rng
    jobs = [drawer.job(f"{number}") for number in range(rng.randint(3, 6))]
    needs: dict[Ref, list[Need]] = {job.ref: [] for job in jobs}
    dependents: dict[Ref, list[Dependent]] = {job.ref: [] for job in jobs}
    for place, job in enumerate(jobs[1:], 1):
        for source in rng.sample(jobs[:place], min(place, rng.randint(1, 2))):
            needs[job.ref].append(Need(box=source.id, source=source.ref, mode=rng.choice(MODES)))
            dependents[source.ref].append(Dependent(job.ref, source.id, END))
        if rng.random() < 0.2:
            needs[job.ref].append(drawer.signal("go"))
    ready = [linked(job, _links(needs[job.ref], dependents[job.ref], rng)) for job in reversed(jobs)]
    return SimulatedFlow([ready] if rng.random() < 0.5 else [[job] for job in ready])


def _links(needs: list[Need], dependents: list[Dependent], rng: Random) -> Links:
    want: Literal["all", "any"] = "any" if len(needs) > 1 and rng.random() < 0.2 else "all"
    return Links(Wait(tuple(needs), want) if needs else None, tuple(dependents))


def _wide(drawer: _Drawer) -> SimulatedFlow:
    """Return ten jobs that wait for one, and one that waits for the ten, waiters first."""
    middle = [drawer.job(f"{number}", tasks=("quick", "flaky")) for number in range(1, WIDTH)]
    first = drawer.job("0", tasks=("quick", PAUSING))
    last = drawer.job("last")
    mode = drawer.rng.choice(MODES)
    jobs = [linked(last, Links(Wait(tuple(Need(box=job.id, source=job.ref, mode="count") for job in middle))))]
    jobs += [
        linked(
            job,
            Links(Wait((Need(box=first.id, source=first.ref, mode=mode),)), (Dependent(last.ref, job.id, END),)),
        )
        for job in middle
    ]
    jobs.append(linked(first, Links(dependents=tuple(Dependent(job.ref, first.id, END) for job in middle))))
    return SimulatedFlow([jobs])


def _group(drawer: _Drawer) -> SimulatedFlow:
    """Return a group whose members come in several calls before it is sealed, and a job that waits for it."""
    rng = drawer.rng
    after = drawer.job("after")
    size = rng.randint(1, 6)
    group, *members = drawer.group(
        size, rng.choice(("count", "tally", "tally")), (Dependent(after.ref, "group", END),), sealed=False
    )
    need = Need(box="group", source=group.ref, mode=rng.choice(MODES))
    half = rng.randint(0, size)
    calls = [[linked(after, Links(Wait((need,)))), group], members[:half], members[half:]]
    return SimulatedFlow([call for call in calls if call], [(group.ref, size)])


def _pausing(drawer: _Drawer) -> SimulatedFlow:
    """Return a job that suspends itself, and one that waits for it."""
    first, last = drawer.job("first", tasks=(PAUSING,)), drawer.job("last")
    need = Need(box="first", source=first.ref, mode=drawer.rng.choice(MODES))
    return SimulatedFlow(
        [[linked(last, Links(Wait((need,)))), linked(first, Links(dependents=(Dependent(last.ref, "first", END),)))]]
    )
