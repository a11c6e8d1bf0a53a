"""Deletes ended jobs as a set: in the sweep, and together with completions."""

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

from tenure.core.lifecycle import State
from tenure.core.retention import RetentionRules
from tenure.core.settlement import Settlement, uses_queue_retention
from tenure.storage.protocol import SettlementResult
from tenure.storage.sql.lists import json_list
from tenure.storage.sql.settings import setting
from tenure.storage.sql.transaction import Transaction

_FORGET = ("sweep.delete_jobs", "sweep.delete_runs", "sweep.delete_logs")


def delete_plain(tx: Transaction, queue: str, state: str, seqs: Sequence[int]) -> None:
    """Delete ended jobs that answer for no other calls, with their runs and logs."""
    listed = json_list(seqs)
    if listed is not None:
        for statement in _FORGET:
            tx.run(statement, {"seqs": listed})
        tx.count_move(queue, left=state, jobs=len(seqs))


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
            delete_plain(tx, queue, State.COMPLETED, [seq for seq, merges, _ in gone if not merges])
            # A job with merged calls stays for the sweep.
            if passed := [finished for _, _, finished in takewhile(lambda row: not row[1], gone)]:
                tx.advance(queue, State.COMPLETED, passed[-1])
