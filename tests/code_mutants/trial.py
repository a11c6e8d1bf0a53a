"""Runs one mutant's tests against a copy of the package that has the mutant's change."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

from msgspec import Struct

from tests.code_mutants.catalog import PACKAGE, ROOT, Mutant

LIMIT = 300
"""Seconds for all tests of one mutant. Tests that take longer prove nothing."""

HANG = 20
"""Seconds for one test: a mutant that makes it wait for a notification that never comes is found sooner."""

TESTS_FAILED = 1
"""The exit status of pytest when a test failed; every other one but 0 is an error of the run itself."""


class Trial(Struct, frozen=True):
    """The outcome of one mutant. `broken`: its tests could not run, so it shows nothing."""

    mutant: Mutant
    verdict: Literal["found", "survived", "broken"]
    seconds: float
    output: str = ""


def tried(mutant: Mutant) -> Trial:
    """Change a copy of the package, and run the mutant's tests against the copy."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        package = Path(folder) / PACKAGE.name
        # Compiled files stay valid, because a copy keeps the time of each source; only the changed file is compiled.
        shutil.copytree(PACKAGE, package)
        file = package / mutant.file
        file.write_text(file.read_text("utf-8").replace(mutant.find, mutant.replace), "utf-8")
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--timeout={HANG}",
            *mutant.tests,
        ]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, timeout=LIMIT, capture_output=True, text=True, check=False
            )
        except subprocess.TimeoutExpired:
            return Trial(mutant, "broken", time.monotonic() - began, f"its tests took longer than {LIMIT} s")
    verdict: Literal["found", "survived", "broken"] = (
        "survived" if done.returncode == 0 else "found" if done.returncode == TESTS_FAILED else "broken"
    )
    return Trial(mutant, verdict, time.monotonic() - began, done.stdout[-2000:] + done.stderr[-1000:])
