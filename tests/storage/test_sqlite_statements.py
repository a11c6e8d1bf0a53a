"""The statements: the shared verbs and the files of the dialect have the same names, and no parameter is positional."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

import tenure
from tenure.core.job import Key
from tenure.core.outcome import Returned
from tenure.core.settlement import settlement
from tenure.storage.protocol import ClaimRequest, LeaseRenewal, NewLogLine, RenewRequest
from tenure.storage.sql import exchange, renew
from tenure.storage.sqlite.database import Database
from tenure.storage.sqlite.locks import Locks, lock_file
from tenure.storage.sqlite.statements import STATEMENTS, positional
from tenure.storage.sqlite.transaction import SQLiteTransaction
from tests.storage.helpers import job, owner

T = TypeVar("T")

STORAGE = Path(tenure.__file__).parent / "storage"
FILES = {name.partition(".")[0] for name in STATEMENTS}
KEY = re.compile(rf"({'|'.join(sorted(FILES))})\.[a-z_]+")


def named_in(folder: str) -> Iterator[str]:
    """Yield the statements that the modules of a folder name."""
    for path in (STORAGE / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and KEY.fullmatch(node.value):
                yield node.value


def test_each_statement_of_the_shared_verbs_is_in_the_sql_files() -> None:
    assert set(named_in("sql")) - STATEMENTS.keys() == set()


def test_each_statement_of_a_verb_is_named_by_the_code() -> None:
    # The database names its session statements by variables.
    of_verbs = {name for name in STATEMENTS if not name.startswith("session.")}

    assert of_verbs - {*named_in("sql"), *named_in("sqlite")} == set()


def test_every_parameter_of_a_statement_is_named() -> None:
    assert [name for name, text in STATEMENTS.items() if re.search(r"\?", re.sub(r"--.*|'[^']*'", "", text))] == []


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_finds_the_values_of_its_parameters(name: str) -> None:
    text = re.sub(r"--.*|'[^']*'", "", STATEMENTS[name])
    names = re.findall(r":(\w+)", text)
    sql, order = positional(STATEMENTS[name])

    assert list(order({name: name for name in names})) == names
    assert re.sub(r"--.*|'[^']*'", "", sql).count("?") == len(names)


ME = owner()
BOUNDS = {"enqueue": 8, "exchange": 12}
"""How many statements a call of ten jobs with a concurrency key may take: over a network each takes a round trip."""


def keys(kind: str, number: int) -> tuple[Key, ...]:
    match kind:
        case "one key":
            return (Key("k", 100),)
        case "a key each":
            return (Key(f"k{number}", 1),)
        case "two keys each":
            return (Key(f"k{number}", 1), Key("all", 100))
        case _:
            # Of twenty jobs ten start, and ten are parked until these end.
            return (Key(f"k{number % 10}", 1),)


@pytest.mark.parametrize("kind", ["one key", "a key each", "two keys each", "full keys"])
def test_ten_jobs_with_keys_take_a_bounded_number_of_statements(tmp_path: Path, kind: str) -> None:
    path = str(tmp_path / "jobs.db")
    connection = Database(path, Locks(lock_file(path)), durability="fast", auto_migrate=True).writer()
    seen: list[str] = []
    taken: dict[str, int] = {}

    def run(do: Callable[[SQLiteTransaction], T], *, jobs: str = "") -> T:
        tx = SQLiteTransaction(connection)
        tx.now = 1_000_000 + len(taken)
        seen.clear()
        connection.set_trace_callback(seen.append)
        answer = do(tx)
        tx.flush()
        connection.set_trace_callback(None)
        taken[jobs] = len(seen)
        return answer

    ten = [job(f"a{number}", keys=keys(kind, number)) for number in range(10)]
    run(lambda tx: exchange.enqueue_all(tx, [ten]), jobs="enqueue")
    run(lambda tx: exchange.enqueue_all(tx, [[job(f"b{n}", keys=keys(kind, 10 + n)) for n in range(10)]]))
    # The first claim has room for all, and parks those whose keys are full.
    full = kind == "full keys"
    order = ClaimRequest(("q",), 20 if full else 10)
    first = run(lambda tx: exchange.exchange(tx, ME, [], order)).leases
    settlements = [settlement(lease, Returned(b"1"), Random(1)) for lease in first]
    answer = run(lambda tx: exchange.exchange(tx, ME, settlements, order), jobs="exchange")
    connection.close()

    assert len(first) == len(answer.leases) == 10
    assert {verdict.verdict for verdict in answer.verdicts} == {"done"}
    assert {name: count for name, count in taken.items() if count > BOUNDS.get(name, 100)} == {}


def test_a_beat_takes_as_many_statements_for_many_leases_as_for_one(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    connection = Database(path, Locks(lock_file(path)), durability="fast", auto_migrate=True).writer()
    tx = SQLiteTransaction(connection)
    tx.now = 1_000_000
    exchange.enqueue_all(tx, [[job(f"{number:03}") for number in range(100)]])
    leases = exchange.exchange(tx, ME, [], ClaimRequest(("q",), 100)).leases
    tx.flush()
    seen: list[str] = []
    connection.set_trace_callback(seen.append)
    counts: list[int] = []
    for held in (leases[:1], leases):
        seen.clear()
        log = (NewLogLine("info", "hello", {}), NewLogLine("info", "again", {}))
        renewals = tuple(LeaseRenewal(lease.ref, lease.fence, log=log, trace="here") for lease in held)
        answer = renew.renew(tx, RenewRequest(ME, renewals))
        counts.append(len(seen))
        assert answer.lost == ()
    connection.close()

    assert len(leases) == 100
    # Within the transaction the settings of the worker are read once.
    assert counts[1] <= counts[0] <= 6
