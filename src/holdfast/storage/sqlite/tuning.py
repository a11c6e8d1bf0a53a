"""What is set for a queue, a task or a worker."""

import msgspec

from holdfast.core.events import QueuePaused, QueueResumed
from holdfast.storage.protocol import Settings, Target, queue_topic
from holdfast.storage.sqlite.queries import query
from holdfast.storage.sqlite.step import Step

_SETTING = query("tune", "setting")
_SET = query("tune", "set")
_NONE = Settings()

_encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Settings).decode


def setting(step: Step, kind: str, name: str) -> Settings:
    """Return the settings in force."""
    row = step.one(_SETTING, (kind, name))
    return _NONE if row is None else decode(row[0])


def tune(step: Step, target: Target, settings: Settings, by: str | None) -> Settings:
    """Lay settings over those in force."""
    before = setting(step, target.kind, target.name)
    after = before.under(settings)
    step.run(_SET, (target.kind, target.name, _encode(after).decode()))
    if target.kind == "queue" and bool(before.paused) != bool(after.paused):
        kind = QueuePaused if after.paused else QueueResumed
        step.record(kind(queue=target.name, by=by))
        step.knocked.append(queue_topic(target.name))
    return after
