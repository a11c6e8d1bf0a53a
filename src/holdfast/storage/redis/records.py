"""Records on their way to and from a cell: msgpack maps of JobRecord's fields, those at their defaults left out.

What no script looks at travels as text. The payload and the result travel beside the record.
"""

from functools import lru_cache

import msgspec
from msgspec import Struct

from holdfast.core.frames import framed
from holdfast.core.job import (
    CollectKey,
    JobRecord,
    Key,
    MergeKey,
    NewJob,
    OnExpire,
    Policy,
    RateKey,
    RecordedError,
    Ref,
    StallTerms,
    ThrottleKey,
)
from holdfast.core.lifecycle import State
from holdfast.core.retry import Backoff
from holdfast.core.transition import too_late

_LEASE = StallTerms().lease
_DEFAULT_POLICY = Policy()
_STRICTEST = Policy(retry=Backoff(max_attempts=1), on_worker_lost="fail")

_encode = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(dict[str, str]).decode
_error = msgspec.json.Decoder(RecordedError).decode
_read_policy = msgspec.json.Decoder(Policy).decode


class Parcel:
    """A request on its way: what a script reads by name, and bytes that stand beside it for they are no text.

    The servers' msgpack knows texts only, so a request names bytes by their place among the script's arguments.
    """

    _FIRST = 3

    def __init__(self) -> None:
        self._blobs: list[bytes] = []

    def put(self, blob: bytes) -> int:
        """Put bytes beside the request; return their place."""
        self._blobs.append(blob)
        return self._FIRST + len(self._blobs) - 1

    def sealed(self, request: object) -> list[bytes]:
        """Return the arguments of the script."""
        return [_encode(request), *self._blobs]


class Wish(Struct, omit_defaults=True, kw_only=True):
    """A new job as a script reads it; see `NewJob`. `payload`: its place in the parcel."""

    queue: str
    id: str
    task: str
    payload: int
    headers: str | None = None
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
    keys: tuple[tuple[str, int], ...] = ()
    rates: tuple[tuple[str, int, int], ...] = ()
    merge: MergeKey | None = None
    throttle: ThrottleKey | None = None
    lease: int = _LEASE
    max_stalls: int = 1
    start_grace: int = 0
    renewed: bool = True
    pinned: tuple[str, ...] = ()
    on_expire: OnExpire = "fail"
    policy: str | None = None
    schedule: str | None = None
    tick: int | None = None
    parent: str | None = None


class Kept(Struct, omit_defaults=True, kw_only=True):
    """A record as a script keeps it; see `JobRecord`. `made`: the number it was made under, which only rises."""

    made: int
    task: str
    state: State
    headers: str | None = None
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
    keys: tuple[tuple[str, int], ...] = ()
    rates: tuple[tuple[str, int, int], ...] = ()
    merge: MergeKey | None = None
    gathered: int = 0
    gathered_bytes: int = 0
    parked_under: str | None = None
    lease: int = _LEASE
    max_stalls: int = 1
    start_grace: int = 0
    renewed: bool = True
    pinned: tuple[str, ...] = ()
    on_expire: str = "fail"
    policy: str | None = None
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
    cancel_at: int | None = None
    cancel_reason: str | None = None
    cancel_by: str | None = None
    created: int
    started: int | None = None
    finished: int | None = None
    kept_until: int | None = None
    redrive_at: int | None = None
    redrives: int = 0
    error: str | None = None
    reason: str | None = None
    progress: float | None = None
    progress_note: str | None = None
    schedule: str | None = None
    tick: int | None = None
    parent: str | None = None


_kept = msgspec.msgpack.Decoder(Kept).decode


def ref_text(ref: Ref) -> str:
    """Return a job's name as scripts have it: names hold no NUL."""
    return f"{ref.queue}\0{ref.id}"


def ref_of(joined: bytes) -> Ref:
    """Return the job of a name as scripts have it."""
    queue, _, job = joined.decode().partition("\0")
    return Ref(queue, job)


