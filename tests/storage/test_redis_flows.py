"""Jobs that wait, on Redis: random walks give the model's records, ends cross partitions, and no key is left over."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import pytest
import redis
from msgspec import structs

from tenure.clock import SECOND, Clock
from tenure.core.events import FlowBroken
from tenure.core.job import JobDetail, JobRecord, NewJob, Owner, Ref
from tenure.core.lifecycle import State
from tenure.core.outcome import Rejected
from tenure.core.settlement import Settlement
from tenure.core.waiting import Dependent, JobKind, Links, Need, Wait
from tenure.maintenance.outbox import carry_out
from tenure.storage.memory.model import Model
from tenure.storage.queries import Query
from tenure.storage.redis.address import read
from tenure.storage.redis.enqueue_order import levels_of
from tenure.storage.redis.links import decode_outbox
from tenure.storage.redis.storage import RedisStorage
from tenure.storage.requests import (
    ClaimRequest,
    EnqueueResult,
    ExchangeResult,
    RenewRequest,
    RenewResult,
    SweepRequest,
    SweepResult,
)
from tenure.storage.revisions import DeleteJob, RedriveJob, Revision, RevisionResult
from tenure.storage.waiting import OutboxEntry, Subscribe
from tenure.testing import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    ERROR,
    bid,
    claim,
    claim_one,
    counted,
    events_of,
    new_job,
    settled,
)
from tenure_testing.conformance.waiting import END, carry_all, deliver, linked, token
from tests.redis_consistency import inconsistencies
from tests.redis_records import folded, unfolded
from tests.servers import client_of, command
from tests.storage.waiting_walk import Walk

pytestmark = pytest.mark.redis

T = TypeVar("T")

LENGTH = 80


class MirroredModel(Model):
    """A model that sends each call to a Redis storage, too, and compares answers, records and outboxes."""

    url: str
    runner: asyncio.Runner

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._storage = RedisStorage(read(self.url), clock=clock)
        self._server, _, options = self.url.partition("?")
        self._base = "{" + options.rpartition("namespace=")[2] + "}"
        self._client = client_of(self._server)
        self._compared = 0
        self._run(self._storage.open())

    def close(self) -> None:
        """Close the storage."""
        self._client.close()
        self._run(self._storage.close())

    def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Enqueue jobs in both."""
        answer = super().enqueue(jobs)
        assert answer == self._run(self._storage.enqueue(jobs))
        self._compare()
        return answer

    def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        """Settle and claim in both."""
        answer = super().exchange(owner, settlements, order)
        other = self._run(self._storage.exchange(owner, settlements, order))
        assert (answer.verdicts, answer.left, answer.next_due) == (other.verdicts, other.left, other.next_due)
        assert [_shown(lease.job) for lease in answer.leases] == [_shown(lease.job) for lease in other.leases]
        # The model also hands out entries that other verbs have written since.
        assert set(other.outbox) <= set(answer.outbox)
        self._compare()
        return answer

    def revise(self, revisions: Sequence[Revision]) -> list[RevisionResult]:
        """Revise jobs in both."""
        answer = super().revise(revisions)
        assert answer == self._run(self._storage.revise(revisions))
        self._compare()
        return answer

    def renew(self, beat: RenewRequest) -> RenewResult:
        """Renew leases, and record steps, in both."""
        answer = super().renew(beat)
        other = self._run(self._storage.renew(beat))
        assert (answer.lost, answer.cancelling) == (other.lost, other.cancelling)
        self._compare()
        return answer

    def sweep(self, bid: SweepRequest) -> SweepResult:
        """Sweep both."""
        answer = super().sweep(bid)
        other = self._run(self._storage.sweep(bid))
        assert (answer.did, answer.troubles, answer.now) == (other.did, other.troubles, other.now)
        assert [stalled.lease.ref for stalled in answer.stalled] == [stalled.lease.ref for stalled in other.stalled]
        assert answer.outbox == other.outbox
        self._compare()
        return answer

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def _compare(self) -> None:
        refs = list(self.records)
        found = self._run(self._storage.get(refs))
        for ours, theirs in zip(super().get(refs), found, strict=True):
            assert _detail(ours) == _detail(theirs)
        assert set(self.outbox) == set(self._outbox_of_the_server())
        self._compared += 1
        if self._compared % 10 == 0:
            assert inconsistencies(self._client, self._base) == []

    def _outbox_of_the_server(self) -> Iterator[OutboxEntry]:
        outbox = f"{self._base}:outbox"
        for number in command(self._client, "ZRANGE", f"{outbox}_due", 0, -1):
            entry = msgspec.msgpack.decode(command(self._client, "HGET", outbox, number))
            ref, completed, cursor, _, dependents, _ = entry
            page = [text.encode() for text in dependents[3 * cursor :]]
            yield from decode_outbox([(int(number), ref.encode(), completed, cursor, page)])


