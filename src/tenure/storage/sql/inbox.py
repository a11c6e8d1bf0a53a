"""The inboxes of jobs in SQL: their tokens, the numbers of each box, and the recorded steps.

A wait is compared with the numbers of its boxes, so that a token costs the same for a group of ten and of 10,000 jobs.
"""

from collections.abc import Sequence

from tenure.core.steps import forgotten_by_redrive
from tenure.core.waiting import BoxCounts, InboxCounts, StepRecord, WaitToken
from tenure.storage.sql import rows
from tenure.storage.sql.lists import ByteSlices, json_list, json_rows
from tenure.storage.sql.transaction import Transaction

_DELETE = ("waiting.delete_tokens", "waiting.delete_boxes", "waiting.delete_steps")
_MOVE = ("waiting.move_tokens", "waiting.move_boxes")


def put(tx: Transaction, seq: int, token: WaitToken) -> bool:
    """Keep the maximum of a token and the one under its key; return True if that changed the inbox."""
    failed = int(token.outcome == "failed")
    place = {"seq": seq, "box": token.box, "key": token.key}
    counted = {"seq": seq, "box": token.box, "failed": failed, "completed": 1 - failed}
    if not tx.run("waiting.insert_token", {**place, "failed": failed, "body": token.body}):
        if failed or not tx.run("waiting.raise_token", {**place, "body": token.body}):
            return False
        counted["failed"] = -1
    tx.run("waiting.count_token", counted)
    return True


def complete_all(tx: Transaction, seq: int, box: str, keys: Sequence[str]) -> bool:
    """Put completed tokens into a box at once; return False, and put none, if one of the keys has a token already."""
    listed = json_list(keys)
    if listed is None or len({*keys}) < len(keys):
        return False
    place = {"seq": seq, "box": box, "keys": listed}
    if tx.one("waiting.any_token", place) is not None:
        return False
    tx.run("waiting.insert_tokens", place)
    tx.run("waiting.count_token", {"seq": seq, "box": box, "failed": 0, "completed": len(keys)})
    return True


def seal(tx: Transaction, seq: int, box: str, total: int) -> bool:
    """Record how many keys a box will have; return True if that changed the inbox. The largest number counts."""
    return bool(tx.run("waiting.seal", {"seq": seq, "box": box, "total": total}))


def mark(tx: Transaction, seq: int) -> None:
    """Record that a job without links has an inbox, so that its inbox is deleted with it."""
    tx.run("waiting.mark_inbox", {"seq": seq})


def mark_all(tx: Transaction, seqs: Sequence[int]) -> None:
    """Do the same for several jobs, which have recorded steps."""
    tx.run("waiting.mark_inboxes", {"seqs": json_rows(seqs)})


def read(tx: Transaction, seq: int) -> InboxCounts:
    """Return the numbers of the boxes of a job's inbox."""
    return InboxCounts(
        {
            box: BoxCounts(failed, completed, total, first_failed)
            for box, failed, completed, total, first_failed in tx.all("waiting.boxes", {"seq": seq})
        }
    )


def record_steps(tx: Transaction, steps: Sequence[tuple[int, StepRecord]]) -> None:
    """Record steps, each with the seq of its job. The first record of a name stays."""
    bodies = ByteSlices()
    listed = json_list(
        [
            (seq, step.name, step.run, step.at, step.by, step.kind, step.took, *bodies.add(step.body))
            for seq, step in steps
        ]
    )
    if listed is not None:
        tx.run("waiting.record_steps", {"steps": listed, "bodies": bodies.joined()})
        return
    # A name that contains a NUL is written alone.
    for seq, step in steps:
        values = {"name": step.name, "run": step.run, "at": step.at, "met_by": step.by, "body": step.body}
        tx.run("waiting.record_step", {"seq": seq, **values, "kind": step.kind, "took": step.took})


def forget_failures(tx: Transaction, seq: int) -> set[str]:
    """Forget the recorded failures of a job that is redriven; return their names."""
    failed = forgotten_by_redrive(rows.step(row) for row in tx.all("waiting.step_ends", {"seq": seq}))
    if (names := json_list(sorted(failed))) is not None:
        tx.run("waiting.forget_steps", {"seq": seq, "names": names})
    return failed


def unread(tx: Transaction, seq: int, signal: WaitToken) -> int:
    """Return how many signals of a name the job has not read; 0 if it has this one already."""
    row = tx.one("waiting.unread", {"seq": seq, "box": signal.box, "key": signal.key})
    return 0 if row is None else int(row[0])


def note_read(tx: Transaction, seq: int, box: str, count: int) -> None:
    """Record that the job was awakened with the first `count` signals of a box."""
    tx.run("waiting.note_read", {"seq": seq, "box": box, "count": count})


def body(tx: Transaction, seq: int, box: str, place: int) -> bytes | None:
    """Return the content of the completed token that arrived in a box as the `place`-th of them."""
    row = tx.one("waiting.body", {"seq": seq, "box": box, "place": place})
    return None if row is None else row[0]


def move(tx: Transaction, seq: int, to: int) -> None:
    """Give a job's inbox to the job that takes its place."""
    if sum(tx.run(statement, {"seq": seq, "to": to}) for statement in _MOVE):
        mark(tx, to)


def delete(tx: Transaction, seq: int) -> None:
    """Delete a job's inbox and its recorded steps."""
    for statement in _DELETE:
        tx.run(statement, {"seq": seq})
