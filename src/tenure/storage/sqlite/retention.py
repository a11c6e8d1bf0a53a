"""Deletes ended jobs as a set: in the sweep, and together with completions."""

from collections import Counter
from collections.abc import Sequence

from tenure.core.lifecycle import State
from tenure.core.retention import RetentionRules
from tenure.core.settlement import Settlement, uses_queue_retention
from tenure.storage.protocol import SettlementResult
from tenure.storage.sqlite import rows
from tenure.storage.sqlite.settings import setting
from tenure.storage.sqlite.statements import query
from tenure.storage.sqlite.transaction import Transaction

_FORGET = tuple(query("sweep", name) for name in ("forget_jobs", "forget_runs", "forget_logs"))
_LONGEST_COMPLETED = query("sweep", "longest_completed")


def forget_plain(step: Transaction, queue: str, state: str, seqs: Sequence[int]) -> None:
    """Delete ended jobs that answer for no other calls, with their runs and logs."""
    listed = rows.listed(seqs)
    if listed is not None:
        for statement in _FORGET:
            step.run(statement, (listed,))
        step.moved(queue, left=state, jobs=len(seqs))


def forget_at_once(step: Transaction, settlements: Sequence[Settlement], verdicts: Sequence[SettlementResult]) -> None:
    """If a queue has too many completed jobs, delete some of the oldest together with these completions."""
    completed = Counter(
        asked.ref.queue
        for asked, told in zip(settlements, verdicts, strict=True)
        if told.verdict == "done" and uses_queue_retention(asked)
    )
    for queue, ended in completed.items():
        keep = (setting(step, "queue", queue).retention or RetentionRules()).of(State.COMPLETED)
        if keep.most is None:
            continue
        if surplus := keep.deleted_at_once(step.kept(queue), ended):
            gone = step.all(_LONGEST_COMPLETED, {"queue": queue, "now": step.now, "limit": surplus})
            forget_plain(step, queue, State.COMPLETED, [seq for seq, merges in gone if not merges])