def _detail(detail: JobDetail | None) -> JobDetail | None:
    return None if detail is None else structs.replace(detail, job=_shown(detail.job))


def _shown(job: JobRecord) -> JobRecord:
    """Return a record without what only the model has: empty links, and parts of a failure without a run."""
    if job.links == Links():
        job = structs.replace(job, links=None)
    if job.reason in ("dependency", "timeout"):
        job = structs.replace(job, fault=None)
    if job.error is not None and "JobExpiredError" in job.error.message:
        # The text of an expiry is made of the record when it is read.
        text = job.error.message.partition(": JobExpiredError")[0]
        job = structs.replace(job, error=structs.replace(job.error, message=text))
    return job


@pytest.mark.parametrize("seed", range(2))
def test_random_walks_give_the_records_of_the_model(redis_url: str, seed: int) -> None:
    walk_through(redis_url, seed)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(100, 125))
def test_many_random_walks_give_the_records_of_the_model(redis_url: str, seed: int) -> None:
    walk_through(redis_url, seed)


def walk_through(url: str, seed: int) -> None:
    """Walk over both storages."""
    with asyncio.Runner() as runner:
        mirrored = type("Mirrored", (MirroredModel,), {"url": url, "runner": runner})
        walk = Walk(seed, mirrored)
        walk.run(LENGTH)
        assert isinstance(walk.model, MirroredModel)
        walk.model.close()


FAR = Ref("other", "far")
"""A job of another partition than those of the usual queue."""


@pytest.fixture
async def cluster(clock: ManualClock, cluster_url: str) -> AsyncIterator[RedisStorage]:
    """Return a storage of three partitions."""
    storage = RedisStorage(read(f"{cluster_url}&partitions=3"), clock=clock)
    await storage.open()
    yield storage
    await storage.close()


@pytest.fixture
def clock() -> ManualClock:
    """Return the clock of the storage."""
    return ManualClock()


def chain_through_queues(*queues: str) -> list[NewJob]:
    """Return a chain of one job in each queue, the first one last. A job's id is its queue."""
    jobs: list[NewJob] = []
    for place, queue in enumerate(queues):
        before, after = queues[place - 1 : place] if place else (), queues[place + 1 : place + 2]
        needs = tuple(Need(box=name, source=Ref(name, name)) for name in before)
        dependents = tuple(Dependent(Ref(name, name), queue, END) for name in after)
        links = Links(wait=Wait(needs) if needs else None, dependents=dependents)
        jobs.append(structs.replace(new_job(), queue=queue, id=queue, links=links))
    return jobs


async def counted_everywhere(storage: RedisStorage) -> Counter[State]:
    """Return how many jobs of all queues are in each state."""
    counts = Counter[State]()
    for queue in (await storage.survey()).queues:
        counts.update(queue.counts)
    return counts


