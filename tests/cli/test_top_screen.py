"""`tenure top` in a real pseudo-terminal: drawing, its size, keys and signals, and the end."""

import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from tenure.cli.render import text_width
from tenure.cli.screen import ENTER, LEAVE
from tests.cli.terminal import Terminal

pytestmark = [pytest.mark.system]

TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
"""Makes stdin the terminal of the session, so that its size and keys reach the process as signals."""

STYLE = re.compile(r"\x1b\[\d*m")


class Display:
    """A running command whose stdin and stdout are a terminal of 80 columns and 24 lines."""

    def __init__(self, terminal: Terminal, *args: str, env: dict[str, str]) -> None:
        self._ours, self._theirs = os.openpty()
        self.resize(80, 24)
        self.attributes = termios.tcgetattr(self._theirs)
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, sys.executable, "-m", "tenure", *args],
            cwd=terminal.place,
            env={**os.environ, "TERM": "xterm", **env},
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
        )
        self.shown = ""

    def resize(self, columns: int, lines: int) -> None:
        termios.tcsetwinsize(self._theirs, (lines, columns))

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Read the output until a condition is true."""
        until = time.monotonic() + 30
        while not condition():
            ready, _, _ = select.select([self._ours], [], [], max(0.0, until - time.monotonic()))
            assert ready, self.shown[-2000:]
            self.shown += os.read(self._ours, 65536).decode()

    def wait_for_frame(self) -> None:
        """Wait until another frame begins."""
        frames = self.shown.count("\x1b[H")
        self.wait_for(lambda: self.shown.count("\x1b[H") > frames)

    @property
    def frame(self) -> list[str]:
        """The lines of the last whole frame."""
        frames = self.shown.split("\x1b[H")
        last = frames[-2] if len(frames) > 2 else ""
        plain = STYLE.sub("", last).replace("\x1b[2K", "").replace("\x1b[0J", "")
        return [line.rstrip("\r") for line in plain.split("\n")]

    def ended(self) -> int:
        """Wait for the end; return the exit code."""
        self.wait_for(lambda: self.shown.endswith(LEAVE))
        return self.process.wait(timeout=30)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._theirs)
        os.close(self._ours)

    @property
    def restored(self) -> bool:
        return termios.tcgetattr(self._theirs) == self.attributes


@contextmanager
def displayed(terminal: Terminal, *args: str, **env: str) -> Generator[Display]:
    display = Display(terminal, *args, env=env)
    try:
        yield display
    finally:
        display.close()


@pytest.mark.parametrize("end", ["q", "ctrl-c", "terminated"])
def test_it_draws_until_it_is_ended_and_restores_the_terminal(there: Terminal, end: str) -> None:
    there.enqueue("add", 1, 2)
    with displayed(there, "top", "--every", "50ms") as display:
        display.wait_for(lambda: any("waiting 1" in line for line in display.frame))
        assert display.shown.startswith(ENTER)
        assert not display.restored

        # The other keys do nothing, and the arrow keys are not read as letters.
        display.press(b"x \x1b[A")
        there.enqueue("add", 1, 2)
        display.wait_for(lambda: any("waiting 2" in line for line in display.frame))
        match end:
            case "q":
                display.press(b"q")
            case "ctrl-c":
                display.press(b"\x03")
            case _:
                display.process.terminate()

        assert display.ended() == 0
        assert display.restored


def test_it_follows_the_size_of_the_terminal(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    with displayed(there, "top", "--every", "1h") as display:
        display.wait_for(lambda: "newest fault" in display.shown)
        for columns, lines in ((40, 9), (120, 40), (80, 24)):
            display.resize(columns, lines)
            display.wait_for_frame()
            display.resize(columns, lines + 1)
            display.wait_for_frame()

            assert len(display.frame[0]) == columns
            assert len(display.frame) <= lines + 1
            assert all(text_width(line) <= columns for line in display.frame)


def test_ctrl_z_restores_the_terminal_until_it_is_continued(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    with displayed(there, "top", "--every", "1h") as display:
        display.wait_for(lambda: "newest fault" in display.shown)
        # Without a shell that could continue it, the kernel does not stop the process.
        display.press(b"\x1a")
        display.wait_for(lambda: display.shown.endswith(LEAVE))
        display.wait_for(lambda: display.restored)

        display.process.send_signal(signal.SIGCONT)
        display.wait_for(lambda: display.shown.rpartition(LEAVE)[2].startswith(ENTER))
        display.press(b"q")

        assert display.ended() == 0
        assert display.restored


def test_a_storage_that_is_down_is_one_line_and_is_tried_again(there: Terminal) -> None:
    with displayed(there, "top", "--url", "redis://127.0.0.1:1/0", "--every", "50ms") as display:
        display.wait_for(lambda: display.shown.count("trying again: cannot be reached") > 2)
        title, trouble = (line for line in display.frame if line)
        assert title == "tenure top  redis://127.0.0.1:1/0"
        assert trouble.startswith("trying again: cannot be reached")
        display.press(b"q")

        assert display.ended() == 0
        assert display.restored


def test_an_error_that_stays_ends_it_with_the_terminal_restored(there: Terminal) -> None:
    (there.place / "other.db").write_text("not a database" * 100)
    with displayed(there, "top", "--url", "sqlite:///other.db") as display:
        display.wait_for(lambda: "error: " in display.shown)

        assert LEAVE in display.shown.partition("error: ")[0]
        assert display.process.wait(timeout=30) == 1
        assert display.restored


def test_it_uses_no_colours_on_request(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    with displayed(there, "top", NO_COLOR="1") as display:
        display.wait_for(lambda: "newest fault" in display.shown)
        assert not STYLE.search(display.shown)


def test_a_terminal_that_cannot_be_drawn_on_gets_one_frame(there: Terminal) -> None:
    there.enqueue("add", 1, 2)
    with displayed(there, "top", TERM="dumb") as display:
        display.wait_for(lambda: "longest run" in display.shown)

        assert display.process.wait(timeout=30) == 0
        assert "\x1b[H" not in display.shown
