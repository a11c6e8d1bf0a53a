"""The handlers of all reads, with their parameters and answers."""

from collections.abc import AsyncGenerator, Awaitable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from msgspec import Struct, structs

from tenure._version import __version__
from tenure.client.dead_letters import DeadFilter, DeadGroups
from tenure.client.filters import fault_named
from tenure.client.schedules import ticks_after
from tenure.console.lookups import known_of as _known
from tenure.console.lookups import name_of as _name
from tenure.console.lookups import narrowed as _narrowed
from tenure.console.lookups import queue_of as _queue
from tenure.console.lookups import ref_of as _ref
from tenure.console.lookups import schedule_of as _schedule
from tenure.console.lookups import survey_of as _survey
from tenure.console.lookups import webhook_of as _webhook_of
from tenure.console.lookups import webhooks_of as _webhooks_of
from tenure.console.lookups import worker_of as _worker
from tenure.console.patches import queue_tag, task_settings, task_tag
from tenure.console.problems import ProblemError, ProblemPart, bad_parameter, from_message, unknown_name
from tenure.console.records import (
    EVENTS_MOST,
    JOBS_MOST,
    LOOKS,
    SIFTED,
    AuditQuery,
    DeadGroupsQuery,
    DeliveriesQuery,
    DeliveriesView,
    EventsQuery,
    FiguresParameters,
    JobEventsQuery,
    JobLogView,
    JobsQuery,
    JobsView,
    LeasesQuery,
    LimitsView,
    ListedWorkers,
    MetaView,
    QueuesFiguresParameters,
    QueuesView,
    ReasonsView,
    RunsView,
    SchedulesView,
    StacksQuery,
    StacksView,
    StatsQuery,
    TaskStatusView,
    TasksView,
    TicksQuery,
    TicksView,
    UserView,
    WebhooksView,
)
from tenure.console.routes import ApiCall
from tenure.core.backlog import Backlog, Thresholds
from tenure.core.check import shown
from tenure.core.document import decode_document
from tenure.core.duration import Duration, duration, instant, micros, moment
from tenure.core.events import AnyEvent
from tenure.core.filter_text import JobConditions, NamePattern, exact_names, parse_filter
from tenure.core.internal import WEBHOOKS_QUEUE, is_internal
from tenure.core.job import Ref
from tenure.core.published import PublishedTask
from tenure.core.suggestion import alternatives, close_to, did_you_mean
from tenure.errors import UsageError
from tenure.health.assessment import Health, judged, state_of
from tenure.ops.audit import ActsView, acts_view
from tenure.ops.events import KINDS, EventsRead, events_after, shown_events, wanted_events
from tenure.ops.examination import examine
from tenure.ops.fault_hours import FaultHoursView, fault_hours_view
from tenure.ops.figures import FiguresView, QueuesFiguresView, figures_view, queues_figures_view, require_time_between
from tenure.ops.job_list import JobsFound, job_row, selected_jobs, selection
from tenure.ops.jobs import detail_of, reasons_of
from tenure.ops.leases import LeasesView, leases_view
from tenure.ops.queue_stats import queue_stats
from tenure.ops.run_history import why_again
from tenure.ops.task_schemas import published_task, published_task_view
from tenure.ops.tasks import task_views
from tenure.ops.views import (
    DeadGroupsView,
    DeadGroupView,
    DetailView,
    DoctorView,
    InfoView,
    QueueSettingsView,
    QueueStatsView,
    ScheduleView,
    dead_groups_view,
    detail_view,
    info_view,
    queue_settings_view,
    schedule_view,
    task_rates_view,
    tick_view,
)
from tenure.ops.webhooks import WebhookView, delivery_decoder, delivery_views, webhook_view
from tenure.ops.workers import ListedWorker, listed_worker, stacks
from tenure.storage.cursors import recorded_within
from tenure.storage.protocol import ActsQuery, Survey

T = TypeVar("T")

