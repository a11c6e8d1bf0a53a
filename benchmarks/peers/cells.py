"""The measurements of each peer, one function a cell."""

import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from benchmarks.peers.order import Order, TaskName
from benchmarks.peers.process import Adapter, Cannot, Failed
from benchmarks.peers.results import Entry, Quantity, Sample, percentile
from benchmarks.peers.server import Server
from benchmarks.peers.tally import Note, Reader

JOBS = 20_000
SECONDS = 3.0
CALLERS = 50
BATCH = 1_000
KILOBYTE = 1_000
WAITING, WAITING_SIZE = 10_000, 200
BACKLOG = 60_000
"""How many jobs wait in `process_backlog`, unless the run says otherwise."""
WORN = 200_000
"""How many jobs go through the storage before `process_worn` measures, unless the run says otherwise."""
SLOW = 400
"""Jobs a second that a peer gets time for where many are enqueued or processed; the report names what is not done."""
STARTING = 20.0
SETTLING = 1.0
FIRST = 1_000_000
FILLING = 10.0
READ = 2_000
"""The number of jobs whose results are read, the newest: older ones may be past what a peer keeps."""
FINISHING = 10.0
"""How long a measured cell continues until all its jobs have run, to check that each did so once."""
ENDING = 0.3
LOOK = 0.005
PACED, PACED_FOR = 500, 2.0
IDLE_FOR = 4.0
HELD, HOLDING = 20, 2.0
SEEN = 4
"""How many jobs run when a supervised process is killed: as many as ours then runs again at once, each isolated."""
RECOVERED_WITHIN = 90.0
AFTERWARDS = 3.0

Figures = dict[str, float]


class Place(Struct, frozen=True):
    """One peer, how to start it, and the empty storage of one cell."""

    entry: Entry
    command: list[str]
    server: Server | None
    folder: Path
    cell: str
    backlog: int = BACKLOG
    worn: int = WORN

    @property
    def url(self) -> str:
        """Return the address that the adapter gets."""
        return self.server.url if self.server is not None else f"sqlite:///{self.folder / 'jobs' / 'queue.db'}"

    def order(self, order: Order) -> Adapter:
        """Start an adapter with an order; its URL and its folder for the tally are filled in."""
        name = "ran" if order.do == "work" else "sent"
        return Adapter(self.command, replace(order, url=self.url, tally=str(self.folder / name)))

    def ran(self) -> Reader:
        """Return the reader of the workers' tally."""
        return Reader(self.folder / "ran")

    def make_tables(self) -> None:
        """Let the peer create its tables, if it has any: two processes that start at once would both create them."""
        if self.entry.storage == "postgresql":
            with self.order(Order("enqueue")) as maker:
                maker.hear("ready", STARTING)


class Found(Struct):
    """The figures of a cell, and remarks on it."""

    figures: Figures
    remarks: list[str] = []


class Cell(Struct, frozen=True):
    """One thing to measure."""

    name: str
    measure: Callable[[Place, "Known"], Found]
    rounds: int = 5
    """In how many of five rounds it is measured; in fewer if it hardly differs from one to the next."""
    alone: bool = True
    """Whether it must run alone; cells that mostly wait run together, each on its own server."""
    on: tuple[str, ...] = ()
    """The storages that it is measured on; all, if none is named."""


Known = Callable[[str, str], float | None]
"""Returns the median of a figure of a cell of this peer so far, if it was measured."""


