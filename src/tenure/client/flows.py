"""Compositions of calls, and the handles of the flows that they make.

call ──|──► link ──|──► link          a chain: each link gets the result of the call before it
group(call, call) ──|──► link         the link gets all results of the group
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypedDict, TypeGuard, TypeVar, Unpack, cast

from tenure.background_loop import PORTAL
from tenure.client.encoder import CallEncoder
from tenure.client.flow_builder import (
    KEPT,
    AnyPart,
    BuiltFlow,
    ChainPart,
    Draft,
    FlowBuilder,
    GroupPart,
    Inherited,
)
from tenure.client.handle import Job
from tenure.client.job_template import EncodedCall, caller_id, valid_tags
from tenure.client.references import Failed, FutureResult, read_jobs
from tenure.client.signature import Signature
from tenure.client.storage_client import StorageClient, with_ids
from tenure.core.check import no_others, shown
from tenure.core.deduplication import EnqueueAction
from tenure.core.duration import Duration, duration, micros
from tenure.core.internal import own_name
from tenure.core.job import NewJob, UniqueKey
from tenure.core.lifecycle import TERMINAL
from tenure.core.order import boost_of
from tenure.core.public import PublicObject
from tenure.core.ref import Ref
from tenure.errors import FlowError, StorageError
from tenure.options.documented import lists_options
from tenure.options.headers import valid_headers
from tenure.options.keys import own_key
from tenure.options.tasks import valid_priority
from tenure.storage.protocol import Storage
from tenure.storage.requests import EnqueueResult

R_co = TypeVar("R_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)
T = TypeVar("T")

WHOLE = 1_000
"""The most jobs of a flow that are stored by one request."""

CHUNK = 500
"""How many jobs one request stores of a flow that has more than `WHOLE`."""


class FlowOptions(TypedDict, total=False):
    """The options of a flow: `flow.enqueue(id="order-42", timeout="2h")`.

    - `id`: the flow's id, unique within its queue. A second enqueue with the same id makes no second flow.
    - `queue`: the queue of the flow itself, that of its first call by default. Calls go to the queues of their tasks.
    - `timeout`: how long the flow may take in all. Then it fails, and its dependents with it; its members go on.
    - `unique`: a key that at most one unfinished flow of the queue holds. A second flow with it is not made.
    - `priority`, `tags`, `headers`: of the flow and its members; those that a call has of its own win.
    """

    id: str
    queue: str
    timeout: Duration
    unique: str
    priority: int
    tags: Sequence[str]
    headers: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class FlowServices:
    """What an app gives its compositions. `now`: the time, in microseconds."""

    client: StorageClient
    encoder: CallEncoder
    now: Callable[[], int]


class FlowNode(PublicObject, Generic[R_co]):
    """A node of a graph: a call, a chain or a group."""

    _internal = frozenset({"owner"})

    def __init__(self, owner: object, name: str) -> None:
        self.owner = owner
        self.name = name
        """Its name, unique in its graph."""

    def __repr__(self) -> str:
        return f"node {self.name!r}"

    @property
    def value(self) -> R_co:
        """The result of the node, as an argument of a call in the same graph.

        It does not exist yet: only pass it on, alone or in a list, a tuple or a dict. The worker that runs the call
        reads it. A call that gets it waits for this node.
        """
        return cast(R_co, FutureResult(self))

    @property
    def outcome(self) -> R_co | Failed:
        """The result of the node, or a `Failed` if it did not complete, as an argument of a call in the same graph.

        The call runs either way, and its parameter says so: `def report(rows: list[int] | Failed)`. Pass the outcome
        alone, not in a list.
        """
        return cast(R_co, FutureResult(self, outcome=True))


class FlowJob(Job[R_co], Generic[R_co], eq=False, weakref=True):
    """The handle of a flow. Its result is that of the flow's last call, of a group those of its members."""

    _signatures: tuple[Signature, ...] = ()
    _nodes: Mapping[object, Draft] = {}
    _services: FlowServices | None = None

    def node(self, node: FlowNode[T]) -> Job[T]:
        """Return the handle of a node of this flow, which is a graph: `job.node(rows)`.

        Raises:
            FlowError: the node is not part of the graph that made this flow.
        """
        draft = self._nodes.get(node)
        if draft is None or self._services is None:
            raise FlowError(f"{node!r} is not part of the flow {self.id!r}; give one that its dag.add() returned")
        if draft.call is not None:
            return Job(draft.ref, self._services.client.access(draft.call.signature))
        return _handle(self._services, EnqueueResult("created", draft.ref), draft, {})

    def _member_value(self, number: int, count: int, data: bytes) -> Any:
        if self._services is None or count != len(self._signatures):
            # The id was that of another flow.
            return super()._member_value(number, count, data)
        return self._signatures[number].result(self._services.encoder.codec, data)


