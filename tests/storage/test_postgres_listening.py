"""A process learns of the jobs of others by LISTEN. Without notifications it says so once, and polls."""

import asyncio
import logging
from collections.abc import Callable
from urllib.parse import quote

import pytest

from tenure.storage.postgres.address import read
from tenure.storage.postgres.storage import PostgresStorage
from tenure.storage.protocol import queue_topic
from tenure_testing.conformance.helpers import QUEUE, new_job
from tests.postgres_servers import PgBouncer, PostgresServer

pytestmark = pytest.mark.postgres

PATIENCE = 30.0
SILENT = "passes on no notifications"


async def hear_two_jobs(url: str) -> None:
    """Wait for notifications of two jobs, one after the other, that another process could have enqueued."""
    here, there = PostgresStorage(read(url)), PostgresStorage(read(url))
    await there.open()
    listener = here.notices([queue_topic(QUEUE)])
    try:
        async with asyncio.timeout(PATIENCE):
            await anext(listener)
            for number in range(2):
                await there.enqueue([new_job(f"job-{number}")])
                await anext(listener)
    finally:
        for storage in (here, there):
            await storage.close()


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelno >= logging.WARNING]


async def test_a_process_behind_pgbouncer_logs_once_that_it_polls(
    pgbouncer_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await hear_two_jobs(pgbouncer_url)

    [line] = warnings(caplog)
    assert SILENT in line
    assert "listen_url=" in line
    assert "listen=off" in line


@pytest.mark.parametrize("way", ["listen_url", "off"])
async def test_a_direct_address_or_no_listen_brings_no_warning(
    pgbouncer_url: str, postgres_url: str, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    direct = quote(postgres_url.partition("?")[0], safe="")

    await hear_two_jobs(f"{pgbouncer_url}&{'listen=off' if way == 'off' else f'listen_url={direct}'}")

    assert warnings(caplog) == []


async def test_pgbouncer_in_session_mode_passes_notifications_on(
    postgres_server: PostgresServer, start_pgbouncer: Callable[..., PgBouncer], caplog: pytest.LogCaptureFixture
) -> None:
    await hear_two_jobs(start_pgbouncer(postgres_server.url, pool_mode="session").url)

    assert warnings(caplog) == []
