"""The goals that were set before the first measurement, and the result of a run for each."""

from collections.abc import Iterator

from msgspec import Struct

from benchmarks.growth import Growth
from benchmarks.peers.found import FLOOR, KEEPS_A_RECORD, OURS, OURS_ON_POSTGRES, OURS_ON_SQLITE, Best, Found
from benchmarks.peers.results import Entry, Summary

KILOBYTE = 1024
FLAT = 1.5
"""The factor by which a job may cost more and still count as costing the same."""
AT_BEST = ("process_10", "process_100", "process_1000")
"""The cells among which each queue on PostgreSQL has its best."""


class Judged(Struct, frozen=True):
    """One goal and its result; `ratio` is None if the run did not measure it."""

    what: str
    goal: str
    ratio: float | None
    against: str
    bound: float
    at_least: bool
    unit: str = "x"

    @property
    def met(self) -> bool | None:
        """Whether it is met; None if that was not measured."""
        if self.ratio is None:
            return None
        return self.ratio >= self.bound if self.at_least else self.ratio <= self.bound

    @property
    def verdict(self) -> str:
        """Return the answer in words, with by how much it is missed."""
        if self.ratio is None or self.met is None:
            return "not measured"
        if self.met:
            return "met"
        short = 1 - self.ratio / self.bound if self.at_least else (self.ratio / self.bound - 1 if self.bound else 1.0)
        return f"**missed** by {short:.0%}"


def judged(found: Found, growth: Growth | None) -> list[Judged]:
    """Return every goal with its answer."""
    return [*_on_redis(found), *_on_sqlite(found), *_on_postgres(found), *_kept(found), *_growing(growth)]


def _on_redis(found: Found) -> Iterator[Judged]:
    rivals = found.rivals("redis")
    node = [entry for entry in found.on("redis") if entry.key == "bullmq-node"]
    floor = [entry for entry in found.on("redis") if entry.key == FLOOR]

    def at_least(what: str, goal: str, cell: str, bound: float, others: list[Entry]) -> Judged:
        return _more(found, what, goal, cell, bound, others, OURS)

    ten, hundred = "Redis, processed by one process at once 10", "Redis, processed by one process at once 100"
    yield at_least(hundred, "at least 7x the fastest peer in Python", "process_100", 7, rivals)
    yield at_least(hundred, "at least 1.3x BullMQ on Node", "process_100", 1.3, node)
    yield at_least(hundred, "at least half of the batched floor", "process_100", 0.5, floor)
    yield at_least(ten, "at least 4x the fastest peer in Python", "process_10", 4, rivals)
    yield at_least("Redis, enqueued one by one", "at least 1.3x the fastest peer", "enqueue_one", 1.3, rivals)
    yield at_least("Redis, enqueued one by one", "at least 75 % of bare EVALSHA", "enqueue_one", 0.75, floor)
    yield at_least("Redis, enqueued by 50 callers", "at least 4x the fastest peer", "enqueue_callers", 4, rivals)
    yield at_least("Redis, enqueued in bulk", "at least 4x the fastest peer", "enqueue_bulk", 4, rivals)
    for part in ("p50", "p99"):
        best = found.best(rivals, "latency_idle", part, most=False)
        ours = found.figure(OURS, "latency_idle", part)
        yield _less(f"Redis, latency when idle, {part}", "below the best peer's", ours, best, 1, "ms")
    trip = found.figure(FLOOR, "enqueue_one")
    ours = found.figure(OURS, "latency_idle", "p50")
    ratio = ours.median * trip.median / 1000 if ours and trip else None
    yield Judged("Redis, latency when idle, p50", "below 3 bare round trips", ratio, _described(floor, trip), 3, False)
    ours = found.figure(OURS, "process_100", "worker_cpu")
    what = "Redis, worker's CPU for a job, at once 100"
    best = found.best(rivals, "process_100", "worker_cpu", most=False)
    yield _less(what, "at most a quarter of the best peer's", ours, best, 0.25, "s")
    best = found.best(node, "process_100", "worker_cpu", most=False)
    yield _less(what, "at most that of BullMQ on Node", ours, best, 1, "s")


def _on_sqlite(found: Found) -> Iterator[Judged]:
    rivals = found.rivals("sqlite")
    huey = [entry for entry in rivals if entry.key == "huey-sqlite"]
    flexiq = [entry for entry in rivals if entry.key == "flexiq"]
    for cell, at_once in (("process_10", 10), ("process_100", 100)):
        what = f"SQLite, processed by one process at once {at_once}"
        yield _more(found, what, "at least 4x huey", cell, 4, huey, OURS_ON_SQLITE)
        yield _more(found, what, "at least 20x FlexiQ", cell, 20, flexiq, OURS_ON_SQLITE)
    what = "SQLite, enqueued by 50 callers"
    yield _more(found, what, "at least 4x the best peer's", "enqueue_callers", 4, rivals, OURS_ON_SQLITE)
    one = found.best(rivals, "enqueue_one")
    ours = found.figure(OURS_ON_SQLITE, "enqueue_callers")
    goal = "ahead of any peer's one by one"
    yield Judged(what, goal, _over(ours, one), _named(one, "jobs/s"), 1, True)


