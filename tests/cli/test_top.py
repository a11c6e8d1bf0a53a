"""`tenure top`: the figures that it reads, and the frame that it draws of them in any size."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from msgspec import structs

from tenure import Tenure, Timing
from tenure.cli.render import Line, text_width
from tenure.cli.top_frame import frame
from tenure.clock import SECOND
from tenure.core.events import AnyEvent, EventsTrimmed, JobCompleted, JobFailed
from tenure.core.job import Owner, RecordedError
from tenure.core.outcome import Outcome, Raised, Returned
from tenure.core.settlement import settlement
from tenure.ops.access import StorageAccess
from tenure.ops.throughput import Throughput, ended_jobs
from tenure.ops.top import ActiveRunView, Top, TopQueue, TopView
from tenure.ops.views import DeadGroupView, LeaderView
from tenure.ops.workers import ListedWorker
from tenure.storage.protocol import ClaimRequest, RenewRequest, SweepRequest, WorkerInfo
from tenure.storage.urls import locate
from tenure.testing.clock import ManualClock
from tests.cli.terminal import EVERYWHERE, Terminal

ANN = Owner("one", "ann", "host", 7)
NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
HOSTILE = "\x1b[2J\nqueue-名前の長いキュー-é́́\u202e-" + "x" * 300


async def run_some(app: Tenure, task: str, times: int, outcome: Outcome | None = None, **options: Any) -> list[str]:
    """Enqueue jobs and start them; end them with this outcome, or let them run."""
    for number in range(times):
        await app.find_task(task).options(**options).enqueue(*{"add": (1, 2), "bad": (number,)}.get(task, ()))
    queue = app.find_task(task).queue
    leases = (await app.storage.exchange(ANN, (), ClaimRequest((queue,), times))).leases
    if outcome is not None:
        await app.storage.exchange(ANN, [settlement(lease, outcome, Random(0)) for lease in leases], None)
    return [lease.ref.id for lease in leases]


# ── the figures ───────────────────────────────────────────────────────────────────────────────────────────────────────


@EVERYWHERE
def test_rates_count_jobs_that_were_deleted_before_the_next_look(there: Terminal) -> None:
    async def go() -> tuple[TopView, TopView, TopView]:
        clock = ManualClock(time.time_ns() // 1000 - 100 * SECOND)
        async with there.app(storage=locate(there.url, clock=clock)) as app:
            top = Top(StorageAccess(app.storage, app.codec.decode, Timing()))
            await run_some(app, "add", 20, Returned(b"3"), result_ttl="1s")
            clock.advance(2)
            await app.storage.sweep(SweepRequest(ANN))
            before = await top.look()
            clock.advance(4)
            await run_some(app, "bad", 2, Raised(RecordedError("ValueError", "no")))
            between = await top.look()
            clock.advance(4)
            await run_some(app, "elsewhere", 12, Returned(b"null"))
            return before, between, await top.look()

    before, between, after = asyncio.run(go())

    assert before.counts["completed"] == 0
    assert (before.completed_per_second, before.failed_per_second, before.measured) == (2.0, 0.0, 10.0)
    assert (between.completed_per_second, between.failed_per_second, between.measured) == (0.0, 0.5, 4.0)
    assert (after.completed_per_second, after.failed_per_second, after.measured) == (1.5, 0.25, 8.0)
    assert {queue.queue: queue.completed_per_second for queue in after.queues} == {"default": 0.0, "elsewhere": 1.5}


def test_a_busy_log_gives_the_rates_of_the_part_that_was_read(there: Terminal) -> None:
    async def go() -> list[tuple[float | None, float | None]]:
        clock = ManualClock(time.time_ns() // 1000 - 100 * SECOND)
        async with there.app(storage=locate(there.url, clock=clock)) as app:
            throughput = Throughput(most=6)
            found: list[tuple[float | None, float | None]] = []
            for jobs in (5, 0):
                for _ in range(jobs):
                    await run_some(app, "add", 2, Returned(b"3"))
                    clock.advance(1)
                rates = await throughput.measure(app.storage, (await app.storage.survey()).now)
                found.append((rates.per_second(rates.completed.total()), rates.measured))
                clock.advance(9)
            return found

    # Six events are read, of which the last two have the same instant; the rest of the log is skipped.
    assert asyncio.run(go()) == [(2.0, 2.0), (0.0, 9.0)]


def at(second: float) -> datetime:
    return NOW + timedelta(seconds=second)


def done(second: float) -> JobCompleted:
    return JobCompleted(queue="mail", id="x", task="t", run=1, attempt=1, duration=1.0, at=at(second))


@pytest.mark.parametrize(
    "events",
    [
        [EventsTrimmed(oldest="5"), done(1)],
        [done(1), done(1), done(1)],
    ],
    ids=["trimmed", "one instant"],
)
def test_events_that_do_not_show_the_rates_give_none(events: Sequence[AnyEvent]) -> None:
    assert ended_jobs(events, 0, 10 * SECOND, complete=False) is None


def test_a_clock_that_was_set_back_gives_no_rates() -> None:
    assert ended_jobs([done(1)], 10 * SECOND, 9 * SECOND, complete=True) is None


def test_failures_and_completions_are_counted_by_queue() -> None:
    failed = JobFailed(queue="pay", id="y", task="t", run=1, attempt=1, reason="exhausted", at=at(2))
    found = ended_jobs([done(1), done(2), failed], 0, 10 * SECOND, complete=True)

    assert found is not None
    assert (found.completed, found.failed) == ({"mail": 2}, {"pay": 1})


@EVERYWHERE
def test_the_longest_runs_and_the_newest_faults_are_first(there: Terminal) -> None:
    async def go() -> tuple[list[str], TopView]:
        clock = ManualClock(time.time_ns() // 1000 - 100 * SECOND)
        async with there.app(storage=locate(there.url, clock=clock)) as app:
            info = WorkerInfo(queues=("default",), concurrency=5)
            await app.storage.renew(RenewRequest(ANN, worker=info))
            await run_some(app, "bad", 3, Raised(RecordedError("ValueError", "no")))
            clock.advance(1)
            await run_some(app, "bad", 1, Raised(RecordedError("KeyError", "'x'")))
            ids = await run_some(app, "hang", 1)
            clock.advance(2)
            ids += await run_some(app, "elsewhere", 1)
            await app.find_task("elsewhere").enqueue()
            await app.find_task("add").options(delay="1h").enqueue(1, 2)
            clock.advance(1)
            return ids, await Top(StorageAccess(app.storage, app.codec.decode, Timing())).look()

    ids, view = asyncio.run(go())

    assert [(run.id, run.ran, run.worker) for run in view.running] == [(ids[0], 3.0, "ann"), (ids[1], 1.0, "ann")]
    assert [(fault.error, fault.count) for fault in view.faults] == [("KeyError", 1), ("ValueError", 3)]
    assert [queue.queue for queue in view.queues] == ["elsewhere", "default"]
    counts = {state: count for state, count in view.counts.items() if count}
    assert counts == {"waiting": 1, "active": 2, "delayed": 1, "failed": 4}
    assert view.oldest_waiting == 1.0


@EVERYWHERE
def test_json_has_the_same_figures(there: Terminal) -> None:
    there.enqueue("bad", 1, work=True)
    seen = there.read("top")

    assert tuple(seen) == TopView.__struct_fields__
    assert seen["failed_per_second"] == 0.1
    assert seen["queues"][0]["failed_per_second"] == 0.1
    assert [(fault["task"], fault["error"]) for fault in seen["faults"]] == [("bad", "ValueError")]


def test_without_a_terminal_one_frame_is_printed(there: Terminal) -> None:
    there.enqueue("bad", 1, work=True)
    there.enqueue("elsewhere")
    piped, once = there.run("top"), there.run("top", "--once")

    assert piped.exit_code == once.exit_code == 0
    assert "waiting 1   active 0   delayed 0   failed 1   oldest " in piped.stdout
    assert "completed 0.0/s   failed 0.1/s   leader: " in piped.stdout
    assert "queue 'elsewhere': 1 job waits and no live worker serves it\n" in piped.stdout
    assert [line.split()[:5] for line in piped.stdout.splitlines() if line.startswith("elsewhere")] == [
        ["elsewhere", "1", "0", "0", "0"]
    ]
    assert "bad           ValueError: not 1 really not" in piped.stdout
    assert [line.split()[:1] for line in piped.stdout.splitlines()] == [
        line.split()[:1] for line in once.stdout.splitlines()
    ]


def test_a_storage_that_is_down_is_an_error_without_a_terminal(terminal: Terminal) -> None:
    terminal.refused("top", "--url", "redis://127.0.0.1:1/0", code=1)
    assert "no database exists" in terminal.refused("top", "--url", "sqlite:///nowhere.db")


# ── the frame ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def figures(*, queues: int = 1, workers: int = 1, runs: int = 1, faults: int = 1, name: str = "mail") -> TopView:
    """Return figures with so many rows in each section."""
    counts = {"waiting": 12_345_678, "active": runs, "delayed": 3, "failed": 4, "completed": 5}
    return TopView(
        url=f"sqlite:///{name}.db",
        now=NOW,
        leaders=[LeaderView(scope="*", owner="w0", epoch=1)],
        swept_ago=0.4,
        completed_per_second=123.4,
        failed_per_second=None,
        measured=10.0,
        counts=counts,
        oldest_waiting=3.2,
        queues=[
            TopQueue(
                queue=f"{name}{number}",
                paused=number == 1,
                oldest_waiting=3.2,
                parked=0,
                discarded=0,
                counts=counts,
                limits=[],
                completed_per_second=0.01,
                failed_per_second=0.0,
            )
            for number in range(queues)
        ],
        workers=[
            ListedWorker(
                owner=f"w{number}",
                name=f"{name}-worker",
                host=f"{name}-host",
                pid=1_234_567,
                queues=("mail",),
                concurrency=2,
                active=1,
                started=NOW,
                seen_ago=1.0,
                turned_ago=0.1,
                state="alive",
                lag=0.001,
                memory=50_000_000,
            )
            for number in range(workers)
        ],
        running=[
            ActiveRunView(queue="q", id=f"id-{number}", task=name, run=1, ran=61.0, owner="w0", worker=f"{name}-worker")
            for number in range(runs)
        ],
        faults=[
            DeadGroupView(
                fault="f",
                task=name,
                reason="exhausted",
                error="ValueError",
                message=f"{name}\n{number}",
                count=3,
                first=NOW,
                last=NOW - timedelta(seconds=5),
                newest=[],
            )
            for number in range(faults)
        ],
        complaints=[f"worker {name} is stale"] * 3,
    )


def text_of(line: Line) -> str:
    return "".join(text for text, _ in line)


def screen(view: TopView | None, *, width: int = 80, height: int | None = 24, trouble: str = "") -> list[str]:
    url = "sqlite:///jobs.db" if view is None else view.url
    return [text_of(line) for line in frame(view, url=url, width=width, height=height, trouble=trouble, hint="q: quit")]


@pytest.mark.parametrize("name", ["mail", HOSTILE], ids=["short", "hostile"])
@pytest.mark.parametrize("rows", [0, 1, 30])
def test_a_frame_fits_a_terminal_of_any_size(name: str, rows: int) -> None:
    view = figures(queues=rows, workers=rows, runs=rows, faults=rows, name=name)
    for width in (1, 7, 20, 40, 60, 79, 80, 81, 200):
        for height in (1, 2, 3, 5, 8, 11, 13, 24, 25, 60):
            lines = screen(view, width=width, height=height, trouble="down" * (height % 2))

            assert len(lines) <= height
            assert all(text_width(line) <= width for line in lines), (width, height, lines)
            assert all(line.isprintable() for line in lines)


def test_each_section_shrinks_and_says_how_many_rows_are_left_out() -> None:
    lines = screen(figures(queues=9, workers=9, runs=9, faults=9))

    assert len(lines) == 24
    assert [line.split()[0] for line in lines if line.endswith((" state", " beat", " last", " worker"))] == [
        "queue",
        "worker",
        "newest",
        "longest",
    ]
    left_out = [int(line.split()[1]) for line in lines if line.startswith("and ") and line.endswith(" more")]
    rows = sum(line.startswith(("mail0", "mail1", "mail2", "mail-", "mail ")) for line in lines)
    assert len(left_out) == 4
    assert rows + sum(left_out) == 36


def test_a_short_section_leaves_its_room_to_the_others() -> None:
    lines = screen(figures(queues=30, workers=1, runs=0, faults=0))

    assert sum(line.startswith("mail") and "-worker" not in line for line in lines) >= 6
    assert lines[-1] == "none"


def test_rows_that_come_and_go_do_not_move_other_sections() -> None:
    idle, busy = (screen(figures(queues=30, workers=1, runs=runs)) for runs in (0, 2))
    start = next(at for at, line in enumerate(idle) if line.startswith("longest run"))

    assert [len(line) for line in idle[: start + 1]] == [len(line) for line in busy[: start + 1]]
    assert busy[start].startswith("longest run")


def test_a_frame_without_a_limit_has_all_rows() -> None:
    lines = screen(figures(queues=40, workers=40, runs=40, faults=40), height=None)

    assert sum(line.startswith("mail") for line in lines) == 160
    assert not [line for line in lines if line.startswith("and") and "problems" not in line]


def test_totals_rates_problems_and_the_leader_are_above_the_tables() -> None:
    lines = screen(figures())

    assert lines[0] == "tenure top  sqlite:///mail.db" + "2026-07-01 12:00:00Z".rjust(51)
    assert lines[1] == "waiting 12345678   active 1   delayed 3   failed 4   oldest 3.2 s" + "q: quit".rjust(15)
    assert lines[2] == "completed 123/s   failed -/s   leader: mail-worker, last swept 400 ms ago"
    assert lines[3:5] == ["worker mail is stale", "and 2 more problems, see tenure info"]
    assert lines[7].split() == ["mail0", "12345678", "3", "1", "4", "3.2", "s", "<0.1", "open"]


def test_a_storage_that_is_down_is_one_line_above_the_old_figures() -> None:
    fresh, old = screen(figures(), height=30), screen(figures(), height=30, trouble="old figures: no answer")

    assert old == [fresh[0], "old figures: no answer", *fresh[1:]]
    assert screen(None, trouble="connecting") == ["tenure top  sqlite:///jobs.db", "connecting"]


def test_a_paused_queue_and_a_worker_in_trouble_have_colours() -> None:
    view = figures(queues=2)
    stale = structs.replace(view, workers=[structs.replace(view.workers[0], state="stale")])
    styles = {text: style for line in frame(stale, url="", width=80, height=24) for text, style in line}

    assert (styles["paused"], styles["stale"], styles["open"]) == ("paused", "stale", "")


def test_colours_are_left_out_on_request(there: Terminal) -> None:
    there.enqueue("add", 1, 2)

    assert "\x1b[" in there.drawn("top", "--once", env={"TERM": "xterm"}, color=True)
    assert "\x1b[" not in there.drawn("top", "--once", env={"TERM": "xterm", "NO_COLOR": "1"}, color=True)
