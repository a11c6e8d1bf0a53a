"""One cell: everything that lies under one hash tag, and each verb on it as one call of a script."""

from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.clock import Clock
from holdfast.core.job import NewJob, Owner
from holdfast.core.settlement import Settlement
from holdfast.storage.protocol import (
    Change,
    Exchanged,
    Order,
    Planned,
    Receipt,
    Revised,
    Revision,
    Settings,
    Target,
)
from holdfast.storage.redis.flow import answer_enqueue, answer_exchange, ask_enqueue, ask_exchange
from holdfast.storage.redis.hand import answer_plan, answer_revise, answer_tune, ask_plan, ask_revise, ask_tune
from holdfast.storage.redis.library import Script, verb


class Caller(Protocol):
    """Who runs scripts."""

    async def call(self, script: Script, base: str, *args: bytes | str | int, durable: bool = False) -> Any:
        """Run a script on the cell of a base key. `durable`: return when a replica has it, too."""
        ...


class Cell:
    """A storage under one hash tag.

    `clock`: what tests hand in; None leaves time to the server. `durable`: what was promised to remember or to be over
    is acknowledged only when a replica has it, too.
    """

    def __init__(self, caller: Caller, base: str, *, clock: Clock | None = None, durable: bool = False) -> None:
        self.base = base
        self._durable = durable
        self._caller = caller
        self._clock = clock

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """See `Storage.enqueue`."""
        return answer_enqueue(await self._call("enqueue", ask_enqueue(jobs), durable=self._durable), jobs)

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: Order | None = None
    ) -> Exchanged:
        """See `Storage.exchange`."""
        reply = await self._call(
            "exchange", ask_exchange(owner, settlements, order), durable=self._durable and bool(settlements)
        )
        return answer_exchange(reply, settlements)

    async def revise(self, revisions: Sequence[Revision]) -> list[Revised]:
        """See `Storage.revise`."""
        return answer_revise(await self._call("revise", ask_revise(revisions)), revisions)

    async def plan(self, changes: Sequence[Change]) -> list[Planned]:
        """See `Storage.plan`."""
        return answer_plan(await self._call("plan", ask_plan(changes), durable=self._durable), changes)

    async def tune(self, target: Target, settings: Settings, *, by: str | None = None) -> Settings:
        """See `Storage.tune`."""
        return answer_tune(await self._call("tune", ask_tune(target, settings, by)))

    async def _call(self, name: str, arguments: Sequence[bytes], *, durable: bool = False) -> Any:
        now = "" if self._clock is None else self._clock.now()
        return await self._caller.call(verb(name), self.base, now, *arguments, durable=durable)
