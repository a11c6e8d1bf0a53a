"""The records of a job: the job to enqueue, the stored job, its runs and its log.

Every instant is a whole number of microseconds since 1970 on the storage's clock. Every duration is a whole number of
microseconds. Such numbers are exact, the same on every storage, and small enough (below 2^53) for Lua and JSON.
"""

from typing import Literal

from msgspec import Struct, field

from tenure.core.document import Progress
from tenure.core.lifecycle import State
from tenure.core.ref import Ref as Ref
from tenure.core.retry import Backoff
from tenure.core.waiting import Links, StepRecord

FOREVER = 100 * 365 * 86_400 * 1_000_000
"""A hundred years: the lease of a job whose stall detection is switched off."""

TRACE_KEPT = 16_384
"""The maximum length, in characters, of a stored trace of a handler."""

Charge = Literal["failures", "stalls", "releases"]
OnExpire = Literal["fail", "discard"]
OnWorkerLost = Literal["retry", "fail"]
StallReason = Literal["lease_expired", "process_died", "no_progress", "loop_blocked"]
DeadReason = Literal["exhausted", "stalled", "crashed", "rejected", "undecodable", "timeout", "dependency"]
UniqueScope = Literal["unfinished", "queued"]


class Owner(Struct, frozen=True):
    """A lease holder: one lifetime of one process. Only `id` (64 random bits) identifies it; the rest is for people."""

    id: str
    name: str = ""
    host: str = ""
    pid: int = 0


class Key(Struct, frozen=True):
    """A concurrency key: at most `limit` active jobs of a queue share it."""

    name: str
    limit: int = 1


class UniqueKey(Struct, frozen=True, tag="unique"):
    """At most one job of a queue holds this key: while unfinished, while queued, or for `window` microseconds.

    A later call with the same key makes no job: its answer names the job that holds the key.
    """

    key: str
    scope: UniqueScope = "unfinished"
    window: int | None = None


class DebounceKey(Struct, frozen=True, tag="debounce"):
    """The job runs `delay` microseconds after the last call with this key; each later call replaces the waiting one.

    It runs no later than `max_wait` microseconds after the first call.
    """

    key: str
    delay: int
    max_wait: int | None = None


class CollectKey(Struct, frozen=True, tag="collect"):
    """A job collects the calls with this key until none has come for `delay` microseconds, or it has `max_size` calls.

    It runs no later than `max_wait` microseconds after the first call.
    """

    key: str
    delay: int
    max_size: int
    max_wait: int | None = None


MergeKey = UniqueKey | DebounceKey | CollectKey
"""A key by which a later call is merged into an existing job instead of making a new one."""


class ThrottleKey(Struct, frozen=True):
    """At most `most` jobs with this key are made in each `window` microseconds; a window begins with its first job."""

    key: str
    most: int
    window: int


class RateKey(Struct, frozen=True):
    """A rate: jobs that share this name start `interval` microseconds apart, over all workers of the queue.

    `burst`: how many intervals without a start the jobs may make up for at once. An interval of 0 means no limit.
    """

    name: str
    interval: int
    burst: int = 1


class StallTerms(Struct, frozen=True):
    """A job's lease settings. `pinned` names the fields that the call itself set; queue settings leave those alone."""

    lease: int = 20_000_000
    max_stalls: int = 1
    start_grace: int = 0
    renewed: bool = True
    pinned: tuple[str, ...] = ()

    def with_setting(self, setting: "StallSetting") -> "StallTerms":
        """Return these terms with a queue's setting applied to the fields that the call did not pin."""
        changes = {
            name: value
            for name in ("lease", "max_stalls", "start_grace", "renewed")
            if name not in self.pinned and (value := getattr(setting, name)) is not None
        }
        return StallTerms(
            changes.get("lease", self.lease),
            changes.get("max_stalls", self.max_stalls),
            changes.get("start_grace", self.start_grace),
            changes.get("renewed", self.renewed),
            self.pinned,
        )


