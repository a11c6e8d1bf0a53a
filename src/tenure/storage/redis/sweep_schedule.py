"""The rounds of one reaper over many cells: which it sweeps now, and which it leaves alone until when.

awake ──swept, and nothing waits for a sweep──► resting ──its time is over, or something stirs──► awake
empty ──looked at: something is there──► awake         resting ──looked at: nothing is there──► empty

Cells that rest, or are empty, are looked at together, with one call for each server. A rest is granted by the cell,
with a term that lasts for it, and it ends there with the first thing that changes; a hint at that brings the reaper by
his next turn. If the hint is lost, a lease that began meanwhile is found in time all the same: no rest is longer.
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
"""What a cell hints at when its rest is over before its time, or when it is empty no more."""

TIDY = 120.0
"""Seconds between two sweeps of a cell that is empty but for leftovers: workers that are gone, old events."""

PART_OF_TERM = 0.4
"""The part of a term within which each call has to be answered: with a sweep's rhythm after it, the term goes on."""

EMPTY, LEFTOVERS, RESTING, AWAKE = range(4)
"""What a look finds; see look.lua."""

Outcome = SweepResult | BaseException


class _PartitionTurn(Struct):
    """How a reaper stands to a cell: when it comes again, whether it looks first, and what it leads there.

    `empty`: so it was found; `rested`: it has just had a rest; `away`: it could not be looked at where it was to be.
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
    """One reaper's way through the cells, turn after turn."""

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
        """Listen no more."""
        self._listener.close()

    async def turn(self, bid: SweepRequest) -> tuple[SweepResult, list[Partition]]:
        """Sweep the cells that do not rest; return what was done, and which cells could be reached.

        Raises:
            StorageError: none that was asked could be.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        stirs = self._listener.take()
        due = [cell for cell, stand in self._stands.items() if stand.comes_at <= began]
        # Whoever looks at one looks at all that rest: that is no more calls.
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
            # A hint is not heard in vain.
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
        """Return the cells by the servers that hold them; one of which nobody knows goes alone, to be told of it."""
        places = await asyncio.gather(*(self._place(cell.base) for cell in cells), return_exceptions=True)
        parts: defaultdict[object, list[Partition]] = defaultdict(list)
        for cell, place in zip(cells, places, strict=True):
            parts[cell if isinstance(place, BaseException) else place].append(cell)
        return list(parts.values())

    async def _visit(
        self, cells: Sequence[Partition], due: Sequence[Partition], bid: SweepRequest, now: float
    ) -> dict[Partition, Outcome]:
        """Look at the cells of one server, and sweep those that the look does not spare."""
        # One that is on its way from node to node can be asked nothing, and must not hide the others for that long.
        who = next((cell for cell in cells if not self._stands[cell].away), cells[0])
        try:
            sights = dict(zip(cells, await who.look([cell.base for cell in cells], within=_within(bid)), strict=True))
        except StorageUnavailableError as error:
            self._stands[who].away = True
            # Whoever asks each of them, too, keeps the others from what was found of theirs for as long.
            return dict.fromkeys(cells, error)
        except StorageError:
            # A server that lets nobody look lets us sweep: as often as if there were no rests.
            sights = dict.fromkeys(cells, AWAKE)
        for cell, sight in sights.items():
            self._stands[cell].away = sight < EMPTY
            self._stands[cell].empty = sight in (EMPTY, LEFTOVERS)
            self._stands[cell].rested &= sight == RESTING
        empty = [cell for cell in cells if self._stands[cell].empty]
        # One that rests is swept when its time is over; one that is not here has moved on to another server.
        swept = [cell for cell in cells if cell not in empty and (sights[cell] != RESTING or cell in due)]
        tidied = [cell for cell in empty if self._spare(cell, sights[cell], bid, now)]
        await asyncio.gather(*(self._leave(cell) for cell in empty))
        # Nobody leads where there is nothing to lead.
        alone = structs.replace(bid, term=None)
        found = await asyncio.gather(
            *(self._sweep(cell, bid) for cell in swept), *(self._sweep(cell, alone) for cell in tidied)
        )
        return {cell: outcome for part in found for cell, outcome in part.items()}

    def _spare(self, cell: Partition, sight: int, bid: SweepRequest, now: float) -> bool:
        """Note when to look at an empty cell again; return whether to clear up what is left in it."""
        stand = self._stands[cell]
        stand.comes_at, stand.looks = now + bid.rest / 1_000_000, True
        if sight == EMPTY or stand.tidied_at is None:
            stand.tidied_at = now
        if now < stand.tidied_at + TIDY:
            return False
        stand.tidied_at = now
        return True

    async def _leave(self, cell: Partition) -> None:
        """Give up what is led in a cell."""
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
        """Note when a cell is to be swept again."""
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
            # Only after some work is it worth a look whether that was the last.
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
