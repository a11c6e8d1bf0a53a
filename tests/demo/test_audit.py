"""The audit: a valid case passes, and each planted error fails its own check and no other."""

from collections.abc import Callable

import pytest
from msgspec import structs

from tenure.core.duration import moment
from tenure.core.events import JobCompleted, JobReleased, JobStalled, RunFenced
from tenure.core.job import Ref
from tenure.core.lifecycle import State
from tenure_testing.demo.audit import EXAMPLES, audit
from tenure_testing.demo.evidence import DemoEvidence, HeldRun, Replay
from tests.demo.evidence import (
    GIL_HOLDER,
    POST_MORTEM,
    SECOND,
    SOUND,
    START,
    completed,
    drop_events,
    edit_events,
    edit_job,
    edit_lines,
    edit_run,
    facts,
    stalled,
    valid_case,
)

LOST = "no job is lost"
COMPLETED = "all jobs are completed"
RIGHT = "every answer is right"
ONCE = "no job has two outcomes"
STARTS = "every start the handlers noted is a run, with its fence and process"
NOTED = "every run was noted by its handler"
ANNOUNCED = "every extra run was announced"
STRUCK = "busy workers were struck, the leader among them"
DEATH = "a dead worker's jobs were back in time"
PAUSE = "the paused worker's jobs were back in time"
FENCED = "the woken worker's runs were stopped or refused"
REFUSED = "a settlement under an old fence is refused"
LINE = "the post-mortem of a hung run names its line"
HOLDING = "a run that held the interpreter beyond its lease kept it"


def red(case: DemoEvidence) -> list[str]:
    return [check.name for check in audit(case) if not check.holds]


def test_a_valid_case_passes_every_check() -> None:
    assert red(valid_case()) == []


def lost(case: DemoEvidence) -> None:
    case.details["plain"] = None
    case.found.remove(Ref("demo", "plain"))


def lost_but_for_the_list(case: DemoEvidence) -> None:
    case.found.remove(Ref("demo", "plain"))


def nobodys_job(case: DemoEvidence) -> None:
    case.found.append(Ref("demo", "stranger"))


def not_over(case: DemoEvidence) -> None:
    edit_job(case, "plain", state=State.WAITING)
    drop_events(case, JobCompleted, "plain")
    edit_run(case, "plain", 1, ended="released")


def failed(case: DemoEvidence) -> None:
    edit_job(case, "plain", state=State.FAILED)
    drop_events(case, JobCompleted, "plain")
    edit_run(case, "plain", 1, ended="raised")


def wrong_result(case: DemoEvidence) -> None:
    edit_job(case, "plain", result=b"{}")


def result_of_another_file(case: DemoEvidence) -> None:
    found = case.details["struck"]
    assert found is not None
    edit_job(case, "plain", result=found.job.result)


def wrong_answer_noted(case: DemoEvidence) -> None:
    edit_lines(
        case,
        lambda line: structs.replace(line, answer=facts("?")) if line.answer and line.job == "plain" else line,
    )


def file_gone(case: DemoEvidence) -> None:
    del case.expected["b.py"]


def announced_twice(case: DemoEvidence) -> None:
    case.events.append(completed("plain", 1))


def never_announced_as_completed(case: DemoEvidence) -> None:
    drop_events(case, JobCompleted, "plain")


def completed_by_two_runs(case: DemoEvidence) -> None:
    edit_run(case, "returned", 1, ended="completed")
    edit_lines(
        case,
        lambda line: (
            structs.replace(line, answer=facts("a.py"))
            if (line.job, line.run, line.mark) == ("returned", 1, "end")
            else line
        ),
    )


def start_without_a_run(case: DemoEvidence) -> None:
    case.lines.append(structs.replace(case.lines[0], run=2, fence=102))


def start_of_a_stranger(case: DemoEvidence) -> None:
    case.lines.append(structs.replace(case.lines[0], job="stranger"))


def start_under_another_fence(case: DemoEvidence) -> None:
    edit_lines(case, lambda line: structs.replace(line, fence=7) if line.job == "plain" else line)


def start_in_another_process(case: DemoEvidence) -> None:
    edit_lines(case, lambda line: structs.replace(line, pid=7) if line.job == "plain" else line)


def began_twice(case: DemoEvidence) -> None:
    case.lines.append(case.lines[0])


def completed_without_a_handler(case: DemoEvidence) -> None:
    edit_lines(case, lambda line: None if line.job == "plain" else line)


def completed_without_an_answer(case: DemoEvidence) -> None:
    edit_lines(case, lambda line: None if line.job == "plain" and line.mark == "end" else line)


def unannounced_second_run(case: DemoEvidence) -> None:
    drop_events(case, JobReleased, "returned")


def kill_that_was_not_possible(case: DemoEvidence) -> None:
    case.kills = 3


def no_leader_killed(case: DemoEvidence) -> None:
    case.faults[0].led = False


def struck_while_idle(case: DemoEvidence) -> None:
    case.faults[0].owner = structs.replace(SOUND, id="idle")


def never_woken(case: DemoEvidence) -> None:
    case.faults[1].woken_at = None


def death_noticed_late(case: DemoEvidence) -> None:
    edit_events(case, JobStalled, "struck", at=moment(START + SECOND + 1))


def death_taken_for_silence(case: DemoEvidence) -> None:
    edit_events(case, JobStalled, "struck", reason="lease_expired")


def silence_noticed_late(case: DemoEvidence) -> None:
    edit_events(case, JobStalled, "held", at=moment(START + 5 * SECOND + 1))


def late_answer_taken(case: DemoEvidence) -> None:
    # The run after it is the one that counts, so that no job has two outcomes.
    edit_run(case, "held", 1, ended="raised")


