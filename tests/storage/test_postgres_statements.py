"""The statements of both SQL dialects: the shared verbs find each of them, with the same parameters."""

import re

import pytest

from tenure.storage.postgres.statements import NAMED, STATEMENTS
from tenure.storage.sqlite.statements import STATEMENTS as OF_SQLITE

OF_DIALECTS = ("session.", "health.", "intake.", "front.")
"""Statements in which the dialects differ: connections, transactions, users' calls, the doctor, fronts; not the
savepoints."""

IGNORED_BY_SQLITE = {"tally.count_one": {"since"}, "sweep.leases": {"now"}}
"""Parameters that one dialect does not need."""


def parameters(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w:]):([a-z_]+)", re.sub(r"--.*|'[^']*'", "", text)))


def of_verbs(statements: dict[str, str]) -> set[str]:
    return {name for name in statements if not name.startswith(OF_DIALECTS) or name.endswith("savepoint")}


def test_both_dialects_have_the_same_statements() -> None:
    assert of_verbs(STATEMENTS) == of_verbs(OF_SQLITE)


@pytest.mark.parametrize("name", sorted(of_verbs(OF_SQLITE)))
def test_a_statement_has_the_same_parameters_in_both_dialects(name: str) -> None:
    assert parameters(STATEMENTS[name]) == parameters(OF_SQLITE[name]) | IGNORED_BY_SQLITE.get(name, set())


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_each_parameter_is_sent_by_name(name: str) -> None:
    sent = set(re.findall(r"%\((\w+)\)s", NAMED[name].decode()))

    if name != "session.listen":
        assert sent == parameters(STATEMENTS[name])
    assert b"--" not in NAMED[name]
