"""What goes to a cell and comes back has every field of the core's records: none is left behind on the way."""

from holdfast.core.job import JobRecord, NewJob
from holdfast.storage.redis.records import PLACED, Fixed, Rare, Wish
from tests.redis_records import COUNTED, FENCES, IN_HEAD, IN_RUN, RARE

SPREAD = {"lease", "max_stalls", "start_grace", "renewed", "pinned", "on_expire"}
"""The stall terms, and what scripts must know of the policy, each a field of its own."""

BESIDE = {"queue", "id", "payload", "result"}
"""What a record's name says, and what is no field of it but a part."""

OWN = {"made", "run_fence", "run_end"}
"""The number that the cell has made a job under, and what is of its last run."""


def test_a_wish_has_every_field_of_a_new_job() -> None:
    assert set(Wish.__struct_fields__) - SPREAD == set(NewJob.__struct_fields__) - {"stall"}


def test_a_kept_record_has_every_field_of_a_job() -> None:
    fixed, rare = set(Fixed.__struct_fields__), set(Rare.__struct_fields__)

    assert not fixed & rare
    assert not (fixed | rare) & set(PLACED) - {"owner"}
    assert (fixed | rare | set(PLACED)) - SPREAD - OWN == set(JobRecord.__struct_fields__) - BESIDE - {"stall"}


def test_those_who_look_from_outside_know_the_same_fields() -> None:
    assert {*IN_HEAD, *COUNTED, *FENCES, *IN_RUN, "state"} == {*PLACED, *OWN}
    assert set(Rare.__struct_fields__) == RARE
