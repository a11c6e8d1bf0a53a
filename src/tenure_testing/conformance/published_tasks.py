"""Conformance tests of `publish` and `published`: what workers know of their tasks."""

from msgspec import structs

from tenure.clock import SECOND
from tenure.core.job import NewJob, UniqueKey
from tenure.core.published import (
    PUBLISH_LIMIT,
    PUBLISHED_KEPT,
    PUBLISHED_MOST,
    RENEWED_WITHIN,
    PublishedTask,
    without_schemas,
)
from tenure.storage.protocol import Storage
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import Conformance

SCHEMA = {
    "type": "object",
    "properties": {"to": {"type": "string", "description": "ümlaut, \0 and 'quotes'"}, "n": {"maximum": 2**53}},
}
SEND = PublishedTask(
    name="mail.send",
    queue="mail",
    version=3,
    signature="(to: str, n: int = 0) -> bool",
    help="Send a mail, with \0 in its help.",
    options={"timeout": "5m", "retry": "max_attempts=3"},
    search=("to", "order.id"),
    job=NewJob(queue="mail", id="", task="mail.send", payload=b"", priority=3, merge=UniqueKey("x")),
    digest="d1" * 16,
    arguments=SCHEMA,
    returns={"type": "boolean"},
)
BARE = PublishedTask(name="ö/bare task", queue="default", digest="b1" * 16)
NEWER = structs.replace(SEND, version=4, digest="d2" * 16, arguments=None, returns=None)
TENTH = structs.replace(SEND, version=10, digest="d3" * 16)


async def listed(storage: Storage) -> list[tuple[str, int]]:
    """Return the names and versions of all published tasks."""
    return [(task.name, task.version) for task in await storage.published()]


class PublishedTasksConformance(Conformance):
    """A worker's tasks are stored once, renewed, and forgotten after a month."""

    async def test_a_published_task_is_read_by_name_as_it_was_written(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.publish([SEND, BARE])

        assert await storage.published(["mail.send", "unknown"]) == [structs.replace(SEND, published=clock.now())]
        assert await storage.published(["ö/bare task"]) == [structs.replace(BARE, published=clock.now())]
        assert await storage.published([]) == []

    async def test_all_published_tasks_are_listed_by_name_without_schemas(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        assert await storage.published() == []

        await storage.publish([BARE, SEND])

        tasks = [structs.replace(without_schemas(task), published=clock.now()) for task in (SEND, BARE)]
        assert await storage.published() == tasks

    async def test_the_latest_publication_of_a_task_replaces_the_others(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.publish([SEND])
        clock.advance(5.0)
        await storage.publish([NEWER])
        await storage.publish([NEWER])

        assert await storage.published(["mail.send"]) == [structs.replace(NEWER, published=clock.now())]

        other = structs.replace(NEWER, digest="d" * 32, queue="elsewhere")
        await storage.publish([other])

        assert await storage.published(["mail.send"]) == [structs.replace(other, published=clock.now())]

    async def test_a_lower_version_replaces_no_higher_one_of_a_live_worker(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.publish([TENTH])
        for renewal in (False, True):
            await storage.publish([NEWER], renewal=renewal)

            assert await listed(storage) == [("mail.send", 10)]

        # A worker of the lower version may have been the first, and the higher one may only renew.
        clock.advance(RENEWED_WITHIN / SECOND)
        await storage.publish([NEWER])
        await storage.publish([TENTH], renewal=True)

        assert await listed(storage) == [("mail.send", 10)]

    async def test_a_lower_version_is_published_after_a_rollback(self, storage: Storage, clock: ManualClock) -> None:
        await storage.publish([NEWER])
        clock.advance(RENEWED_WITHIN / SECOND - 1)
        await storage.publish([SEND])

        assert await listed(storage) == [("mail.send", 4)]

        clock.advance(1)
        await storage.publish([SEND])

        assert await storage.published(["mail.send"]) == [structs.replace(SEND, published=clock.now())]

    async def test_a_renewal_moves_the_instant_and_keeps_another_digest(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.publish([SEND, BARE])
        began = clock.now()
        clock.advance(60.0)
        await storage.publish([BARE, structs.replace(SEND, digest="d" * 32)], renewal=True)
        tasks = {task.name: task for task in await storage.published()}

        assert (tasks["mail.send"].digest, tasks["mail.send"].published) == (SEND.digest, began)
        assert tasks["ö/bare task"].published == clock.now()

    async def test_a_renewal_stores_what_the_storage_does_not_know(self, storage: Storage) -> None:
        await storage.publish([SEND], renewal=True)

        assert await listed(storage) == [("mail.send", 3)]

    async def test_a_renewal_replaces_what_no_live_worker_publishes(self, storage: Storage, clock: ManualClock) -> None:
        await storage.publish([NEWER])
        clock.advance(RENEWED_WITHIN / SECOND - 1)
        await storage.publish([SEND], renewal=True)

        assert await listed(storage) == [("mail.send", 4)]

        clock.advance(1)
        await storage.publish([SEND], renewal=True)

        assert await storage.published(["mail.send"]) == [structs.replace(SEND, published=clock.now())]

    async def test_a_renewal_replaces_a_publication_ahead_of_the_clock(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.publish([NEWER])
        clock.step_wall(-60.0)
        await storage.publish([SEND], renewal=True)

        assert await storage.published(["mail.send"]) == [structs.replace(SEND, published=clock.now())]

    async def test_a_task_is_forgotten_a_month_after_its_last_publication(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.publish([SEND])
        clock.advance(60.0)
        await storage.publish([BARE])
        clock.advance(PUBLISHED_KEPT / SECOND - 60.0)

        assert await listed(storage) == [("ö/bare task", 1)]
        assert await storage.published(["mail.send"]) == []

        # This also deletes it: if the clock is set back, it is not known again.
        await storage.publish([BARE])
        clock.step_wall(-100.0)

        assert await listed(storage) == [("ö/bare task", 1)]

    async def test_a_storage_keeps_the_tasks_that_were_published_last(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.publish([SEND, BARE])
        for first in range(0, PUBLISHED_MOST, PUBLISH_LIMIT):
            clock.advance(0.001)
            names = [f"task {number:04}" for number in range(first, first + PUBLISH_LIMIT)]
            await storage.publish([structs.replace(BARE, name=name) for name in names])
        tasks = await storage.published()

        assert len(tasks) == PUBLISHED_MOST
        assert {task.name[:4] for task in tasks} == {"task"}
