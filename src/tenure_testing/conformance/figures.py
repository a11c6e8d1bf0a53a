"""Figures: deltas add up to cells of minutes and of hours, which are read by queue or task and deleted in time."""

from collections.abc import Sequence

from tenure.clock import SECOND
from tenure.core.events import WorkerStarted
from tenure.core.figures import (
    ALL_TASKS,
    HOUR,
    HOURS,
    HOURS_KEPT,
    LENGTH,
    MINUTE,
    MINUTES,
    MINUTES_KEPT,
    NO_COUNTS,
    OTHERS,
    OUTCOMES,
    TASKS_KEPT,
    Counts,
    Figures,
    FiguresDelta,
    FiguresQuery,
    Level,
    TaskCounts,
    added,
)
from tenure.core.job import Owner, Ref
from tenure.storage.protocol import CancelJob, RenewRequest, Storage, SweepRequest, WorkerInfo
from tenure.testing import ManualClock
from tenure_testing.conformance.helpers import ALICE, BOB, QUEUE, claim_one, new_job

INFO = WorkerInfo((QUEUE,), 10)
ONE: Counts = tuple(range(1, LENGTH + 1))
TWO = added(ONE, ONE)
SPAN = 2 * HOURS_KEPT


def delta(*counted: tuple[str, str]) -> FiguresDelta:
    """Return a delta with the same counts for each queue and task."""
    return FiguresDelta(tuple(TaskCounts(queue, task, ONE) for queue, task in counted))


async def count(storage: Storage, *counted: tuple[str, str], owner: Owner = ALICE, number: int | None = None) -> None:
    """Send a delta with a beat."""
    await storage.renew(RenewRequest(owner, worker=INFO, events=(delta(*counted),), first_event=number))


async def figures(
    storage: Storage,
    clock: ManualClock,
    *,
    queues: Sequence[str] = (QUEUE,),
    task: str = ALL_TASKS,
    level: Level = MINUTES,
    since: int = 0,
    until: int | None = None,
) -> dict[tuple[str, int], Counts]:
    """Return the counts by queue and start of the cell; the cells come in this order."""
    until = clock.now() + 1 if until is None else until
    query = FiguresQuery(since=max(since, clock.now() - SPAN), until=until, level=level, task=task)
    cells = (await storage.survey(queues, figures=query)).figures
    assert list(cells) == sorted(cells)
    return {(cell.queue, cell.start): cell.counts for cell in cells}


