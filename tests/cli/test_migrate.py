"""`holdfast migrate`: from nothing, and again."""

from tests.cli.terminal import Terminal


def test_it_makes_a_database_and_does_nothing_the_second_time(there: Terminal) -> None:
    first, second = there.read("migrate"), there.read("migrate")

    assert first.keys() == {"url", "before", "after"}
    assert first["before"] == 0
    assert first["after"] >= 1
    assert second == {"url": there.url, "before": first["after"], "after": first["after"]}


def test_it_says_so_in_words(there: Terminal) -> None:
    assert "was brought from nothing to schema 2" in there.run("migrate").stdout
    assert "is at schema 2, nothing to do" in there.run("migrate").stdout
    assert there.run("migrate", "--quiet").stdout == ""