@contextmanager
def place(
    entry: Entry, command: list[str], server: Server | None, cell: str, *, backlog: int = BACKLOG, worn: int = WORN
) -> Generator[Place]:
    """Give a cell an empty storage, and remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="tenure-peers-") as folder:
        # Tallies go to memory if there is enough; SQLite goes to the disk, because its fsync is part of the figure.
        memory = Path("/dev/shm")
        tallies = Path(tempfile.mkdtemp(prefix="tenure-peers-", dir=memory if memory.is_dir() else None))
        try:
            for name in ("sent", "ran"):
                (tallies / name).mkdir()
                (Path(folder) / name).symlink_to(tallies / name)
            (Path(folder) / "jobs").mkdir()
            if server is not None:
                server.empty()
            yield Place(entry, command, server, Path(folder), cell, backlog, worn)
        finally:
            shutil.rmtree(tallies, ignore_errors=True)


def taken(cell: Cell, at: Place, known: Known, number: int) -> Sample:
    """Measure one cell; a failure in it is part of the sample."""
    began = time.monotonic()

    def sample(**found: object) -> Sample:
        return Sample(at.entry.key, cell.name, number, round(time.monotonic() - began, 3), **found)  # type: ignore[arg-type]

    try:
        at.make_tables()
        found = cell.measure(at, known)
    except Cannot as why:
        return sample(cannot=str(why))
    except Failed as why:
        return sample(failed=str(why))
    return sample(figures=found.figures, remarks=found.remarks)


# --- enqueue ---------------------------------------------------------------------------------------


def enqueue(*, callers: int = 1, batch: int = 1) -> Callable[[Place, Known], Found]:
    """Return the cell that enqueues for a while, without a worker."""

    def measure(at: Place, known: Known) -> Found:
        order = Order("enqueue", jobs=JOBS, seconds=SECONDS, callers=callers, batch=batch)
        with at.order(order) as producer:
            producer.hear("ready", STARTING)
            producer.tell("go")
            server = _cpu(at)
            output = producer.hear("enqueued", SECONDS + FILLING)
            server = _cpu(at) - server
        jobs = output["jobs"]
        if not jobs:
            raise Failed("enqueued nothing")
        return Found(
            {"rate": jobs / output["seconds"], "cpu": 1000 * output["cpu"] / jobs, "server_cpu": 1000 * server / jobs}
        )

    return measure


# --- process ---------------------------------------------------------------------------------------


def process(
    *, concurrency: int, processes: int = 1, echo: bool = False, most: int = JOBS
) -> Callable[[Place, Known], Found]:
    """Return the cell that processes waiting jobs, `most` of them, with one kilobyte there and back if `echo`."""

    def measure(at: Place, known: Known) -> Found:
        jobs = min(most, max(100, int(SECONDS * (known(at.cell, "rate") or at.entry.rate))))
        task: TaskName = "echo" if echo else "noop"
        size = KILOBYTE if echo else 0
        with ExitStack() as stack:
            order = Order("enqueue", task=task, jobs=jobs, size=size, results=echo)
            producer, jobs = stack.enter_context(_filled(at, order))
            work = Order("work", task=task, concurrency=concurrency, results=echo)
            workers = _at_work(stack, at, work, processes)
            found = _worked(at, workers, jobs)
            if echo:
                newest = _readable(at.ran())
                producer.tell(f"read {newest.start} {newest.stop - 1}")
                output = producer.hear("read", FILLING)
                if output["wrong"]:
                    raise Failed(f"{output['wrong']} of {output['jobs']} results are not what was returned")
                found.figures["read"] = output["jobs"] / output["seconds"]
        return found

    return measure


def process_backlog(at: Place, known: Known) -> Found:
    """Work for a while on more jobs than can be done in that time; the others remain waiting."""
    with ExitStack() as stack:
        order = Order("enqueue", jobs=at.backlog)
        _, jobs = stack.enter_context(_filled(at, order, max(FILLING, at.backlog / SLOW)))
        found = _worked(at, _at_work(stack, at, Order("work", concurrency=100)), jobs, until_all=False)
    if jobs < at.backlog:
        found.remarks.append(f"{jobs} jobs waited, not {at.backlog}: more could not be enqueued in time")
    return found


def process_worn(at: Place, known: Known) -> Found:
    """Process waiting jobs, as `process` does, after many others have gone through the same storage."""
    gone = _gone_through(at, at.worn, max(FILLING, at.worn / SLOW))
    for tally in (at.folder / "ran").iterdir():
        tally.unlink()
    jobs = min(JOBS, max(100, int(SECONDS * (known("process_100", "rate") or at.entry.rate))))
    with ExitStack() as stack:
        _, jobs = stack.enter_context(_filled(at, Order("enqueue", first=FIRST, jobs=jobs)))
        found = _worked(at, _at_work(stack, at, Order("work", concurrency=100)), jobs)
    found.figures["gone"] = float(gone)
    if gone < at.worn:
        found.remarks.append(f"{gone} jobs had gone through before, not {at.worn}: it took too long")
    return found


def _gone_through(at: Place, jobs: int, within: float) -> int:
    """Enqueue this many jobs while a worker processes them; return how many it did in that time."""
    reader = at.ran()
    with ExitStack() as stack:
        (worker,) = _at_work(stack, at, Order("work", concurrency=100))
        deadline = time.monotonic() + within
        stack.enter_context(_filled(at, Order("enqueue", jobs=jobs), within))
        while reader.read() < jobs and time.monotonic() < deadline:
            worker.check()
            time.sleep(10 * LOOK)
        # Started jobs are to be settled, too.
        time.sleep(SETTLING)
        return reader.read()


def _at_work(stack: ExitStack, at: Place, order: Order, processes: int = 1) -> list[Adapter]:
    """Start workers, and let all begin at once when all are ready."""
    workers = [stack.enter_context(at.order(order)) for _ in range(processes)]
    for worker in workers:
        worker.hear("ready", STARTING)
    for worker in workers:
        worker.tell("go")
    return workers


def _readable(reader: Reader) -> range:
    reader.read()
    # A run that started at this moment may not have returned yet, if a worker has not come to the end.
    done = time.monotonic_ns() - int(ENDING * 1e9)
    if newest := stretch([note.number for note in reader.started if note.at_ns <= done], READ):
        return newest
    raise Failed("no job had run whose result could be read")


def stretch(numbers: Iterable[int], most: int) -> range:
    """Return the last stretch of this many numbers without a gap; if none is as long, the last of the longest."""
    run = longest = range(0)
    for number in sorted(set(numbers)):
        first = run.start if number == run.stop else number
        run = range(max(first, number + 1 - most), number + 1)
        longest = run if len(run) >= len(longest) else longest
    return longest


@contextmanager
def _filled(at: Place, order: Order, within: float = FILLING) -> Generator[tuple[Adapter, int]]:
    """Enqueue by the fastest means of the peer, up to a time limit; yields the producer, and the number of jobs."""
    bulk = at.entry.bulk
    fastest = replace(order, seconds=within, batch=BATCH if bulk else 1, callers=1 if bulk else CALLERS)
    with at.order(fastest) as producer:
        producer.hear("ready", STARTING)
        producer.tell("go")
        output = producer.hear("enqueued", within + FILLING)
        if not output["jobs"]:
            raise Failed("enqueued nothing")
        yield producer, output["jobs"]


class _Look(Struct, frozen=True):
    """What was visible at one moment."""

    started: int
    worker_cpu: float
    server_cpu: float


def _worked(at: Place, workers: list[Adapter], jobs: int, *, until_all: bool = True) -> Found:
    """Watch the workers for the time of the measurement; then, `until_all` have run, at most 10 s more."""
    reader, looks = at.ran(), list[_Look]()
    deadline = time.monotonic() + STARTING + SECONDS + FINISHING
    over, measured = None, None
    while time.monotonic() < deadline:
        started = reader.read()
        if over is None or measured is None:
            looks.append(_Look(started, sum(worker.cpu() for worker in workers), _cpu(at)))
        if started and over is None:
            over = time.monotonic() + SECONDS
            deadline = over + FINISHING
        if over is not None and measured is None and (started >= jobs or time.monotonic() > over):
            measured = looks[-1]
        if started >= jobs or (measured is not None and not until_all):
            break
        for worker in workers:
            worker.check()
        time.sleep(LOOK)
    time.sleep(ENDING)
    reader.read()
    if measured is None:
        raise Failed(f"no job had started after {STARTING + SECONDS + FINISHING:.0f} s")
    found = Found({"rate": _rate(reader.started, len(workers)), **_cost(looks)})
    ran = Counter(note.number for note in reader.started)
    if twice := sum(times - 1 for times in ran.values()):
        found.remarks.append(f"{twice} of {jobs} jobs ran twice")
    found.figures |= {"twice": float(twice), "jobs": float(jobs)}
    if not until_all:
        return found
    if (left := jobs - len(ran)) > 0:
        # Not lost: the wait for them ended.
        found.remarks.append(f"{left} of {jobs} jobs had not run {SECONDS + FINISHING:.0f} s after the first")
    found.figures["left"] = float(max(left, 0))
    return found


def _rate(started: list[Note], processes: int) -> float:
    """Return how many jobs a second started from when every process had started one, for SECONDS at most."""
    firsts: dict[str, int] = {}
    for note in started:
        firsts[note.process] = min(note.at_ns, firsts.get(note.process, note.at_ns))
    if len(firsts) < processes:
        raise Failed(f"only {len(firsts)} of {processes} processes got a job")
    begin = max(firsts.values())
    counted = [note.at_ns for note in started if begin < note.at_ns <= begin + SECONDS * 1e9]
    if len(counted) < 2:
        raise Failed("too few jobs started while all processes were at work")
    return len(counted) * 1e9 / (max(counted) - begin)


def _cost(looks: list[_Look]) -> Figures:
    first = next(look for look in looks if look.started)
    last = looks[-1]
    if last.started == first.started:
        # All done between two looks: then it includes the time of the start.
        first = looks[0]
    jobs = last.started - first.started
    return {
        "worker_cpu": 1000 * (last.worker_cpu - first.worker_cpu) / jobs,
        "server_cpu": 1000 * (last.server_cpu - first.server_cpu) / jobs,
    }


def _cpu(at: Place) -> float:
    return at.server.cpu() if at.server is not None else 0.0


# --- latency ---------------------------------------------------------------------------------------


def latency_idle(at: Place, known: Known) -> Found:
    """Measure from the call of enqueue to the start of the handler, one job at a time, with pauses."""
    return _latency(at, Order("pace", jobs=PACED, seconds=PACED_FOR), concurrency=10)


def latency_loaded(at: Place, known: Known) -> Found:
    """Measure the same while jobs come in at half the rate at which it does them, or accepts them if that is less."""
    rates = [known("process_100", "rate"), known("enqueue_callers", "rate")]
    rate = min((rate for rate in rates if rate), default=0.0) / 2
    if not rate:
        raise Failed("the rate is unknown, so half of it is, too")
    order = Order("pace", jobs=JOBS, seconds=PACED_FOR, rate=rate)
    found = _latency(at, order, concurrency=100)
    found.figures["load"] = rate
    return found


def _latency(at: Place, order: Order, *, concurrency: int) -> Found:
    with at.order(Order("work", concurrency=concurrency)) as worker, at.order(order) as producer:
        worker.hear("ready", STARTING)
        worker.tell("go")
        producer.hear("ready", STARTING)
        reader = _settled(at, worker)
        producer.tell("go")
        sent_jobs = producer.hear("enqueued", PACED_FOR + FILLING)["jobs"]
        deadline = time.monotonic() + FINISHING
        # One more has run: the one that showed that the worker runs.
        while reader.read() <= sent_jobs and time.monotonic() < deadline:
            worker.check()
            time.sleep(LOOK)
    sender = Reader(at.folder / "sent")
    sender.read()
    sent = {note.number: note.at_ns for note in sender.started}
    # The first ones meet a worker and a producer that have done nothing yet.
    warm = sorted(sent)[len(sent) // 20 :]
    began: dict[int, int] = {}
    for note in reader.started:
        began[note.number] = min(note.at_ns, began.get(note.number, note.at_ns))
    waited = [(began[number] - sent[number]) / 1e6 for number in warm if number in began]
    if not waited:
        raise Failed("no job had started")
    found = Found({"p50": percentile(waited, 50), "p99": percentile(waited, 99), "samples": float(len(waited))})
    if left := len(set(sent) - set(began)):
        found.remarks.append(f"{left} of {len(sent)} jobs had not started {FINISHING:.0f} s after the last was sent")
    return found


def _settled(at: Place, worker: Adapter) -> Reader:
    """Wait until the worker has run a job, because some take seconds to start, and then a little."""
    with at.order(Order("enqueue", first=FIRST, jobs=1)) as producer:
        producer.hear("ready", STARTING)
        producer.tell("go")
        producer.hear("enqueued", FILLING)
    reader, deadline = at.ran(), time.monotonic() + STARTING
    while not reader.read():
        worker.check()
        if time.monotonic() > deadline:
            raise Failed(f"its first job had not started after {STARTING:.0f} s")
        time.sleep(LOOK)
    time.sleep(SETTLING)
    return reader


# --- the cost of waiting ---------------------------------------------------------------------------


def memory(at: Place, known: Known) -> Found:
    """Measure the size of a waiting job with a text of 200 bytes: in the server's memory, or in the file."""
    before = _used(at)
    with _filled(at, Order("enqueue", task="echo", jobs=WAITING, size=WAITING_SIZE)) as (_, jobs):
        # The producer's own connections are part of neither.
        pass
    time.sleep(ENDING)
    return Found({"bytes": (_used(at) - before) / jobs, "jobs": float(jobs)})


