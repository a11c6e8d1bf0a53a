"""The audit of the chaos: a valid case passes, and each planted error fails its own check and no other."""

from collections.abc import Callable

import pytest
from msgspec import structs

from tenure.core.duration import moment
from tenure.core.events import (
    JobCompleted,
    JobReleased,
    JobRepaired,
    JobStalled,
    JobStarted,
    WorkerDied,
    WorkerStarted,
)
from tenure.core.lifecycle import State
from tenure_testing.chaos.audit import audit
from tenure_testing.chaos.records import ChaosEvidence, Deed, Exit, HistoryLine
from tests.chaos.evidence import (
    BEGAN,
    BOUNDS,
    KILLED,
    OFFSET,
    SECOND,
    SOUND,
    STOPPED,
    drop_event,
    drop_lines,
    edit_event,
    edit_job,
    edit_line,
    edit_run,
    valid_case,
)

LOST = "no acknowledged job is lost"
OVER = "every job is completed"
UNEXPECTED = "every job was asked for"
ONCE = "no job has two outcomes"
RESULT = "every result is that of the run on record"
STARTS = "every start the handlers noted is a run of its own"
NOTED = "every completed run was noted by its handler"
FENCES = "fences rise with each job"
ANNOUNCED = "every second run was announced before it began"
CAUSE = "no run was taken without a cause"
HANDED = "no handler was at work on what it had handed back"
SEEN = "jobs of the dead whose supervisor saw it were back in time"
SILENT = "all other jobs of the lost were back in time"
RESUMED = "after an outage runs begin again in time"
LEFT = "no process ended without a cause"
SOUND_STORAGE = "the storage is sound, and the clock was not set"
STRUCK = "faults were committed"
WORKED = "there was work to audit"


def red(case: ChaosEvidence) -> list[str]:
    return [check.name for check in audit(case).checks if not check.holds]


def outage(case: ChaosEvidence, *, at: int, until: int) -> Deed:
    deed = Deed(kind="full disk", effect="outage", where="storage", at=at, until=until)
    case.deeds.append(deed)
    return deed


def test_a_valid_case_passes_every_check() -> None:
    assert red(valid_case()) == []


def test_an_audit_of_a_run_without_jobs_fails() -> None:
    empty = structs.replace(valid_case(), enqueued_calls=[], jobs={}, lines=[], events=[])

    assert WORKED in red(empty)


