"""Tasks for the tests of compositions, and a fixture that runs them."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from tenure import FlowBroken, Reject, Tenure
from tenure.core.job import JobRecord, Ref
from tenure.storage.queries import Query
from tests.flow.conftest import FAST, Harness, RunScenario

FlowScenario = Callable[[Harness, "Steps"], Coroutine[Any, Any, None]]
RunFlow = Callable[[FlowScenario], None]


@dataclass
class Row:
    name: str
    size: int = 0


class Steps:
    """An app with tasks that note their runs. While a number is in `broken`, `double` rejects it."""

    def __init__(self, app: Tenure) -> None:
        self.app = app
        self.runs: list[str] = []
        self.broken: set[int] = set()

        @app.task(name="rows")
        async def rows(count: int) -> list[Row]:
            self.runs.append(f"rows({count})")
            return [Row(f"row {number}", number) for number in range(count)]

        @app.task(name="sizes")
        async def sizes(given: list[Row], *, least: int = 0) -> int:
            self.runs.append(f"sizes({len(given)})")
            return sum(row.size for row in given if row.size >= least)

        @app.task(name="double")
        async def double(number: int) -> int:
            self.runs.append(f"double({number})")
            if number in self.broken:
                raise Reject(f"{number} is broken")
            return number * 2

        @app.task(name="total", queue="sums")
        async def total(numbers: list[int], note: str | None = None) -> int:
            self.runs.append(f"total({numbers})")
            return sum(numbers)

        @app.task(name="text")
        async def text(value: int, after: str = "!") -> str:
            self.runs.append(f"text({value})")
            return f"{value}{after}"

        @app.task(name="note")
        async def note(what: str) -> str:
            self.runs.append(f"note({what})")
            return what

        @app.task(name="maybe")
        async def maybe(number: int | None = None) -> str:
            self.runs.append(f"maybe({number})")
            return f"got {number}"

        self.rows, self.sizes, self.double, self.total = rows, sizes, double, total
        self.text, self.note, self.maybe = text, note, maybe


@pytest.fixture
def run_flow(run_scenario: RunScenario) -> RunFlow:
    """Return a function that runs a scenario with a worker, on each storage."""

    def run(scenario: FlowScenario) -> None:
        async def main(harness: Harness) -> None:
            steps = Steps(harness.app(timing=FAST))
            await harness.start(steps.app.worker())
            await scenario(harness, steps)

        run_scenario(main)

    return run


async def records(harness: Harness) -> dict[str, JobRecord]:
    """Return the records of all jobs by their ids, without the hash of their flow: `~report` of `~3f..~report`."""
    page = await harness.storage.find(Query(limit=1_000))
    return {_short(job.ref): job for job in page.jobs}


async def ended(harness: Harness, count: int) -> None:
    """Wait until so many jobs have ended."""

    async def done() -> bool:
        return sum(job.finished is not None for job in (await records(harness)).values()) >= count

    await harness.until(done)


async def broken_flows(harness: Harness) -> list[tuple[str, str]]:
    """Return the ids of the flows that reported a failure, each with the first cause."""
    events = await harness.events_of(FlowBroken)
    return [(event.id, event.failure_cause.partition("~")[2].partition("~")[2]) for event in events]


def _short(ref: Ref) -> str:
    return "~" + ref.id.split("~", 2)[2] if ref.id.startswith("~") else ref.id