class FiguresConformance:
    """A storage counts the deltas of beats, once, and keeps minutes for hours and hours for days."""

    async def test_deltas_of_all_workers_add_up_by_task_and_by_queue(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        clock.advance((MINUTE - clock.now() % MINUTE) / SECOND)
        start = clock.now()
        await count(storage, (QUEUE, "add"), ("mail", "send"), number=1)
        clock.advance(59)
        await count(storage, (QUEUE, "add"), (QUEUE, "sub"), owner=BOB, number=1)

        assert await figures(storage, clock, task="add") == {(QUEUE, start): TWO}
        assert await figures(storage, clock, task="sub") == {(QUEUE, start): ONE}
        assert await figures(storage, clock, queues=(QUEUE, "mail")) == {
            (QUEUE, start): added(TWO, ONE),
            ("mail", start): ONE,
        }
        assert await figures(storage, clock, task="send") == {}

    async def test_each_minute_and_each_hour_has_a_cell_of_its_own(self, storage: Storage, clock: ManualClock) -> None:
        clock.advance((24 * HOUR - clock.now() % (24 * HOUR)) / SECOND)
        begins = clock.now()
        for number, wait in enumerate((0, 30, 30, 3540, 3600, 24 * 3600), 1):
            clock.advance(wait)
            await count(storage, (QUEUE, "add"), number=number)
        minutes, hours = await figures(storage, clock), await figures(storage, clock, level=HOURS)

        day = 24 * HOUR
        assert minutes == {
            (QUEUE, begins): TWO,
            (QUEUE, begins + MINUTE): ONE,
            (QUEUE, begins + HOUR): ONE,
            (QUEUE, begins + 2 * HOUR): ONE,
            (QUEUE, begins + 2 * HOUR + day): ONE,
        }
        assert hours == {
            (QUEUE, begins): added(TWO, ONE),
            (QUEUE, begins + HOUR): ONE,
            (QUEUE, begins + 2 * HOUR): ONE,
            (QUEUE, begins + 2 * HOUR + day): ONE,
        }

    async def test_only_the_cells_of_the_requested_time_are_returned(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        clock.advance((MINUTE - clock.now() % MINUTE) / SECOND)
        first = clock.now()
        for number in range(1, 5):
            await count(storage, (QUEUE, "add"), number=number)
            clock.advance(60)
        since, until = first + 1, first + 3 * MINUTE

        assert [start for _, start in await figures(storage, clock, since=since, until=until)] == [
            first + MINUTE,
            first + 2 * MINUTE,
        ]
        assert await figures(storage, clock, since=first + 1, until=first + MINUTE) == {}
        assert (await storage.survey([QUEUE])).figures == ()

    async def test_a_delta_that_is_sent_twice_counts_once(self, storage: Storage, clock: ManualClock) -> None:
        began = WorkerStarted(owner=ALICE.id, host="host-1", pid=101, queues=(QUEUE,), concurrency=10)
        first, second = delta((QUEUE, "add")), delta((QUEUE, "sub"))
        beats = [
            RenewRequest(ALICE, worker=INFO, events=(began, first), first_event=1),
            RenewRequest(ALICE, worker=INFO, events=(began, first, second), first_event=1),
            RenewRequest(ALICE, worker=INFO, events=(second,), first_event=3),
        ]
        for beat in beats:
            await storage.renew(beat)
            await storage.renew(beat)
        await storage.renew(RenewRequest(ALICE, last=True, first_event=4))

        assert list((await figures(storage, clock, task="add")).values()) == [ONE]
        assert list((await figures(storage, clock, task="sub")).values()) == [ONE]
        assert list((await figures(storage, clock)).values()) == [TWO]

    async def test_a_delta_without_a_number_always_counts(self, storage: Storage, clock: ManualClock) -> None:
        for _ in range(2):
            await storage.renew(RenewRequest(ALICE, events=(delta((QUEUE, "add")),)))

        assert list((await figures(storage, clock)).values()) == [TWO]
        assert (await storage.survey()).workers == ()

    async def test_tasks_beyond_the_limit_are_counted_together(self, storage: Storage, clock: ManualClock) -> None:
        names = [f"task-{number}" for number in range(TASKS_KEPT + 2)]
        for number, start in enumerate(range(0, len(names), 50), 1):
            await count(storage, *((QUEUE, name) for name in names[start : start + 50]), number=number)
        # A task that has a cell keeps it, another queue has room, and so has the next minute.
        await count(storage, (QUEUE, names[0]), (QUEUE, "late"), ("mail", "late"), number=10)
        at_limit = {name: await figures(storage, clock, task=name) for name in (names[0], names[-1], "late", OTHERS)}
        clock.advance(60)
        await count(storage, (QUEUE, "late"), number=11)

        assert list(at_limit[names[0]].values()) == [TWO]
        assert (at_limit[names[-1]], at_limit["late"]) == ({}, {})
        assert list(at_limit[OTHERS].values()) == [added(TWO, ONE)]
        assert list((await figures(storage, clock, task="late")).values()) == [ONE]
        ends = [Figures(counts).ends["completed"] for counts in (await figures(storage, clock)).values()]
        assert ends == [TASKS_KEPT + 4, 1]
        assert list((await figures(storage, clock, queues=("mail",), task="late")).values()) == [ONE]

    async def test_minutes_and_hours_are_kept_for_their_times(self, storage: Storage, clock: ManualClock) -> None:
        clock.advance((HOUR - clock.now() % HOUR) / SECOND)
        await count(storage, (QUEUE, "add"), number=1)
        clock.advance(MINUTES_KEPT / SECOND)
        kept = await figures(storage, clock)
        clock.advance(1)
        over = await figures(storage, clock)
        await storage.sweep(SweepRequest(ALICE, None))
        swept = await figures(storage, clock)
        hours = await figures(storage, clock, level=HOURS)
        clock.advance((HOURS_KEPT - MINUTES_KEPT) / SECOND)
        gone = await figures(storage, clock, level=HOURS)
        await storage.sweep(SweepRequest(ALICE, None))

        assert list(kept.values()) == list(hours.values()) == [ONE]
        assert (over, swept, gone) == ({}, {}, {})
        assert await figures(storage, clock, level=HOURS) == {}

    async def test_expired_and_early_cancelled_jobs_are_counted(self, storage: Storage, clock: ManualClock) -> None:
        await storage.enqueue([new_job(id=f"old-{number}", ttl=SECOND) for number in range(3)])
        await storage.enqueue([new_job(id="kept"), new_job(id="claimed", queue="mail")])
        clock.advance(2)
        await storage.sweep(SweepRequest(ALICE, None))
        lease = await claim_one(storage, queue="mail")
        asked = [CancelJob(ref) for ref in (Ref(QUEUE, "kept"), Ref(QUEUE, "kept"), lease.ref, Ref(QUEUE, "old-1"))]
        verdicts = [result.verdict for result in await storage.revise(asked)]
        [counts] = (await figures(storage, clock)).values()

        assert verdicts == ["done", "refused", "asked", "refused"]
        assert Figures(counts).ends == {**dict.fromkeys(OUTCOMES, 0), "expired": 3, "cancelled": 1}
        assert sum(counts) == 4
        assert list((await figures(storage, clock, task="add")).values()) == [counts]
        assert await figures(storage, clock, queues=("mail",)) == {}

    async def test_counts_are_exact_beyond_32_bits(self, storage: Storage, clock: ManualClock) -> None:
        large = tuple(5_000_000_000 for _ in NO_COUNTS)
        for number in (1, 2):
            sent = FiguresDelta((TaskCounts(QUEUE, "add", large),))
            await storage.renew(RenewRequest(ALICE, worker=INFO, events=(sent,), first_event=number))

        assert list((await figures(storage, clock)).values()) == [added(large, large)]
