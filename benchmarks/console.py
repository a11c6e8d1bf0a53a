"""Measures how fast the console answers among many jobs: `make bench-console`.

The jobs lie in 20 queues, in the states of `SPREAD`; those that have ended were claimed and settled. The ASGI app of
the console is called as a server calls it, one request at a time: the time is that of the console and of the storage,
without HTTP. Each request asks for another queue, task, job or fault each time.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any, Literal
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct
from redis import Redis

from benchmarks.report import Machine, machine
from benchmarks.server import a_postgres, a_server, postgres_version
from tenure import Tenure
from tenure.clock import SECOND, SystemClock
from tenure.console import Console
from tenure.core.job import NewJob, Owner, RecordedError, Ref
from tenure.core.lease import Lease
from tenure.core.outcome import Outcome, Raised, Returned
from tenure.core.retention import KeepRule, RetentionRules
from tenure.core.settlement import settlement
from tenure.ids import JobIds
from tenure.storage.protocol import CancelJob, ClaimRequest, RenewRequest, Settings, Target, WorkerInfo
from tests.console.site import Reply, call

Medium = Literal["sqlite", "redis", "postgres"]
MEDIA: tuple[Medium, ...] = ("sqlite", "redis", "postgres")

SPREAD = {"completed": 590, "failed": 99, "active": 1, "waiting": 250, "delayed": 50, "cancelled": 10}
"""How many of 1,000 jobs are in each state."""

TRIP = 1_000
SHARE = 250
"""How many jobs are settled in one call."""

QUEUES = 20
TASKS = 50
"""Each has one queue, and its jobs fail with four faults."""

CUSTOMERS = 1_000

BOUND = 50.0
"""Milliseconds within which 95 % of the answers must come."""


class Line(Struct, frozen=True):
    """The times of one request in milliseconds, and the size of its longest answer in bytes.

    `cpu`: the median of the processor's time that this process and a server used, which other load changes less.
    """

    request: str
    half: float
    most: float
    longest: float
    cpu: float
    size: int


class Place(Struct, frozen=True):
    """A storage with its jobs. `bytes_a_job`: what it occupies; `filled`: seconds that filling took."""

    medium: Medium
    jobs: int
    filled: float
    bytes_a_job: int
    lines: list[Line]


class Answers(Struct, frozen=True):
    """The printed report."""

    machine: Machine
    asks: int
    bound: float
    spread: dict[str, int]
    places: list[Place]


@dataclass
class Load:
    """Fills a storage. `known`: some jobs of each state; `faults`: fingerprints."""

    app: Tenure
    dice: Random = field(default_factory=lambda: Random(7))
    owner: Owner = field(default_factory=lambda: Owner("0123456789abcdef", "bench-1", "host-1", 7))
    known: dict[str, list[Ref]] = field(default_factory=lambda: {state: [] for state in SPREAD})
    queues: tuple[str, ...] = tuple(f"queue-{number:02}" for number in range(QUEUES))

    async def fill(self, jobs: int) -> None:
        """Store this many jobs."""
        storage, ids = self.app.storage, JobIds(SystemClock(), self.dice)
        keep = RetentionRules(completed=KeepRule(30 * 24 * 3600 * SECOND))
        for queue in self.queues:
            await storage.tune(Target("queue", queue), Settings(retention=keep))
        for start in range(0, jobs, TRIP):
            # A higher priority, so that these are claimed and not the waiting ones of the trips before.
            await self._run([self._job(ids, priority=1) for _ in range(sum(list(SPREAD.values())[:3]))])
            later = [self._job(ids, delay=3600 * SECOND) for _ in range(SPREAD["delayed"])]
            waiting = [self._job(ids) for _ in range(SPREAD["waiting"])]
            cancelled = [self._job(ids) for _ in range(SPREAD["cancelled"])]
            await storage.enqueue([*later, *waiting, *cancelled])
            await storage.revise([CancelJob(job.ref) for job in cancelled])
            for state, made in (("delayed", later), ("waiting", waiting), ("cancelled", cancelled)):
                self.known[state].append(made[-1].ref)
            if start and start % (100 * TRIP) == 0:
                print(f"{start:,} of {jobs:,} jobs", file=sys.stderr)
        rare = NewJob(queue=self.queues[3], id=ids.make(), task="task-rare", payload=b"{}")
        await storage.enqueue([rare])
        info = WorkerInfo(self.queues, SPREAD["active"], 10, tasks={f"task-{number:02}": 1 for number in range(TASKS)})
        await storage.renew(RenewRequest(self.owner, (), info))

    def _job(self, ids: JobIds, *, priority: int = 0, delay: int = 0) -> NewJob:
        number = self.dice.randrange(TASKS)
        return NewJob(
            queue=self.queues[number % QUEUES],
            id=ids.make(),
            task=f"task-{number:02}",
            payload=b'{"to": "customer@example.org", "text": "' + bytes(100).replace(b"\0", b"x") + b'"}',
            tags=(f"customer:{self.dice.randrange(CUSTOMERS)}",),
            priority=priority,
            delay=delay,
        )

    async def _run(self, jobs: list[NewJob]) -> None:
        """Enqueue jobs, claim them, and settle all but the active ones."""
        storage = self.app.storage
        await storage.enqueue(jobs)
        held: list[Lease] = []
        for queue, wanted in Counter(job.queue for job in jobs).items():
            goal = len(held) + wanted
            while len(held) < goal:
                held += (await storage.exchange(self.owner, (), ClaimRequest((queue,), goal - len(held)))).leases
        kinds = [state for state in ("failed", "active", "completed") for _ in range(SPREAD[state])]
        for state, lease in dict(zip(kinds, held, strict=True)).items():
            self.known[state].append(lease.ref)
        ended = [
            settlement(lease, self._outcome(kind, lease.job.task), self.dice, took=0.05)
            for kind, lease in zip(kinds, held, strict=True)
            if kind != "active"
        ]
        for start in range(0, len(ended), SHARE):
            await storage.exchange(self.owner, ended[start : start + SHARE], None)

    def _outcome(self, kind: str, task: str) -> Outcome:
        if kind == "completed":
            return Returned(b'{"accepted":true}')
        fault = 4 * int(task.removeprefix("task-")) + self.dice.randrange(4)
        place = f'File "shop/part_{chr(97 + fault % 26)}.py", line {fault}, in step_{chr(97 + fault // 26)}'
        error = RecordedError(f"Fault{fault}Error", f"the server {fault} did not answer", f"Traceback:\n  {place}\n")
        return Raised(error, final=True)

    def job(self, *states: str) -> Ref:
        return self.dice.choice(self.known[self.dice.choice(states or tuple(SPREAD))])


def requests(load: Load, faults: Sequence[str]) -> dict[str, Callable[[], str]]:
    """Return what is asked for: by its name a function that makes a path."""
    dice = load.dice

    def jobs(filter_text: Callable[[], str]) -> Callable[[], str]:
        return lambda: "/api/v1/jobs?" + urlencode({"filter": filter_text(), "limit": 50})

    def about(part: str = "", *states: str) -> Callable[[], str]:
        def path() -> str:
            ref = load.job(*states)
            return f"/api/v1/jobs/{quote(ref.queue, safe='')}/{quote(ref.id, safe='')}{part}"

        return path

    def queue() -> str:
        return dice.choice(load.queues)

    def task() -> str:
        return f"task-{dice.randrange(TASKS):02}"

    return {
        "first page, its HTML": lambda: "/",
        "survey": lambda: "/api/v1/survey",
        "health": lambda: "/api/v1/health",
        "queues": lambda: "/api/v1/queues",
        "one queue": lambda: f"/api/v1/queues/{queue()}",
        "statistics of a queue": lambda: f"/api/v1/queues/{queue()}/statistics",
        "tasks": lambda: "/api/v1/tasks",
        "workers": lambda: "/api/v1/workers",
        "schedules": lambda: "/api/v1/schedules",
        "faults": lambda: "/api/v1/dead/groups",
        "one fault": lambda: f"/api/v1/dead/groups/{dice.choice(faults)}",
        "newest jobs": jobs(lambda: ""),
        **{f"jobs, {state}": jobs(lambda state=state: f"state:{state}") for state in SPREAD},  # type: ignore[misc]
        "jobs of a queue": jobs(lambda: f"queue:{queue()}"),
        "jobs of a queue, waiting": jobs(lambda: f"queue:{queue()} state:waiting"),
        "jobs of a queue, failed": jobs(lambda: f"queue:{queue()} state:failed"),
        "jobs of a task": jobs(lambda: f"task:{task()}"),
        "jobs of a task, failed": jobs(lambda: f"task:{task()} state:failed"),
        "jobs of a task and a queue, waiting": jobs(lambda: f"task:task-03 queue:{load.queues[3]} state:waiting"),
        "jobs of a task with one job": jobs(lambda: "task:task-rare"),
        "jobs of an unknown task": jobs(lambda: "task:task-unknown"),
        "jobs of tasks by a pattern": jobs(lambda: "task:task-1*"),
        "jobs of a fault": jobs(lambda: f"fault:{dice.choice(faults)}"),
        "jobs of an exception class": jobs(lambda: f"error:Fault{dice.randrange(4 * TASKS)}Error"),
        "jobs of a reason": jobs(lambda: "reason:rejected"),
        "jobs of a reason that none has": jobs(lambda: "reason:timeout"),
        "jobs with a tag": jobs(lambda: f"customer:{dice.randrange(CUSTOMERS)}"),
        "jobs of a worker": jobs(lambda: "owner:bench-1"),
        "jobs of an unknown key": jobs(lambda: "key:account:9"),
        "jobs older than 10 s": jobs(lambda: "age:>10s"),
        "jobs that ended within 10 min": jobs(lambda: "ended:<10m"),
        "jobs by id": jobs(lambda: f"id:{load.job().id}"),
        "a job": about(),
        "why a job waits": about("/why", "waiting"),
        "why a job failed": about("/why", "failed"),
        "events of a job": about("/events"),
        "events, the oldest": lambda: "/api/v1/events?limit=100",
        "events of 10 min": lambda: "/api/v1/events?within=10m&limit=100",
    }


class Asking:
    """Asks a console, and notes how long it took."""

    def __init__(self, console: Console, served: Callable[[], float]) -> None:
        self._console = console
        self._served = served
        self._walls: list[float] = []
        self._cpus: list[float] = []
        self._size = 0

    async def ask(self, path: str) -> Any:
        """Return the answer. Raises RuntimeError if it is not a good one."""
        served = self._served()
        began, cpu = time.perf_counter(), time.process_time()
        reply: Reply = await call(self._console, path)
        self._walls.append(1000 * (time.perf_counter() - began))
        cpu = time.process_time() - cpu
        self._cpus.append(1000 * (cpu + self._served() - served))
        self._size = max(self._size, len(reply.body))
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {reply.body[:300]!r}")
        return reply.json if path.startswith("/api") else None

    def line(self, name: str) -> Line:
        """Return the result; the first answer does not count, it fills what a process keeps."""
        walls, cpus = self._walls[1:], self._cpus[1:]
        return Line(name, median(walls), _most(walls), max(walls), median(cpus), self._size)


def _most(times: Sequence[float]) -> float:
    return quantiles(times, n=20, method="inclusive")[-1]


async def measured(asking: Asking, name: str, path: Callable[[], str], asks: int) -> Line:
    """Ask some times."""
    for _ in range(asks + 1):
        await asking.ask(path())
    return asking.line(name)


async def older_pages(asking: Asking, asks: int) -> Line:
    """Follow the pages of all jobs."""
    after = ""
    for _ in range(asks + 1):
        page = await asking.ask("/api/v1/jobs?" + urlencode({"limit": 50, **({"after": after} if after else {})}))
        after = page["next"]
        if after is None:
            break
    return asking.line("older pages of all jobs")


@dataclass
class Ground:
    """An empty storage. `size`: its bytes. `served`: seconds of processor time of its server, 0 if it has none."""

    url: str
    size: Callable[[], int]
    served: Callable[[], float] = float


async def place(medium: Medium, ground: Ground, jobs: int, asks: int, only: str) -> Place:
    """Fill a storage and measure in it."""
    app = Tenure(ground.url)
    async with app:
        load = Load(app)
        empty, began = ground.size(), time.perf_counter()
        print(f"{medium}: filling it with {jobs:,} jobs", file=sys.stderr)
        await load.fill(jobs)
        filled = time.perf_counter() - began
        lines = await asked(load, ground.served, asks, only)
        return Place(medium, jobs, round(filled, 1), (ground.size() - empty) // jobs, lines)


async def asked(load: Load, served: Callable[[], float], asks: int, only: str = "") -> list[Line]:
    """Measure all requests whose names contain `only`, in a storage that is filled."""
    console = Console(load.app)
    groups = (await call(console, "/api/v1/dead/groups")).json["groups"]
    wanted = requests(load, [group["fault"] for group in groups])
    lines = [await measured(Asking(console, served), name, path, asks) for name, path in wanted.items() if only in name]
    if only in "older pages of all jobs":
        lines.append(await older_pages(Asking(console, served), asks))
    return lines


def started(medium: Medium, stack: ExitStack) -> Ground | None:
    """Return an empty storage, which the stack removes; None if this machine has no such server."""
    if medium == "sqlite":
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tenure-bench-")))
        return Ground(f"sqlite:///{folder / 'console.db'}", lambda: sum(one.stat().st_size for one in folder.iterdir()))
    if medium == "redis":
        server = stack.enter_context(a_server())
        if server is None:
            return None
        # What it returns depends on how it was made, which its types do not say.
        untyped: Any = Redis
        client = stack.enter_context(untyped.from_url(server.url))

        def served() -> float:
            info: dict[str, float] = client.info("cpu")
            return info["used_cpu_user_main_thread"] + info["used_cpu_sys_main_thread"]

        return Ground(server.url, lambda: client.info("memory")["used_memory"], served)
    postgres = stack.enter_context(a_postgres())
    if postgres is None:
        return None
    size = "SELECT pg_database_size(current_database())"
    return Ground(postgres.url, lambda: postgres.execute(size)[0][0], lambda: seconds_of_children(postgres.pid))


def seconds_of_children(pid: int) -> float:
    """Return the seconds of processor time that the children of a process have used which still run."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(int(Path(f"/proc/{child}/schedstat").read_text().split()[0]) for child in children) / 1e9


