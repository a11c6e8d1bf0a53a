"""Tenure: a job queue for work that must not vanish."""

from typing import TYPE_CHECKING

from tenure._version import __version__
from tenure.app import Tenure
from tenure.client.codec import Codec, JsonCodec
from tenure.client.collecting import Batch, CollectTask, DeclaredCollectTask
from tenure.client.compatibility import incompatible
from tenure.client.dead_letters import DeadFilter, DeadGroup, DeadGroups, DeadLetter, DeadLetters, DeadPage, DeadReport
from tenure.client.handle import Job
from tenure.client.job_info import JobInfo, JobWithRuns, LogEntry, RunInfo
from tenure.client.jobs import DeleteReport, JobFilter, JobPage, Jobs, PurgeReport
from tenure.client.queue import Queue, QueueSettings
from tenure.client.router import Router
from tenure.client.schedules import Schedules
from tenure.client.sending import ProceedSending, SendCall, SendMiddleware
from tenure.client.storage_client import TaskControls
from tenure.client.task import DeclaredTask, Task
from tenure.client.workers import Workers
from tenure.core.events import (
    Event,
    EventsTrimmed,
    FlowBroken,
    JobCancelled,
    JobCollected,
    JobCompleted,
    JobDebounced,
    JobDeduplicated,
    JobDeleted,
    JobEnqueued,
    JobEvent,
    JobExpired,
    JobFailed,
    JobProgressed,
    JobRedriven,
    JobReleased,
    JobRepaired,
    JobRescheduled,
    JobRetried,
    JobStalled,
    JobStarted,
    JobStopIgnored,
    JobSuspected,
    JobThrottled,
    LeadershipAcquired,
    LeadershipLost,
    LeaseLost,
    QueueDrained,
    QueueLimited,
    QueuePaused,
    QueueResumed,
    ReaperFailed,
    RunFenced,
    ScheduleFired,
    ScheduleMissed,
    ScheduleSkipped,
    StorageLogDeleted,
    StorageReplaced,
    StorageRewound,
    WorkerDied,
    WorkerFailed,
    WorkerHung,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from tenure.core.lifecycle import State
from tenure.core.schedule import Schedule
from tenure.errors import (
    AmbiguousJobError,
    DuplicateJobError,
    FlowError,
    JobActiveError,
    JobCancelledError,
    JobError,
    JobExpiredError,
    JobFailedError,
    JobNotFoundError,
    JobStalledError,
    LeaseLostError,
    NotDurableError,
    PayloadTooLargeError,
    ResultTimeoutError,
    SchemaMismatchError,
    StorageError,
    StorageFullError,
    StorageMovedError,
    StorageUnavailableError,
    TenureError,
    ThrottledError,
    UnknownScheduleError,
    UnknownTaskError,
    UsageError,
)
from tenure.handlers.context import JobContext, current_job
from tenure.handlers.control import Cancel, RateLimited, Reject, RetryLater, Snooze
from tenure.handlers.injection import Inject
from tenure.handlers.job_data import JobData
from tenure.handlers.middleware import Middleware, Proceed, RunCall
from tenure.handlers.transaction import JobTransaction
from tenure.options import (
    TTL,
    AutoRedrive,
    Collect,
    Debounce,
    Keep,
    LeaderElection,
    Rate,
    Retention,
    Retry,
    Stall,
    TaskOptions,
    Throttle,
    Timing,
    Unique,
)
from tenure.options.schedules import All
from tenure.webhooks.declaration import Webhook

if TYPE_CHECKING:
    from tenure.maintenance.reaper import Reaper
    from tenure.worker.worker import Worker

__all__ = [
    "TTL",
    "All",
    "AmbiguousJobError",
    "AutoRedrive",
    "Batch",
    "Cancel",
    "Codec",
    "Collect",
    "CollectTask",
    "DeadFilter",
    "DeadGroup",
    "DeadGroups",
    "DeadLetter",
    "DeadLetters",
    "DeadPage",
    "DeadReport",
    "Debounce",
    "DeclaredCollectTask",
    "DeclaredTask",
    "DeleteReport",
    "DuplicateJobError",
    "Event",
    "EventsTrimmed",
    "FlowBroken",
    "FlowError",
    "Inject",
    "Job",
    "JobActiveError",
    "JobCancelled",
    "JobCancelledError",
    "JobCollected",
    "JobCompleted",
    "JobContext",
    "JobData",
    "JobDebounced",
    "JobDeduplicated",
    "JobDeleted",
    "JobEnqueued",
    "JobError",
    "JobEvent",
    "JobExpired",
    "JobExpiredError",
    "JobFailed",
    "JobFailedError",
    "JobFilter",
    "JobInfo",
    "JobNotFoundError",
    "JobPage",
    "JobProgressed",
    "JobRedriven",
    "JobReleased",
    "JobRepaired",
    "JobRescheduled",
    "JobRetried",
    "JobStalled",
    "JobStalledError",
    "JobStarted",
    "JobStopIgnored",
    "JobSuspected",
    "JobThrottled",
    "JobTransaction",
    "JobWithRuns",
    "Jobs",
    "JsonCodec",
    "Keep",
    "LeaderElection",
    "LeadershipAcquired",
    "LeadershipLost",
    "LeaseLost",
    "LeaseLostError",
    "LogEntry",
    "Middleware",
    "NotDurableError",
    "PayloadTooLargeError",
    "Proceed",
    "ProceedSending",
    "PurgeReport",
    "Queue",
    "QueueDrained",
    "QueueLimited",
    "QueuePaused",
    "QueueResumed",
    "QueueSettings",
    "Rate",
    "RateLimited",
    "Reaper",
    "ReaperFailed",
    "Reject",
    "ResultTimeoutError",
    "Retention",
    "Retry",
    "RetryLater",
    "Router",
    "RunCall",
    "RunFenced",
    "RunInfo",
    "Schedule",
    "ScheduleFired",
    "ScheduleMissed",
    "ScheduleSkipped",
    "Schedules",
    "SchemaMismatchError",
    "SendCall",
    "SendMiddleware",
    "Snooze",
    "Stall",
    "State",
    "StorageError",
    "StorageFullError",
    "StorageLogDeleted",
    "StorageMovedError",
    "StorageReplaced",
    "StorageRewound",
    "StorageUnavailableError",
    "Task",
    "TaskControls",
    "TaskOptions",
    "Tenure",
    "TenureError",
    "Throttle",
    "ThrottledError",
    "Timing",
    "Unique",
    "UnknownScheduleError",
    "UnknownTaskError",
    "UsageError",
    "Webhook",
    "Worker",
    "WorkerDied",
    "WorkerFailed",
    "WorkerHung",
    "WorkerStarted",
    "WorkerStopped",
    "WorkerStopping",
    "Workers",
    "__version__",
    "current_job",
    "incompatible",
]


def __getattr__(name: str) -> object:
    """Import the worker and the reaper when they are first used: a process that only enqueues needs neither."""
    if name == "Worker":
        from tenure.worker.worker import Worker

        return Worker
    if name == "Reaper":
        from tenure.maintenance.reaper import Reaper

        return Reaper
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
