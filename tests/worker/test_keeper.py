"""The keeper's beats: how often they read partitions and send figures, and what a failure may not do."""

import logging
from collections.abc import Callable
from random import Random

import pytest
from msgspec import structs

from tenure import Timing
from tenure.core.events import WorkerHung
from tenure.core.figures import MINUTES, Figures, FiguresDelta, FiguresQuery
from tenure.core.job import Owner
from tenure.core.lease import Lease
from tenure.core.partition import PartitionEvent
from tenure.errors import SchemaMismatchError
from tenure.metrics import MetricsRegistry
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import RenewRequest, RenewResult, WorkerInfo
from tenure.testing.clock import ManualClock
from tenure.worker.active_runs import ActiveRun, ActiveRuns
from tenure.worker.deps import WorkerDeps
from tenure.worker.keeper import Keeper
from tenure.worker.loop_lag import LoopMonitor
from tenure.worker.partitions import PartitionWatch
from tenure.worker.worker_metrics import WorkerMetrics
from tenure_testing.conformance.helpers import settled
from tests.core.cases import active

OWNER = Owner("a" * 16, "a", "h", 1)


class CountingStorage(MemoryStorage):
    """Memory that counts the beats, and those that ask for the state of the partitions."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.beats = self.looks = self.deltas = 0
        self.identity = "first"
        self.gone = False

    async def renew(self, beat: RenewRequest) -> RenewResult:
        self.beats += 1
        self.looks += beat.seen is not None
        self.deltas += sum(isinstance(event, FiguresDelta) for event in beat.events)
        if self.gone:
            raise SchemaMismatchError("the file has no schema")
        found = await super().renew(beat)
        states = tuple(structs.replace(state, identity=self.identity) for state in found.partitions)
        return structs.replace(found, partitions=states)


def keeper_of(
    storage: CountingStorage,
    clock: ManualClock,
    active_runs: ActiveRuns,
    *,
    replaced: Callable[[int], None] = lambda place: None,
    metrics: WorkerMetrics | None = None,
    listed: bool = True,
) -> Keeper:
    events: list[PartitionEvent] = []
    logger = logging.getLogger("tenure")
    watch = PartitionWatch(
        worker="w",
        clock=clock,
        logger=logger,
        read=lambda: "",
        announce=events.append,
        forget_read=lambda: None,
        replaced=replaced,
        rewound=lambda place, last, ago: None,
    )
    return Keeper(
        WorkerDeps(storage, OWNER, active_runs, clock, Random(1), logger, metrics or WorkerMetrics(MetricsRegistry())),
        LoopMonitor(None),
        timing=Timing(beat="5s", lease="20s"),
        info=lambda: WorkerInfo(queues=("q",)),
        stop=lambda held, why, cause: None,
        on_orders=lambda orders: None,
        is_needed=lambda: True,
        given_up=lambda: False,
        lanes=lambda: (),
        partitions=watch,
        listed=listed,
    )


@pytest.mark.parametrize("listed", [True, False])
async def test_a_worker_of_internal_queues_alone_announces_nothing(listed: bool) -> None:
    clock = ManualClock()
    keeper = keeper_of(CountingStorage(clock), clock, ActiveRuns(), listed=listed)
    keeper.announce(WorkerHung(owner=OWNER.id, blocked_for=1, stack=""))

    assert keeper.unrecorded == listed


async def test_beats_for_short_leases_read_the_partitions_no_more_often() -> None:
    clock = ManualClock()
    storage, active_runs = CountingStorage(clock), ActiveRuns()
    job = active()
    active_runs.add(ActiveRun(Lease(structs.replace(job, fence=7, stall=structs.replace(job.stall, lease=2_000_000)))))
    keeper = keeper_of(storage, clock, active_runs)
    for _ in range(40):
        await keeper.turn()
        clock.advance(0.5)

    assert storage.beats == 40
    assert storage.looks == 4


async def test_a_beat_counts_as_answered_though_reading_the_partitions_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(place: int) -> None:
        raise RuntimeError("a failing callback")

    clock = ManualClock()
    storage = CountingStorage(clock)
    keeper = keeper_of(storage, clock, ActiveRuns(), replaced=failing)
    await keeper.turn()
    storage.identity = "another"
    clock.advance(5)
    wait = await keeper.turn()

    assert storage.beats == 2
    assert wait == 5
    assert "cannot compare" in caplog.text
    assert "cannot renew" not in caplog.text


async def test_a_storage_that_is_gone_at_a_beat_raises_one_alarm(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    storage = CountingStorage(clock)
    keeper = keeper_of(storage, clock, ActiveRuns())
    await keeper.turn()
    storage.gone = True
    for _ in range(2):
        clock.advance(5)
        await keeper.turn()

    [alarm] = [record.message for record in caplog.records if record.levelno == logging.CRITICAL]
    assert "identity first is gone" in alarm


async def test_beats_for_short_leases_send_figures_no_more_often() -> None:
    clock = ManualClock()
    storage, active_runs = CountingStorage(clock), ActiveRuns()
    job = active()
    lease = Lease(structs.replace(job, fence=7, stall=structs.replace(job.stall, lease=2_000_000)))
    active_runs.add(ActiveRun(lease))
    metrics = WorkerMetrics(MetricsRegistry())
    keeper = keeper_of(storage, clock, active_runs, metrics=metrics)
    done = settled(lease)
    for _ in range(40):
        metrics.answered([(lease.job, done, "done", 0.1)])
        await keeper.turn()
        clock.advance(0.5)

    assert (storage.beats, storage.deltas) == (40, 4)

    await keeper.last_beat()

    query = FiguresQuery(since=0, until=clock.now() + MINUTES.length)
    cells = (await storage.survey([job.queue], figures=query)).figures
    assert sum(sum(Figures(cell.counts).ends.values()) for cell in cells) == 40
