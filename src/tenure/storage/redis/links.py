"""Encodes how jobs depend on others, tokens and outbox entries for scripts, and decodes what a partition keeps of them.

lua/parts/waiting.lua describes the fields.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from msgspec import structs

from tenure.core.job import Ref
from tenure.core.waiting import Dependent, JobKind, Links, MetBy, Plan, StepKind, StepRecord, Wait
from tenure.storage.redis.refs import decode_ref, encode_ref
from tenure.storage.waiting import OutboxEntry

_json = msgspec.json.Encoder().encode
_wait = msgspec.json.Decoder(Wait).decode
_plan = msgspec.json.Decoder(Plan).decode

_STEP = struct.Struct("<IIdBBBd")
_NO_TIME = -1
_MET_BY: tuple[MetBy, ...] = ("failed", "completed", "timer")
"""What met a need, or ended a step, from number 1 on."""

_KINDS: tuple[StepKind, ...] = ("step", "sleep", "signal", "wait")
"""The kinds of steps, from number 1 on."""


def encode_links(links: Links) -> dict[str, Any]:
    """Return the fields of a record that hold links, without those at their defaults."""
    fields = {
        "wait": None if links.wait is None else encode_wait(links.wait),
        "dependents": encode_dependents(links.dependents) or None,
        "kind": None if links.kind is JobKind.JOB else links.kind.value,
        "flow": None if links.flow is None else encode_ref(links.flow),
        "plan": None if links.plan is None else _json(links.plan).decode(),
        "wake_at": links.wake_at,
    }
    return {name: value for name, value in fields.items() if value is not None}


def encode_wait(wait: Wait) -> str:
    """Return a wait in its stored form."""
    return _json(wait).decode()


def encode_dependents(dependents: Iterable[Dependent]) -> tuple[str, ...]:
    """Return dependents in their stored form: three texts for each."""
    return tuple(text for one in dependents for text in (encode_ref(one.to), one.box, one.key))


def decode_links(
    *,
    wait: str | None,
    timeless: bool,
    dependents: Sequence[str],
    kind: str | None,
    flow: str | None,
    plan: str | None,
    wake_at: int | None,
) -> Links | None:
    """Return the links of a record; None if it has none. `timeless`: the times of the needs do not count any more."""
    if wait is None and not dependents and kind is None and flow is None and plan is None:
        return None
    waits_for = None if wait is None else _wait(wait)
    if waits_for is not None and timeless:
        needs = tuple(structs.replace(need, until=None) for need in waits_for.needs)
        waits_for = structs.replace(waits_for, needs=needs)
    return Links(
        wait=waits_for,
        dependents=tuple(_dependents(dependents)),
        kind=JobKind.JOB if kind is None else JobKind(kind),
        flow=None if flow is None else decode_ref(flow.encode()),
        plan=None if plan is None else _plan(plan),
        wake_at=wake_at,
    )


def _dependents(texts: Sequence[str]) -> Iterator[Dependent]:
    for to, box, key in zip(texts[::3], texts[1::3], texts[2::3], strict=True):
        yield Dependent(decode_ref(to.encode()), box, key)


def decode_dependents(names: Sequence[bytes]) -> Iterator[Dependent]:
    """Return the dependents that lie apart from a record."""
    for name in names:
        queue, id_, box, key = name.decode().split("\0")
        yield Dependent(Ref(queue, id_), box, key)


def decode_steps(flat: Sequence[bytes]) -> tuple[StepRecord, ...]:
    """Return the steps of a job in the order in which they were recorded. `flat`: names and steps, alternately.

    lua/parts/steps.lua describes their form.
    """
    found: list[tuple[int, StepRecord]] = []
    for name, body in zip(flat[::2], flat[1::2], strict=True):
        if not name:
            # How many steps redrives have forgotten.
            continue
        number, run, at, met_by, has_body, kind, took = _STEP.unpack_from(body)
        step = StepRecord(
            name.decode(),
            int(run),
            int(at),
            _MET_BY[int(met_by) - 1],
            bytes(body[_STEP.size :]) if has_body else None,
            _KINDS[int(kind) - 1],
            None if took == _NO_TIME else int(took),
        )
        found.append((int(number), step))
    return tuple(step for _, step in sorted(found, key=itemgetter(0)))


def encode_step(number: int, step: StepRecord) -> bytes:
    """Return a step in its stored form. `number`: its place among the job's steps, from 1 on."""
    met_by, kind = _MET_BY.index(step.by) + 1, _KINDS.index(step.kind) + 1
    took = _NO_TIME if step.took is None else step.took
    return _STEP.pack(number, step.run, step.at, met_by, step.body is not None, kind, took) + (step.body or b"")


def decode_outbox(entries: Sequence[Sequence[Any]]) -> tuple[OutboxEntry, ...]:
    """Return the outbox entries of an answer."""
    return tuple(
        OutboxEntry(
            decode_ref(ref),
            number,
            bool(completed),
            tuple(_dependents([text.decode() for text in page])),
            cursor,
        )
        for number, ref, completed, cursor, page in entries
    )
