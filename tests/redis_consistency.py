"""Checks of a Redis partition: computes what each key must hold from the job records, and reads with plain commands.

`parts/audit.lua` compares records and indexes within Redis. This module uses no code of it, nor of any other script.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from struct import unpack_from
from typing import Any

import msgspec
import redis

from tenure.core.lifecycle import TERMINAL
from tests.redis_records import unfolded
from tests.servers import command

RUNS_KEPT = 100

INDEXES = frozenset(
    (
        *("in", "ages", "ready", "parked", "delayed", "leases", "suspects", "held", "aging", "kept", "redrives"),
        *("over", "failed", "slots", "merge", "busy", "queued", "running"),
    )
)
"""The kinds of sorted sets that hold jobs by what their records say, and nothing else."""

ENDED = frozenset(map(str, TERMINAL))

Sets = Mapping[str, dict[str, float]]


class PartitionContents:
    """The contents of a partition, read once."""

    def __init__(self, client: redis.Redis, base: str) -> None:
        self._client = client
        self._base = base
        self.keys = sorted(self._walked())
        self.jobs = {name: unfolded(self._string("job", name)) for name in self.names("job")}
        for ref, body in self.hash("beats").items():
            if ref in self.jobs and self.jobs[ref].get("beaten"):
                # Beats store these fields apart from the record.
                fields = unpack_from("<ddddd", body)
                self.jobs[ref].update(zip(_BEATEN, (*fields[1:3], *(_or_none(at) for at in fields[3:])), strict=True))

    def names(self, kind: str) -> list[str]:
        """Return the names of the keys of a kind."""
        return [name for found, name in self.keys if found == kind]

    def hash(self, kind: str, name: str = "") -> dict[str, bytes]:
        """Return a hash."""
        entries = iter(self._ask("HGETALL", kind, name).items())
        return {field.decode(): body for field, body in entries}

    def scores(self, kind: str, name: str = "") -> dict[str, float]:
        """Return a sorted set."""
        entries = self._ask("ZRANGE", kind, name, 0, -1, "WITHSCORES")
        return {member.decode(): float(score) for member, score in entries}

    def length(self, kind: str, name: str) -> int:
        """Return the length of a list."""
        length: int = self._ask("LLEN", kind, name)
        return length

    def calls(self, ref: str) -> list[str]:
        """Return the calls that were merged into a job."""
        return [call.decode() for call in self._ask("LRANGE", "calls", ref, 0, -1)]

    def events(self) -> list[tuple[str, dict[bytes, bytes]]]:
        """Return the entries of the log."""
        return [(number.decode(), fields) for number, fields in self._ask("XRANGE", "events", "", "-", "+")]

    def _walked(self) -> Iterator[tuple[str, str]]:
        cursor: object = 0
        while True:
            cursor, keys = command(self._client, "SCAN", cursor, "MATCH", f"{self._base}*", "COUNT", 10_000)
            for key in set(keys):
                kind, _, name = key.decode().removeprefix(f"{self._base}:").partition(":")
                yield kind, name
            if not cursor:
                return

    def _string(self, kind: str, name: str) -> bytes:
        body: bytes = self._ask("GET", kind, name)
        return body

    def _ask(self, verb: str, kind: str, name: str, *rest: object) -> Any:
        key = f"{self._base}:{kind}:{name}" if name else f"{self._base}:{kind}"
        return command(self._client, verb, key, *rest)


def inconsistencies(client: redis.Redis, base: str) -> list[str]:
    """Return each contradiction between the keys of a partition and its records, or among its keys."""
    contents = PartitionContents(client, base)
    return [
        *_of_indexes(contents),
        *_of_registers(contents),
        *_of_counters(contents),
        *_of_other_keys(contents),
        *_of_calls(contents),
        *_of_the_log(contents),
    ]


def stands(ref: str, job: Mapping[str, Any]) -> Iterator[tuple[str, str, float, str]]:
    """Yield each place in which a job's record puts it: an index's kind and name, the score there, the member."""
    queue, id_ = ref.split("\0")
    state, made = job["state"], job["made"]
    waits_again = state == "waiting" and (job["run_at"] != job["created"] or job.get("back"))
    yield "in", f"{queue}\0{'again' if waits_again else state}", made, id_
    if waits_again:
        yield "ages", queue, job["run_at"], id_
    if state == "waiting":
        under = job.get("parked_under")
        yield (
            ("ready", queue, job["score"], id_) if under is None else ("parked", f"{queue}\0{under}", job["score"], id_)
        )
    elif state == "delayed":
        yield "delayed", queue, job["run_at"], id_
    elif state == "active":
        yield from _stands_of_active(queue, id_, ref, job)
    elif state == "completed" and job.get("kept_until"):
        yield "kept", "", job["kept_until"], ref
    elif state == "failed" and job.get("redrive_at"):
        yield "redrives", "", job["redrive_at"], ref
    else:
        yield "over", f"{queue}\0{state}", job["finished"], id_
    if fault := job.get("fault"):
        yield "failed", f"{queue}\0{fault}", job["finished"], id_
    if state not in ENDED:
        yield from _stands_of_unfinished(queue, id_, ref, job)


def _stands_of_active(queue: str, id_: str, ref: str, job: Mapping[str, Any]) -> Iterator[tuple[str, str, float, str]]:
    yield "held", job["owner"], job["started"], ref
    if job.get("suspect_until"):
        yield "suspects", "", job["suspect_until"], ref
    else:
        yield "leases", "", job["lease_until"], ref
    for key, _ in job.get("keys", ()):
        yield "slots", f"{queue}\0{key}", job["started"], id_


def _stands_of_unfinished(
    queue: str, id_: str, ref: str, job: Mapping[str, Any]
) -> Iterator[tuple[str, str, float, str]]:
    queued = job["state"] != "active"
    if merge := job.get("merge"):
        is_open = queued and (merge["type"] == "unique" or not job.get("starts"))
        yield "merge" if is_open else "busy", f"{queue}\0{merge['type']}:{merge['key']}", job["made"], id_
    if schedule := job.get("schedule"):
        yield "queued" if queued else "running", schedule, job["made"], ref
    if queued and job.get("expires_at"):
        yield "aging", "", job["expires_at"], ref


def _of_indexes(contents: PartitionContents) -> Iterator[str]:
    wanted: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for ref, job in contents.jobs.items():
        for kind, name, score, member in stands(ref, job):
            wanted[kind, name][member] = score
    there = {(kind, name) for kind, name in contents.keys if kind in INDEXES}
    for kind, name in sorted(there | set(wanted)):
        if (found := contents.scores(kind, name)) != wanted[kind, name]:
            yield f"{kind}:{name!r} holds {found}, the records say {wanted[kind, name]}"


def _of_registers(contents: PartitionContents) -> Iterator[str]:
    queues, dues = contents.scores("queues"), contents.scores("dues")
    parked: set[str] = set()
    for ref, job in contents.jobs.items():
        queue = ref.split("\0")[0]
        if queue not in queues:
            yield f"{queue!r} is not among the queues"
        if job["state"] == "delayed" and not dues.get(queue, float("inf")) <= job["run_at"]:
            yield f"{queue!r} is due too late for {ref!r}"
        if under := job.get("parked_under"):
            parked.add(f"{queue}\0{under}")
            if under.startswith("rate:") and under not in contents.scores("opening", queue):
                yield f"{under!r} of {queue!r} is not among the rates to check"
    if parked != set(contents.scores("places")):
        yield f"places holds {set(contents.scores('places'))}, the records say {parked}"
    faults = set(contents.names("failed"))
    if faults != set(contents.scores("faults")):
        yield f"faults holds {set(contents.scores('faults'))}, there are indexes of {faults}"
    yield from (
        f"{queue!r} waits for {under!r} to open, but no job is parked there"
        for queue in contents.names("opening")
        for under in contents.scores("opening", queue)
        if f"{queue}\0{under}" not in parked
    )


def _of_counters(contents: PartitionContents) -> Iterator[str]:
    named: defaultdict[str, Counter[str]] = defaultdict(Counter)
    tenants: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for ref, job in contents.jobs.items():
        queue = ref.split("\0")[0]
        if job["state"] not in ENDED:
            named[queue].update(key for key, _ in job.get("keys", ()))
        if job["state"] == "waiting" and job.get("fair_key") is not None and not job.get("lifo"):
            tenants[queue][f"{job.get('boost', 0):.14g}\0{job['fair_key']}"] += 1
    for kind, wanted in (("named", named), ("tenants", tenants)):
        for queue in sorted({*contents.names(kind), *wanted}):
            found = {field: int(count) for field, count in contents.hash(kind, queue).items()}
            if found != wanted[queue]:
                yield f"{kind}:{queue!r} counts {found}, the records say {dict(wanted[queue])}"
    yield from (
        f"limits:{queue!r} are of {sorted(contents.hash('limits', queue))}, the records name {sorted(named[queue])}"
        for queue in sorted({*contents.names("limits"), *named})
        if set(contents.hash("limits", queue)) != set(named[queue])
    )


def _of_other_keys(contents: PartitionContents) -> Iterator[str]:
    for kind in ("load", "result", "runs", "log", "data"):
        for ref in set(contents.names(kind)) - set(contents.jobs):
            yield f"{kind}:{ref!r} is of no job"
    loads, results, data = (set(contents.names(kind)) for kind in ("load", "result", "data"))
    for ref, job in contents.jobs.items():
        apart = bool(job.get("load_apart"))
        if (ref in loads) != apart or len(job["payload"]) != (0 if apart else job["load"]):
            yield f"{ref!r} has no payload, or two"
        if (ref in results) != bool(job.get("result_apart")):
            yield f"{ref!r} has a result apart from the record that the record does not name, or the reverse"
        if (ref in results or "result" in job) and job["state"] != "completed":
            yield f"{ref!r} is {job['state']} and has a result"
        if (ref in data) != bool(job.get("data_number")):
            yield f"{ref!r} has data that its record does not name, or the reverse"
        starts = int(job.get("starts", 0))
        if (runs := contents.length("runs", ref)) != min(max(0, starts - 1), RUNS_KEPT - 1):
            yield f"{ref!r} has {runs} runs before its last and {starts} starts"
        if bool(job["holder"]) != (starts > 0) or bool(job["ended"]) != (starts > 0 and job["state"] != "active"):
            yield f"{ref!r} is {job['state']} after {starts} starts, and its last run is not"
    beaten = {ref for ref, job in contents.jobs.items() if job.get("beaten")}
    if beaten != set(contents.hash("beats")):
        yield f"beats are kept of {set(contents.hash('beats'))}, the records say {beaten}"
    active = {ref for ref, job in contents.jobs.items() if job["state"] == "active"}
    if not set(contents.hash("traces")) <= active:
        yield f"traces are kept of {set(contents.hash('traces')) - active}, which are not active"
    for index, values in (("windows", "window"), ("taken", "reach"), ("limited", "limited_for"), ("seen", "workers")):
        if set(contents.scores(index)) != set(contents.hash(values)):
            yield f"{index} are {set(contents.scores(index))}, their values are {set(contents.hash(values))}"
    schedules = contents.hash("schedules")
    for index in ("ticks", "reached"):
        if not set(contents.scores(index)) <= set(schedules):
            yield f"{index} are of {set(contents.scores(index))}, there are schedules {set(schedules)}"


def _of_calls(contents: PartitionContents) -> Iterator[str]:
    answers = {
        (queue, call): id_.decode()
        for queue in contents.names("answers")
        for call, id_ in contents.hash("answers", queue).items()
    }
    taken_in = {
        (ref.split("\0")[0], call): ref.split("\0")[1]
        for ref in contents.names("calls")
        for call in contents.calls(ref)
    }
    if answers != taken_in:
        yield f"calls are answered for by {answers}, the jobs have taken in {taken_in}"
    yield from (
        f"{id_!r} answers for {call!r} in {queue!r}, and is gone"
        for (queue, call), id_ in taken_in.items()
        if f"{queue}\0{id_}" not in contents.jobs
    )


def _of_the_log(contents: PartitionContents) -> Iterator[str]:
    entries = contents.events()
    numbers = [int(number.removeprefix("0-")) for number, _ in entries]
    if any(other != pair + 1 for pair, other in pairwise(numbers)):
        yield f"the log has a gap: {numbers}"
    for number, fields in entries:
        if b"repaired" in fields[b"e"] and msgspec.msgpack.decode(fields[b"e"])["event"] == "repaired":
            yield f"event {number} tells of a repair: {msgspec.msgpack.decode(fields[b'e'])}"


_BEATEN = ("heard_at", "lease_until", "run_until", "progress_until")


def _or_none(number: float) -> float | None:
    return None if number == -1 else number
