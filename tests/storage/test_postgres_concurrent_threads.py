"""Eight threads on one schema, each with its own storage and the real clock: the invariants must hold."""

import psycopg
import pytest

from tenure.storage.postgres.address import read
from tenure.storage.postgres.storage import PostgresStorage
from tests.storage.concurrent_threads import run_threads


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.statement(76, 77, 78)
def test_eight_threads_on_one_schema_keep_the_invariants(postgres_url: str) -> None:
    run_threads(lambda: PostgresStorage(read(postgres_url)))

    address, _, schema = postgres_url.partition("?schema=")
    with psycopg.connect(address) as connection:
        for table in ("slot", "key", "job_live"):
            assert connection.execute(f"SELECT count(*) FROM {schema}.{table}".encode()).fetchone() == (0,)