class Link(PublicObject, Generic[T_contra, R_co]):
    """A call whose first argument is the result of the call before it, as `task.take(...)` returns it."""

    _internal = frozenset({"call"})

    def __init__(self, call: EncodedCall[R_co], services: FlowServices) -> None:
        self.call = call
        self._services = services

    def __repr__(self) -> str:
        return f"Link(task={self.call.signature.task!r}, queue={self.call.job.queue!r})"

    def __ror__(self, before: "EncodedCall[T_contra] | Flow[T_contra]") -> "Flow[R_co]":
        """Return a chain: the call, chain or group before, then this link."""
        return chain_of(self._services, [before, self])


class Composition(PublicObject, ABC, Generic[R_co]):
    """Calls that are enqueued together, as one flow."""

    _internal = frozenset({"part"})

    def __init__(self, services: FlowServices, name: str) -> None:
        self._services = services
        self._name = name
        self._own_id: str | None = None

    @lists_options(FlowOptions, described_by=FlowOptions)
    async def enqueue(self, **options: Unpack[FlowOptions]) -> FlowJob[R_co]:
        """Store all calls as one flow and return its handle. See `FlowOptions`.

        The flow is a job, too: it has an id, a state and a result, it is found by `app.job(id)`, and it ends when all
        of its members have ended. It fails if one of them failed and no other member handles that. A flow with up to
        1,000 jobs is stored by one request, a larger one by several. Each call makes a flow, unless one with the
        same `id` exists, or the call before it raised a StorageError: then it repeats that call.

        Raises:
            FlowError: the flow is invalid or too large, or the storage does not keep flows. Nothing was stored.
            UsageError: an option is invalid.
            StorageError: the flow may or may not have been stored, or in part. The error's `job_ids` has its id:
                enqueueing again stores the rest.
        """
        no_others(options, FlowOptions.__annotations__)
        repeated = "id" in options or self._own_id is not None
        built, result, nodes = self._build(options)
        try:
            receipt = await _store(self._services.client, built, repeated=repeated)
            if receipt.ref != built.root.ref:
                # Another flow holds the key. The process that enqueued it may have died before it stored the members.
                held = self._build({**options, "id": receipt.ref.id})
                if await _complete(self._services.client, held[0]):
                    _, result, nodes = held
        except BaseException as error:
            if "id" not in options:
                # A part may be stored. So the next call repeats this one.
                self._own_id = built.root.id
            if isinstance(error, StorageError):
                raise with_ids(error, [built.root.id]) from error.__cause__
            raise
        self._own_id = None
        return _handle(self._services, receipt, result, nodes)

    @lists_options(FlowOptions, described_by=FlowOptions)
    def enqueue_sync(self, **options: Unpack[FlowOptions]) -> FlowJob[R_co]:
        """Call `enqueue` from code without a running event loop.

        Raises:
            FlowError, UsageError, StorageError: see `enqueue`.
        """
        return PORTAL.call(self.enqueue(**options), verb="enqueue")

    @abstractmethod
    def _fill(self, builder: FlowBuilder) -> Draft | None:
        """Add the members of the flow; return the one whose result is the flow's, or None."""

    @abstractmethod
    def _first_queue(self) -> str:
        """Return the queue of the first call."""

    def _build(self, options: FlowOptions) -> tuple[BuiltFlow, Draft | None, Mapping[object, Draft]]:
        """Return the jobs of the flow, and the draft of its result.

        Raises:
            UsageError: see `enqueue`.
        """
        queue = own_name(options["queue"], field="queue") if "queue" in options else self._first_queue()
        id_ = caller_id(options["id"]) if "id" in options else self._own_id or self._services.encoder.new_id()
        timeout = micros(duration(options["timeout"], field="timeout")) if "timeout" in options else None
        inherited = Inherited(
            valid_priority(options["priority"]) if "priority" in options else None,
            valid_tags(options["tags"]) if "tags" in options else (),
            valid_headers(options["headers"]) if "headers" in options else {},
            max(KEPT, timeout or 0),
        )
        root = NewJob(
            queue=queue,
            id=id_,
            task=f"flow:{self._name}",
            payload=b"",
            deadline=None if timeout is None else self._services.now() + timeout,
            merge=UniqueKey(own_key(options["unique"], field="unique")) if "unique" in options else None,
            priority=inherited.priority or 0,
            boost=boost_of(inherited.priority or 0, strict=False),
            tags=inherited.tags,
            headers=dict(inherited.headers),
        )
        builder = FlowBuilder(root.ref, self._name, inherited)
        result = self._fill(builder)
        return builder.built(root, result), result, builder.nodes


