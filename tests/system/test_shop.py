"""The shop of examples/shop: its two commands, with a worker killed and one paused, and the comparison at the end."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen
from uuid import UUID

import pytest

from tenure_testing.proxy import free_port
from tests.servers import until

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
ORDERS = 30
ORDER = UUID(int=7)


@contextmanager
def shop(url: str, log: Path) -> Generator[int]:
    """Run the first command on a database, and yield the port of the web application."""
    port = free_port()
    command = [sys.executable, "-m", "examples.shop", "--port", str(port)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "DATABASE_URL": url}, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        until(lambda: "Ctrl-C stops all" in log.read_text() or process.poll() is not None, "the shop to open")
        assert process.poll() is None, log.read_text()
        yield port
    finally:
        process.terminate()
        process.wait(60)
    assert process.returncode == 0, log.read_text()


def call(request: str | Request) -> dict[str, object]:
    """Return the JSON that the web application answers."""
    with urlopen(request, timeout=60) as answer:
        found: dict[str, object] = json.load(answer)
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_shop_charges_each_order_once_while_workers_are_killed(postgres_url: str, tmp_path: Path) -> None:
    log = tmp_path / "shop.log"
    with shop(postgres_url, log) as port:
        faults = ["--kills", "1", "--pauses", "1"]
        storm = subprocess.run(
            [sys.executable, "-m", "examples.shop.storm", "--port", str(port), "--orders", str(ORDERS), *faults],
            cwd=ROOT,
            env={**os.environ, "DATABASE_URL": postgres_url},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert storm.returncode == 0, f"{storm.stdout}{storm.stderr}{log.read_text()}"

        address = f"http://127.0.0.1:{port}/orders"
        body = json.dumps({"id": str(ORDER), "cents": 500}).encode()
        placed = call(Request(address, body, {"Content-Type": "application/json"}))
        until(lambda: call(f"{address}/{ORDER}")["charges"], "the charge of the order")
        shown = call(f"{address}/{ORDER}")

    rows = {line.split("  ")[0]: line.split()[-6:] for line in storm.stdout.splitlines()}
    assert rows["acknowledged"] == [str(ORDERS), str(ORDERS), "0", str(ORDERS), "0", "yes"]
    assert rows["refused"] == ["3", "0", "3", "0", "0", "yes"]
    assert "workers killed: 1, paused: 1" in storm.stdout
    assert max(map(len, storm.stdout.splitlines())) <= 80
    assert placed == {"id": str(ORDER), "cents": 500}
    assert shown == {**placed, "job": "completed", "charges": 1}


@pytest.mark.parametrize(
    ("kind", "runs", "right"),
    [
        ("acknowledged", {ORDER: [1]}, True),
        ("acknowledged", {ORDER: [2]}, True),
        ("acknowledged", {ORDER: [1, 2]}, False),
        ("acknowledged", {ORDER: []}, False),
        ("acknowledged", {}, False),
        ("refused", {}, True),
        ("refused", {ORDER: []}, False),
        ("refused", {ORDER: [1]}, False),
        ("cut_off", {}, True),
        ("cut_off", {ORDER: [1]}, True),
        ("cut_off", {ORDER: []}, False),
        ("cut_off", {ORDER: [1, 1]}, False),
    ],
)
def test_the_storm_fails_if_an_order_has_a_wrong_number_of_charges(
    kind: str, runs: dict[UUID, list[int]], right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://localhost/shop")  # needed for the import; nothing connects
    from examples.shop.storm import Sent, compare

    assert compare(Sent(**{kind: [ORDER]}), runs) is right
