"""A custom codec: compressing, encrypting, and reapers and readers that do not have it."""

import asyncio
import zlib
from hashlib import blake2b
from typing import Any

import pytest

from tenure import Codec, JobCompleted, JsonCodec, Reaper, State, Tenure
from tenure.core.job import Ref
from tests.flow.conftest import FAST, Harness, RunScenario


class Compressing:
    """JSON, deflated."""

    def __init__(self, inner: Codec | None = None) -> None:
        self.inner = inner or JsonCodec()

    def encode(self, value: Any, /) -> bytes:
        return zlib.compress(self.inner.encode(value))

    def decode(self, data: bytes, /) -> Any:
        return self.inner.decode(zlib.decompress(data))


class Encrypting:
    """JSON encrypted with a key stream: an example of the shape, not of cryptography."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.inner = JsonCodec()

    def encode(self, value: Any, /) -> bytes:
        return b"enc:" + self._mixed(self.inner.encode(value))

    def decode(self, data: bytes, /) -> Any:
        if not data.startswith(b"enc:"):
            raise ValueError("not encrypted")
        return self.inner.decode(self._mixed(data[4:]))

    def _mixed(self, data: bytes) -> bytes:
        stream = b"".join(
            blake2b(number.to_bytes(8, "big"), key=self.key).digest() for number in range(len(data) // 64 + 1)
        )
        return bytes(left ^ right for left, right in zip(data, stream, strict=False))


def test_custom_codecs_carry_arguments_results_and_events(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        for number, codec in enumerate((Compressing(), Encrypting(b"k" * 32))):
            app = harness.app(codec=codec, name=f"app-{number}")
            heard: list[Any] = []

            @app.task(name=f"greet-{number}")
            async def greet(name: str, times: int = 1) -> dict[str, list[str]]:
                return {"said": [name] * times}

            app.on(JobCompleted)(lambda event, heard=heard: heard.append(event.result))  # type: ignore[misc]
            await harness.start(app.worker(), f"worker-{number}")
            job = await greet.options(queue="default").enqueue("hello", times=2)

            assert await job.result() == {"said": ["hello", "hello"]}
            record = (await job.info()).job
            assert b"hello" not in record.payload
            assert b"hello" not in (record.result or b"")
            await asyncio.sleep(2)
            assert {"said": ["hello", "hello"]} in heard

    run_scenario(scenario)


@pytest.mark.fault("W-P11")
def test_a_reaper_without_the_codec_recovers_the_job(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(codec=Encrypting(b"k" * 32), timing=FAST)

        @app.task(name="long")
        async def long() -> str:
            await asyncio.sleep(10)
            return "done"

        job = await long.enqueue()
        victim = await harness.start(app.worker(reaper=False), "victim")
        await asyncio.sleep(0.5)
        harness.loop.kill(victim)
        await harness.start(Reaper(harness.app(timing=FAST)), "reaper")
        await asyncio.sleep(5)

        assert await job.state() is State.WAITING
        await harness.start(app.worker(), "worker")
        assert await job.result() == "done"

    run_scenario(scenario)


def test_a_reader_without_the_codec_sees_bytes(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(codec=Encrypting(b"k" * 32))

        @app.task(name="keep")
        async def keep(secret: str) -> None: ...

        job = await keep.enqueue("hush")
        (detail,) = await harness.storage.get([Ref("default", job.id)])

        assert detail is not None
        assert detail.job.payload.startswith(b"enc:")

    run_scenario(scenario)


def test_the_codec_of_json_is_the_default() -> None:
    assert isinstance(Tenure("memory://").codec, JsonCodec)
