"""Chains and groups, as a user sees them: what their calls get, what they return, and what a failure does."""

from typing import Any

import pytest

from tenure import (
    FlowError,
    JobError,
    JobFailedError,
    ProceedSending,
    SendCall,
    State,
    StorageUnavailableError,
    Tenure,
    UsageError,
    current_job,
)
from tenure.core.waiting import JobKind
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.queries import Query
from tests.flow.compositions import Row, RunFlow, Steps, broken_flows, ended, records
from tests.flow.compositions import run_flow as run_flow
from tests.flow.conftest import Harness


def test_each_link_gets_the_result_of_the_call_before_it(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        job = await (steps.rows.call(4) | steps.sizes.take(least=2) | steps.text.take(after="?")).enqueue()

        assert await job.result() == "5?"
        assert steps.runs == ["rows(4)", "sizes(4)", "text(5)"]
        assert await job.state() is State.COMPLETED

    run_flow(scenario)


def test_chain_takes_parts_that_get_nothing_too(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        start = steps.rows.call(3) | steps.sizes.take()
        job = await steps.app.chain(start, steps.note.call("between"), steps.note.call("last")).enqueue()

        assert await job.result() == "last"
        assert steps.runs == ["rows(3)", "sizes(3)", "note(between)", "note(last)"]

    run_flow(scenario)


def test_a_result_is_stored_once_and_read_by_reference(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        await (await (steps.rows.call(3) | steps.sizes.take(least=1)).enqueue(id="order-42")).result()
        stored = await records(harness)
        first, second, flow = stored["~1"], stored["~2"], stored["order-42"]

        assert first.result is not None
        assert b"row 1" in first.result
        assert b"row 1" not in second.payload
        assert second.links is not None
        assert second.links.flow == flow.ref
        assert flow.links is not None
        assert (flow.links.kind, flow.task, flow.result) == (JobKind.FLOW, "flow:chain", None)
        assert flow.links.plan is not None
        assert flow.links.plan.nodes == {"1": first.ref, "2": second.ref}
        assert first.id[1:17] == second.id[1:17]
        assert await steps.app.job("order-42").result() == 3

    run_flow(scenario)


def test_members_of_two_queues_with_one_flow_id_have_different_ids(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        flow = steps.app.chain(steps.double.call(1), steps.double.take())
        for queue in ("one", "two"):
            await (await flow.enqueue(id="same", queue=queue)).result()

        assert len((await harness.storage.find(Query(limit=10))).jobs) == 6

    run_flow(scenario)


def test_a_failed_call_fails_those_after_it_and_the_flow(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        steps.broken = {2}
        job = await (steps.double.call(1) | steps.double.take() | steps.text.take()).enqueue(id="f")
        with pytest.raises(JobFailedError, match=r"~2' .* 2 is broken") as raised:
            await job.result()
        stored = await records(harness)

        assert raised.value.reason == "dependency"
        assert [(stored[id_].state, stored[id_].reason) for id_ in ("~1", "~2", "~3")] == [
            (State.COMPLETED, None),
            (State.FAILED, "rejected"),
            (State.FAILED, "dependency"),
        ]
        assert await broken_flows(harness) == [("f", "2")]

    run_flow(scenario)


def test_a_redrive_of_the_failed_call_resumes_the_chain(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        steps.broken = {2}
        job = await (steps.double.call(1) | steps.double.take() | steps.text.take()).enqueue()
        with pytest.raises(JobFailedError):
            await job.result()
        steps.broken.clear()
        stored = await records(harness)
        failed = stored["~2"]
        with pytest.raises(UsageError, match=f"it needs the job {failed.id} of the queue default, which failed"):
            await steps.app.job(stored["~3"].id, queue=stored["~3"].queue).redrive()
        await steps.app.job(failed.id, queue=failed.queue).redrive()

        async def resumed() -> bool:
            return await job.state() is State.COMPLETED

        await harness.until(resumed)
        assert await job.result() == "4!"

    run_flow(scenario)


def test_the_same_flow_is_stored_once(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        flow = steps.double.call(1) | steps.text.take()
        first, second = await flow.enqueue(id="f"), await flow.enqueue(id="f")
        named = await flow.enqueue(id="named")
        assert [job.action for job in (first, second, named)] == ["created", "duplicate", "created"]
        assert first.id == second.id
        assert [await job.result() for job in (first, second, named)] == ["2!"] * 3
        # It has ended, so nothing of it is stored again, and a longer flow of its id is not added to it.
        other = await (steps.double.call(7) | steps.double.take() | steps.text.take()).enqueue(id="named")
        assert (other.action, await other.result()) == ("duplicate", "2!")
        assert sorted(steps.runs) == ["double(1)"] * 2 + ["text(2)"] * 2

    run_flow(scenario)


def test_a_unique_key_admits_one_unfinished_flow(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        job = await (steps.double.call(1) | steps.text.take()).enqueue(unique="nightly")
        second = await (steps.double.call(9) | steps.text.take()).enqueue(unique="nightly")

        assert (second.action, second.id) == ("duplicate", job.id)
        assert await second.result() == "2!"
        assert steps.runs == ["double(1)", "text(2)"]
        assert (await (steps.double.call(1) | steps.text.take()).enqueue(unique="nightly")).created

    run_flow(scenario)


def test_members_inherit_from_the_flow_unless_their_calls_say_otherwise(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        own = steps.text.options(priority=7, tags=["own"], headers={"tenant": "own"})
        flow = steps.app.group(steps.double.call(1)) | steps.total.take() | own.take()
        await (await flow.enqueue(id="f", priority=-3, tags=["all"], headers={"tenant": "acme", "x": "y"})).result()
        stored = await records(harness)

        assert {id_: job.priority for id_, job in stored.items()} == {"f": -3, "~1": -3, "~1~1": -3, "~2": -3, "~3": 7}
        assert {job.headers["x"] for job in stored.values()} == {"y"}
        assert {job.headers["tenant"] for id_, job in stored.items() if id_ != "~3"} == {"acme"}
        assert (stored["~3"].headers["tenant"], stored["~3"].tags) == ("own", ("own", "all"))
        assert stored["~1~1"].tags == ("all",)

    run_flow(scenario)


def test_a_flow_inherits_the_headers_of_the_handler_that_enqueues_it(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        @steps.app.task(name="starts")
        async def starts() -> str:
            job = await (steps.double.call(1) | steps.text.take()).enqueue()
            return job.id

        @steps.app.task(name="shown")
        async def shown(text: str) -> dict[str, str]:
            return dict(current_job().headers)

        await harness.start(steps.app.worker(), "second")
        await (await starts.options(headers={"tenant": "acme"}).enqueue()).result()
        await ended(harness, 4)

        assert {job.headers.get("tenant") for job in (await records(harness)).values()} == {"acme"}

    run_flow(scenario)


def test_sending_middleware_is_called_for_each_job_of_a_flow(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        sent: list[str] = []

        @steps.app.sending
        async def note(call: SendCall, proceed: ProceedSending) -> None:
            sent.append(call.task)
            await proceed()

        await (await (steps.double.call(1) | steps.text.take()).enqueue()).result()

        assert sorted(sent) == ["double", "flow:chain", "text"]

    run_flow(scenario)


def test_a_flow_that_takes_too_long_fails_and_its_members_go_on(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        flow = steps.double.options(delay="1m").call(1) | steps.text.take()
        job = await flow.enqueue(timeout="10s")
        with pytest.raises(JobFailedError, match="did not end within its time"):
            await job.result()
        assert 10 <= harness.now < 15
        await ended(harness, 3)

        assert steps.runs == ["double(1)", "text(2)"]

    run_flow(scenario)


@pytest.mark.parametrize("shape", ["tuple", "list"])
def test_a_group_returns_the_results_in_the_order_of_its_calls(run_flow: RunFlow, shape: str) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        calls: list[Any] = [steps.double.call(number) for number in range(3)]
        group: Any = steps.app.group(calls) if shape == "list" else steps.app.group(*calls)
        wanted = [0, 2, 4] if shape == "list" else (0, 2, 4)

        assert await (await group.enqueue()).result() == wanted
        assert await (await (group | steps.total.take()).enqueue()).result() == 6
        assert steps.runs[:3] == ["double(0)", "double(1)", "double(2)"]

    run_flow(scenario)


def test_a_group_of_many_calls_returns_a_list(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        job = await steps.app.group(*(steps.double.call(number) for number in range(7))).enqueue()

        assert await job.result() == [0, 2, 4, 6, 8, 10, 12]

    run_flow(scenario)


def test_a_group_may_have_members_of_several_types_and_queues(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        group = steps.app.group(steps.rows.call(2), steps.total.call([1, 2]), steps.note.call("x"))
        job = await group.enqueue(id="g")

        assert await job.result() == ([Row("row 0"), Row("row 1", 1)], 3, "x")
        assert await steps.app.job("g").result() == (
            [{"name": "row 0", "size": 0}, {"name": "row 1", "size": 1}],
            3,
            "x",
        )
        stored = await records(harness)
        links = stored["~group"].links
        assert links is not None
        assert links.kind is JobKind.GROUP
        assert links.plan is not None
        assert links.plan.nodes == {"2": stored["~group~2"].ref}

    run_flow(scenario)


def test_an_empty_group_completes_at_once(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        group = steps.app.group([steps.double.call(number) for number in range(0)])

        assert await (await group.enqueue()).result() == []
        assert await (await (group | steps.total.take()).enqueue()).result() == 0
        after = steps.app.chain(steps.note.call("first"), group, steps.note.call("last"))
        assert await (await after.enqueue()).result() == "last"

    run_flow(scenario)


def test_groups_and_chains_may_stand_in_each_other(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        inner = steps.app.group(steps.double.call(1) | steps.double.take(), steps.double.call(5))
        job = await steps.app.group(inner, steps.double.call(7) | steps.text.take(), steps.note.call("x")).enqueue()
        assert await job.result() == ((4, 10), "14!", "x")
        flow = steps.app.chain(steps.note.call("first"), inner, steps.note.call("last"))
        steps.runs.clear()

        assert await (await flow.enqueue()).result() == "last"
        assert (steps.runs[0], steps.runs[-1]) == ("note(first)", "note(last)")

    run_flow(scenario)


def test_a_group_fails_when_all_members_have_ended(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        steps.broken = {1}
        slow = steps.double.options(delay="20s")
        job = await (steps.app.group([steps.double.call(1), slow.call(2)]) | steps.total.take()).enqueue(id="f")
        with pytest.raises(JobFailedError, match="1 is broken"):
            await job.result()

        assert harness.now >= 20
        assert await broken_flows(harness) == [("f", "1~1")]
        assert (await records(harness))["~2"].reason == "dependency"

    run_flow(scenario)


def test_a_large_group_is_stored_in_parts(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        flow = steps.app.group([steps.double.call(number) for number in range(1_100)]) | steps.total.take()
        job = await flow.enqueue()

        assert await job.result() == 1_100 * 1_099

    run_flow(scenario)


def test_a_call_before_a_wide_group_notifies_all_members(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        wide = steps.app.group([steps.note.call(str(number)) for number in range(80)])
        job = await steps.app.chain(steps.note.call("first"), wide).enqueue()

        assert await job.result() == [str(number) for number in range(80)]
        assert steps.runs[0] == "note(first)"

    run_flow(scenario)


def test_a_group_has_a_limit(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        group = steps.app.group([steps.note.call("x")] * 10_001)
        with pytest.raises(FlowError, match="10,001 members, the limit is 10,000"):
            await group.enqueue()

        assert await records(harness) == {}

    run_flow(scenario)


class LosesReplies(MemoryStorage):
    """A storage that stores what one call brings, and loses the reply."""

    lost = -1

    async def enqueue(self, jobs: Any) -> Any:
        answer = await super().enqueue(jobs)
        self.lost -= 1
        if self.lost == 0:
            raise StorageUnavailableError("the reply is lost")
        return answer


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_enqueueing_again_after_a_lost_reply_stores_the_rest(lost: int) -> None:
    storage = LosesReplies()
    steps = Steps(Tenure(storage=storage))
    flow = steps.app.group([steps.double.call(number) for number in range(1_100)]) | steps.total.take()
    async with steps.app:
        storage.lost = lost
        with pytest.raises(StorageUnavailableError) as raised:
            await flow.enqueue(id="f")
        job = await flow.enqueue(id="f")
        assert raised.value.job_ids == ("f",)
        assert job.action == "duplicate"
        async with steps.app.worker():
            assert await job.result(timeout=30) == 1_100 * 1_099

    assert len(steps.runs) == 1_101


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_unique_flow_is_stored_after_a_lost_reply(lost: int) -> None:
    storage = LosesReplies()
    steps = Steps(Tenure(storage=storage))
    flow = steps.double.call(1) | steps.text.take()
    async with steps.app, steps.app.worker():
        storage.lost = lost
        with pytest.raises(StorageUnavailableError):
            await flow.enqueue(unique="k")
        job = await flow.enqueue(unique="k")

        assert await job.result(timeout=10) == "2!"
        assert steps.runs == ["double(1)", "text(2)"]


class DiesBetweenRequests(MemoryStorage):
    """A storage that the enqueuer does not reach any more after so many enqueues, until `left` is None."""

    left: int | None = None

    async def enqueue(self, jobs: Any) -> Any:
        if self.left == 0:
            raise StorageUnavailableError("the enqueuer died")
        self.left = None if self.left is None else self.left - 1
        return await super().enqueue(jobs)


async def test_a_later_enqueue_completes_a_unique_flow_of_a_dead_process() -> None:
    storage = DiesBetweenRequests()
    steps = Steps(Tenure(storage=storage))
    async with steps.app, steps.app.worker():
        storage.left = 1
        with pytest.raises(StorageUnavailableError):
            await (steps.double.call(1) | steps.text.take()).enqueue(unique="k")
        storage.left = None
        # A flow with another plan gets the one that holds the key, and adds nothing.
        other = await (steps.double.call(1) | steps.double.take() | steps.text.take()).enqueue(unique="k")
        assert await other.state() is State.SUSPENDED
        job = await (steps.double.call(1) | steps.text.take()).enqueue(unique="k")

        assert (job.id, job.action) == (other.id, "duplicate")
        assert await job.result(timeout=10) == "2!"
        assert steps.runs == ["double(1)", "text(2)"]


async def test_each_enqueue_of_a_flow_object_makes_a_flow() -> None:
    storage = LosesReplies()
    steps = Steps(Tenure(storage=storage))
    flow = steps.double.call(1) | steps.text.take()
    async with steps.app:
        storage.lost = 1
        with pytest.raises(StorageUnavailableError) as raised:
            await flow.enqueue()
        jobs = [await flow.enqueue() for _ in range(3)]

        # The first call repeats the one whose reply was lost.
        assert (jobs[0].id,) == raised.value.job_ids
        assert len({job.id for job in jobs}) == 3
        assert {job.action for job in jobs[1:]} == {"created"}
        assert len((await storage.find(Query(limit=100))).jobs) == 9


def test_a_flow_is_enqueued_and_awaited_without_an_event_loop() -> None:
    steps = Steps(Tenure("memory://"))
    job = (steps.double.call(1) | steps.text.take()).enqueue_sync(id="f")

    assert (job.id, job.state_sync()) == ("f", State.SUSPENDED)


async def test_a_flow_that_cannot_be_built_is_refused() -> None:
    app = Tenure("memory://")
    steps = Steps(app)

    @app.task(name="once", unique="once:{number}")
    async def once(number: int) -> int:
        return number

    chain: Any = app.chain
    group: Any = app.group
    call = steps.double.call(1)
    cases: list[tuple[str, Any]] = [
        ("a chain gets 5, which is not a call", lambda: chain(5)),
        ("a chain has no calls", lambda: chain()),
        ("put a call first", lambda: chain(steps.double.take())),
        ("a group gets .*put a call first", lambda: group(call, steps.double.take())),
        ("a group gets 5, which is not a call", lambda: group(5)),
        ("has the id 'mine'", lambda: chain(steps.double.options(id="mine").call(1)).enqueue()),
        ("cannot have a delay", lambda: chain(call, steps.double.options(delay=5).take()).enqueue()),
        (r"options\(unique=False\)", lambda: chain(once.call(1)).enqueue()),
        ("begins with '~'", lambda: chain(call).enqueue(id="~x")),
        ("option 'delay' is unknown", lambda: chain(call).enqueue(delay=5)),
    ]
    for message, attempt in cases:
        with pytest.raises(UsageError, match=message):
            await attempt()
    async with app:
        assert [job async for job in app.jobs.list()] == []


async def test_a_call_that_gets_a_result_is_enqueued_by_a_flow_only() -> None:
    app = Tenure("memory://")
    steps = Steps(app)
    call: Any = steps.double.take().call
    async with app:
        with pytest.raises(FlowError, match="only a flow can enqueue it"):
            await app.enqueue_many([call])
        with pytest.raises(FlowError, match="only a flow can enqueue it"):
            await app.schedules.put("nightly", call, every="1h")


async def test_an_id_of_a_caller_does_not_begin_like_that_of_a_member() -> None:
    steps = Steps(Tenure("memory://"))
    with pytest.raises(UsageError, match="begins with '~'"):
        steps.double.options(id="~1")


async def test_a_cancelled_flow_says_so() -> None:
    steps = Steps(Tenure("memory://"))
    async with steps.app:
        job = await (steps.double.call(1) | steps.text.take()).enqueue()
        assert await job.cancel("not needed")
        with pytest.raises(JobError, match="not needed"):
            await job.result()
