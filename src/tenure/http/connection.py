"""An HTTP connection with limits against slow clients: it must send a request in time, and idle ones make room.

    opened, or answered ──a whole head within `PATIENCE`──► under way ──answered──► …
        │
        └── time over, or another connection needs its place ──► closed without an answer

So a client that sends nothing, or one byte a second, cannot lock other clients out. While a client still receives an
answer, its time begins again.

A stream has no end, so its client must go on reading: if the buffers are full and nothing leaves them within
`WRITE_PATIENCE`, the connection is closed, too.
"""

import asyncio
from typing import Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 5.0
"""Seconds for the whole head of a request, counted from the connection's start or from the previous answer."""

WRITE_PATIENCE: Final[float] = 30.0
"""Seconds without progress after which a connection is closed whose client has to read before more can be sent."""

MOST = 256
"""The greatest number of connections; above it, the connection that has been idle for longest is closed."""


class HTTPConnection(H11Protocol):
    """A connection of uvicorn's server."""

    _idle: asyncio.TimerHandle | None = None
    _unsent = 0
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request; close the longest idle connection if there are too many."""
        super().connection_made(transport)
        self._rest()
        if len(self.connections) > MOST:
            # All connections use this class, because the server is configured with it.
            idle = [
                connection
                for connection in cast("set[HTTPConnection]", self.connections)
                if connection.idle and connection is not self
            ]
            if idle:
                min(idle, key=HTTPConnection.patient_until).give_way()

    def data_received(self, data: bytes) -> None:
        """Process received bytes; only a whole head ends the wait."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before and not self.cycle.response_complete:
            self._cease()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._rest()
        # The next request may have arrived already; then it is under way now.
        before = self.cycle
        super().on_response_complete()
        if self.cycle is not before:
            self._cease()

    def pause_writing(self) -> None:
        """Let the app wait until the client has read a part, and begin to wait for that, too."""
        super().pause_writing()
        self._await_progress()

    def resume_writing(self) -> None:
        """Let the app send again."""
        self._cease_writing()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._cease()
        self._cease_writing()
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Return True if no request is under way."""
        return self._idle is not None

    def patient_until(self) -> float:
        """Return the loop time at which it is closed if no request arrives; the longer it is idle, the earlier."""
        return 0.0 if self._idle is None else self._idle.when()

    def give_way(self) -> None:
        """Close at once, without sending what is left."""
        self._cease()
        # `connection_lost` is called later; until then the connection would still count.
        self.connections.discard(self)
        self.transport.abort()

    def _rest(self) -> None:
        self._cease()
        self._unsent = self.transport.get_write_buffer_size()
        self._idle = self.loop.call_later(PATIENCE, self._end_of_patience)

    def _end_of_patience(self) -> None:
        """Close, unless the client has received a part of its answer since the wait began."""
        if self.transport.get_write_buffer_size() < self._unsent:
            self._rest()
        else:
            self.give_way()

    def _await_progress(self) -> None:
        self._cease_writing()
        self._stuck = self.loop.call_later(
            WRITE_PATIENCE, self._end_of_write_patience, self.transport.get_write_buffer_size()
        )

    def _end_of_write_patience(self, unsent: int) -> None:
        if self.transport.get_write_buffer_size() < unsent:
            self._await_progress()
        else:
            self.give_way()

    def _cease_writing(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _cease(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
