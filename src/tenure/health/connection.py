"""One HTTP connection, which must soon say what it wants, and goes where room is needed for another.

    made, or answered ──a whole head within `PATIENCE`──► under way ──answered──► …
        │
        └── silence, or another connection needs its place ──► closed without a word

Neither a connection that sends nothing nor one that sends a byte a second can so keep others out.
"""

import asyncio
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 5.0
"""Seconds for the whole head of a request, counted from the connection's start or from the answer before."""

MOST = 256
"""So many connections there may be at once; beyond them the one that has been idle for longest gives its place."""


class HTTPConnection(H11Protocol):
    """One connection, as uvicorn's server makes them."""

    _idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, in the place of another where all are taken."""
        super().connection_made(transport)
        self._rest()
        if len(self.connections) > MOST:
            # All are of this class: it is this one that makes them.
            idle = [one for one in cast("set[HTTPConnection]", self.connections) if one.idle and one is not self]
            if idle:
                min(idle, key=HTTPConnection.patient_until).give_way()

    def data_received(self, data: bytes) -> None:
        """Take what comes; only a whole head ends the wait."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before and not self.cycle.response_complete:
            self._cease()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._rest()
        # The next one may have come already: then it is under way now.
        before = self.cycle
        super().on_response_complete()
        if self.cycle is not before:
            self._cease()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._cease()
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Whether no request of it is under way."""
        return self._idle is not None

    def patient_until(self) -> float:
        """Return when its time to begin a request is over, by the loop's time; the longer it is idle, the earlier."""
        return 0.0 if self._idle is None else self._idle.when()

    def give_way(self) -> None:
        """Close at once, whatever is still to be sent."""
        self._cease()
        # Its end is told later, and until then it would count.
        self.connections.discard(self)
        self.transport.abort()

    def _rest(self) -> None:
        self._cease()
        self._idle = self.loop.call_later(PATIENCE, self.give_way)

    def _cease(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