def test_the_figures_show_each_recovery_and_its_delay() -> None:
    found = audit(valid_case())

    assert [
        (recovery.job, recovery.cause, recovery.delay, recovery.bound, recovery.seen) for recovery in found.recoveries
    ] == [
        ("struck", "kill worker", SECOND // 10 - 10, SECOND, True),
        ("held", "stop worker", 22 * SECOND, BOUNDS.silence, False),
    ]
    assert (found.jobs, found.runs, found.overlaps) == ({"completed": 5}, 9, 1)


def lost(case: ChaosEvidence) -> None:
    del case.jobs["plain"]
    # All other traces of it are removed, too: a loss without a trace.
    drop_lines(case, "plain", "start")
    drop_lines(case, "plain", "done")
    drop_event(case, JobStarted, "plain")
    drop_event(case, JobCompleted, "plain")


def never_over(case: ChaosEvidence) -> None:
    edit_job(case, "plain", state=State.WAITING)
    edit_run(case, "plain", 1, ended="released")
    drop_event(case, JobCompleted, "plain")


def ghost(case: ChaosEvidence) -> None:
    case.enqueued_calls = [call for call in case.enqueued_calls if call.job != "plain"]


def announced_twice(case: ChaosEvidence) -> None:
    case.events.append(next(event for event in case.events if isinstance(event, JobCompleted) and event.id == "plain"))


def completed_twice(case: ChaosEvidence) -> None:
    # The run that was stopped and resumed: its answer was accepted as well as that of the run that replaced it.
    edit_run(case, "held", 1, ended="completed")


def outcome_untold(case: ChaosEvidence) -> None:
    drop_event(case, JobCompleted, "plain")


def result_of_the_run_before(case: ChaosEvidence) -> None:
    edit_job(case, "held", result=b"[1,101]")


def started_twice(case: ChaosEvidence) -> None:
    case.lines.append(case.lines[0])


def start_without_a_run(case: ChaosEvidence) -> None:
    case.lines.append(HistoryLine("plain", 2, 102, SOUND.pid, "start", BEGAN + SECOND))


def start_in_another_process(case: ChaosEvidence) -> None:
    edit_line(case, "plain", 1, "start", pid=99)


def start_under_another_fence(case: ChaosEvidence) -> None:
    edit_line(case, "plain", 1, "start", fence=99)


def completed_without_a_handler(case: ChaosEvidence) -> None:
    drop_lines(case, "plain", "done")


def fence_used_again(case: ChaosEvidence) -> None:
    edit_run(case, "fallen", 2, fence=101)
    edit_job(case, "fallen", result=b"[2,101]")
    edit_line(case, "fallen", 2, "start", fence=101)


def fence_given_out_again(case: ChaosEvidence) -> None:
    edit_event(case, JobStarted, "fallen", fence=101)


def second_run_untold(case: ChaosEvidence) -> None:
    drop_event(case, JobReleased, "returned")


def second_run_announced_too_late(case: ChaosEvidence) -> None:
    case.events.append(drop_event(case, JobReleased, "returned"))


def second_run_begun_too_early(case: ChaosEvidence) -> None:
    edit_line(case, "fallen", 2, "start", at=BEGAN + SECOND // 2)


def live_job_taken(case: ChaosEvidence) -> None:
    del case.deeds[1]
    case.deeds.append(Deed(kind="stop worker", effect="pause", where="host-1", pids=(99,), at=BEGAN, until=BEGAN))


def woken_long_before(case: ChaosEvidence) -> None:
    case.deeds[1].until = BEGAN + 3 * SECOND


def still_at_work_after_handing_back(case: ChaosEvidence) -> None:
    edit_line(case, "returned", 1, "stopped", at=BEGAN + 2 * SECOND)


def seen_death_late(case: ChaosEvidence) -> None:
    edit_event(case, JobStalled, "struck", at=moment(OFFSET + BEGAN + 10 + SECOND + 1))
    _put_off(case, "struck")


def silence_late(case: ChaosEvidence) -> None:
    case.deeds[1].until = None
    edit_event(case, JobStalled, "held", at=moment(OFFSET + BEGAN + 2 * SECOND + BOUNDS.silence + 1))
    _put_off(case, "held")


def silence_later_than_its_outage_excuses(case: ChaosEvidence) -> None:
    case.deeds[1].until = None
    outage(case, at=BEGAN + 4 * SECOND, until=BEGAN + 9 * SECOND)
    allowed = BOUNDS.silence + 5 * SECOND + BOUNDS.outage
    edit_event(case, JobStalled, "held", at=moment(OFFSET + BEGAN + 2 * SECOND + allowed + 1))
    _put_off(case, "held")
    # Some worker worked after it.
    edit_line(case, "plain", 1, "start", at=BEGAN + 9 * SECOND)


def no_worker_ran_after_the_outage(case: ChaosEvidence) -> None:
    outage(case, at=BEGAN + 12 * SECOND, until=BEGAN + 13 * SECOND)


def died_by_itself(case: ChaosEvidence) -> None:
    case.events.append(WorkerStarted(owner="sound", host="here", pid=SOUND.pid, queues=("chaos",), concurrency=1))
    case.events.append(WorkerDied(owner="sound", host="here", pid=SOUND.pid, status=1, at=moment(OFFSET + BEGAN)))
    outage(case, at=BEGAN - SECOND, until=BEGAN)


def left_by_itself(case: ChaosEvidence) -> None:
    case.exits.append(Exit("reaper-0", 1, BEGAN, BEGAN + SECOND))


def did_not_leave(case: ChaosEvidence) -> None:
    case.complaints.append("reaper-0 did not leave within 15 s and was killed")


def damaged(case: ChaosEvidence) -> None:
    case.flaws.append("row 5 missing from index jobs_due")


def repaired(case: ChaosEvidence) -> None:
    case.events.append(JobRepaired(queue="chaos", id="plain", task="t", found="no index", repair="put back"))


def clock_set(case: ChaosEvidence) -> None:
    case.drift = SECOND


def no_worker_stopped(case: ChaosEvidence) -> None:
    case.deeds[1].effect = "death"
    edit_event(case, JobStalled, "held", reason="process_died")


def _put_off(case: ChaosEvidence, job: str) -> None:
    """Let the second run begin after the first was taken, so that only the time is wrong."""
    stall = next(event for event in case.events if isinstance(event, JobStalled) and event.id == job)
    assert stall.at is not None
    later = round(stall.at.timestamp() * SECOND) - OFFSET + SECOND
    edit_line(case, job, 2, "start", at=later)
    edit_line(case, job, 2, "done", at=later + 10)


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (lost, LOST),
        (never_over, OVER),
        (ghost, UNEXPECTED),
        (announced_twice, ONCE),
        (completed_twice, ONCE),
        (outcome_untold, ONCE),
        (result_of_the_run_before, RESULT),
        (started_twice, STARTS),
        (start_without_a_run, STARTS),
        (start_in_another_process, STARTS),
        (start_under_another_fence, STARTS),
        (completed_without_a_handler, NOTED),
        (fence_used_again, FENCES),
        (fence_given_out_again, FENCES),
        (second_run_untold, ANNOUNCED),
        (second_run_announced_too_late, ANNOUNCED),
        (second_run_begun_too_early, ANNOUNCED),
        (live_job_taken, CAUSE),
        (woken_long_before, CAUSE),
        (still_at_work_after_handing_back, HANDED),
        (seen_death_late, SEEN),
        (silence_late, SILENT),
        (silence_later_than_its_outage_excuses, SILENT),
        (no_worker_ran_after_the_outage, RESUMED),
        (died_by_itself, LEFT),
        (left_by_itself, LEFT),
        (did_not_leave, LEFT),
        (damaged, SOUND_STORAGE),
        (repaired, SOUND_STORAGE),
        (clock_set, SOUND_STORAGE),
        (no_worker_stopped, STRUCK),
    ],
)
def test_each_planted_error_fails_its_own_check(plant: Callable[[ChaosEvidence], None], check: str) -> None:
    case = valid_case()
    plant(case)

    assert check in red(case)
    assert set(red(case)) <= {check, *ALSO.get(plant, ())}