async def places(media: Sequence[Medium], jobs: int, asks: int, only: str) -> AsyncIterator[Place]:
    """Yield the results, one storage after another."""
    for medium in media:
        with ExitStack() as stack:
            ground = started(medium, stack)
            if ground is not None:
                yield await place(medium, ground, jobs, asks, only)


def head_of(answers: Answers) -> Iterator[str]:
    """Yield the lines above the results."""
    on = answers.machine
    yield f"{on.python}, SQLite {on.sqlite}, Redis {on.redis}, PostgreSQL {on.postgres}, {on.system}, {on.cores} cores"
    spread = ", ".join(f"{number / 10:g} % {state}" for state, number in answers.spread.items())
    yield f"load {on.load:g} at the start; each request {answers.asks} times, times in ms; {spread}"


def lines_of(found: Place) -> Iterator[str]:
    """Yield the results in one storage, line by line."""
    yield ""
    yield f"{found.medium}, {found.jobs:,} jobs, {found.bytes_a_job:,} bytes a job, filled in {found.filled:g} s"
    yield f"{'':38}    p50     p95  longest     cpu    bytes"
    for line in found.lines:
        slow = " !" if line.most > BOUND else ""
        times = f"{line.half:6.1f}  {line.most:6.1f}   {line.longest:6.1f}  {line.cpu:6.1f}"
        yield f"{line.request:38} {times}  {line.size:7,}{slow}"
    steep = sum(line.most > BOUND for line in found.lines)
    yield f"{steep} of {len(found.lines)} take more than {BOUND:g} ms at the 95th percentile"


