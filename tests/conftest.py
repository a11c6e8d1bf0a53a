"""The servers that tests ask for, and what becomes of these tests where there is none: never a silence."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers import REDIS, VALKEY, Brand, Commons, RedisServer, client_of

OWN = {"start_redis", "redis_server"}
"""Fixtures that start servers; for the others one will do that runs already."""

NEEDS = "needs a server: "

# --- the rule --------------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what needs a server on each make of it, and mark it so; on Valkey only where there is one."""
    if "brand" not in metafunc.fixturenames:
        return
    own = not OWN.isdisjoint(metafunc.fixturenames)
    brands = [pytest.param(REDIS, id="redis", marks=pytest.mark.redis)]
    if VALKEY.missing(own=own) is None:
        brands.append(pytest.param(VALKEY, id="valkey", marks=[pytest.mark.redis, pytest.mark.valkey]))
    metafunc.parametrize("brand", brands, indirect=True, scope="session")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Skip what needs a server that is not there."""
    if not isinstance(item, pytest.Function) or item.get_closest_marker("redis") is None:
        return
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    brand = parameters.get("brand", REDIS)
    assert isinstance(brand, Brand)
    reason = brand.missing(own=not OWN.isdisjoint(item.fixturenames))
    if reason is not None:
        item.add_marker(pytest.mark.skip(NEEDS + reason))


def pytest_report_header() -> list[str]:
    """Say which servers there are."""
    return [f"{brand.name}: {brand.url or brand.program or brand.missing(own=False)}" for brand in (REDIS, VALKEY)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not run for want of a server, and how to get one."""
    reasons = Counter[str]()
    for report in terminalreporter.stats.get("skipped", []):
        if isinstance(report, pytest.TestReport) and NEEDS in report.longreprtext:
            reasons[report.longreprtext.partition(NEEDS)[2].rstrip(")'")] += 1
    if reasons:
        terminalreporter.section("NOT TESTED: there was no server", sep="!", red=True, bold=True)
        for reason, count in reasons.items():
            terminalreporter.line(f"{count} tests were skipped: {reason}", red=True)
        terminalreporter.line("`make servers` installs one; the tests start and stop it themselves.", red=True)


def _needs(request: pytest.FixtureRequest, brand: Brand, *, own: bool) -> None:
    """See that who asks for a server is known as one who does; a fixture asked for by name alone hides that."""
    assert request.node.get_closest_marker("redis"), "mark this test, or this parameter, with `redis`"

    reason = brand.missing(own=own)
    if reason is not None:
        pytest.skip(NEEDS + reason)


# --- the servers -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def brand(request: pytest.FixtureRequest) -> Brand:
    """Return the make of server: a test that needs one runs on each make there is."""
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
    """Return what gives addresses on the shared server, each with a namespace of its own."""
    _needs(request, brand, own=False)
    commons: Commons = request.getfixturevalue("redis_commons")
    yield commons.claim
    commons.clear()


@pytest.fixture
def redis_url(redis_urls: Callable[[], str]) -> str:
    """Return an address on the shared server: the namespace is this test's own."""
    return redis_urls()


@pytest.fixture
def start_redis(request: pytest.FixtureRequest, brand: Brand, tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Return what starts servers of the test's own, with settings: `start_redis(appendonly=True)`."""
    _needs(request, brand, own=True)
    started: list[RedisServer] = []

    def start(**config: Any) -> RedisServer:
        started.append(RedisServer(tmp_path / f"{brand.name}-{len(started) + 1}", brand=brand, **config))
        started[-1].start()
        return started[-1]

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def redis_server(start_redis: Callable[..., RedisServer]) -> RedisServer:
    """Return a server of the test's own, that it may kill, freeze and set."""
    return start_redis()
