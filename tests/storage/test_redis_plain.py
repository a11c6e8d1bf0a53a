"""Plain jobs are moved many at a time, and leave the keys of a partition as the slow path leaves them."""

from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import msgspec
import pytest
import redis

from tenure.clock import SECOND
from tenure.core.job import Key, NewJob, Policy, RateKey, Ref
from tenure.core.lease import Lease
from tenure.core.outcome import Interrupted, Outcome, Raised, Returned, Snoozed
from tenure.core.settlement import Settlement, settlement
from tenure.storage.protocol import CancelJob, ClaimRequest, LeaseRenewal, RedriveJob, RenewRequest, Settings, Target
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tenure.testing import ManualClock
from tenure_testing.conformance.helpers import ALICE, BOB, ERROR, REAPER, bid, new_job, stalled
from tests.redis_consistency import PartitionContents, inconsistencies
from tests.servers import RedisServer, client_of, command

pytestmark = pytest.mark.redis

QUEUES = ("mail", "reports")
STEPS = 90

WEIGHTS = {"enqueue": 2, "exchange": 3, "renew": 1, "hand": 1, "wait": 1, "sweep": 1, "tune": 1, "reclaim": 1}
"""How often each call is made, relative to the others."""


class Pair:
    """A storage whose plain jobs take the fast path, and one where all take the slow path; both get the same calls."""

    def __init__(self, short: str, long: str, clock: ManualClock, seed: int) -> None:
        self.addresses = short, long
        self.storages = [RedisStorage(read(address), clock=clock) for address in self.addresses]
        self.held: list[tuple[Lease, Any]] = []
        self.clock = clock
        self.dice = Random(seed)
        self._ids = 0

    async def open(self) -> None:
        """Open both; the queues of one get a setting that changes nothing but the path."""
        for storage in self.storages:
            await storage.open()
        for queue in QUEUES:
            await self.storages[1].tune(Target("queue", queue), Settings(record=("collected",)))

    async def both(self, call: Callable[[RedisStorage], Any]) -> Any:
        """Send the same call to both; return their answers."""
        short, long = [await call(storage) for storage in self.storages]

        # This setting of a queue is the only difference between them.
        assert short == long or isinstance(short, Settings)
        return short

    def new(self) -> NewJob:
        """Return a job: usually a plain one, sometimes the id of an earlier one."""
        dice = self.dice
        if dice.random() < 0.9 or self._ids == 0:
            self._ids += 1
            number = self._ids
        else:
            number = dice.randrange(self._ids) + 1
        fields: dict[str, Any] = {}
        if dice.random() < 0.3:
            rare: list[dict[str, Any]] = [
                {"delay": 2 * SECOND},
                {"keys": (Key("k", 2),)},
                {"ttl": 20 * SECOND},
                {"fair_key": "tenant"},
                {"heartbeat_timeout": 8 * SECOND},
            ]
            # A fair queue stays fair for all its jobs, so that is rare.
            fields |= dice.choice(rare if dice.random() < 0.1 else rare[:3])
        fields["timeout"] = dice.choice((None, None, 12 * SECOND))
        fields["boost"] = dice.choice((0, 0, 60 * SECOND))
        fields["tags"] = dice.choice(((), ("eu",)))
        fields["payload"] = b"x" * dice.choice((0, 5, 5, 512, 513, 900))
        fields["policy"] = Policy(result_ttl=dice.choice((None, None, 10 * SECOND)))
        task = dice.choice(("add", "add", "send"))
        return new_job(f"job-{number}", queue=dice.choice(QUEUES), task=task, **fields)

    def outcome(self) -> Outcome:
        """Return how a run ended: usually with success."""
        dice = self.dice
        others: tuple[Outcome, ...] = (Raised(ERROR), Snoozed(SECOND), Interrupted("shutdown"))
        well = Returned(b"r" * dice.choice((0, 4, 128, 129, 700)))
        return well if dice.random() < 0.8 else dice.choice(others)

    async def exchange(self) -> None:
        """Settle some leases, some of them twice or for another owner, and claim more."""
        owner, dice = self.dice.choice((ALICE, BOB)), self.dice
        dice.shuffle(self.held)
        some, self.held = self.held[: (at := dice.randrange(8))], self.held[at:]
        sent: list[Settlement] = [settlement(lease, self.outcome(), dice, took=0.5) for lease, _ in some]
        sent += sent[: dice.randrange(2)]
        order = ClaimRequest(QUEUES[: dice.randrange(3)], dice.randrange(8))
        answer = await self.both(lambda storage: storage.exchange(owner, sent, order if order.queues else None))
        self.held += [(lease, owner) for lease in answer.leases]
        lost = {(verdict.ref, verdict.fence) for verdict in answer.verdicts if verdict.verdict == "lost"}
        self.held += [(lease, holder) for lease, holder in some if (lease.ref, lease.fence) in lost and holder != owner]

    async def step(self) -> None:
        """Make one call."""
        dice = self.dice
        match dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]:
            case "enqueue":
                jobs = [self.new() for _ in range(dice.randrange(1, 12))]
                await self.both(lambda storage: storage.enqueue(jobs))
            case "exchange":
                await self.exchange()
            case "renew" if self.held:
                lease, owner = dice.choice(self.held)
                trace, extend = dice.choice((None, "here")), dice.random() < 0.8
                beat = RenewRequest(owner, (LeaseRenewal(lease.ref, lease.fence, trace=trace, extend=extend),))
                await self.both(lambda storage: storage.renew(beat))
            case "hand":
                ref = Ref(dice.choice(QUEUES), f"job-{dice.randrange(self._ids + 1)}")
                revision = dice.choice((CancelJob(ref), RedriveJob(ref)))
                await self.both(lambda storage: storage.revise([revision]))
            case "wait":
                self.clock.step_wall(dice.choice((0.5, 3.0, 10.0, 30.0, -4.0)))
            case "sweep":
                swept = await self.both(lambda storage: storage.sweep(bid()))
                verdicts = [stalled(lease) for lease in swept.stalled]
                await self.both(lambda storage: storage.exchange(REAPER, verdicts))
            case "tune":
                of_a_task = RateKey("task:add", dice.choice((0, SECOND // 2)), 3)
                of_a_queue = RateKey("queue:reports", dice.choice((0, SECOND // 3)), 4)
                target, settings = dice.choice(
                    (
                        (Target("task", "send"), Settings(paused=dice.random() < 0.5)),
                        (Target("task", "add"), Settings(rate=of_a_task)),
                        (Target("queue", "mail"), Settings(paused=dice.random() < 0.3)),
                        (Target("queue", "reports"), Settings(rate=of_a_queue)),
                    )
                )
                await self.both(lambda storage: storage.tune(target, settings))
            case "reclaim":
                taken = await self.both(lambda storage: storage.reclaim(BOB.id, REAPER))
                verdicts = [stalled(lease) for lease in taken.stalled]
                await self.both(lambda storage: storage.exchange(REAPER, verdicts))
            case _:
                pass

    def compare(self) -> None:
        """Check that the keys of both hold the same, and that each is consistent."""
        short, long = [self.dump(address) for address in self.addresses]

        assert short.keys() == long.keys()
        assert {name: held for name, held in short.items() if held != long[name]} == {}

    def dump(self, address: str) -> dict[str, Any]:
        """Return all that a partition holds, except the settings of its queues."""
        base = read(address).bases[0]
        with client_of(address.partition("?")[0]) as client:
            assert inconsistencies(client, base) == []
            contents = PartitionContents(client, base)
            names = {f"{base}:{kind}:{name}" if name else f"{base}:{kind}" for kind, name in contents.keys}
            held: dict[str, Any] = {name.removeprefix(base): value(client, name) for name in names}
            held |= {f":job:{name}": job for name, job in contents.jobs.items()}
            held[":events"] = [(number, decoded(fields)) for number, fields in contents.events()]
            # Each namespace has an identity of its own.
            del held[":identity"]
        held.pop(":settings", None)
        return held

    async def close(self) -> None:
        """Close both."""
        for storage in self.storages:
            await storage.close()


def decoded(fields: dict[bytes, bytes]) -> dict[bytes, Any]:
    """Return what an entry of the log holds: a script may encode an event's fields in any order."""
    return {name: msgspec.msgpack.decode(body) if name in (b"e", b"o") else body for name, body in fields.items()}


READ = {b"string": ("GET",), b"hash": ("HGETALL",), b"list": ("LRANGE", 0, -1), b"stream": ("XRANGE", "-", "+")}


def value(client: Any, name: str) -> Any:
    """Return what a key holds."""
    kind = command(client, "TYPE", name)
    verb, *rest = READ.get(kind, ("ZRANGE", 0, -1, "WITHSCORES"))
    return command(client, verb, name, *rest)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def make_pair(redis_urls: Callable[[], str]) -> AsyncIterator[Callable[[int], Pair]]:
    made: list[Pair] = []

    def make(seed: int) -> Pair:
        made.append(Pair(redis_urls(), redis_urls(), ManualClock(), seed))
        return made[-1]

    yield make
    for pair in made:
        await pair.close()


@pytest.mark.parametrize("seed", range(6))
async def test_the_fast_path_has_the_same_effects_as_the_slow_one(make_pair: Callable[[int], Pair], seed: int) -> None:
    pair = make_pair(seed)
    await pair.open()
    for step in range(STEPS):
        await pair.step()
        if step % 30 == 29:
            pair.compare()


async def test_plain_jobs_do_take_the_fast_path(redis_server: RedisServer, clock: ManualClock) -> None:
    storage = RedisStorage(read(redis_server.url), clock=clock)
    await storage.open()
    order = ClaimRequest(("mail",), 20)
    with client_of(redis_server.url) as client:
        await storage.enqueue([new_job(f"job-{number}", queue="mail") for number in range(20)])
        sent: list[Settlement] = []
        command(client, "CONFIG", "RESETSTAT")
        await storage.enqueue([new_job(f"more-{number}", queue="mail") for number in range(20)])
        enqueued = calls_of(client)
        leases = (await storage.exchange(ALICE, (), order)).leases
        sent = [settlement(lease, Returned(b"null"), Random(0)) for lease in leases]
        command(client, "CONFIG", "RESETSTAT")
        await storage.exchange(ALICE, sent, order)
        exchanged = calls_of(client)
    await storage.close()

    assert len(sent) == 20
    assert enqueued < 20
    # An event and a notification for each that ends; all other commands serve all of them.
    assert exchanged < 4 * 20


def calls_of(client: redis.Redis) -> int:
    """Return how many commands scripts have called since the counter was reset."""
    info: dict[str, dict[str, int]] = command(client, "INFO", "commandstats")
    return sum(stats["calls"] for name, stats in info.items() if name.partition("_")[2] not in ("evalsha", "info"))
