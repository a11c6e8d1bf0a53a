"""Stall options: when a job counts as stalled, and how often it may stall."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from tenure.core.check import flag, of_kind, whole
from tenure.core.duration import Duration, micros
from tenure.core.job import FOREVER, StallSetting, StallTerms
from tenure.options.merging import NestedOptions, fill
from tenure.options.seconds import option_duration


@dataclass(frozen=True, init=False)
class Stall(NestedOptions):
    """When a job counts as stalled, and how often it may stall.

    - `interval`: the job's lease; by default the lease of the app's timing.
    - `max_count`: the job fails when it stalls more often than this; 1 by default.
    - `enabled=False`: only the death of its worker process, seen by a supervisor or the kernel, takes a job from its
      worker; a missed lease renewal does not.
    - `start_grace`: a run needs no lease renewal during this time after its start; 0 by default.
    - `heartbeat=False`: the worker does not renew the lease. Only the handler's own `current_job().heartbeat()` does,
      as with a visibility timeout.
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
        """Set the options that differ from the defaults.

        Raises:
            UsageError: `interval` is not a positive duration, `start_grace` is not a duration, `max_count` is not a
                whole number of at least 0, or `enabled` or `heartbeat` is not a bool.
        """
        if max_count is not None:
            whole(max_count, field="Stall.max_count", least=0, meaning="0 fails a job at its first stall")
        fill(
            self,
            interval=None if interval is None else option_duration(interval, field="Stall.interval"),
            max_count=max_count,
            enabled=flag(enabled, field="Stall.enabled"),
            start_grace=None
            if start_grace is None
            else option_duration(start_grace, field="Stall.start_grace", zero=True),
            heartbeat=flag(heartbeat, field="Stall.heartbeat"),
        )

    @classmethod
    def from_bunqueue(cls, *, max_stalls: int, interval: Duration | None = None) -> Self:
        """Return the equivalent of bunqueue's rule, which fails a job when its stall count reaches `max_stalls`.

        Raises:
            UsageError: `max_stalls` is not a whole number of at least 1, or `interval` is not a duration.
        """
        most = whole(max_stalls, field="max_stalls", least=1, meaning="1 fails a job at its first stall")
        return cls(interval=interval, max_count=most - 1)

    def terms(self, lease: timedelta, *, pinned: "Stall | None" = None) -> StallTerms:
        """Return these options in the form that a job stores; `pinned`: the options that the call itself set."""
        setting = self.setting()
        return StallTerms(
            lease=setting.lease if setting.lease is not None else micros(lease),
            max_stalls=1 if setting.max_stalls is None else setting.max_stalls,
            start_grace=setting.start_grace or 0,
            renewed=setting.renewed is not False,
            pinned=tuple(name for name in _SETTABLE if getattr(pinned.setting(), name) is not None) if pinned else (),
        )

    def setting(self) -> StallSetting:
        """Return these options in the form that a queue stores."""
        lease = None if self.interval is None else micros(self.interval)
        return StallSetting(
            lease=FOREVER if self.enabled is False else lease,
            max_stalls=self.max_count,
            start_grace=None if self.start_grace is None else micros(self.start_grace),
            renewed=self.heartbeat,
        )


def stall_of(setting: StallSetting | None) -> Stall | None:
    """Return the stall options that a queue stores; None if it stores none."""
    if setting is None:
        return None
    forever = setting.lease is not None and setting.lease >= FOREVER
    return Stall(
        interval=None if setting.lease is None or forever else timedelta(microseconds=setting.lease),
        max_count=setting.max_stalls,
        enabled=False if forever else None,
        start_grace=None if setting.start_grace is None else timedelta(microseconds=setting.start_grace),
        heartbeat=setting.renewed,
    )


_SETTABLE = ("lease", "max_stalls", "start_grace", "renewed")


def valid_stall(stall: object) -> Stall:
    """Return the stall options.

    Raises:
        UsageError: the value is not a `Stall`.
    """
    return of_kind(stall, Stall, field="stall", remedy='write stall=Stall(interval="30s")')
