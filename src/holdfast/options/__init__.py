"""What a user may set, checked when it is made: every object here is valid once it exists.

None in a field of `Stall`, `Retry`, `TTL` or `TaskOptions` means "not set here". What is set is merged field by field:
the call's own over the queue's over the task's over the app's over the built-in.
"""

from holdfast.options.keys import SINGLETON, ConcurrencyKey
from holdfast.options.lifetime import TTL, AutoRedrive, Keep, Retention
from holdfast.options.merging import overlay
from holdfast.options.retry import Retry
from holdfast.options.stall import Stall, stalling
from holdfast.options.tasks import CallOptions, OnUnreachable, TaskOptions, TaskSettings, ranked
from holdfast.options.timing import LeaderElection, Timing

__all__ = [
    "SINGLETON",
    "TTL",
    "AutoRedrive",
    "CallOptions",
    "ConcurrencyKey",
    "Keep",
    "LeaderElection",
    "OnUnreachable",
    "Retention",
    "Retry",
    "Stall",
    "TaskOptions",
    "TaskSettings",
    "Timing",
    "overlay",
    "ranked",
    "stalling",
]