def page_of(answers: Answers) -> Iterator[str]:
    """Yield the lines of a page for the documentation."""
    places, bound = answers.places, answers.bound
    yield "<!-- written by make bench-console ARGS=--write; measure again instead of editing -->"
    yield "# How fast the console answers"
    yield ""
    yield from (line + "  " for line in head_of(answers))
    for found in places:
        steep = sum(line.most > bound for line in found.lines)
        yield (
            f"{found.medium}: {found.jobs:,} jobs, {found.bytes_a_job:,} bytes a job; "
            f"{steep} of {len(found.lines)} take more than {bound:g} ms at the 95th percentile  "
        )
    yield ""
    yield "Times of the console and the storage together, without HTTP. `cpu`: the median of the processor's time of"
    yield "the console's process and of the server, which other load on the machine changes less than the times."
    yield ""
    yield "| request | " + " | ".join(f"{found.medium} p50 | p95 | cpu" for found in places) + " |"
    yield "|---|" + "---:|---:|---:|" * len(places)
    by_name = [{line.request: line for line in found.lines} for found in places]
    for request in dict.fromkeys(line.request for found in places for line in found.lines):
        cells = [_cells(lines.get(request), bound) for lines in by_name]
        yield f"| {request} | " + " | ".join(cells) + " |"


