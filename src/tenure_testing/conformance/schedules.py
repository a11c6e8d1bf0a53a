"""Conformance tests of `plan`: each tick is handled once, by the first caller, and a schedule outlives its leader."""

import asyncio
from typing import get_args

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.duration import moment
from tenure.core.events import ScheduleFired, ScheduleMissed, ScheduleSkipped
from tenure.core.job import CollectKey, DebounceKey, MergeKey, NewJob, Ref, ThrottleKey, UniqueKey
from tenure.core.lifecycle import State
from tenure.core.schedule import AHEAD, Missed, Overlap, Schedule
from tenure.storage.protocol import (
    DUE_LIMIT,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ScheduleResult,
    Settings,
    Storage,
    Target,
    Tick,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    QUEUE,
    Conformance,
    all_events,
    bid,
    claim_one,
    counted,
    enqueue,
    events_of,
    new_job,
    record,
    recover,
    settle,
    states,
)
from tenure_testing.conformance.unique_keys import AT_WORK, IN_LINE, OVER, Stand

EVERY = 60 * SECOND
DAY = 86_400


class SchedulesConformance(Conformance):
    """Each tick is handled once, by the first caller, and a schedule outlives its leader."""

    async def test_a_schedule_is_stored_unchanged(self, storage: Storage, clock: ManualClock) -> None:
        whole = structs.replace(
            schedule(clock, "whole"),
            job=new_job("", payload=bytes(range(256)), tags=("x", "ü"), merge=UniqueKey("k")),
            cron="0 4 * * *",
            tz="Europe/Berlin",
            every=None,
            missed="all",
            most=7,
            overlap="queue_one",
            grace=SECOND,
        )
        plain = schedule(clock, "größe: any/kind ☃")

        assert await storage.plan([PutSchedule(whole), PutSchedule(plain)]) == [
            ScheduleResult("whole", "done"),
            ScheduleResult("größe: any/kind ☃", "done"),
        ]
        assert (await storage.survey()).schedules == (plain, whole)

    async def test_a_tick_creates_its_job_and_advances_the_schedule(self, storage: Storage, clock: ManualClock) -> None:
        first = await put(storage, clock)
        clock.advance(61.5)
        tick = tick_of(first)
        (planned,) = await storage.plan([tick])
        (after,) = (await storage.survey()).schedules

        assert planned == ScheduleResult("report", "done", Ref(QUEUE, tick_id(tick)))
        assert (after.last_tick, after.next_tick) == (first.next_tick, tick.next_tick)
        assert after.last_id == tick_id(tick)
        job = await record(storage, Ref(QUEUE, tick_id(tick)))
        assert (job.state, job.schedule, job.tick) == (State.WAITING, "report", tick.tick)
        (event,) = await events_of(storage, ScheduleFired)
        assert (event.name, event.tick, event.late_by) == ("report", moment(tick.tick), 1.5)
        assert (event.queue, event.id) == (QUEUE, tick_id(tick))

    @pytest.mark.fault("F10")
    @pytest.mark.statement(42)
    async def test_a_schedule_continues_after_its_job_failed_by_a_stall(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        known = await put(storage, clock)
        clock.advance(60)
        tick = tick_of(known)
        await storage.plan([tick])
        for _ in range(2):
            await claim_one(storage)
            await recover(storage, clock)
        ended = await record(storage, Ref(QUEUE, tick_id(tick)))

        assert (ended.state, ended.reason) == (State.FAILED, "stalled")

        clock.advance(60)
        swept = await storage.sweep(bid())

        assert [due.name for due in swept.due] == [known.name]

        (planned,) = await storage.plan([tick_of(swept.due[0])])

        assert planned.verdict == "done"
        assert planned.ref is not None
        assert (await record(storage, planned.ref)).state is State.WAITING

    @pytest.mark.fault("W-T19")
    async def test_one_of_ten_schedulers_fires_a_tick(self, storage: Storage, clock: ManualClock) -> None:
        first = await put(storage, clock)
        clock.advance(60)
        answers = await asyncio.gather(*(storage.plan([tick_of(first)]) for _ in range(10)))
        verdicts = sorted(planned.verdict for answer in answers for planned in answer)

        assert verdicts == ["done"] + ["superseded"] * 9
        assert await counted(storage) == {State.WAITING: 1}
        assert len(await all_events(storage)) == 1

    async def test_a_repeated_tick_fires_once(self, storage: Storage, clock: ManualClock) -> None:
        known = await put(storage, clock, overlap="allow")
        for _ in range(5):
            clock.advance(60)
            tick = tick_of(known)

            assert [(await storage.plan([tick]))[0].verdict for _ in range(3)] == ["done", "superseded", "superseded"]

            (known,) = (await storage.survey()).schedules

        assert len(await states(storage)) == 5
        assert len(await events_of(storage, ScheduleFired)) == 5

    async def test_a_tick_with_an_outdated_expectation_changes_nothing(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        first = await put(storage, clock)
        clock.advance(60)
        late = tick_of(first)
        ahead = structs.replace(late, expected=late.tick, tick=late.tick + EVERY, next_tick=late.tick + 2 * EVERY)
        before = (await storage.survey()).schedules

        assert await storage.plan([ahead]) == [ScheduleResult("report", "superseded")]
        assert (await storage.survey()).schedules == before
        assert await all_events(storage) == []
        assert await states(storage) == {}

    @pytest.mark.parametrize("stand", [*IN_LINE, *AT_WORK], ids=lambda stand: stand.__name__)
    @pytest.mark.parametrize("overlap", get_args(Overlap))
    async def test_unfinished_jobs_of_earlier_ticks_count_as_overlap(
        self, storage: Storage, clock: ManualClock, stand: Stand, overlap: Overlap
    ) -> None:
        known = await put(storage, clock, overlap=overlap)
        await stand(storage, clock, new_job("earlier", schedule="report"))
        fires = overlap == "allow" or (overlap == "queue_one" and stand in AT_WORK)
        tick = tick_of(known)
        (planned,) = await storage.plan([tick])
        (after,) = (await storage.survey()).schedules
        skipped = [(event.name, event.tick, event.reason) for event in await events_of(storage, ScheduleSkipped)]

        assert planned == ScheduleResult("report", "done", Ref(QUEUE, tick_id(tick)) if fires else None)
        assert after.last_tick == tick.tick
        assert after.last_id == (tick_id(tick) if fires else None)
        assert len(await states(storage)) == 1 + fires
        assert skipped == ([] if fires else [("report", moment(tick.tick), "overlap")])
        assert len(await events_of(storage, ScheduleFired)) == fires

    @pytest.mark.fault("W-T20")
    async def test_queue_one_skips_a_tick_while_a_job_waits(self, storage: Storage, clock: ManualClock) -> None:
        known = await put(storage, clock, overlap="queue_one")
        await enqueue(storage, new_job("earlier", schedule="report"))
        await claim_one(storage)
        await enqueue(storage, new_job("later", schedule="report"))
        (planned,) = await storage.plan([tick_of(known)])

        assert planned == ScheduleResult("report", "done")
        assert [event.reason for event in await events_of(storage, ScheduleSkipped)] == ["overlap"]

    @pytest.mark.parametrize("stand", OVER, ids=lambda stand: stand.__name__)
    async def test_terminal_jobs_do_not_count_as_overlap(
        self, storage: Storage, clock: ManualClock, stand: Stand
    ) -> None:
        known = await put(storage, clock)
        await stand(storage, clock, new_job("earlier", schedule="report"))
        (planned,) = await storage.plan([tick_of(known)])

        assert planned.ref is not None
        assert await events_of(storage, ScheduleSkipped) == []

    async def test_jobs_of_another_schedule_do_not_count_as_overlap(self, storage: Storage, clock: ManualClock) -> None:
        known = await put(storage, clock)
        await enqueue(storage, new_job("plain"), new_job("other", schedule="other"))
        (planned,) = await storage.plan([tick_of(known)])

        assert planned.ref is not None

    async def test_a_tick_with_an_existing_job_is_skipped(self, storage: Storage, clock: ManualClock) -> None:
        known = await put(storage, clock)
        tick = tick_of(known)
        await enqueue(storage, new_job(tick_id(tick)))

        assert await storage.plan([tick]) == [ScheduleResult("report", "done")]
        assert [event.reason for event in await events_of(storage, ScheduleSkipped)] == ["duplicate"]
        assert (await storage.survey()).schedules[0].last_tick == tick.tick

    async def test_a_tick_with_a_unique_key_held_by_another_job_is_skipped(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        known = await put(storage, clock)
        await enqueue(storage, new_job("holder", merge=UniqueKey("k")))
        tick = tick_of(known)
        assert tick.job is not None
        (planned,) = await storage.plan([structs.replace(tick, job=structs.replace(tick.job, merge=UniqueKey("k")))])

        assert planned == ScheduleResult("report", "done")
        assert [event.reason for event in await events_of(storage, ScheduleSkipped)] == ["duplicate"]
        assert list(await states(storage)) == ["holder"]

    @pytest.mark.parametrize(
        "key", [DebounceKey("k", 90 * SECOND), CollectKey("k", 90 * SECOND, 10)], ids=lambda key: type(key).__name__
    )
    async def test_a_debounced_tick_has_the_job_that_took_its_call(
        self, storage: Storage, clock: ManualClock, key: MergeKey
    ) -> None:
        known = await put(storage, clock, overlap="allow")
        await enqueue(storage, new_job("waiting", merge=key))
        tick = tick_of(known)
        assert tick.job is not None
        clock.advance(60)
        (planned,) = await storage.plan([structs.replace(tick, job=structs.replace(tick.job, merge=key))])
        (fired,) = await events_of(storage, ScheduleFired)

        assert planned == ScheduleResult("report", "done", Ref(QUEUE, "waiting"))
        assert (fired.tick, fired.queue, fired.id) == (moment(tick.tick), QUEUE, "waiting")
        assert (await storage.survey()).schedules[0].last_id == "waiting"
        assert await events_of(storage, ScheduleSkipped) == []
        assert list(await states(storage)) == ["waiting"]

    async def test_a_throttled_tick_is_skipped(self, storage: Storage, clock: ManualClock) -> None:
        known = await put(storage, clock, overlap="allow")
        throttle = ThrottleKey("k", most=1, window=600 * SECOND)
        await enqueue(storage, new_job("first", throttle=throttle))
        tick = tick_of(known)
        assert tick.job is not None
        (planned,) = await storage.plan([structs.replace(tick, job=structs.replace(tick.job, throttle=throttle))])

        assert planned == ScheduleResult("report", "done")
        assert [event.reason for event in await events_of(storage, ScheduleSkipped)] == ["throttled"]
        assert (await storage.survey()).schedules[0].last_id is None
        assert list(await states(storage)) == ["first"]

    async def test_a_tick_without_a_job_records_the_skipped_ticks(self, storage: Storage, clock: ManualClock) -> None:
        known = await put(storage, clock, missed="skip")
        clock.advance(200)
        tick = structs.replace(tick_of(known), tick=known.last_tick + 3 * EVERY, job=None, missed=3)
        (planned,) = await storage.plan([tick])
        events = await all_events(storage)

        assert planned == ScheduleResult("report", "done")
        assert await states(storage) == {}
        assert [
            (event.name, event.tick, event.ticks, event.policy) for event in events if isinstance(event, ScheduleMissed)
        ] == [("report", moment(tick.tick), 3, "skip")]
        assert len(events) == 1

    async def test_a_catch_up_tick_records_the_skipped_ticks_first(self, storage: Storage, clock: ManualClock) -> None:
        known = await put(storage, clock)
        clock.advance(200)
        await storage.plan([structs.replace(tick_of(known), missed=2)])

        assert [type(event) for event in await all_events(storage)] == [ScheduleMissed, ScheduleFired]

    async def test_a_paused_schedule_does_not_fire(self, storage: Storage, clock: ManualClock) -> None:
        known = await put(storage, clock)
        assert await storage.plan([PauseSchedule("report", paused=True)]) == [ScheduleResult("report", "done")]
        clock.advance(600)
        swept = await storage.sweep(bid())
        (paused,) = (await storage.survey()).schedules

        assert (swept.due, swept.next_tick) == ((), None)
        assert await storage.plan([tick_of(known)]) == [ScheduleResult("report", "superseded")]
        assert paused == structs.replace(known, paused=True)
        assert await states(storage) == {}

    async def test_a_resumed_schedule_continues_with_future_ticks(self, storage: Storage, clock: ManualClock) -> None:
        await put(storage, clock)
        await storage.plan([PauseSchedule("report", paused=True)])
        clock.advance(600)
        ahead = clock.now() + 30 * SECOND
        again = PauseSchedule("report", paused=False, next_tick=ahead)
        await storage.plan([again])
        clock.advance(5)
        await storage.plan([structs.replace(again, next_tick=0)])
        (known,) = (await storage.survey()).schedules

        assert (known.paused, known.last_tick, known.next_tick) == (False, ahead - 30 * SECOND, ahead)
        assert (await storage.sweep(bid())).due == ()

    async def test_removing_a_schedule_keeps_its_jobs(self, storage: Storage, clock: ManualClock) -> None:
        known = await put(storage, clock)
        clock.advance(60)
        tick = tick_of(known)
        await storage.plan([tick])

        assert await storage.plan([RemoveSchedule("report")]) == [ScheduleResult("report", "done")]
        assert (await storage.survey()).schedules == ()
        assert await states(storage) == {tick_id(tick): State.WAITING}
        assert (
            await storage.plan(
                [
                    RemoveSchedule("report"),
                    PauseSchedule("report", paused=True),
                    structs.replace(tick, expected=tick.tick),
                ]
            )
            == [ScheduleResult("report", "gone")] * 3
        )

    async def test_a_schedule_put_again_unchanged_keeps_its_next_tick(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        known = await put(storage, clock)
        clock.advance(60)
        await storage.plan([tick_of(known), PauseSchedule("report", paused=True)])
        (before,) = (await storage.survey()).schedules
        clock.advance(10)
        other = structs.replace(schedule(clock), job=new_job("", task="other"), overlap="allow")
        await storage.plan([PutSchedule(other)])
        (after,) = (await storage.survey()).schedules

        assert after == structs.replace(before, job=other.job, overlap="allow")

    async def test_a_schedule_put_with_other_ticks_starts_at_that_instant(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        known = await put(storage, clock)
        clock.advance(60)
        tick = tick_of(known)
        await storage.plan([tick])
        clock.advance(10)
        other = structs.replace(schedule(clock), every=7 * SECOND, next_tick=clock.now() + 7 * SECOND)
        await storage.plan([PutSchedule(other)])
        (after,) = (await storage.survey()).schedules

        assert (after.created, after.last_id) == (known.created, tick_id(tick))
        assert (after.last_tick, after.next_tick) == (other.last_tick, other.next_tick)

    async def test_changes_are_applied_in_order(self, storage: Storage, clock: ManualClock) -> None:
        known = schedule(clock, overlap="allow")
        clock.advance(120)
        first = tick_of(known)
        second = structs.replace(
            first, expected=first.tick, tick=first.tick + EVERY, job=job_of(first.name, first.tick + EVERY)
        )
        planned = await storage.plan([PutSchedule(known), first, second, first, RemoveSchedule("report")])

        assert [answer.verdict for answer in planned] == ["done", "done", "done", "superseded", "done"]
        assert len(await states(storage)) == 2
        assert (await storage.survey()).schedules == ()

    async def test_a_sweep_lists_due_schedules_and_the_next_due_time(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        now = clock.now()
        put_at = {"b": 5, "a": 5, "c": 3, "never": None, "later": 60, "paused": 1}
        for name, at in put_at.items():
            next_tick = None if at is None else now + at * SECOND
            await storage.plan([PutSchedule(structs.replace(schedule(clock, name), next_tick=next_tick))])
        await storage.plan([PauseSchedule("paused", paused=True)])
        first = await storage.sweep(bid())
        clock.advance(5)
        then = await storage.sweep(bid())
        again = await storage.sweep(bid())

        assert (first.due, first.next_tick) == ((), 3 * SECOND)
        assert [found.name for found in then.due] == ["c", "a", "b"]
        assert then.due == again.due
        assert (then.next_tick, then.now) == (55 * SECOND, now + 5 * SECOND)
        known = (await storage.survey()).schedules
        assert all(found in known for found in then.due)

    async def test_a_sweep_lists_at_most_the_schedules_of_one_call(self, storage: Storage, clock: ManualClock) -> None:
        names = [f"s-{number:03}" for number in range(DUE_LIMIT + 5)]
        await storage.plan([PutSchedule(schedule(clock, name)) for name in names])
        clock.advance(60)
        swept = await storage.sweep(bid())

        assert [found.name for found in swept.due] == names[:DUE_LIMIT]

        await storage.plan([tick_of(found) for found in swept.due])
        swept = await storage.sweep(bid())

        assert [found.name for found in swept.due] == names[DUE_LIMIT:]

    @pytest.mark.fault("W-B7")
    async def test_the_outcome_of_a_job_does_not_change_its_schedule(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        known = await put(storage, clock)
        clock.advance(60)
        await storage.plan([tick_of(known)])
        (before,) = (await storage.survey()).schedules
        await settle(storage, ALICE, await claim_one(storage))
        await storage.tune(Target("queue", QUEUE), Settings(paused=True))

        assert (await storage.survey()).schedules == (before,)

    async def test_a_tick_after_a_clock_set_back_is_recorded_as_on_time(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        known = await put(storage, clock)
        clock.step_wall(-3600)
        await storage.plan([tick_of(known)])
        (event,) = await events_of(storage, ScheduleFired)

        assert event.late_by == 0.0

    async def test_a_sweep_after_a_clock_set_back_lists_schedules_that_are_ahead(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        now = clock.now()
        clock.step_wall(30 * DAY)
        far = [schedule(clock, name) for name in ("b", "a", "paused")]
        far.append(structs.replace(schedule(clock, "never"), next_tick=None))
        await storage.plan([*map(PutSchedule, far), PauseSchedule("paused", paused=True)])
        clock.step_wall(-30 * DAY)
        slewed = structs.replace(schedule(clock, "slewed"), last_tick=now + AHEAD)
        due = structs.replace(schedule(clock, "z"), next_tick=now, last_tick=now - EVERY)
        both = structs.replace(due, name="y", last_tick=now + AHEAD + 1)
        await storage.plan([PutSchedule(item) for item in (slewed, due, both)])
        swept = await storage.sweep(bid())

        assert [found.name for found in swept.due] == ["y", "z", "a", "b", "never"]

        planned = await storage.plan([Tick(found.name, found.last_tick, now, now + EVERY) for found in swept.due])
        again = await storage.sweep(bid())

        assert {answer.verdict for answer in planned} == {"done"}
        assert await all_events(storage) == []
        assert (again.due, again.next_tick) == ((), EVERY)
        clock.advance(60)
        assert len((await storage.sweep(bid())).due) == 6

    @pytest.mark.parametrize("other", [False, True])
    async def test_schedules_put_or_resumed_after_a_clock_set_back_start_from_then(
        self, storage: Storage, clock: ManualClock, other: bool
    ) -> None:
        clock.step_wall(30 * DAY)
        await storage.plan([PutSchedule(schedule(clock, name)) for name in ("put", "resumed")])
        await storage.plan([PauseSchedule("resumed", paused=True)])
        clock.step_wall(-30 * DAY)
        again = structs.replace(schedule(clock, "put"), every=7 * SECOND if other else EVERY)
        await storage.plan([PutSchedule(again), PauseSchedule("resumed", False, clock.now() + EVERY)])
        put, resumed = (await storage.survey()).schedules

        assert (put.last_tick, put.next_tick) == (clock.now(), clock.now() + EVERY)
        assert (resumed.last_tick, resumed.next_tick) == (clock.now(), clock.now() + EVERY)

    async def test_a_schedule_ends_after_its_limit_of_runs_also_within_one_call(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        known = structs.replace(schedule(clock, overlap="allow"), limit=2)
        await storage.plan([PutSchedule(known)])
        clock.advance(300)
        first = tick_of(known)
        second = tick_of(structs.replace(known, last_tick=first.tick, next_tick=first.next_tick))
        third = tick_of(structs.replace(known, last_tick=second.tick, next_tick=second.next_tick))
        planned = await storage.plan([first, second, third])

        assert [each.verdict for each in planned] == ["done", "done", "superseded"]
        (kept,) = (await storage.survey()).schedules
        assert (kept.runs, kept.next_tick, kept.last_tick) == (2, None, second.tick)
        assert await storage.plan([third]) == [ScheduleResult("report", "superseded")]
        assert (await storage.sweep(bid())).due == ()
        await storage.plan([PauseSchedule("report", True), PauseSchedule("report", False, clock.now() + EVERY)])
        clock.advance(61)
        assert (await storage.sweep(bid())).due == ()
        assert len(await states(storage)) == 2

    async def test_a_tick_without_a_job_does_not_count_towards_the_limit(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        known = structs.replace(schedule(clock, overlap="skip"), limit=2)
        await storage.plan([PutSchedule(known)])
        clock.advance(60)
        first = tick_of(known)
        skipped = tick_of(structs.replace(known, last_tick=first.tick, next_tick=first.next_tick))
        await storage.plan([first, skipped])

        (kept,) = (await storage.survey()).schedules
        assert (kept.runs, kept.next_tick) == (1, skipped.next_tick)

    async def test_a_schedule_put_again_keeps_its_runs_and_a_higher_limit_goes_on(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        known = structs.replace(schedule(clock), limit=1, start=clock.now(), end=clock.now() + 100 * EVERY)
        await storage.plan([PutSchedule(known)])
        clock.advance(60)
        await storage.plan([tick_of(known)])
        clock.advance(600)
        again = structs.replace(known, created=clock.now(), last_tick=clock.now(), next_tick=clock.now() + EVERY)
        await storage.plan([PutSchedule(again)])
        (kept,) = (await storage.survey()).schedules
        assert (kept.runs, kept.next_tick, kept.created) == (1, None, known.created)

        await storage.plan([PutSchedule(structs.replace(again, limit=2))])
        (kept,) = (await storage.survey()).schedules
        assert (kept.runs, kept.limit, kept.last_tick) == (1, 2, clock.now())
        assert (kept.next_tick, kept.start, kept.end) == (clock.now() + EVERY, known.start, known.end)

    async def test_a_schedule_that_begins_immediately_is_due_once_when_created(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        new = structs.replace(schedule(clock), immediately=True)
        await storage.plan([PutSchedule(new)])
        (known,) = (await storage.sweep(bid())).due
        assert known.begins_now
        first = Tick("report", known.last_tick, known.created, known.created + EVERY, job_of("report", known.created))
        assert [each.verdict for each in await storage.plan([first, first])] == ["done", "superseded"]

        clock.advance(30)
        again = structs.replace(new, created=clock.now(), last_tick=clock.now(), next_tick=clock.now() + EVERY)
        await storage.plan([PutSchedule(again)])
        await storage.plan([PutSchedule(structs.replace(again, every=2 * EVERY))])
        assert (await storage.sweep(bid())).due == ()
        assert len(await states(storage)) == 1

    async def test_a_schedule_does_not_begin_immediately_before_its_start(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        for name, start, end in (("early", 1, None), ("late", None, -1)):
            new = structs.replace(schedule(clock, name), immediately=True)
            new = structs.replace(new, start=start and clock.now() + start, end=end and clock.now() + end)
            await storage.plan([PutSchedule(new)])

        assert (await storage.sweep(bid())).due == ()

    async def test_a_job_of_a_tick_is_claimed_like_any_other(self, storage: Storage, clock: ManualClock) -> None:
        known = await put(storage, clock)
        clock.advance(60)
        tick = tick_of(known)
        await storage.plan([tick])
        lease = await claim_one(storage)

        assert (lease.ref, lease.job.schedule, lease.job.tick) == (Ref(QUEUE, tick_id(tick)), "report", tick.tick)
        assert await settle(storage, ALICE, lease) == "done"


def schedule(
    clock: ManualClock, name: str = "report", *, overlap: Overlap = "skip", missed: Missed = "latest"
) -> Schedule:
    """Return a schedule that ticks every minute, made now."""
    return Schedule(
        name=name,
        job=new_job("", schedule=name),
        every=EVERY,
        overlap=overlap,
        missed=missed,
        created=clock.now(),
        last_tick=clock.now(),
        next_tick=clock.now() + EVERY,
    )


async def put(
    storage: Storage, clock: ManualClock, *, overlap: Overlap = "skip", missed: Missed = "latest"
) -> Schedule:
    """Put a schedule, and return it."""
    made = schedule(clock, overlap=overlap, missed=missed)
    await storage.plan([PutSchedule(made)])
    return made


def tick_of(known: Schedule) -> Tick:
    """Return the next tick of a schedule."""
    assert known.next_tick is not None
    return Tick(
        known.name,
        expected=known.last_tick,
        tick=known.next_tick,
        next_tick=known.next_tick + EVERY,
        job=job_of(known.name, known.next_tick),
    )


def job_of(name: str, tick: int) -> NewJob:
    """Return the job of a tick."""
    return structs.replace(new_job(f"cron:{name}:{tick}", schedule=name), tick=tick)


def tick_id(tick: Tick) -> str:
    """Return the id of a tick's job."""
    return f"cron:{tick.name}:{tick.tick}"
