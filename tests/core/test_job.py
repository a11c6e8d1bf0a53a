"""The records: their names, and that they can be encoded and decoded."""

import msgspec

from tenure.core.job import JobRecord, Key, NewJob, Policy, RateKey, Ref, StallSetting, StallTerms, UniqueKey
from tests.core.cases import ACTIVE


def test_a_job_is_named_by_its_queue_and_its_id() -> None:
    job = NewJob(queue="mail", id="a", task="send", payload=b"")

    assert job.ref == ACTIVE.ref == Ref("mail", "a")
    assert Ref("a", "z") < Ref("b", "a") < Ref("b", "b")


def test_a_record_can_be_encoded_and_decoded() -> None:
    job = msgspec.structs.replace(
        ACTIVE,
        payload=bytes(range(256)),
        keys=(Key("customer", 2),),
        rates=(RateKey("mail", 7),),
        merge=UniqueKey("k", "queued", 5),
        stall=StallTerms(pinned=("lease",)),
        policy=Policy(on_worker_lost="fail"),
    )

    assert msgspec.json.decode(msgspec.json.encode(job), type=JobRecord) == job
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=JobRecord) == job


def test_new_jobs_share_no_mutable_fields() -> None:
    one, two = (NewJob(queue="mail", id=name, task="send", payload=b"") for name in "ab")
    one.headers["trace"] = "1"

    assert two.headers == {}


def test_a_later_stall_setting_changes_only_the_fields_that_it_sets() -> None:
    before = StallSetting(lease=8, max_stalls=2)

    assert before.updated_with(StallSetting(max_stalls=0, renewed=False)) == StallSetting(
        lease=8, max_stalls=0, renewed=False
    )
    assert before.updated_with(StallSetting(start_grace=5)) == StallSetting(lease=8, max_stalls=2, start_grace=5)
    assert before.updated_with(StallSetting()) == before
