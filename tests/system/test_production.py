"""The deployment of examples/production: five real processes, killed and stopped, and the files next to it."""

import asyncio
import configparser
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import click
import pytest

import tenure
from tenure.clock import SECOND
from tenure.core.events import AnyEvent, JobCancelled, JobCompleted, JobExpired, JobFailed, LeadershipAcquired
from tenure.core.job import JobDetail, Ref
from tenure.core.lifecycle import TERMINAL, State
from tenure.options import Timing
from tenure.storage.protocol import Query
from tenure.storage.urls import locate
from tests.cli.probe import probe
from tests.system.plain_yaml import NotPlainError, documents

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "examples" / "production"
SOURCE = Path(tenure.__file__).parents[1]

STOP = 30.0
"""Seconds after which a service manager kills the processes that it stops: the drain and 5 s."""

ROOM = 1.0
"""Seconds that a busy machine may add."""


# ── five processes ────────────────────────────────────────────────────────────────────────────────────────────────────


class Shop:
    """The processes of the example on one storage, and checks of their state."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.storage = locate(url)
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TENURE_")},
            "PYTHONPATH": str(SOURCE),
            "TENURE_URL": url,
            "SHOP_DATA": str(folder / "data"),
            # So that jobs of a dead worker on another host would be found within the time of a test.
            "SHOP_LEASE": "8s",
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start Python in the example's folder; its output and its log go to separate files."""
        number = len(self.processes)
        with self._file(number, "out").open("ab") as out, self._file(number, "log").open("ab") as log:
            process = subprocess.Popen([sys.executable, *arguments], cwd=HERE, env=self._env, stdout=out, stderr=log)
        self.processes.append(process)
        return process

    def worker(self, *options: str) -> "subprocess.Popen[bytes]":
        """Start a worker that leaves the sweeping to the reapers, unless `options` say otherwise."""
        return self.start("-m", "tenure", "worker", "shop:app", "--http", "0", *(options or ("--no-reaper",)))

    def reaper(self) -> "subprocess.Popen[bytes]":
        """Start a reaper."""
        return self.start("-m", "tenure", "reaper", "shop:app", "--http", "0")

    def said(self, process: "subprocess.Popen[bytes]") -> str:
        """Return what a process has logged so far."""
        return self._file(self.processes.index(process), "log").read_text()

    def acknowledged(self, process: "subprocess.Popen[bytes]") -> list[Ref]:
        """Return the jobs that were acknowledged to the producers of orders."""
        printed = self._file(self.processes.index(process), "out").read_text()
        lines = [line.split(" ") for line in printed.splitlines(keepends=True) if line.endswith("\n")]
        return [Ref(queue, job.strip()) for queue, job in lines]

    def ready(self, process: "subprocess.Popen[bytes]") -> bool:
        """Return whether its probes say so."""
        found = re.search(r"served on http://127.0.0.1:(\d+)$", self.said(process), re.MULTILINE)
        return found is not None and all(probe(int(found[1]), path).status == 200 for path in ("/live", "/ready"))

    async def holding(self) -> set[int]:
        """Return the processes that hold jobs."""
        workers = {worker.owner.id: worker.owner.pid for worker in (await self.storage.survey()).workers}
        active = (await self.storage.find(Query(states=(State.ACTIVE,), limit=500))).jobs
        return {workers[job.owner] for job in active if job.owner in workers}

    async def leader(self) -> "subprocess.Popen[bytes]":
        """Return the process that leads."""

        async def a_reaper_leads() -> bool:
            return bool((await self.storage.survey()).leaders)

        await self.until(a_reaper_leads, within=20)
        owners = {term.owner for term in (await self.storage.survey()).leaders}
        (process,) = [
            item for item in self.processes if any(f"reaper {owner} sweeps" in self.said(item) for owner in owners)
        ]
        return process

    async def events(self) -> list[AnyEvent]:
        """Return the whole event log."""
        events: list[AnyEvent] = []
        cursor: str | None = None
        while True:
            page = await self.storage.events(cursor, limit=500)
            if not page.events:
                return events
            events += page.events
            cursor = page.next

    async def details(self) -> list[JobDetail]:
        """Return all jobs there are, with their runs."""
        refs: list[Ref] = []
        after: str | None = None
        while True:
            page = await self.storage.find(Query(limit=500, after=after))
            refs += [job.ref for job in page.jobs]
            after = page.next
            if after is None:
                return [detail for detail in await self.storage.get(refs) if detail is not None]

    async def until(self, holds: Callable[[], Awaitable[object]], *, within: float) -> None:
        """Poll until this holds, or fail after this many seconds."""
        end = time.monotonic() + within
        while not await holds():
            assert time.monotonic() < end, f"{holds.__name__} not within {within} s\n{self._logs()}"
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """End what still runs, and close the storage."""
        for process in self.processes:
            process.kill()
            process.wait()
        await self.storage.close()

    def _file(self, number: int, kind: str) -> Path:
        return self.folder / f"process-{number}.{kind}"

    def _logs(self) -> str:
        return "\n".join(self._file(number, "log").read_text()[-2000:] for number in range(len(self.processes)))


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    url = f"sqlite:///{tmp_path / 'jobs.db'}" if request.param == "sqlite" else request.getfixturevalue("redis_url")
    made = Shop(tmp_path, url)
    await made.storage.open()
    yield made
    await made.close()


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_three_workers_and_two_reapers_lose_no_job_through_kills_and_stops(shop: Shop) -> None:
    timing = Timing()
    started = [*(shop.worker() for _ in range(3)), *(shop.reaper() for _ in range(2))]

    async def all_ready() -> bool:
        return all(map(shop.ready, started))

    await shop.until(all_ready, within=30)
    orders = [shop.start("shop.py", "60")]

    # A worker dies while it holds jobs, and its supervisor with it, as when their host is lost.
    async def several_hold() -> bool:
        return len(await shop.holding()) >= 2

    await shop.until(several_hold, within=20)
    victim, lost = await killed_at_work(shop, started[:3])

    # The leader dies.
    leader = await shop.leader()
    began = len(await leads(shop))
    killed_at = time.time_ns() // 1000
    leader.kill()

    async def taken_over() -> bool:
        return len(await leads(shop)) > began

    await shop.until(taken_over, within=20)
    before, after = (await leads(shop))[-2:]
    assert after.at is not None
    gap = after.at.timestamp() - killed_at / SECOND
    assert 0 < gap < (timing.leader_ttl + timing.sweep).total_seconds() + ROOM, gap
    print(f"taken over after {gap:.2f} s")
    assert (after.owner != before.owner, after.epoch > before.epoch) == (True, True)
    assert await shop.leader() is not leader

    # The service manager starts new ones; then all are stopped at once, while jobs are running.
    for process in (victim, leader):
        started.remove(process)
        process.wait()
    started += [shop.worker(), shop.reaper()]
    await shop.until(all_ready, within=30)
    orders.append(shop.start("shop.py", "40"))
    await shop.until(several_hold, within=20)
    stopped_at = time.monotonic()
    for process in started:
        process.terminate()
    codes = [process.wait(STOP) for process in started]
    took = time.monotonic() - stopped_at

    print(f"all were gone after {took:.2f} s")
    assert codes == [0] * 5
    assert took < STOP
    # Only the one that was killed may still hold jobs: without a supervisor that sees the death, the lease must expire.
    assert await shop.holding() <= {lost}

    # After the deployment.
    assert [process.wait(60) for process in orders] == [0, 0]
    last = shop.worker("--concurrency", "20")

    async def all_over() -> bool:
        queues = (await shop.storage.survey()).queues
        return not sum(count for queue in queues for state, count in queue.counts.items() if state not in TERMINAL)

    await shop.until(all_over, within=60)
    last.terminate()
    assert last.wait(STOP) == 0
    await audited(shop, [ref for process in orders for ref in shop.acknowledged(process)])


