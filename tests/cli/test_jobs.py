"""`tenure jobs`: listing, showing, redriving and cancelling."""

import json

import pytest

from tenure import Collect, JsonCodec, Retry, current_job
from tests.cli.terminal import EVERYWHERE, Terminal


class Backwards(JsonCodec):
    """A codec that only its own app can read."""

    def encode(self, value: object, /) -> bytes:
        return super().encode(value)[::-1] + b"\xff"

    def decode(self, data: bytes, /) -> object:
        return super().decode(data[:-1][::-1])


@EVERYWHERE
def test_a_list_is_newest_first_and_continues_at_its_cursor(there: Terminal) -> None:
    ids = [there.enqueue("add", number, 1) for number in range(3)]
    first = there.read("jobs", "list", "--limit", "2")
    second = there.read("jobs", "list", "--limit", "2", "--after", first["next"])

    assert [job["id"] for job in first["jobs"]] == [ids[2], ids[1]]
    assert [job["id"] for job in second["jobs"]] == [ids[0]]
    assert second["next"] is None


def test_a_list_can_be_narrowed_by_state_queue_and_task(there: Terminal) -> None:
    failed = there.enqueue("bad", 1, work=True)
    waiting = there.enqueue("elsewhere")
    there.enqueue("add", 1, 2, delay="1h")

    assert [job["id"] for job in there.read("jobs", "list", "--state", "failed")["jobs"]] == [failed]
    assert [job["id"] for job in there.read("jobs", "list", "--queue", "elsewhere")["jobs"]] == [waiting]
    assert [job["id"] for job in there.read("jobs", "list", "--task", "bad", "--task", "elsewhere")["jobs"]] == [
        *(waiting, failed)
    ]


@EVERYWHERE
def test_delayed_jobs_are_listed_by_due_instant(there: Terminal) -> None:
    late, soon = there.enqueue("add", 1, 2, delay="2h"), there.enqueue("add", 1, 2, delay="1h")
    there.enqueue("add", 1, 2)

    page = there.read("jobs", "list", "--state", "delayed", "--order", "due", "--limit", "1")
    assert [job["id"] for job in page["jobs"]] == [soon]
    rest = there.read("jobs", "list", "--where", "state:delayed", "--order", "due", "--after", page["next"])
    assert ([job["id"] for job in rest["jobs"]], rest["next"]) == ([late], None)
    assert "due" in there.run("jobs", "list", "--state", "delayed", "--order", "due").stdout.splitlines()[0]
    assert 'order = "due" lists delayed jobs only' in there.refused("jobs", "list", "--order", "due")
    assert "is not a cursor" in there.refused("jobs", "list", "--state", "delayed", "--order", "due", "--after", "7")


@EVERYWHERE
def test_a_list_can_be_narrowed_by_the_time_of_the_enqueue(there: Terminal) -> None:
    job = there.enqueue("add", 1, 2)

    def listed(*options: str) -> list[str]:
        return [found["id"] for found in there.read("jobs", "list", *options)["jobs"]]

    assert (
        listed("--since", "1h") == listed("--since", "2020-01-01T10:00:00Z") == listed("--until", "2099-01-01") == [job]
    )
    assert listed("--until", "1h") == listed("--since", "2099-01-01") == []
    assert "--since = 'soon' is not a duration" in there.refused("jobs", "list", "--since", "soon")
    assert "--since = 1:00:00 ago must lie before --until = 2:00:00 ago" in there.refused(
        "jobs", "list", "--since", "1h", "--until", "2h"
    )


