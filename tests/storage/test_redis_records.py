"""Every field of the core's records is stored in a partition and read back: none is left out."""

import re
import struct
from importlib.resources import files

import msgspec

from tenure import Retry, Timing
from tenure.client.job_template import JobTemplate
from tenure.client.signature import Signature
from tenure.core.job import JobRecord, NewJob
from tenure.options.tasks import TaskOptions
from tenure.storage.redis.exchange import encode_enqueue
from tenure.storage.redis.records import (
    HEAD,
    PLACED,
    RUN,
    EncodedJob,
    FixedFields,
    RareFields,
    encode_fixed,
    without_identity,
)
from tests.redis_records import COUNTED, FENCES, IN_HEAD, IN_RUN, RARE

SPREAD = {"lease", "max_stalls", "start_grace", "renewed", "pinned", "on_expire"}
"""The stall terms, and what scripts must know of the policy, each a field of its own."""

STORED_APART = {"queue", "id", "payload", "result"}
"""The record's name, and what is stored apart from it."""

NOT_KEPT = {"links"}
"""Redis refuses jobs with links, because it does not keep flows yet."""

OWN = {"made", "run_fence", "run_end", "logged"}
"""The partition's number of the job, what belongs to its last run, and whether it has a log."""


def test_a_request_has_every_field_of_a_new_job() -> None:
    assert set(EncodedJob.__struct_fields__) - SPREAD == set(NewJob.__struct_fields__) - {"stall"} - NOT_KEPT


def test_a_stored_record_has_every_field_of_a_job() -> None:
    fixed, rare = set(FixedFields.__struct_fields__), set(RareFields.__struct_fields__)

    assert not fixed & rare
    assert not (fixed | rare) & set(PLACED) - {"owner"}
    kept = set(JobRecord.__struct_fields__) - STORED_APART - {"stall"} - NOT_KEPT
    assert (fixed | rare | set(PLACED)) - SPREAD - OWN == kept


def test_external_readers_know_the_same_fields() -> None:
    assert {*IN_HEAD, *COUNTED, *FENCES, *IN_RUN, "state"} == {*PLACED, *OWN} - RARE
    assert set(RareFields.__struct_fields__) == RARE


def test_different_calls_of_one_task_are_each_encoded_correctly() -> None:
    jobs = [
        NewJob(queue="q", id=f"{number}", task="t", payload=b"", priority=number % 2, headers={"n": f"{number % 3}"})
        for number in range(12)
    ]
    read = [msgspec.msgpack.decode(encode_fixed(without_identity(job)) or b"", type=FixedFields) for job in jobs]

    assert [fixed.priority for fixed in read] == [job.priority for job in jobs]
    assert [fixed.headers for fixed in read] == [f'{{"n":"{number % 3}"}}' for number in range(12)]


def test_a_record_stores_only_the_policy_fields_that_differ() -> None:
    def encoded_policy(retry: Retry) -> str | None:
        like = JobTemplate.of_task("t", TaskOptions(retry=retry), Timing(), Signature("t", lambda: None)).common
        return msgspec.msgpack.decode(encode_fixed(like) or b"", type=FixedFields).policy

    assert encoded_policy(Retry()) is None
    assert encoded_policy(Retry(max_attempts=5)) == '{"retry":{"max_attempts":5}}'


def test_jobs_that_differ_in_id_and_payload_only_are_sent_as_one_group() -> None:
    def job(number: int, *, queue: str = "q", timeout: int | None = None, delay: int = 0) -> NewJob:
        return NewJob(queue=queue, id=f"{number}", task="t", payload=b"%d" % number, timeout=timeout, delay=delay)

    asked, *blobs = encode_enqueue(
        [job(1), job(2), job(3, queue="r"), job(4, timeout=5), job(5, timeout=5), job(6, delay=1), job(7)]
    )
    parsed = msgspec.msgpack.decode(asked)

    assert parsed["jobs"] == 7
    assert [call.get("ids") or [call["id"]] for call in parsed["calls"]] == [
        ["1", "2"],
        ["3"],
        ["4", "5"],
        ["6"],
        ["7"],
    ]
    assert [call.get("first", call.get("payload")) for call in parsed["calls"]] == [4, 7, 9, 11, 13]
    assert [blobs[place - 3] for place in (4, 5, 7, 9, 10, 11, 13)] == [b"%d" % number for number in range(1, 8)]


def test_scripts_know_the_length_of_the_head_and_the_run_of_a_record() -> None:
    form = (files("tenure.storage.redis") / "lua" / "parts" / "record_format.lua").read_text()
    layouts = re.findall(r"^RecordFormat\.(?:HEAD|RUN) = '(.+)'$", form, re.MULTILINE)
    [sizes] = re.findall(r"^RecordFormat\.HEAD_SIZE, RecordFormat\.RUN_SIZE = (\d+), (\d+)$", form, re.MULTILINE)

    assert [struct.calcsize(layout.replace("I4", "I")) for layout in layouts] == [HEAD.size, RUN.size]
    assert [int(size) for size in sizes] == [HEAD.size, RUN.size]