async def killed_at_work(
    shop: Shop, supervisors: list["subprocess.Popen[bytes]"]
) -> tuple["subprocess.Popen[bytes]", int]:
    """Kill a supervisor whose worker holds jobs at that very moment; return it, and the worker that dies with it."""
    for process in itertools.chain.from_iterable(itertools.repeat(supervisors, 100)):
        for child in children(process.pid):
            freeze(child)
            # What it holds now it still holds when it is dead.
            if child in await shop.holding():
                process.kill()
                return process, child
            os.kill(child, signal.SIGCONT)
        await asyncio.sleep(0.05)
    raise AssertionError("none was ever met at work")


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def freeze(pid: int) -> None:
    """Stop a process with SIGSTOP."""
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)


async def leads(shop: Shop) -> list[LeadershipAcquired]:
    """Return the leaders, in order."""
    return [event for event in await shop.events() if isinstance(event, LeadershipAcquired)]


async def audited(shop: Shop, acknowledged: list[Ref]) -> None:
    """Compare the records with the acknowledgements, the events and the effects outside the queue."""
    details = {detail.job.ref: detail for detail in await shop.details()}
    lost = [ref for ref in acknowledged if ref not in details or details[ref].job.state is not State.COMPLETED]
    outcomes = Counter(
        Ref(event.queue, event.id)
        for event in await shop.events()
        if isinstance(event, JobCompleted | JobFailed | JobCancelled | JobExpired)
    )
    silent = [
        detail.job.ref
        for detail in details.values()
        if [run.ended for run in detail.runs[:-1] if run.ended not in ("stalled", "raised", "released")]
        or len(detail.runs) != detail.job.starts
    ]
    effects = {kind.name: {file.name for file in kind.iterdir()} for kind in (shop.folder / "data").iterdir()}

    # An order accepted twice, by both producers, makes one payment that is kept; its second one has the same key.
    assert len(acknowledged) >= 200
    assert lost == []
    assert set(outcomes) == set(details)
    assert set(outcomes.values()) == {1}
    assert silent == []
    assert effects["payment"] == {f"order-{number:04}" for number in range(60)}
    assert effects["mail"] == {ref.id for ref in details if ref.queue == "mail"}
    assert {"day-0.csv", "day-1.csv", "day-2.csv"} <= effects["export"]
    # The killed worker held some.
    assert any(run.ended == "stalled" for detail in details.values() for run in detail.runs)


