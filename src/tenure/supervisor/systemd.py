"""Notifies systemd about a service of `Type=notify`: that it is ready, that it stops, that it is alive.

Each notification is one datagram to the socket that systemd names in the environment. Without that variable there are
no notifications.
"""

import contextlib
import os
import socket
from collections.abc import MutableMapping
from typing import Self

SEND_TIMEOUT = 0.5
"""Seconds that systemd gets to accept a notification; a longer wait would block the supervisor."""


class Systemd:
    """The connection to systemd; notifications that it does not accept are lost."""

    def __init__(self, address: str, watchdog: float | None = None) -> None:
        self.watchdog = watchdog
        """Seconds without a ping after which systemd kills the service; None if it does not."""
        # An abstract socket address begins with NUL for the kernel, and with @ in the environment.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] = os.environ) -> Self | None:
        """Return the connection, or None if systemd has not started this process as a service of `Type=notify`.

        The variables are removed from `environ`, so that child processes do not notify systemd in our name.
        """
        address = environ.pop("NOTIFY_SOCKET", "")
        length, whose = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", str(os.getpid()))
        if not address.startswith(("/", "@")):
            return None
        watched = length.isdecimal() and int(length) > 0 and whose == str(os.getpid())
        return cls(address, int(length) / 1_000_000 if watched else None)

    def ready(self) -> None:
        """Notify systemd that the service is ready."""
        self._notify("READY=1")

    def stopping(self) -> None:
        """Notify systemd that the service has begun to stop."""
        self._notify("STOPPING=1")

    def alive(self) -> None:
        """Ping systemd's watchdog; call it twice per `watchdog` interval."""
        self._notify("WATCHDOG=1")

    def _notify(self, state: str) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(SEND_TIMEOUT)
            sock.sendto(state.encode(), self._address)
