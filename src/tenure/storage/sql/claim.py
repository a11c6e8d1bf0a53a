"""Claims in SQL: promotes jobs that fell due, and starts the best ready jobs that may start."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from tenure.core.job import JobRecord, Owner
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.order import entered_at
from tenure.core.transition import begun, claimed, is_expired
from tenure.storage.protocol import RUNS_KEPT, SCAN_LIMIT
from tenure.storage.sql import concurrency_keys, fair_queue, rates, rows
from tenure.storage.sql.lists import json_list
from tenure.storage.sql.settings import records_event, setting
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sql.transitions import expire, job_at, read_job
from tenure.storage.sql.unknown_tasks import first_seqs


def promote(tx: Transaction, queue: str, limit: int) -> int:
    """Promote the jobs of a queue that fell due, or expire those that are too old; return their number."""
    due = tx.all("exchange.due", {"queue": queue, "now": tx.now, "limit": limit})
    if not due:
        return 0
    aged = [seq for seq, expires_at, *_ in due if expires_at is not None and expires_at <= tx.now]
    for seq in aged:
        expire(tx, seq, job_at(tx, seq))
    young = [(seq, keyed) for seq, _, keyed, _ in due if seq not in aged]
    # `is_fair` resets the fair order of an empty queue, so call it only if a job enters the queue.
    if young and (fair_queue.is_fair(tx, queue) or any(keyed for _, keyed in young)):
        for seq, _ in young:
            _promote(tx, seq, job_at(tx, seq))
    elif young:
        promoted = tx.run("exchange.promote", {"queue": queue, "now": tx.now, "limit": len(young)})
        tx.count_move(queue, left="delayed", to="waiting", jobs=promoted, since=min(score for *_, score in due))
    concurrency_keys.release_freed(tx)
    return len(due)


def _promote(tx: Transaction, seq: int, job: JobRecord) -> None:
    """Promote one job whose score depends on the jobs that wait before it."""
    if job.state is not State.DELAYED:
        # The repair of its record has ended the job.
        return
    at = entered_at(job.score, boost=job.boost, lifo=job.lifo)
    score = fair_queue.score(tx, job, at)
    tx.run("exchange.promote_one", {"score": score, "seq": seq})
    tx.count_move(job.queue, left="delayed", to="waiting", since=score)


class Claim:
    """One claim of an owner: as many jobs as it has room for, within a limit on the jobs examined."""

    def __init__(self, tx: Transaction, owner: Owner, room: int, tasks: Mapping[str, int] | None) -> None:
        self.leases: list[Lease] = []
        self.left: dict[str, bool] = {}
        """Whether ready jobs are left in a queue, if the claim knows."""
        self._tx = tx
        self._owner = owner
        self._room = room
        self._tasks = tasks
        self._examinable = SCAN_LIMIT

    @property
    def has_room(self) -> bool:
        """True if the claim has room for more jobs and may examine more."""
        return min(self._room - len(self.leases), self._examinable) > 0

    def take_from(self, queue: str, known: Sequence[str]) -> None:
        """Start the best jobs of a queue, and move jobs that may not start out of the way.

        `known`: the names of unknown tasks that jobs are parked under and that the owner knows.
        """
        tx = self._tx
        openings = tx.openings
        while (limit := min(self._room - len(self.leases), self._examinable, rates.free(tx, queue))) > 0:
            found, more = _first_known(tx, queue, known, limit) if known else _first_ready(tx, queue, limit)
            let_in = self._process(queue, found)
            if more is None or let_in or openings != tx.openings or rates.queue_rate(tx, queue) is not None:
                self.left.pop(queue, None)
            else:
                self.left[queue] = more
            if not let_in and len(found) < limit:
                return

    def _process(self, queue: str, found: list[tuple[int, JobRecord, bool]]) -> int:
        """Process the first jobs of a queue one by one, until a released job may have a better score than the next one.

        Returns how many jobs were released.
        """
        tx = self._tx
        stall = setting(tx, "queue", queue).stall
        records = records_event(tx, queue, "started")
        paced = rates.queue_rate(tx, queue) is not None
        unbound: dict[str, bool] = {}
        started: list[tuple[int, JobRecord]] = []
        slots: list[concurrency_keys.Slot] = []
        let_in = 0
        reached: int | None = None
        if keyed := [job for _, job, _ in found if job.keys]:
            concurrency_keys.load(tx, keyed)
        for seq, job, plain in found:
            if paced and not rates.free(tx, queue):
                break
            self._examinable -= 1
            reached = job.score
            if job.parked_under is not None:
                job = concurrency_keys.unpark_one(tx, seq, job)
            free = False
            if plain and not job.keys and not job.rates:
                if job.task not in unbound:
                    unbound[job.task] = concurrency_keys.may_start_freely(tx, queue, job.task)
                free = unbound[job.task]
            if not free and is_expired(job, tx.now):
                expire(tx, seq, job)
            elif not free and (full := concurrency_keys.blocked_by(tx, job, self._tasks)) is not None:
                concurrency_keys.park(tx, seq, job, full)
            else:
                if not free:
                    slots += concurrency_keys.acquire(tx, seq, job)
                    rates.take(tx, job)
                job = claimed(job, self._owner.id, tx.now, stall)
                started.append((seq, job))
                if records:
                    tx.record(begun(job, self._owner))
            let_in = concurrency_keys.release_freed(tx) if tx.freed else 0
            if let_in:
                break
        concurrency_keys.insert_slots(tx, slots)
        _start(tx, self._owner, started)
        fair_queue.mark_dispatched(tx, queue, (job for _, job in started))
        tx.count_move(queue, left="waiting", to="active", jobs=len(started))
        if reached is not None:
            # The ready jobs before this one have been started or moved. What this transaction has made ready since then
            # lowers the front again.
            tx.advance(queue, "waiting", reached)
        self.leases += [Lease(job) for _, job in started]
        return let_in


Found = list[tuple[int, JobRecord, bool]]
"""Seqs and records of jobs, and whether each is plain."""


def _first_known(tx: Transaction, queue: str, known: Sequence[str], limit: int) -> tuple[Found, bool | None]:
    """Return the first ready jobs and jobs parked under known names; none counts as plain."""
    seqs = first_seqs(tx, queue, known, limit)
    records = {row[0]: read_job(tx, row) for row in tx.all("get.by_seqs", {"seqs": json_list(seqs)})}
    return _waiting([(seq, records[seq], False) for seq in seqs]), None


def _first_ready(tx: Transaction, queue: str, limit: int) -> tuple[Found, bool | None]:
    """Return the first ready jobs, and whether there are more."""
    row = tx.one("exchange.ready", {"queue": queue, "limit": limit})
    if row is None or row[1] is None:
        return [], False
    listed, payloads, more = row
    jobs = rows.ready(listed)
    # If any text is not UTF-8, each job is read separately.
    readable = type(listed) is str
    others = [job.seq for job in jobs if not (job.plain and readable)]
    records = (
        {row[0]: read_job(tx, row) for row in tx.all("get.by_seqs", {"seqs": json_list(others)})} if others else {}
    )
    found: Found = []
    begins = 0
    for job in jobs:
        ends = begins + job.size
        if job.plain and readable:
            found.append(_fresh(tx, queue, job, payloads[begins:ends]))
        else:
            found.append((job.seq, records[job.seq], False))
        begins = ends
    return _waiting(found), bool(more)


def _waiting(found: Found) -> Found:
    """Leave out the jobs that the repair of their records has ended."""
    return [one for one in found if one[1].state is State.WAITING]


def _fresh(tx: Transaction, queue: str, job: rows.ReadyJob, payload: bytes) -> tuple[int, JobRecord, bool]:
    try:
        return job.seq, rows.plain_job(queue, job, payload), True
    except rows.UNREADABLE:
        return job.seq, job_at(tx, job.seq), False


def _start(tx: Transaction, owner: Owner, started: list[tuple[int, JobRecord]]) -> None:
    if again := [seq for seq, job in started if job.starts > 1]:
        tx.run("exchange.archive_runs", {"seqs": json_list(again)})
    alike: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for seq, job in started:
        stall = job.stall
        terms = stall.lease, stall.max_stalls, stall.start_grace, stall.renewed
        alike[*terms, job.fence, job.lease_until, job.run_until, job.progress_until, job.starts].append(seq)
    for values, seqs in alike.items():
        lease, max_stalls, start_grace, renewed, fence, lease_until, run_until, progress_until, starts = values
        tx.run(
            "exchange.start",
            {
                "lease": lease,
                "max_stalls": max_stalls,
                "start_grace": start_grace,
                "renewed": renewed,
                "fence": fence,
                "owner": owner.id,
                "worker": owner.name,
                "host": owner.host,
                "pid": owner.pid,
                "now": tx.now,
                "lease_until": lease_until,
                "run_until": run_until,
                "progress_until": progress_until,
                "starts": starts,
                "seqs": json_list(seqs),
            },
        )
    surplus = [{"seq": seq, "number": job.starts - RUNS_KEPT} for seq, job in started if job.starts > RUNS_KEPT]
    tx.many("exchange.trim_runs", surplus)
