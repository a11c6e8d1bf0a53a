"""What `app.jobs` and `app.job(id)` do on every storage: list, count, delete, purge, and find a job by its id."""

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure import (
    AmbiguousJobError,
    DeadFilter,
    Debounce,
    Job,
    JobActiveError,
    JobFilter,
    JobInfo,
    JobNotFoundError,
    State,
    Task,
    Tenure,
    UsageError,
)
from tenure.client import jobs as module
from tenure.core.job import Owner, Ref
from tenure.storage.protocol import ClaimRequest
from tenure_testing.conformance.helpers import settle

OWNER = Owner("0123456789abcdef")


@pytest.fixture
def add(app: Tenure) -> Task[[int], Any]:
    @app.task(name="add")
    async def add(number: int) -> int:
        return number

    return add


async def start(app: Tenure, queue: str = "default") -> Ref:
    """Claim the next job of a queue, so that it is active."""
    answer = await app.storage.exchange(OWNER, (), ClaimRequest((queue,), 1))
    (lease,) = answer.leases
    return lease.ref


async def listed(app: Tenure, where: JobFilter | None = None, **options: Any) -> list[str]:
    return [job.id async for job in app.jobs.list(where, **options)]


async def test_a_listing_yields_all_jobs_page_by_page(
    app: Tenure, add: Task[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 3)
    jobs = await app.enqueue_many(add.call(number) for number in range(10))
    ids = {job.id for job in jobs}
    names = await listed(app)

    assert (len(names), set(names)) == (10, ids)
    assert await listed(app, limit=4) == names[:4]
    assert await listed(app, limit=100) == names

    first = await app.jobs.page(limit=7)
    rest = await app.jobs.page(limit=7, after=first.next)
    assert [job.id for job in (*first.jobs, *rest.jobs)] == names
    assert rest.next is None


async def test_a_filter_narrows_a_listing(app: Tenure, add: Task[[int], Any]) -> None:
    @app.task(name="other", queue="mail")
    async def other() -> None: ...

    plain = await add.enqueue(1)
    tagged = await add.options(tags=["eu", "nightly"]).enqueue(2)
    later = await other.options(delay="1h", concurrency_key="account:1").enqueue()

    assert await listed(app, JobFilter(queues=["mail"])) == [later.id]
    assert await listed(app, JobFilter(states=["waiting"], tasks=["add"])) == [tagged.id, plain.id]
    assert await listed(app, JobFilter(states=[State.DELAYED])) == [later.id]
    assert await listed(app, JobFilter(tags=["eu"])) == [tagged.id]
    assert await listed(app, JobFilter(since="1h")) != []
    assert await listed(app, JobFilter(until="1h")) == []
    assert await listed(app, JobFilter(since=datetime.now(UTC) + timedelta(hours=1))) == []
    assert await listed(app, JobFilter(ended_since="1h")) == []
    assert await listed(app, JobFilter(reasons=["exhausted"])) == []
    assert await listed(app, JobFilter(key="account:1")) == [later.id]
    assert await listed(app, JobFilter(schedule="nightly")) == []
    assert await listed(app, JobFilter(fingerprint="0123456789ab")) == []


async def test_a_row_has_datetimes_and_durations(app: Tenure, add: Task[[int], Any]) -> None:
    before = datetime.now(UTC)
    await add.options(delay="1h", ttl="2h", tags=["eu"], priority=3).enqueue(7)
    (job,) = [job async for job in app.jobs.list()]

    assert isinstance(job, JobInfo)
    assert (job.task, job.state, job.tags, job.priority) == ("add", State.DELAYED, ("eu",), 3)
    assert abs(job.created - before) < timedelta(minutes=1)
    assert job.run_at - job.created == timedelta(hours=1)
    assert (job.timeout, job.ttl, job.started, job.finished) == (None, timedelta(hours=2), None, None)
    assert job.expires_at is not None
    assert job.created.tzinfo is UTC


async def test_jobs_are_counted_in_total_and_by_group(app: Tenure, add: Task[[int], Any]) -> None:
    @app.task(name="other", queue="mail")
    async def other() -> None: ...

    await app.enqueue_many([add.call(1), add.call(2), other.call()])
    await other.options(delay="1h", tags=["eu"]).enqueue()

    assert await app.jobs.count() == 4
    assert await app.jobs.count(JobFilter(queues=["mail"])) == 2
    assert await app.jobs.count(JobFilter(queues=["mail"], states=["delayed"])) == 1
    assert await app.jobs.count(JobFilter(tags=["eu"])) == 1
    assert await app.jobs.count(JobFilter(queues=["none"])) == 0
    assert await app.jobs.counts("state") == {"delayed": 1, "waiting": 3}
    assert await app.jobs.counts("queue") == {"default": 2, "mail": 2}
    assert await app.jobs.counts("task") == {"add": 2, "other": 2}
    assert await app.jobs.counts("queue", JobFilter(tasks=["other"])) == {"mail": 2}
    assert await app.jobs.counts("state", JobFilter(since="1h", queues=["mail"])) == {"delayed": 1, "waiting": 1}


async def test_jobs_are_deleted_by_handle_row_and_ref(app: Tenure, add: Task[[int], Any]) -> None:
    jobs = await app.enqueue_many(add.call(number) for number in range(4))
    rows = {job.id: job async for job in app.jobs.list()}
    one = await app.jobs.delete(jobs[0], by="ops")
    many = await app.jobs.delete([rows[jobs[1].id], jobs[2].ref, app.job(jobs[3].id), jobs[0]])

    assert (one.deleted, one.gone) == ((jobs[0].ref,), ())
    assert (set(many.deleted), many.gone) == ({job.ref for job in jobs[1:]}, (jobs[0].ref,))
    assert await app.jobs.count() == 0
    with pytest.raises(JobNotFoundError):
        await jobs[0].info()


async def test_a_running_job_is_not_deleted_and_the_others_are(app: Tenure, add: Task[[int], Any]) -> None:
    await app.enqueue_many(add.call(number) for number in range(3))
    active = await start(app)

    with pytest.raises(JobActiveError, match="cancel them first") as raised:
        await app.jobs.delete([job async for job in app.jobs.list()])

    assert (raised.value.jobs, raised.value.deleted) == (((active.queue, active.id),), 2)
    assert await listed(app) == [active.id]
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (str(copy), copy.jobs, copy.deleted) == (str(raised.value), raised.value.jobs, 2)
    with pytest.raises(JobActiveError):
        await app.job(active.id).delete()


async def test_a_row_of_a_job_that_was_redriven_since_deletes_nothing(app: Tenure, add: Task[[int], Any]) -> None:
    job, ended = await app.enqueue_many([add.call(1), add.call(2)])
    await job.cancel()
    await ended.cancel()
    rows = [row async for row in app.jobs.list()]
    await job.redrive()

    report = await app.jobs.delete(rows)

    assert (report.deleted, report.gone, report.changed) == ((ended.ref,), (), (job.ref,))
    assert await job.state() is State.WAITING
    assert (await app.jobs.delete(job)).deleted == (job.ref,)


async def test_a_handle_deletes_its_job(app: Tenure, add: Task[[int], Any]) -> None:
    job = await add.enqueue(1)
    await job.delete(by="ops")

    assert await app.jobs.count() == 0
    with pytest.raises(JobNotFoundError):
        await job.delete()


async def test_a_deleted_job_frees_its_unique_key(app: Tenure) -> None:
    @app.task(unique=True)
    async def once() -> None: ...

    first = await once.enqueue()
    assert not (await once.enqueue()).created

    await app.jobs.delete(first)

    assert (await once.enqueue()).created


async def test_a_purge_deletes_what_its_filter_selects(
    app: Tenure, add: Task[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 4)
    monkeypatch.setattr(module, "BATCH", 3)
    await app.enqueue_many(add.call(number) for number in range(10))
    kept = await add.options(queue="mail").enqueue(1)
    active = await start(app)

    report = await app.jobs.purge(JobFilter(queues=["default"], states=["waiting"]), limit=5)
    assert (report.deleted, report.complete) == (5, False)

    report = await app.jobs.purge(JobFilter(queues=["default"]), by="ops")
    assert (report.deleted, report.changed, report.complete) == (4, 0, True)
    assert set(await listed(app)) == {kept.id, active.id}


async def test_a_purge_spares_a_job_that_ended_after_its_page_was_read(
    app: Tenure, add: Task[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.enqueue_many([add.call(1), add.call(2)])
    storage = app.storage
    revise = storage.revise

    async def late(revisions: Any) -> Any:
        # Another process runs one of the jobs between the purge's two calls.
        monkeypatch.undo()
        lease = (await storage.exchange(OWNER, (), ClaimRequest(("default",), 1))).leases[0]
        assert await settle(storage, OWNER, lease) == "done"
        return await revise(revisions)

    monkeypatch.setattr(storage, "revise", late)
    report = await app.jobs.purge(JobFilter(states=["waiting"]))

    assert (report.deleted, report.changed) == (1, 1)
    assert await app.jobs.counts("state") == {"completed": 1}


async def test_a_purge_of_everything_must_be_requested_explicitly(app: Tenure, add: Task[[int], Any]) -> None:
    await add.enqueue(1)

    with pytest.raises(UsageError, match="everything=True"):
        await app.jobs.purge()
    with pytest.raises(UsageError, match="cancel them first"):
        await app.jobs.purge(JobFilter(states=["active"]))

    assert (await app.jobs.purge(everything=True)).deleted == 1


async def test_a_job_is_found_by_its_id_alone(app: Tenure, add: Task[[int], Any]) -> None:
    there = await add.options(queue="mail").enqueue(1)
    job = app.job(there.id)

    assert repr(job) == f"Job(id={there.id!r})"
    with pytest.raises(UsageError, match="not known yet"):
        _ = job.queue
    assert await job.state() is State.WAITING
    assert (job.queue, job.ref) == ("mail", there.ref)
    assert await app.job(there.id).locate() == there.ref
    assert await app.job(there.id).cancel()
    assert [type(event).__name__ async for event in app.job(there.id).events()] == ["JobCancelled"]


async def test_an_id_in_several_queues_is_ambiguous(app: Tenure, add: Task[[int], Any]) -> None:
    for queue in ("a", "b", "c"):
        await add.options(queue=queue, id="7").enqueue(7)

    with pytest.raises(AmbiguousJobError, match=r"\(a, b, c\)") as raised:
        await app.job("7").state()

    assert (raised.value.job_id, raised.value.queues) == ("7", ("a", "b", "c"))
    assert pickle.loads(pickle.dumps(raised.value)).queues == ("a", "b", "c")
    assert await app.job("7", queue="b").state() is State.WAITING


async def test_an_unknown_id_is_not_found_in_any_queue(app: Tenure, add: Task[[int], Any]) -> None:
    await add.enqueue(1)
    job: Job[Any] = app.job("unheard-of")

    for ask in (job.info, job.result, job.cancel, job.locate, job.delete):
        with pytest.raises(JobNotFoundError, match="any queue"):
            await ask()


async def test_the_id_of_a_merged_call_finds_its_job(app: Tenure) -> None:
    @app.task(queue="mail", debounce=Debounce(delay="1h"))
    async def save(number: int) -> None: ...

    first = await save.enqueue(1)
    await save.options(id="second").enqueue(2)

    assert (await app.job("second").info()).job.id in (first.id, "second")


async def test_the_sync_variants_do_the_same(app: Tenure, add: Task[[int], Any]) -> None:
    def script() -> None:
        jobs = app.enqueue_many_sync(add.call(number) for number in range(5))
        assert {job.id for job in app.jobs.list_sync()} == {job.id for job in jobs}
        assert len(list(app.jobs.list_sync(limit=2))) == 2
        assert len(app.jobs.page_sync(limit=3).jobs) == 3
        assert app.jobs.count_sync() == 5
        assert app.jobs.counts_sync("state") == {"waiting": 5}
        assert app.job(jobs[0].id).locate_sync() == jobs[0].ref
        app.job(jobs[0].id).delete_sync()
        assert app.jobs.delete_sync(jobs[1]).deleted == (jobs[1].ref,)
        assert app.jobs.purge_sync(everything=True).deleted == 3

    await asyncio.to_thread(script)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"states": ["done"]}, "states"),
        ({"queues": "mail"}, "queues"),
        ({"since": "soon"}, "since"),
        ({"since": "1h", "until": "2h"}, "must lie before"),
        ({"ended_since": datetime(2026, 1, 1)}, "time zone"),
        ({"reasons": ["tired"]}, "reasons"),
    ],
)
def test_an_invalid_filter_names_the_field(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        JobFilter(**options)


async def test_invalid_arguments_are_refused() -> None:
    jobs: Any = Tenure("memory://").jobs

    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: jobs.count("mail"),
        lambda: jobs.page(limit=0),
        lambda: jobs.page(after="soon"),
        lambda: jobs.counts("colour"),
        lambda: jobs.delete("id"),
        lambda: jobs.delete([7]),
        lambda: jobs.purge(everything=True, limit=0),
        lambda: jobs.purge(everything=True, by=7),
    ]
    for call in calls:
        with pytest.raises(UsageError):
            await call()
    with pytest.raises(UsageError):
        _ = [job async for job in jobs.list(limit=0)]


