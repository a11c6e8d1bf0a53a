"""The table of all resources of the admin API."""

from tenure.console import operations, reads, records
from tenure.console.act_table import ACTS
from tenure.console.live import ChangesFrame
from tenure.console.routes import Route, RouteTable
from tenure.health.assessment import Health
from tenure.ops.audit import ActsView
from tenure.ops.bulk import OperationsView, OperationView
from tenure.ops.events import EventsRead
from tenure.ops.fault_hours import FaultHoursView
from tenure.ops.figures import FiguresView, QueuesFiguresView
from tenure.ops.leases import LeasesView
from tenure.ops.views import (
    DeadGroupsView,
    DeadGroupView,
    DetailView,
    DoctorView,
    InfoView,
    QueueSettingsView,
    QueueStatsView,
    ScheduleView,
)
from tenure.ops.webhooks import WebhookView
from tenure.ops.workers import ListedWorker

EXAMINED_WITHIN = 60.0
"""Seconds that the diagnosis may take: each of its parts has a limit of its own."""

TABLE = RouteTable(
    [
        Route("GET", "/meta", "read", reads.meta, records.MetaView),
        Route("GET", "/survey", "read", reads.survey, InfoView),
        Route("GET", "/health", "read", reads.health, Health),
        Route("GET", "/doctor", "operate", reads.doctor, DoctorView, limit=EXAMINED_WITHIN),
        Route("GET", "/queues", "read", reads.queues, records.QueuesView),
        Route("GET", "/queues/{queue}", "read", reads.queue, QueueSettingsView, problems=("unknown-queue",)),
        Route(
            "GET",
            "/queues/{queue}/statistics",
            "read",
            reads.queue_statistics,
            QueueStatsView,
            records.StatsQuery,
            ("unknown-queue",),
        ),
        Route("GET", "/figures", "read", reads.figures, FiguresView, records.FiguresParameters),
        Route(
            "GET",
            "/figures/queues",
            "read",
            reads.queues_figures,
            QueuesFiguresView,
            records.QueuesFiguresParameters,
        ),
        Route("GET", "/tasks", "read", reads.tasks, records.TasksView),
        Route("GET", "/tasks/{task}", "read", reads.task, records.TaskStatusView, problems=("unknown-task",)),
        Route(
            "GET",
            "/jobs",
            "read",
            reads.jobs,
            records.JobsView,
            records.JobsQuery,
            ("invalid-filter", "invalid-cursor"),
        ),
        Route("GET", "/jobs/{queue}/{id}", "read", reads.job, DetailView, problems=("unknown-job",)),
        Route("GET", "/jobs/{queue}/{id}/why", "read", reads.job_why, records.ReasonsView, problems=("unknown-job",)),
        Route("GET", "/jobs/{queue}/{id}/runs", "read", reads.job_runs, records.RunsView, problems=("unknown-job",)),
        Route("GET", "/jobs/{queue}/{id}/log", "read", reads.job_log, records.JobLogView, problems=("unknown-job",)),
        Route(
            "GET",
            "/jobs/{queue}/{id}/events",
            "read",
            reads.job_events,
            EventsRead,
            records.JobEventsQuery,
            ("unknown-job", "invalid-cursor"),
        ),
        Route("GET", "/events", "read", reads.events, EventsRead, records.EventsQuery, ("invalid-cursor",)),
        Route(
            "GET",
            "/events/stream",
            "read",
            reads.event_stream,
            ChangesFrame,
            problems=("too-many-streams",),
            headers=("Last-Event-ID",),
            stream=True,
        ),
        Route("GET", "/workers", "read", reads.workers, records.ListedWorkers),
        Route("GET", "/workers/{worker}", "read", reads.worker, ListedWorker, problems=("unknown-worker",)),
        Route(
            "GET",
            "/workers/{worker}/stacks",
            "read",
            reads.worker_stacks,
            records.StacksView,
            records.StacksQuery,
            ("unknown-worker",),
        ),
        Route("GET", "/leases", "read", reads.leases, LeasesView, records.LeasesQuery),
        Route("GET", "/schedules", "read", reads.schedules, records.SchedulesView),
        Route("GET", "/schedules/{schedule}", "read", reads.schedule, ScheduleView, problems=("unknown-schedule",)),
        Route(
            "GET",
            "/schedules/{schedule}/ticks",
            "read",
            reads.schedule_ticks,
            records.TicksView,
            records.TicksQuery,
            ("unknown-schedule",),
        ),
        Route("GET", "/dead/groups", "read", reads.dead_groups, DeadGroupsView, records.DeadGroupsQuery),
        Route("GET", "/dead/groups/{fault}", "read", reads.dead_group, DeadGroupView, problems=("unknown-fault",)),
        Route(
            "GET",
            "/dead/groups/{fault}/hours",
            "read",
            reads.fault_hours,
            FaultHoursView,
            problems=("unknown-fault",),
        ),
        Route(
            "GET",
            "/ops",
            "read",
            operations.operations,
            OperationsView,
            records.OperationsQuery,
            ("invalid-cursor",),
        ),
        Route("GET", "/ops/{operation}", "read", operations.operation, OperationView, problems=("unknown-operation",)),
        Route("GET", "/webhooks", "read", reads.webhooks, records.WebhooksView),
        Route("GET", "/webhooks/{webhook}", "read", reads.webhook, WebhookView, problems=("unknown-webhook",)),
        Route(
            "GET",
            "/webhooks/{webhook}/deliveries",
            "read",
            reads.webhook_deliveries,
            records.DeliveriesView,
            records.DeliveriesQuery,
            ("unknown-webhook", "invalid-cursor"),
        ),
        Route("GET", "/audit", "admin", reads.audit, ActsView, records.AuditQuery, ("invalid-cursor",)),
        *ACTS,
    ]
)
