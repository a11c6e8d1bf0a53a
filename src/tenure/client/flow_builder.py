"""Builds the jobs of a flow: from calls, chains, groups and the nodes of a graph.

    callbacks ──wait for──► the flow ──waits for──► its nodes, which wait for each other

All compositions are built here. A job is notified by those that it waits for, so it is stored before them: first the
callbacks, then the flow, then the nodes against the direction of their edges.

The id of a member is "~", 16 hex digits of a hash of the flow, "~", and its name: ids are unique in a queue only, and a
flow may have members in several. A member of a group has the id of the group, "~", and its number.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct, field, structs

from tenure.client.job_template import EncodedCall
from tenure.client.references import (
    FutureResult,
    GroupResult,
    IfFailed,
    JobResult,
    ResultList,
    ResultSource,
    found_futures,
    member_id,
    of_flow,
)
from tenure.client.search_tags import TAGS
from tenure.client.signature import Signature
from tenure.core import retention
from tenure.core.job import NewJob
from tenure.core.lifecycle import State
from tenure.core.order import boost_of, is_strict
from tenure.core.ref import Ref
from tenure.core.waiting import (
    DEPENDENTS_LIMIT,
    NEEDS_LIMIT,
    Dependent,
    JobKind,
    Links,
    Need,
    NeedMode,
    Plan,
    Wait,
)
from tenure.errors import FlowError
from tenure.options.headers import valid_headers
from tenure.storage.waiting import Subscribe

NODES_LIMIT = 1_000
"""The most nodes of a flow. A group is one node, without its members."""

GROUP_LIMIT = 10_000
"""The most members of a group."""

KEPT = retention.KEPT[State.FAILED].age
"""How long a completed member is kept for those that wait for its result, in microseconds, if its task does not say so.

