"""What every part of one worker needs, handed in as one value."""

import logging
from dataclasses import dataclass
from random import Random

from tenure.clock import Clock
from tenure.core.job import Owner
from tenure.storage.protocol import Storage
from tenure.worker.active_runs import ActiveRuns
from tenure.worker.worker_metrics import WorkerMetrics


@dataclass(frozen=True)
class WorkerDeps:
    """The storage, the owner and its runs, and the sources of time, randomness, log lines and metrics."""

    storage: Storage
    owner: Owner
    active_runs: ActiveRuns
    clock: Clock
    rng: Random
    logger: logging.Logger
    metrics: WorkerMetrics
