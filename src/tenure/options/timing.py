"""Timing options: how fast a lost worker is detected, how a reaper is elected, how long a stopped worker may go on."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from tenure.core.duration import Duration
from tenure.errors import UsageError
from tenure.options.merging import fill
from tenure.options.seconds import option_duration

DRAIN = timedelta(seconds=25)
"""How long the runs of a worker may continue after a stop, by default."""


@dataclass(frozen=True, init=False)
class Timing:
    """How fast a lost worker is detected.

    By default, a lost host or network is detected within `lease + grace + 2 * sweep`, 27 s; `recovery_bound` gives the
    bound for other values.

    - `lease`: how long a job belongs to its worker without a renewal; 20 s by default.
    - `beat`: the time between two renewals of all leases; a quarter of the lease by default.
    - `sweep`: the time between two sweeps of the reaper; 2 s by default.
    - `grace`: how long a job with an expired lease is only suspect before it is recovered; 3 s by default.
    - `leader_ttl`: how long a reaper leads without a renewal; two sweeps by default.
    - `max_block`: how long a handler may block its worker's event loop until the worker is given up; 10 min by default.
    """

    lease: timedelta
    beat: timedelta
    sweep: timedelta
    grace: timedelta
    leader_ttl: timedelta
    max_block: timedelta

    def __init__(
        self,
        lease: Duration = "20s",
        beat: Duration | None = None,
        sweep: Duration = "2s",
        grace: Duration = "3s",
        leader_ttl: Duration | None = None,
        max_block: Duration = "10m",
    ) -> None:
        """Set durations, given in seconds, as timedelta, or as text ("30s").

        Raises:
            UsageError: a duration is not positive, `beat` is half of `lease` or more, or `leader_ttl` is under `sweep`.
        """
        lease_ = option_duration(lease, field="Timing.lease")
        sweep_ = option_duration(sweep, field="Timing.sweep")
        beat_ = lease_ / 4 if beat is None else option_duration(beat, field="Timing.beat")
        if beat_ >= lease_ / 2:
            raise UsageError(
                f"Timing.beat = {_seconds(beat_)} must be under half of Timing.lease = {_seconds(lease_)}: "
                "one late beat would cost the lease; leave it unset for a quarter"
            )
        term = sweep_ * 2 if leader_ttl is None else option_duration(leader_ttl, field="Timing.leader_ttl")
        if term < sweep_:
            raise UsageError(
                f"Timing.leader_ttl = {_seconds(term)} must not be under Timing.sweep = {_seconds(sweep_)}: "
                "every leader would lose its term between two sweeps; leave it unset for two sweeps"
            )
        fill(
            self,
            lease=lease_,
            beat=beat_,
            sweep=sweep_,
            grace=option_duration(grace, field="Timing.grace"),
            leader_ttl=term,
            max_block=option_duration(max_block, field="Timing.max_block"),
        )

    @classmethod
    def fast(cls) -> Self:
        """Return lease 8 s, sweep 1 s, grace 1 s: a lost host is detected within 11 s."""
        return cls(lease="8s", beat="2s", sweep="1s", grace="1s", leader_ttl="2s")

    @classmethod
    def classic(cls) -> Self:
        """Return lease 30 s, sweep 5 s, grace 5 s, as in older queues: a lost host is detected within 45 s."""
        return cls(lease="30s", beat="7.5s", sweep="5s", grace="5s", leader_ttl="10s")

    @property
    def recovery_bound(self) -> timedelta:
        """The longest time until a job whose worker was lost with its host can be claimed again."""
        if self.leader_ttl <= 2 * self.sweep:
            return self.lease + self.grace + 2 * self.sweep
        return max(self.lease + self.grace + 2 * self.sweep, self.leader_ttl + self.lease + 2 * self.sweep)


@dataclass(frozen=True, init=False)
class LeaderElection:
    """One elected reaper sweeps for all. `ttl`: its term without a renewal; by default `Timing.leader_ttl`."""

    ttl: timedelta | None

    def __init__(self, ttl: Duration | None = None) -> None:
        """Set the term if it differs from the default.

        Raises:
            UsageError: `ttl` is not a positive duration.
        """
        fill(self, ttl=None if ttl is None else option_duration(ttl, field="LeaderElection.ttl"))

    def length(self, timing: Timing) -> timedelta:
        """Return the length of a term."""
        return timing.leader_ttl if self.ttl is None else self.ttl


def _seconds(length: timedelta) -> str:
    return f"{length.total_seconds():g}s"
