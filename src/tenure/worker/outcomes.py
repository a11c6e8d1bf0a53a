"""The outcomes of runs until the storage has answered. Each outcome is in at most one call at a time.

add ──► waiting ──take──► sent ──apply─► answered: done, duplicate, lost, gone
           ▲                └─── back: the call failed, or a part of the storage gave no verdict
"""

from collections.abc import Sequence

from tenure.core.job import JobRecord
from tenure.core.outcome import Unreadable
from tenure.core.settlement import Settlement, settlement
from tenure.failures import recorded
from tenure.storage.protocol import SettlementResult, SettleVerdict
from tenure.worker.active_runs import RunKey
from tenure.worker.deps import WorkerDeps

REFUSALS = 3
"""How often the recording of one outcome may fail for a reason that is not the storage's."""


class Outcomes:
    """The outcomes of one worker."""

    def __init__(self, deps: WorkerDeps) -> None:
        self._active_runs, self._rng = deps.active_runs, deps.rng
        self._logger, self._metrics = deps.logger, deps.metrics
        self._waiting: dict[RunKey, Settlement] = {}
        self._sent: dict[RunKey, Settlement] = {}
        self._refused: dict[RunKey, int] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent)

    @property
    def waiting(self) -> int:
        """The number of outcomes that are in no call."""
        return len(self._waiting)

    @property
    def refused(self) -> bool:
        """True if one of the outcomes may have caused a call to fail."""
        return bool(self._refused)

    @property
    def ids(self) -> list[str]:
        """The ids of the jobs whose outcomes have not been answered yet."""
        return [ref.id for ref, _ in (*self._sent, *self._waiting)]

    def add(self, key: RunKey, entry: Settlement) -> None:
        """Add the outcome of a run that has none yet."""
        self._waiting[key] = entry

    def take(self, most: int) -> list[Settlement]:
        """Return the first waiting outcomes, at most `most`, to be sent with a call."""
        if len(self._waiting) <= most:
            taken, self._waiting = self._waiting, {}
        else:
            taken = {key: self._waiting.pop(key) for key in list(self._waiting)[:most]}
        self._sent.update(taken)
        return list(taken.values())

    def put_back(self, batch: Sequence[Settlement]) -> int:
        """Put the outcomes of a call that got no verdict behind all waiting ones. Return how many."""
        put_back = 0
        for entry in batch:
            key = (entry.ref, entry.fence)
            if self._sent.pop(key, None) is not None:
                self._waiting[key] = entry
                put_back += 1
        return put_back

    def apply(self, verdicts: Sequence[SettlementResult]) -> None:
        """Release the runs that the storage has given a verdict on."""
        keys = [(verdict.ref, verdict.fence) for verdict in verdicts]
        answered: list[tuple[JobRecord, Settlement, SettleVerdict, float]] = []
        for key, run, verdict in zip(keys, self._active_runs.drop_all(keys), verdicts, strict=True):
            entry = self._sent.pop(key, None)
            if self._refused:
                self._refused.pop(key, None)
            if run is not None and entry is not None:
                answered.append((run.lease.job, entry, verdict.verdict, run.took))
            if verdict.verdict == "lost":
                self._logger.warning(
                    "job %s: its run under fence %d was taken over by another run; its outcome was refused",
                    verdict.ref.id,
                    verdict.fence,
                )
        self._metrics.answered(answered)

    def note_failure(self, batch: Sequence[Settlement], error: Exception) -> None:
        """Note the outcomes that an unexpected failure may be due to. Give up outcomes that fail repeatedly.

        The outcomes are in no call any more.
        """
        for entry in batch:
            key = (entry.ref, entry.fence)
            self._refused[key] = self._refused.get(key, 0) + 1
            run = self._active_runs.get(key)
            if self._refused[key] == REFUSALS and run is not None:
                # The outcome cannot be recorded as it is. Record this fact as the outcome instead.
                self._waiting[key] = settlement(run.lease, Unreadable(recorded(error)), self._rng)
            elif self._refused[key] >= 2 * REFUSALS:
                self._logger.error(
                    "job %s: the outcome of its run cannot be recorded; the run will stall", entry.ref.id
                )
                self._waiting.pop(key, None)
                del self._refused[key]
                self._active_runs.drop(key)
