"""The proxy makes the faults that it is set to, and passes everything on without one."""

import gc
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from threading import Thread
from time import monotonic

import pytest

from tenure_testing.proxy import Proxy
from tests.servers import until

pytestmark = pytest.mark.system


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """Return a proxy before a server that echoes its input."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=serve, args=(server,), daemon=True).start()
        with Proxy(server.getsockname()[1]) as proxy:
            yield proxy
        server.shutdown(socket.SHUT_RDWR)


def serve(server: socket.socket) -> None:
    def echo(client: socket.socket) -> None:
        with client:
            while data := read(client):
                client.sendall(data)

    while True:
        try:
            client, _ = server.accept()
        except OSError:
            return
        Thread(target=echo, args=(client,), daemon=True).start()


def read(client: socket.socket) -> bytes:
    try:
        return client.recv(65_536)
    except ConnectionError:
        return b""


def joined(proxy: Proxy, patience: float = 5.0) -> "closing[socket.socket]":
    return closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=patience))


def echoed(client: socket.socket, said: bytes = b"hello") -> bytes:
    client.sendall(said)
    heard = b""
    while len(heard) < len(said):
        data = client.recv(65_536)
        if not data:
            break
        heard += data
    return heard


def is_silent(client: socket.socket) -> bool:
    client.settimeout(0.2)
    try:
        return client.recv(1) == b"?"  # an end would be b"", not silence
    except TimeoutError:
        return True


def test_the_proxy_passes_on_everything_both_ways_and_the_end_too(proxy: Proxy) -> None:
    with joined(proxy) as client:
        said = bytes(range(256)) * 4_000

        assert echoed(client, said) == said

        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    until(lambda: not proxy.lines, "the line to be taken down")


def test_latency_is_added_each_way_and_keeps_the_order(proxy: Proxy) -> None:
    with joined(proxy) as client:
        proxy.set_faults(latency=1.0, jitter=0.1)
        began = monotonic()
        said = b"0123456789" * 20
        for byte in said:
            client.sendall(bytes([byte]))
        heard = b""
        while len(heard) < len(said):
            heard += client.recv(1_000)

        assert heard == said
        assert monotonic() - began >= 2

        proxy.clean()
        began = monotonic()
        assert echoed(client) == b"hello"
        assert monotonic() - began < 2


def test_a_reply_is_cut_after_a_number_of_bytes_a_number_of_times(proxy: Proxy) -> None:
    proxy.set_faults(cut_after=3, cuts=1)
    with joined(proxy) as client:
        client.sendall(b"hello")
        heard = client.recv(10)

        assert heard == b"hel"
        assert read(client) == b""
    with joined(proxy) as client:
        assert echoed(client) == b"hello"


def test_a_reset_ends_connections_with_an_error_and_lets_new_ones_in(proxy: Proxy) -> None:
    with joined(proxy) as client:
        assert echoed(client) == b"hello"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    with joined(proxy) as client:
        assert echoed(client) == b"hello"

    assert proxy.accepted == 2


def test_a_swallowed_connection_stays_silent_and_a_later_one_works(proxy: Proxy) -> None:
    with joined(proxy) as before, joined(proxy) as unaware:
        assert echoed(before) == echoed(unaware) == b"hello"
        proxy.set_faults(swallow=True)
        with joined(proxy) as during:
            for client in (before, during):
                client.sendall(b"hello")
                assert is_silent(client)
            proxy.clean()
            for client in (before, during):
                client.sendall(b"hello")
                assert is_silent(client)
        assert echoed(unaware) == b"hello"
        with joined(proxy) as after:
            assert echoed(after) == b"hello"


def test_an_abandoned_connection_is_silent_while_new_ones_work(proxy: Proxy) -> None:
    with joined(proxy) as before:
        assert echoed(before) == b"hello"
        proxy.abandon()
        before.sendall(b"hello")
        assert is_silent(before)
        with joined(proxy) as after:
            assert echoed(after) == b"hello"


def test_held_data_arrives_when_the_faults_end(proxy: Proxy) -> None:
    with joined(proxy) as client:
        proxy.set_faults(hold=True)
        client.sendall(b"hello")
        assert is_silent(client)
        proxy.clean()
        client.settimeout(5)

        assert client.recv(10) == b"hello"


def test_a_proxy_refuses_and_accepts_again_at_the_same_port(proxy: Proxy) -> None:
    with joined(proxy) as client:
        assert echoed(client) == b"hello"
        for _ in range(3):
            proxy.set_faults(refuse=True)
            with pytest.raises(ConnectionRefusedError), joined(proxy):
                pass
            proxy.clean()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    with joined(proxy) as client:
        assert echoed(client) == b"hello"


def test_a_connection_without_a_server_is_reset(proxy: Proxy) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with Proxy(unused.getsockname()[1]) as lost, pytest.raises(ConnectionResetError), joined(lost) as client:
            client.recv(1)


def test_a_closing_proxy_leaves_no_new_connection_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(50):
            with ExitStack() as clients, Proxy(server.getsockname()[1]) as proxy:
                for _ in range(3):
                    # The system has accepted it; the proxy may not have looked yet.
                    clients.enter_context(joined(proxy))
            assert not proxy.lines
        gc.collect()  # a socket that is still open raises a warning here, which fails the test
