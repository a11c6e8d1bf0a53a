"""Numbers on the pages equal those of the code. Each text is compared as a whole, so a new number changes both."""

import inspect
import json
import re
from datetime import timedelta
from pathlib import Path

import pytest

from tenure import Timing
from tenure.core.lifecycle import State
from tenure.core.retention import EVENTS_KEPT, KEPT, KeepRule
from tenure.maintenance.lost_runs import FREE_DEATHS
from tenure.storage.protocol import LOG_LINES_KEPT, RUNS_KEPT, Storage
from tenure.storage.sql.writer import CALL_TIMEOUT
from tenure.supervisor.supervisor import KILL_AFTER_DRAIN, RECOVERY_TIMEOUT
from tenure_testing.demo.__main__ import demo
from tests.amounts import AMOUNTS

ROOT = Path(__file__).parent.parent.parent
DEFAULT, FAST = Timing(), Timing.fast()
DAY = 86_400_000_000


def seconds(length: timedelta) -> str:
    """Return a duration as the pages write it: "27 s"."""
    return f"{length.total_seconds():g} s"


def kept(rule: KeepRule) -> str:
    """Return the age of a rule as the pages write it: "7 d"."""
    return f"{rule.age // DAY} d" if rule.age >= DAY else f"{rule.age * 24 // DAY} h"


def text(page: str) -> str:
    """Return a page with its lines joined."""
    return re.sub(r"\s+", " ", (ROOT / page).read_text())


def verbs() -> int:
    """Return how many verbs the storage protocol has."""
    found = {name for name, verb in vars(Storage).items() if inspect.iscoroutinefunction(verb)}
    return len(found - {"open", "close", "examine"})


def on_record(name: str) -> int:
    """Return a number of the recorded simulation."""
    number: int = json.loads((ROOT / "docs/evidence/simulation.json").read_text())[name]
    return number


def worlds_in_ci() -> int:
    """Return how many worlds CI simulates."""
    found = re.search(r"simulate SEEDS=(\d+)", (ROOT / ".ci/run").read_text())
    assert found is not None
    return int(found[1])


def measured() -> dict[str, int]:
    """Return the empty jobs a second that the benchmark page has for each queue that acknowledges after the work."""
    page = (ROOT / "docs/benchmarks/README.md").read_text()
    found: dict[str, int] = {}
    for section in page.split("### Process no-op jobs")[1:]:
        # A line in italics begins the queues of another kind.
        rows = re.split(r"^\| \*[^*]", section, maxsplit=1, flags=re.MULTILINE)[0]
        for name, rate in re.findall(r"^\| (?!-)([^|]+?) \| ([\d,]+) ", rows, re.MULTILINE):
            found.setdefault(name.partition(" (")[0].strip("*"), int(rate.replace(",", "")))
    return found


RATES = measured()
FASTEST_OTHER = max(rate for name, rate in RATES.items() if "Tenure" not in name and "SQLite" not in name)
ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth"}
COMPLETED, FAILED, CANCELLED = KEPT[State.COMPLETED], KEPT[State.FAILED], KEPT[State.CANCELLED]
JOBS = next(option.default for option in demo.params if option.name == "jobs")

TEXTS = [
    ("README.md", f"within a stated time: {seconds(DEFAULT.recovery_bound)} by default"),
    ("README.md", f"runs {JOBS:,} jobs of real work"),
    (
        "README.md",
        f"{RATES['Tenure'] // 1000},000 empty jobs a second on Redis and "
        f"{RATES['Tenure on SQLite'] // 1000},000 on SQLite,",
    ),
    ("README.md", f"On Redis that is {RATES['Tenure'] // FASTEST_OTHER} times the fastest other Python queue"),
    (
        "docs/guarantee.md",
        f"completed: after {kept(COMPLETED)}, or beyond the newest {COMPLETED.count:,}; failed: {kept(FAILED)}; "
        f"cancelled and expired: {kept(CANCELLED)};",
    ),
    ("docs/guarantee.md", f"its events, for {kept(EVENTS_KEPT)} or {EVENTS_KEPT.count:,} of them"),
    ("docs/guarantee.md", f"Each sweep (every {seconds(DEFAULT.sweep)})"),
    ("docs/guarantee.md", "a tenth more, and at least 100 more"),
    ("docs/guarantee.md", f"keeps its newest {LOG_LINES_KEPT:,} lines"),
    ("docs/guarantee.md", f"keeps the newest {RUNS_KEPT} runs"),
    ("docs/guarantee.md", f"with the next sweep of any worker or reaper: {seconds(DEFAULT.sweep)} by default"),
    ("docs/guarantee.md", f"as if its host was lost: within {seconds(DEFAULT.recovery_bound)} by default"),
    (
        "docs/guarantee.md",
        f"within lease + grace + 2 sweeps: {seconds(DEFAULT.recovery_bound)} by default, "
        f"{seconds(FAST.recovery_bound)} with `Timing.fast()`",
    ),
    ("docs/guarantee.md", f"storage's next answer, if that comes within {RECOVERY_TIMEOUT:g} s"),
    ("docs/guarantee.md", f"by the worker's next claim or beat ({seconds(DEFAULT.beat)})"),
    ("docs/guarantee.md", f"for up to `max_block` ({DEFAULT.max_block.total_seconds() / 60:g} min)"),
    ("docs/guarantee.md", f"gone within its drain and {int(KILL_AFTER_DRAIN)} s"),
    ("docs/guarantee.md", f"dies for the {ORDINALS[FREE_DEATHS + 1]} time in a row"),
    ("docs/guarantee.md", f"`StorageUnavailableError` after {CALL_TIMEOUT:g} s"),
    ("docs/guarantee.md", f"A run over {on_record('seeds'):,} seeds is [on record]"),
    ("docs/guarantee.md", f"the {worlds_in_ci():,} worlds that CI runs on each change"),
    ("docs/guarantee.md", f"`make simulate SEEDS={worlds_in_ci()}`"),
    ("docs/architecture.md", f"storage/protocol.py: {verbs()} verbs"),
]


@pytest.mark.parametrize(("page", "expected"), TEXTS, ids=lambda value: value[:50])
def test_a_number_on_a_page_is_that_of_the_code(page: str, expected: str) -> None:
    assert expected in text(page)


def test_the_amounts_on_the_page_are_those_of_the_tests() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| ([^|,]+),[^|]* \| (\d+) \| (\d+) \| `make test-full", page, re.MULTILINE)

    assert {what: (int(usual), int(full)) for what, usual, full in rows} == AMOUNTS