class StallSetting(Struct, frozen=True, omit_defaults=True):
    """The stall settings of a queue for all its jobs; None leaves a field to the task."""

    lease: int | None = None
    max_stalls: int | None = None
    start_grace: int | None = None
    renewed: bool | None = None

    def updated_with(self, newer: "StallSetting") -> "StallSetting":
        """Return this setting with each field replaced that `newer` sets."""
        return StallSetting(
            self.lease if newer.lease is None else newer.lease,
            self.max_stalls if newer.max_stalls is None else newer.max_stalls,
            self.start_grace if newer.start_grace is None else newer.start_grace,
            self.renewed if newer.renewed is None else newer.renewed,
        )


class Redriving(Struct, frozen=True):
    """A rule that puts a failed job back by itself, `after` microseconds after its end; the delay doubles each time."""

    after: int = 3_600_000_000
    times: int = 3


class Policy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rules by which the core decides about a job: data, so that a reaper without the task's code can decide.

    `result_ttl`: how many microseconds a completed job is kept with its result; None leaves that to its queue.
    """

    retry: Backoff = Backoff()
    on_worker_lost: OnWorkerLost = "retry"
    on_expire: OnExpire = "fail"
    result_ttl: int | None = None
    redrive: Redriving | None = None
    version: int = 1


class RecordedError(Struct, frozen=True):
    """An exception as stored: text only."""

    type: str
    message: str
    traceback: str = ""


_UNREADABLE = "UnreadableRecordError", "the record of this job cannot be read: "


def unreadable_record(what: str) -> RecordedError:
    """Return the error of a job whose record could not be read. `what`: the unreadable fields, and why."""
    kind, begins = _UNREADABLE
    return RecordedError(kind, begins + what)


def unreadable_in(error: RecordedError) -> str | None:
    """Return which fields of a record could not be read, and why, if the error comes from `unreadable_record`."""
    kind, begins = _UNREADABLE
    # A handler's own error may have the same type name.
    return error.message.removeprefix(begins) if error.type == kind and error.message.startswith(begins) else None


class NewJob(Struct, frozen=True, kw_only=True, gc=False):
    """A job to enqueue, with encoded arguments. `delay` and `ttl` count from the storage's now.

    `weight`: how many of its jobs start for each job of a `fair_key` of weight 1. `tick`: the instant of its schedule
    that the job is for. `links`: how it depends on other jobs; None for a job that depends on nothing.
    """

    queue: str
    id: str
    task: str
    payload: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])
    tags: tuple[str, ...] = ()
    delay: int = 0
    run_at: int | None = None
    priority: int = 0
    boost: int = 0
    lifo: bool = False
    fair_key: str | None = None
    weight: int = 1
    ttl: int | None = None
    timeout: int | None = None
    deadline: int | None = None
    heartbeat_timeout: int | None = None
    keys: tuple[Key, ...] = ()
    rates: tuple[RateKey, ...] = ()
    merge: MergeKey | None = None
    throttle: ThrottleKey | None = None
    stall: StallTerms = StallTerms()
    policy: Policy = Policy()
    schedule: str | None = None
    tick: int | None = None
    parent: str | None = None
    links: Links | None = None

    @property
    def ref(self) -> Ref:
        """The job's identity."""
        return Ref(self.queue, self.id)


