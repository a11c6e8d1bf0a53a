"""The routes of all acts, which `table.py` includes."""

from tenure.console import bodies, records, writes
from tenure.console.problems import ProblemName
from tenure.console.routes import Route
from tenure.ops.views import QueueSettingsView, RevisedView, ScheduleView, TriggeredView
from tenure.ops.workers import OrderedView

_JOB: tuple[ProblemName, ...] = ("unknown-job", "wrong-state", "changed")
_NEW_JOB: tuple[ProblemName, ...] = ("throttled", "invalid-parameter")

ACTS = [
    Route(
        "POST",
        "/jobs",
        "operate",
        writes.enqueue,
        TriggeredView,
        body=bodies.EnqueueBody,
        most=bodies.CALL_BODY,
        headers=("Idempotency-Key",),
        problems=("unknown-task", "unknown-queue", "key-reused", *_NEW_JOB),
    ),
    Route(
        "POST",
        "/jobs/{queue}/{id}/cancel",
        "operate",
        writes.cancel_job,
        RevisedView,
        body=bodies.JobBody,
        problems=_JOB,
    ),
    Route(
        "POST",
        "/jobs/{queue}/{id}/redrive",
        "operate",
        writes.redrive_job,
        RevisedView,
        body=bodies.RedriveBody,
        problems=(*_JOB, "key-held"),
    ),
    Route(
        "POST",
        "/jobs/{queue}/{id}/reschedule",
        "operate",
        writes.reschedule_job,
        RevisedView,
        body=bodies.RescheduleBody,
        problems=_JOB,
    ),
    Route(
        "POST",
        "/jobs/{queue}/{id}/retain",
        "operate",
        writes.retain_job,
        RevisedView,
        body=bodies.RetainBody,
        problems=_JOB,
    ),
    Route(
        "POST", "/jobs/{queue}/{id}/delete", "admin", writes.delete_job, RevisedView, body=bodies.JobBody, problems=_JOB
    ),
    Route(
        "PATCH",
        "/queues/{queue}",
        "operate",
        writes.change_queue,
        QueueSettingsView,
        body=bodies.QueuePatch,
        headers=("If-Match",),
        problems=("unknown-queue", "settings-changed"),
    ),
    Route(
        "PATCH",
        "/tasks/{task}",
        "operate",
        writes.change_task,
        records.TaskStatusView,
        body=bodies.TaskPatch,
        headers=("If-Match",),
        problems=("unknown-task", "settings-changed"),
    ),
    Route(
        "POST",
        "/workers/{worker}/quiet",
        "operate",
        writes.quiet_worker,
        OrderedView,
        body=bodies.ReasonBody,
        problems=("unknown-worker",),
    ),
    Route(
        "POST",
        "/workers/{worker}/resume",
        "operate",
        writes.resume_worker,
        OrderedView,
        body=bodies.ReasonBody,
        problems=("unknown-worker",),
    ),
    Route(
        "POST",
        "/workers/{worker}/stop",
        "operate",
        writes.stop_worker,
        OrderedView,
        body=bodies.ReasonBody,
        problems=("unknown-worker",),
    ),
    Route(
        "POST",
        "/workers/{worker}/concurrency",
        "operate",
        writes.set_concurrency,
        OrderedView,
        body=bodies.ConcurrencyBody,
        problems=("unknown-worker",),
    ),
    Route(
        "POST",
        "/schedules/{schedule}/pause",
        "operate",
        writes.pause_schedule,
        ScheduleView,
        body=bodies.ReasonBody,
        problems=("unknown-schedule",),
    ),
    Route(
        "POST",
        "/schedules/{schedule}/resume",
        "operate",
        writes.resume_schedule,
        ScheduleView,
        body=bodies.ReasonBody,
        problems=("unknown-schedule",),
    ),
    Route(
        "POST",
        "/schedules/{schedule}/trigger",
        "operate",
        writes.trigger_schedule,
        TriggeredView,
        body=bodies.ReasonBody,
        headers=("Idempotency-Key",),
        problems=("unknown-schedule", *_NEW_JOB),
    ),
    Route(
        "DELETE",
        "/schedules/{schedule}",
        "admin",
        writes.remove_schedule,
        records.RemovedSchedule,
        body=bodies.ReasonBody,
        problems=("unknown-schedule",),
    ),
]
"""Method, path, role, handler, answer and body of each act."""
