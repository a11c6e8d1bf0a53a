"""Decides which of many partitions one reaper sweeps in a turn, and which it skips.

    swept each turn ──nothing waits for a sweep──► skipped ──the skip is almost over, or something changes──┐
          ▲                                                                                                 │
          └─────────────────────────────────────────────────────────────────────────────────────────────────┘

The partition itself grants a skip, with a leader's term that lasts as long. The first change in it ends the skip and
publishes a hint, and the reaper sweeps it in its next turn. If the hint is lost, a lease that began meanwhile is still
found in time: a skip is shorter than the reaper's leases (`longest_skip` in core/leadership.py).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, structs

from tenure.clock import SECOND
from tenure.core.leadership import Term
from tenure.errors import StorageError
from tenure.storage.notifications import Listener
from tenure.storage.protocol import SweepRequest, SweepResult
from tenure.storage.redis.merge_answers import merge_sweeps
from tenure.storage.redis.partition import Partition

TERM_SHARE_PER_CALL = 0.4
"""Each call must be answered within this part of a term, so that the next sweep still comes before the term ends."""


class _PartitionTurn(Struct):
    """A reaper's plan for one partition: when to sweep it next, and the terms that it holds there."""

    changes: Listener
    sweep_at: float = 0.0
    leads: bool = False
    terms: tuple[Term, ...] = ()


class SweepSchedule:
    """One reaper's schedule for all partitions, turn by turn."""

    def __init__(self, partitions: Sequence[Partition], listen: Callable[[Iterable[str]], Listener]) -> None:
        self._turns = {partition: _PartitionTurn(listen((f"partition:{partition.base}",))) for partition in partitions}

    def close(self) -> None:
        """Stop listening."""
        for turn in self._turns.values():
            turn.changes.close()

    async def turn(self, bid: SweepRequest) -> tuple[SweepResult, list[Partition]]:
        """Sweep the partitions that are not skipped; return the result, and the partitions that answered.

        Raises:
            StorageError: none of the partitions that were asked has answered.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        for turn in self._turns.values():
            if turn.changes.take():
                turn.sweep_at = began
        due = [partition for partition, turn in self._turns.items() if turn.sweep_at <= began]
        within = None if bid.term is None else TERM_SHARE_PER_CALL * bid.term / SECOND
        outcomes = await asyncio.gather(
            *(partition.sweep_or_skip(bid, within=within) for partition in due), return_exceptions=True
        )
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for error in errors:
            if not isinstance(error, StorageError):
                raise error
        if errors and len(errors) == len(due):
            raise errors[0]
        now = loop.time()
        swept: dict[Partition, SweepResult] = {}
        for partition, outcome in zip(due, outcomes, strict=True):
            turn = self._turns[partition]
            turn.sweep_at, turn.leads, turn.terms = began, False, ()
            if isinstance(outcome, BaseException):
                continue
            swept[partition], skip = outcome
            self._plan(turn, swept[partition], skip, bid, began, now)
        return self._merged(swept, [str(error) for error in errors], bid, now), list(swept)

    @staticmethod
    def _plan(turn: _PartitionTurn, swept: SweepResult, skip: int, bid: SweepRequest, began: float, now: float) -> None:
        """Plan the next sweep of a partition that was swept, or that another owner leads."""
        if swept.retry_in is not None:
            turn.sweep_at = now + swept.retry_in / SECOND
            return
        turn.leads, turn.terms = True, swept.terms
        if skip:
            # Come with the last turn before the skip is over, not with the first one after it.
            turn.sweep_at = began + (skip - bid.every) / SECOND

    def _merged(
        self, swept: Mapping[Partition, SweepResult], troubles: Sequence[str], bid: SweepRequest, now: float
    ) -> SweepResult:
        turns = self._turns.values()
        waits = [round((turn.sweep_at - now) * SECOND) for turn in turns if turn.sweep_at > now]
        leads = any(turn.leads for turn in turns)
        return structs.replace(
            merge_sweeps([*swept.values()], troubles),
            terms=tuple(term for turn in turns for term in turn.terms),
            # At least once in a sweep interval: a change may end the skip of a leader that is gone.
            retry_in=None if leads or bid.term is None else min([bid.every, *waits]),
        )