def test_quiet_lists_ids_and_jsonl_one_job_a_line(there: Terminal) -> None:
    ids = [there.enqueue("add", number, 1) for number in range(2)][::-1]

    assert there.run("jobs", "list", "--quiet").stdout.split() == ids
    lines = there.run("jobs", "list", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ids


def test_an_invalid_cursor_is_refused(there: Terminal) -> None:
    there.enqueue("add", 1, 2)

    assert "--after 'soon' is not a cursor" in there.refused("jobs", "list", "--after", "soon")


@EVERYWHERE
def test_show_prints_all_fields_of_a_job(there: Terminal) -> None:
    job = there.enqueue("bad", 7, work=True)
    seen = there.read("jobs", "show", job)

    assert (seen["id"], seen["queue"], seen["task"]) == (job, "default", "bad")
    assert (seen["state"], seen["reason"]) == ("failed", "exhausted")
    assert seen["arguments"] == {"number": 7}
    assert (seen["error"]["type"], seen["error"]["message"]) == ("ValueError", "not 7\nreally not")
    assert seen["created"].endswith("Z")
    (run,) = seen["runs"]
    assert run.keys() == {
        *("number", "fence", "worker", "owner", "host", "pid", "start", "end", "took", "ended", "reason", "detail"),
        "trace",
    }
    assert (run["number"], run["ended"], run["reason"]) == (1, "raised", "ValueError")
    assert run["fence"] == seen["fence"]
    assert seen["why"] is None

    text = there.run("jobs", "show", job).stdout
    assert "failed (exhausted)" in text
    assert "Traceback (most recent call last):" in text
    assert '{"number":7}' in text


def test_show_has_progress_objects_and_the_jobs_data(there: Terminal) -> None:
    app = there.app()

    @app.task(name="keep")
    async def keep() -> None:
        current_job().progress({"page": 3, "of": 40}, "on the way")
        current_job().data["next"] = [1, {}]

    job = there.enqueue("keep", work=True, app=app)
    seen = there.read("jobs", "show", job)

    assert (seen["progress"], seen["progress_note"]) == ({"page": 3, "of": 40}, "on the way")
    assert seen["data"] == {"next": [1, {}]}
    text = there.run("jobs", "show", job).stdout
    assert '{"page":3,"of":40} on the way' in text
    assert '{"next":[1,{}]}' in text


def test_show_says_how_many_log_lines_were_dropped(there: Terminal) -> None:
    app = there.app()

    @app.task(name="talk")
    async def talk(lines: int) -> None:
        for number in range(lines):
            current_job().log.info(f"line {number}")

    job = there.enqueue("talk", 1_234, work=True, app=app)
    seen = there.read("jobs", "show", job)

    assert len(seen["log"]) + seen["log_dropped"] == 1_234
    assert seen["log"][-1]["message"] == "line 1233"
    assert seen["log_dropped"] >= 234
    assert f"({seen['log_dropped']:,} other lines were dropped)" in there.run("jobs", "show", job).stdout
    assert "dropped" not in there.run("jobs", "show", there.enqueue("talk", 2, work=True, app=app)).stdout


def test_show_answers_why_a_job_ran_twice(there: Terminal) -> None:
    job = there.enqueue("bad", 7, work=True)
    assert there.run("jobs", "redrive", job).exit_code == 0
    there.enqueue("add", 1, 2, work=True)
    why = there.read("jobs", "show", job)["why"]

    assert why == "It started 2 times: runs 1 and 2 each raised ValueError; in between it was redriven by hand."
    assert there.run("jobs", "show", job).stdout.rstrip().endswith(why)


def test_arguments_of_a_foreign_codec_are_opaque_and_its_app_reads_them(there: Terminal) -> None:
    job = there.enqueue("add", 1, 2, app=there.app(codec=Backwards()))
    there.write(
        "mine.py",
        f"from tenure import Tenure\nfrom tests.cli.test_jobs import Backwards\n"
        f"app = Tenure({there.url!r}, codec=Backwards())\n",
    )

    assert there.read("jobs", "show", job)["arguments"] == {"opaque_bytes": 14}
    assert "opaque, 14 bytes" in there.run("jobs", "show", job).stdout
    assert there.read("--app", "mine", "jobs", "show", job)["arguments"] == {"a": 1, "b": 2}


def test_an_id_in_two_queues_asks_for_the_queue(there: Terminal) -> None:
    for queue in ("red", "blue"):
        there.enqueue("add", 1, 2, queue=queue, id="twin")

    assert "several queues (blue, red); name one of them" in there.refused("jobs", "show", "twin")
    assert "name one of them" in there.refused("jobs", "cancel", "twin")
    assert there.read("jobs", "show", "twin", "--queue", "red")["queue"] == "red"


def test_an_id_cannot_steer_the_terminal(there: Terminal) -> None:
    there.enqueue("add", 1, 2, id="a\x1b[31mb\nc:d/é")

    assert there.run("jobs", "list", "--quiet").stdout == "a\\x1b[31mb\\nc:d/é\n"


@EVERYWHERE
def test_cancel_and_redrive_show_the_verdict_of_each_job(there: Terminal) -> None:
    first, second = there.enqueue("add", 1, 2), there.enqueue("add", 3, 4)

    assert there.read("jobs", "cancel", first, second, "--reason", "not needed") == [
        {"queue": "default", "id": first, "verdict": "done", "was": "waiting", "holder": None},
        {"queue": "default", "id": second, "verdict": "done", "was": "waiting", "holder": None},
    ]
    assert there.read("jobs", "show", first)["reason"] == "not needed"
    assert there.run("jobs", "redrive", first).stdout == f"job {first} of queue default is back in its queue\n"
    assert there.run("jobs", "redrive", second, "--quiet").stdout == ""
    assert [job["state"] for job in there.read("jobs", "list")["jobs"]] == ["waiting", "waiting"]


def test_a_reason_with_undecodable_bytes_keeps_its_readable_text(there: Terminal) -> None:
    job = there.enqueue("add", 1, 2)
    # Python passes on an argument of a Latin-1 terminal like this.
    there.read("jobs", "cancel", job, "--reason", "caf\udce9")

    assert there.read("jobs", "show", job)["reason"] == "caf?"


def test_a_refused_cancel_or_redrive_exits_with_1(there: Terminal) -> None:
    done = there.enqueue("add", 1, 2, work=True)
    redriven, cancelled = there.run("jobs", "redrive", done), there.run("jobs", "cancel", done)

    assert (redriven.exit_code, cancelled.exit_code) == (1, 1)
    assert "is completed; only failed, cancelled or expired jobs are redriven" in redriven.stderr
    assert "is completed already" in cancelled.stderr
    assert there.read("jobs", "cancel", done, code=1)[0]["verdict"] == "refused"


def test_a_refused_redrive_names_the_holder_of_the_key(there: Terminal) -> None:
    first = there.enqueue("bad", 1, unique="k", work=True)
    second = there.enqueue("bad", 2, unique="k")

    refused = there.run("jobs", "redrive", first)
    assert (refused.exit_code, refused.stderr) == (
        1,
        f"job {first} of queue default is not redriven: job {second} holds its unique key\n",
    )
    (answer,) = there.read("jobs", "redrive", first, code=1)
    assert (answer["verdict"], answer["was"], answer["holder"]) == ("refused", "failed", second)
    all_of_them = there.run("dead", "redrive", "--yes")
    assert all_of_them.stdout == "0 dead letters were put back into their queues\n"
    assert all_of_them.stderr == f"job {first} of queue default stays: job {second} holds its unique key\n"
    report = there.read("dead", "redrive", "--yes")
    assert report["held"] == [{"queue": "default", "id": first, "holder": second}]


def test_show_lists_each_collected_call(there: Terminal) -> None:
    app = there.app()

    @app.task(name="index", collect=Collect())
    async def index(numbers: list[int]) -> None: ...

    job = there.enqueue("index", 1, app=app)
    there.enqueue("index", 2, app=app)

    assert there.read("jobs", "show", job)["arguments"] == [{"numbers": [1]}, {"numbers": [2]}]


def test_an_unknown_id_among_several_changes_none_of_them(there: Terminal) -> None:
    job = there.enqueue("add", 1, 2)

    assert "missing-id" in there.refused("jobs", "cancel", job, "missing-id", code=4)
    assert there.read("jobs", "show", job)["state"] == "waiting"


@pytest.mark.parametrize("form", ["table", "json", "jsonl"])
def test_an_empty_list_exits_with_0(there: Terminal, form: str) -> None:
    assert there.run("migrate", "up").exit_code == 0
    assert there.run("jobs", "list", "-o", form).exit_code == 0


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("list", "--queue", ""), "--queue = '' must be a text of"),
        (("list", "--task", ""), "--task = '' must be a text of"),
        (("list", "--queue", "\udcff"), "--queue = '\\udcff' must be a text of"),
        (("list", "--after", str(2**63)), f"--after '{2**63}' is not a cursor"),
        (("list", "--after", "-1"), "--after '-1' is not a cursor"),
        (("list", "--after", ""), "--after '' is not a cursor"),
        (("show", "\udcff"), "ID = '\\udcff' must be a text of"),
        (("show", ""), "ID = '' must be a text of"),
        (("show", "x", "--queue", ""), "--queue = '' must be a text of"),
        (("cancel", "x", "\udcff"), "ID = '\\udcff' must be a text of"),
        (("redrive", "x", "--queue", "\udcff"), "--queue = '\\udcff' must be a text of"),
        (("delete", "", "--yes"), "ID = '' must be a text of"),
    ],
)
def test_invalid_arguments_print_one_line_and_exit_with_2(there: Terminal, args: tuple[str, ...], named: str) -> None:
    there.enqueue("add", 1, 2)

    assert named in there.refused("jobs", *args)


