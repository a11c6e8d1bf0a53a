"""Exceptions and codecs whose methods raise, and an app that uses them; also loaded under another name."""

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tenure import (
    Cancel,
    Inject,
    JobCompleted,
    JsonCodec,
    Retry,
    RetryLater,
    Stall,
    TaskOptions,
    Tenure,
    Timing,
    current_job,
)
from tenure.core.job import NewJob, Ref
from tenure.core.lifecycle import TERMINAL
from tenure.handlers.middleware import Proceed, RunCall


def raising(*names: str, error: type[BaseException], base: type[BaseException] = Exception) -> type[BaseException]:
    """Return an exception class of which each of these methods or attributes raises."""

    def method(self: object, *_: object) -> Any:
        raise error("from within")

    made = {name: property(method) if name in ATTRIBUTES else method for name in names}
    return type(f"Hostile{base.__name__}", (base,), made)


ATTRIBUTES = ("__traceback__", "__cause__", "__context__", "__notes__", "__class__")
METHODS = ("__str__", "__repr__", "__reduce__", "__format__", "__eq__", "__hash__")


class OddText(str):
    """A text that cannot be cut, measured or encoded."""

    def __getitem__(self, _: object) -> str:
        raise SystemExit

    def __len__(self) -> int:
        raise SystemExit

    def encode(self, *_: object, **__: object) -> bytes:
        raise SystemExit


class OddWords(Exception):
    """Its message is such a text."""

    def __str__(self) -> str:
        return OddText("odd \ud800")


class Endless(RetryLater):
    """Asks for a delay that does not fit 64 bits."""

    def __init__(self) -> None:
        self.delay = timedelta.max


class HostileClass(type):
    """A class whose name and module cannot be read."""

    def __getattribute__(cls, name: str) -> Any:
        raise KeyboardInterrupt


class OfHostileClass(BaseException, metaclass=HostileClass):
    """An exception of such a class."""


class StopIterationToo(StopIteration):
    """A coroutine cannot raise it, and a future cannot hold it."""


def all_raise(error: type[BaseException], base: type[BaseException] = Exception) -> type[BaseException]:
    """Return an exception class of which everything raises."""
    return raising(*METHODS, *ATTRIBUTES, error=error, base=base)


RAISED: dict[str, Callable[[], BaseException]] = {
    "ordinary": lambda: ValueError("no"),
    "system exit": lambda: SystemExit(0),
    "keyboard interrupt": KeyboardInterrupt,
    "generator exit": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "stop iteration": StopIterationToo,
    "str exits": raising("__str__", error=SystemExit),
    "str interrupts": raising("__str__", error=KeyboardInterrupt),
    "str cancels": raising("__str__", error=asyncio.CancelledError),
    "str is odd": OddWords,
    "repr exits": raising("__repr__", "__str__", error=GeneratorExit),
    "traceback exits": raising("__traceback__", error=SystemExit),
    "cause exits": raising("__cause__", error=GeneratorExit),
    "notes exit": raising("__notes__", error=KeyboardInterrupt),
    "reduce exits": raising("__reduce__", "__reduce_ex__", error=SystemExit),
    "class exits": raising("__class__", error=SystemExit, base=BaseException),
    "everything exits": all_raise(SystemExit),
    "everything exits in a base exception": all_raise(SystemExit, BaseException),
    "everything cancels in a base exception": all_raise(asyncio.CancelledError, BaseException),
    "class of its own": OfHostileClass,
    "endless delay": Endless,
    "group": lambda: BaseExceptionGroup("several", [SystemExit(), KeyboardInterrupt()]),
}

PLACES = ("handler", "result", "payload", "middleware", "provider", "closing", "hook", "event", "data")
"""Places where user code may raise."""


@dataclass(eq=False)
class Incomparable:
    """A value that raises when it is compared. The data of a job are compared when its run ends."""

    kind: str

    def __eq__(self, other: object) -> bool:
        raise RAISED[self.kind]()


class HostileCodec(JsonCodec):
    """Raises the exception that a value or the bytes name."""

    def encode(self, value: Any, /) -> bytes:
        """Encode, or raise the exception that follows "encode"."""
        if isinstance(value, str) and value.startswith("encode "):
            raise RAISED[value.removeprefix("encode ")]()
        return super().encode(value)

    def decode(self, data: bytes, /) -> Any:
        """Decode, or raise the exception that follows "decode"."""
        if data.startswith(b"decode "):
            raise RAISED[data.decode().removeprefix("decode ")]()
        return super().decode(data)


