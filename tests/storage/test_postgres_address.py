"""The storage URL of a PostgreSQL: which parts it has, what is refused, and that no password is shown."""

import pytest

from tenure.errors import UsageError
from tenure.storage.postgres.address import read
from tenure.storage.postgres.storage import PostgresStorage
from tenure.storage.urls import locate

SERVER = "postgresql://ann:s3cret@db.example:6432/shop"


def test_an_address_has_a_schema_and_an_address_for_libpq() -> None:
    address = read(f"{SERVER}?schema=jobs&sslmode=require&connect_timeout=3")

    assert address.schema == "jobs"
    assert address.server == f"{SERVER}?sslmode=require&connect_timeout=3"
    assert address.listener == address.server


def test_the_schema_is_named_tenure_by_default() -> None:
    assert read("postgres://localhost").schema == "tenure"


@pytest.mark.parametrize(
    ("options", "listener"),
    [("", SERVER), ("?listen=off", None), ("?listen_url=postgresql%3A%2F%2Fann%3As3cret%40db%2Fshop", "other")],
)
def test_notifications_have_an_address_of_their_own(options: str, listener: str | None) -> None:
    address = read(SERVER + options)

    assert address.server == SERVER
    assert address.listener == ("postgresql://ann:s3cret@db/shop" if listener == "other" else listener)


def test_of_several_servers_the_one_that_accepts_writes_is_used() -> None:
    assert "target_session_attrs=read-write" in read("postgresql://one,two/shop").server
    assert "target_session_attrs=any" in read("postgresql://one,two/shop?target_session_attrs=any").server


def test_schemas_have_different_locks_and_channels() -> None:
    one, two = read(f"{SERVER}?schema=one"), read(f"{SERVER}?schema=two")

    assert len({one.gate, two.gate, one.migration_lock, two.migration_lock}) == 4
    assert one.channel != two.channel


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (f"{SERVER}?schema=Jobs", "schema='Jobs'"),
        (f"{SERVER}?schema=pg_jobs", "schema='pg_jobs'"),
        (f"{SERVER}?schema=", "schema=''"),
        (f"{SERVER}?schema=a%22b", "small letters"),
        (f"{SERVER}?listen=maybe", "listen='maybe'"),
        (f"{SERVER}?listen_url=redis%3A%2F%2Fhost", "listen_url"),
        (f"{SERVER}?namespace=jobs", "unknown option 'namespace'"),
        ("postgresql://ann:s3/cret@db/shop", "torn"),
        ("postgresql://ann:s3cret@db:many/shop", "the port .many."),
    ],
)
def test_a_bad_address_is_refused_without_its_password(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        locate(url)

    assert "cret" not in str(refused.value)


def test_no_password_is_shown() -> None:
    storage = PostgresStorage(read(f"{SERVER}?sslpassword=s3cret&password=s3cret&listen_url=postgresql://s3cret@db"))

    assert "s3cret" not in storage.url
    assert "s3cret" not in repr(read(SERVER))
