"""Garbage in any field of a job's record on Redis: the job is set aside, and all other jobs continue."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
import redis

from tenure.core.events import JobRepaired, QueueDrained
from tenure.core.lifecycle import TERMINAL, State
from tenure.errors import StorageError
from tenure.storage.protocol import (
    ClaimRequest,
    LeaseRenewal,
    Query,
    RenewRequest,
    Settings,
    SweepRequest,
    SweepResult,
    Target,
    WorkerInfo,
)
from tenure.storage.redis.address import read
from tenure.storage.redis.keytypes import TYPES
from tenure.storage.redis.records import FORM, HEAD, RAN, RUN, FixedFields, RareFields
from tenure.storage.redis.storage import RedisStorage
from tenure.testing import ManualClock
from tests.servers import client_of
from tests.storage.model_comparison import STEPS, ModelComparison
from tests.storage.unreadable import BAD, GOOD, ME, REAPER, check_others_continue, claim_in_a_lane, job, some_of

pytestmark = [pytest.mark.redis, pytest.mark.thorough]

Change = Callable[[bytes], bytes]

IN_HEAD = ("form", "state", "marks", "fixed", "load", "rare", "made", "score", "run_at", "created", "lease", "timeout")
IN_RUN = (
    *("starts", "failures", "stalls", "releases", "holder", "ended", "fence", "settled_fence", "run_fence"),
    *("heard_at", "lease_until", "run_until", "started", "finished", "run_end", "kept_until"),
)


NOT_UTF8 = "\x01\x02\x03"
"""A placeholder for as many bytes that are not UTF-8."""


def cases() -> Iterator[tuple[str, Change]]:
    """Yield the kinds of damage to a record, each with its name."""
    yield "no bytes", lambda body: b""
    yield "random bytes", lambda body: bytes(range(256))
    yield "cut off", lambda body: body[:-3]
    for place, name in enumerate(IN_HEAD):
        values: list[Any] = [200] if place < 3 else [2**31] if place < 6 else [float("nan"), 1e300]
        for value in values:
            yield f"{name} {value}", partial(_in_head, place, value)
    for place, name in enumerate(IN_RUN):
        for value in [2**31] if place < 6 else [float("nan"), 1e300]:
            yield f"{name} {value}", partial(_in_run, place, value)
    for name in FixedFields.__struct_fields__:
        for garbage in ("garbage{", 7, [["x"]], NOT_UTF8):
            yield f"{name} {garbage!r:.10}", partial(_in_fixed, name, garbage)
    for name in RareFields.__struct_fields__:
        for garbage in ("garbage{", 7, [["x"]], NOT_UTF8):
            yield f"{name} {garbage!r:.10}", partial(_in_rare, name, garbage)
    yield "policy deep", partial(_in_fixed, "policy", DEEP)
    yield "progress deep", partial(_in_rare, "progress", DEEP)
    yield "unknown deep", partial(_in_rare, "unknown", msgspec.Raw(b"\x91" * 50_000 + b"\xc0"))


DEEP = '{"unknown":' + "[" * 50_000
"""JSON that is nested too deeply to be read, in a field that a newer version may have added."""


def _packed(fields: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode(fields).replace(NOT_UTF8.encode(), b"\xff\xfe\xfd")


def _in_head(place: int, value: Any, body: bytes) -> bytes:
    head = list(HEAD.unpack_from(body))
    head[place] = value
    return HEAD.pack(*head) + body[HEAD.size :]


def _in_run(place: int, value: Any, body: bytes) -> bytes:
    if not HEAD.unpack_from(body)[2] & RAN:
        return body
    run = list(RUN.unpack_from(body, HEAD.size))
    run[place] = value
    return body[: HEAD.size] + RUN.pack(*run) + body[HEAD.size + RUN.size :]


def _in_fixed(name: str, garbage: Any, body: bytes) -> bytes:
    head = list(HEAD.unpack_from(body))
    at = HEAD.size + (RUN.size if head[2] & RAN else 0)
    fields = msgspec.msgpack.decode(body[at : at + head[3]]) | {name: garbage}
    packed, rest = _packed(fields), body[at + head[3] :]
    head[3] = len(packed)
    return HEAD.pack(*head) + body[HEAD.size : at] + packed + rest


def _in_rare(name: str, garbage: Any, body: bytes) -> bytes:
    head = list(HEAD.unpack_from(body))
    at = HEAD.size + (RUN.size if head[2] & RAN else 0) + head[3] + head[4]
    fields: dict[str, Any] = msgspec.msgpack.decode(body[at : at + head[5]]) if head[5] else {}
    fields[name] = garbage
    packed, rest = _packed(fields), body[at + head[5] :]
    head[2] &= ~1
    head[5] = len(packed)
    return HEAD.pack(*head) + body[HEAD.size : at] + packed + rest


CASES = dict(cases())
STRUCTURED = ("headers", "tags", "keys", "rates", "merge", "pinned", "policy", "error")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def storage(clock: ManualClock, redis_url: str) -> AsyncIterator[RedisStorage]:
    storage = RedisStorage(read(redis_url), clock=clock)
    await storage.open()
    yield storage
    await storage.close()


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    client = client_of(redis_url.partition("?")[0])
    yield client
    client.close()


@pytest.mark.parametrize(("case", "state"), some_of(CASES))
async def test_garbage_in_a_field_stops_no_neighbour(
    storage: RedisStorage, client: Any, clock: ManualClock, case: str, state: str
) -> None:
    for plain in (False, True):
        bad, failed = await check_others_continue(
            storage, clock, state, lambda: damage(storage, client, CASES[case]), plain=plain
        )

        assert bad is not None
        assert bad.job.state in TERMINAL
        field, _, garbage = case.partition(" ")
        if field in STRUCTURED and "garbage{" in garbage and state in ("waiting", "delayed"):
            assert (bad.job.state, bad.job.reason) == (State.FAILED, "undecodable")
            assert bad.job.error is not None
            assert bad.job.error.type == "UnreadableRecordError"
            assert [(event.id, event.reason) for event in failed] == [("bad", "undecodable")]
        forget_all(storage, client)


@pytest.mark.parametrize("field", ["headers", "tags", "keys", "rates", "merge", "pinned"])
async def test_a_damaged_job_whose_run_raises_does_not_run_again(
    storage: RedisStorage, client: Any, clock: ManualClock, field: str
) -> None:
    change = partial(_in_fixed, field, "garbage{")
    bad, failed = await check_others_continue(storage, clock, "raised", lambda: damage(storage, client, change))

    assert bad is not None
    assert (bad.job.state, bad.job.reason) == (State.FAILED, "undecodable")
    assert [(event.id, event.reason) for event in failed] == [("bad", "undecodable")]


@pytest.mark.parametrize("case", ["random bytes", "keys 'garbage{'", "lease nan"])
async def test_a_repair_is_logged_and_recorded_as_on_other_storages(
    storage: RedisStorage, client: Any, clock: ManualClock, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    await storage.enqueue([job(BAD), job(GOOD)])
    await damage(storage, client, CASES[case])
    for _ in range(3):
        await storage.exchange(ME, (), ClaimRequest(("q",), 10))
        await storage.sweep(SweepRequest(REAPER, term=None))
        clock.advance(10)
    events = (await storage.events(limit=1000)).events

    repairs = [event for event in events if isinstance(event, JobRepaired) and event.found.startswith("unreadable")]
    assert [event.repair for event in repairs] == ["set aside"]
    assert (
        len([message for message in caplog.messages if "bad" in message and "has an unreadable record" in message]) == 1
    )


@pytest.mark.parametrize("case", ["made nan", "random bytes"])
async def test_a_damaged_job_that_lost_its_number_is_listed(
    storage: RedisStorage, client: Any, clock: ManualClock, case: str
) -> None:
    await storage.enqueue([job(BAD), job(GOOD)])
    await damage(storage, client, CASES[case])
    before = await storage.find(Query(queues=("q",)))
    await storage.exchange(ME, (), ClaimRequest(("q",), 10))
    clock.advance(10)
    await storage.sweep(SweepRequest(REAPER, term=None))
    after = await storage.find(Query(queues=("q",)))

    assert {found.ref for found in before.jobs} == {found.ref for found in after.jobs} == {BAD, GOOD}


@pytest.mark.parametrize("state", ["waiting", "active"])
async def test_a_repair_that_ends_the_last_job_drains_its_queue(
    storage: RedisStorage, client: Any, clock: ManualClock, state: str
) -> None:
    await storage.tune(Target("queue", "q"), Settings(record=("queue_drained",)))
    await storage.enqueue([job(BAD)])
    if state == "active":
        await storage.exchange(ME, (), ClaimRequest(("q",), 10))
    await damage(storage, client, CASES["random bytes"])
    for _ in range(8):
        await storage.exchange(ME, (), ClaimRequest(("q",), 10))
        await storage.sweep(SweepRequest(REAPER, term=None))
        clock.advance(10)
    events = (await storage.events(limit=1000)).events

    assert [event.queue for event in events if isinstance(event, QueueDrained)] == ["q"]


@pytest.mark.parametrize(("case", "plain"), [(case, number % 2 == 0) for number, case in enumerate(CASES)])
async def test_a_damaged_job_whose_claim_was_lost_is_claimed_once_more_at_most(
    storage: RedisStorage, client: Any, clock: ManualClock, case: str, plain: bool
) -> None:
    await claim_in_a_lane(storage, clock, lambda: damage(storage, client, CASES[case]), plain=plain)


def forget_all(storage: RedisStorage, client: Any) -> None:
    """Delete all keys except the schema."""
    client.delete(*(name for name in client.scan_iter(f"{base_of(storage)}:*") if not name.endswith(b":schema")))


def base_of(storage: RedisStorage) -> str:
    return storage.bases_of("events")[0]


async def damage(storage: RedisStorage, client: Any, change: Change) -> None:
    """Change the record of the bad job, and nothing else."""
    name = f"{base_of(storage)}:job:q\0bad"
    body = client.get(name)
    assert body[0] == FORM
    client.set(name, change(body))


@pytest.mark.parametrize("kind", ["beats", "leases", "settings", "events", "ready:q"])
async def test_a_key_of_the_wrong_type_is_named_in_the_error_and_by_doctor(
    storage: RedisStorage, client: Any, kind: str
) -> None:
    name = f"{base_of(storage)}:{kind}"
    right = TYPES[kind.partition(":")[0]]
    client.set(name, "garbage")

    messages: list[str] = []
    verbs: list[Callable[[], Awaitable[object]]] = [
        lambda: storage.enqueue([job(BAD)]),
        lambda: storage.exchange(ME, (), ClaimRequest(("q",), 1)),
        lambda: storage.renew(RenewRequest(ME, (LeaseRenewal(BAD, 1),), worker=WorkerInfo())),
        lambda: storage.events(),
        lambda: storage.sweep(SweepRequest(REAPER, term=None)),
    ]
    for verb in verbs:
        try:
            answer = await verb()
        except StorageError as error:
            messages.append(str(error))
        else:
            messages += answer.troubles if isinstance(answer, SweepResult) else ()
    found = [finding for finding in await storage.examine() if finding.subject == "keys"]

    assert any(f"{name!r} is a string, where a {right} must be" in item for item in messages)
    assert [finding.level for finding in found] == ["error"]
    assert f"{name!r} is a string, where a {right} must be" in found[0].message


async def test_doctor_finds_no_key_of_the_wrong_type_in_a_storage_with_all_kinds(redis_url: str, client: Any) -> None:
    comparison = ModelComparison(lambda clock: RedisStorage(read(redis_url), clock=clock), 1, in_turn=True)
    await comparison.run(STEPS)
    found = [finding for finding in await comparison.storage.examine() if finding.subject == "keys"]
    base = read(redis_url).bases[0]
    kinds = {name.decode().removeprefix(f"{base}:").partition(":")[0] for name in client.scan_iter(f"{base}:*")}
    await comparison.storage.close()

    assert [finding.level for finding in found] == ["ok"]
    assert kinds <= TYPES.keys()
