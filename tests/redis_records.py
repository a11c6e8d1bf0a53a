"""The records of a partition as maps of their fields and back, without any code of the storage.

src/tenure/storage/redis/lua/parts/record_format.lua describes the form.
"""

from struct import Struct
from typing import Any

import msgspec

HEAD, RUN = Struct("<3B3I6d"), Struct("<6I10d")
IN_HEAD = ("made", "score", "run_at", "created", "lease", "timeout")
COUNTED = ("starts", "failures", "stalls", "releases")
FENCES = ("fence", "settled_fence", "run_fence")
IN_RUN = ("heard_at", "lease_until", "run_until", "started", "finished", "run_end", "kept_until")
STATES = ("delayed", "waiting", "active", "completed", "failed", "cancelled", "expired")
PLAIN, RAN, BEATEN, BACK, TRACED, RESULT, APART, RESULT_APART = (1 << place for place in range(8))
FLAGS = {"beaten": BEATEN, "back": BACK, "traced": TRACED, "load_apart": APART, "result_apart": RESULT_APART}
RARE = frozenset(
    (
        *("expires_at", "collected", "collected_bytes", "parked_under", "owner", "suspect_until", "progress_until"),
        *(
            "quarantined",
            "put_back_used",
            "cancel_at",
            "cancel_reason",
            "cancel_by",
            "redrive_at",
            "redrives",
            "error",
            "reason",
            "fault",
        ),
        *("progress", "progress_note", "data", "data_number", "logged"),
    )
)
SPECIAL = frozenset(
    ("merge", "schedule", "fair_key", "lifo", "deadline", "heartbeat_timeout", "start_grace", "keys", "rates")
)


def unfolded(body: bytes) -> dict[str, Any]:
    """Return the fields of a record, the unset ones left out, and its byte strings."""
    form, state, marks, fixed, load, rare, *numbers = HEAD.unpack_from(body)
    assert form == 2
    job: dict[str, Any] = {"state": STATES[state - 1], "load": load, **_said(IN_HEAD, numbers)}
    job |= {name: True for name, mark in FLAGS.items() if marks & mark}
    at, holder, ended = HEAD.size, 0, 0
    if marks & RAN:
        *counts, holder, ended = (run := RUN.unpack_from(body, at))[:6]
        fences, instants = run[6:9], run[9:]
        at += RUN.size
        job |= {**dict(zip(COUNTED, counts, strict=True)), **dict(zip(FENCES, fences, strict=True))}
        job |= _said(IN_RUN, instants)
    job |= msgspec.msgpack.decode(body[at : at + fixed])
    at += fixed
    for name, size in (("payload", 0 if marks & APART else load), ("rare", rare), ("holder", holder), ("ended", ended)):
        job[name] = body[at : at + size]
        at += size
    if part := job.pop("rare"):
        job |= msgspec.msgpack.decode(part)
    if job["holder"] and job["state"] == "active":
        job.setdefault("owner", msgspec.msgpack.decode(job["holder"])[0])
    if marks & RESULT:
        job["result"] = body[at:]
    else:
        assert at == len(body)
    plain = not rare and not any(job.get(name) for name in SPECIAL)
    assert bool(marks & PLAIN) == plain
    return job


def folded(job: dict[str, Any]) -> bytes:
    """Return the record of these fields."""
    job = dict(job)
    payload, holder, ended = job.pop("payload"), job.pop("holder"), job.pop("ended")
    result, load, state = job.pop("result", None), job.pop("load"), STATES.index(job.pop("state")) + 1
    marks = sum(mark for name, mark in FLAGS.items() if job.pop(name, False)) | (RESULT if result is not None else 0)
    head = [job.pop(name, -1) for name in IN_HEAD]
    run = [job.pop(name, 0) for name in COUNTED], [job.pop(name, 0) for name in FENCES]
    instants = [job.pop(name, -1) for name in IN_RUN]
    if holder and job.get("owner") == msgspec.msgpack.decode(holder)[0]:
        job.pop("owner")
    fields = {name: job.pop(name) for name in list(job) if name in RARE}
    rare = msgspec.msgpack.encode(fields) if fields else b""
    marks |= PLAIN if not fields and not any(job.get(name) for name in SPECIAL) else 0
    fixed = msgspec.msgpack.encode(job)
    has_run = any(run[0]) or any(run[1]) or instants[4] != -1
    marks |= RAN if has_run else 0
    numbers = RUN.pack(*run[0], len(holder), len(ended), *run[1], *instants) if has_run else b""
    lengths = (len(fixed), load, len(rare))
    return b"".join(
        (HEAD.pack(2, state, marks, *lengths, *head), numbers, fixed, payload, rare, holder, ended, result or b"")
    )


def _said(names: tuple[str, ...], numbers: list[float] | tuple[float, ...]) -> dict[str, float]:
    return {name: number for name, number in zip(names, numbers, strict=True) if number != -1}