# ── the other files of the example ────────────────────────────────────────────────────────────────────────────────────


def parsed(arguments: list[str]) -> dict[str, Any]:
    """Return the arguments as the command line parses them; fail if one of them is unknown."""
    from tenure.cli.main import root

    with root.make_context("tenure", [arguments[0]], resilient_parsing=True) as context:
        command = root.get_command(context, arguments[0])
        assert command is not None
        made: click.Context = command.make_context(arguments[0], arguments[1:], parent=context)
        return made.params


def held_to(arguments: list[str], *, stop: float) -> None:
    """Check that a command is one of ours, on the example's app, and gets the time that it needs to stop."""
    options = parsed(arguments)
    drain = options["drain"].total_seconds() if "drain" in options else 0.0

    assert options["target"] == "shop:app"
    assert options["http"]
    assert stop >= drain + 5


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)s", text)
    assert found, text
    return float(found[1])


def test_the_compose_file_uses_valid_commands() -> None:
    (output,) = documents((HERE / "compose.yaml").read_text())
    services = output["services"]

    assert services.keys() == {"redis", "worker", "reaper"}
    assert (services["worker"]["deploy"]["replicas"], services["reaper"]["deploy"]["replicas"]) == (3, 2)
    kept = dict(zip(services["redis"]["command"][1::2], services["redis"]["command"][2::2], strict=True))
    assert (kept["--appendonly"], kept["--maxmemory-policy"]) == ("yes", "noeviction")
    for name in ("worker", "reaper"):
        service = services[name]
        held_to(service["command"], stop=seconds(service["stop_grace_period"]))
        assert service["environment"]["TENURE_URL"].startswith("redis://redis:")
        assert "http://127.0.0.1:8080/ready" in service["healthcheck"]["test"][-1]
        # It is Python, and one line.
        compile(service["healthcheck"]["test"][-1], name, "exec")
        assert "127.0.0.1:8080" in service["command"]