@pytest.mark.cluster
async def test_the_exchange_hands_out_an_end_for_another_partition(cluster: RedisStorage) -> None:
    await cluster.enqueue(chain_through_queues("default", "other"))
    answer = await cluster.exchange(ALICE, [settled(await claim_one(cluster))])
    (entry,) = answer.outbox
    assert (entry.ref, [one.to for one in entry.dependents]) == (Ref("default", "default"), [Ref("other", "other")])
    assert await claim(cluster, queue="other") == []
    await carry_out(cluster, [entry])

    assert (await claim_one(cluster, queue="other")).ref == Ref("other", "other")


@pytest.mark.cluster
async def test_a_chain_through_partitions_fails_and_resumes(cluster: RedisStorage, clock: ManualClock) -> None:
    queues = ("default", "other", "gone", "r", "a")
    await cluster.enqueue(chain_through_queues(*queues))
    await cluster.exchange(ALICE, [settled(await claim_one(cluster), Rejected(ERROR))])
    await carry_all(cluster, clock)
    assert await counted_everywhere(cluster) == {State.FAILED: 5}
    await cluster.revise([RedriveJob(Ref("default", "default"))])
    for queue in queues:
        await cluster.exchange(ALICE, [settled(await claim_one(cluster, queue=queue))])
        await carry_all(cluster, clock)

    assert await counted_everywhere(cluster) == {State.COMPLETED: 5}


@pytest.mark.cluster
async def test_a_redrive_is_refused_while_the_cause_exists_in_another_partition(
    cluster: RedisStorage, clock: ManualClock
) -> None:
    await cluster.enqueue(chain_through_queues("default", "other"))
    await cluster.exchange(ALICE, [settled(await claim_one(cluster), Rejected(ERROR))])
    await carry_all(cluster, clock)
    first, second = Ref("default", "default"), Ref("other", "other")
    (answer,) = await cluster.revise([RedriveJob(second)])
    assert (answer.verdict, answer.holder) == ("refused", first)
    _, answer = await cluster.revise([DeleteJob(first), RedriveJob(second)])
    assert answer.verdict == "done"

    assert (await claim_one(cluster, queue="other")).ref == second


@pytest.mark.cluster
async def test_a_group_reports_its_first_failure_to_another_partition(
    cluster: RedisStorage, clock: ManualClock
) -> None:
    flow = Links(wait=Wait((Need(box="g", mode="tally", source=Ref("default", "g")),)), kind=JobKind.FLOW)
    members = Wait((Need(box="members", count=3, mode="tally"),))
    group = Links(members, (Dependent(FAR, "g", END),), JobKind.GROUP, FAR)
    new = [structs.replace(new_job("g"), links=group), structs.replace(new_job(), queue="other", id="far", links=flow)]
    await cluster.enqueue(new)
    await deliver(cluster, "g", token("members", "failed", key="2"), token("members", "failed", key="3"))
    await carry_all(cluster, clock)
    assert [event.failure_cause for event in await events_of(cluster, FlowBroken)] == ["default/g~2"]
    await deliver(cluster, "g", token("members", key="1"))
    await carry_all(cluster, clock)

    assert await counted_everywhere(cluster) == {State.FAILED: 2}
    assert len(await events_of(cluster, FlowBroken)) == 1


@pytest.mark.cluster
async def test_a_subscriber_in_another_partition_is_notified_of_an_end_before(
    cluster: RedisStorage, clock: ManualClock
) -> None:
    await cluster.enqueue([new_job("a"), chain_through_queues("default", "other")[1]])
    await cluster.exchange(ALICE, [settled(await claim_one(cluster))])
    subscriber = Dependent(Ref("other", "other"), "default", END)
    await cluster.revise([Subscribe(Ref("default", "a"), subscriber)])
    await carry_all(cluster, clock)

    assert (await claim_one(cluster, queue="other")).ref == Ref("other", "other")


def test_a_call_stores_each_job_before_those_that_notify_it() -> None:
    jobs = chain_through_queues("a", "b", "b2", "c", "a2")

    assert levels_of(jobs, lambda queue: queue[0]) == [3, 2, 2, 1, 0]
    assert levels_of([new_job("x"), new_job("y")], lambda queue: queue) == [0, 0]