def _used(at: Place) -> int:
    if at.server is not None:
        return at.server.used()
    return sum(path.stat().st_size for path in (at.folder / "jobs").iterdir())


def idle(at: Place, known: Known) -> Found:
    """Measure the load of a worker without jobs."""
    with at.order(Order("work", concurrency=10)) as worker:
        worker.hear("ready", STARTING)
        worker.tell("go")
        _settled(at, worker)
        commands = at.server.commands() if at.server is not None else 0
        worker_cpu, server_cpu, began = worker.cpu(), _cpu(at), time.perf_counter()
        time.sleep(IDLE_FOR)
        passed = time.perf_counter() - began
        figures = {
            "worker_cpu": 100 * (worker.cpu() - worker_cpu) / passed,
            "server_cpu": 100 * (_cpu(at) - server_cpu) / passed,
        }
        if at.server is not None:
            # One of them was our own query.
            figures["commands"] = max(at.server.commands() - commands - 1, 0) / passed
        worker.check()
    return Found(figures)


# --- kill -9 ---------------------------------------------------------------------------------------


def recovery(*, tight: bool) -> Callable[[Place, Known], Found]:
    """Return the cell that kills a busy worker and starts another."""

    def measure(at: Place, known: Known) -> Found:
        if tight and not at.entry.tight:
            raise Cannot("it has no setting for that")
        busy = min(10, at.entry.at_once or 10)
        with ExitStack() as stack:
            victim = stack.enter_context(at.order(Order("work", task="hold", concurrency=10, tight=tight)))
            victim.hear("ready", STARTING)
            victim.tell("go")
            reader = _running(at, victim, Order("enqueue", task="hold", jobs=HELD, hold=HOLDING, tight=tight), busy)
            victim.kill()
            killed_ns = time.monotonic_ns()
            reader.read()
            heir = stack.enter_context(at.order(Order("work", task="hold", concurrency=20, tight=tight)))
            heir.hear("ready", STARTING)
            heir.tell("go")
            _wait_for_all(reader, heir)
        return Found(*_recovered(reader, killed_ns))

    return measure


