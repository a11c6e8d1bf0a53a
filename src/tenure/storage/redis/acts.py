"""Encodes the requests of record_act and acts for their scripts, and decodes the answers."""

from typing import Any

import msgspec
from msgspec import Struct

from tenure.core.audit import OperatorAct
from tenure.core.retention import KeepRule
from tenure.storage.protocol import ActsQuery
from tenure.storage.redis.records import RequestEncoder

_decode = msgspec.msgpack.Decoder(OperatorAct).decode


class _RecordAct(Struct, omit_defaults=True):
    act: OperatorAct
    age: int
    count: int | None = None


class _Acts(Struct, omit_defaults=True, kw_only=True):
    limit: int
    before: int | None = None
    actor: str | None = None
    action: str | None = None
    target: str | None = None


def encode_record_act(act: OperatorAct, keep: KeepRule) -> list[bytes]:
    """Return the request to write an act into the audit log."""
    return RequestEncoder().finish(_RecordAct(act, keep.age, keep.count))


def decode_record_act(reply: bytes) -> OperatorAct:
    """Return the record of the act."""
    return _decode(reply)


def encode_acts(query: ActsQuery, limit: int, before: int | None) -> list[bytes]:
    """Return the request for acts with a number below `before`."""
    return RequestEncoder().finish(
        _Acts(limit=limit, before=before, actor=query.actor, action=query.action, target=query.target)
    )


def decode_acts(reply: Any) -> tuple[list[tuple[int, OperatorAct]], int | None]:
    """Return acts with their numbers, and the number down to which the script has looked; None: at all of them."""
    found, looked_to = reply
    return [(number, _decode(body)) for number, body in found], looked_to
