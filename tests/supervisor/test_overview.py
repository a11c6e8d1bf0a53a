"""What a supervisor shows of its children, before there are any, and when its own loop is stuck."""

import socket

import pytest

from tenure.errors import StorageUnavailableError
from tenure.health.monitor import NoStorageYetError
from tenure.http.server import ListenAddress
from tenure.metrics import FENCED, MetricsRegistry
from tenure.storage.memory.storage import MemoryStorage
from tenure.supervisor.overview import LONGEST_AGE, SNAPSHOT_INTERVAL, Overview
from tenure.testing.clock import ManualClock


def test_a_stuck_supervisor_is_reported_dead_and_keeps_its_counts() -> None:
    clock, figures = ManualClock(), MetricsRegistry()
    overview = Overview(figures, clock)
    figures.count(FENCED, "settle")
    overview.take_snapshot([], stopping=False)
    clock.advance(LONGEST_AGE)

    assert overview.vitals().dead == ""
    assert overview.vitals().owners == ()

    clock.advance(SNAPSHOT_INTERVAL)
    stuck = overview.vitals()

    assert stuck.dead == "the supervisor's loop has not turned for 10.5 s"
    assert stuck.metrics == {("tenure_fenced_total", "settle"): (1.0,)}


async def test_the_overview_opens_a_storage_once_a_child_names_it_never_memory() -> None:
    overview = Overview(MetricsRegistry(), ManualClock())
    with pytest.raises(NoStorageYetError):
        await overview.opened()
    overview.storage = MemoryStorage()
    with pytest.raises(StorageUnavailableError, match="--no-supervisor"):
        await overview.opened()


def test_an_answer_does_not_wait_for_its_own_head_to_be_acknowledged() -> None:
    with ListenAddress("127.0.0.1", 0).bound() as listening, socket.create_connection(listening.getsockname()) as _:
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