def recovery_seen(at: Place, known: Known) -> Found:
    """Kill one of two processes whose supervisor sees it; the other, and the one that replaces it, have room."""
    if not at.entry.supervised:
        raise Cannot("it has no supervisor that gives back the jobs of a process that died")
    with at.order(Order("work", task="hold", concurrency=SEEN, supervised=True)) as supervisor:
        supervisor.hear("ready", STARTING)
        supervisor.tell("go")
        reader = _running(at, supervisor, Order("enqueue", task="hold", jobs=SEEN, hold=HOLDING), SEEN)
        if not reader.started:
            raise Failed("no job had started")
        victim = reader.started[-1].process
        os.kill(int(victim), signal.SIGKILL)
        killed_ns = time.monotonic_ns()
        reader.read()
        _wait_for_all(reader, supervisor, SEEN)
    return Found(*_recovered(reader, killed_ns, held=SEEN, victim=victim))


def _running(at: Place, worker: Adapter, order: Order, count: int) -> Reader:
    """Enqueue jobs, and wait until this many of them have run for a while."""
    with at.order(order) as producer:
        producer.hear("ready", STARTING)
        producer.tell("go")
        producer.hear("enqueued", FILLING)
    reader, deadline = at.ran(), time.monotonic() + STARTING
    while reader.read() < count and time.monotonic() < deadline:
        worker.check()
        time.sleep(LOOK)
    time.sleep(HOLDING / 4)
    reader.read()
    return reader