STATS_MOST = 500
"""How many ended jobs statistics are made of at most."""

HINTS = 5
"""How many unknown names in a filter one answer hints at."""


# ── the console and the whole storage ─────────────────────────────────────────────────────────────────────────────────


async def meta(call: ApiCall, query: Struct) -> MetaView:
    """Show the version, the user of this request, and the limits."""
    user, queues = call.user, call.user.queues
    return MetaView(
        version=__version__,
        url=call.access.storage.url,
        user=UserView(
            name=user.name,
            role=user.role,
            queues=None if queues is None else tuple(pattern.text for pattern in queues),
        ),
        read_only=call.read_only,
        payloads=call.payloads,
        features=("reads", "acts", "operations", "webhooks"),
        limits=LimitsView(jobs=JOBS_MOST, events=EVENTS_MOST, looks=LOOKS),
    )


async def survey(call: ApiCall, query: Struct) -> InfoView:
    """Show all queues, workers and leaders, what is slow, and what needs attention."""
    found = await _survey(call)
    slow = await call.slow.look(call.access.storage, found)
    slow = structs.replace(slow, runs=[run for run in slow.runs if call.user.sees(run.queue)])
    return info_view(found, url=call.access.storage.url, timing=call.access.timing, slow=slow)


async def health(call: ApiCall, query: Struct) -> Health:
    """Assess all queues, workers and the reaper."""
    defined = [task.queue for task in (call.access.tasks or {}).values() if call.user.sees(task.queue)]
    return judged(
        await _survey(call),
        timing=call.access.timing,
        defined=defined,
        thresholds=Thresholds(),
        backlog=Backlog(),
        now=0.0,
    )


async def doctor(call: ApiCall, query: Struct) -> DoctorView:
    """Diagnose the storage and the setup; each finding names its remedy."""
    if call.narrowed:
        raise ProblemError(
            "forbidden", "the diagnosis covers all queues, and this user sees some", "ask a user who sees all queues"
        )
    return (await examine(call.access)).view


# ── queues and tasks ──────────────────────────────────────────────────────────────────────────────────────────────────


async def queues(call: ApiCall, query: Struct) -> QueuesView:
    """List the queues: jobs by state, settings and limits."""
    return QueuesView(queues=[queue_settings_view(queue) for queue in (await _survey(call)).queues])


async def queue(call: ApiCall, query: Struct) -> QueueSettingsView:
    """Show one queue."""
    found, _ = await _queue(call)
    call.reply_headers.append((b"etag", queue_tag(found).encode()))
    return queue_settings_view(found)


async def queue_statistics(call: ApiCall, query: StatsQuery) -> QueueStatsView:
    """Show outcomes, waiting times and durations of the jobs of a queue that ended recently."""
    window = _span(query.window, "window")
    found, now = await _queue(call)
    return await queue_stats(call.access.storage, found, now=now, window=window, most=STATS_MOST, looks=LOOKS)


async def figures(call: ApiCall, query: FiguresParameters) -> FiguresView:
    """Show how many runs ended, how long jobs waited and how long runs took, in steps of time."""
    found = await _survey(call)
    task = None if query.task is None else _name(query.task, "task", "query")
    queues, steps = _wanted_queues(call, found, query.queue), _steps(query, found.now)
    try:
        return await figures_view(call.access.storage, queues, task=task, **steps)
    except UsageError as error:
        raise bad_parameter("invalid-parameter", "step", str(error)) from error


async def queues_figures(call: ApiCall, query: QueuesFiguresParameters) -> QueuesFiguresView:
    """Show the figures of each queue in steps of time, the queues with most ends first."""
    found = await _survey(call)
    queues, steps = _wanted_queues(call, found, ()), _steps(query, found.now)
    try:
        return await queues_figures_view(call.access.storage, queues, **steps, limit=query.limit)
    except UsageError as error:
        raise bad_parameter("invalid-parameter", "step", str(error)) from error


