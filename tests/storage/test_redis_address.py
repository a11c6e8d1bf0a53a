"""Addresses of Redis and Valkey: which parts they have, what they must not show, and what is refused."""

import sys
from dataclasses import replace

import pytest

from tenure import Tenure
from tenure.errors import UsageError
from tenure.storage.redis.address import SCHEMES, Kind, Login, RedisAddress, ServerAddress, Tls, instead, read
from tenure.storage.urls import locate

PLAIN = read("redis://localhost")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://", replace(PLAIN, shown="redis://")),
        ("redis://localhost:6379", PLAIN),
        ("redis://localhost:6379/", PLAIN),
        ("valkey://localhost", PLAIN),
        ("redis://db.local:6380/3", replace(PLAIN, places=(ServerAddress("db.local", 6380),), db=3)),
        ("redis://db.local?db=3", replace(PLAIN, places=(ServerAddress("db.local", 6379),), db=3)),
        ("redis://[::1]:6380", replace(PLAIN, places=(ServerAddress("::1", 6380),))),
        ("redis://:p%40ss@localhost", replace(PLAIN, login=Login(None, "p@ss"))),
        ("redis://me:p@ss@localhost", replace(PLAIN, login=Login("me", "p@ss"))),
        ("redis://localhost?username=me&password=p%26", replace(PLAIN, login=Login("me", "p&"))),
        ("rediss://localhost", replace(PLAIN, tls=Tls())),
        ("valkeys://localhost", replace(PLAIN, tls=Tls())),
        (
            "rediss://localhost?ssl_ca_certs=/ca.pem&ssl_certfile=/me.pem&ssl_keyfile=/me.key&ssl_check_hostname=0",
            replace(PLAIN, tls=Tls("/ca.pem", "/me.pem", "/me.key", True, False)),
        ),
        ("rediss://localhost?ssl_cert_reqs=none", replace(PLAIN, tls=Tls(verify=False))),
        ("unix:///run/redis.sock", replace(PLAIN, places=(ServerAddress("/run/redis.sock", 0),))),
        ("unix:///run/redis.sock?db=2", replace(PLAIN, places=(ServerAddress("/run/redis.sock", 0),), db=2)),
        ("redis://localhost?namespace=shop", replace(PLAIN, namespace="shop")),
        ("redis://localhost?durability=replicated", replace(PLAIN, durability="replicated")),
        ("redis://localhost?allow_unchecked=1", replace(PLAIN, allow_unchecked=True)),
        (
            "redis+sentinel://:p@one,two:26380/mymaster/2?sentinel_password=s",
            replace(
                PLAIN,
                kind="sentinel",
                places=(ServerAddress("one", 26379), ServerAddress("two", 26380)),
                service="mymaster",
                db=2,
                login=Login(None, "p"),
                sentinel_login=Login(None, "s"),
            ),
        ),
        (
            "rediss+cluster://one:7000,[::1]:7001?partitions=4",
            replace(
                PLAIN,
                kind="cluster",
                places=(ServerAddress("one", 7000), ServerAddress("::1", 7001)),
                partitions=4,
                tls=Tls(),
            ),
        ),
        ("valkey+cluster://one/0", replace(PLAIN, kind="cluster", places=(ServerAddress("one", 6379),), partitions=16)),
    ],
)
def test_an_address_names_servers_and_credentials(url: str, expected: RedisAddress) -> None:
    address = read(url)

    assert address == replace(expected, url=url, shown=address.shown)