def make_app(url: str, heard: list[str], **options: Any) -> Tenure:
    """Return an app with a plain handler and a coroutine for each place."""
    app = Tenure(
        url,
        codec=HostileCodec(),
        timing=Timing.fast(),
        defaults=TaskOptions(retry=Retry(max_attempts=1), stall=Stall(max_count=0), **options),
    )

    @app.middleware
    async def around(call: RunCall, proceed: Proceed) -> Any:
        value = await proceed()
        if call.kwargs.get("place", call.args[0]) == "middleware":
            raise RAISED[call.args[1]]()
        return value

    def provided() -> Generator[None]:
        place, kind = current_job().tags or ("payload", "")
        if place == "provider":
            raise RAISED[kind]()
        yield
        if place == "closing":
            raise RAISED[kind]()

    def work(place: str, kind: str) -> str:
        if place == "handler":
            raise RAISED[kind]()
        if place == "data":
            data = current_job().data
            data["values"] = []
            data["values"].append(Incomparable(kind))
        return f"encode {kind}" if place == "result" else kind

    @app.task(name="thread")
    def thread(place: str, kind: str, given: None = Inject(provided)) -> str:
        if place == "hook":
            raise Cancel
        return work(place, kind)

    @thread.on_cancel
    def tidy_in_thread(place: str, kind: str, given: None = Inject(provided)) -> None:
        raise RAISED[kind]()

    @app.task(name="loop")
    async def loop(place: str, kind: str, given: None = Inject(provided)) -> str:
        await asyncio.sleep(0)
        if place == "hook":
            raise Cancel
        return work(place, kind)

    @loop.on_cancel
    async def tidy(place: str, kind: str, given: None = Inject(provided)) -> None:
        await asyncio.sleep(0)
        raise RAISED[kind]()

    if heard is not NOTHING:

        @app.on(JobCompleted)
        async def hear(event: JobCompleted) -> None:
            await asyncio.sleep(0)
            heard.append(f"{event.id} loop")
            raise RAISED[str(event.result)]()

        @app.on(JobCompleted)
        def hear_in_thread(event: JobCompleted) -> None:
            heard.append(f"{event.id} thread")
            raise RAISED[str(event.result)]()

    return app


NOTHING: list[str] = []
"""The place of an app without event handlers."""


async def run_hostile_jobs(app: Tenure, way: str, place: str, *, within: float) -> dict[str, str]:
    """Run a job for each exception, and as many ordinary ones among them; return how each of the former ended."""
    task: Any = app.tasks[way]
    refs: dict[str, Ref] = {}
    innocent: list[Any] = []
    for kind in RAISED:
        if place == "payload":
            ref = Ref("default", kind)
            payload = f"decode {kind}".encode()
            await (await app.opened()).enqueue([NewJob(queue="default", id=kind, task=way, payload=payload)])
        else:
            ref = Ref("default", (await task.options(tags=(place, kind)).enqueue(place, kind)).id)
        refs[kind] = ref
        innocent.append(await task.options(tags=("nowhere", "ordinary")).enqueue("nowhere", "ordinary"))
    ended: dict[str, str] = {}
    async with asyncio.timeout(within):
        for job in innocent:
            assert await job.result() == "ordinary"
        for kind, ref in refs.items():
            while await app.job(ref.id).state() not in TERMINAL:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            detail = await app.job(ref.id).info()
            assert detail is not None
            ended[kind] = f"{detail.job.state} {detail.job.reason} in {detail.job.starts}"
            if place in ("event", "hook", "data"):
                continue
            assert detail.job.error is not None, kind
            assert detail.job.error.traceback, kind
    return ended


def expected(place: str) -> dict[str, str]:
    """Return what happens to a job at each place, for each exception."""
    match place:
        case "event" | "data":
            how = "completed None in 1"
        case "hook":
            how = "cancelled None in 1"
        case "payload" | "result":
            how = "failed undecodable in 1"
        case _:
            how = "failed exhausted in 1"
    return dict.fromkeys(RAISED, how)


apart = make_app("memory://", NOTHING, run="process")
"""An app whose runs have isolated processes."""