def _cells(line: Line | None, bound: float) -> str:
    if line is None:
        return " | | "
    most = f"**{line.most:.1f}**" if line.most > bound else f"{line.most:.1f}"
    return f"{line.half:.1f} | {most} | {line.cpu:.1f}"


async def report(media: Sequence[Medium], jobs: int, asks: int, only: str, *, as_json: bool) -> Answers:
    """Measure, and print each storage when it is done."""
    with a_server() as server:
        on = machine(server.version if server else None, postgres_version())
    answers = Answers(on, asks, BOUND, SPREAD, [])
    if not as_json:
        print("\n".join(head_of(answers)), flush=True)
    async for found in places(media, jobs, asks, only):
        answers.places.append(found)
        if not as_json:
            print("\n".join(lines_of(found)), flush=True)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(answers)).decode())
    return answers


def main() -> None:
    """Measure and print; exit with 1 if an answer takes too long."""
    parser = argparse.ArgumentParser(prog="make bench-console", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--storage", action="append", choices=MEDIA, help="which storages (all)")
    parser.add_argument("--jobs", type=int, default=100_000, help="how many jobs lie in each storage (100,000)")
    parser.add_argument("--asks", type=int, default=100, help="how often each request is made (100)")
    parser.add_argument("--only", default="", metavar="TEXT", help="requests whose name contains this text")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the results as a page of the documentation")
    args = parser.parse_args()
    as_json = args.output == "json"
    answers = asyncio.run(report(args.storage or MEDIA, args.jobs, args.asks, args.only, as_json=as_json))
    if args.write is not None:
        args.write.write_text("\n".join(page_of(answers)) + "\n")
    raise SystemExit(any(line.most > BOUND for one in answers.places for line in one.lines))


if __name__ == "__main__":
    main()
