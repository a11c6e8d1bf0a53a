"""The PostgreSQL storage passes main parts of the suite through PgBouncer: it does not depend on sessions."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from urllib.parse import quote, urlsplit

import pytest

from tenure.core.events import JobRepaired
from tenure.storage.protocol import Storage
from tenure.testing import ManualClock
from tenure_testing.conformance.claim_numbers import ClaimNumbersConformance
from tenure_testing.conformance.crashes import CrashesConformance
from tenure_testing.conformance.enqueue import EnqueueConformance
from tenure_testing.conformance.events import EventsConformance
from tenure_testing.conformance.exchange import ClaimConformance, SettleConformance
from tenure_testing.conformance.helpers import events_of
from tenure_testing.conformance.notices import NoticesConformance
from tenure_testing.conformance.reclaim import ReclaimConformance
from tenure_testing.conformance.renew import RenewConformance
from tenure_testing.conformance.sweep import ElectionConformance
from tests.conformance.test_postgres import OneStorage
from tests.postgres_servers import PgBouncer, SharedSchema


@pytest.fixture(scope="module")
def one(shared_schema: SharedSchema, shared_pgbouncer: PgBouncer) -> Iterator[OneStorage]:
    """Return the storage of all tests. Its notifications come from the server itself."""
    direct = shared_schema.url.partition("?")[0]
    through = shared_schema.url.replace(urlsplit(direct).netloc, urlsplit(shared_pgbouncer.url).netloc)
    one = OneStorage(shared_schema, f"{through}&listen_url={quote(direct, safe='')}")
    yield one
    asyncio.run(one.storage.close())


@pytest.mark.postgres
class TestPgBouncer(
    EnqueueConformance,
    ClaimConformance,
    SettleConformance,
    ClaimNumbersConformance,
    RenewConformance,
    ElectionConformance,
    ReclaimConformance,
    CrashesConformance,
    EventsConformance,
    NoticesConformance,
):
    """The parts that show each verb. Everything else runs in the same transactions; the whole suite also passes, but
    takes too long to run each time."""

    @pytest.fixture
    async def storage(self, clock: ManualClock, one: OneStorage) -> AsyncIterator[Storage]:
        storage = await one.begin(clock)
        yield storage
        assert await events_of(storage, JobRepaired) == []
