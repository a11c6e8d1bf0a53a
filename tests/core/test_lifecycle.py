"""The table of state transitions, read as a graph."""

from tenure.core.lifecycle import REDRIVABLE, TERMINAL, TRANSITIONS, State


def test_every_state_can_be_reached() -> None:
    reached: set[State | None] = {None}
    while more := {after for before, after in TRANSITIONS if before in reached} - reached:
        reached |= more

    assert reached == {None, *State}


def test_every_state_leads_to_a_final_state() -> None:
    ending: set[State | None] = set(TERMINAL)
    while more := {before for before, after in TRANSITIONS if after in ending} - ending:
        ending |= more

    assert ending == {None, *State}


def test_a_terminal_state_is_left_only_by_a_redrive() -> None:
    assert {(before, after) for before, after in TRANSITIONS if before in TERMINAL} == {
        (state, after) for state in REDRIVABLE for after in (State.WAITING, State.DELAYED, State.SUSPENDED)
    }


def test_a_completed_job_never_runs_again() -> None:
    assert State.COMPLETED in TERMINAL
    assert State.COMPLETED not in REDRIVABLE
    assert {after for before, after in TRANSITIONS if before is State.COMPLETED} == set()


def test_a_job_completes_or_fails_in_a_run_or_by_its_wait_only() -> None:
    for end in (State.COMPLETED, State.FAILED):
        assert {before for before, after in TRANSITIONS if after is end} == {State.ACTIVE, State.SUSPENDED}


def test_a_suspended_job_starts_and_expires_only_after_it_was_awakened() -> None:
    assert {after for before, after in TRANSITIONS if before is State.SUSPENDED} == {
        *(State.WAITING, State.COMPLETED, State.FAILED, State.CANCELLED)
    }


def test_a_run_begins_only_from_waiting_or_after_another_run() -> None:
    assert {before for before, after in TRANSITIONS if after is State.ACTIVE} == {State.WAITING, State.ACTIVE}


def test_a_running_job_does_not_expire() -> None:
    assert (State.ACTIVE, State.EXPIRED) not in TRANSITIONS


def test_there_are_eight_states() -> None:
    assert [str(state) for state in State] == [
        "delayed",
        "waiting",
        "active",
        "suspended",
        "completed",
        "failed",
        "cancelled",
        "expired",
    ]
