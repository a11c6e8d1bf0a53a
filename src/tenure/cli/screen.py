"""Draws on a whole terminal, reads keys, and restores the terminal at the end."""

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Switches to the alternate screen, hides the cursor, and lets lines that are too long end at the edge."""

LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
"""Undoes `ENTER`."""


def has_screen() -> bool:
    """Return True if stdout is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Screen:
    """The terminal of stdout, as a context manager; stdin gives the keys, if it is a terminal, too.

    `pressed`: called with each key; with an empty text if the terminal is gone. `changed`: called when the screen has
    another size or is empty, so that it must be drawn. Ctrl-Z stops the process as usual, with the terminal restored
    until the process continues.
    """

    def __init__(self, *, pressed: Callable[[str], object], changed: Callable[[], object]) -> None:
        self._pressed = pressed
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._attributes: list[Any] = []

    def __enter__(self) -> Self:
        """Begin to draw."""
        if self._keys is not None:
            self._attributes = termios.tcgetattr(self._keys)
            self._loop.add_reader(self._keys, self._read, self._keys)
        self._loop.add_signal_handler(signal.SIGWINCH, self._changed)
        self._loop.add_signal_handler(signal.SIGTSTP, self._stop)
        self._loop.add_signal_handler(signal.SIGCONT, self._go_on)
        self._take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the terminal."""
        if self._keys is not None:
            self._loop.remove_reader(self._keys)
        for number in (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT):
            self._loop.remove_signal_handler(number)
        # The terminal may be gone.
        with contextlib.suppress(OSError, termios.error):
            self._restore()

    @property
    def size(self) -> tuple[int, int]:
        """The columns and lines of the terminal."""
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
        # A terminal whose size was never set has none.
        return columns or 80, lines or 24

    def draw(self, lines: Sequence[str]) -> None:
        """Draw these lines from the top, and clear those below them."""
        # After a line that fills its row, the cursor is on its last character, and clearing from there would delete it.
        below = "\r\n\x1b[0J" if len(lines) < self.size[1] else ""
        self._write("\x1b[H" + "\r\n".join(f"\x1b[2K{line}" for line in lines) + below)

    def _take(self) -> None:
        if self._keys is not None:
            tty.setcbreak(self._keys, termios.TCSADRAIN)
        self._write(ENTER)

    def _restore(self) -> None:
        self._write(LEAVE)
        if self._keys is not None:
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._attributes)

    def _stop(self) -> None:
        self._restore()
        self._loop.remove_signal_handler(signal.SIGTSTP)
        # The process stops here until it gets SIGCONT.
        signal.raise_signal(signal.SIGTSTP)
        self._loop.add_signal_handler(signal.SIGTSTP, self._stop)

    def _go_on(self) -> None:
        self._take()
        self._changed()

    def _read(self, keys: int) -> None:
        try:
            data = os.read(keys, 1024)
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(keys)
            self._pressed("")
        elif not data.startswith(b"\x1b"):
            for key in data.decode(errors="replace"):
                self._pressed(key)

    def _write(self, text: str) -> None:
        # A character that the terminal cannot show must not become several.
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