def _wanted_queues(call: ApiCall, found: Survey, names: Iterable[str]) -> list[str]:
    """Return the queues that the request names, or all; as far as the user may see them."""
    wanted = _names(names, "queue")
    # A queue may have figures but no jobs any more.
    return sorted(filter(call.user.sees, wanted) if wanted else _known(call, found).queues)


def _steps(query: FiguresParameters | QueuesFiguresParameters, now: int) -> dict[str, int]:
    until = now if query.until is None else _instant(query.until, "until", now)
    since, step = _instant(query.since, "since", now), micros(_span(query.step, "step"))
    try:
        require_time_between(since, until)
    except UsageError as error:
        raise bad_parameter("invalid-parameter", "since", str(error)) from error
    return {"since": since, "until": until, "step": step}


async def tasks(call: ApiCall, query: Struct) -> TasksView:
    """List the tasks that a worker, a schedule, a setting or the app names, or that a worker has published."""
    found = await _survey(call)
    published = {task.name: task for task in await call.access.storage.published() if call.user.sees(task.queue)}
    # An internal task is shown if it is named.
    names = sorted(name for name in {*_known(call, found).tasks, *published} if not is_internal(name))
    return TasksView(tasks=[_task(call, found, name, published.get(name)) for name in names])


async def task(call: ApiCall, query: Struct) -> TaskStatusView:
    """Show one task, with the JSON Schemas of its arguments and its result."""
    found = await _survey(call)
    name, known = call.path["task"], _known(call, found).tasks
    published = await published_task(call.access.storage, name)
    if published is not None and not call.user.sees(published.queue):
        published = None
    if name not in known and published is None:
        raise unknown_name("unknown-task", "task", name, sorted(known))
    call.reply_headers.append((b"etag", task_tag(task_settings(found, name)).encode()))
    return _task(call, found, name, published)


def _task(call: ApiCall, found: Survey, name: str, published: PublishedTask | None) -> TaskStatusView:
    versions = [
        worker.tasks[name]
        for worker in found.workers
        if worker.tasks is not None and name in worker.tasks and state_of(worker, call.access.timing) != "stale"
    ]
    own = (call.access.tasks or {}).get(name)
    declared = None if own is None else task_views([own], implemented=call.access.implemented)[0]
    return TaskStatusView(
        name=name,
        workers=len(versions),
        version=max(versions, default=None),
        waiting_unknown=any(unknown.task == name for queue in found.queues for unknown in queue.unknown),
        paused=name in found.paused_tasks,
        rate=task_rates_view(found).get(name),
        declared=declared,
        published=None if published is None else published_task_view(published),
    )


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def jobs(call: ApiCall, query: JobsQuery) -> JobsView:
    """List the jobs that a filter selects, newest first or by due instant."""
    where = parse_filter(query.filter)
    found = await call.access.storage.survey()
    try:
        selected = selection(where, found, sees=call.user.sees if call.narrowed else None, order=query.order)
    except UsageError as error:
        raise bad_parameter("invalid-parameter", "order", str(error)) from error
    looks = LOOKS if selected.sifts is None else SIFTED
    page = await _at_cursor(
        selected_jobs(call.access.storage, selected, limit=query.limit, after=query.after, looks=looks)
    )
    hints = await _hints(call, where, found, page) if not page.jobs and query.after is None else []
    return JobsView(
        jobs=[job_row(job) for job in page.jobs], next=page.next, looks=looks, short=page.short, hints=hints
    )


