"""What a user may set, checked when it is made: every object here is valid once it exists.

None in a field of `Stall`, `Retry`, `TTL` or `TaskOptions` means "not set here". What is set is merged field by field:
the call's own over the queue's over the task's over the app's over the built-in.
"""

from tenure.options.keys import SINGLETON, KeyTemplate
from tenure.options.lifetime import TTL, AutoRedrive, Keep, Retention
from tenure.options.merges import Collect, Debounce, Throttle, Unique
from tenure.options.merging import overlay
from tenure.options.rate import Rate
from tenure.options.retry import Retry
from tenure.options.stall import Stall, stalling
from tenure.options.tasks import CallOptions, OnUnreachable, TaskOptions, TaskSettings, ranked
from tenure.options.timing import LeaderElection, Timing

__all__ = [
    "SINGLETON",
    "TTL",
    "AutoRedrive",
    "CallOptions",
    "Collect",
    "Debounce",
    "Keep",
    "KeyTemplate",
    "LeaderElection",
    "OnUnreachable",
    "Rate",
    "Retention",
    "Retry",
    "Stall",
    "TaskOptions",
    "TaskSettings",
    "Throttle",
    "Timing",
    "Unique",
    "overlay",
    "ranked",
    "stalling",
]