def resumed_and_never_notified(case: DemoEvidence) -> None:
    drop_events(case, RunFenced, "held")
    case.replay = Replay(HeldRun("held", 1, 101), "lost")


def nothing_refused(case: DemoEvidence) -> None:
    edit_events(case, RunFenced, "held", write="renew")


def replay_accepted(case: DemoEvidence) -> None:
    case.replay = Replay(HeldRun("held", 1, 101), "done")


def quarantined_below_a_stranger(case: DemoEvidence) -> None:
    edit_lines(case, lambda line: structs.replace(line, parent=7) if line.pid == 99 else line)


def first_run_below_its_worker(case: DemoEvidence) -> None:
    edit_lines(case, lambda line: structs.replace(line, pid=99, parent=line.pid) if line.job == "plain" else line)


def never_hung(case: DemoEvidence) -> None:
    case.hung = None


def place_not_noted(case: DemoEvidence) -> None:
    edit_lines(case, lambda line: structs.replace(line, place=None))


def post_mortem_of_another_line(case: DemoEvidence) -> None:
    edit_events(case, JobStalled, "hung", post_mortem=POST_MORTEM.replace("29", "30"))
    edit_run(case, "hung", 1, detail=POST_MORTEM.replace("29", "30"))


def post_mortem_not_announced(case: DemoEvidence) -> None:
    edit_events(case, JobStalled, "hung", post_mortem=None)


def post_mortem_not_in_the_history(case: DemoEvidence) -> None:
    edit_run(case, "hung", 1, detail="its process was killed")


def the_gil_was_never_held(case: DemoEvidence) -> None:
    case.gil_holder = None


def the_gil_was_held_too_briefly(case: DemoEvidence) -> None:
    edit_lines(case, lambda line: structs.replace(line, held=5 * SECOND - 1) if line.held else line)


def the_gil_was_held_in_name_only(case: DemoEvidence) -> None:
    edit_lines(case, lambda line: structs.replace(line, held=None))


def reaped_while_it_was_held(case: DemoEvidence) -> None:
    case.events.append(stalled("gil_holder", GIL_HOLDER, "lease_expired", START + 3 * SECOND))


def neighbour_reaped_while_it_was_held(case: DemoEvidence) -> None:
    edit_events(case, JobStalled, "struck", owner=GIL_HOLDER.id)
    case.faults[0].owner = GIL_HOLDER


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (lost, LOST),
        (lost_but_for_the_list, LOST),
        (nobodys_job, LOST),
        (not_over, COMPLETED),
        (failed, COMPLETED),
        (wrong_result, RIGHT),
        (result_of_another_file, RIGHT),
        (wrong_answer_noted, RIGHT),
        (file_gone, RIGHT),
        (announced_twice, ONCE),
        (never_announced_as_completed, ONCE),
        (completed_by_two_runs, ONCE),
        (start_without_a_run, STARTS),
        (start_of_a_stranger, STARTS),
        (start_under_another_fence, STARTS),
        (start_in_another_process, STARTS),
        (began_twice, STARTS),
        (completed_without_a_handler, NOTED),
        (completed_without_an_answer, NOTED),
        (unannounced_second_run, ANNOUNCED),
        (kill_that_was_not_possible, STRUCK),
        (no_leader_killed, STRUCK),
        (struck_while_idle, STRUCK),
        (never_woken, STRUCK),
        (death_noticed_late, DEATH),
        (death_taken_for_silence, DEATH),
        (silence_noticed_late, PAUSE),
        (late_answer_taken, FENCED),
        (resumed_and_never_notified, FENCED),
        (nothing_refused, REFUSED),
        (replay_accepted, REFUSED),
        (quarantined_below_a_stranger, STARTS),
        (first_run_below_its_worker, STARTS),
        (never_hung, LINE),
        (place_not_noted, LINE),
        (post_mortem_of_another_line, LINE),
        (post_mortem_not_announced, LINE),
        (post_mortem_not_in_the_history, LINE),
        (the_gil_was_never_held, HOLDING),
        (the_gil_was_held_too_briefly, HOLDING),
        (the_gil_was_held_in_name_only, HOLDING),
        (reaped_while_it_was_held, HOLDING),
        (neighbour_reaped_while_it_was_held, HOLDING),
    ],
)
def test_a_planted_error_fails_its_own_check_and_no_other(plant: Callable[[DemoEvidence], None], check: str) -> None:
    case = valid_case()
    plant(case)

    assert red(case) == [check]


def test_a_run_that_died_before_its_first_log_line_passes_the_audit() -> None:
    case = valid_case()
    edit_lines(case, lambda line: None if (line.job, line.run) == ("struck", 1) else line)

    assert red(case) == []


def test_a_run_stopped_by_its_own_fence_counts_as_such() -> None:
    case = valid_case()
    edit_lines(
        case,
        lambda line: structs.replace(line, answer=None) if (line.job, line.run) == ("held", 1) else line,
    )
    edit_events(case, RunFenced, "held", write="renew")
    case.replay = Replay(HeldRun("held", 1, 101), "lost")

    checks = {check.name: check for check in audit(case)}

    assert all(check.holds for check in checks.values())
    assert checks[FENCED].summary == "1 runs: 1 stopped by their own fence, 0 answered too late and refused"
    assert checks[REFUSED].summary == "replayed run 1 of job held under fence 101: lost"


def test_a_failed_check_shows_some_examples_and_counts_all() -> None:
    case = valid_case()
    case.found += [Ref("demo", f"stranger {number}") for number in range(2 * EXAMPLES)]

    check = next(check for check in audit(case) if check.name == LOST)

    assert check.wrong == 2 * EXAMPLES
    assert len(check.examples) == EXAMPLES
