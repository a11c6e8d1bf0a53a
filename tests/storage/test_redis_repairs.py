"""Damage to a Redis partition: other jobs continue, no ended job runs again, and sweeps repair the damage.

Each test damages a partition that holds all kinds of jobs, and lists its inconsistencies before and after with
`tests/redis_consistency.py`. The ordinary verbs continue meanwhile. Sweeps repair the rest and record an event.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import pytest
import redis

from tenure.clock import SECOND
from tenure.core.events import JobRepaired
from tenure.core.fingerprint import fingerprint
from tenure.core.job import CollectKey, Key, Policy, RateKey, Ref, UniqueKey
from tenure.core.lifecycle import State
from tenure.core.outcome import Raised, Returned
from tenure.core.retry import Backoff
from tenure.core.schedule import Schedule
from tenure.storage.protocol import PutSchedule, Query, Tick
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tenure.testing import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    ERROR,
    RAISED,
    REAPER,
    beat,
    bid,
    claim,
    enqueue,
    events_of,
    new_job,
    record,
    settle,
)
from tests.redis_consistency import inconsistencies
from tests.redis_records import folded, unfolded
from tests.servers import client_of

pytestmark = pytest.mark.redis

Q = "broken"
ROUND = 60
"""Sweeps after which the audit has surely checked everything in the partition of a test."""

LONG = b"x" * 1000
"""A payload, or a result, that a record does not hold itself."""

KEYED = (Key("k"),)
UNIQUE = UniqueKey("u")
COLLECTED = CollectKey("c", 20 * SECOND, 9)
PACED = (RateKey("r", 3600 * SECOND),)


class RedisPartition(NamedTuple):
    """A storage, its keys, and its clock."""

    storage: RedisStorage
    client: redis.Redis
    base: str
    clock: ManualClock

    @property
    def raw(self) -> Any:
        """Return the client; its commands have no useful types."""
        return self.client

    def key(self, kind: str, *names: str) -> str:
        """Return the name of a key."""
        return ":".join((self.base, kind, "\0".join(names))) if names else f"{self.base}:{kind}"

    def wrong(self) -> list[str]:
        """Return the inconsistencies of the partition. A recorded repair is not one."""
        return [found for found in inconsistencies(self.client, self.base) if "tells of a repair" not in found]

    def rewrite(self, id_: str, **fields: Any) -> None:
        """Change only the record of a job."""
        name = self.key("job", Q, id_)
        self.raw.set(name, folded(unfolded(self.raw.get(name)) | fields))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def partition(clock: ManualClock, redis_url: str) -> AsyncIterator[RedisPartition]:
    address = read(redis_url)
    storage = RedisStorage(address, clock=clock)
    await storage.open()
    with client_of(redis_url.partition("?")[0]) as client:
        yield RedisPartition(storage, client, address.bases[0], clock)
    await storage.close()


async def fill_partition(partition: RedisPartition) -> None:
    """Create a job of each kind in the partition."""
    storage = partition.storage
    await enqueue(
        storage,
        new_job("holder", queue=Q, keys=KEYED),
        new_job("ended", queue=Q),
        new_job("erred", queue=Q, policy=Policy(retry=Backoff(max_attempts=1))),
        new_job("silent", queue=Q),
        new_job("paced", queue=Q, rates=PACED),
    )
    leases = {lease.ref.id: lease for lease in await claim(storage, queue=Q)}
    await settle(storage, ALICE, leases["ended"], Returned(b"1"))
    await settle(storage, ALICE, leases["erred"], RAISED)
    await settle(storage, ALICE, leases["paced"], Returned(b"1"))
    await enqueue(storage, new_job("kept-out", queue=Q, keys=KEYED), new_job("too-soon", queue=Q, rates=PACED))
    assert await claim(storage, queue=Q) == []
    await enqueue(
        storage,
        new_job("waits", queue=Q),
        new_job("later", queue=Q, delay=30 * SECOND),
        new_job("unique", queue=Q, merge=UNIQUE, delay=30 * SECOND),
        new_job("gathers", queue=Q, merge=COLLECTED),
        new_job("nightly", queue=Q, schedule="nightly", delay=30 * SECOND),
        new_job("aged", queue=Q, ttl=40 * SECOND, delay=30 * SECOND),
    )
    assert partition.wrong() == []


REF = f"{Q}\0"
FAULT = fingerprint("add", "exhausted", ERROR)

STRAYS: dict[str, Callable[[RedisPartition, str], object]] = {
    "ready": lambda partition, id_: partition.raw.zadd(partition.key("ready", Q), {id_: 1}),
    "delayed": lambda partition, id_: partition.raw.zadd(partition.key("delayed", Q), {id_: 1}),
    "leases": lambda partition, id_: partition.raw.zadd(partition.key("leases"), {REF + id_: 1}),
    "suspects": lambda partition, id_: partition.raw.zadd(partition.key("suspects"), {REF + id_: 1}),
    "aging": lambda partition, id_: partition.raw.zadd(partition.key("aging"), {REF + id_: 1}),
    "kept": lambda partition, id_: partition.raw.zadd(partition.key("kept"), {REF + id_: 1}),
    "redrives": lambda partition, id_: partition.raw.zadd(partition.key("redrives"), {REF + id_: 1}),
    "parked under a key": lambda partition, id_: partition.raw.zadd(partition.key("parked", Q, "k"), {id_: 1}),
    "parked under a rate": lambda partition, id_: partition.raw.zadd(partition.key("parked", Q, "rate:r"), {id_: 1}),
    "slots": lambda partition, id_: partition.raw.zadd(partition.key("slots", Q, "k"), {id_: 1}),
    "merge": lambda partition, id_: partition.raw.zadd(partition.key("merge", Q, "unique:u"), {id_: 0}),
    "busy": lambda partition, id_: partition.raw.zadd(partition.key("busy", Q, "unique:u"), {id_: 0}),
    "gathering": lambda partition, id_: partition.raw.zadd(partition.key("merge", Q, "collect:c"), {id_: 0}),
    "queued": lambda partition, id_: partition.raw.zadd(partition.key("queued", "weekly"), {REF + id_: 0}),
    "running": lambda partition, id_: partition.raw.zadd(partition.key("running", "weekly"), {REF + id_: 0}),
    "held": lambda partition, id_: partition.raw.zadd(partition.key("held", ALICE.id), {REF + id_: 0}),
    "over": lambda partition, id_: partition.raw.zadd(partition.key("over", Q, "cancelled"), {id_: 1}),
    "failed": lambda partition, id_: partition.raw.zadd(partition.key("failed", Q, FAULT), {id_: 1}),
    "in": lambda partition, id_: partition.raw.zadd(partition.key("in", Q, "waiting"), {id_: 0}),
    "ages": lambda partition, id_: partition.raw.zadd(partition.key("ages", Q), {id_: 1}),
}
"""By index, a function that adds an entry which is first in its line."""


@pytest.mark.parametrize("member", ["missing", "ended"])
@pytest.mark.parametrize("index", STRAYS)
async def test_a_stray_index_entry_is_removed_and_delays_no_job(
    partition: RedisPartition, index: str, member: str
) -> None:
    await fill_partition(partition)
    STRAYS[index](partition, member)

    assert partition.wrong()
    assert await all_verbs_go_on(partition) == ["duplicate", "collected"]

    await everything_ends(partition)

    assert partition.wrong() == []
    assert {event.id for event in await events_of(partition.storage, JobRepaired)} == {member}
    # Jobs that had ended have not run again.
    ended = await record(partition.storage, Ref(Q, "ended"))
    assert (ended.state, ended.starts, ended.result) == (State.COMPLETED, 1, b"1")


GONE: dict[str, Callable[[RedisPartition], object]] = {
    "a failed job without its fault": lambda partition: partition.raw.delete(
        partition.key("failed", Q, FAULT), partition.key("faults")
    ),
    "an active job without a lease": lambda partition: partition.raw.zrem(partition.key("leases"), REF + "holder"),
    "an active job without a holder": lambda partition: partition.raw.zrem(
        partition.key("held", ALICE.id), REF + "holder"
    ),
    "a waiting job out of line": lambda partition: partition.raw.delete(partition.key("ready", Q)),
    "delayed jobs without an index": lambda partition: partition.raw.delete(partition.key("delayed", Q)),
    "delayed jobs whose queue is never due": lambda partition: partition.raw.delete(partition.key("dues")),
    "parked jobs without an index": lambda partition: partition.raw.delete(partition.key("places")),
    "parked jobs that are in no place": lambda partition: partition.raw.delete(partition.key("parked", Q, "k")),
    "a slot that is taken and looks free": lambda partition: partition.raw.delete(partition.key("slots", Q, "k")),
    "a queue that is not known": lambda partition: partition.raw.delete(partition.key("queues")),
    "a time to live without an end": lambda partition: partition.raw.delete(partition.key("aging")),
    "a key without a holder": lambda partition: partition.raw.delete(partition.key("merge", Q, "unique:u")),
    "a schedule's job that is forgotten": lambda partition: partition.raw.delete(partition.key("queued", "nightly")),
    "a key without a limit": lambda partition: partition.raw.delete(
        partition.key("limits", Q), partition.key("named", Q)
    ),
}
"""The entries that may be missing."""


@pytest.mark.parametrize("gone", GONE)
async def test_a_missing_entry_is_put_back(partition: RedisPartition, gone: str) -> None:
    await fill_partition(partition)
    GONE[gone](partition)

    assert partition.wrong()

    if gone != "a queue that is not known":
        # An enqueue adds a queue to the known ones, too.
        await others_go_on(partition)
    await everything_ends(partition)

    assert partition.wrong() == []
    assert await events_of(partition.storage, JobRepaired)


@pytest.mark.parametrize("id_", ["waits", "later", "holder", "kept-out", "too-soon", "unique", "gathers", "nightly"])
async def test_a_missing_record_delays_no_other_job(partition: RedisPartition, id_: str) -> None:
    await fill_partition(partition)
    partition.raw.delete(partition.key("job", Q, id_))

    await all_verbs_go_on(partition)
    await everything_ends(partition, but=id_)

    assert {event.id for event in await events_of(partition.storage, JobRepaired)} == {id_}


@pytest.mark.parametrize(
    "body",
    # The last two begin like a valid record of a waiting job.
    [b"", b"\xc1", b"\x93\x01\x02", b"\x02\x02\x01", b"\x02\x02\x01\x05\0\0\0" + b"\0" * 56 + b"\xc1\xc1\xc1\xc1\xc1"],
)
async def test_an_unreadable_record_delays_no_other_job(partition: RedisPartition, body: bytes) -> None:
    await fill_partition(partition)
    partition.raw.set(partition.key("job", Q, "waits"), body)

    await all_verbs_go_on(partition)
    await everything_ends(partition, but="waits")


async def test_a_missing_payload_costs_its_job_and_no_other(partition: RedisPartition) -> None:
    await fill_partition(partition)
    await enqueue(partition.storage, new_job("long", queue=Q, payload=LONG))
    partition.raw.delete(partition.key("load", Q, "long"))
    leases = {lease.ref.id: lease for lease in await claim(partition.storage, queue=Q)}

    assert leases["long"].job.payload == b""
    assert leases["waits"].job.payload == b"[1,2]"


async def test_a_missing_result_leaves_its_job_completed(partition: RedisPartition) -> None:
    await fill_partition(partition)
    leases = {lease.ref.id: lease for lease in await claim(partition.storage, queue=Q)}
    await settle(partition.storage, ALICE, leases["waits"], Returned(LONG))
    assert (await record(partition.storage, Ref(Q, "waits"))).result == LONG
    partition.raw.delete(partition.key("result", Q, "waits"))
    await all_verbs_go_on(partition)
    ended = await record(partition.storage, Ref(Q, "waits"))

    assert (ended.state, ended.result) == (State.COMPLETED, None)


@pytest.mark.parametrize("count", [-3, 0, 1, 99])
async def test_a_wrong_count_of_jobs_that_name_a_key_is_corrected(partition: RedisPartition, count: int) -> None:
    await fill_partition(partition)
    partition.raw.hset(partition.key("named", Q), "k", count)
    await all_verbs_go_on(partition)
    await everything_ends(partition)


@pytest.mark.parametrize("limit", [0, 1, 7])
async def test_a_wrong_limit_is_correct_with_the_next_call(partition: RedisPartition, limit: int) -> None:
    await fill_partition(partition)
    partition.raw.hset(partition.key("limits", Q), "k", limit)
    await enqueue(partition.storage, new_job("another", queue=Q, keys=KEYED))

    assert partition.raw.hget(partition.key("limits", Q), "k") == b"1"

    await everything_ends(partition)


async def test_a_record_of_a_newer_version_is_kept_unchanged(partition: RedisPartition) -> None:
    await fill_partition(partition)
    newer = {"colour": "green", "shape": {"sides": [1, 2]}, "on_expire": "archive"}
    partition.rewrite("waits", **newer, policy='{"on_worker_lost":"clone","retry":{"type":"fibonacci"},"moon":1}')
    (lease,) = [item for item in await claim(partition.storage, queue=Q) if item.ref.id == "waits"]
    kept = unfolded(partition.raw.get(partition.key("job", Q, "waits")))

    assert {name: kept[name] for name in newer} == newer
    # Decided by the strictest policy.
    assert lease.job.policy.retry.max_attempts == 1

    await settle(partition.storage, ALICE, lease, Raised(RAISED.error, after=0))
    await all_verbs_go_on(partition)
    await everything_ends(partition)

    assert "waits" in [job.id for job in (await partition.storage.find(Query(limit=100))).jobs]


# ── what continues ────────────────────────────────────────────────────────────────────────────────────────────────────


async def others_go_on(partition: RedisPartition) -> None:
    """Check that undamaged jobs are enqueued, claimed, renewed, settled and listed, and that no ended job runs."""
    storage = partition.storage
    await enqueue(
        storage, new_job("fresh", queue=Q, priority=-9, boost=-9 * SECOND), new_job("apart", queue="other", keys=KEYED)
    )
    leases = [*await claim(storage, queue="other"), *await claim(storage, queue=Q)]
    ids = {lease.ref.id for lease in leases}
    assert ids >= {"fresh", "apart"}
    assert not ids & {"ended", "erred", "holder", "silent", "missing"}
    await beat(storage, ALICE, leases)
    for lease in leases:
        await settle(storage, ALICE, lease, Returned(b"1"))
    assert {"fresh", "apart"} <= {job.id for job in (await storage.find(Query(limit=100))).jobs}
    await storage.survey()


async def all_verbs_go_on(partition: RedisPartition) -> list[str]:
    """Check that the keys and schedules in damaged places can be used, too; return the outcomes of the calls."""
    storage, now = partition.storage, partition.clock.now()
    await others_go_on(partition)
    calls = [new_job("unique-2", queue=Q, merge=UNIQUE), new_job("item", queue=Q, merge=COLLECTED)]
    receipts = await storage.enqueue(calls)
    schedule = Schedule(name="weekly", job=new_job(""), every=SECOND, created=now, last_tick=now)
    tick = Tick("weekly", now, now + 1, now + SECOND, new_job("tick", queue=Q, schedule="weekly"))
    planned = await storage.plan([PutSchedule(schedule), tick])
    assert planned[1].ref == Ref(Q, "tick")
    return [receipt.action for receipt in receipts]


async def everything_ends(partition: RedisPartition, *, but: str = "") -> None:
    """Let sweeps and workers continue until all jobs have ended; `but`: a job whose record is missing."""
    storage = partition.storage
    runs: list[str] = []
    for _ in range(ROUND):
        partition.clock.advance(1)
        swept = await storage.sweep(bid())
        assert swept.troubles == ()
        for stalled in swept.stalled:
            await settle(storage, REAPER, stalled.lease)
        for queue in (Q, "other"):
            for lease in await claim(storage, BOB, queue=queue):
                runs.append(lease.ref.id)
                await settle(storage, BOB, lease)
    assert (await storage.reclaim(ALICE.id, REAPER)).stalled == ()
    jobs = {job.id: job for job in (await storage.find(Query(limit=100))).jobs}
    # The rate allows one start an hour.
    assert {job.id for job in jobs.values() if job.finished is None} <= {"too-soon"}
    assert set(jobs) >= {"waits", "later", "holder", "silent", "kept-out", "too-soon", "unique", "gathers"} - {but}
    assert not set(runs) & {"ended", "erred"}
    assert len(runs) == len(set(runs))
