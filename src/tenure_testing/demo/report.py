"""The reports of the demo: its progress while it runs, and its result at the end."""

from msgspec import Struct

from tenure.core.events import JobStalled, at_micros
from tenure_testing.demo.audit import Check
from tenure_testing.demo.evidence import Fault


class Progress(Struct, frozen=True, kw_only=True):
    """The progress of the jobs. `per_second`: jobs completed per second, over the last two seconds."""

    seconds: float
    jobs: int
    counts: dict[str, int]
    per_second: float
    workers: int


class RecoveryReport(Struct, frozen=True, kw_only=True):
    """A job recovered from a lost worker. `delay`: the seconds since the fault, None if the demo caused none."""

    job: str
    run: int
    reason: str
    worker: str
    pid: int | None
    delay: float | None


class Report(Struct, frozen=True, kw_only=True):
    """The whole result: the faults, the figures, and the checks of the audit."""

    ok: bool
    seed: int
    url: str
    kept: str | None
    jobs: int
    files: int
    seconds: float
    working_seconds: float
    core_seconds: float
    per_second: float
    counts: dict[str, int]
    runs: int
    faults: list[Fault]
    recoveries: list[RecoveryReport]
    post_mortem: str | None
    checks: list[Check]
    trouble: str | None = None
    stderr: list[str] = []


def recovery(event: JobStalled, faults: list[Fault]) -> RecoveryReport:
    """Return the report of a stall, with the fault that caused it."""
    cause = next((fault for fault in faults if fault.owner.id == event.owner), None)
    return RecoveryReport(
        job=event.id,
        run=event.run,
        reason=event.reason,
        worker=event.owner,
        pid=cause.owner.pid if cause else None,
        delay=(at_micros(event) - cause.at) / 1_000_000 if cause else None,
    )
