"""Settings of queues and tasks are read back as the objects with which they were set, on every storage."""

import asyncio
from datetime import timedelta

from tenure import JobEnqueued, JobStarted, Keep, Rate, Retention, Stall, Tenure

DEFAULT = Retention(completed=Keep("1h", 10_000), failed=Keep("30d"), cancelled=Keep("7d"), expired=Keep("7d"))


async def test_an_untouched_queue_has_the_defaults(app: Tenure) -> None:
    settings = await app.queue("unheard-of").settings()

    assert (settings.paused, settings.rate, settings.stall, settings.record) == (False, None, None, ())
    assert settings.retention == DEFAULT


async def test_queue_settings_are_read_back_as_they_were_set(app: Tenure) -> None:
    queue = app.queue("mail")
    await queue.pause(by="ops")
    await queue.set_rate(Rate(100, per="1s", burst=5))
    await queue.set_stall(Stall(interval="45s", max_count=3, start_grace="2s", heartbeat=False))
    await queue.set_retention(Retention(failed=Keep("90d"), completed=Keep("2h", 5)))
    await queue.record(JobStarted, JobEnqueued)
    settings = await queue.settings()

    assert settings.paused
    assert settings.rate == Rate(100, per="1s", burst=5)
    assert settings.stall == Stall(interval="45s", max_count=3, start_grace="2s", heartbeat=False)
    assert settings.retention == Retention(
        completed=Keep("2h", 5), failed=Keep("90d"), cancelled=Keep("7d"), expired=Keep("7d")
    )
    assert settings.record == (JobStarted, JobEnqueued)

    await queue.resume()
    await queue.set_rate("7/m")
    await queue.set_stall(Stall(enabled=False))
    await queue.record()
    settings = await asyncio.to_thread(queue.settings_sync)

    assert (settings.paused, settings.record) == (False, ())
    assert settings.rate is not None
    assert abs(settings.rate.per / settings.rate.max - timedelta(minutes=1) / 7) < timedelta(microseconds=1)
    assert settings.stall is not None
    assert (settings.stall.enabled, settings.stall.interval) == (False, None)

    await queue.set_rate(None)
    assert (await queue.settings()).rate is None


async def test_the_controls_of_a_task_are_read_back(app: Tenure) -> None:
    @app.task(name="send", rate="5/s")
    async def send() -> None: ...

    assert (await send.controls()).rate is None
    assert not (await send.controls()).overrides_rate

    await send.pause(by="ops")
    await send.set_rate("10/s")
    controls = await send.controls()
    assert (controls.paused, controls.rate, controls.overrides_rate) == (True, Rate(10), True)

    await send.resume()
    await send.set_rate(None)
    controls = await asyncio.to_thread(send.controls_sync)
    assert (controls.paused, controls.rate, controls.overrides_rate) == (False, None, True)
