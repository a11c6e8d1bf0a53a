"""A process is killed after every storage call, and within it: nothing answered is lost, and nothing is half done."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.system.crash_script import ACTS

pytestmark = [pytest.mark.system, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
SEED = os.environ.get("TENURE_SEED", "0")
"""The seed of the moments within the calls, and of the points at which the work continues to its end."""

WITHIN = {"sqlite": (2, 1.0, 2), "redis": (0, 0.15, 1)}
"""For each storage: how many processes are killed at some moment within each call, after which share of all kills the
work continues to its end, and how many processes are killed within each call in all.

On Redis one of them is killed while its request is unread at the server, which carries it out anyway. All other moments
are like those between two calls: a server never carries out a part of a request.
"""


@pytest.mark.statement(77, 78)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("storage", ["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def test_a_process_may_be_killed_at_every_storage_call(
    tmp_path: Path, storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    inside, share, dies = WITHIN[storage]
    run = subprocess.run(
        [sys.executable, "-m", "tests.system.crash_runner", storage, str(tmp_path), str(inside), str(share), SEED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    assert run.returncode == 0, run.stderr

    points = [json.loads(line) for line in run.stdout.splitlines()]
    troubles = [point["trouble"] for point in points if "trouble" in point]
    assert not troubles, f"TENURE_SEED={SEED}: {len(troubles)} of {len(points)} points failed, such as {troubles[0]}"

    # Each of the calls was the last to be answered, and the first that was not.
    after = {point["calls"] for point in points if point["inside"] is None}
    within = Counter(
        "answered" if point["answered"] else "done" if point["done"] else "undone"
        for point in points
        if point["inside"] is not None
    )
    assert after == set(range(len(ACTS) + 1))
    # The kills happened where they should; otherwise they would prove nothing.
    assert within.total() == dies * len(ACTS)
    assert within["done"], within
    assert storage == "redis" or within["undone"], within

    with capsys.disabled():
        finished = sum(point["finished"] for point in points)
        print(
            f"\n{storage}: {len(points)} crash points, {finished} of them worked off to the end (seed {SEED}): "
            f"{len(after)} after a call; within a call: {dict(within)}"
        )
