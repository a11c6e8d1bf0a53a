"""The rules of bulk operations: what they apply to, when they start, their pace, and when they end early. Pure."""

import hashlib
from typing import Literal

import msgspec
from msgspec import Struct

from tenure.core.lifecycle import REDRIVABLE, TERMINAL, State
from tenure.errors import UsageError

BulkAction = Literal["cancel", "redrive", "delete"]
"""What a bulk operation does to each job."""

BULK_STATES: dict[BulkAction, frozenset[State]] = {
    "cancel": frozenset(State) - TERMINAL,
    "redrive": REDRIVABLE,
    "delete": frozenset(State) - {State.ACTIVE},
}
"""The states of the jobs that each action changes; jobs in other states are refused."""

CHUNK = 100
"""How many jobs one chunk has at most."""

SLOW_CHUNK = 10
"""How many jobs a chunk waits for up to 10 s for. Each chunk costs a record of the audit log, which has a limit."""

MANY = 100
"""An operation on more jobs than this does not start at once."""

CONFIRM_WITHIN = 600_000_000
"""How long after the dry run an operation may be started, in microseconds."""

KEY = 64
"""The greatest length of a key for confirmations, in bytes."""


class BulkPlan(Struct, frozen=True, kw_only=True):
    """What an operation is to do. `cap`: the greatest number of jobs. `rate`: jobs per time, as text."""

    action: BulkAction
    filter: str = ""
    cap: int | None = None
    rate: str | None = None


class ChunkPace(Struct, frozen=True):
    """How many jobs a chunk has, and how many microseconds lie between the beginnings of two chunks."""

    size: int = CHUNK
    every: int = 0


def window(action: BulkAction, count: int) -> int:
    """Return the microseconds between the request and the start, in which a stop undoes the operation."""
    if action == "delete":
        return 10_000_000
    return 5_000_000 if count > MANY else 0


def pace_of(interval: int | None) -> ChunkPace:
    """Return the pace at a rate of one job per `interval` microseconds; None: as fast as possible.

    At a rate there is a chunk each second if it has 10 jobs then, so that the load is even. At a lower rate a chunk has
    up to 10 jobs, those of up to 10 s. A stop does not wait for the next chunk.
    """
    if not interval:
        return ChunkPace()
    size = min(CHUNK, max(1, 1_000_000 // interval, min(SLOW_CHUNK, 10_000_000 // interval)))
    return ChunkPace(size, size * interval)


def count_changed(met: int, count: int) -> bool:
    """Return True if an operation has met too many jobs: more than 1.1 times the count of its dry run, and 10."""
    # In whole numbers, because a float has no exact 1.1.
    return 10 * met > 11 * count + 100


class Confirmation(Struct, frozen=True):
    """A token that shows that its user has seen a dry run: the count that it showed, and when it was made."""

    count: int
    at: int
    mac: str

    @classmethod
    def read(cls, text: str) -> "Confirmation":
        """Read a token.

        Raises:
            UsageError: it is not a token.
        """
        count, _, rest = text.partition(".")
        at, _, mac = rest.partition(".")
        if not (len(text) <= 100 and all(word.isascii() and word.isalnum() for word in (count, at, mac))):
            raise UsageError("confirm is not a token of a dry run; make a dry run and send its confirm")
        if not (count.isdecimal() and at.isdecimal()):
            raise UsageError("confirm is not a token of a dry run; make a dry run and send its confirm")
        return cls(int(count), int(at), mac)

    @property
    def text(self) -> str:
        """The token."""
        return f"{self.count}.{self.at}.{self.mac}"

    def is_expired(self, now: int) -> bool:
        """Return True if the dry run is too old, or lies in the future."""
        return not 0 <= now - self.at <= CONFIRM_WITHIN


def confirmation(key: bytes, actor: str, plan: BulkPlan, *, count: int, at: int) -> Confirmation:
    """Return the token of a dry run: who lacks the key cannot make one for another user, plan, count or instant."""
    body = msgspec.json.encode([actor, plan.action, plan.filter, plan.cap, plan.rate, count, at])
    return Confirmation(count, at, hashlib.blake2b(body, key=key[:KEY], digest_size=16).hexdigest())
