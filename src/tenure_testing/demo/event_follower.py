"""The demo's reader of the event log, which begins at the end of the log as the demo finds it."""

from tenure.core.events import AnyEvent, Event, JobStalled, RunFenced
from tenure.storage.protocol import EVENTS_END, Storage

BATCH = 500


class EventFollower:
    """All events since `begin` that concern one queue or no queue at all."""

    def __init__(self, storage: Storage, queue: str) -> None:
        self.events: list[AnyEvent] = []
        self.stalled: dict[tuple[str, int], JobStalled] = {}
        self.fenced: set[tuple[str, int]] = set()
        self._storage = storage
        self._queue = queue
        self._cursor = ""

    async def begin(self) -> None:
        """Start behind all events so far."""
        self._cursor = (await self._storage.events(EVENTS_END)).next

    async def catch_up(self) -> list[AnyEvent]:
        """Read all new events and return them."""
        fresh: list[AnyEvent] = []
        while True:
            page = await self._storage.events(self._cursor, limit=BATCH)
            self._cursor = page.next
            fresh += [event for event in page.events if self._ours(event)]
            if len(page.events) < BATCH:
                break
        for event in fresh:
            match event:
                case JobStalled():
                    self.stalled[event.id, event.run] = event
                case RunFenced():
                    self.fenced.add((event.id, event.fence))
                case _:
                    pass
        self.events += fresh
        return fresh

    def _ours(self, event: Event) -> bool:
        return getattr(event, "queue", self._queue) == self._queue
