"""A graph: calls of which each may wait for several others, and get their results.

extract ──► clean ──► load           dag.add(load.call(clean.value))
   └────► count ───────┘             dag.add(load.call(...), after=[count])
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from tenure.client.flow_builder import AnyPart, ChainPart, Draft, Edge, FlowBuilder
from tenure.client.flows import Composition, FlowNode, FlowServices, FlowStart, first_queue, part_of
from tenure.client.job_template import EncodedCall
from tenure.core.check import of_kind, one_of, shown
from tenure.core.waiting import NeedMode
from tenure.errors import FlowError

T = TypeVar("T")

IfDependencyFailed = Literal["fail", "run"]
"""What a node does if one that it waits for fails: it fails, too, or it runs without that result."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True)
class _Added:
    """A node as it was added."""

    node: FlowNode[Any]
    part: AnyPart
    after: tuple[FlowNode[Any], ...]
    mode: NeedMode


class Graph(Composition[None]):
    """Calls that wait for each other, as one flow. `app.flow(name)` makes it.

        with app.flow("nightly") as dag:
            rows = dag.add(extract.call(day))
            report = dag.add(write.call(rows.value))
            dag.on_failure(page.call(day))
            job = await dag.enqueue()

    A node waits for the nodes whose results its call gets, and for those in `after`. So there can be no cycle: a node
    exists before others can wait for it. Add all nodes before the graph is enqueued; after the `with` block no more can
    be added.
    """

    def __init__(self, services: FlowServices, name: str) -> None:
        super().__init__(services, _valid_name(name, field="the name of a flow"))
        self._added: dict[str, _Added] = {}
        self._callbacks: list[tuple[EncodedCall[Any], str, NeedMode]] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"<flow {self._name!r} of {len(self._added)} nodes>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True

    def add(
        self,
        call: FlowStart[T],
        *,
        name: str | None = None,
        after: Sequence[FlowNode[Any]] = (),
        if_dependency_failed: IfDependencyFailed = "fail",
    ) -> FlowNode[T]:
        """Add a call, a chain or a group and return its node.

        `name`: its name in the graph, by default made of the last word of the task's name. `after`: further nodes that
        it waits for. `if_dependency_failed`: what it does if a node that it waits for did not complete. "fail": it
        fails, too. "run": it runs; an argument that is the result of that node is left out, so its parameter needs a
        default.

        Raises:
            FlowError: the name is in use or invalid, or a node is of another graph.
        """
        self._check_open()
        part = part_of(call, where=f"the flow {self._name!r}")
        chosen = self._free_name(part) if name is None else _valid_name(name, field=f"flow {self._name!r}: name")
        if chosen in self._added:
            raise FlowError(f"flow {self._name!r} has a node {chosen!r} already; give this one another name")
        if isinstance(after, FlowNode):
            raise FlowError(f"flow {self._name!r}: after={after!r} must be a list of nodes; write after=[node]")
        for node in after:
            if of_kind(node, FlowNode, field="after", remedy="give nodes that dag.add() returned").owner is not self:
                raise FlowError(
                    f"flow {self._name!r}: {node!r} in `after` is of another flow; wait for nodes of this one"
                )
        one_of(if_dependency_failed, ("fail", "run"), field="if_dependency_failed")
        added: FlowNode[T] = FlowNode(self, chosen)
        mode: NeedMode = "count" if if_dependency_failed == "run" else "fail"
        self._added[chosen] = _Added(added, part, tuple(after), mode)
        return added

    def on_success(self, call: EncodedCall[Any]) -> None:
        """Run a call when the flow has completed.

        Raises:
            FlowError: the call gets the result of a node.
        """
        self._call_back(call, "on_success", "only")

    def on_failure(self, call: EncodedCall[Any]) -> None:
        """Run a call when the flow has failed, was cancelled or took too long.

        Raises:
            FlowError: the call gets the result of a node, which may not exist then.
        """
        self._call_back(call, "on_failure", "unless")

    def on_finish(self, call: EncodedCall[Any]) -> None:
        """Run a call when the flow has ended, however it ended.

        Raises:
            FlowError: the call gets the result of a node, which may not exist then.
        """
        self._call_back(call, "on_finish", "count")

    def _call_back(self, call: EncodedCall[Any], event: str, mode: NeedMode) -> None:
        self._check_open()
        of_kind(call, EncodedCall, field=event, remedy="write task.call(...)")
        if call.open_arguments is not None:
            raise FlowError(
                f"flow {self._name!r}: the call of task {call.signature.task!r} for {event} gets the result of a node, "
                "and runs when the flow has ended; add it as a node, or let it look for what it needs"
            )
        number = sum(name == event for _, name, _ in self._callbacks)
        self._callbacks.append((call, event if not number else f"{event}~{number + 1}", mode))

    def _check_open(self) -> None:
        if self._closed:
            raise FlowError(f"flow {self._name!r} is complete: its `with` block has ended; add nodes inside of it")

    def _free_name(self, part: AnyPart) -> str:
        stem = "chain" if isinstance(part, ChainPart) else "group"
        if isinstance(part, EncodedCall):
            stem = _OTHER.sub("-", part.signature.task.rpartition(".")[2]).strip("-")[:56] or "node"
        name, number = stem, 1
        while name in self._added:
            number += 1
            name = f"{stem}-{number}"
        return name

    def _fill(self, builder: FlowBuilder) -> Draft | None:
        for name, added in self._added.items():
            edges = [Edge(builder.nodes[node], added.mode) for node in added.after]
            builder.nodes[added.node] = builder.place(added.part, name, edges, added.mode)
        for call, name, mode in self._callbacks:
            builder.place_callback(call, name, mode)
        return None

    def _first_queue(self) -> str:
        return first_queue(next(iter(self._added.values())).part) if self._added else "default"


def _valid_name(name: object, *, field: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise FlowError(f"{field} = {shown(name)} must be 1 to 64 letters, digits, '-' or '_'")
    return name