class Flow(Composition[R_co], Generic[R_co]):
    """A chain or a group of calls, whose last result is of type `R`. `flow | task.take()` adds a link to it."""

    def __init__(self, services: FlowServices, part: ChainPart | GroupPart) -> None:
        super().__init__(services, "chain" if isinstance(part, ChainPart) else "group")
        self.part = part

    def __repr__(self) -> str:
        return f"<{self._name} of {len(self.part.parts)}>"

    def _fill(self, builder: FlowBuilder) -> Draft:
        if isinstance(self.part, ChainPart):
            return builder.place_steps(self.part.parts)
        return builder.place(self.part, "group")

    def _first_queue(self) -> str:
        return first_queue(self.part)


FlowStart: TypeAlias = EncodedCall[T] | Flow[T]
"""What a flow may begin with."""

FlowStep: TypeAlias = Link[T_contra, R_co] | EncodedCall[R_co] | Flow[R_co]
"""What may follow in a chain: a link gets the result of the part before it, and a call runs after it."""


def part_of(value: object, *, where: str) -> AnyPart:
    """Return what a caller gave as a part of a flow.

    Raises:
        FlowError: it is not a call, a chain or a group.
    """
    if _is_call(value):
        return value
    if _is_flow(value):
        return value.part
    if isinstance(value, Link):
        raise FlowError(f"{where} gets {value!r}, which takes the result of a call before it; put a call first")
    raise FlowError(f"{where} gets {shown(value)}, which is not a call; write task.call(...)")


def chain_of(services: FlowServices, parts: Sequence[object]) -> Flow[Any]:
    """Return a chain of parts. Chains in the first place are taken apart.

    Raises:
        FlowError: a part is not a call, a link, a chain or a group, or the first one is a link.
    """
    steps = list[AnyPart]()
    for number, part in enumerate(parts):
        if number and _is_link(part):
            steps.append(part.call)
        else:
            step = part_of(part, where="a chain")
            steps += step.parts if isinstance(step, ChainPart) and not number else [step]
    if not steps:
        raise FlowError("a chain has no calls; write app.chain(first.call(...), second.take())")
    return Flow(services, ChainPart(steps))