async def _hints(call: ApiCall, where: JobConditions, found: Survey, page: JobsFound) -> list[str]:
    """Return messages about the names in a filter that nothing uses, as far as the user may know. `page`: is empty."""
    known = _known(call, _narrowed(call, found))
    queues = [name for name in exact_names(where.queues) if name not in known.queues]
    tasks = [name for name in exact_names(where.tasks) if name not in known.tasks]
    hints = [f"queue {name!r} is unknown{did_you_mean(name, sorted(known.queues))}" for name in queues[:HINTS]]
    for name in tasks[: HINTS - len(hints)]:
        # Its jobs may lie there while no worker knows it.
        of_task = JobConditions(tasks=(NamePattern(name),))
        first = page
        if where != of_task:
            selected = selection(of_task, found, sees=call.user.sees if call.narrowed else None)
            first = await selected_jobs(call.access.storage, selected, limit=1, after=None, looks=LOOKS)
        if not first.jobs:
            missing = "is unknown" if first.next is None else "is known to no worker, and the newest jobs are of others"
            hints.append(f"task {name!r} {missing}{did_you_mean(name, sorted(known.tasks))}")
    return hints


async def job(call: ApiCall, query: Struct) -> DetailView:
    """Show a job with its runs and its log."""
    detail = await detail_of(call.access.storage, _ref(call))
    why = why_again(detail.job, detail.runs)
    data = decode_document if call.shows_payloads else call.decode
    # The body of a message is JSON within a text, in which no field could be left out.
    decode = delivery_decoder(data) if detail.job.queue == WEBHOOKS_QUEUE else call.decode
    return detail_view(detail, decode, why=why, decode_data=data)


async def job_why(call: ApiCall, query: Struct) -> ReasonsView:
    """Explain why a job does not run now, or how it ended."""
    return ReasonsView(reasons=await reasons_of(call.access, _ref(call)))


async def job_runs(call: ApiCall, query: Struct) -> RunsView:
    """Show the runs of a job."""
    found = await job(call, query)
    return RunsView(runs=found.runs, why=found.why)


async def job_log(call: ApiCall, query: Struct) -> JobLogView:
    """Show what the handlers of a job have logged."""
    found = await job(call, query)
    return JobLogView(log=found.log, dropped=found.log_dropped)


async def job_events(call: ApiCall, query: JobEventsQuery) -> EventsRead:
    """Show the events of a job, the oldest first, also of one that was deleted."""
    ref = _ref(call)
    found = await _events(call, _place(query.after), limit=query.limit, ref=ref)
    if not found.events and found.end and query.after in (None, "0"):
        # Neither the log nor the storage knows the job.
        await detail_of(call.access.storage, ref)
    return found


# ── events ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def events(call: ApiCall, query: EventsQuery) -> EventsRead:
    """Show events of the log, the oldest first. A page may have fewer than `limit` events before `end`."""
    unknown = [kind for kind in query.kind if kind not in KINDS]
    if unknown:
        raise _invalid("kind", unknown[0], KINDS)
    if query.within is not None and query.after is not None:
        raise bad_parameter("invalid-parameter", "within", "within and after contradict each other; give one of them")
    start = _place(query.after) if query.within is None else recorded_within(micros(_span(query.within, "within")))
    return await _events(call, start, kinds=query.kind, queues=_names(query.queue, "queue"), limit=query.limit)


async def event_stream(call: ApiCall, query: Struct) -> AsyncGenerator[bytes]:
    """Stream what changes: counts of events, changed jobs and the newest events, at most four times a second.

    `Last-Event-ID` continues after a frame. A frame `resync` instead of `changes` means: read again what you show.
    """
    return await call.live.open(call.access.storage, call.user, call.request.header("last-event-id"))


async def _events(
    call: ApiCall,
    start: str | None,
    *,
    limit: int,
    kinds: Iterable[str] = (),
    queues: Iterable[str] = (),
    ref: Ref | None = None,
) -> EventsRead:
    selects = wanted_events(kinds, queues)

    def wanted(event: AnyEvent) -> bool:
        return selects(event) and call.user.sees_event(event)

    found = await _at_cursor(events_after(call.access.storage, start, wanted=wanted, limit=limit, ref=ref, looks=LOOKS))
    return structs.replace(found, events=shown_events(found.events, None))


