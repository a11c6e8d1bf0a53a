"""A process is killed after every storage call, and within it: nothing answered is lost, and nothing is half done."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.system.crash_script import ACTS

pytestmark = [pytest.mark.system, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
INSIDE = 2
"""How many processes are killed within each call."""


@pytest.mark.statement(77, 78)
@pytest.mark.timeout(600)
def test_a_process_may_be_killed_at_every_storage_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.system.crash_farm", str(tmp_path), str(INSIDE)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    assert run.returncode == 0, run.stderr

    points = [json.loads(line) for line in run.stdout.splitlines()]
    troubles = [point["trouble"] for point in points if "trouble" in point]
    assert not troubles, f"{len(troubles)} of {len(points)} points failed, such as {troubles[0]}"

    # Each of the calls was the last to be answered, and the first that was not.
    after = {point["calls"] for point in points if point["inside"] is None}
    within = Counter(
        "answered" if point["answered"] else "done" if point["done"] else "undone"
        for point in points
        if point["inside"] is not None
    )
    assert after == set(range(len(ACTS) + 1))
    assert within.total() == INSIDE * len(ACTS)
    # The blows fell on both sides of the commit, or they would have proved nothing.
    assert within["done"], within
    assert within["undone"], within

    with capsys.disabled():
        print(f"\n{len(points)} crash points: {len(after)} after a call; within a call: {dict(within)}")