As long as a failed job is kept: a redrive of that needs the results that it gets. A flow with a longer timeout
keeps its members for as long as that.
"""

END = "end"
"""The key of the token that a job gets when one that it waits for has ended."""

NODES, HANDLED, MEMBERS = "nodes", "handled", "members"
"""The boxes of a flow: for its nodes, and for those whose failures other nodes handle. And the box of a group."""

GROUP_TASK = "group"
"""The name under which groups are listed in place of a task."""

PREVIOUS = "the call before it"
"""What the first argument of a link is the result of."""


class FlowPart:
    """What may stand in a flow where a call may: a chain or a group."""


class ChainPart(FlowPart):
    """Parts that run one after the other."""

    def __init__(self, parts: Sequence["AnyPart"]) -> None:
        self.parts = tuple(parts)


class GroupPart(FlowPart):
    """Parts that run side by side. `fixed`: their results are a tuple, else a list."""

    def __init__(self, parts: Sequence["AnyPart"], *, fixed: bool) -> None:
        self.parts = tuple(parts)
        self.fixed = fixed


AnyPart: TypeAlias = "EncodedCall[Any] | FlowPart"


class Inherited(Struct, frozen=True):
    """What the members of a flow inherit from it, unless their calls say otherwise.

    `kept`: how many microseconds a completed member is kept.
    """

    priority: int | None = None
    tags: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    kept: int = KEPT


class Draft(Struct, eq=False, kw_only=True):
    """A job of a flow that is being built.

    `source`: where its result is found. `signatures`: those of the calls that the result is from, in order. `rank`: it
    waits only for jobs of lower ranks. `inputs`: where the results are found that its call gets, and what happens if a
    job failed that one is from.
    """

    ref: Ref
    source: ResultSource
    signatures: tuple[Signature, ...] = ()
    call: EncodedCall[Any] | None = None
    plan: Plan | None = None
    rank: int = 0
    needs: dict[str, Need] = field(default_factory=dict[str, Need])
    dependents: list[Dependent] = field(default_factory=list[Dependent])
    inputs: dict[FutureResult, tuple[ResultSource, IfFailed]] = field(
        default_factory=dict[FutureResult, tuple[ResultSource, IfFailed]]
    )


class Edge(Struct, frozen=True, eq=False):
    """What a part waits for. `mode`: what the failure of that does to the part."""

    source: Draft
    mode: NeedMode = "fail"


class BuiltFlow(Struct, frozen=True, eq=False):
    """The jobs of a flow, in the order in which they are stored. `root`: the flow itself.

    `subscriptions`: the dependents that jobs have beyond those that an enqueue may name.
    """

    root: NewJob
    jobs: tuple[NewJob, ...]
    subscriptions: tuple[Subscribe, ...]


class FlowBuilder:
    """Builds the jobs of one flow. `name`: the flow's, for messages."""

    def __init__(self, root: Ref, name: str, inherited: Inherited) -> None:
        self.nodes: dict[object, Draft] = {}
        """The nodes of a graph, by the objects that calls refer to them by."""
        self._root = root
        self._name = name
        self._inherited = inherited
        self._prefix = flow_prefix(root)
        self._named: dict[str, Draft] = {}
        self._drafts: list[Draft] = []
        self._callbacks: list[Draft] = []
        self._flow_dependents: list[Dependent] = []

    def place(self, part: AnyPart, name: str, edges: Sequence[Edge] = (), mode: NeedMode = "fail") -> Draft:
        """Add a part as a node. `mode`: of the edges from nodes whose results its calls get.

        Raises:
            FlowError: a call cannot be part of a flow, or the flow is too large.
        """
        return self._place(part, f"{self._prefix}~{name}", edges, mode, node=name)

    def place_steps(self, parts: Sequence[AnyPart]) -> Draft:
        """Add the parts of a chain as the nodes 1, 2, 3 and so on; return the last one.

        Raises:
            FlowError: see `place`.
        """
        names = [str(number) for number in range(1, len(parts) + 1)]
        return self._place_chain(parts, [f"{self._prefix}~{name}" for name in names], (), "fail", names)

    def place_callback(self, call: EncodedCall[Any], name: str, mode: NeedMode) -> None:
        """Add a call that waits for the end of the flow, so that the flow does not wait for it.

        Raises:
            FlowError: see `place`.
        """
        flow = Draft(ref=self._root, source=ResultList(()))
        self._callbacks.append(self._draft_of_call(call, f"{self._prefix}~{name}", [Edge(flow, mode)], "fail", None))
        self._flow_dependents += flow.dependents

    def built(self, root: NewJob, result: Draft | None) -> BuiltFlow:
        """Return the jobs of the flow. `root`: the flow, which gets its links and its payload here.

        Raises:
            FlowError: see `place`.
        """
        if len(self._named) > NODES_LIMIT:
            raise FlowError(
                f"the flow {self._name!r} has {len(self._named):,} nodes, the limit is {NODES_LIMIT:,}; put calls that "
                "run side by side into a group, which is one node"
            )
        needs_of_all = (need for draft in self._drafts for need in draft.needs.values())
        # Another node goes on if one of these fails.
        sources = {need.source for need in needs_of_all if need.mode == "count"}
        handled = {name for name, node in self._named.items() if node.ref in sources}
        for name, node in self._named.items():
            # The flow comes first: of many dependents only the first ones are stored with the job.
            node.dependents.insert(0, Dependent(self._root, HANDLED if name in handled else NODES, name))
        needs = [Need(box=NODES, count=len(self._named) - len(handled), mode="tally")]
        if handled:
            needs.append(Need(box=HANDLED, count=len(handled), mode="count"))
        named, more = _split(self._root, self._flow_dependents)
        links = Links(
            wait=Wait(tuple(needs)),
            dependents=named,
            kind=JobKind.FLOW,
            plan=Plan({name: node.ref for name, node in self._named.items()}),
        )
        flow = structs.replace(root, links=links, payload=of_flow(None if result is None else result.source))
        jobs = list[NewJob]()
        # Jobs of one rank keep their order, and start in it.
        for draft in [*self._callbacks, None, *sorted(self._drafts, key=lambda draft: -draft.rank)]:
            if draft is None:
                jobs.append(flow)
                continue
            named, rest = _split(draft.ref, draft.dependents)
            more += rest
            jobs.append(self._job(draft, named))
        return BuiltFlow(flow, tuple(jobs), tuple(more))

    # ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _place(
        self,
        part: AnyPart,
        id_: str,
        edges: Sequence[Edge],
        mode: NeedMode,
        *,
        previous: Draft | None = None,
        node: str | None = None,
    ) -> Draft:
        """Add a part whose last job gets this id. `node`: its name, if the flow is notified of its end."""
        match part:
            case ChainPart(parts=parts):
                last = len(parts)
                steps = [f"s{number}" for number in range(1, last)]
                ids = [*(member_id(id_, step) for step in steps), id_]
                names = [*(None if node is None else f"{node}~{step}" for step in steps), node]
                return self._place_chain(parts, ids, edges, mode, names)
            case GroupPart():
                draft = self._place_group(part, id_, edges, mode)
            case EncodedCall():
                draft = self._draft_of_call(part, id_, edges, mode, previous)
            case _:
                raise FlowError(
                    f"flow {self._name!r}: {part!r} is not a call, a chain or a group; write task.call(...)"
                )
        self._drafts.append(draft)
        if node is not None:
            self._named[node] = draft
        return draft

    def _place_chain(
        self,
        parts: Sequence[AnyPart],
        ids: Sequence[str],
        edges: Sequence[Edge],
        mode: NeedMode,
        nodes: Sequence[str | None],
    ) -> Draft:
        draft: Draft | None = None
        for part, id_, node in zip(parts, ids, nodes, strict=True):
            before = edges if draft is None else [Edge(draft)]
            draft = self._place(part, id_, before, mode, previous=draft, node=node)
        if draft is None:
            raise FlowError(f"flow {self._name!r}: a chain has no calls; give it one at least")
        return draft

    def _place_group(self, group: GroupPart, id_: str, edges: Sequence[Edge], mode: NeedMode) -> Draft:
        count = len(group.parts)
        if count > GROUP_LIMIT:
            raise FlowError(
                f"flow {self._name!r}: a group has {count:,} members, the limit is {GROUP_LIMIT:,}; make several groups"
            )
        numbered = [
            (str(number), self._place(part, member_id(id_, number), edges, mode))
            for number, part in enumerate(group.parts, 1)
        ]
        ref = Ref(numbered[0][1].ref.queue if numbered else self._root.queue, id_)
        draft = Draft(ref=ref, source=_source_of(ref, numbered, fixed=group.fixed))
        draft.needs[MEMBERS] = Need(box=MEMBERS, count=count, mode="tally")
        draft.signatures = tuple(signature for _, member in numbered for signature in member.signatures)
        draft.rank = max((member.rank + 1 for _, member in numbered), default=0)
        for number, member in numbered:
            member.dependents.append(Dependent(ref, MEMBERS, number))
        elsewhere = {number: member.ref for number, member in numbered if member.ref.queue != ref.queue}
        draft.plan = Plan(elsewhere) if elsewhere else None
        if not numbered:
            for edge in edges:
                _connect(edge, draft)
        return draft

    def _draft_of_call(
        self, call: EncodedCall[Any], id_: str, edges: Sequence[Edge], mode: NeedMode, previous: Draft | None
    ) -> Draft:
        self._check(call)
        queue = call.job.queue
        draft = Draft(ref=Ref(queue, id_), source=JobResult(queue, id_), signatures=(call.signature,), call=call)
        for edge in edges:
            _connect(edge, draft)
        for future in _futures(call):
            source = previous if future.of is PREVIOUS else self.nodes.get(future.of)
            if source is None:
                raise FlowError(
                    f"flow {self._name!r}: a call of task {call.job.task!r} gets {future!r}, which is not part of this "
                    "flow"
                    if future.of is not PREVIOUS
                    else f"flow {self._name!r}: task {call.job.task!r} takes the result of the call before it, and "
                    "this one is the first; put a call before it"
                )
            if_failed: IfFailed = "fail" if future.of is PREVIOUS or mode == "fail" else "leave_out"
            if future.outcome:
                if_failed = "pass"
            _connect(Edge(source, "fail" if if_failed == "fail" else "count"), draft)
            draft.inputs[future] = source.source, if_failed
        if len(draft.needs) > NEEDS_LIMIT:
            raise FlowError(
                f"flow {self._name!r}: a call of task {call.job.task!r} waits for {len(draft.needs)} others, the limit "
                f"is {NEEDS_LIMIT}; put those into a group, and wait for the group"
            )
        if draft.needs and not {"delay", "run_at"}.isdisjoint(call.given):
            raise FlowError(
                f"flow {self._name!r}: a call of task {call.job.task!r} waits for others, so it cannot have a delay or "
                "run_at; leave that out"
            )
        return draft

    def _check(self, call: EncodedCall[Any]) -> None:
        """Check that a call may be part of a flow."""
        task = call.job.task
        if "id" in call.given:
            raise FlowError(
                f"flow {self._name!r}: the call of task {task!r} has the id {call.job.id!r}, and members get their ids "
                "from their flow; leave the id out, and give one to the flow"
            )
        if call.job.merge is not None:
            raise FlowError(
                f"flow {self._name!r}: a call of task {task!r} may be merged into another job, and the results of a "
                "flow are those of its own jobs; call it with options(unique=False), or by a task that is neither "
                "debounced nor collects, and give the unique key to the flow"
            )

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _job(self, draft: Draft, dependents: tuple[Dependent, ...]) -> NewJob:
        links = Links(
            wait=Wait(tuple(draft.needs.values())) if draft.needs else None,
            dependents=dependents,
            kind=JobKind.JOB if draft.call is not None else JobKind.GROUP,
            flow=self._root,
            plan=draft.plan,
        )
        call, inherited = draft.call, self._inherited
        if call is None:
            job = NewJob(
                queue=draft.ref.queue, id=draft.ref.id, task=GROUP_TASK, payload=of_flow(draft.source), links=links
            )
        else:
            job = structs.replace(call.job, id=draft.ref.id, links=links)
            if (arguments := call.open_arguments) is not None:
                encode = arguments.encoder.encode_open
                payload = encode(call.signature, arguments.args, arguments.kwargs, draft.inputs.__getitem__)
                job = structs.replace(job, payload=payload)
        if inherited.priority is not None and (call is None or "priority" not in call.given):
            strict = is_strict(job.priority, job.boost)
            boost = boost_of(inherited.priority, strict=strict)
            job = structs.replace(job, priority=inherited.priority, boost=boost)
        if job.policy.result_ttl is None:
            job = structs.replace(job, policy=structs.replace(job.policy, result_ttl=inherited.kept))
        if inherited.tags:
            job = structs.replace(job, tags=self._tags(job))
        if inherited.headers:
            job = structs.replace(job, headers=valid_headers({**inherited.headers, **job.headers}))
        return job

    def _tags(self, job: NewJob) -> tuple[str, ...]:
        tags = tuple(dict.fromkeys((*job.tags, *self._inherited.tags)))
        if len(tags) > TAGS:
            raise FlowError(
                f"flow {self._name!r}: a call of task {job.task!r} would have {len(tags):,} tags, {len(job.tags)} of "
                f"its own, and a job may have {TAGS}; give the flow fewer tags"
            )
        return tags