def test_a_cluster_has_partitions_and_anything_else_has_one() -> None:
    assert read("redis://localhost?namespace=shop").bases == ("{shop}",)
    assert read("redis+sentinel://localhost/main").bases == ("{tenure}",)
    assert read("redis+cluster://localhost?partitions=3").bases == ("{tenure:0}", "{tenure:1}", "{tenure:2}")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0?namespace=shop", "redis://localhost:6379/0?namespace=shop"),
        ("redis://:hidden@localhost/1", "redis://:***@localhost/1"),
        ("redis://me:hidden@localhost", "redis://me:***@localhost"),
        ("redis://me@localhost?password=hidden&db=1", "redis://me@localhost?password=***&db=1"),
        ("redis+sentinel://a,b/main?sentinel_password=hidden", "redis+sentinel://a,b/main?sentinel_password=***"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    address = read(url)

    assert address.shown == shown
    assert "hidden" not in repr(address) + repr(address.login) + str(address.sentinel_login)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("redis://localhost?namespce=shop", "unknown option 'namespce'"),
        ("redis://localhost?partitions=4", "unknown option 'partitions'"),
        ("redis://localhost?sentinel_password=x", "unknown option 'sentinel_password'"),
        ("redis://localhost?ssl_ca_certs=/ca.pem", "unknown option 'ssl_ca_certs'"),
        ("redis://localhost?namespace={a}", "without braces"),
        ("redis://localhost?namespace=a%00", "NUL"),
        ("redis://localhost?namespace=", "1 to 100 bytes"),
        ("redis://localhost?durability=full", '"ack" or "replicated"'),
        ("redis://localhost?allow_unchecked=yes", "use 1 or 0"),
        ("redis://localhost/main", "db='main'"),
        ("redis://localhost/0/1", "one number is the database"),
        ("redis://localhost:port", "port='port'"),
        ("redis://localhost:99999", "1 to 65,535"),
        ("redis://one,two", "redis+cluster://"),
        ("redis://localhost/0#1", "%23"),
        ("redis+cluster://one/1", "no databases"),
        ("redis+cluster://one?db=1", "names a database"),
        ("redis+cluster://", "without a name"),
        ("redis+cluster://one?partitions=0", "1 to 1,024"),
        ("redis+sentinel://one", "names no service"),
        ("redis+sentinel://one//0", "names no service"),
        ("rediss://localhost?ssl_cert_reqs=maybe", '"required" or "none"'),
        ("unix://run/redis.sock", "unix:///path"),
    ],
)
def test_an_invalid_address_is_refused_with_the_cause(url: str, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        locate(url)

    assert named in str(caught.value)


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as one:
        read("redis://localhost?partitions=4")
    with pytest.raises(UsageError) as many:
        read("rediss+cluster://localhost?namespce=shop")

    assert "here may be namespace, durability, allow_unchecked" in str(one.value)
    assert "partitions" not in str(one.value).partition("here may be")[2]
    assert "partitions" in str(many.value)
    assert "ssl_ca_certs" in str(many.value)


@pytest.mark.parametrize(
    ("url", "kind", "right"),
    [
        ("rediss://app:hidden@a/3?namespace=shop", "cluster", "rediss+cluster://app:***@b:7000?namespace=shop"),
        ("valkey+cluster://a?partitions=4&namespace=shop", "server", "valkey://b:7000?namespace=shop"),
        ("redis://:hidden@a?durability=ack", "sentinel", "redis+sentinel://:***@b:7000/NAME?durability=ack"),
    ],
)
def test_an_address_of_another_kind_keeps_user_tls_and_options(url: str, kind: Kind, right: str) -> None:
    assert instead(read(url), kind, ServerAddress("b", 7000)) == right


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hidden@localhost?no=1",
        "redis+other://:hidden@localhost",
        "amqp://a:hidden@b",
        "amqp://b?password=hidden",
        # In quotes, as in some environment files.
        '"redis://:hidden@localhost/0"',
        "'redis://localhost?password=hidden'",
        "redis://:hidden@[::1/0",
        "redis:/:hidden@localhost",
        "redis://:a/hidden@localhost",
        "redis://:7/hidden@localhost",
        "redis://:hidden?a@localhost",
        "redis://:a?b=hidden@localhost",
        "redis://:hidden#a@localhost",
        ":hidden@localhost",
        "sqlite://me:hidden@localhost/jobs.db",
    ],
)
def test_a_refusal_shows_no_password_either(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        Tenure(url)

    assert "hidden" not in str(caught.value)


def test_without_its_driver_the_refusal_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)

    for scheme in sorted(SCHEMES):
        rest = "/run/redis.sock" if scheme == "unix" else "localhost/main" if "sentinel" in scheme else "localhost"
        with pytest.raises(UsageError, match=r"pip install 'tenure\[redis\]'"):
            locate(f"{scheme}://{rest}")
