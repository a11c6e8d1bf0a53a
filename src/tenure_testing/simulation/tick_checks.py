"""Checks each tick of a simulated world (I12): it is handled once, in order, and creates at most one job."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tenure.core.events import AnyEvent, ScheduleFired, ScheduleMissed, ScheduleSkipped
from tenure.core.job import JobRecord, NewJob, Ref
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.schedule import AHEAD, Schedule
from tenure.storage.protocol import Change, PauseSchedule, PutSchedule, RemoveSchedule, ScheduleResult, Tick
from tenure_testing.simulation.call_checks import Require

OF_SCHEDULES = (ScheduleFired, ScheduleSkipped, ScheduleMissed)
"""The events that report ticks."""

TickEventCounts = Counter[tuple[type[ScheduleFired | ScheduleSkipped | ScheduleMissed], str]]
"""How many events of a class were recorded for a schedule."""

Standing = tuple[str | None, State]
"""The name of a job's schedule, and the job's state."""


@dataclass(eq=False)
class Course:
    """The progress of a schedule: where it began, its last tick, and the job of each tick."""

    schedule: Schedule
    began: int
    last: int
    paused: bool = False
    made: dict[int, Ref] = field(default_factory=dict[int, Ref])
    again: dict[int, Ref] = field(default_factory=dict[int, Ref])
    """The jobs of ticks that come again because the clock was set back."""

    fired: int = 0
    given_up: int = 0
    set_back: bool = False
    """True if the schedule continued from a clock that was set back, so that ticks came again."""

    skipped: int = 0

    def between(self, after: int, until: int) -> int:
        """Return how many ticks are after one instant, up to and including another."""
        every = self.schedule.every or 1
        return max(0, until // every - after // every)

    def is_ahead(self, now: int) -> bool:
        """Return True if the clock was set back by more than `AHEAD` since the last tick."""
        return self.last > now + AHEAD


class TickChecks:
    """An account of all schedules. In simulated worlds, all schedules are plain intervals."""

    def __init__(self, require: Require) -> None:
        self.courses: dict[str, Course] = {}
        self.superseded = 0
        self._require = require

    def planned(
        self,
        changes: Sequence[Change],
        answers: Sequence[ScheduleResult],
        before: Mapping[Ref, JobRecord],
        recorded: Sequence[AnyEvent],
        now: int,
    ) -> dict[int, NewJob]:
        """Record the results of changes. Return the new jobs by the places of their changes in the call."""
        made: dict[int, NewJob] = {}
        expected: TickEventCounts = Counter()
        living = {ref: (job.schedule, job.state) for ref, job in before.items() if job.state not in TERMINAL}
        for number, (change, answer) in enumerate(zip(changes, answers, strict=True)):
            course = self.courses.get(change.name)
            self._require(
                (answer.verdict == "gone") == (course is None and not isinstance(change, PutSchedule)),
                "I12",
                f"{change.name} is called {answer.verdict}: {course}",
            )
            if course is None:
                if isinstance(change, PutSchedule):
                    schedule = change.schedule
                    self.courses[change.name] = Course(schedule, schedule.last_tick, schedule.last_tick)
                continue
            match change:
                case PutSchedule(schedule):
                    course.schedule = schedule
                    if course.is_ahead(now):
                        course.last, course.set_back = schedule.last_tick, True
                case PauseSchedule(paused=paused):
                    if course.paused and not paused:
                        course.set_back |= course.is_ahead(now)
                        course.last = course.began = now if course.is_ahead(now) else max(course.last, now)
                    course.paused = paused
                case RemoveSchedule():
                    del self.courses[change.name]
                case Tick():
                    expected.update(self._ticked(course, change, answer, living, now))
                    if answer.ref is not None and change.job is not None:
                        made[number] = change.job
        heard: TickEventCounts = Counter(
            (type(event), event.name) for event in recorded if isinstance(event, OF_SCHEDULES)
        )
        self._require(heard == expected, "I12", f"{heard - expected} recorded, {expected - heard} missing: {changes}")
        return made

    def _ticked(
        self, course: Course, asked: Tick, answer: ScheduleResult, living: dict[Ref, Standing], now: int
    ) -> TickEventCounts:
        """Record the result of a tick. Return the events that must be recorded for it."""
        current = asked.expected == course.last and not course.paused
        if answer.verdict == "superseded":
            self.superseded += 1
            self._require(not current, "I12", f"{asked} was refused, and goes on from {course.last}")
            self._require(answer.ref is None, "I12", f"{asked} was superseded, and made {answer.ref}")
            return Counter()
        self._require(current, "I12", f"{asked} was dealt with, and the last tick is {course.last}")
        passed = course.between(course.last, asked.tick)
        leads_on = asked.tick >= course.last or (course.is_ahead(asked.tick) and asked.job is None)
        self._require(leads_on, "I12", f"{asked} leads back from {course.last}")
        counted = asked.missed + (asked.job is not None)
        self._require(passed == counted, "I12", f"{asked} passes over {passed} ticks and deals with {counted}")
        course.set_back |= asked.tick < course.last
        course.last = asked.tick
        course.given_up += asked.missed
        expected: TickEventCounts = Counter({(ScheduleMissed, asked.name): bool(asked.missed)})
        if asked.job is not None:
            self._fired(course, asked, asked.job, answer, living)
            expected[ScheduleSkipped if answer.ref is None else ScheduleFired, asked.name] += 1
        return +expected

    def _fired(
        self, course: Course, asked: Tick, job: NewJob, answer: ScheduleResult, living: dict[Ref, Standing]
    ) -> None:
        others = {ref: state for ref, (schedule, state) in living.items() if schedule == asked.name}
        if course.schedule.overlap == "skip":
            free = not others
        else:
            free = course.schedule.overlap == "allow" or all(state is State.ACTIVE for state in others.values())
        # A tick that comes again after the clock was set back has its job, unless that job is forgotten.
        again = asked.tick in course.made
        fired = answer.ref is not None
        sound = fired == free or (again and not fired)
        self._require(sound, "I12", f"{asked} made {answer.ref} next to {others}")
        if answer.ref is None:
            course.skipped += 1
            return
        self._require(not again or course.set_back, "I12", f"{asked} has its job: {course.made.get(asked.tick)}")
        right = (answer.ref, job.schedule, job.tick) == (job.ref, asked.name, asked.tick)
        self._require(right, "I12", f"{asked} made {answer.ref} out of {job}")
        course.made[asked.tick] = job.ref
        course.fired += 1
        living[job.ref] = job.schedule, State.WAITING

    def swept(self, due: Sequence[Schedule], now: int) -> None:
        """Check that a sweep names each schedule that has a due tick, or is ahead of a clock that was set back."""
        named = {schedule.name for schedule in due}
        for name, course in self.courses.items():
            left = not course.paused and (course.between(course.last, now) > 0 or course.is_ahead(now))
            self._require(
                name in named or not left, "I12", f"{name} stands at {course.last}, and no sweep says so: {now}"
            )

    def made(self, job: NewJob) -> None:
        """Check that the job of a tick is created by its tick only."""
        course = self.courses.get(job.schedule or "")
        ticked = job.schedule is None or (course is not None and course.made.get(job.tick or 0) == job.ref)
        self._require(ticked, "I12", f"{job.ref} was made for a tick of {job.schedule}, and not by it")

    def counts(self) -> Counter[str]:
        """Return how many ticks created a job, were skipped or given up, and how many tick requests came too late."""
        courses = self.courses.values()
        return +Counter(
            {
                "fired": sum(course.fired for course in courses),
                "skipped": sum(course.skipped for course in courses),
                "given up": sum(course.given_up for course in courses),
                "superseded": self.superseded,
            }
        )

    def finish(self, now: int, late: int) -> None:
        """Check that all schedules went on to the end: no old tick is left, and those that must run each tick did so.

        `late`: the microseconds by which a tick may be late without faults.
        """
        for name, course in self.courses.items():
            left = course.between(course.last, now - late)
            self._require(left == 0, "I12", f"{name} stands at {course.last}, with {left} ticks to come by {now}")
            if course.schedule.missed == "all" and course.schedule.most is None and course.schedule.overlap == "allow":
                ticks = course.between(course.began, course.last)
                exact = len(course.made) == ticks and not course.given_up
                self._require(exact, "I12", f"{name} had {ticks} ticks and made {len(course.made)} jobs")