def _wait_for_all(reader: Reader, heir: Adapter, held: int = HELD) -> None:
    deadline = time.monotonic() + RECOVERED_WITHIN
    while len({note.number for note in reader.finished}) < held and time.monotonic() < deadline:
        reader.read()
        heir.check()
        time.sleep(10 * LOOK)
    # A worker may still recover what was done.
    time.sleep(AFTERWARDS)
    reader.read()


def _recovered(
    reader: Reader, killed_ns: int, *, held: int = HELD, victim: str | None = None
) -> tuple[Figures, list[str]]:
    """`victim`: the process that was killed, if others continued."""
    before = {note.number for note in reader.started if note.at_ns <= killed_ns and victim in (None, note.process)}
    done = {note.number for note in reader.finished if note.at_ns <= killed_ns}
    finished = Counter(note.number for note in reader.finished)
    running = before - done
    again = {
        number: min(note.at_ns for note in reader.started if note.number == number and note.at_ns > killed_ns)
        for number in {note.number for note in reader.started if note.at_ns > killed_ns} & before
    }
    starts = Counter(note.number for note in reader.started)
    seconds = [(again[number] - killed_ns) / 1e9 for number in running & set(again)]
    figures = {
        "running": float(len(running)),
        "again": float(len(running & set(again))),
        "unfinished": float(held - len(finished)),
        # A run that was active when the worker was killed had to start once more, and no other.
        "twice": float(sum(times - 1 - (number in running) for number, times in starts.items() if times > 1)),
    }
    if seconds:
        figures |= {"first": min(seconds), "last": max(seconds)}
    remarks = list[str]()
    if figures["unfinished"]:
        remarks.append(f"{held - len(finished)} of {held} jobs were not finished after {RECOVERED_WITHIN:.0f} s")
    if not running:
        remarks.append("nothing was running when it was killed")
    return figures, remarks


