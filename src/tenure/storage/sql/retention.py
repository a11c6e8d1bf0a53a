"""Deletes ended jobs as a set: in the sweep, and together with completions."""

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

from tenure.core.lifecycle import State
from tenure.core.retention import RetentionRules
from tenure.core.settlement import Settlement, uses_queue_retention
from tenure.storage.requests import SettlementResult
from tenure.storage.sql.columns import Row
from tenure.storage.sql.lists import json_list
from tenure.storage.sql.settings import setting
from tenure.storage.sql.transaction import Transaction

_FORGET = ("sweep.delete_jobs", "sweep.delete_runs", "sweep.delete_logs")
_FORGET_WAITS = ("sweep.delete_tokens", "sweep.delete_boxes", "sweep.delete_steps")


def delete_unmerged(tx: Transaction, queue: str, state: str, ended: Sequence[Row]) -> None:
    """Delete ended jobs that answer for no other calls, with their runs, logs and inboxes.

    `ended`: rows of a job's seq, whether it may have merged calls, and whether it may have an inbox.
    """
    listed = json_list([seq for seq, *_ in ended])
    if listed is not None:
        for statement in _FORGET:
            tx.run(statement, {"seqs": listed})
        tx.count_move(queue, left=state, jobs=len(ended))
    linked = json_list([seq for seq, _, waits, *_ in ended if waits])
    if linked is not None:
        for statement in _FORGET_WAITS:
            tx.run(statement, {"seqs": linked})


def delete_surplus(tx: Transaction, settlements: Sequence[Settlement], verdicts: Sequence[SettlementResult]) -> None:
    """If a queue has too many completed jobs, delete some of the oldest together with these completions."""
    completed = Counter(
        settlement.ref.queue
        for settlement, result in zip(settlements, verdicts, strict=True)
        if result.verdict == "done" and uses_queue_retention(settlement)
    )
    for queue, ended in completed.items():
        keep = (setting(tx, "queue", queue).retention or RetentionRules()).of(State.COMPLETED)
        if keep.most is None:
            continue
        if surplus := keep.deleted_at_once(tx.kept(queue), ended):
            gone = tx.all("sweep.longest_completed", {"queue": queue, "now": tx.now, "limit": surplus})
            delete_unmerged(tx, queue, State.COMPLETED, [row for row in gone if not row[1]])
            # A job with merged calls stays for the sweep.
            if passed := [row[-1] for row in takewhile(lambda row: not row[1], gone)]:
                tx.advance(queue, State.COMPLETED, passed[-1])
