"""The methods of an app that compose calls: `chain`, `group` and `flow`."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, TypeVar, cast, overload

from tenure.client.flows import Flow, FlowServices, FlowStart, FlowStep, Link, chain_of, group_of
from tenure.client.graph import Graph
from tenure.client.job_template import EncodedCall

T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")
T6 = TypeVar("T6")

TUPLE = range(2, 7)
"""Groups of so many members have a tuple of results, whose types are known one by one."""


class Compositions(ABC):
    """What composes calls of an app's tasks."""

    @property
    @abstractmethod
    def _flow_services(self) -> FlowServices: ...

    @overload
    def chain(self, first: FlowStart[T1], second: FlowStep[T1, T2], /) -> Flow[T2]: ...
    @overload
    def chain(self, first: FlowStart[T1], second: FlowStep[T1, T2], third: FlowStep[T2, T3], /) -> Flow[T3]: ...
    @overload
    def chain(
        self, first: FlowStart[T1], second: FlowStep[T1, T2], third: FlowStep[T2, T3], fourth: FlowStep[T3, T4], /
    ) -> Flow[T4]: ...
    @overload
    def chain(
        self,
        first: FlowStart[T1],
        second: FlowStep[T1, T2],
        third: FlowStep[T2, T3],
        fourth: FlowStep[T3, T4],
        fifth: FlowStep[T4, T5],
        /,
    ) -> Flow[T5]: ...
    @overload
    def chain(
        self,
        first: FlowStart[T1],
        second: FlowStep[T1, T2],
        third: FlowStep[T2, T3],
        fourth: FlowStep[T3, T4],
        fifth: FlowStep[T4, T5],
        sixth: FlowStep[T5, T6],
        /,
    ) -> Flow[T6]: ...
    def chain(self, *parts: Any) -> Flow[Any]:
        """Return a flow of calls that run one after the other: `app.chain(fetch.call(url), clean.take(), show.take())`.

        A link, `task.take(...)`, gets the result of the part before it as its first argument. A call in a later place
        runs after the part before it and gets nothing from it. `a | b` is the same as `app.chain(a, b)`; write longer
        chains with it: `app.chain(a, b, ...) | c`. The result of the flow is that of its last part. If a part fails,
        those after it fail, too, with the reason `dependency`.

        Raises:
            FlowError: a part is not a call, a link, a chain or a group, or the first one is a link.
        """
        return chain_of(self._flow_services, parts)

    @overload
    def group(self, calls: Iterable[FlowStart[T1]], /) -> Flow[list[T1]]: ...
    @overload
    def group(  # pyright: ignore[reportOverlappingOverload]  # of two to six calls the first match wins
        self, first: FlowStart[T1], second: FlowStart[T2], /
    ) -> Flow[tuple[T1, T2]]: ...
    @overload
    def group(
        self, first: FlowStart[T1], second: FlowStart[T2], third: FlowStart[T3], /
    ) -> Flow[tuple[T1, T2, T3]]: ...
    @overload
    def group(
        self, first: FlowStart[T1], second: FlowStart[T2], third: FlowStart[T3], fourth: FlowStart[T4], /
    ) -> Flow[tuple[T1, T2, T3, T4]]: ...
    @overload
    def group(
        self,
        first: FlowStart[T1],
        second: FlowStart[T2],
        third: FlowStart[T3],
        fourth: FlowStart[T4],
        fifth: FlowStart[T5],
        /,
    ) -> Flow[tuple[T1, T2, T3, T4, T5]]: ...
    @overload
    def group(
        self,
        first: FlowStart[T1],
        second: FlowStart[T2],
        third: FlowStart[T3],
        fourth: FlowStart[T4],
        fifth: FlowStart[T5],
        sixth: FlowStart[T6],
        /,
    ) -> Flow[tuple[T1, T2, T3, T4, T5, T6]]: ...
    @overload
    def group(self, *calls: FlowStart[T1]) -> Flow[list[T1]]: ...
    def group(self, *parts: Any) -> Flow[Any]:
        """Return a flow of calls that run side by side: `app.group(price.call(1), name.call("x"))`.

        Its result has the results of all members, in the order in which they are given: a tuple of two to six, else a
        list. Of a list of calls it is always a list: `app.group([resize.call(image) for image in images])`.
        `group | task.take()` gives them all to one call. The group ends when all members have; it fails if one of them
        did. It has 10,000 members at most.

        Raises:
            FlowError: a part is not a call, a chain or a group.
        """
        if len(parts) == 1 and not isinstance(parts[0], EncodedCall | Flow | Link):
            return group_of(self._flow_services, _listed(parts[0]), fixed=False)
        return group_of(self._flow_services, parts, fixed=len(parts) in TUPLE)

    def flow(self, name: str) -> Graph:
        """Return an empty graph: `with app.flow("nightly") as dag: ...`. See `Graph`.

        Raises:
            FlowError: the name is not 1 to 64 letters, digits, "-" or "_".
        """
        return Graph(self._flow_services, name)


def _listed(parts: Any) -> Iterable[object]:
    return cast("Iterable[object]", parts) if isinstance(parts, Iterable) else [parts]
