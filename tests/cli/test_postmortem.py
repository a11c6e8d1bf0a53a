"""Post-mortems on the command line: readable in texts, complete in JSON."""

import asyncio
from random import Random

import pytest

from tenure.core.job import Owner, Ref
from tenure.core.lease import Lease
from tenure.core.outcome import Outcome, TimedOut
from tenure.core.postmortem import Ending
from tenure.core.settlement import settlement
from tenure.failures import recorded
from tenure.maintenance.lost_runs import CrashEvidence, settle_stalled
from tenure.storage.protocol import ClaimRequest, LeaseRenewal, RenewRequest
from tenure.storage.urls import locate
from tests.cli.terminal import EVERYWHERE, Terminal

WORKER = Owner("a" * 16, "web-1:42", "web-1", 42)
TAKER = Owner("b" * 16, "supervisor")
TRACE = 'Traceback (most recent call last):\n  File "/srv/app/mail.py", line 12, in send\n    body = render(order)\n'
KILLED = CrashEvidence(Ending("was killed by signal 9 (SIGKILL), cause unknown"))


def cut_off(there: Terminal, job: str) -> None:
    """Let a worker claim a job, report its position, and die."""

    async def go() -> None:
        storage = locate(there.url)
        await storage.open()
        (lease,) = (await storage.exchange(WORKER, (), ClaimRequest(("default",), 1))).leases
        assert lease.ref == Ref("default", job)
        await storage.renew(RenewRequest(WORKER, (LeaseRenewal(lease.ref, lease.fence, trace=TRACE),)))
        taken = await storage.reclaim(WORKER.id, TAKER)
        await settle_stalled(storage, TAKER, taken.stalled, Random(0), evidence=KILLED)
        await storage.close()

    asyncio.run(go())


def came_to(there: Terminal, outcome: Outcome) -> None:
    """Let a worker claim a job and settle it with this outcome."""

    async def go() -> None:
        storage = locate(there.url)
        await storage.open()
        lease: Lease = (await storage.exchange(WORKER, (), ClaimRequest(("default",), 1))).leases[0]
        await storage.exchange(WORKER, [settlement(lease, outcome, Random(0))])
        await storage.close()

    asyncio.run(go())


@EVERYWHERE
def test_show_has_the_full_post_mortem_and_one_line_for_the_retry(there: Terminal) -> None:
    job = there.enqueue("hang")
    cut_off(there, job)
    there.enqueue("add", 1, 2, work=True)
    text = there.run("jobs", "show", job).stdout
    (first, _) = there.read("jobs", "show", job)["runs"]
    (line,) = there.run("events", "--kind", "stalled").stdout.splitlines()

    assert "post-mortem of run 1\n  its process was killed by signal 9 (SIGKILL), cause unknown\n  job: " in text
    assert '\n      File "/srv/app/mail.py", line 12, in send\n' in text
    assert text.count("mail.py") == 1
    assert first["detail"].startswith("its process was killed by signal 9 (SIGKILL), cause unknown\njob: ")
    assert text.rstrip().endswith(
        "run 1 was lost because its process was killed by signal 9 (SIGKILL), cause unknown, and run 2 completed."
    )
    assert 'post_mortem="its process was killed by signal 9 (SIGKILL), cause unknown"' in line
    (event,) = there.read("events", "--kind", "stalled")["events"]
    assert event["post_mortem"] == first["detail"]


def test_a_failed_job_shows_its_error_once_with_its_last_post_mortem(there: Terminal) -> None:
    job = there.enqueue("hang")
    cut_off(there, job)
    cut_off(there, job)
    text = there.run("jobs", "show", job).stdout

    assert (
        "JobStalledError: the job stalled 2 times, more than its max_count of 1; the last time its process was" in text
    )
    assert "post-mortem of run 2" in text
    assert text.count("mail.py") == 2


@pytest.mark.parametrize("again", [False, True])
def test_the_position_of_a_timed_out_run_is_shown_once(there: Terminal, again: bool) -> None:
    job = there.enqueue("hang")
    error = recorded(TimeoutError("the run passed its timeout of 5 s"))
    came_to(there, TimedOut(type(error)(error.type, error.message, f"{TRACE}TimeoutError: {error.message}")))
    if again:
        assert there.run("jobs", "cancel", job).exit_code == 0
    text = there.run("jobs", "show", job).stdout

    assert text.count("mail.py") == 1
    assert "timed_out" in text
