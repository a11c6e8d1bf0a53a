"""Fixtures of all tests, above all servers. Where a server is missing, its tests are reported as not run."""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Protocol, TypeVar

import pytest

from tenure.storage.sqlite.storage import SQLiteStorage
from tenure.storage.urls import locate
from tenure_testing.postgres_programs import postgres_programs
from tests.browsers import browser_program, missing_browser
from tests.clusters import RedisCluster
from tests.postgres_servers import (
    PgBouncer,
    PostgresServer,
    Schemas,
    SharedSchema,
    missing_pgbouncer,
    missing_postgres,
    pgbouncer_program,
    postgres_url_given,
)
from tests.sentinels import RedisSentinels
from tests.servers import REDIS, VALKEY, Brand, Commons, RedisServer, client_of

OWN = {
    "redis": {"start_redis"},
    "cluster": {"start_cluster", "cluster_commons", "cluster_urls"},
    "sentinel": {"start_sentinels", "sentinel_commons", "sentinel_urls"},
}
"""By mark, the fixtures that start servers; the others can use a server that already runs."""

PGBOUNCER = {"pgbouncer_urls", "shared_pgbouncer", "start_pgbouncer"}
POSTGRES = {"postgres_urls", "start_postgres", "shared_schema", *PGBOUNCER}
"""The fixtures that need a PostgreSQL. Only `start_postgres` needs one that may be killed."""

NEEDS = "needs a server: "

ON_VALKEY = {
    "cli/test_doctor.py",
    "conformance/test_redis.py",
    "storage/test_redis_partial.py",
    "storage/test_redis_partitions_reading.py",
    "storage/test_redis_server_checks.py",
    "system/test_redis_cluster.py",
}
"""The tests that run on Valkey, too: those of the promises, and those of the servers. TENURE_TEST_VALKEY=all runs all
of them there, which takes some minutes more; use it for a new version of Valkey."""

if missing := [file for file in sorted(ON_VALKEY) if not (Path(__file__).parent / file).is_file()]:
    raise pytest.UsageError(f"ON_VALKEY names files that do not exist, so their tests do not run on Valkey: {missing}")

