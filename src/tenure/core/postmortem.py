"""Writes the post-mortem of a run that was cut off: why it ended, where it was, and its last log lines.

    its process was killed by signal 9 (SIGKILL), cause unknown     the cause, in one clause that can be quoted
    job … worker … ran … process … other runs … progress …          the facts that are known
    its last log lines: …
    where its handler was at its last beat, 3.2 s before it died: …

The process that writes it may be able to read only a part of these facts. Unknown facts are left out, except the
position of the handler, which every reader looks for.
"""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from tenure.core.document import progress_text
from tenure.core.duration import duration_text, moment
from tenure.core.job import JobRecord, LogLine, RunRecord, StallReason
from tenure.core.text import storable

LONGEST = 16_384
"""The maximum length of a post-mortem, in bytes."""

LINES = 20
"""The maximum number of log lines in a post-mortem."""

_LAG = 100_000
_LINE = 400
_LOG = 5_120
_PLACE = 8_192
_TASKS = 8

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class Workplace(Struct, frozen=True):
    """A worker process's last report on itself. `lag` and `report_age` in microseconds, `memory` in bytes; 0: unknown.

    `report_age`: the age of that report at the end of the run, if a more exact age than that of the lease is known.
    """

    lag: int = 0
    memory: int = 0
    report_age: int | None = None


class Ending(Struct, frozen=True):
    """How a worker process ended. `how`: a clause that follows the subject "its process".

    `peak_memory`: in bytes. `stack`: where its threads were when it was killed, if the killer asked for it.
    """

    how: str
    peak_memory: int | None = None
    stack: str = ""


def stall_cause(
    job: JobRecord,
    reason: StallReason,
    *,
    silent_for: int,
    run: RunRecord | None = None,
    ending: Ending | None = None,
    max_block: int | None = None,
) -> str:
    """Return in one clause why a run stalled, and which limit it exceeded. `job`: the record after the reclaim."""
    match reason:
        case "process_died":
            return "its process died, and its exit status is unknown" if ending is None else f"its process {ending.how}"
        case "no_progress":
            limit = "its heartbeat_timeout" if job.heartbeat_timeout is None else _limit(job)
            return f"its handler gave no sign of progress for longer than {limit}"
        case "loop_blocked":
            limit = "" if max_block is None else f" of {duration_text(max_block)}"
            return f"the event loop of its worker was blocked for longer than max_block{limit}"
        case "lease_expired":
            return _out_of_lease(job, silent_for, run)


def post_mortem(
    job: JobRecord,
    cause: str,
    *,
    silent_for: int,
    died: bool,
    run: RunRecord | None = None,
    log: Sequence[LogLine] = (),
    workplace: Workplace | None = None,
    ending: Ending | None = None,
    other_tasks: Sequence[str] = (),
    alone: bool = False,
) -> str:
    """Return all known facts of a run that was cut off; the first line is the cause.

    `job`: the record after the reclaim. `silent_for`: how long its holder had been silent, in microseconds. `died`:
    True if its process had died, False if only its lease was over. `other_tasks`: the tasks of the other runs in
    its process. `alone`: the run had a process of its own, as a child of its worker.
    """
    known_workplace = Workplace() if workplace is None else workplace
    end = "before it died" if died else "before it was given up"
    report_age = silent_for if known_workplace.report_age is None else known_workplace.report_age
    parts = [
        cause.replace("\n", " "),
        *_identity(job, run),
        "; ".join([*_ran(job, run), f"last sign of life {seconds(silent_for)} {end}", *_limits(job)]),
        *_process(known_workplace, ending),
        *(["it had a process of its own, a child of its worker"] if alone else _other_runs(other_tasks)),
        *_progress(job),
        *_log_lines([line for line in log if line.run == job.starts]),
        *_where(run, ending, f"{seconds(report_age)} {end}"),
    ]
    return _cut(storable("\n".join(parts)), LONGEST)


def first_line(text: str) -> str:
    """Return the cause, which is the first line of a post-mortem."""
    return text.partition("\n")[0]


def seconds(length: int) -> str:
    """Return microseconds as seconds, always in this unit, so that two values are easy to compare."""
    return f"{length / 1_000_000:.1f} s"


def size(count: int) -> str:
    """Return a number of bytes in readable form."""
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def ran_for(job: JobRecord, run: RunRecord | None) -> int | None:
    """Return how long a run had lasted when it was reclaimed, in microseconds; None if unknown."""
    # After a reclaim, `heard_at` in the record is the instant of the reclaim.
    return None if run is None or job.heard_at is None else max(0, job.heard_at - run.start)


def _limit(job: JobRecord) -> str:
    return f"its heartbeat_timeout of {duration_text(job.heartbeat_timeout or 0)}"