def wish(job: NewJob, parcel: Parcel) -> Wish:
    """Return a new job as a script reads it."""
    stall = job.stall
    return Wish(
        queue=job.queue,
        id=job.id,
        task=job.task,
        payload=parcel.put(framed(job.payload) if isinstance(job.merge, CollectKey) else job.payload),
        headers=_json(job.headers).decode() if job.headers else None,
        tags=job.tags,
        delay=job.delay,
        run_at=job.run_at,
        priority=job.priority,
        boost=job.boost,
        lifo=job.lifo,
        fair_key=job.fair_key,
        weight=job.weight,
        ttl=job.ttl,
        timeout=job.timeout,
        deadline=job.deadline,
        heartbeat_timeout=job.heartbeat_timeout,
        keys=tuple((key.name, key.limit) for key in job.keys),
        rates=tuple((rate.name, rate.interval, rate.burst) for rate in job.rates),
        merge=job.merge,
        throttle=job.throttle,
        lease=stall.lease,
        max_stalls=stall.max_stalls,
        start_grace=stall.start_grace,
        renewed=stall.renewed,
        pinned=stall.pinned,
        on_expire=job.policy.on_expire,
        policy=None if job.policy is _DEFAULT_POLICY else _policy_text(job.policy),
        schedule=job.schedule,
        tick=job.tick,
        parent=job.parent,
    )


def made_of(body: bytes) -> int:
    """Return the number that a kept record was made under."""
    return _kept(body).made


def record(ref: Ref, body: bytes, payload: bytes, result: bytes | None = None) -> JobRecord:
    """Return the record that a cell keeps of a job."""
    kept = _kept(body)
    error = None if kept.error is None else _error(kept.error)
    return JobRecord(
        queue=ref.queue,
        id=ref.id,
        task=kept.task,
        state=kept.state,
        payload=payload,
        headers=_headers(kept.headers) if kept.headers else {},
        tags=kept.tags,
        score=kept.score,
        priority=kept.priority,
        boost=kept.boost,
        lifo=kept.lifo,
        fair_key=kept.fair_key,
        weight=kept.weight,
        run_at=kept.run_at,
        ttl=kept.ttl,
        expires_at=kept.expires_at,
        timeout=kept.timeout,
        deadline=kept.deadline,
        heartbeat_timeout=kept.heartbeat_timeout,
        keys=tuple(Key(*key) for key in kept.keys),
        rates=tuple(RateKey(*rate) for rate in kept.rates),
        merge=kept.merge,
        gathered=kept.gathered,
        gathered_bytes=kept.gathered_bytes,
        parked_under=kept.parked_under,
        stall=_terms(kept.lease, kept.max_stalls, kept.start_grace, kept.renewed, kept.pinned),
        policy=_DEFAULT_POLICY if kept.policy is None else _policy(kept.policy),
        fence=kept.fence,
        settled_fence=kept.settled_fence,
        owner=kept.owner,
        heard_at=kept.heard_at,
        lease_until=kept.lease_until,
        suspect_until=kept.suspect_until,
        run_until=kept.run_until,
        progress_until=kept.progress_until,
        starts=kept.starts,
        failures=kept.failures,
        stalls=kept.stalls,
        releases=kept.releases,
        quarantined=kept.quarantined,
        cancel_at=kept.cancel_at,
        cancel_reason=kept.cancel_reason,
        cancel_by=kept.cancel_by,
        created=kept.created,
        started=kept.started,
        finished=kept.finished,
        kept_until=kept.kept_until,
        redrive_at=kept.redrive_at,
        redrives=kept.redrives,
        result=result,
        error=too_late(kept.ttl) if kept.state is State.EXPIRED else error,
        reason=kept.reason,
        progress=kept.progress,
        progress_note=kept.progress_note,
        schedule=kept.schedule,
        tick=kept.tick,
        parent=kept.parent,
    )


def error_text(error: RecordedError | None) -> str | None:
    """Return an error as it is kept."""
    return None if error is None else _json(error).decode()


@lru_cache(1024)
def _policy(body: str) -> Policy:
    try:
        return _read_policy(body)
    except msgspec.MsgspecError:
        # A newer version may have written a word that this one does not know. The job must not hold up those behind it,
        # nor its reaper, so it is judged by the strictest policy there is: whatever goes wrong, it is not run again.
        return _STRICTEST


@lru_cache(1024)
def _terms(lease: int, max_stalls: int, start_grace: int, renewed: bool, pinned: tuple[str, ...]) -> StallTerms:
    return StallTerms(lease, max_stalls, start_grace, renewed, pinned)


def _policy_text(policy: Policy) -> str:
    return _json(policy).decode()
