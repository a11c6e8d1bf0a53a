"""Carries out entries of a storage's outbox: notifies the dependents of ended jobs.

    entries ──► batches, by the queues of the dependents ──► tokens (revise) ──► the entries are advanced (revise)
                      └── at most `ENTRIES_PER_TARGET`           └── no answer: put off, 1 s at first, 30 s at most
                          for each queue

The caller may die at any point: the next sweep hands out the entries again, and a token that is delivered twice changes
nothing. A worker carries the entries that its own calls wrote, and the sweeps carry the others.
"""

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from tenure.clock import SECOND
from tenure.core.ref import Ref
from tenure.errors import StorageError
from tenure.storage.protocol import Storage
from tenure.storage.waiting import ENTRY_PAGE, AdvanceEntry, CancelTree, OutboxEntry

RETRY_AFTER = SECOND
"""How many microseconds an entry is put off that could not be carried out. Each further failure doubles this."""

LONGEST_RETRY = 30 * SECOND
"""The longest time for which an entry is put off, in microseconds."""

ENTRIES_PER_TARGET = 20
"""How many entries with dependents in one queue are carried at once. So a queue that is slow delays no other."""

BATCHES_AT_ONCE = 4
"""How many calls are in flight at once."""

FAILURES_KEPT = 1000
"""Of how many entries the number of failures is remembered."""


DELIVERED, CANCELLED = frozenset({"done", "gone"}), frozenset({"done", "gone", "asked", "refused"})
"""The answers to tokens and to cancellations that were carried out."""


class CarriedOut(Struct, frozen=True):
    """The result of carrying out entries. `more`: the next sweep finds more to carry out. `troubles`: why some failed.

    Entries that failed are put off.
    """

    more: bool
    troubles: tuple[str, ...]


class OutboxCarrier:
    """Delivers the tokens of entries, and remembers how often each entry has failed."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._failures: dict[tuple[Ref, int], int] = {}

    async def carry(self, entries: Sequence[OutboxEntry], *, within: float | None = None) -> CarriedOut:
        """Deliver the tokens of some entries, and advance each entry only then.

        An entry that fails delays no other. It is put off, and its dependents are notified later. `within`: the seconds
        for all calls; entries whose calls are not answered by then have failed.
        """
        batches, left = _batches(entries)
        turn = _Turn(self._storage)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within), asyncio.TaskGroup() as group:
                for batch in batches:
                    group.create_task(turn.carry(batch))
        failed = turn.failed(within)
        for entry in turn.done:
            self._failures.pop((entry.ref, entry.number), None)
        if failed:
            put_off = [self._put_off(entry) for entry, _ in failed]
            # No error matters here, because the sweeps hand out the entries again anyway.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(within):
                    await self._storage.revise(put_off)
        more = left or any(entry.size == ENTRY_PAGE for entry in turn.done)
        return CarriedOut(more, tuple(dict.fromkeys(trouble for _, trouble in failed)))

    def _put_off(self, entry: OutboxEntry) -> AdvanceEntry:
        key = entry.ref, entry.number
        # The entry that failed last is the newest.
        failures = self._failures.pop(key, 0) + 1
        self._failures[key] = failures
        if len(self._failures) > FAILURES_KEPT:
            del self._failures[next(iter(self._failures))]
        after = min(LONGEST_RETRY, RETRY_AFTER << min(failures - 1, 10))
        return AdvanceEntry(entry.ref, entry.number, entry.cursor, put_off=after)


async def carry_out(storage: Storage, entries: Sequence[OutboxEntry]) -> CarriedOut:
    """Carry out entries once, as `OutboxCarrier.carry` does."""
    return await OutboxCarrier(storage).carry(entries)


class _Batch(Struct, frozen=True):
    """Entries that one call carries, and the queues of their dependents."""

    entries: tuple[OutboxEntry, ...]
    targets: frozenset[str]


class _Turn:
    """What happens to the batches that are carried together."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._slots = asyncio.Semaphore(BATCHES_AT_ONCE)
        self._away: dict[str, str] = {}
        """The queues that could not be reached in this turn, and why."""
        self._begun: list[OutboxEntry] = []
        self._troubles: list[tuple[OutboxEntry, str]] = []
        self.done: list[OutboxEntry] = []

    def failed(self, within: float | None) -> list[tuple[OutboxEntry, str]]:
        """Return the entries that were not carried out, each with the reason, without those that were not tried."""
        over = [id(entry) for entry in self.done] + [id(entry) for entry, _ in self._troubles]
        silent = [entry for entry in self._begun if id(entry) not in over]
        return [*self._troubles, *((entry, _trouble(entry, f"no answer within {within:g} s")) for entry in silent)]

    async def carry(self, batch: _Batch) -> None:
        """Carry one batch, once a slot is free."""
        async with self._slots:
            why = next((self._away[queue] for queue in batch.targets if queue in self._away), None)
            if why is not None:
                self._fail(batch, why)
                return
            self._begun += batch.entries
            await self._deliver(batch)

    async def _deliver(self, batch: _Batch) -> None:
        try:
            tokens = [delivery for entry in batch.entries for delivery in entry.deliveries]
            answers = await self._storage.revise(tokens)
        except StorageError as error:
            self._away.update(dict.fromkeys(batch.targets, str(error)))
            self._fail(batch, str(error))
            return
        except Exception as error:
            if len(batch.entries) == 1:
                self._fail(batch, repr(error))
                return
            # One entry may be the cause. It must not delay the others.
            for entry in batch.entries:
                await self._deliver(_Batch((entry,), batch.targets))
            return
        # A token for a job that is gone has no receiver, and a member that has ended is not cancelled.
        refused = any(
            answer.verdict not in (CANCELLED if isinstance(token, CancelTree) else DELIVERED)
            for token, answer in zip(tokens, answers, strict=False)
        )
        if len(answers) < len(tokens) or refused:
            self._fail(batch, "not all tokens were answered")
            return
        try:
            await self._storage.revise([entry.done for entry in batch.entries])
        except Exception as error:
            self._fail(batch, repr(error))
        else:
            self.done += batch.entries

    def _fail(self, batch: _Batch, why: str) -> None:
        self._troubles += ((entry, _trouble(entry, why)) for entry in batch.entries)


def _trouble(entry: OutboxEntry, why: str) -> str:
    return f"the dependents of the job {entry.ref.id!r} of the queue {entry.ref.queue!r} are notified later: {why}"


def _batches(entries: Iterable[OutboxEntry]) -> tuple[list[_Batch], bool]:
    """Return the batches that are carried in this turn, and whether entries are left for the next one."""
    taken: Counter[str] = Counter()
    left = False
    found: defaultdict[frozenset[str], list[list[OutboxEntry]]] = defaultdict(lambda: [[]])
    for entry in entries:
        targets = _targets(entry)
        if any(taken[queue] >= ENTRIES_PER_TARGET for queue in targets):
            left = True
            continue
        taken.update(targets)
        batch = found[targets][-1]
        if batch and sum(one.size for one in batch) + entry.size > ENTRY_PAGE:
            found[targets].append(batch := [])
        batch.append(entry)
    return [_Batch(tuple(batch), targets) for targets, some in found.items() for batch in some], left


def _targets(entry: OutboxEntry) -> frozenset[str]:
    try:
        return frozenset(
            (*(dependent.to.queue for dependent in entry.dependents), *(member.queue for member in entry.members))
        )
    except AttributeError:
        # An entry that is damaged fails when it is delivered.
        return frozenset()
