"""Assembles a worker: creates its parts, and gives each part the others and the callbacks that it needs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tenure.core.events import Event
from tenure.core.internal import includes_worker
from tenure.core.job import Owner
from tenure.events.bus import EventBus
from tenure.runtime import Runtime
from tenure.storage.protocol import WorkerInfo
from tenure.threads import ThreadPool
from tenure.worker.active_runs import Abandoned, ActiveRun, ActiveRuns, StopReason
from tenure.worker.deps import WorkerDeps
from tenure.worker.event_loop import LoopGuard
from tenure.worker.executor import Executor
from tenure.worker.isolation.isolated_runs import IsolatedRuns
from tenure.worker.keeper import Keeper
from tenure.worker.known_tasks import KnownTasks
from tenure.worker.lifespan import Lifespan
from tenure.worker.loop import ExchangeLoop
from tenure.worker.loop_lag import LoopMonitor
from tenure.worker.outcomes import Outcomes
from tenure.worker.partitions import PartitionWatch
from tenure.worker.prefetch import MOST_HELD, PrefetchPolicy
from tenure.worker.recycling import RecyclePolicy, Recycler
from tenure.worker.run import Runner
from tenure.worker.scoreboard import Scoreboard
from tenure.worker.task_publisher import TaskPublisher
from tenure.worker.transactions import Transactions
from tenure.worker.watchdog import Watchdog
from tenure.worker.worker_metrics import WorkerMetrics


@dataclass(frozen=True)
class WorkerCallbacks:
    """The methods of a worker that its parts call. Other threads than the worker's call all but `recycle`."""

    call_soon: Callable[..., None]
    """Calls a function with its arguments on the event loop of the worker. Does nothing before its start."""
    info: Callable[[], WorkerInfo]
    stop_run: Callable[[ActiveRun, StopReason, str | None], None]
    on_orders: Callable[[tuple[str, ...]], None]
    is_needed: Callable[[], bool]
    is_ending: Callable[[], bool]
    begin_again: Callable[[int], None]
    """Begins again with a storage partition that lost its data."""
    recycle: Callable[[str], None]


class WorkerParts:
    """The parts of one worker. None of them has started."""

    def __init__(
        self,
        runtime: Runtime,
        callbacks: WorkerCallbacks,
        *,
        owner: Owner,
        queues: tuple[str, ...],
        concurrency: int,
        supervised: bool,
        scoreboard: Scoreboard | None,
        recycle_policy: RecyclePolicy,
        prefetch: int | None,
    ) -> None:
        logger, clock = runtime.logger, runtime.clock
        self.keeper_loop = runtime.background_loop("tenure-keeper")
        self.threads = ThreadPool("tenure-handler")
        self.lifespan = Lifespan(runtime.lifespan, worker=owner.name, logger=logger)
        self.guard = LoopGuard()
        self.monitor = LoopMonitor(scoreboard)
        self.known_tasks = KnownTasks(runtime.tasks)
        self.publisher = TaskPublisher(runtime.storage, runtime.tasks, clock, logger, seed=owner.id)

        def announce(event: Event) -> None:
            self.keeper.announce(event)

        self.recycler = Recycler(
            owner,
            logger,
            supervised=supervised,
            announce=announce,
            is_ending=callbacks.is_ending,
            claim_no_more=lambda why: self.exchange.recycle(why),
            drain=callbacks.recycle,
        )
        abandoned = Abandoned(lambda: self.recycler.too_many_abandoned(abandoned.count))
        active_runs = ActiveRuns(scoreboard)
        transactions = Transactions(
            runtime.storage,
            runtime.tasks,
            runtime.codec,
            self.threads,
            clock,
            runtime.rng,
            find=active_runs.get,
            # From now on a beat would find the lease gone.
            settled=lambda run: active_runs.drop(run.key),
        )
        self.runner = Runner(
            runtime.tasks,
            runtime.codec,
            self.threads,
            clock,
            logger,
            middleware=runtime.middleware,
            replaced=runtime.overrides,
            state=self._lifespan_state,
            abandoned=abandoned,
            no_thread=self.recycler.out_of_threads,
            short=self.recycler.shortage,
            report=active_runs.report,
            open_transaction=transactions.open,
        )
        self.isolated_runs = IsolatedRuns(
            runtime,
            worker=owner,
            isolates=supervised,
            lease_holder=active_runs,
            scoreboard=scoreboard,
            refused=lambda why: callbacks.call_soon(self.recycler.recycle_for, why),
        )
        self.bus = EventBus(
            runtime.storage,
            runtime.event_handlers,
            reader=f"app:{runtime.app}",
            caller=owner.id,
            rng=runtime.rng,
            decode=runtime.codec.decode,
            logger=logger,
        )
        deps = WorkerDeps(
            runtime.storage, owner, active_runs, clock, runtime.rng, logger, WorkerMetrics(runtime.metrics)
        )
        # Without a supervisor, it is unknown which jobs of a dead worker had not begun. So the default is 0.
        most = max(0, MOST_HELD - concurrency) if supervised else 0
        self.prefetch_policy = PrefetchPolicy(concurrency, most if prefetch is None else prefetch)
        outcomes = Outcomes(deps)
        runs = Executor(
            deps,
            self.runner,
            self.isolated_runs,
            outcomes,
            concurrency=concurrency,
            prefetch=self.prefetch_policy,
            abandoned=abandoned,
            guard=self.guard,
            tasks=runtime.tasks,
            recycle_policy=recycle_policy,
            publish=self.bus.publish,
            supervised=supervised,
            report_unstoppable=lambda run, reason: self.recycler.unstoppable(run.lease.job, reason),
        )
        self.exchange = ExchangeLoop(
            deps,
            runs,
            outcomes,
            queues=queues,
            known=self.known_tasks,
            concurrency=concurrency,
            recycle_policy=recycle_policy,
            publish=self.bus.publish,
            short=lambda: self.recycler.descriptors.short() if recycle_policy.used else None,
        )
        self.partitions = PartitionWatch(
            worker=owner.name,
            clock=clock,
            logger=logger,
            read=lambda: self.bus.read_to,
            announce=lambda event: self.keeper.announce(event),
            forget_read=self.bus.forget_read,
            replaced=lambda place: callbacks.call_soon(callbacks.begin_again, place),
            rewound=lambda place, last, ago: callbacks.call_soon(self.bus.set_back, place, last, ago),
        )
        self.keeper = Keeper(
            deps,
            self.monitor,
            timing=runtime.timing,
            info=callbacks.info,
            stop=callbacks.stop_run,
            on_orders=callbacks.on_orders,
            is_needed=callbacks.is_needed,
            given_up=lambda: self.watchdog.given_up(),
            lanes=lambda: self.exchange.lanes.all,
            partitions=self.partitions,
            listed=includes_worker(queues, ()),
        )
        self.watchdog = Watchdog(
            self.monitor,
            active_runs,
            owner=owner.id,
            scoreboard=scoreboard,
            supervised=supervised,
            max_block=runtime.timing.max_block.total_seconds(),
            clock=clock,
            logger=logger,
            announce=self.keeper.announce,
            claimed_at=lambda: self.exchange.answered_at,
        )

    def _lifespan_state(self) -> Any:
        return self.lifespan.state
