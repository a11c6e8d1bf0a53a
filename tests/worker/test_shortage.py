"""A process that runs out of descriptors or threads: how that is noticed, and which errors say so."""

import errno
import subprocess
import sys

import pytest

from tenure.testing.clock import ManualClock
from tenure.worker.recycling import CHECK_INTERVAL, LEAST_FREE, NO_THREAD, Descriptors, is_shortage

COUNTED = """
import os, resource
from tenure.worker.recycling import free_descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
before = free_descriptors()
many = [os.open("/dev/null", os.O_RDONLY) for _ in range(50)]
after = free_descriptors()
try:
    while True:
        many.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    print(before - after, len(many) - 50 == after, free_descriptors())
"""


def test_the_free_descriptors_are_those_that_can_still_be_opened() -> None:
    done = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.split() == ["50", "True", "0"]


class RaisingErrno(OSError):
    """An error whose number raises."""

    @property
    def errno(self) -> int:  # type: ignore[override]
        """Raise."""
        raise KeyboardInterrupt


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_an_error_about_a_shortage_is_recognized_by_its_number(number: int) -> None:
    assert is_shortage(OSError(number, "no more"))
    assert is_shortage(ExceptionGroup("several", [ValueError(), OSError(number, "no more")]))


def test_no_other_error_counts_as_a_shortage() -> None:
    assert is_shortage(RuntimeError(NO_THREAD))
    for error in (
        OSError(),
        OSError(errno.ENOENT, "no"),
        RuntimeError("else"),
        MemoryError(),
        ValueError(),
        RaisingErrno(24),
    ):
        assert not is_shortage(error)


def test_the_check_runs_each_second_and_reports_each_shortage_once() -> None:
    clock, messages, looks, free = ManualClock(), list[str](), [0], [LEAST_FREE]

    def look() -> int:
        looks[0] += 1
        return free[0]

    descriptors = Descriptors(clock, messages.append, free=look)
    clock.advance(CHECK_INTERVAL)
    enough = [descriptors.short() for _ in range(100)]
    free[0] = LEAST_FREE - 1
    clock.advance(CHECK_INTERVAL)
    short = [descriptors.short() for _ in range(100)]
    free[0] = 2 * LEAST_FREE - 1
    clock.advance(CHECK_INTERVAL)
    still = descriptors.short()
    free[0] = 2 * LEAST_FREE
    clock.advance(CHECK_INTERVAL)
    again = descriptors.short()

    assert set(enough) == {None}
    assert set(short) == {still} == set(messages)
    assert again is None
    assert (len(messages), looks[0]) == (1, 4)
    assert "31 free descriptors" in messages[0]