def _out_of_lease(job: JobRecord, silent_for: int, run: RunRecord | None) -> str:
    length, duration = job.stall.lease, ran_for(job, run)
    if silent_for < length:
        # The holder was alive all the time. It did not renew the lease, or was not allowed to.
        if duration is not None and job.timeout is not None and duration > job.timeout:
            return (
                f"it went on for {seconds(duration)}, past its timeout of {duration_text(job.timeout)}, and could not "
                "be stopped"
            )
        if job.deadline is not None and job.heard_at is not None and job.heard_at > job.deadline:
            return "it went on past the deadline of its job, and could not be stopped"
    if not job.stall.renewed:
        return (
            f"its handler gave no sign for {seconds(silent_for)}, longer than its lease of {duration_text(length)}, "
            "which nothing else renews (heartbeat=False)"
        )
    # The worker may have sent a later beat that did not renew this lease.
    silence_text = f" for {seconds(silent_for)}," if silent_for >= length else " for"
    return f"its worker was silent{silence_text} longer than the lease of {duration_text(length)}"


def _identity(job: JobRecord, run: RunRecord | None) -> list[str]:
    lines = [f"job: {job.id} of queue {job.queue}, task {job.task}, run {job.starts}"]
    if run is not None:
        lines[0] += f", fence {run.fence}"
        lines.append(f"worker: {run.worker or run.owner}, host {run.host or 'unknown'}, pid {run.pid}")
    return lines


def _ran(job: JobRecord, run: RunRecord | None) -> list[str]:
    duration = ran_for(job, run)
    return [] if duration is None else [f"ran for {seconds(duration)}"]


def _limits(job: JobRecord) -> list[str]:
    limits = [("lease", job.stall.lease), ("timeout", job.timeout), ("heartbeat_timeout", job.heartbeat_timeout)]
    return [f"{name} {duration_text(length)}" for name, length in limits if length is not None]


def _process(workplace: Workplace, ending: Ending | None) -> list[str]:
    peak = None if ending is None else ending.peak_memory
    facts = [
        *([f"{size(workplace.memory)} of memory at its last beat"] if workplace.memory else []),
        *([f"{size(peak)} at most"] if peak is not None else []),
        *([f"its event loop had been blocked for {seconds(workplace.lag)}"] if workplace.lag >= _LAG else []),
    ]
    return [f"process: {'; '.join(facts)}"] if facts else []


def _other_runs(tasks: Sequence[str]) -> list[str]:
    if not tasks:
        return []
    counts = Counter(tasks).most_common()
    task_texts = [task if count == 1 else f"{task} ({count})" for task, count in counts[:_TASKS]]
    more = [f"and {len(counts) - _TASKS} more tasks"] if len(counts) > _TASKS else []
    count_text = "1 other" if len(tasks) == 1 else f"{len(tasks)} others"
    return [f"other runs in its process: {count_text}, of {', '.join([*task_texts, *more])}"]


def _progress(job: JobRecord) -> list[str]:
    if job.progress is None:
        return []
    note = f" ({_cut(job.progress_note, _LINE)})" if job.progress_note else ""
    return [f"progress: {_cut(progress_text(job.progress), _LINE)}{note}"]


def _log_lines(log: Sequence[LogLine]) -> list[str]:
    kept: list[str] = []
    room = _LOG
    for line in reversed(log[-LINES:]):
        fields = "".join(f" {name}={value}" for name, value in line.fields.items())
        text = f"  {moment(line.at):%Y-%m-%d %H:%M:%S}Z {line.level}: {_cut(_flat(line.message + fields), _LINE)}"
        room -= len(text.encode(errors="replace"))
        if room < 0:
            break
        kept.insert(0, text)
    return ["its last log lines:", *kept] if kept else []


def _where(run: RunRecord | None, ending: Ending | None, ago: str) -> list[str]:
    if ending is not None and ending.stack.strip():
        return ["where the threads of its process were when it was killed:", *_indented(_last_threads(ending.stack))]
    if run is None or not (run.trace or "").strip():
        return ["the position of its handler is unknown: no beat reported it"]
    return [f"where its handler was at its last beat, {ago}:", *_indented(_last_frames(run.trace or ""))]


def _last_frames(trace: str) -> str:
    """Return the end of a Python stack: its innermost frame, which readers look for, comes last."""
    held = trace.encode(errors="replace")
    if len(held) <= _PLACE:
        return trace
    return "…\n" + held[-_PLACE:].decode(errors="ignore").partition("\n")[2]


def _last_threads(stack: str) -> str:
    """Return the last threads of a faulthandler dump. The main thread is last; its frames are innermost first."""
    kept: list[str] = []
    for thread in reversed(stack.strip().split("\n\n")):
        kept.insert(0, thread)
        if sum(len(text.encode(errors="replace")) for text in kept) > _PLACE:
            kept = kept[1:] or [_cut(thread, _PLACE)]
            break
    return "\n\n".join(kept)


def _indented(text: str) -> list[str]:
    return [f"  {_cut(line, _LINE)}".rstrip() for line in text.rstrip().splitlines()]


def _flat(text: str) -> str:
    return " ".join(text.split())


def _cut(text: str, most: int) -> str:
    held = text.encode(errors="replace")
    return text if len(held) <= most else f"{held[: most - 4].decode(errors='ignore')} …"
