"""Checks the catalog of code mutants: each changes code that exists, and selects a test that can find it."""

import subprocess
import sys

import pytest

from tests.code_mutants.catalog import ROOT, load


def test_each_mutant_fits_the_code() -> None:
    assert [(mutant.name, why) for mutant in load() if (why := mutant.stale()) is not None] == []


def test_each_mutant_has_a_name_of_its_own() -> None:
    names = [mutant.name for mutant in load()]

    assert len(names) == len(set(names))


@pytest.mark.thorough
def test_each_mutant_selects_a_test() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.code_mutants.selection"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