# --- logging ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def fronts_that_each_claim_advances(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each claim on PostgreSQL in this process set where the next begins to read: tests notice a job it skips."""
    if request.node.get_closest_marker("postgres") is not None:
        monkeypatch.setattr("tenure.storage.postgres.transaction.ADVANCE_EVERY", 0)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Restore the logging of the process after each test: blocks of the docs, apps and commands configure it."""
    manager = logging.root.manager
    factory, last_resort, disabled = logging.getLogRecordFactory(), logging.lastResort, manager.disable
    before = {logger: _logging_state(logger) for logger in _loggers()}
    yield
    logging.setLogRecordFactory(factory)
    logging.lastResort = last_resort
    if manager.disable != disabled:
        logging.disable(disabled)
    for logger in _loggers():
        # A logger that the test created is as new.
        kept = before.get(logger, (logging.NOTSET, True, False, [], []))
        if _logging_state(logger) != kept:
            level, logger.propagate, logger.disabled, logger.handlers[:], logger.filters[:] = kept
            logger.setLevel(level)


def _loggers() -> list[logging.Logger]:
    made = [*logging.root.manager.loggerDict.values()]
    return [logging.root, *(logger for logger in made if isinstance(logger, logging.Logger))]


def _logging_state(logger: logging.Logger) -> tuple[int, bool, bool, list[logging.Handler], list[Any]]:
    return logger.level, logger.propagate, logger.disabled, [*logger.handlers], [*logger.filters]


# --- which tests need a server ---------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that needs a server on each make of it, and mark it so.

    Where there is a Valkey, `ON_VALKEY` runs there too. Without one a test for Valkey alone is skipped: it must not
    disappear, and a skip fails CI.
    """
    if "brand" not in metafunc.fixturenames:
        return
    file = metafunc.definition.path.relative_to(Path(__file__).parent).as_posix()
    only = metafunc.definition.get_closest_marker("valkey") is not None
    too = file in ON_VALKEY or os.environ.get("TENURE_TEST_VALKEY") == "all"
    there = VALKEY.missing(own=_starts(metafunc.fixturenames, *OWN)) is None
    brands = [] if only else [pytest.param(REDIS, id="redis", marks=pytest.mark.redis)]
    if only or (too and there):
        brands.append(pytest.param(VALKEY, id="valkey", marks=[pytest.mark.redis, pytest.mark.valkey]))
    metafunc.parametrize("brand", brands, indirect=True, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Write each test's statements into the report: tests/statements.py counts those whose tests passed."""
    for item in items:
        for mark in item.iter_markers("statement"):
            item.user_properties += [("statement", str(number)) for number in mark.args]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test that requests a server by a fixture, and skip one whose server is missing."""
    if not isinstance(item, pytest.Function):
        return
    if not POSTGRES.isdisjoint(item.fixturenames):
        item.add_marker("postgres")
    if item.get_closest_marker("postgres") is not None:
        _skip(item, _missing_for(item.fixturenames))
    if item.get_closest_marker("browser") is not None:
        _skip(item, missing_browser())
    for kind in ("cluster", "sentinel"):
        if _starts(item.fixturenames, kind):
            item.add_marker(kind)
        if item.get_closest_marker(kind) is not None:
            item.add_marker("redis")
    if item.get_closest_marker("redis") is None:
        return
    _skip(item, _brand(item).missing(own=_starts(item.fixturenames, *OWN)))


def _skip(item: pytest.Item, reason: str | None) -> None:
    if reason is not None:
        item.add_marker(pytest.mark.skip(NEEDS + reason))


def _missing_for(fixtures: Iterable[str]) -> str | None:
    """Return which server for tests of PostgreSQL is missing, if any."""
    reason = missing_postgres(own="start_postgres" in fixtures)
    return reason if PGBOUNCER.isdisjoint(fixtures) else reason or missing_pgbouncer()


def _brand(item: pytest.Item) -> Brand:
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    brand = parameters.get("brand", REDIS)
    assert isinstance(brand, Brand)
    return brand


def pytest_report_header() -> list[str]:
    """Print the versions of the servers."""
    lines = [f"{brand.name}: {brand.url or brand.program or brand.missing(own=False)}" for brand in (REDIS, VALKEY)]
    given = "the server of TENURE_TEST_POSTGRES_URL" if postgres_url_given() else postgres_programs()
    lines.append(f"postgres: {missing_postgres(own=False) or given}")
    lines.append(f"browser: {missing_browser() or browser_program()}")
    lines.append(f"pgbouncer: {missing_pgbouncer() or pgbouncer_program()}")
    return lines


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print which tests were not run because a server is missing, and how to install it."""
    reasons = Counter[str]()
    for report in terminalreporter.stats.get("skipped", []):
        if isinstance(report, pytest.TestReport) and NEEDS in report.longreprtext:
            reasons[report.longreprtext.partition(NEEDS)[2].rstrip(")'")] += 1
    absent = VALKEY.missing(own=True)
    if absent is not None:
        terminalreporter.line(f"NOT TESTED: {VALKEY.untested} ({absent})", red=True, bold=True)
    if reasons:
        terminalreporter.section("NOT TESTED: there was no server", sep="!", red=True, bold=True)
        for reason, count in reasons.items():
            terminalreporter.line(f"{count} skipped: {reason}", red=True)
        terminalreporter.line("`make servers` installs one; the tests start and stop it themselves.", red=True)


def _starts(fixtures: Iterable[str], *kinds: str) -> bool:
    return any(not OWN[kind].isdisjoint(fixtures) for kind in kinds)


def _needs(request: pytest.FixtureRequest, brand: Brand, mark: str = "redis", *, own: bool = True) -> None:
    """Check that a test that requests a server has its mark: one that requests it while it runs needs it by hand."""
    assert request.node.get_closest_marker(mark), f"mark this test, or this parameter, with `{mark}`"

    reason = brand.missing(own=own)
    if reason is not None:
        pytest.skip(NEEDS + reason)


# --- a database ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty database to be copied: that takes less than half the time of creating another."""
    path = tmp_path_factory.mktemp("empty") / "tenure.db"

    async def make() -> None:
        storage = SQLiteStorage(path)
        await storage.open()
        await storage.close()

    asyncio.run(make())
    return path


# --- one server ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def brand(request: pytest.FixtureRequest) -> Brand:
    """Return the make of server: a test that needs one runs on each available make."""
    brand: Brand = getattr(request, "param", REDIS)
    return brand


@pytest.fixture(scope="session")
def redis_commons(brand: Brand, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commons]:
    """Return the server that the tests of a session share."""
    if brand.url is not None:
        with client_of(brand.url) as client:
            yield Commons(brand.url, lambda: [client])
    else:
        with RedisServer(tmp_path_factory.mktemp(brand.name), brand=brand) as server:
            yield Commons(server.url, lambda: [server.client])


@pytest.fixture
def redis_urls(request: pytest.FixtureRequest, brand: Brand) -> Iterator[Callable[[], str]]:
    """Return a function that returns addresses on the shared server, each with its own namespace."""
    _needs(request, brand, own=False)
    yield from _namespaces(request.getfixturevalue("redis_commons"))


@pytest.fixture
def redis_url(redis_urls: Callable[[], str]) -> str:
    """Return an address on the shared server: the namespace is this test's own."""
    return redis_urls()


@pytest.fixture
def start_redis(request: pytest.FixtureRequest, brand: Brand, tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Return a function that starts servers of the test's own, with settings: `start_redis(appendonly=True)`."""
    _needs(request, brand)
    yield from _starting(RedisServer, tmp_path / "servers", brand)


@pytest.fixture
def redis_server(start_redis: Callable[..., RedisServer]) -> RedisServer:
    """Return a server of the test's own, which it may kill, freeze and configure."""
    return start_redis()


# --- a cluster -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def cluster_commons(brand: Brand, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commons]:
    """Return the cluster that the tests of a session share: three masters."""
    with RedisCluster(tmp_path_factory.mktemp("cluster"), brand=brand) as cluster:
        yield Commons(cluster.url, lambda: [node.client for node in cluster.nodes])


@pytest.fixture
def cluster_urls(request: pytest.FixtureRequest, brand: Brand) -> Iterator[Callable[[], str]]:
    """Return a function that returns addresses on the shared cluster, each with its own namespace."""
    _needs(request, brand, "cluster")
    yield from _namespaces(request.getfixturevalue("cluster_commons"))


@pytest.fixture
def cluster_url(cluster_urls: Callable[[], str]) -> str:
    """Return an address on the shared cluster: the namespace is this test's own."""
    return cluster_urls()


@pytest.fixture
def start_cluster(
    request: pytest.FixtureRequest, brand: Brand, tmp_path: Path
) -> Iterator[Callable[..., RedisCluster]]:
    """Return a function that starts clusters of the test's own: `start_cluster(replicas=1)`."""
    _needs(request, brand, "cluster")
    yield from _starting(RedisCluster, tmp_path / "clusters", brand)


@pytest.fixture
def redis_cluster(start_cluster: Callable[..., RedisCluster]) -> RedisCluster:
    """Return a cluster of the test's own, whose slots it may move; its masters have no replicas."""
    return start_cluster()


# --- a master and its sentinels --------------------------------------------------------------------


@pytest.fixture(scope="session")
def sentinel_commons(brand: Brand, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commons]:
    """Return the sentinels, and the servers that they watch, that the tests of a session share."""
    with RedisSentinels(tmp_path_factory.mktemp("sentinels"), brand=brand) as sentinels:
        yield Commons(sentinels.url, lambda: [sentinels.master.client])


@pytest.fixture
def sentinel_urls(request: pytest.FixtureRequest, brand: Brand) -> Iterator[Callable[[], str]]:
    """Return a function that returns addresses of the shared sentinels, each with its own namespace."""
    _needs(request, brand, "sentinel")
    yield from _namespaces(request.getfixturevalue("sentinel_commons"))


@pytest.fixture
def sentinel_url(sentinel_urls: Callable[[], str]) -> str:
    """Return an address of the shared sentinels: the namespace is this test's own."""
    return sentinel_urls()


@pytest.fixture
def start_sentinels(
    request: pytest.FixtureRequest, brand: Brand, tmp_path: Path
) -> Iterator[Callable[..., RedisSentinels]]:
    """Return a function that starts masters with sentinels of the test's own: `start_sentinels(replicas=1)`."""
    _needs(request, brand, "sentinel")
    yield from _starting(RedisSentinels, tmp_path / "sentinels", brand)


@pytest.fixture
def redis_sentinels(start_sentinels: Callable[..., RedisSentinels]) -> RedisSentinels:
    """Return a master with two replicas and three sentinels, the test's own: it may kill any of them."""
    return start_sentinels()


# --- PostgreSQL ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres_schemas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Schemas]:
    """Return the database that the tests of a session share."""
    given = postgres_url_given()
    if given is not None:
        yield Schemas(given)
    else:
        with PostgresServer(tmp_path_factory.mktemp("postgres")) as server:
            yield Schemas(server.url)


@pytest.fixture
def postgres_urls(request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """Return a function that returns addresses on the shared server, each with its own schema."""
    _needs_postgres(request)
    schemas: Schemas = request.getfixturevalue("postgres_schemas")
    yield schemas.claim
    schemas.clear()


@pytest.fixture
def postgres_url(postgres_urls: Callable[[], str]) -> str:
    """Return an address on the shared server: the schema is this test's own and does not exist yet."""
    return postgres_urls()


@pytest.fixture(scope="session")
def shared_schema(postgres_schemas: Schemas) -> Iterator[SharedSchema]:
    """Return a schema that the tests of a session use one after another."""
    schemas = Schemas(postgres_schemas.url)
    url = schemas.claim()

    async def make() -> None:
        storage = locate(url)
        await storage.open()
        await storage.close()

    asyncio.run(make())
    shared = SharedSchema(url)
    yield shared
    shared.close()
    schemas.clear()


@pytest.fixture
def empty_schema(shared_schema: SharedSchema) -> str:
    """Return the address of a schema with no jobs, which the test uses alone."""
    shared_schema.empty()
    return shared_schema.url


@pytest.fixture
def start_postgres(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., PostgresServer]]:
    """Return a function that starts the test's own servers, with settings: `start_postgres(durable=True)`."""
    _needs_postgres(request)
    with ExitStack() as servers:

        def start(**options: Any) -> PostgresServer:
            server = PostgresServer(Path(mkdtemp(dir=tmp_path, prefix="postgres-")), **options)
            return servers.enter_context(server)

        yield start


@pytest.fixture
def postgres_server(start_postgres: Callable[..., PostgresServer]) -> PostgresServer:
    """Return a server of the test's own, which it may kill, freeze and configure, and which may have standbys."""
    return start_postgres()


@pytest.fixture(scope="session")
def shared_pgbouncer(postgres_schemas: Schemas, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PgBouncer]:
    """Return the PgBouncer before the database that the tests of a session share."""
    with PgBouncer(tmp_path_factory.mktemp("pgbouncer"), postgres_schemas.url) as pgbouncer:
        yield pgbouncer


@pytest.fixture
def pgbouncer_urls(request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """Return a function that returns addresses on the shared server through PgBouncer, each with its own schema."""
    _needs_postgres(request)
    schemas: Schemas = request.getfixturevalue("postgres_schemas")
    pgbouncer: PgBouncer = request.getfixturevalue("shared_pgbouncer")
    yield lambda: schemas.claim(pgbouncer.url)
    schemas.clear()


@pytest.fixture
def pgbouncer_url(pgbouncer_urls: Callable[[], str]) -> str:
    """Return an address on the shared server through PgBouncer in transaction mode, with a schema of its own."""
    return pgbouncer_urls()


@pytest.fixture
def start_pgbouncer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., PgBouncer]]:
    """Return a function that starts PgBouncers: `start_pgbouncer(postgres_server.url, default_pool_size=1)`."""
    _needs_postgres(request)
    with ExitStack() as started:

        def start(target: str, **settings: Any) -> PgBouncer:
            pgbouncer = PgBouncer(Path(mkdtemp(dir=tmp_path, prefix="pgbouncer-")), target, **settings)
            return started.enter_context(pgbouncer)

        yield start


def _needs_postgres(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("postgres"), "mark this test, or this parameter, with `postgres`"
    reason = _missing_for([request.fixturename or ""])
    if reason is not None:
        pytest.skip(NEEDS + reason)


# --- all of them -----------------------------------------------------------------------------------


def _namespaces(commons: Commons) -> Iterator[Callable[[], str]]:
    yield commons.claim
    commons.clear()


class _Startable(Protocol):
    def __init__(self, folder: Path, *, brand: Brand, **options: Any) -> None: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...


Started = TypeVar("Started", bound=_Startable)


def _starting(kind: type[Started], folder: Path, brand: Brand) -> Iterator[Callable[..., Started]]:
    """Return a function that starts servers of a kind; they end with the test."""
    made: list[Started] = []

    def start(**options: Any) -> Started:
        made.append(kind(folder / str(len(made) + 1), brand=brand, **options))
        made[-1].start()
        return made[-1]

    yield start
    for job in made:
        job.kill()
