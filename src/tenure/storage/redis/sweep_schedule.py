"""Decides which of many partitions one reaper sweeps in a turn, and which it leaves alone until when.

awake ──swept, and nothing waits for a sweep──► resting ──the rest is over, or something changes──► awake
empty ──looked at: it holds something──► awake          resting ──looked at: it holds nothing──► empty

Resting and empty partitions are looked at together, with one call for each server. The partition itself grants a rest,
with a leader's term that lasts as long. Its first change ends the rest and publishes a hint, and the reaper comes with
its next turn. If the hint is lost, a lease that began meanwhile is still found in time: no rest is longer than that.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct, structs

from tenure.clock import SECOND
from tenure.core.leadership import Term
from tenure.errors import StorageError, StorageUnavailableError
from tenure.storage.notifications import Listener
from tenure.storage.protocol import SweepRequest, SweepResult
from tenure.storage.redis.address import ServerAddress
from tenure.storage.redis.merge_answers import swept_all
from tenure.storage.redis.partition import Partition

STIRRED = "stirred"
"""The topic that a partition hints at when a change ends its rest early, or when it stops being empty."""

TIDY = 120.0
"""Seconds between two sweeps of a partition that holds only leftovers: workers that have left, old events."""

PART_OF_TERM = 0.4
"""Each call must be answered within this part of a term, so that the next sweep still comes before the term ends."""

EMPTY, LEFTOVERS, RESTING, AWAKE = range(4)
"""The results of a look; see look.lua."""

Outcome = SweepResult | BaseException


class _PartitionTurn(Struct):
    """A reaper's plan for one partition: when to come again, whether to look first, and the terms that it holds.

    `empty`: the last look found it empty. `rested`: it has just had a rest. `away`: the last look did not find it on
    its server.
    """

    comes_at: float = 0.0
    looks: bool = True
    empty: bool = False
    rested: bool = False
    away: bool = False
    leads: bool = False
    terms: tuple[Term, ...] = ()
    tidied_at: float | None = None


class SweepSchedule:
    """One reaper's schedule for all partitions, turn by turn."""

    def __init__(
        self,
        cells: Sequence[Partition],
        place: Callable[[str], Awaitable[ServerAddress]],
        listen: Callable[[], Listener],
    ) -> None:
        self._stands = {cell: _PartitionTurn() for cell in cells}
        self._place = place
        self._listener = listen()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    async def turn(self, bid: SweepRequest) -> tuple[SweepResult, list[Partition]]:
        """Sweep the partitions that do not rest; return the result, and the partitions that were reached.

        Raises:
            StorageError: not one of the partitions that were asked was reached.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        stirs = self._listener.take()
        due = [cell for cell, stand in self._stands.items() if stand.comes_at <= began]
        # If one is looked at, look at all that rest: that costs no further calls.
        all_resting = stirs or any(self._stands[cell].looks for cell in due)
        looks = [
            cell
            for cell, stand in self._stands.items()
            if (cell in due and stand.looks) or (all_resting and (cell not in due or stand.rested))
        ]
        straight = [cell for cell in due if cell not in looks]
        found = await asyncio.gather(
            *(self._sweep(cell, bid) for cell in straight),
            *(self._visit(some, due, bid, began) for some in await self._by_server(looks)),
        )
        outcomes = {cell: outcome for part in found for cell, outcome in part.items()}
        errors = [outcome for outcome in outcomes.values() if isinstance(outcome, BaseException)]
        for error in errors:
            if not isinstance(error, StorageError):
                raise error
        if errors and len(errors) == len(outcomes):
            # The hint is taken from the listener already, so look again at the next turn.
            self._stands_again(looks if stirs else ())
            raise errors[0]
        for cell, outcome in outcomes.items():
            self._heed(cell, outcome, bid, began, loop.time())
        swept = {cell: outcome for cell, outcome in outcomes.items() if isinstance(outcome, SweepResult)}
        return self._told(swept, [str(error) for error in errors], bid, loop.time()), list(swept)

    def _stands_again(self, cells: Sequence[Partition]) -> None:
        for cell in cells:
            self._stands[cell].comes_at, self._stands[cell].looks = 0.0, True

    async def _by_server(self, cells: Sequence[Partition]) -> list[list[Partition]]:
        """Group partitions by server. A partition whose server is unknown forms its own group, and fails alone."""
        places = await asyncio.gather(*(self._place(cell.base) for cell in cells), return_exceptions=True)
        parts: defaultdict[object, list[Partition]] = defaultdict(list)
        for cell, place in zip(cells, places, strict=True):
            parts[cell if isinstance(place, BaseException) else place].append(cell)
        return list(parts.values())

    async def _visit(
        self, cells: Sequence[Partition], due: Sequence[Partition], bid: SweepRequest, now: float
    ) -> dict[Partition, Outcome]:
        """Look at the partitions of one server, and sweep those that need it."""
        # Run the script on a partition that is present: one that moves between nodes accepts no calls meanwhile.
        who = next((cell for cell in cells if not self._stands[cell].away), cells[0])
        try:
            sights = dict(zip(cells, await who.look([cell.base for cell in cells], within=_within(bid)), strict=True))
        except StorageUnavailableError as error:
            self._stands[who].away = True
            # Do not ask each of them as well: that would delay the results of the other servers by as long.
            return dict.fromkeys(cells, error)
        except StorageError:
            # The server refuses the look script. Sweep all, as if there were no rests.
            sights = dict.fromkeys(cells, AWAKE)
        for cell, sight in sights.items():
            self._stands[cell].away = sight < EMPTY
            self._stands[cell].empty = sight in (EMPTY, LEFTOVERS)
            self._stands[cell].rested &= sight == RESTING
        empty = [cell for cell in cells if self._stands[cell].empty]
        # A resting one is swept when its rest is over; one that was not found here has moved to another server.
        swept = [cell for cell in cells if cell not in empty and (sights[cell] != RESTING or cell in due)]
        tidied = [cell for cell in empty if self._spare(cell, sights[cell], bid, now)]
        await asyncio.gather(*(self._leave(cell) for cell in empty))
        # An empty partition needs no leader.
        alone = structs.replace(bid, term=None)
        found = await asyncio.gather(
            *(self._sweep(cell, bid) for cell in swept), *(self._sweep(cell, alone) for cell in tidied)
        )
        return {cell: outcome for part in found for cell, outcome in part.items()}

    def _spare(self, cell: Partition, sight: int, bid: SweepRequest, now: float) -> bool:
        """Plan the next look at an empty partition; return True if its leftovers are to be swept now."""
        stand = self._stands[cell]
        stand.comes_at, stand.looks = now + bid.rest / 1_000_000, True
        if sight == EMPTY or stand.tidied_at is None:
            stand.tidied_at = now
        if now < stand.tidied_at + TIDY:
            return False
        stand.tidied_at = now
        return True

    async def _leave(self, cell: Partition) -> None:
        """Resign the terms held in a partition."""
        stand = self._stands[cell]
        terms, stand.terms, stand.leads = stand.terms, (), False
        for term in terms:
            await cell.resign(term)

    async def _sweep(self, cell: Partition, bid: SweepRequest) -> dict[Partition, Outcome]:
        try:
            return {cell: await cell.sweep(bid, within=_within(bid))}
        except Exception as error:
            return {cell: error}

    def _heed(self, cell: Partition, outcome: Outcome, bid: SweepRequest, began: float, now: float) -> None:
        """Plan the next sweep of a partition."""
        stand = self._stands[cell]
        if isinstance(outcome, BaseException):
            stand.terms, stand.leads, stand.looks, stand.comes_at = (), False, stand.empty, began
            return
        if stand.empty:
            # It was only tidied.
            return
        rested, stand.rested = stand.rested, False
        stand.terms, stand.leads, stand.looks, stand.comes_at = (), False, False, began
        if outcome.retry_in is not None:
            stand.comes_at = now + outcome.retry_in / 1_000_000
            return
        stand.terms, stand.leads = outcome.terms, True
        if outcome.again_in is not None and not outcome.more:
            stand.comes_at = began + outcome.again_in / 1_000_000
            # Check for emptiness only after a first rest, or after a rest that follows a sweep that did some work.
            stand.looks = outcome.again_in == bid.rest and (not rested or any(outcome.did.values()))
            stand.rested = True

    def _told(
        self, swept: Mapping[Partition, SweepResult], troubles: Sequence[str], bid: SweepRequest, now: float
    ) -> SweepResult:
        stands = self._stands.values()
        ahead = [round(1_000_000 * (stand.comes_at - now)) for stand in stands if stand.comes_at > now]
        leads = any(stand.leads for stand in stands)
        told = swept_all([*swept.values()], troubles)
        return structs.replace(
            told,
            terms=tuple(term for stand in stands for term in stand.terms),
            retry_in=None if leads or bid.term is None else min([bid.every, *ahead]),
            again_in=min([bid.every, *ahead]),
        )


def _within(bid: SweepRequest) -> float | None:
    return None if bid.term is None else PART_OF_TERM * bid.term / SECOND