def _on_postgres(found: Found) -> Iterator[Judged]:
    rivals = found.rivals("postgresql")
    pgqueuer = [entry for entry in rivals if entry.key.startswith("pgqueuer")]
    procrastinate = [entry for entry in rivals if entry.key == "procrastinate"]
    own = [entry for entry in found.on("postgresql") if entry.key == OURS_ON_POSTGRES]
    ours = best[1] if (best := found.at_best(own, AT_BEST)) else None
    what = "PostgreSQL, processed by one process at its best"
    goals = (("ahead of pgqueuer", 1.0, pgqueuer), ("at least 20x procrastinate", 20.0, procrastinate))
    for goal, bound, others in goals:
        theirs = found.at_best(others, AT_BEST)
        yield Judged(what, goal, _over(ours, theirs), _named(theirs, "jobs/s"), bound, True)
    capped = [entry for entry in pgqueuer if entry.key == "pgqueuer"]
    what = "PostgreSQL, processed by one process at once 10"
    yield _more(found, what, "at least 3x pgqueuer", "process_10", 3, capped, OURS_ON_POSTGRES)
    usual = found.best(own, "process_100")
    for cell, among in (("process_backlog", "a long backlog"), ("process_worn", "many that have gone through")):
        what = f"PostgreSQL, processed by one process at once 100, {among}"
        goal = f"at least 1/{FLAT:g} of what it is without"
        yield Judged(
            what, goal, _over(found.figure(OURS_ON_POSTGRES, cell), usual), _named(usual, "jobs/s"), 1 / FLAT, True
        )
    for cell, bound, way in (("enqueue_one", 1.3, "one by one"), ("enqueue_bulk", 4.0, "in bulk")):
        what = f"PostgreSQL, enqueued {way}"
        yield _more(found, what, f"at least {bound:g}x the best peer", cell, bound, rivals, OURS_ON_POSTGRES)


def _kept(found: Found) -> Iterator[Judged]:
    what = "Redis, memory of a waiting job of 200 B"
    ours = found.figure(OURS, "memory", "bytes")
    bytes_ = None if ours is None else ours.median / KILOBYTE
    yield Judged(what, "at most 1 KB", bytes_, "", 1, False, unit=" KB")
    keepers = [entry for entry in found.on("redis") if entry.key in KEEPS_A_RECORD]
    best = found.best(keepers, "memory", "bytes", most=False)
    yield _less(what, "the least of those that keep a record", ours, best, 1, "B")
    what, cell = "kill -9 at defaults", "recovery_default"
    for key, storage, name in (
        (OURS, "redis", "Redis"),
        (OURS_ON_SQLITE, "sqlite", "SQLite"),
        (OURS_ON_POSTGRES, "postgresql", "PostgreSQL"),
    ):
        title = f"{what}, {name}"
        ours = found.figure(key, cell, "last")
        whole = [entry for entry in found.on(storage) if entry.role == "peer" and found.lost_nothing(entry.key, cell)]
        best = found.best(whole, cell, "last", most=False)
        yield _less(title, "sooner back than any peer's that come back", ours, best, 1, "s")
        for figure, goal in (("unfinished", "no job lost"), ("twice", "none run twice without need")):
            count = found.figure(key, cell, figure)
            yield Judged(title, goal, None if count is None else count.most, "", 0, False, unit=" jobs")
    for what, cell, bound in (
        ("kill -9 at defaults", "recovery_default", 27.0),
        ("kill -9 that a supervisor sees", "recovery_seen", 1.0),
    ):
        last = found.figure(OURS_ON_POSTGRES, cell, "last")
        yield Judged(f"{what}, PostgreSQL", f"within {bound:g} s", last.most if last else None, "", bound, False, " s")


def _growing(growth: Growth | None) -> Iterator[Judged]:
    if growth is None:
        yield Judged("cost as work grows", "flat within 1.5x", None, "", 1.5, False)
        return
    for medium, axis in dict.fromkeys((point.medium, point.axis) for point in growth.points):
        points = [point for point in growth.points if (point.medium, point.axis) == (medium, axis)]
        worst = max(points, key=lambda point: point.times)
        what = (
            f"{'Redis' if medium == 'redis' else 'SQLite'}, {axis}: {points[0].shape.title} to {points[-1].shape.title}"
        )
        against = f"{points[0].worker_us + points[0].server_us:.0f} µs of both processors"
        yield Judged(what, f"a job costs at most {growth.bound:g}x", worst.times, against, growth.bound, False)


def _more(found: Found, what: str, goal: str, cell: str, bound: float, others: list[Entry], ours: str) -> Judged:
    best = found.best(others, cell)
    return Judged(what, goal, _over(found.figure(ours, cell), best), _named(best, "jobs/s"), bound, True)


def _less(what: str, goal: str, ours: Summary | None, best: Best | None, bound: float, unit: str) -> Judged:
    return Judged(what, goal, _over(ours, best), _named(best, unit), bound, False)


def _over(ours: Summary | None, best: Best | None) -> float | None:
    return ours.median / best[1].median if ours and best and best[1].median else None


def _named(best: Best | None, unit: str) -> str:
    return f"{best[0].title}, {shown(best[1].median)} {unit}" if best else ""


def _described(floor: list[Entry], trip: Summary | None) -> str:
    return f"{floor[0].title}, {1000 / trip.median:.3f} ms" if floor and trip else ""


def shown(value: float) -> str:
    """Return a figure with as many digits as are significant."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"