CELLS = (
    Cell("enqueue_one", enqueue()),
    Cell("enqueue_callers", enqueue(callers=CALLERS)),
    Cell("enqueue_bulk", enqueue(batch=BATCH)),
    Cell("process_10", process(concurrency=10)),
    Cell("process_100", process(concurrency=100)),
    Cell("process_1000", process(concurrency=1000, most=5 * JOBS), rounds=3, on=("postgresql",)),
    Cell("process_backlog", process_backlog, rounds=3, on=("postgresql",)),
    Cell("process_worn", process_worn, rounds=1, on=("postgresql",)),
    Cell("process_10_two", process(concurrency=10, processes=2), rounds=2),
    Cell("process_100_two", process(concurrency=100, processes=2), rounds=2),
    Cell("echo_10", process(concurrency=10, echo=True), rounds=2),
    Cell("echo_100", process(concurrency=100, echo=True), rounds=2),
    Cell("latency_idle", latency_idle),
    Cell("latency_loaded", latency_loaded, rounds=3),
    Cell("memory", memory, rounds=2),
    Cell("idle", idle, rounds=2),
    Cell("recovery_default", recovery(tight=False), rounds=1, alone=False),
    Cell("recovery_tight", recovery(tight=True), rounds=1, alone=False),
    Cell("recovery_seen", recovery_seen, rounds=1, alone=False, on=("postgresql",)),
)


