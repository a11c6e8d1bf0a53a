"""Follows the tutorial in docs/start.md: its files, its commands, and a real `kill -9`."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow]

PAGE = Path(__file__).parent.parent.parent / "docs" / "start.md"
PART = "time.sleep(1)"
"""One part of the work. The test makes it shorter."""


def files() -> dict[str, str]:
    """Return the files that the page tells its reader to save."""
    saved = re.findall(r"Save this as `(\w+\.py)`.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return dict(saved)


def tenure(folder: Path, *words: str) -> Any:
    """Return what a command says in JSON."""
    command = [sys.executable, "-m", "tenure", *words, "-o", "json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def until(found: Callable[[], Any], *, within: float = 60) -> Any:
    """Return what is found as soon as it is true."""
    deadline = time.monotonic() + within
    while not (value := found()):
        assert time.monotonic() < deadline, f"{found} found nothing within {within} s"
        time.sleep(0.05)
    return value


@contextmanager
def worker(folder: Path) -> Generator[Path]:
    """Run the worker of the tutorial; yield the file with its output."""
    output = folder / "output"
    with output.open("wb") as target:
        process = subprocess.Popen(
            [sys.executable, "-m", "tenure", "worker", "tasks:app"], cwd=folder, stdout=target, stderr=subprocess.STDOUT
        )
        try:
            yield output
        finally:
            process.terminate()
            process.wait(30)


def test_a_reader_of_the_tutorial_sees_a_job_survive_kill_9(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENURE_URL", raising=False)
    saved = files()
    assert set(saved) == {"tasks.py", "enqueue.py"}
    assert PART in saved["tasks.py"]
    for name, text in saved.items():
        (tmp_path / name).write_text(text.replace(PART, "time.sleep(0.1)"))

    with worker(tmp_path) as output:
        done = subprocess.run(
            [sys.executable, "enqueue.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        )
        job_id = done.stdout.strip()
        until(lambda: "part 3 of 60, run 1" in output.read_text())
        [listed] = tenure(tmp_path, "workers", "list")
        os.kill(listed["pid"], signal.SIGKILL)
        until(lambda: "part 60 of 60, run 2" in output.read_text())
        shown = until(lambda: (job := tenure(tmp_path, "jobs", "show", job_id))["state"] == "completed" and job)

    assert [run["ended"] for run in shown["runs"]] == ["stalled", "completed"]
    result = subprocess.run(
        [sys.executable, "-c", f"from tasks import app; print(app.job('{job_id}').result_sync(timeout=90))"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout.strip() == "/exports/7.csv"
