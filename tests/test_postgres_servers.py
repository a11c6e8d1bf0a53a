"""The PostgreSQL and PgBouncer of the tests start, fail on command and leave nothing behind."""

from tests.postgres_servers import PostgresServer


def test_a_url(postgres_url: str) -> None:
    print(postgres_url)


def test_standby(postgres_server: PostgresServer) -> None:
    s2 = postgres_server
    r = s2.standby(synchronous=True)
    s2.execute("create table t(a int)")
    r.wait_for(s2)
    s2.kill()
    r.promote()
    r.execute("insert into t values (1)")