@pytest.mark.system
def test_ids_and_queues_are_not_broken_on_a_narrow_terminal(there: Terminal) -> None:
    job = there.enqueue("add", 1, 2)
    seen = there.drawn("jobs", "list")

    assert any(line.split()[:2] == [job, "default"] for line in seen.splitlines()), seen


def test_show_names_the_timeout_and_the_retry_rule_of_the_job(there: Terminal) -> None:
    job = there.enqueue("add", 1, 2, timeout="90s", retry=Retry(max_attempts=7, base="2s", cap="1m", jitter=0.5))
    seen = there.read("jobs", "show", job)

    assert seen["timeout"] == 90
    assert seen["retry"] == {
        "max_attempts": 7,
        "backoff": "exponential",
        "base": 2,
        "cap": 60,
        "jitter": 0.5,
        "pinned": True,
    }
    text = there.run("jobs", "show", job).stdout
    assert "90s" in text
    assert "up to 7 attempts, exponential delay from 2s to 1m, ±50%" in text
    assert "never" in there.run("jobs", "show", there.enqueue("bad", 1)).stdout


@EVERYWHERE
def test_why_explains_why_a_job_does_not_run(there: Terminal) -> None:
    done = there.enqueue("elsewhere", work=True)
    delayed, waiting = there.enqueue("add", 1, 2, delay="1h"), there.enqueue("add", 1, 2)

    assert [reason["cause"] for reason in there.read("jobs", "why", delayed)] == ["delayed", "no_worker"]
    assert [reason["cause"] for reason in there.read("jobs", "why", waiting)] == ["no_worker", "turn"]
    assert [reason["cause"] for reason in there.read("jobs", "why", done)] == ["completed"]

    there.run("queues", "pause", "default")
    lines = there.run("jobs", "why", waiting).stdout.splitlines()
    assert lines[0] == "queue 'default' is paused"
    assert lines[1] == "  remedy: tenure queues resume default"
    assert lines[2].startswith("also: no live worker serves queue 'default'")
    assert "no job 'nope' in any queue" in there.refused("jobs", "why", "nope", code=4)


