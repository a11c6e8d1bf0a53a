"""When a job counts as stalled, and how often it may."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from tenure.core.check import flag, of_kind, whole
from tenure.core.duration import Duration, duration, micros
from tenure.core.job import FOREVER, StallSetting, StallTerms
from tenure.options.merging import NestedOptions, fill


@dataclass(frozen=True, init=False)
class Stall(NestedOptions):
    """When a job counts as stalled, and how often it may. Built in: the app's lease, once, enabled, no start grace.

    `interval`: the job's lease. `max_count`: it fails when it stalls more often than this. `enabled=False`: only the
    death of its process, as seen by a supervisor or the kernel, takes a job from its worker. `start_grace`: no beat is
    asked of a run younger than this. `heartbeat=False`: the lease is not renewed by the worker, only by the handler's
    own `current_job().heartbeat()`: a visibility timeout.
    """

    interval: timedelta | None
    max_count: int | None
    enabled: bool | None
    start_grace: timedelta | None
    heartbeat: bool | None

    def __init__(
        self,
        interval: Duration | None = None,
        max_count: int | None = None,
        enabled: bool | None = None,
        start_grace: Duration | None = None,
        heartbeat: bool | None = None,
    ) -> None:
        """Take what differs from the defaults.

        Raises:
            UsageError: a duration is not positive, max_count is no whole number from 0, or a switch is no bool.
        """
        if max_count is not None:
            whole(max_count, field="Stall.max_count", least=0, meaning="0 fails a job at its first stall")
        fill(
            self,
            interval=None if interval is None else duration(interval, field="Stall.interval"),
            max_count=max_count,
            enabled=flag(enabled, field="Stall.enabled"),
            start_grace=None if start_grace is None else duration(start_grace, field="Stall.start_grace", zero=True),
            heartbeat=flag(heartbeat, field="Stall.heartbeat"),
        )

    @classmethod
    def from_bunqueue(cls, *, max_stalls: int, interval: Duration | None = None) -> Self:
        """Return the same rule as bunqueue's, which fails a job when its count reaches `max_stalls`.

        Raises:
            UsageError: max_stalls is no whole number from 1, or the interval no duration.
        """
        most = whole(max_stalls, field="max_stalls", least=1, meaning="1 fails a job at its first stall")
        return cls(interval=interval, max_count=most - 1)

    def terms(self, lease: timedelta, *, pinned: "Stall | None" = None) -> StallTerms:
        """Return these options as a job carries them; `pinned` are those that its own call set."""
        setting = self.setting()
        return StallTerms(
            lease=setting.lease if setting.lease is not None else micros(lease),
            max_stalls=1 if setting.max_stalls is None else setting.max_stalls,
            start_grace=setting.start_grace or 0,
            renewed=setting.renewed is not False,
            pinned=tuple(name for name in _SETTABLE if getattr(pinned.setting(), name) is not None) if pinned else (),
        )

    def setting(self) -> StallSetting:
        """Return these options as a queue keeps them."""
        lease = None if self.interval is None else micros(self.interval)
        return StallSetting(
            lease=FOREVER if self.enabled is False else lease,
            max_stalls=self.max_count,
            start_grace=None if self.start_grace is None else micros(self.start_grace),
            renewed=self.heartbeat,
        )


_SETTABLE = ("lease", "max_stalls", "start_grace", "renewed")


def stalling(stall: object) -> Stall:
    """Return stall options.

    Raises:
        UsageError: they are none.
    """
    return of_kind(stall, Stall, field="stall", remedy='write stall=Stall(interval="30s")')
