"""Checks the event log after each step (I15): it holds each event that the step must record, and no other."""

from collections import Counter
from collections.abc import Iterator, Sequence

from tenure.core.decision import Finish, PutBack
from tenure.core.events import (
    AnyEvent,
    JobCancelled,
    JobCollected,
    JobCompleted,
    JobDebounced,
    JobDeduplicated,
    JobEnqueued,
    JobEvent,
    JobFailed,
    JobReleased,
    JobRepaired,
    JobRetried,
    JobStalled,
    JobStopIgnored,
    JobThrottled,
    RunFenced,
)
from tenure.core.job import Ref
from tenure.core.lifecycle import State
from tenure_testing.simulation.accounts import Accounts

ON_CALL: dict[str, type[AnyEvent]] = {
    "enqueued": JobEnqueued,
    "deduplicated": JobDeduplicated,
    "debounced": JobDebounced,
    "collected": JobCollected,
    "throttled": JobThrottled,
}
"""The optional event that reports the fate of a call, by its name in the log."""

EventCounts = Counter[tuple[type[AnyEvent], Ref, int]]
"""How many events of a class were recorded for a run of a job."""


class EventChecks:
    """Reads the event log of one world, each event once."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._require = accounts.require
        self._cursor = 0

    def new(self) -> list[AnyEvent]:
        """Return the events since the last call."""
        page = self._accounts.model.events(str(self._cursor), 10_000, None)
        for event in page.events:
            self._cursor += 1
            if isinstance(event, JobStalled):
                self._accounts.stalls.append(event.cursor or "")
                self._accounts.stalled_runs.add((Ref(event.queue, event.id), event.run))
            self._accounts.repaired += isinstance(event, JobRepaired)
            self._require(event.cursor == str(self._cursor), "I15", f"after event {self._cursor - 1}: {event.cursor}")
        return list(page.events)

    def compare(self, recorded: Sequence[AnyEvent], expected: EventCounts, verb: str) -> None:
        """Check that a verb recorded the events that were expected."""
        if not recorded and not expected:
            return
        # The storage may or may not record a refused renewal, because the renewal may cross its settlement. Only a
        # worker knows which of its handlers ignore a stop.
        heard: EventCounts = Counter(
            (type(event), Ref(event.queue, event.id), event.run)
            for event in recorded
            if isinstance(event, JobEvent) and not (verb == "renew" and isinstance(event, RunFenced | JobStopIgnored))
        )
        self._require(
            heard == expected,
            "I15",
            f"{verb} recorded {_listed(heard - expected)}, did not record {_listed(expected - heard)}",
        )


def events_of(decision: Finish | PutBack, *, stopped: bool) -> Iterator[type[AnyEvent]]:
    """Yield each event that must be recorded for a settlement."""
    if stopped:
        yield JobCancelled
        return
    if decision.charge == "stalls":
        yield JobStalled
    match decision:
        case Finish(state=State.COMPLETED):
            yield JobCompleted
        case Finish(state=State.CANCELLED):
            yield JobCancelled
        case Finish():
            yield JobFailed
        case PutBack(charge="failures"):
            yield JobRetried
        case PutBack(charge="releases"):
            yield JobReleased
        case PutBack():
            pass


def _listed(counts: EventCounts) -> list[tuple[str, str, int]]:
    return [(kind.__name__, ref.id, run) for kind, ref, run in counts.elements()]