# ── workers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def workers(call: ApiCall, query: Struct) -> ListedWorkers:
    """List the workers: active jobs, last beat, event loop lag and memory."""
    return ListedWorkers(
        workers=[listed_worker(worker, call.access.timing) for worker in (await _survey(call)).workers]
    )


async def worker(call: ApiCall, query: Struct) -> ListedWorker:
    """Show one worker, by its owner id, its name or its process id."""
    _, found = await _worker(call)
    return listed_worker(found, call.access.timing)


async def worker_stacks(call: ApiCall, query: StacksQuery) -> StacksView:
    """Show the stacks of the handlers that a worker runs, as of its last beat."""
    found, worker = await _worker(call)
    runs = await stacks(
        call.access.storage,
        found,
        {worker.owner.id},
        limit=query.limit,
        shown=lambda job: call.user.sees(job.queue),
    )
    return StacksView(stacks=runs)


async def leases(call: ApiCall, query: LeasesQuery) -> LeasesView:
    """List the leases of the runs, the one with the least time left first."""
    found = await _survey(call)
    queues = _wanted_queues(call, found, query.queue)
    return await leases_view(
        call.access.storage, found, call.access.timing, queues=queues, limit=query.limit, looks=LOOKS
    )


# ── schedules ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def schedules(call: ApiCall, query: Struct) -> SchedulesView:
    """List the schedules."""
    known = sorted((await _survey(call)).schedules, key=lambda schedule: schedule.name)
    return SchedulesView(schedules=[schedule_view(schedule, call.decode) for schedule in known])


async def schedule(call: ApiCall, query: Struct) -> ScheduleView:
    """Show one schedule."""
    found, _ = await _schedule(call)
    return schedule_view(found, call.decode)


async def schedule_ticks(call: ApiCall, query: TicksQuery) -> TicksView:
    """Show the next ticks of a schedule."""
    found, now = await _schedule(call)
    return TicksView(ticks=[tick_view(tick, found) for tick in ticks_after(found, now, query.count)])


# ── dead letters ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def dead_groups(call: ApiCall, query: DeadGroupsQuery) -> DeadGroupsView:
    """Group the failed jobs by fault, the largest group first."""
    tasks = _names(query.task, "task")
    span = None if query.within is None else micros(_span(query.within, "within"))
    found, now = await _dead_groups(call, _names(query.queue, "queue"))
    groups = [
        group
        for group in found.groups
        if (not tasks or group.task in tasks) and (span is None or group.last >= moment(now - span))
    ]
    total = sum(group.count for group in groups) + found.others
    return dead_groups_view(DeadGroups(tuple(groups), total, found.others))


async def dead_group(call: ApiCall, query: Struct) -> DeadGroupView:
    """Show one fault."""
    name = _fault(call)
    found, _ = await _dead_groups(call)
    if found.others and all(group.fingerprint != name for group in found.groups):
        # A rare fault is not listed, and few jobs have it.
        found, _ = await _dead_groups(call, fault=name)
    for group in dead_groups_view(found).groups:
        if group.fault == name:
            return group
    message = f"no dead letter has the fault {name}; /api/v1/dead/groups lists all"
    raise from_message("unknown-fault", message, errors=[ProblemPart("/path/fault", message)])


async def fault_hours(call: ApiCall, query: Struct) -> FaultHoursView:
    """Count by hour, within two days, when the jobs of a fault failed. A fault without jobs has none."""
    found = await _survey(call)
    queues = [queue.queue for queue in found.queues]
    return await fault_hours_view(call.access.storage, queues, _fault(call), now=found.now, looks=SIFTED)


def _fault(call: ApiCall) -> str:
    try:
        return fault_named(call.path["fault"], field="fault")
    except UsageError as error:
        raise from_message("unknown-fault", str(error), errors=[ProblemPart("/path/fault", str(error))]) from error