def test_why_names_a_paused_task(there: Terminal) -> None:
    paused = there.enqueue("add", 1, 2)
    there.run("queues", "pause", "--task", "add")

    assert there.read("jobs", "why", paused)[0]["cause"] == "task_paused"


# ── all jobs that match ───────────────────────────────────────────────────────────────────────────────────────────────


@EVERYWHERE
def test_all_jobs_that_match_are_cancelled_at_a_rate(there: Terminal) -> None:
    added = [there.enqueue("add", number, 2) for number in range(3)]
    other = there.enqueue("elsewhere")
    done = there.read("jobs", "cancel", "--where", "task:add", "--rate", "100/s", "--yes")

    assert (done["state"], done["count"], done["done"]) == ("done", 3, 3)
    states = {job["id"]: job["state"] for job in there.read("jobs", "list")["jobs"]}
    assert states == {**dict.fromkeys(added, "cancelled"), other: "waiting"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["cancel"], "no job is named; give ids, or a filter with --where"),
        (["cancel", "x", "--where", ""], "--where selects the jobs; leave out the ids"),
        (["cancel", "x", "--rate", "1/s"], "--rate belongs to --where"),
        (["redrive", "--where", "state:odd", "--yes"], "filter, character 7: state 'odd' is unknown"),
        (
            ["delete", "--where", "task:add"],
            "Delete 1 job (1 of default)? This is not a terminal to ask on; give --yes",
        ),
    ],
)
def test_an_unclear_choice_of_jobs_is_refused(there: Terminal, args: list[str], message: str) -> None:
    there.enqueue("add", 1, 2)

    assert message in there.refused("jobs", *args)
