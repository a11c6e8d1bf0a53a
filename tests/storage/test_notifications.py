"""Notifications inside one process: which listeners are woken, how often, and what happens to closed ones."""

import asyncio

from tenure.storage.notifications import Listener, NotificationHub


async def woken(listener: Listener) -> bool:
    """Return whether a notification is pending."""
    wait = asyncio.ensure_future(listener.__anext__())
    for _ in range(5):
        await asyncio.sleep(0)
    if wait.done():
        return True
    wait.cancel()
    await asyncio.gather(wait, return_exceptions=True)
    return False


async def test_only_listeners_of_a_topic_are_woken_by_it() -> None:
    hub = NotificationHub()
    one, other, both = hub.listen(["a"]), hub.listen(["b"]), hub.listen(["a", "b"])
    hub.notify(["a", "unheard-of"])

    assert [await woken(listener) for listener in (one, other, both)] == [True, False, True]


async def test_notifications_that_come_together_are_one() -> None:
    hub = NotificationHub()
    listener = hub.listen(["a", "b"])
    for _ in range(10):
        hub.notify(["a", "b", "a"])

    assert [await woken(listener), await woken(listener)] == [True, False]

    hub.notify(["b"])

    assert await woken(listener)


async def test_a_cancelled_wait_leaves_the_notification() -> None:
    hub = NotificationHub()
    listener = hub.listen(["a"])
    wait = asyncio.ensure_future(listener.__anext__())
    hub.notify(["a"])
    wait.cancel()
    await asyncio.gather(wait, return_exceptions=True)

    assert await woken(listener)


async def test_a_notification_of_every_topic_wakes_every_listener() -> None:
    hub = NotificationHub()
    listeners = [hub.listen(["a"]), hub.listen(["b"])]
    hub.notify_all()

    assert [await woken(listener) for listener in listeners] == [True, True]


async def test_a_closed_listener_is_not_woken() -> None:
    hub = NotificationHub()
    listener, other = hub.listen(["a"]), hub.listen(["a"])
    listener.close()
    listener.close()
    hub.notify(["a"])

    assert [await woken(listener), await woken(other)] == [False, True]


async def test_a_notification_without_listeners_is_dropped() -> None:
    hub = NotificationHub()
    hub.notify(["a"])
    hub.notify_all()
    listener = hub.listen(["a"])

    assert not await woken(listener)


async def test_a_notification_from_another_thread_arrives() -> None:
    hub = NotificationHub()
    listener = hub.listen(["a"])
    await asyncio.to_thread(hub.notify, ["a"])
    async with asyncio.timeout(30):
        await listener.__anext__()


async def test_a_notification_of_the_same_loop_arrives_in_its_next_turn() -> None:
    hub = NotificationHub()
    listener = hub.listen(["a"])
    wait = asyncio.ensure_future(listener.__anext__())
    await asyncio.sleep(0)
    hub.notify_here(["a", "unheard-of"])
    hub.notify_here(["a"])
    await asyncio.sleep(0)

    assert wait.done()
    assert not await woken(listener)


async def test_a_listener_with_a_callback_is_called_and_not_woken() -> None:
    hub, calls = NotificationHub(), [0]
    listener = hub.listen(["a"])

    def hear() -> None:
        calls[0] += 1

    listener.on_hint = hear
    hub.notify_here(["a"])
    at_once = calls[0]
    hub.notify(["a"])
    hub.notify(["a"])
    in_this_turn = calls[0]
    await asyncio.sleep(0)
    merged = calls[0]
    hub.notify(["a"])
    await asyncio.sleep(0)

    assert (at_once, in_this_turn, merged, calls[0]) == (1, 1, 2, 3)
    assert not await woken(listener)


async def test_an_iteration_yields_once_for_each_notification() -> None:
    hub = NotificationHub()
    listener = hub.listen(["a"])
    heard = 0
    hub.notify(["a"])
    async for _ in listener:
        heard += 1
        if heard == 3:
            break
        hub.notify(["a"])

    assert heard == 3


def test_a_listener_of_a_closed_loop_does_not_disturb_others() -> None:
    hub = NotificationHub()

    async def listen() -> None:
        hub.listen(["a"])

    async def hear() -> bool:
        listener = hub.listen(["a"])
        hub.notify(["a"])
        return await woken(listener)

    asyncio.run(listen())
    hub.notify(["a"])

    assert asyncio.run(hear())
