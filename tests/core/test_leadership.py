"""What a reaper knows of its own leadership."""

from random import Random

import pytest

from tenure.core.events import LeadershipAcquired, LeadershipLost
from tenure.core.leadership import (
    LATE,
    LeaderStatus,
    Term,
    after_answer,
    after_failure,
    after_resignation,
    next_sweep_in,
)

TERM = Term("*", "00000000000000aa", 7, 4_000_000)
OTHER = Term("mail", "00000000000000aa", 3, 2_000_000)


def test_an_owner_does_not_lead_before_an_answer_grants_a_term() -> None:
    assert not LeaderStatus().leads
    assert after_answer(LeaderStatus(), (), asked_at=100.0) == (LeaderStatus(), [])


@pytest.mark.statement(108, 115)
def test_a_first_term_is_announced_and_counts_from_its_request() -> None:
    standing, events = after_answer(LeaderStatus(), (TERM,), asked_at=100.0)

    assert standing == LeaderStatus((TERM,), 104.0)
    assert standing.leads
    assert events == [LeadershipAcquired(scope="*", owner=TERM.owner, epoch=7)]


def test_a_renewed_term_is_not_announced() -> None:
    standing, _ = after_answer(LeaderStatus(), (TERM,), asked_at=100.0)
    standing, events = after_answer(standing, (TERM,), asked_at=102.0)

    assert (standing, events) == (LeaderStatus((TERM,), 106.0), [])


@pytest.mark.statement(109, 115)
def test_an_answer_without_the_term_says_that_another_leads() -> None:
    standing, events = after_answer(LeaderStatus((TERM,), 104.0), (), asked_at=105.0)

    assert standing == LeaderStatus()
    assert events == [LeadershipLost(scope="*", owner=TERM.owner, epoch=7, reason="superseded")]


def test_a_new_epoch_is_a_loss_and_a_gain() -> None:
    later = Term("*", TERM.owner, 9, 4_000_000)
    standing, events = after_answer(LeaderStatus((TERM,), 104.0), (later,), asked_at=110.0)

    assert standing == LeaderStatus((later,), 114.0)
    assert events == [
        LeadershipLost(scope="*", owner=TERM.owner, epoch=7, reason="superseded"),
        LeadershipAcquired(scope="*", owner=TERM.owner, epoch=9),
    ]


def test_each_scope_has_its_own_leader_until_the_first_term_ends() -> None:
    standing, events = after_answer(LeaderStatus((TERM,), 104.0), (TERM, OTHER), asked_at=102.0)

    assert standing == LeaderStatus((TERM, OTHER), 104.0)
    assert events == [LeadershipAcquired(scope="mail", owner=OTHER.owner, epoch=3)]


@pytest.mark.fault("W-P12")
@pytest.mark.statement(112)
def test_a_leader_without_an_answer_leads_until_its_trust_ends() -> None:
    standing = LeaderStatus((TERM, OTHER), 104.0)

    assert after_failure(standing, at=103.9) == (standing, [])
    assert after_failure(standing, at=104.0) == (
        LeaderStatus(),
        [
            LeadershipLost(scope="*", owner=TERM.owner, epoch=7, reason="unreachable"),
            LeadershipLost(scope="mail", owner=OTHER.owner, epoch=3, reason="unreachable"),
        ],
    )


def test_a_follower_without_an_answer_is_a_follower() -> None:
    assert after_failure(LeaderStatus(), at=1e9) == (LeaderStatus(), [])


@pytest.mark.statement(115)
def test_a_resignation_is_announced_once() -> None:
    standing, events = after_resignation(LeaderStatus((TERM,), 104.0))

    assert (standing, events) == (
        LeaderStatus(),
        [LeadershipLost(scope="*", owner=TERM.owner, epoch=7, reason="resigned")],
    )
    assert after_resignation(standing) == (LeaderStatus(), [])


@pytest.mark.statement(107)
def test_a_leader_asks_at_its_sweep_and_a_follower_after_the_term() -> None:
    dice = Random(3)
    waits = [next_sweep_in(2.0, 1.5, dice) for _ in range(200)]

    assert next_sweep_in(2.0, None, dice) == 2.0
    assert all(1.5 <= wait <= 1.5 + LATE for wait in waits)
    assert max(waits) - min(waits) > LATE / 2
