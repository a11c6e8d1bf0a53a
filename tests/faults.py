"""Prints the faults of earlier systems with the tests that show we do not have them, or why we cannot so far.

    python tests/faults.py

A test names its faults by a marker, `@pytest.mark.fault("F1", "W-T1")`. The exit status is 1 while one of them has
neither a test nor a reason.

F: measured or found in several systems. W-T: taskora. W-B: BullMQ. W-N: bunqueue. W-P: platformatic.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACES = (ROOT / "tests", ROOT / "src" / "tenure_testing")

REDIS = "only on Redis, which comes with issue 5"
VERSIONS = "which versions are still in use is not asked so far; it comes with a later issue"
WORKFLOWS = "workflows, and jobs that wait for others, come with a later issue"


@dataclass(frozen=True)
class Fault:
    """What goes wrong there. `later`: why all of it, or a part of it, cannot happen here yet."""

    words: str
    later: str = ""


FAULTS: dict[str, Fault] = {
    "F1": Fault("a job that completed between two stall checks is revived and runs again"),
    "F2": Fault("with 8,000 active jobs the stall check fails, and nothing is ever recovered again"),
    "F3": Fault("a counter of slots is not taken back on every way out of a run: a slot is lost for ever"),
    "F4": Fault("the clocks of clients and reapers decide what has expired"),
    "F5": Fault("a recovery in several steps: a crash between them loses the job, two reapers double it"),
    "F6": Fault("a lease without renewal: a longer run runs twice"),
    "F7": Fault("dead workers are found after an hour only, and a stale worker's result lands on a newer run"),
    "F8": Fault("jobs that are merely long count as dead after an hour"),
    "F9": Fault("stalled jobs are only listed; the user has to recover them"),
    "F10": Fault("a stalled job of a schedule is dropped; a stall is charged to the attempts"),
    "F11": Fault("after a restart of Redis every script is unknown, and none is loaded again", REDIS),
    "F12": Fault("a handler that blocks the event loop starves its own heartbeat"),
    "F13": Fault("after an outage of the storage no worker reconnects"),
    "W-T1": Fault("no state is read when a stalled candidate is put back: acknowledged jobs run again"),
    "W-T2": Fault("all active jobs are handed to one call: from 8,000 on recovery stops"),
    "W-T3": Fault("a migration deletes the queue before the copy has succeeded"),
    "W-T4": Fault("ends by stall or expiry skip what other ends do: metrics, keys, workflows", WORKFLOWS),
    "W-T5": Fault("a stop ends the renewals first, and interrupts handlers that it should let finish"),
    "W-T6": Fault("a job that a claim brings back after the stop is dropped"),
    "W-T7": Fault("a lost lease stops no handler; leases are renewed one by one"),
    "W-T8": Fault("lease and renewal are constants, and half a minute of a blocked loop always stalls"),
    "W-T9": Fault("several reapers: a job that one has just suspected the next one takes, without grace"),
    "W-T10": Fault("jobs with a priority are served last, and starve under plain load"),
    "W-T11": Fault("a high priority loses the order of arrival; ties are broken at random"),
    "W-T12": Fault("blocked jobs lose their place, and hide the free ones behind them"),
    "W-T13": Fault("slots are counters that some ways out of a run do not count down"),
    "W-T14": Fault("a de-duplication key is deleted by a job that it does not name any more"),
    "W-T15": Fault("an expired job keeps no error, and is never trimmed"),
    "W-T16": Fault("a wait for a job that expired, or was deleted, never ends"),
    "W-T17": Fault("the trim is slower than the work, and the storage grows without bound"),
    "W-T18": Fault("a zombie's progress and log overwrite a newer run's, or recreate a part of a deleted job"),
    "W-T19": Fault("a schedule is lost when its leader dies in its tick"),
    "W-T20": Fault("schedules drift, accumulate copies, and do not continue after a stop"),
    "W-T21": Fault("a collected batch loses the handles of earlier pushes"),
    "W-T22": Fault("a steady stream postpones a debounced job for ever"),
    "W-T23": Fault("events name another attempt than their own; slow readers silently miss some"),
    "W-T24": Fault("a job that a worker cannot run is claimed and put back without end"),
    "W-T25": Fault("a claim that fails is repeated at once: a busy loop while the storage refuses"),
    "W-T26": Fault("the worker does not check arguments that the client did not"),
    "W-T27": Fault("a payload migration silently skips a step"),
    "W-T28": Fault("a workflow stops when its dispatcher dies", WORKFLOWS),
    "W-T29": Fault("every script gets the time from its client"),
    "W-T30": Fault("after a timeout the handler continues, and its retry runs at the same time"),
    "W-T31": Fault("a redriven job keeps the stalls and the expiry from before"),
    "W-T32": Fault("connections and polls grow with the number of tasks"),
    "W-T33": Fault("to know whether a version is still in use is to read every job", VERSIONS),
    "W-B1": Fault("a job that stalled too often fails only once a worker fetches it"),
    "W-B2": Fault("each check and each end of a job walks through all active jobs"),
    "W-B3": Fault("a lost lease is an event only; the handler runs on"),
    "W-B4": Fault("the jobs of a dead worker hold their slots for a minute"),
    "W-B5": Fault("jobs are kept for ever, and the first trim stops everything"),
    "W-B6": Fault("a failed child leaves its parent waiting for ever", WORKFLOWS),
    "W-B7": Fault("a schedule makes its next job when the one before starts: the cadence collapses"),
    "W-B8": Fault("a fixed window lets twice the rate pass at its edge"),
    "W-B9": Fault("a cancel reaches only the workers of its own process"),
    "W-B10": Fault("keys without a hash tag do not work in a cluster", REDIS),
    "W-B11": Fault("delays are reckoned from clients' clocks"),
    "W-B12": Fault("prioritized jobs starve under plain load, and the lower number goes first"),
    "W-B13": Fault("a closing worker waits without limit"),
    "W-B14": Fault("a waiting caller relies on a stream of events and misses trimmed ones"),
    "W-N1": Fault("a job that runs for half an hour is deleted, its slot lost, in spite of its heartbeats"),
    "W-N2": Fault("jobs that wait for long are deleted", f"dependencies: {WORKFLOWS}"),
    "W-N3": Fault("of more than a thousand keys the older half is forgotten, and their limits with them"),
    "W-N4": Fault("an expiry leaks slot and key, and what it counted is lost in a restart"),
    "W-N5": Fault("two leases at once: the old token is still valid while a new run continues"),
    "W-N6": Fault("two detectors of stalls with two rules"),
    "W-N7": Fault("the stall count in the event is one off, and no worker is woken for a recovered job"),
    "W-N8": Fault("an expired token is accepted, and frees the slot a second time"),
    "W-N9": Fault("a draining worker renews nothing"),
    "W-N10": Fault("an expired job leaves no record and no reason, and comes back in a restart"),
    "W-N11": Fault("a busy group at the head stops its whole queue"),
    "W-N12": Fault("polls that find nothing use up the rate"),
    "W-N13": Fault("what was accepted is lost in a crash"),
    "W-N14": Fault("a timer of more than 24.8 days fires at once, in a busy loop"),
    "W-N15": Fault("all active jobs are scanned every five seconds, three times"),
    "W-N16": Fault("workflows live in one process and are recovered by hand", WORKFLOWS),
    "W-N17": Fault("a worker that claims a job whose earlier run it still holds drops it"),
    "W-N18": Fault("each process has a rate of its own"),
    "W-N19": Fault("stall counts are not kept, so a job that kills its process restarts for ever"),
    "W-P1": Fault("nothing is renewed, nothing fenced: a job of more than 30 s runs twice, and the last result wins"),
    "W-P2": Fault("jobs are found through a register of workers that itself expires"),
    "W-P3": Fault("a stop deletes what still runs"),
    "W-P4": Fault("a claim in several steps: a crash between them hides the job from the reaper"),
    "W-P5": Fault("a colon in an id hides the job from events and reaper"),
    "W-P6": Fault("retries and cancels never reach listeners, completions reach them twice"),
    "W-P7": Fault("one result with a short lifetime deletes all the others"),
    "W-P8": Fault("a recovery that does not look at what it removed: doubled by two reapers, lost in a crash"),
    "W-P9": Fault("no stall is counted: a poisonous job is recovered for ever"),
    "W-P10": Fault("a stall is noticed by a message or not at all"),
    "W-P11": Fault("to recover or retry one job, all of its worker's are read, and other codecs never match"),
    "W-P12": Fault("a leader whose renewal fails continues to lead"),
    "W-P13": Fault("idle queues delay busy ones on a connection that all of them share"),
    "W-P14": Fault("a cancelled job stays in line, and runs in addition to the one that replaced it"),
    "W-P15": Fault("an id collides with the bookkeeping of another, which is never pruned"),
    "W-P16": Fault("a wait for a job that had ended before lasts until the timeout"),
    "W-P17": Fault("equal ids collide, equal payloads are settled together, lost hints are waited for"),
    "W-P18": Fault("an id that looks like a path leaves the directory; a hint reaches only the first listener"),
    "W-P19": Fault("two timeouts that the user must keep equal"),
}


def main() -> int:
    """Print the table and return the exit status."""
    found = shown(PLACES)
    for name, fault in FAULTS.items():
        print(f"{name:>5}  {fault.words}")
        lines = [*found.get(name, ()), *([f"({fault.later})"] if fault.later else [])]
        print("".join(f"         {line}\n" for line in lines or ["no test and no reason"]), end="")
    lacking, unknown = missing(found), sorted(set(found) - set(FAULTS))
    held = [name for name in FAULTS if name in found]
    print(
        f"\n{len(held)} of {len(FAULTS)} faults have a test, {len(FAULTS) - len(held) - len(lacking)} cannot be so far"
    )
    if lacking:
        print(f"no test and no reason: {', '.join(lacking)}")
    if unknown:
        print(f"no such fault: {', '.join(unknown)}")
    return 1 if lacking or unknown else 0


def missing(found: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the faults that have neither a test nor a reason to have none."""
    return [name for name, fault in FAULTS.items() if name not in found and not fault.later]


def shown(places: Sequence[Path]) -> dict[str, list[str]]:
    """Return, by fault, the tests that carry its mark."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for place in places:
        for path in sorted(place.rglob("*.py")):
            text = path.read_text("utf-8")
            for name, test in marked(ast.parse(text)) if "mark.fault(" in text else ():
                found[name].append(f"{path.relative_to(ROOT)}::{test}")
    return dict(found)


def marked(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each fault that a test of this module is marked with, and the test's name."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield from ((name, node.name) for name in names(node.decorator_list))


def names(decorators: list[ast.expr]) -> list[str]:
    """Return the faults that these decorators name."""
    return [
        str(argument.value)
        for decorator in decorators
        if isinstance(decorator, ast.Call) and re.search(r"\bmark\.fault$", ast.unparse(decorator.func))
        for argument in decorator.args
        if isinstance(argument, ast.Constant)
    ]


if __name__ == "__main__":
    sys.exit(main())