class JobRecord(Struct, frozen=True, kw_only=True, gc=False):
    """A job as the storage keeps it.

    `score` orders the waiting jobs (lowest first). `boost`: how many microseconds its priority moves the job forward.
    `collected`: how many calls a collecting job contains; their arguments are framed in its payload (core/frames.py)
    and take `collected_bytes` bytes.
    `heard_at`: when its lease holder last showed that it is alive, by its claim or its latest beat.
    `starts`: the number of its latest run. `failures`, `stalls` and `releases` count how its runs were charged.
    `quarantined`: its last run ended together with its process, so the next one gets a process of its own.
    `put_back_used`: since its last charge or end the job was put back once without a charge because its worker failed;
    the next time is charged as a stall.
    `ttl`: how long the job may wait before it starts; a redrive starts the count again. `kept_until`: when a completed
    job's own `result_ttl` is over. `data`: the JSON document that its handlers keep; `data_number` counts its changes.
    `redrive_at`: when a rule puts a failed job back; it has done so `redrives` times.
    `fault`: of a failed job, the fingerprint of its fault (core/fingerprint.py).
    `links`: how it depends on other jobs; None for a job that depends on nothing.
    """

    queue: str
    id: str
    task: str
    state: State
    payload: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])
    tags: tuple[str, ...] = ()
    score: int
    priority: int = 0
    boost: int = 0
    lifo: bool = False
    fair_key: str | None = None
    weight: int = 1
    run_at: int
    ttl: int | None = None
    expires_at: int | None = None
    timeout: int | None = None
    deadline: int | None = None
    heartbeat_timeout: int | None = None
    keys: tuple[Key, ...] = ()
    rates: tuple[RateKey, ...] = ()
    merge: MergeKey | None = None
    collected: int = 0
    collected_bytes: int = 0
    parked_under: str | None = None
    stall: StallTerms = StallTerms()
    policy: Policy = Policy()
    fence: int = 0
    settled_fence: int = 0
    owner: str | None = None
    heard_at: int | None = None
    lease_until: int | None = None
    suspect_until: int | None = None
    run_until: int | None = None
    progress_until: int | None = None
    starts: int = 0
    failures: int = 0
    stalls: int = 0
    releases: int = 0
    quarantined: bool = False
    put_back_used: bool = False
    cancel_at: int | None = None
    cancel_reason: str | None = None
    cancel_by: str | None = None
    created: int
    started: int | None = None
    finished: int | None = None
    kept_until: int | None = None
    redrive_at: int | None = None
    redrives: int = 0
    result: bytes | None = None
    error: RecordedError | None = None
    reason: str | None = None
    fault: str | None = None
    progress: Progress | None = None
    progress_note: str | None = None
    data: bytes | None = None
    data_number: int = 0
    schedule: str | None = None
    tick: int | None = None
    parent: str | None = None
    links: Links | None = None

    @property
    def ref(self) -> Ref:
        """The job's identity."""
        return Ref(self.queue, self.id)

    @property
    def attempt(self) -> int:
        """The attempt number of the current or next run, which `max_attempts` bounds."""
        return self.failures + 1

    @property
    def waited(self) -> int | None:
        """Of an active job, how many microseconds lay between its due time and its start; None if it has no start."""
        return None if self.started is None else max(0, self.started - self.run_at)

    @property
    def unreadable(self) -> str | None:
        """The fields of the record that could not be read, and why; None if all could.

        Those fields have neutral values, so the job never runs: its next run fails as undecodable.
        """
        return None if self.error is None else unreadable_in(self.error)

    @property
    def exclusive(self) -> bool:
        """True if no second run may start while one goes on: the job holds a concurrency key, or must not run twice."""
        return bool(self.keys) or self.policy.on_worker_lost == "fail"


class RunRecord(Struct, frozen=True, kw_only=True):
    """One start of a job: which worker ran it under which fence, and how it ended.

    `trace`: the latest reported position of its handler. If the run's process dies, it shows where the handler was. It
    is deleted when the run ends.
    """

    number: int
    fence: int
    owner: str
    worker: str = ""
    host: str = ""
    pid: int = 0
    start: int
    end: int | None = None
    ended: str | None = None
    reason: str | None = None
    detail: str | None = None
    trace: str | None = None


class LogLine(Struct, frozen=True, kw_only=True):
    """A line that a handler logged, with the number of its run."""

    at: int
    run: int
    level: str
    message: str
    fields: dict[str, str] = field(default_factory=dict[str, str])


class LogPosition(Struct, frozen=True):
    """The end of a job's log: the run of its last line, that line's number in the run, and the total count of lines."""

    run: int = 0
    number: int = 0
    lines: int = 0

    def then(self, run: int, number: int) -> "LogPosition":
        """Return the position after one more line. Skipped numbers of a run are lines that the worker did not send."""
        unsent = number - 1 - (self.number if run == self.run else 0) if number else 0
        return LogPosition(run, number, self.lines + 1 + max(0, unsent))


class JobDetail(Struct, frozen=True):
    """A job with its runs (the newest hundred) and its log (the newest thousand lines).

    `log_dropped`: how many lines are missing from the log: older lines, and lines that a worker could not send.
    `steps`: the recorded outcomes of what it has waited for, in order.
    """

    job: JobRecord
    runs: tuple[RunRecord, ...] = ()
    log: tuple[LogLine, ...] = ()
    log_dropped: int = 0
    steps: tuple[StepRecord, ...] = ()