def group_of(services: FlowServices, parts: Iterable[object], *, fixed: bool) -> Flow[Any]:
    """Return a group of parts. `fixed`: the result is a tuple.

    Raises:
        FlowError: a part is not a call, a chain or a group.
    """
    return Flow(services, GroupPart([part_of(part, where="a group") for part in parts], fixed=fixed))


def first_queue(part: AnyPart) -> str:
    """Return the queue of the first call of a part, the default queue if it has none."""
    while isinstance(part, ChainPart | GroupPart):
        if not part.parts:
            return "default"
        part = part.parts[0]
    return part.job.queue if isinstance(part, EncodedCall) else "default"


def _is_call(value: object) -> TypeGuard[EncodedCall[Any]]:
    return isinstance(value, EncodedCall)


def _is_flow(value: object) -> TypeGuard[Flow[Any]]:
    return isinstance(value, Flow)


def _is_link(value: object) -> TypeGuard[Link[Any, Any]]:
    return isinstance(value, Link)


async def _store(client: StorageClient, built: BuiltFlow, *, repeated: bool) -> EnqueueResult:
    """Store the jobs of a flow; return the result for the flow itself. `repeated`: its id may be known already."""
    root, jobs = built.root, list(built.jobs)
    storage = await client.opened()
    if repeated and await _is_other(storage, root):
        return EnqueueResult("duplicate", root.ref)
    receipts: dict[Ref, EnqueueResult] = {}
    batches = [jobs] if len(jobs) <= WHOLE else [jobs[at : at + CHUNK] for at in range(0, len(jobs), CHUNK)]
    if root.merge is not None:
        # No member may be stored if another flow holds the key.
        jobs.remove(root)
        batches = [[root], *(jobs[at : at + CHUNK] for at in range(0, len(jobs), CHUNK))]
    for batch in batches:
        for job, receipt in zip(batch, await client.submit_flow(batch), strict=True):
            receipts[job.ref] = receipt
        if root.ref in receipts and receipts[root.ref].ref != root.ref:
            return receipts[root.ref]
    for at in range(0, len(built.subscriptions), CHUNK):
        await storage.revise(built.subscriptions[at : at + CHUNK])
    return receipts[root.ref]


async def _complete(client: StorageClient, built: BuiltFlow) -> bool:
    """Store what is missing of an unfinished flow that is stored. Return False if it is another flow or has ended.

    Jobs are stored in order, so only those after the last known one may be missing. Of these a job with a short
    retention may also have ended and been deleted. It is stored only if no member is known: the flow goes on, so one of
    its members would be there.
    """
    storage = await client.opened()
    if await _is_other(storage, built.root):
        return False
    jobs = [job for job in built.jobs if job.ref != built.root.ref]
    if not jobs or (await read_jobs(storage, [jobs[-1].ref])):
        return True
    known = await read_jobs(storage, [job.ref for job in jobs])
    last = max((number for number, job in enumerate(jobs) if job.ref in known), default=-1)
    missing = [job for job in jobs[last + 1 :] if not known or (job.policy.result_ttl or 0) >= KEPT]
    for at in range(0, len(missing), WHOLE):
        await client.submit_flow(missing[at : at + WHOLE])
    for at in range(0, len(built.subscriptions), CHUNK):
        await storage.revise(built.subscriptions[at : at + CHUNK])
    return True


async def _is_other(storage: Storage, root: NewJob) -> bool:
    """Return True if another job has the id of a flow, or the flow has ended: then nothing more of it is stored."""
    [detail] = await storage.get([root.ref])
    if detail is None:
        return False
    there, links = detail.job, root.links
    same = there.links is not None and links is not None and there.links.plan == links.plan
    return there.state in TERMINAL or not same


def _handle(
    services: FlowServices, receipt: EnqueueResult, result: Draft | None, nodes: Mapping[object, Draft]
) -> FlowJob[Any]:
    access = services.client.access(None)
    signatures = () if result is None else result.signatures
    action: EnqueueAction = receipt.action
    return FlowJob(receipt.ref, access, action, _signatures=signatures, _nodes=nodes, _services=services)