def _quantities() -> Generator[Quantity]:
    for cell, title in (
        ("enqueue_one", "enqueue, one by one"),
        ("enqueue_callers", f"enqueue, {CALLERS} callers at once"),
        ("enqueue_bulk", f"enqueue, {BATCH:,} in a call"),
    ):
        yield Quantity(cell, "rate", title, "jobs/s", "more")
        yield Quantity(cell, "cpu", f"{title}: producer's CPU for 1,000 jobs", "s", "less", 3)
        yield Quantity(cell, "server_cpu", f"{title}: server's CPU for 1,000 jobs", "s", "less", 3)
    for cell, title in (
        ("process_10", "process, concurrency 10"),
        ("process_100", "process, concurrency 100"),
        ("process_1000", "process, concurrency 1,000"),
        ("process_backlog", "process among many that wait, concurrency 100"),
        ("process_worn", "process after many have gone through, concurrency 100"),
        ("process_10_two", "process, two processes of concurrency 10"),
        ("process_100_two", "process, two processes of concurrency 100"),
        ("echo_10", "process with 1 KB there and back, concurrency 10"),
        ("echo_100", "process with 1 KB there and back, concurrency 100"),
    ):
        yield Quantity(cell, "rate", title, "jobs/s", "more")
        yield Quantity(cell, "worker_cpu", f"{title}: workers' CPU for 1,000 jobs", "s", "less", 3)
        yield Quantity(cell, "server_cpu", f"{title}: server's CPU for 1,000 jobs", "s", "less", 3)
        if cell.startswith("echo"):
            yield Quantity(cell, "read", f"{title}: results read back, 50 callers at once", "results/s", "more")
        yield Quantity(cell, "jobs", f"{title}: jobs", "jobs", "none")
        yield Quantity(cell, "twice", f"{title}: runs too many", "runs", "less")
        if cell != "process_backlog":
            yield Quantity(cell, "left", f"{title}: not run in time", "jobs", "none")
    yield Quantity("process_worn", "gone", "jobs that had gone through before", "jobs", "none")
    for cell, title in (("latency_idle", "enqueue to start, idle"), ("latency_loaded", "enqueue to start, half load")):
        yield Quantity(cell, "p50", f"{title}, p50", "ms", "less", 2)
        yield Quantity(cell, "p99", f"{title}, p99", "ms", "less", 2)
        yield Quantity(cell, "samples", f"{title}: samples", "jobs", "none")
    yield Quantity("latency_loaded", "load", "enqueue to start, half load: the load", "jobs/s", "none")
    yield Quantity("memory", "bytes", f"a waiting job of {WAITING_SIZE} B takes", "B", "less")
    yield Quantity("memory", "jobs", "waiting jobs that were weighed", "jobs", "none")
    yield Quantity("idle", "commands", "idle worker: commands at the server", "1/s", "less", 1)
    yield Quantity("idle", "worker_cpu", "idle worker: of one core", "%", "less", 2)
    yield Quantity("idle", "server_cpu", "idle worker: the server, of one core", "%", "less", 2)
    for cell, title in (
        ("recovery_default", "kill -9, defaults"),
        ("recovery_tight", "kill -9, tightest settings"),
        ("recovery_seen", "kill -9, seen by a supervisor"),
    ):
        yield Quantity(cell, "running", f"{title}: jobs running", "jobs", "none")
        yield Quantity(cell, "again", f"{title}: of these started again", "jobs", "more")
        held = SEEN if cell == "recovery_seen" else HELD
        yield Quantity(cell, "unfinished", f"{title}: of {held} jobs unfinished at the end", "jobs", "less")
        yield Quantity(cell, "twice", f"{title}: runs too many", "runs", "less")
        yield Quantity(cell, "first", f"{title}: until the first started again", "s", "less", 1)
        yield Quantity(cell, "last", f"{title}: until the last started again", "s", "less", 1)


QUANTITIES = tuple(_quantities())