def flow_prefix(root: Ref) -> str:
    """Return what the ids of all members of a flow begin with."""
    return "~" + hashlib.blake2b(f"{root.queue}\0{root.id}".encode(), digest_size=8).hexdigest()


def _connect(edge: Edge, target: Draft) -> None:
    """Let a job wait for another one, once. If it does in two ways, a failure fails it."""
    source, known = edge.source, target.needs.get(edge.source.ref.id)
    if known is None:
        source.dependents.append(Dependent(target.ref, source.ref.id, END))
    if known is None or edge.mode == "fail":
        target.needs[source.ref.id] = Need(box=source.ref.id, mode=edge.mode, source=source.ref)
    target.rank = max(target.rank, source.rank + 1)


def _source_of(ref: Ref, numbered: Sequence[tuple[str, Draft]], *, fixed: bool) -> ResultSource:
    """Return where the results of a group are found."""
    sources = [member.source for _, member in numbered]
    plain = [JobResult(ref.queue, member_id(ref.id, number)) for number, _ in numbered]
    if sources == plain:
        return GroupResult(ref.queue, ref.id, len(sources), fixed)
    return ResultList(tuple(sources), fixed)


def _futures(call: EncodedCall[Any]) -> list[FutureResult]:
    """Return the results that a call gets."""
    arguments = call.open_arguments
    if arguments is None:
        return []
    return [future for _, future in found_futures([*arguments.args, *arguments.kwargs.values()])]


def _split(ref: Ref, dependents: Sequence[Dependent]) -> tuple[tuple[Dependent, ...], list[Subscribe]]:
    """Return the dependents that an enqueue may name, and subscriptions for the others."""
    return tuple(dependents[:DEPENDENTS_LIMIT]), [Subscribe(ref, one) for one in dependents[DEPENDENTS_LIMIT:]]