FAN_OUT = tuple(f"{number}" for number in range(250))


async def fan_out(storage: RedisStorage) -> None:
    """Enqueue one job that 250 others wait for."""
    await storage.enqueue([linked(name, after=["a"]) for name in FAN_OUT])
    await storage.enqueue([new_job("a")])
    subscriptions = [Subscribe(Ref("default", "a"), Dependent(Ref("default", name), "a", END)) for name in FAN_OUT]
    await storage.revise(subscriptions + subscriptions[::50])


async def pages_carried_out(storage: RedisStorage, entries: Sequence[OutboxEntry]) -> list[int]:
    """Carry out entries and all their pages; return the sizes of the pages."""
    pages = list[int]()
    while entries:
        pages += [len(entry.dependents) for entry in entries]
        await carry_out(storage, entries)
        entries = (await storage.sweep(bid())).outbox
    return pages


async def test_a_large_fan_out_is_carried_out_page_by_page(redis_url: str, clock: ManualClock) -> None:
    storage = RedisStorage(read(redis_url), clock=clock)
    await fan_out(storage)
    (detail,) = await storage.get([Ref("default", "a")])
    assert detail is not None
    assert detail.job.links is not None
    assert [dependent.to.id for dependent in detail.job.links.dependents] == list(FAN_OUT)
    entries = (await storage.exchange(ALICE, [settled(await claim_one(storage))])).outbox

    assert await pages_carried_out(storage, entries) == [100, 100, 50]
    assert await counted(storage) == {State.COMPLETED: 1, State.WAITING: 250}
    assert _inconsistencies(redis_url) == []
    await storage.close()


@pytest.mark.parametrize("ends", ["unfinished", "failed"])
async def test_a_large_fan_out_outlives_its_deleted_job(redis_url: str, clock: ManualClock, ends: str) -> None:
    storage = RedisStorage(read(redis_url), clock=clock)
    await fan_out(storage)
    if ends == "failed":
        await storage.exchange(ALICE, [settled(await claim_one(storage), Rejected(ERROR))])
    await storage.revise([DeleteJob(Ref("default", "a"))])
    assert _inconsistencies(redis_url) == []
    clock.advance(2)
    entries = (await storage.sweep(bid())).outbox

    assert await pages_carried_out(storage, entries) == [100, 100, 50]
    assert await counted(storage) == {State.FAILED: 250}
    assert _inconsistencies(redis_url) == []
    await storage.close()


async def test_a_redriven_large_fan_out_replaces_its_entry(redis_url: str, clock: ManualClock) -> None:
    storage = RedisStorage(read(redis_url), clock=clock)
    await fan_out(storage)
    await storage.exchange(ALICE, [settled(await claim_one(storage), Rejected(ERROR))])
    await storage.revise([RedriveJob(Ref("default", "a"))])
    entries = (await storage.exchange(ALICE, [settled(await claim_one(storage))])).outbox

    assert await pages_carried_out(storage, entries) == [100, 100, 50]
    assert await counted(storage) == {State.COMPLETED: 1, State.WAITING: 250}
    clock.advance(400 * 86_400)
    await storage.sweep(bid())
    assert (await storage.sweep(bid())).outbox == ()
    assert _inconsistencies(redis_url) == []
    await storage.close()


async def test_a_token_of_a_large_group_takes_no_more_commands_and_two_bits(redis_url: str, clock: ManualClock) -> None:
    storage = RedisStorage(read(redis_url), clock=clock)
    await storage.open()
    need = Need(box="members", count=2000, mode="tally")
    await storage.enqueue([linked("g", after=[need], kind=JobKind.GROUP)])
    with client_of(redis_url.partition("?")[0]) as client:
        spent: list[int] = []
        for first in range(0, 2000, 500):
            before = _commands(client)
            tokens = [token("members", key=f"{number}") for number in range(first, first + 500)]
            await deliver(storage, "g", *tokens)
            spent.append(_commands(client) - before)

        base = "{" + redis_url.rpartition("namespace=")[2] + "}"
        kept = [command(client, "MEMORY", "USAGE", name) for name in command(client, "KEYS", f"{base}:inbox*")]

    # The first call also marks the record, and the last one ends the group.
    assert max(spent) - min(spent) < 40
    # Two bits for each member.
    assert sum(kept) < 4096
    assert _inconsistencies(redis_url) == []
    assert await counted(storage) == {State.COMPLETED: 1}
    await storage.close()


