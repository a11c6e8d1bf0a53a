"""Graphs, as a user sees them: what nodes wait for and get, how they react to failures, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure import Failed, FlowError, Graph, JobFailedError, Node, State, Tenure, UsageError
from tenure.testing import JobTester
from tests.flow.compositions import Row, RunFlow, Steps, ended, records
from tests.flow.compositions import run_flow as run_flow
from tests.flow.conftest import Harness


def test_nodes_get_the_results_of_other_nodes(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        with steps.app.flow("nightly") as dag:
            rows = dag.add(steps.rows.call(3))
            size = dag.add(steps.sizes.call(rows.value, least=1))
            twice = dag.add(steps.double.call(size.value), name="twice")
            total = dag.add(steps.total.call([size.value, twice.value, 1], note="x"))
        job = await dag.enqueue(id="n")

        await job.result()
        assert await job.node(rows).result() == [Row("row 0"), Row("row 1", 1), Row("row 2", 2)]
        assert await job.node(total).result() == 10
        assert steps.runs == ["rows(3)", "sizes(3)", "double(3)", "total([3, 6, 1])"]
        stored = await records(harness)
        assert sorted(stored) == ["n", "~rows", "~sizes", "~total", "~twice"]
        assert stored["n"].task == "flow:nightly"

    run_flow(scenario)


def test_a_node_waits_for_those_named_in_after(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        with steps.app.flow("ordered") as dag:
            first = dag.add(steps.note.options(delay="5s").call("first"))
            second = dag.add(steps.note.call("second"), after=[first])
            dag.add(steps.note.call("third"), after=[first, second])
        await (await dag.enqueue()).result()

        assert steps.runs == ["note(first)", "note(second)", "note(third)"]
        assert harness.now >= 5

    run_flow(scenario)


def test_a_chain_and_a_group_may_be_nodes(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        with steps.app.flow("nested") as dag:
            start = dag.add(steps.double.call(1))
            chain = dag.add(steps.double.call(start.value) | steps.double.take())
            group = dag.add(steps.app.group(steps.double.call(chain.value), steps.text.call(start.value)))
            last = dag.add(steps.note.call("last"), after=[group])
        job = await dag.enqueue()
        await job.result()

        assert await job.node(chain).result() == 8
        assert await job.node(group).result() == (16, "2!")
        assert await job.node(last).result() == "last"
        assert sorted(await records(harness)) == [
            job.id,
            *("~chain", "~chain~s1", "~double", "~group", "~group~1", "~group~2", "~note"),
        ]

    run_flow(scenario)


def test_a_failed_node_fails_what_depends_on_it_and_others_go_on(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        steps.broken = {1}
        with steps.app.flow("partly") as dag:
            bad = dag.add(steps.double.call(1), name="bad")
            dag.add(steps.text.call(bad.value), name="after-bad")
            good = dag.add(steps.double.options(delay="10s").call(2), name="good")
            dag.add(steps.text.call(good.value), name="after-good")
        job = await dag.enqueue()
        with pytest.raises(JobFailedError, match="1 is broken"):
            await job.result()

        assert harness.now >= 10
        assert {id_: stored.state for id_, stored in (await records(harness)).items()} == {
            job.id: State.FAILED,
            "~bad": State.FAILED,
            "~after-bad": State.FAILED,
            "~good": State.COMPLETED,
            "~after-good": State.COMPLETED,
        }

    run_flow(scenario)


@pytest.mark.parametrize("broken", [False, True])
def test_a_node_that_runs_after_a_failure_runs_without_the_result(run_flow: RunFlow, broken: bool) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        steps.broken = {1} if broken else set()
        with steps.app.flow("tolerant") as dag:
            bad = dag.add(steps.double.call(1))
            maybe = dag.add(steps.maybe.call(bad.value), if_dependency_failed="run")
            noted = dag.add(steps.note.call("after"), after=[bad], if_dependency_failed="run")
        job = await dag.enqueue()

        await job.result()
        assert await job.node(maybe).result() == ("got None" if broken else "got 2")
        assert await job.node(noted).result() == "after"

    run_flow(scenario)


@pytest.mark.parametrize("end", ["completed", "failed", "deleted"])
def test_a_node_may_get_the_outcome_of_another(run_flow: RunFlow, end: str) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        seen: list[object] = []

        @steps.app.task(name="look")
        async def look(before: str, number: int | Failed, after: str = "x", *, rows: dict[str, Any] | Failed) -> None:
            seen.extend([before, number, after, rows])

        @steps.app.task(name="named")
        async def named(value: int) -> dict[str, Any]:
            return {"value": value, "queue": "q", "id": "i", "state": "failed"}

        await harness.start(steps.app.worker(), "second")
        steps.broken = set() if end == "completed" else {1}
        with steps.app.flow("outcomes") as dag:
            first = dag.add(steps.double.options(delay="1h" if end == "deleted" else 0).call(1))
            rows = dag.add(named.call(3))
            dag.add(look.call("a", first.outcome, "b", rows=rows.outcome), after=[rows])
        job = await dag.enqueue()
        if end == "deleted":
            await job.node(first).delete()
        await job.result()
        ref = job.node(first).ref
        failed = Failed(
            queue=ref.queue, id=ref.id, state=State.FAILED, reason="rejected", error="Reject", message="1 is broken"
        )
        wanted = {"completed": 2, "deleted": Failed(queue=ref.queue, id=ref.id, state=None)}.get(end, failed)

        assert seen == ["a", wanted, "b", {"value": 3, "queue": "q", "id": "i", "state": "failed"}]

    run_flow(scenario)


def test_the_stricter_of_two_edges_to_one_node_counts(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        @steps.app.task(name="look")
        async def look(number: int | Failed, again: int = 0) -> None: ...

        steps.broken = {1}
        with steps.app.flow("outcomes") as dag:
            first = dag.add(steps.double.call(1))
            strict = dag.add(look.call(first.outcome, first.value))
        job = await dag.enqueue()
        with pytest.raises(JobFailedError, match="1 is broken"):
            await job.result()

        assert (await records(harness))["~look"].reason == "dependency"
        assert await job.node(strict).state() is State.FAILED

    run_flow(scenario)


def test_a_group_whose_failure_is_ignored_leaves_its_result_out(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        @steps.app.task(name="known")
        async def known(numbers: list[int] | None = None) -> int:
            return -1 if numbers is None else sum(numbers)

        await harness.start(steps.app.worker(), "second")
        steps.broken = {2}
        with steps.app.flow("tolerant") as dag:
            group = dag.add(steps.app.group([steps.double.call(1), steps.double.call(2)]))
            after = dag.add(known.call(group.value), if_dependency_failed="run")
        job = await dag.enqueue()

        await job.result()
        assert await job.node(after).result() == -1

    run_flow(scenario)


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled", "late"])
def test_callbacks_run_when_the_flow_has_ended(run_flow: RunFlow, end: str) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        steps.broken = {1} if end == "failed" else set()
        with steps.app.flow("calls-back") as dag:
            dag.add(steps.double.options(delay="1m" if end in ("cancelled", "late") else 0).call(1))
            dag.on_success(steps.note.call("success"))
            dag.on_failure(steps.note.call("failure"))
            dag.on_finish(steps.note.call("finish"))
            dag.on_finish(steps.note.call("finish too"))
        job = await dag.enqueue(timeout="20s" if end == "late" else "1h")
        if end == "cancelled":
            await job.cancel()
        await ended(harness, 6)

        wanted = ["success" if end == "completed" else "failure", "finish", "finish too"]
        notes = sorted(run[5:-1] for run in steps.runs if run.startswith("note"))
        assert notes == sorted(wanted)
        stored = await records(harness)
        skipped = stored["~on_failure" if end == "completed" else "~on_success"]
        assert (skipped.state, skipped.reason) == (State.CANCELLED, "skipped")

    run_flow(scenario)


def test_a_node_may_have_more_dependents_than_a_call_may_name(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        with steps.app.flow("wide") as dag:
            first = dag.add(steps.double.options(delay="5s").call(1))
            nodes = [dag.add(steps.text.call(first.value), name=f"n{number}") for number in range(150)]
        job = await dag.enqueue()

        await job.result()
        assert {await job.node(node).result() for node in nodes} == {"2!"}

    run_flow(scenario)


def test_a_graph_without_nodes_completes_at_once(run_flow: RunFlow) -> None:
    async def scenario(harness: Harness, steps: Steps) -> None:
        with steps.app.flow("empty") as dag:
            dag.on_success(steps.note.call("done"))
        await (await dag.enqueue()).result()
        await ended(harness, 2)

        assert steps.runs == ["note(done)"]

    run_flow(scenario)


def test_nodes_without_a_name_are_named_by_their_tasks() -> None:
    app = Tenure("memory://")
    steps = Steps(app)

    @app.task(name="reports.monthly report")
    async def odd() -> None: ...

    with app.flow("named") as dag:
        nodes: list[Node[Any]] = [dag.add(steps.note.call(str(number))) for number in range(3)]
        nodes += [dag.add(odd.call()), dag.add(app.group(odd.call(), odd.call()))]

    assert [node.name for node in nodes] == ["note", "note-2", "note-3", "monthly-report", "group"]


async def test_a_graph_that_is_invalid_is_refused_by_name() -> None:
    steps = Steps(Tenure("memory://"))
    app, note, double = steps.app, steps.note, steps.double
    with app.flow("other") as other:
        foreign = other.add(note.call("x"))

    def add(*args: Any, **kwargs: Any) -> Callable[[Graph], object]:
        return lambda dag: dag.add(*args, **kwargs)

    def many(dag: Graph) -> None:
        for number in range(1_001):
            dag.add(note.call("x"), name=f"n{number}")

    def fan_in(dag: Graph) -> None:
        dag.add(note.call("all"), after=[dag.add(note.call("x"), name=f"n{number}") for number in range(65)])

    def left_out(dag: Graph) -> None:
        dag.add(double.call(dag.add(double.call(1)).value), if_dependency_failed="run")

    def called_back(dag: Graph) -> None:
        dag.on_failure(double.call(dag.add(double.call(1)).value))

    def twice(dag: Graph) -> None:
        dag.add(note.call("x"), name="same")
        dag.add(note.call("x"), name="same")

    cases: dict[str, Callable[[Graph], object]] = {
        "'bad' has a node 'same' already": twice,
        "node 'note' in `after` is of another flow": add(note.call("y"), after=[foreign]),
        "the result of node 'note'>, which is not part of this flow": add(note.call(foreign.value)),
        "1,001 nodes, the limit is 1,000": many,
        "waits for 65 others, the limit is 64": fan_in,
        "give the parameter 'number' a default": left_out,
        "for on_failure gets the result of a node": called_back,
        r"annotate the parameter as that, \(number: int \| Failed\)": lambda dag: dag.add(
            double.call(dag.add(double.call(1)).outcome)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        ),
        "name = 'a/b' must be": add(note.call("x"), name="a/b"),
        "the flow 'bad' gets 5, which is not a call": add(5),
        "if_dependency_failed = 'skip' is unknown": add(note.call("x"), if_dependency_failed="skip"),
        r"write after=\[node\]": lambda dag: dag.add(note.call("x"), after=dag.add(note.call("y"))),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        "does not exist yet, so it cannot be read": lambda dag: dag.add(double.call(1)).value + 1,
        "<the result of node 'double'> does not exist yet": lambda dag: list(dag.add(double.call(1)).value),  # type: ignore[call-overload]  # pyright: ignore
        "result of node 'double'> does not exist": lambda dag: dag.add(double.call(1)).value.foo,  # type: ignore[attr-defined]  # pyright: ignore
        "after = .* must be a FlowNode": add(note.call("x"), after=["note"]),
        r"cannot have a delay": lambda dag: dag.add(note.options(delay=1).call("x"), after=[dag.add(note.call("y"))]),
    }

    async def enqueue(build: Callable[[Graph], object]) -> None:
        with app.flow("bad") as dag:
            build(dag)
        await dag.enqueue()

    async with app:
        for message, build in cases.items():
            with pytest.raises(UsageError, match=message):
                await enqueue(build)
        assert [job async for job in app.jobs.list()] == []


def test_a_closed_graph_takes_no_more_nodes() -> None:
    steps = Steps(Tenure("memory://"))
    with steps.app.flow("closed") as dag:
        pass
    for add in (dag.add, dag.on_finish):
        with pytest.raises(FlowError, match="its `with` block has ended"):
            add(steps.note.call("late"))
    with pytest.raises(FlowError, match="the name of a flow = 'a b'"):
        steps.app.flow("a b")


def test_a_result_that_does_not_exist_yet_cannot_be_read() -> None:
    steps = Steps(Tenure("memory://"))
    with steps.app.flow("nightly") as dag:
        number: Any = dag.add(steps.double.call(1)).value
    for use in (str, bool, "{}".format):
        with pytest.raises(UsageError, match="the result of node 'double'> does not exist yet"):
            use(number)
    with pytest.raises(UsageError):
        steps.text.options(concurrency_key="k").call(number, after=f"{number}")


async def test_a_handle_knows_the_nodes_of_its_flow_only() -> None:
    steps = Steps(Tenure("memory://"))
    with steps.app.flow("one") as one:
        known = one.add(steps.note.call("x"))
    with steps.app.flow("two") as two:
        unknown = two.add(steps.note.call("x"))
    async with steps.app:
        job = await one.enqueue()
        assert job.node(known).queue == "default"
        with pytest.raises(FlowError, match="node 'note' is not part of the flow"):
            job.node(unknown)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["call", "chain", "group"]), st.lists(st.integers(0, 30), max_size=3), st.integers(0, 5)
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_graph_computes_what_its_functions_compute(plan: list[tuple[str, list[int], int]]) -> None:
    steps = Steps(Tenure("memory://"))
    nodes: list[Node[Any]] = []
    wanted: list[Any] = []
    with steps.app.flow("any") as dag:
        for kind, sources, number in plan:
            places = [source % len(nodes) for source in sources] if nodes else []
            numbers: Any = [*(nodes[place].value for place in places), number]
            value = sum(wanted[place] for place in places) + number
            if kind == "call":
                nodes.append(dag.add(steps.total.call(numbers)))
            elif kind == "chain":
                nodes.append(dag.add(steps.total.call(numbers) | steps.double.take()))
                value *= 2
            else:
                group = dag.add(steps.app.group(steps.total.call(numbers), steps.double.call(number)))
                nodes.append(dag.add(steps.total.call(group.value)))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
                value += number * 2
            wanted.append(value)
    with JobTester(steps.app) as jobs:
        job = dag.enqueue_sync()
        jobs.drain_sync()

        assert job.state_sync() is State.COMPLETED
        assert [job.node(node).result_sync() for node in nodes] == wanted
