"""The options that users set. Each object checks its values when it is made, so every existing object is valid.

None in a field of `Stall`, `Retry`, `TTL` or `TaskOptions` means "not set here". Options are merged field by field:
the call's override the queue's, then the task's, the app's, and the built-in defaults.
"""

from tenure.options.keys import SINGLETON, KeyTemplate
from tenure.options.lifetime import TTL, AutoRedrive, Keep, Retention
from tenure.options.merges import Collect, Debounce, Throttle, Unique
from tenure.options.merging import overlay
from tenure.options.rate import Rate
from tenure.options.retry import Retry
from tenure.options.stall import Stall, valid_stall
from tenure.options.tasks import CallOptions, OnUnreachable, TaskOptions, TaskSettings, valid_priority
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
    "valid_priority",
    "valid_stall",
]
