"""What in a survey needs a person."""

from collections.abc import Iterator

from holdfast.cli.views import InfoView
from holdfast.options import Timing


def complaints(seen: InfoView, timing: Timing) -> Iterator[str]:
    """Name each thing that keeps jobs from being run or recovered."""
    alive = [worker for worker in seen.workers if not worker.stale]
    served = {queue for worker in alive for queue in worker.queues}
    for queue in seen.queues:
        if queue.counts["waiting"] and queue.queue not in served and not queue.paused:
            yield f"queue {queue.queue!r}: {queue.counts['waiting']} jobs wait and no live worker serves it"
    for worker in seen.workers:
        if worker.stale:
            yield f"worker {worker.name!r}: stale, last seen {worker.seen_ago:.1f} s ago"
    active = sum(queue.counts["active"] for queue in seen.queues)
    late = timing.recovery_bound.total_seconds()
    if active and (seen.swept_ago is None or seen.swept_ago > late):
        yield f"{active} jobs are active and nobody has swept for {late:g} s; start a worker or holdfast reaper"
