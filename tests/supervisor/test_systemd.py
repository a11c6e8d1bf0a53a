"""Messages to systemd, over a real socket of its kind."""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.supervisor.systemd import Systemd


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """Listen as systemd does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(tmp_path / "notify"))
        line.settimeout(5)
        yield line


def test_each_message_is_a_datagram(systemd: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    systemd_ = Systemd.from_environment(environ)
    assert systemd_ is not None
    systemd_.ready()
    systemd_.alive()
    systemd_.stopping()

    assert [systemd.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]
    assert systemd_.watchdog == 30.0
    # Processes that this one starts must not notify in its name.
    assert environ == {}


def test_a_socket_in_the_abstract_namespace_is_reached_too() -> None:
    name = f"tenure-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(f"\0{name}")
        line.settimeout(5)
        systemd_ = Systemd.from_environment({"NOTIFY_SOCKET": f"@{name}"})
        assert systemd_ is not None
        systemd_.ready()

        assert line.recv(100) == b"READY=1"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}])
def test_without_systemd_nothing_is_sent(environ: dict[str, str]) -> None:
    assert Systemd.from_environment(environ) is None


@pytest.mark.parametrize("length", ["", "0", "soon", "-1"])
def test_a_watchdog_interval_that_is_unset_or_invalid_is_ignored(length: str) -> None:
    systemd_ = Systemd.from_environment({"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": length})

    assert systemd_ is not None
    assert systemd_.watchdog is None


def test_the_watchdog_of_another_process_is_not_ours() -> None:
    environ = {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
    systemd_ = Systemd.from_environment(environ)

    assert systemd_ is not None
    assert systemd_.watchdog is None


def test_notifications_that_systemd_does_not_accept_are_lost(tmp_path: Path) -> None:
    folder = tmp_path / "socket"
    folder.mkdir()
    for address in (tmp_path / "nowhere", folder):
        systemd_ = Systemd.from_environment({"NOTIFY_SOCKET": str(address)})
        assert systemd_ is not None
        systemd_.ready()

    assert stat.S_ISDIR(folder.stat().st_mode)
