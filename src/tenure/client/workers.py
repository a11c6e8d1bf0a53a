"""Orders to single workers, which the storage holds and the workers obey: `app.workers`."""

from collections.abc import Awaitable, Callable

from tenure.core.check import named, remark, whole
from tenure.errors import UsageError
from tenure.storage.protocol import Settings, Storage, Target


class Workers:
    """The workers of an app's storage, in any process: `await app.workers.pause("web-2:977")`.

    A worker is named by its owner id (`worker.owner.id`) or its name. It gets an order at once, or with its next beat.
    Orders end with the worker: a worker that is started again has none.
    """

    def __init__(self, opened: Callable[[], Awaitable[Storage]]) -> None:
        self._opened = opened

    async def pause(self, worker: str, *, by: str | None = None) -> None:
        """Pause a worker: it claims no more jobs. Its runs go on, and the worker does not exit.

        Raises:
            UsageError: not exactly one live worker has this owner id or name, or `by` is not a string.
            StorageError: the order may or may not have been stored; it is safe to call again.
        """
        await self._order(worker, Settings(quiet=True), by)

    async def resume(self, worker: str, *, by: str | None = None) -> None:
        """Resume a worker: it claims jobs again.

        Raises:
            UsageError: not exactly one live worker has this owner id or name, or `by` is not a string.
            StorageError: the order may or may not have been stored; it is safe to call again.
        """
        await self._order(worker, Settings(quiet=False), by)

    async def set_concurrency(self, worker: str, concurrency: int | None, *, by: str | None = None) -> None:
        """Set how many jobs a worker runs at once; None restores the number that it was started with.

        With a smaller number no run is cancelled: the worker claims again once fewer runs go on.

        Raises:
            UsageError: not exactly one live worker has this owner id or name, `concurrency` is not a whole number from
                1 to 1,000, or `by` is not a string.
            StorageError: the order may or may not have been stored; it is safe to call again.
        """
        await self._order(worker, Settings(concurrency=valid_concurrency(concurrency)), by)

    async def stop(self, worker: str, *, by: str | None = None) -> None:
        """Stop a worker: it drains and ends, as after SIGTERM. Its supervisor does not replace it.

        Raises:
            UsageError: not exactly one live worker has this owner id or name, or `by` is not a string.
            StorageError: the order may or may not have been stored; it is safe to call again.
        """
        await self._order(worker, Settings(stop=True), by)

    async def _order(self, worker: str, settings: Settings, by: str | None) -> None:
        name, who = named(worker, field="worker"), remark(by, field="by")
        storage = await self._opened()
        live = [known.owner for known in (await storage.survey()).workers if not known.died]
        found = [owner for owner in live if owner.id == name] or [owner for owner in live if owner.name == name]
        if len(found) != 1:
            matches = ", ".join(f"{owner.id} ({owner.name})" for owner in found or live) or "none"
            raise UsageError(
                f"worker = {name!r} is the owner id or name of {len(found)} live workers; give the owner id of one of "
                f"them: {matches}"
            )
        await storage.tune(Target("worker", found[0].id), settings, by=who)


def valid_concurrency(concurrency: object) -> int:
    """Return the concurrency to order from a worker, 0 for the one that it was started with.

    Raises:
        UsageError: it is neither None nor a whole number from 1 to 1,000.
    """
    if concurrency is None:
        return 0
    return whole(concurrency, field="concurrency", least=1, most=1_000, meaning="to let none run, pause the worker")