def test_the_kubernetes_manifest_uses_valid_commands() -> None:
    output = documents((HERE / "kubernetes.yaml").read_text())

    assert [(item["kind"], item["spec"]["replicas"]) for item in output] == [("Deployment", 3), ("Deployment", 2)]
    for deployment in output:
        template = deployment["spec"]["template"]
        (container,) = template["spec"]["containers"]
        assert template["metadata"]["labels"] == deployment["spec"]["selector"]["matchLabels"]
        assert "0.0.0.0:8080" in container["args"]
        assert {line["name"] for line in container["env"]} == {"TENURE_URL", "TENURE_HTTP_TOKEN"}
        assert {container[probed]["httpGet"]["path"] for probed in ("livenessProbe", "readinessProbe")} == {
            "/live",
            "/ready",
        }
        assert {container[probed]["httpGet"]["port"] for probed in ("livenessProbe", "readinessProbe")} == {8080}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TENURE_HTTP_TOKEN", "from-the-secret")
            held_to(container["args"], stop=template["spec"]["terminationGracePeriodSeconds"])


UNITS = sorted((HERE / "systemd").iterdir())


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_systemd_unit_uses_valid_commands(unit: Path, tmp_path: Path) -> None:
    read = configparser.ConfigParser(interpolation=None, strict=True, delimiters=("=",))
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read_string(unit.read_text())
    service = read["Service"]
    program, *arguments = shlex.split(service["ExecStart"].replace("%i", "1").replace("%H", "host"))

    assert set(read.sections()) == {"Unit", "Service", "Install"}
    assert program.endswith("/bin/tenure")
    # Only a supervisor notifies systemd; it does so itself, so no other process needs access.
    assert service["Type"] == ("notify" if arguments[0] == "worker" else "exec")
    assert ("WatchdogSec" in service) == (service["Type"] == "notify")
    assert service.get("NotifyAccess", "main") == "main"
    assert (service["KillMode"], service["Restart"]) == ("mixed", "always")
    held_to(arguments, stop=float(service["TimeoutStopSec"]))
    if (analyze := shutil.which("systemd-analyze")) is not None:
        # It looks for the program, too, which is elsewhere here.
        copy = tmp_path / unit.name
        copy.write_text(unit.read_text().replace(program, sys.executable))
        done = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, timeout=60)
        complaints = [line for line in done.stderr.splitlines() if unit.stem.partition("@")[0] in line]

        assert (done.returncode, complaints) == (0, []), done.stderr


def test_the_readme_marks_files_that_were_not_run() -> None:
    text = (HERE / "README.md").read_text()

    for name in ("compose.yaml", "kubernetes.yaml", "systemd/", "Dockerfile"):
        (line,) = [line for line in text.splitlines() if line.startswith("|") and f"`{name}`" in line]
        assert "not run" in line


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\na: 2",
        "a: &x 1",
        "a: |\n  b",
        "a:\n\tb: 1",
        "a: [1",
        "a: {b}",
        "  a: 1\nb: 2",
        "a: b: c",
        "a: 1\n  b: 2",
        "x",
    ],
)
def test_yaml_beyond_the_plain_subset_is_refused(text: str) -> None:
    with pytest.raises(NotPlainError):
        documents(text)


def test_plain_yaml_is_read() -> None:
    text = 'a: [1, "two: #2", {b: c/d, e: true}]  # why\nf:\n- g: 1\n  h: x y\n- plain\ni:\n---\nj: 250m'

    assert documents(text) == [
        {"a": [1, "two: #2", {"b": "c/d", "e": True}], "f": [{"g": 1, "h": "x y"}, "plain"], "i": None},
        {"j": "250m"},
    ]
