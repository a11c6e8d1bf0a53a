"""The pytest plugin of the testing kit, in real runs of pytest."""

import subprocess
import sys
from pathlib import Path

import pytest

APP = """
from tenure import Tenure

app = Tenure()

@app.task
async def send(to: str) -> str:
    return f"sent to {to}"

@app.task
def send_from_a_thread(to: str) -> str:
    return f"sent to {to}"
"""

TESTS = """
import threading

import pytest
from shop import app, send, send_from_a_thread

{mark}
async def test_async(jobs):
    job = await send.enqueue("ada")
    await send_from_a_thread.enqueue("bob")
    assert await jobs.drain() == 2
    assert await job.result(timeout=5) == "sent to ada"

@pytest.mark.parametrize("turn", [1, 2])
def test_sync(jobs, turn):
    assert jobs.enqueued(send) == []
    with jobs.expect(send, to="ada"):
        job = send.enqueue_sync("ada")
    assert jobs.drain_sync() == 1
    assert job.result_sync(timeout=5) == "sent to ada"
    send.enqueue_sync("left over")

def test_nothing_is_left():
    handlers = [thread.name for thread in threading.enumerate() if "handler" in thread.name or "keeper" in thread.name]
    assert handlers == []
"""


def run(folder: Path, *arguments: str, ini: str) -> str:
    (folder / "shop.py").write_text(APP)
    (folder / "pytest.ini").write_text(f"[pytest]\ntenure_app = shop:app\npythonpath = .\n{ini}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "pytest_tenure", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mark", "ini", "arguments"),
    [
        ("", "asyncio_mode = auto", []),
        ("@pytest.mark.asyncio", "asyncio_mode = strict", ["-n", "2"]),
        ("@pytest.mark.anyio", "", ["-p", "no:asyncio", "-k", "not trio"]),
    ],
    ids=["pytest-asyncio auto", "pytest-asyncio strict, xdist", "anyio"],
)
def test_the_fixture_works_under(mark: str, ini: str, arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(TESTS.format(mark=mark))
    assert "4 passed" in run(tmp_path, *arguments, ini=ini)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ini", "shown"), [("", "tenure_app = shop.tasks:app"), ("tenure_app = nowhere:app", "tenure_app: ")]
)
def test_a_wrong_app_is_named_with_the_remedy(ini: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text("def test(jobs): ...")
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{ini}")

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "pytest_tenure"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert shown in done.stdout


def test_the_plugin_imports_nothing_of_tenure_before_a_fixture_is_used() -> None:
    code = "import sys, pytest_tenure; print(sorted(name for name in sys.modules if name.split('.')[0] == 'tenure'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "[]\n"
