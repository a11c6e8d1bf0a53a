"""The model's answers to reads: jobs, pages, surveys, events and acts."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tenure.clock import Clock
from tenure.core.audit import OperatorAct
from tenure.core.figures import FiguresQuery
from tenure.core.internal import included, includes_worker
from tenure.core.job import (
    JobDetail,
    LogPosition,
    Ref,
)
from tenure.core.lifecycle import State
from tenure.core.retention import KeepRule
from tenure.storage.cursors import place_of
from tenure.storage.memory.act_log import ActLog
from tenure.storage.memory.listing import due_page, faults_of, matches
from tenure.storage.memory.sweep import SweepRules
from tenure.storage.names import (
    QUEUE_RATE,
    UNKNOWN,
    UNKNOWN_LOOKS,
    task_of_place,
)
from tenure.storage.queries import (
    EVENTS_END,
    ActsPage,
    ActsQuery,
    EventPage,
    EventReader,
    Page,
    Query,
    QueueSurvey,
    StartLimit,
    Survey,
    UnknownTask,
    WorkerSurvey,
)
from tenure.storage.requests import (
    LOOK_LIMIT,
)


class ModelReads(SweepRules):
    """Answers reads; it changes only what named readers of events have reserved."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._act_log = ActLog()

    def get(self, refs: Sequence[Ref]) -> list[JobDetail | None]:
        """Return each job with its runs and log."""
        now = self._clock.now()
        found: list[JobDetail | None] = []
        for ref in refs:
            # The id of a merged call names the job that it was merged into.
            ref = self._merged_into.get(ref, ref)
            job = self._jobs.get(ref)
            gone = job is None or self._is_past_retention(job, now)
            found.append(None if gone else self._detail(ref))
        return found

    def _detail(self, ref: Ref) -> JobDetail:
        log = tuple(self._log[ref])
        dropped = self._logged.get(ref, LogPosition()).lines - len(log)
        steps = tuple(self._steps.get(ref, {}).values())
        return JobDetail(self._with_calls(ref), tuple(self._runs[ref]), log, dropped, steps)

    def find(self, query: Query) -> Page:
        """Return one page of records, in the order of the query."""
        now = self._clock.now()
        if query.order == "due":
            return due_page(self._jobs.values(), query)
        before = place_of(query.after) if query.after is not None else None
        order = [
            (number, ref) for ref, number in reversed(self._indexes.order.items()) if before is None or number < before
        ]
        looked = order[: None if query.id is not None or query.merge is not None else query.looks]
        found = [
            (number, self._jobs[ref])
            for number, ref in looked
            if not self._is_past_retention(self._jobs[ref], now) and matches(self._jobs[ref], query)
        ][: query.limit + 1]
        page = found[: query.limit]
        end = page[-1][0] if len(found) > len(page) else looked[-1][0] if len(order) > len(looked) else None
        return Page(tuple(self._with_calls(job.ref) for _, job in page), None if end is None else str(end))

    def survey(self, queues: Sequence[str] = (), faults: int = 0, figures: FiguresQuery | None = None) -> Survey:
        """Return job counts, queues, workers, the most frequent faults, and figures."""
        now = self._clock.now()
        counts: defaultdict[str, defaultdict[State, int]] = defaultdict(lambda: defaultdict(int))
        for job in self._jobs.values():
            counts[job.queue][job.state] += 1
        tuned = {target.name for target in self._settings if target.kind == "queue"}
        spoiled = {name for name, indexes in self._queues.items() if indexes.discarded}
        names = sorted(included({*counts, *tuned, *spoiled}, ()) if not queues else set(queues))
        tasks = {target.name: setting for target, setting in self._settings.items() if target.kind == "task"}
        return Survey(
            queues=tuple(
                QueueSurvey(
                    queue=name,
                    counts=dict(sorted(counts[name].items())),
                    oldest_waiting=self._oldest(name, now),
                    parked=sum(map(len, self._queues[name].parked.values())) if name in self._queues else 0,
                    unknown=self._unknown(name, now),
                    discarded=self._queues[name].discarded if name in self._queues else 0,
                    settings=self._setting("queue", name),
                    limits=tuple(
                        StartLimit(None if limit == QUEUE_RATE else limit, until)
                        for limit, until in self._indexes.limits(name, now)[:LOOK_LIMIT]
                    ),
                )
                for name in names
            ),
            paused_tasks=tuple(sorted(name for name, task in tasks.items() if task.paused)),
            task_rates={name: rate for name, task in sorted(tasks.items()) if (rate := task.rate) is not None},
            workers=tuple(
                WorkerSurvey(
                    owner=worker.beat.owner,
                    queues=worker.beat.worker.queues,
                    concurrency=worker.beat.worker.concurrency,
                    active=worker.beat.worker.active,
                    started=worker.started,
                    seen_ago=max(0, now - worker.at),
                    turned_ago=max(0, now - worker.at) + worker.beat.worker.turned_ago,
                    stopping=worker.beat.worker.stopping,
                    died=worker.died,
                    lag=worker.beat.worker.lag,
                    memory=worker.beat.worker.memory,
                    quiet=worker.beat.worker.quiet,
                    tasks=worker.beat.worker.tasks,
                    unstopped=worker.beat.worker.unstopped,
                    why=worker.beat.worker.why,
                    alarm=worker.beat.worker.alarm,
                )
                for worker in self._workers.values()
                if worker.beat.worker is not None and includes_worker(worker.beat.worker.queues, queues)
            ),
            schedules=tuple(self._schedules[name] for name in sorted(self._schedules)),
            faults=faults_of(self._jobs.values(), names, faults),
            figures=() if figures is None else self._figures.read(names, figures, now),
            leaders=(self._term[0],) if self._term is not None and self._term[1] > now else (),
            swept_ago=now - self._swept_at if self._swept_at is not None else None,
            now=now,
        )

    def _unknown(self, queue: str, now: int) -> tuple[UnknownTask, ...]:
        if queue not in self._queues:
            return ()
        parked = sorted((name, index) for name, index in self._queues[queue].parked.items() if name.startswith(UNKNOWN))
        found: list[UnknownTask] = []
        for name, index in parked[:LOOK_LIMIT]:
            since = min(self._jobs[ref].run_at for ref in index.first(UNKNOWN_LOOKS))
            found.append(UnknownTask(*task_of_place(name), max(0, now - since)))
        return tuple(found)

    def _oldest(self, queue: str, now: int) -> int | None:
        if queue not in self._queues:
            return None
        indexes = self._queues[queue]
        waiting = [ref for index in (indexes.ready, *indexes.parked.values()) for _, ref in index]
        return max((max(0, now - self._jobs[ref].run_at) for ref in waiting), default=None)

    def events(
        self, cursor: str | None, limit: int, reader: EventReader | None = None, of: Ref | None = None
    ) -> EventPage:
        """Return what happened after the cursor."""
        if reader is None or cursor == EVENTS_END:
            return self._event_log.page(cursor, limit, of, now=self._clock.now())
        return self._event_log.lend(cursor, limit, reader, self._clock.now())

    def record_act(self, act: OperatorAct, keep: KeepRule) -> OperatorAct:
        """Write an operator's act into the audit log."""
        return self._act_log.record(act, keep, self._clock.now())

    def acts(self, query: ActsQuery) -> ActsPage:
        """Return one page of the audit log."""
        return self._act_log.page(query)

    def indexed(self) -> Iterator[tuple[str, int, Ref]]:
        """Yield the entries of the indexes: the index's name, the job's sort number in it, the job."""
        return self._indexes.indexed()
