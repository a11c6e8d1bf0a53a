"""References: arguments that are results of other jobs of a flow.

    the client ──stores──► {"title": "May", "~": [{"at": ["rows"], "of": {"type": "job", "queue": ..., "id": ...}}]}
    a worker   ──reads the results, then decodes──► {"title": "May", "rows": [1, 2, 3]}

The key "~" cannot be the name of a parameter, so no argument of a caller can look like a reference. Only a job with
links has references.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, NoReturn, Union, cast, get_args, get_origin

import msgspec
from msgspec import Struct

from tenure.client.codec import Codec, JsonCodec
from tenure.core.job import JobRecord
from tenure.core.lifecycle import State
from tenure.core.ref import Ref
from tenure.core.waiting import JobKind
from tenure.errors import UsageError
from tenure.storage.protocol import Storage

REFERENCES = "~"
"""The key of the references in the encoded arguments of a job."""

PAGE = 100
"""How many jobs are read per request."""

RESULTS_LIMIT = 16 * 1024 * 1024
"""The most bytes that the results take together which one job gets as arguments."""

Place = tuple[str | int, ...]
"""Where a value is in the arguments of a call: the parameter, then keys of dicts and positions in lists."""


class JobResult(Struct, frozen=True, tag="job"):
    """The result of one job."""

    queue: str
    id: str


class GroupResult(Struct, frozen=True, omit_defaults=True, tag="group"):
    """The results of the members of a group, in order: jobs of one queue, whose ids end with 1, 2, ... `count`.

    `fixed`: True if they are a tuple, False if they are a list.
    """

    queue: str
    id: str
    count: int
    fixed: bool = False


class ResultList(Struct, frozen=True, omit_defaults=True, tag="list"):
    """Several results, in order. `fixed`: as of `GroupResult`."""

    items: tuple["ResultSource", ...]
    fixed: bool = False


ResultSource = JobResult | GroupResult | ResultList
"""Where the result of a part of a flow is found."""


IfFailed = Literal["fail", "leave_out", "pass"]
"""What a failed job does to an argument that is its result: the call fails, or the argument is left out or `Failed`."""


class ResultReference(Struct, frozen=True, omit_defaults=True):
    """An argument that is a result."""

    at: Place
    of: ResultSource
    if_failed: IfFailed = "fail"


class Failed(Struct, frozen=True, kw_only=True):
    """What a call gets in place of the result of a job that did not complete; see `Node.outcome`.

    `state`, `reason`: those of the job; the state is None if the job does not exist any more. `error`: the type of its
    last error, and `message` its text.
    """

    queue: str
    id: str
    state: State | None
    reason: str | None = None
    error: str | None = None
    message: str = ""

    @classmethod
    def of_job(cls, ref: Ref, job: JobRecord | None) -> "Failed":
        """Return what stands for the result of this job."""
        if job is None:
            return cls(queue=ref.queue, id=ref.id, state=None)
        kind, message = (None, "") if job.error is None else (job.error.type, job.error.message)
        return cls(queue=ref.queue, id=ref.id, state=job.state, reason=job.reason, error=kind, message=message)


class FutureResult:
    """Stands for a result that does not exist yet, where the arguments of a call are given. `of`: what it is from.

    `outcome`: True if it may also be a `Failed`.
    """

    def __init__(self, of: object, *, outcome: bool = False) -> None:
        self.of = of
        self.outcome = outcome

    def __repr__(self) -> str:
        return f"<the result of {self.of!r}>"

    def _refuse(self, *_: object) -> NoReturn:
        raise UsageError(
            f"{self!r} does not exist yet, so it cannot be read here; pass it on as an argument of a call: "
            "dag.add(task.call(node.value))"
        )

    __str__ = __bool__ = __reduce__ = __iter__ = __len__ = __getitem__ = __contains__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __neg__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            # Libraries look for protocols by such names.
            raise AttributeError(name)
        self._refuse()


def found_futures(value: object, at: Place = ()) -> Iterator[tuple[Place, FutureResult]]:
    """Yield the results that do not exist yet in a value, in its lists, tuples and dicts, each with its place."""
    match value:
        case FutureResult():
            yield at, value
        case dict():
            for key, item in cast("dict[object, object]", value).items():
                if isinstance(key, str):
                    yield from found_futures(item, (*at, key))
        case list() | tuple():
            for number, item in enumerate(cast("Sequence[object]", value)):
                yield from found_futures(item, (*at, number))
        case _:
            pass


def without_futures(value: Any) -> Any:
    """Return a value with None in place of the results that do not exist yet."""
    if isinstance(value, FutureResult):
        return None
    if isinstance(value, dict):
        named = cast("dict[object, Any]", value)
        return {key: without_futures(item) for key, item in named.items()}
    if isinstance(value, list | tuple):
        return [without_futures(item) for item in cast("Sequence[Any]", value)]
    return value


def jobs_of(source: ResultSource) -> Iterator[Ref]:
    """Yield the jobs that a result is from, in order."""
    match source:
        case JobResult():
            yield Ref(source.queue, source.id)
        case GroupResult():
            for number in range(1, source.count + 1):
                yield Ref(source.queue, member_id(source.id, number))
        case ResultList():
            for item in source.items:
                yield from jobs_of(item)


def member_id(group: str, key: int | str) -> str:
    """Return the id of a member of a group; `core.waiting.failure_cause` builds the same."""
    return f"{group}~{key}"


def assembled(source: ResultSource, values: Iterator[Any]) -> Any:
    """Return the values of jobs, given in the order of `jobs_of`, in the shape of a result."""
    match source:
        case JobResult():
            return next(values)
        case GroupResult():
            items = [next(values) for _ in range(source.count)]
        case ResultList():
            items = [assembled(item, values) for item in source.items]
    return tuple(items) if source.fixed else items


def of_flow(source: ResultSource | None) -> bytes:
    """Return the payload of a flow or a group, which says where its result is found; None: it has none."""
    return msgspec.json.encode({} if source is None else {"result": source})


def source_of_flow(job: JobRecord) -> ResultSource | None:
    """Return where the result of a flow or a group is found, or None if it has none.

    Raises:
        UsageError: its payload is damaged.
    """
    try:
        return _FLOW.decode(job.payload).result
    except msgspec.MsgspecError as error:
        raise UsageError(f"the payload of {job.links and job.links.kind} {job.id} cannot be read: {error}") from None


def is_flow(job: JobRecord) -> bool:
    """Return True if this job is a flow or a group: it has no handler, and its result is that of its members."""
    return job.links is not None and job.links.kind is not JobKind.JOB


async def needs_failed(storage: Storage, ref: Ref, holder: Ref) -> bool:
    """Return True if a job is not redriven because it needs the job `holder`, False if that holds its unique key.

    Raises:
        StorageError: the storage cannot be read.
    """
    known = await read_jobs(storage, [ref, holder])
    job, other = known.get(ref), known.get(holder)
    if job is None or job.reason != "dependency":
        return False
    return job.merge is None or other is None or other.merge != job.merge


async def read_jobs(storage: Storage, refs: Sequence[Ref]) -> dict[Ref, JobRecord]:
    """Return the records of jobs, by the refs that were asked for. Unknown jobs are left out.

    Raises:
        StorageError: the storage cannot be read.
    """
    found: dict[Ref, JobRecord] = {}
    for begin in range(0, len(refs), PAGE):
        page = refs[begin : begin + PAGE]
        for ref, detail in zip(page, await storage.get(page), strict=True):
            if detail is not None:
                found[ref] = detail.job
    return found


class OpenArguments:
    """The encoded arguments of a job, before its references are replaced by results.

    Raises:
        Exception: they cannot be decoded.
    """

    def __init__(self, codec: Codec, payload: bytes) -> None:
        self._codec = codec
        self._data: dict[str, Any]
        self.references: tuple[ResultReference, ...]
        if type(codec) is JsonCodec:
            # What is not replaced stays as it was encoded.
            raw = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
            encoded = raw.pop(REFERENCES, None)
            self.references = () if encoded is None else _REFERENCES.decode(encoded)
            self._data = dict(raw)
        else:
            data = codec.decode(payload)
            self._data = data if isinstance(data, dict) else {}
            self.references = msgspec.convert(self._data.pop(REFERENCES, []), tuple[ResultReference, ...])

    @property
    def whole(self) -> bytes:
        """The encoded arguments that need no result."""
        needing = {str(reference.at[0]) for reference in self.references}
        return self._codec.encode({name: value for name, value in self._data.items() if name not in needing})

    def filled(self, jobs: Mapping[Ref, JobRecord]) -> bytes:
        """Return the encoded arguments with the results of jobs in place of the references.

        Raises:
            MissingResultError: a job did not complete or does not exist, or the results are too large.
            Exception: a result cannot be decoded.
        """
        size = 0
        failures: dict[str, Failed] = {}
        for reference in self.references:
            refs = list(jobs_of(reference.of))
            missing = next((ref for ref in refs if _problem(jobs.get(ref)) is not None), None)
            if missing is not None and reference.if_failed != "fail":
                if reference.if_failed == "pass":
                    failures[str(reference.at[0])] = Failed.of_job(missing, jobs.get(missing))
                continue
            if missing is not None:
                name = ".".join(map(str, reference.at))
                raise MissingResultError(
                    f"argument {name!r} is the result of the job {missing.id!r} of the queue {missing.queue!r}, "
                    f"which {_problem(jobs.get(missing))}"
                )
            results = [jobs[ref].result or b"null" for ref in refs]
            size += sum(map(len, results))
            if size > RESULTS_LIMIT:
                raise MissingResultError(
                    f"the results that this job gets take over {RESULTS_LIMIT:,} bytes; store the data elsewhere, and "
                    "return references to it"
                )
            self._put(reference.at, assembled(reference.of, map(self._leaf, results)))
        if failures:
            self._data[REFERENCES] = msgspec.to_builtins(failures)
        return self._codec.encode(self._data)

    def _leaf(self, result: bytes) -> Any:
        return msgspec.Raw(result) if type(self._codec) is JsonCodec else self._codec.decode(result)

    def _put(self, at: Place, value: Any) -> None:
        container: Any = self._data
        for step in at[:-1]:
            if isinstance(container[step], msgspec.Raw):
                container[step] = msgspec.json.decode(container[step])
            container = container[step]
        container[at[-1]] = value


def taken_failures(codec: Codec, payload: bytes) -> tuple[dict[str, Failed], bytes]:
    """Return the arguments that are `Failed`, by name, and the others, encoded. Any exception: see `OpenArguments`."""
    if type(codec) is JsonCodec:
        raw = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
        failures = raw.pop(REFERENCES, None)
        return ({}, payload) if failures is None else (_FAILURES.decode(failures), codec.encode(raw))
    data: Any = codec.decode(payload)
    if REFERENCES not in data:
        return {}, payload
    return msgspec.convert(data.pop(REFERENCES), dict[str, Failed]), codec.encode(data)


def without_failed(hint: Any) -> Any:
    """Return an annotation `T | Failed` as `T`: a `Failed` is not decoded with the other arguments."""
    members = get_args(hint)
    if get_origin(hint) not in (Union, UnionType) or Failed not in members:
        return hint
    rest = tuple(member for member in members if member is not Failed)
    return Union[rest]  # noqa: UP007 - their number is not known here


class MissingResultError(Exception):
    """The arguments of a job cannot be filled with the results that they refer to."""


class _FlowPayload(Struct, frozen=True):
    """The payload of a flow or a group."""

    result: ResultSource | None = None


_FLOW = msgspec.json.Decoder(_FlowPayload)
_FAILURES = msgspec.json.Decoder(dict[str, Failed])
_REFERENCES = msgspec.json.Decoder(tuple[ResultReference, ...])


def _problem(job: JobRecord | None) -> str | None:
    """Return why a job has no result, or None if it has one."""
    if job is None:
        return "does not exist any more: it was deleted, or its retention is over"
    return None if job.state is State.COMPLETED else f"is {job.state}"


Locate = Callable[[FutureResult], tuple[ResultSource, IfFailed]]
"""Returns where a result will be found, and what a failed job does to the argument."""