async def test_no_key_of_a_deleted_flow_is_left(redis_url: str, clock: ManualClock) -> None:
    storage = RedisStorage(read(redis_url), clock=clock)
    await storage.open()
    await storage.enqueue([linked("b", after=[Need(box="a", step="first")]), linked("a", to=["b"])])
    await deliver(storage, "a", token("x", "failed"))
    for _ in range(2):
        await storage.exchange(ALICE, [settled(await claim_one(storage))])
    base = "{" + redis_url.rpartition("namespace=")[2] + "}"
    with client_of(redis_url.partition("?")[0]) as client:
        assert {"inbox", "inbox_failed", "steps"} <= _kinds(client, base)
        clock.advance(400 * 86_400)
        await storage.sweep(bid())
        assert not {"job", "inbox", "inbox_failed", "steps"} & _kinds(client, base)
        await storage.enqueue([linked("b", after=[Need(box="a", step="first")])])
        await deliver(storage, "b", token("x", "failed"))
        await storage.revise([DeleteJob(Ref("default", "b"))])

        assert not {"job", "inbox", "inbox_failed", "steps"} & _kinds(client, base)
    await storage.close()


async def test_a_damaged_wait_fails_its_job_and_notifies_dependents(redis_url: str, clock: ManualClock) -> None:
    storage = RedisStorage(read(redis_url), clock=clock)
    await storage.enqueue([linked("c", after=["b"]), linked("b", after=["a"], to=["c"])])
    record = "{" + redis_url.rpartition("namespace=")[2] + "}:job:default\0b"
    with client_of(redis_url.partition("?")[0]) as client:
        fields = unfolded(command(client, "GET", record))
        command(client, "SET", record, folded(fields | {"wait": 5}))
    await deliver(storage, "b", token("a"))
    (first, second) = await storage.get([Ref("default", "b"), Ref("default", "c")])

    assert first is not None
    assert second is not None
    assert (first.job.state, first.job.reason) == (State.FAILED, "undecodable")
    assert (second.job.state, second.job.reason) == (State.FAILED, "dependency")
    await storage.close()


async def test_a_timer_ends_a_job_whose_own_timer_is_due(redis_url: str, clock: ManualClock) -> None:
    storage = RedisStorage(read(redis_url), clock=clock)
    until = clock.now() + SECOND
    group = linked("g", after=[Need(box="members", until=until)], to=["z"], kind=JobKind.GROUP)
    await storage.enqueue([linked("z", after=["g", Need(box="x", until=until)]), group])
    assert (await storage.find(Query(states=(State.DELAYED,), order="due"))).jobs == ()
    clock.advance(1)
    await storage.sweep(bid())

    assert await counted(storage) == {State.FAILED: 2}
    # The log tells of no repair.
    assert _inconsistencies(redis_url) == []
    await storage.close()


def _commands(client: redis.Redis) -> int:
    """Return how many commands the server has carried out, those of scripts included."""
    stats = command(client, "INFO", "commandstats")
    return sum(one["calls"] for name, one in stats.items() if name.startswith("cmdstat_"))


def _kinds(client: redis.Redis, base: str) -> set[str]:
    names = command(client, "KEYS", "*")
    prefix = f"{base}:"
    return {name.decode().removeprefix(prefix).partition(":")[0] for name in names if name.decode().startswith(prefix)}


def _inconsistencies(url: str) -> list[str]:
    with client_of(url.partition("?")[0]) as client:
        return inconsistencies(client, "{" + url.rpartition("namespace=")[2] + "}")
