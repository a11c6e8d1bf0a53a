"""Adapters as processes: started with an order, read line by line, and always killed at the end."""

import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from benchmarks.peers.order import Order

ROOT = Path(__file__).parents[2]
LAST_WORDS = 1_500


class Failed(Exception):
    """A cell has no figure; says why."""


class Cannot(Exception):
    """The peer says that it does not have this feature."""


class Adapters:
    """All adapters of one run, so that the end of the run ends those of other threads, too."""

    def __init__(self) -> None:
        self._started: WeakSet[Adapter] = WeakSet()
        self._over = False

    def admit(self, adapter: "Adapter") -> None:
        """Add a started one.

        Raises:
                Failed: the run has ended.
        """
        self._started.add(adapter)
        if self._over:
            adapter.kill()
            raise Failed("the run is over")

    def end(self) -> None:
        """Kill all, and every later one."""
        self._over = True
        for adapter in list(self._started):
            adapter.kill()


ADAPTERS = Adapters()


class Adapter:
    """A started adapter, and all the processes that it starts."""

    def __init__(self, command: Sequence[str], order: Order) -> None:
        self._words = TemporaryFile()  # noqa: SIM115 - closed with the process
        # A peer must not find settings or packages of this user; but its adapter, and ours, must.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "PYTHONNOUSERSITE": "1"}
        self._process = subprocess.Popen(
            [*command, order.as_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._unread = b""
        ADAPTERS.admit(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Workers are not waited for: what they have not done by now is not measured.
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._words):
            if pipe is not None:
                pipe.close()

    def hear(self, word: str, within: float) -> dict[str, Any]:
        """Return its next answer, which must be this one.

        Raises:
                Cannot: it says that the peer does not have this feature.
                Failed: it ended, was silent for longer, or said something else.
        """
        parsed: dict[str, Any] = json.loads(self._line(time.monotonic() + within, word))
        if parsed["say"] == "cannot":
            raise Cannot(parsed["why"])
        if parsed["say"] != word:
            raise Failed(f"said {parsed['say']} where {word} was due")
        return parsed

    def tell(self, word: str) -> None:
        """Send a word to it.

        Raises:
                Failed: it has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(word.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"ended before the order to {word}: {self.last_words()}") from None

    def check(self) -> None:
        """Check that it is still running.

        Raises:
            Failed: it has ended.
        """
        if self._process.poll() is not None:
            raise Failed(f"ended with {self._process.returncode}: {self.last_words()}")

    def kill(self) -> None:
        """Kill it with SIGKILL, and all that it has started."""
        # Some peers put the processes that run their jobs into groups of their own.
        for pid in family(self.pid) if self._process.poll() is None else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def last_words(self) -> str:
        """Return the end of what it wrote to stderr, in whole lines, with files named without their folders."""
        self._words.seek(0, os.SEEK_END)
        size = self._words.tell()
        self._words.seek(max(0, size - LAST_WORDS))
        words = self._words.read().decode(errors="replace")
        if size > LAST_WORDS and "\n" in words.rstrip():
            words = words.partition("\n")[2]
        return without_folders(words.strip())

    def cpu(self) -> float:
        """Return the seconds of processor time of it and its descendants so far."""
        return sum(cpu_of(pid) for pid in family(self.pid))

    def _line(self, deadline: float, word: str) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise Failed(f"not {word} in time: {self.last_words()}")
            if not (piece := os.read(descriptor, 65_536)):
                self._process.wait()
                raise Failed(f"ended with {self._process.returncode} and not {word}: {self.last_words()}")
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def without_folders(text: str) -> str:
    """Return a text in which absolute paths are file names only: results are published without folders of a machine."""
    return _FOLDERS.sub("", text)


_FOLDERS = re.compile(r"(?<![\w:/.])(?:/[\w.@+~-]+)+/(?=[\w.])")


def cpu_of(pid: int) -> float:
    """Return the seconds of processor time that a process has used, ended threads included; Linux only."""
    try:
        # What clock_getcpuclockid(3) would return; it costs no parsing and is exact to less than a microsecond.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def family(pid: int) -> list[int]:
    """Return a process and its descendants; Linux only."""
    found = [pid]
    for item in found:
        for thread in Path(f"/proc/{item}/task").glob("*/children"):
            try:
                found += [int(child) for child in thread.read_text().split()]
            except OSError:
                continue
    return found