async def test_a_waiting_job_gets_another_priority(app: Tenure, add: Task[[int], Any]) -> None:
    first, second, third = await app.enqueue_many(add.call(number) for number in range(3))
    later = await add.options(delay="1h").enqueue(7)
    await third.set_priority(5, by="ops")
    await first.set_priority(-5)
    await later.set_priority(100)

    assert [(await start(app)).id for _ in range(3)] == [third.id, second.id, first.id]
    assert {job.id: job.priority async for job in app.jobs.list()}[later.id] == 100
    assert await later.state() is State.DELAYED
    with pytest.raises(UsageError, match="is active; only the priority"):
        await first.set_priority(1)
    with pytest.raises(UsageError, match="priority"):
        await later.set_priority(501)
    await asyncio.to_thread(later.set_priority_sync, 3)


async def test_a_strict_job_stays_strict_at_another_priority(app: Tenure) -> None:
    @app.task(priority=1, strict=True)
    async def urgent() -> None: ...

    @app.task(priority=500)
    async def usual() -> None: ...

    strict = await urgent.enqueue()
    await strict.set_priority(2)
    await usual.enqueue()
    assert (await start(app)).id == strict.id

    low = await urgent.enqueue()
    await low.set_priority(1, strict=False)
    assert (await start(app)).id != low.id


@pytest.mark.parametrize("kind", [JobFilter, DeadFilter])
@pytest.mark.parametrize("field", ["queues", "tasks", "tags", "reasons"])
def test_an_empty_list_of_a_filter_does_not_select_all_jobs(kind: type[JobFilter | DeadFilter], field: str) -> None:
    empty: dict[str, Any] = {field: []}
    with pytest.raises(UsageError, match=rf"{field} = \[\] is empty"):
        kind(**empty)
