"""Connections of the HTTP server whose clients receive slowly."""

import asyncio
import contextlib
import threading

import pytest

from tenure.http import connection
from tenure.http.asgi import Receive, Scope, Send, answer
from tenure.http.server import HTTPServer, ListenAddress

pytestmark = pytest.mark.thorough

BODY = b"x" * 24_000_000
"""More than the buffers of the kernel hold."""


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with a large body, or take part in a lifespan."""
    if scope["type"] == "http":
        return await answer(scope, send, 200, [], BODY)
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})


class Stream:
    """Sends without an end, and tells when it has ended because the client is gone."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await large(scope, receive, send)
        try:
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(self._send(send))
                while (await receive())["type"] != "http.disconnect":
                    pass
                sending.cancel()
        finally:
            self.ended.set()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x" * 50_000, "more_body": True})
            await asyncio.sleep(0)


async def ask(server: HTTPServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return reader, writer


async def test_a_slow_client_gets_its_answer_while_it_receives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PATIENCE", 1.0)
    async with HTTPServer(large, ListenAddress("127.0.0.1", 0), purpose="a test", protected=False) as server:
        reader, writer = await ask(server)
        got = 0
        while got < len(BODY) and (part := await reader.read(100_000)):
            got += len(part)
            # This is how slow the client is: it takes longer than the server waits without progress.
            await asyncio.sleep(0.01)
        writer.close()

    assert got >= len(BODY)


async def test_a_client_that_receives_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PATIENCE", 0.2)
    given_up = threading.Event()
    give_way = connection.HTTPConnection.give_way

    def recorded(self: connection.HTTPConnection) -> None:
        give_way(self)
        given_up.set()

    monkeypatch.setattr(connection.HTTPConnection, "give_way", recorded)
    async with HTTPServer(large, ListenAddress("127.0.0.1", 0), purpose="a test", protected=False) as server:
        reader, writer = await ask(server)
        assert await asyncio.to_thread(given_up.wait, 20)
        got = 0
        with contextlib.suppress(ConnectionError):
            got = len(await reader.read())
        writer.close()

    assert got < len(BODY)


async def test_a_client_that_stops_reading_a_stream_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WRITE_PATIENCE", 0.2)
    stream = Stream()
    async with HTTPServer(stream, ListenAddress("127.0.0.1", 0), purpose="a test", protected=False) as server:
        # The reader's buffer fills, and then it takes no more from the socket.
        _, writer = await ask(server)
        assert await asyncio.to_thread(stream.ended.wait, 20)
        writer.close()


async def test_a_slow_reader_of_a_stream_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WRITE_PATIENCE", 1.0)
    stream = Stream()
    async with HTTPServer(stream, ListenAddress("127.0.0.1", 0), purpose="a test", protected=False) as server:
        reader, writer = await ask(server)
        got, loop = 0, asyncio.get_running_loop()
        until = loop.time() + 3
        while loop.time() < until and (part := await reader.read(100_000)):
            got += len(part)
            # Slow enough that the buffers stay full; the test lasts longer than the server waits without progress.
            await asyncio.sleep(0.01)
        assert not stream.ended.is_set()
        writer.close()
        assert await asyncio.to_thread(stream.ended.wait, 20)
    assert got
