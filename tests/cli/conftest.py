"""A terminal for each test."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    for name in [*os.environ]:
        if name.startswith("TENURE_") or name in ("COLUMNS", "NO_COLOR"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield Terminal(tmp_path)
    for name, module in [*sys.modules.items()]:
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            # Another test may have a module of the same name.
            del sys.modules[name]


@pytest.fixture
def there(request: pytest.FixtureRequest, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal whose environment names its storage: SQLite, or the one of the test's parameter (`EVERYWHERE`)."""
    if getattr(request, "param", "sqlite") == "redis":
        terminal.url = request.getfixturevalue("redis_url")
    monkeypatch.setenv("TENURE_URL", terminal.url)
    return terminal