ALSO: dict[Callable[[ChaosEvidence], None], tuple[str, ...]] = {
    # A run that counts and was also taken fails two checks.
    completed_twice: (RESULT,),
    start_without_a_run: (ANNOUNCED,),
    still_at_work_after_handing_back: (),
    second_run_begun_too_early: (),
}
"""Checks that necessarily fail together with an error's own check."""


def test_a_process_that_starts_during_an_outage_may_exit() -> None:
    case = valid_case()
    outage(case, at=BEGAN - SECOND, until=BEGAN + SECOND)
    case.exits.append(Exit("reaper-0", 1, BEGAN, BEGAN + SECOND))
    case.events.append(WorkerDied(owner="new", host="here", pid=99, status=1, at=moment(OFFSET + BEGAN)))

    assert LEFT not in red(case)


def test_an_outage_extends_the_bound_by_its_length_and_a_lost_sweep() -> None:
    case = valid_case()
    outage(case, at=BEGAN + 4 * SECOND, until=BEGAN + 9 * SECOND)

    recovery = next(item for item in audit(case).recoveries if item.job == "held")

    assert recovery.bound == BOUNDS.silence + 5 * SECOND + BOUNDS.outage
    assert not recovery.clear


@pytest.mark.parametrize(("pid", "times"), [(SOUND.pid, 1), (77, 0)])
def test_only_the_loss_of_the_leading_reaper_extends_the_bound(pid: int, times: int) -> None:
    case = valid_case()
    at = BEGAN + 5 * SECOND
    case.deeds.append(Deed(kind="kill reaper", effect="death", where="reaper-0", pids=(pid,), at=at, until=at + SECOND))

    recovery = next(item for item in audit(case).recoveries if item.job == "held")

    assert recovery.bound == BOUNDS.silence + times * BOUNDS.reaper
    assert recovery.clear == (times == 0)


def test_a_worker_that_cannot_release_its_jobs_is_a_separate_cause() -> None:
    case = valid_case()
    case.deeds[1].effect = "leave"
    outage(case, at=BEGAN + SECOND, until=BEGAN + 5 * SECOND)

    recovery = next(item for item in audit(case).recoveries if item.job == "held")

    assert recovery.cause == "stop worker"
    assert recovery.bound == BOUNDS.silence + BOUNDS.leave + 3 * SECOND + BOUNDS.outage


def test_a_run_reclaimed_twice_is_counted_from_its_first_loss() -> None:
    case = valid_case()
    edit_event(case, JobStalled, "held", owner="reaper", silent_for=3.0, reason="process_died")
    # Its worker died as well, but by then it had lost the run.
    at = BEGAN + 23 * SECOND
    case.deeds.append(
        Deed(kind="kill worker", effect="death", where="host-1", pids=(STOPPED.pid,), at=at, until=at, alone=True)
    )

    recovery = next(item for item in audit(case).recoveries if item.job == "held")

    assert (recovery.cause, recovery.delay, recovery.seen) == ("stop worker", 22 * SECOND, False)
    assert recovery.bound == BOUNDS.silence + BOUNDS.reaper


def test_a_run_with_a_lost_claim_answer_is_timed_from_the_claim() -> None:
    case = valid_case()
    outage(case, at=BEGAN - SECOND, until=BEGAN + SECOND)
    case.deeds[1].pids = (99,)
    drop_lines(case, "held", "start")
    drop_lines(case, "held", "done")
    case.lines += [line for line in valid_case().lines if (line.job, line.run) == ("held", 2)]

    recovery = next(item for item in audit(case).recoveries if item.job == "held")

    assert CAUSE not in red(case)
    assert (recovery.cause, recovery.delay) == ("full disk", 24 * SECOND)


def test_a_death_that_no_supervisor_saw_has_the_bound_of_a_silence() -> None:
    case = valid_case()
    case.deeds[0].alone = False

    recovery = next(item for item in audit(case).recoveries if item.job == "struck")

    assert (recovery.seen, recovery.bound) == (False, BOUNDS.silence)


def test_the_bounds_follow_from_the_timing() -> None:
    assert BOUNDS.silence == 27 * SECOND
    assert (BOUNDS.death, BOUNDS.outage, BOUNDS.reaper) == (SECOND, 12 * SECOND, 12 * SECOND)
    assert {KILLED.pid, STOPPED.pid} == {pid for deed in valid_case().deeds for pid in deed.pids}