async def _dead_groups(
    call: ApiCall, wanted: Sequence[str] = (), *, fault: str | None = None
) -> tuple[DeadGroups, int]:
    """Return the faults of these queues, or of all, and the time of the storage's clock.

    Without a fault the storage answers from its counts, however many jobs have failed.
    """
    found = await _survey(call)
    queues = [queue.queue for queue in found.queues if not wanted or queue.queue in wanted]
    if not queues:
        return DeadGroups(), found.now
    everything = not wanted and not call.narrowed
    where = DeadFilter(queues=None if everything else queues, fingerprint=fault)
    return await call.access.dead.groups(where), found.now


# ── audit log ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def audit(call: ApiCall, query: AuditQuery) -> ActsView:
    """List what operators did, newest first. An act without `done` was asked for, and how it ended is unknown."""
    if call.narrowed:
        raise ProblemError(
            "forbidden", "the audit log covers all queues, and this user sees some", "ask a user who sees all queues"
        )
    names = {
        field: _name(text, field, "query")
        for field in ("actor", "action", "target")
        if (text := getattr(query, field)) is not None
    }
    wanted = ActsQuery(**names, limit=query.limit, after=query.after)
    return await _at_cursor(acts_view(call.access.storage, wanted))


# ── shared ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _names(texts: Iterable[str], field: str) -> tuple[str, ...]:
    return tuple(_name(text, field, "query") for text in texts)


def _place(after: str | None) -> str | None:
    """Return a cursor in the form of the storage; there None means the oldest event."""
    return None if after == "0" else after


async def _at_cursor(read: Awaitable[T]) -> T:
    """Await a page that begins at the cursor of the request.

    Raises:
        ProblemError: the storage has not returned this cursor.
    """
    try:
        return await read
    except (ValueError, UsageError) as error:
        raise bad_parameter("invalid-cursor", "after", str(error)) from error


def _span(text: Duration, field: str) -> timedelta:
    try:
        return duration(text, field=field)
    except UsageError as error:
        raise from_message(
            "invalid-parameter", str(error), errors=[ProblemPart(f"/query/{field}", str(error))]
        ) from error


def _instant(text: str, field: str, now: int) -> int:
    """Return an instant that is given as such, or as a time before `now`."""
    try:
        return now - micros(duration(text, field=field, zero=True))
    except UsageError:
        pass
    try:
        return instant(datetime.fromisoformat(text), field=field)
    except (UsageError, ValueError) as error:
        message = (
            f"{field} = {shown(text)} is not an instant; give a time before now (6h), or one like 2026-05-03T10:00:00Z"
        )
        raise bad_parameter("invalid-parameter", field, message) from error


def _invalid(field: str, value: str, known: list[str]) -> ProblemError:
    meant = [repr(name) for name in close_to(value, known)]
    remedy = f"did you mean {alternatives(meant)}?" if meant else f"use one of {', '.join(known)}"
    return bad_parameter("invalid-parameter", field, f"{field} = {value!r} is unknown; {remedy}")


# ── webhooks ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def webhooks(call: ApiCall, query: Struct) -> WebhooksView:
    """List the webhooks of the app. A user who sees some queues only sees none."""
    found = await call.access.storage.survey()
    known = sorted(_webhooks_of(call).items())
    return WebhooksView(webhooks=[webhook_view(webhook, found, whole=call.user.may("operate")) for _, webhook in known])


async def webhook(call: ApiCall, query: Struct) -> WebhookView:
    """Show a webhook."""
    found = await call.access.storage.survey()
    return webhook_view(_webhook_of(call).webhook, found, whole=call.user.may("operate"))


async def webhook_deliveries(call: ApiCall, query: DeliveriesQuery) -> DeliveriesView:
    """List the deliveries of a webhook, newest first."""
    found, after = await _at_cursor(
        delivery_views(
            call.access.storage,
            _webhook_of(call),
            states=query.state,
            limit=query.limit,
            after=query.after,
            looks=LOOKS,
        )
    )
    return DeliveriesView(deliveries=found, next=after)
