"""Which job a call joins, and when a job that it created is due."""

import pytest
from msgspec import structs

from tenure.core.deduplication import COLLECTED_LIMIT, accepts_merge, due_at, merge_name, throttle_name
from tenure.core.job import CollectKey, DebounceKey, MergeKey, ThrottleKey, UniqueKey
from tenure.core.lifecycle import State
from tests.core.cases import ACTIVE, NOW

SECOND = 1_000_000
UNFINISHED, QUEUED = UniqueKey("k"), UniqueKey("k", "queued")
TIMED = UniqueKey("k", window=SECOND)
DEBOUNCE, COLLECT = DebounceKey("k", 5 * SECOND, 20 * SECOND), CollectKey("k", 5 * SECOND, 3, 20 * SECOND)


@pytest.mark.parametrize(
    ("key", "held_in"),
    [
        (UNFINISHED, {State.DELAYED, State.WAITING, State.ACTIVE, State.SUSPENDED}),
        (QUEUED, {State.DELAYED, State.WAITING}),
        (TIMED, set[State]()),
    ],
)
def test_a_unique_key_is_held_in_the_states_of_its_scope(key: MergeKey, held_in: set[State]) -> None:
    jobs = [structs.replace(ACTIVE, state=state, merge=key) for state in State]

    assert {job.state for job in jobs if accepts_merge(job, key)} == held_in


def test_a_suspended_job_is_queued_until_its_first_start() -> None:
    suspended = structs.replace(ACTIVE, state=State.SUSPENDED, starts=0, merge=QUEUED)

    assert accepts_merge(suspended, QUEUED)
    assert not accepts_merge(structs.replace(suspended, starts=1), QUEUED)


@pytest.mark.parametrize("key", [DEBOUNCE, COLLECT])
def test_a_job_that_has_run_accepts_no_more_calls(key: MergeKey) -> None:
    waiting = structs.replace(ACTIVE, state=State.WAITING, starts=0, merge=key)

    assert accepts_merge(waiting, key)
    assert accepts_merge(structs.replace(waiting, state=State.DELAYED), key)
    assert not accepts_merge(structs.replace(waiting, starts=1), key)
    assert not accepts_merge(structs.replace(waiting, state=State.CANCELLED), key)


def test_a_full_batch_accepts_no_more_calls() -> None:
    batch = structs.replace(ACTIVE, state=State.DELAYED, starts=0, merge=COLLECT, collected=2)

    assert accepts_merge(batch, COLLECT)
    assert not accepts_merge(structs.replace(batch, collected=3), COLLECT)
    assert accepts_merge(structs.replace(batch, collected_bytes=COLLECTED_LIMIT - 1), COLLECT)
    assert not accepts_merge(structs.replace(batch, collected_bytes=COLLECTED_LIMIT), COLLECT)


@pytest.mark.parametrize("key", [DEBOUNCE, COLLECT])
def test_each_call_postpones_the_job_up_to_its_longest_wait(key: DebounceKey | CollectKey) -> None:
    assert due_at(key, first=NOW, calls=1, now=NOW) == NOW + 5 * SECOND
    assert due_at(key, first=NOW, calls=2, now=NOW + 4 * SECOND) == NOW + 9 * SECOND
    assert due_at(key, first=NOW, calls=2, now=NOW + 17 * SECOND) == NOW + 20 * SECOND
    assert due_at(key, first=NOW, calls=2, now=NOW + 30 * SECOND) == NOW + 30 * SECOND
    forever = structs.replace(key, max_wait=None)
    assert due_at(forever, first=NOW, calls=2, now=NOW + 30 * SECOND) == NOW + 35 * SECOND


@pytest.mark.parametrize("key", [DEBOUNCE, COLLECT])
def test_after_a_clock_set_back_a_job_waits_as_if_called_now(key: DebounceKey | CollectKey) -> None:
    assert due_at(key, first=NOW + 3600 * SECOND, calls=2, now=NOW) == NOW + 5 * SECOND
    short = structs.replace(key, max_wait=2 * SECOND)
    assert due_at(short, first=NOW + 3600 * SECOND, calls=2, now=NOW) == NOW + 2 * SECOND


def test_a_batch_is_due_when_it_is_full() -> None:
    assert due_at(COLLECT, first=NOW, calls=3, now=NOW + 1) == NOW + 1
    assert due_at(COLLECT, first=NOW, calls=2, now=NOW + 1, size=COLLECTED_LIMIT) == NOW + 1
    assert due_at(COLLECT, first=NOW, calls=2, now=NOW + 1, size=COLLECTED_LIMIT - 1) > NOW + 1


def test_keys_of_different_kinds_never_collide() -> None:
    names = [merge_name(key) for key in (UNFINISHED, DEBOUNCE, COLLECT)]

    assert names == ["unique:k", "debounce:k", "collect:k"]
    assert throttle_name(ThrottleKey("k", 1, SECOND)) == "throttle:k"
    assert merge_name(QUEUED) == merge_name(TIMED) == "unique:k"
