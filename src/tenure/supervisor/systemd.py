"""What systemd is told of a service of `Type=notify`: that it is ready, that it stops, that it is alive.

One datagram a word, to the socket that systemd names in the environment. Elsewhere there is none, and nothing is said.
"""

import contextlib
import os
import socket
from collections.abc import MutableMapping
from typing import Self

PATIENCE = 0.5
"""Seconds that systemd gets to take a word; it is not worth a worker."""


class Systemd:
    """The way to systemd; what is said where nobody listens is lost."""

    def __init__(self, address: str, watchdog: float | None = None) -> None:
        self.watchdog = watchdog
        """Seconds without a sign of life after which it kills the service, None if it does not."""
        # The kernel writes a name that stands in no folder with a NUL where the environment has an @.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] = os.environ) -> Self | None:
        """Return the way, or None if systemd has not started this process as a service that tells.

        The variables are gone then: what this process starts must not speak in its name.
        """
        address = environ.pop("NOTIFY_SOCKET", "")
        length, whose = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", str(os.getpid()))
        if not address.startswith(("/", "@")):
            return None
        watched = length.isdecimal() and int(length) > 0 and whose == str(os.getpid())
        return cls(address, int(length) / 1_000_000 if watched else None)

    def ready(self) -> None:
        """Tell that the service does its work from now on."""
        self._tell("READY=1")

    def stopping(self) -> None:
        """Tell that the service has begun to stop."""
        self._tell("STOPPING=1")

    def alive(self) -> None:
        """Tell that the service is well; twice as often as `watchdog` asks for."""
        self._tell("WATCHDOG=1")

    def _tell(self, word: str) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.settimeout(PATIENCE)
            line.sendto(word.encode(), self._address)
