"""What goes to a cell and comes back has every field of the core's records: none is left behind on the way."""

from holdfast.core.job import JobRecord, NewJob
from holdfast.storage.redis.records import Kept, Wish

SPREAD = {"lease", "max_stalls", "start_grace", "renewed", "pinned", "on_expire"}
"""The stall terms, and what scripts must know of the policy, each a field of its own."""

BESIDE = {"queue", "id", "payload", "result"}
"""What a record's name says, and what lies beside it."""


def test_a_wish_has_every_field_of_a_new_job() -> None:
    assert set(Wish.__struct_fields__) - SPREAD == set(NewJob.__struct_fields__) - {"stall"}


def test_a_kept_record_has_every_field_of_a_job() -> None:
    kept = set(Kept.__struct_fields__)

    # `made`: the number that the cell has made it under.
    assert kept - SPREAD - {"made"} == set(JobRecord.__struct_fields__) - BESIDE - {"stall"}
