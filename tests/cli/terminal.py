"""Helpers for tests of the command line: a working directory, calls within this process, and real processes."""

import asyncio
import contextlib
import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner, Result

import tenure
from tenure import Retry, Tenure
from tenure.cli.main import root

EVERYWHERE = pytest.mark.parametrize("there", ["sqlite", pytest.param("redis", marks=pytest.mark.redis)], indirect=True)
"""For one or two tests of each command: it works on every storage, with the same output."""

TASKS = """
import sys
import threading
from tenure import Tenure, Retry, current_job

app = Tenure()

@app.task(name="add")
def add(a: int, b: int) -> int:
    current_job().log.info("adding")
    return a + b

@app.task(name="hang")
def hang() -> None:
    print("hanging", flush=True)
    threading.Event().wait()
"""


class Terminal:
    """A working directory and an environment without any of our files and variables."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.url = f"sqlite:///{place / 'jobs.db'}"

    def run(self, *args: str, env: dict[str, str | None] | None = None) -> Result:
        """Call the command line within this process."""
        return CliRunner().invoke(root, args, env=env or {}, prog_name="tenure")

    def read(self, *args: str, code: int = 0) -> Any:
        """Call it for JSON, and return the parsed output."""
        result = self.run(*args, "-o", "json")
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    def refused(self, *args: str, code: int = 2, env: dict[str, str | None] | None = None) -> str:
        """Call it with a mistake, and return the one line of the error."""
        result = self.run(*args, env=env)
        assert result.exit_code == code, result.output
        assert result.stdout == ""
        return one_line(result.stderr)

    def start(
        self,
        *args: str,
        env: dict[str, str] | None = None,
        stdout: IO[str] | None = None,
        through: Sequence[str] = (),
    ) -> "subprocess.Popen[str]":
        """Start it as a separate process, possibly through a program that replaces itself by it."""
        return subprocess.Popen(
            [*through, sys.executable, "-m", "tenure", *args],
            cwd=self.place,
            env=os.environ | {"PYTHONPATH": str(Path(tenure.__file__).parents[1])} | (env or {}),
            stdout=stdout or subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(
        self, *args: str, env: dict[str, str] | None = None, through: Sequence[str] = ()
    ) -> "subprocess.CompletedProcess[str]":
        """Run it as a separate process, to its end."""
        with self.start(*args, env=env, through=through) as process:
            out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def drawn(self, *args: str, columns: int = 80, env: dict[str, str] | None = None, color: bool = False) -> str:
        """Run it to its end as a process whose output is a terminal with this many columns; return the output."""
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, columns))
        with subprocess.Popen(
            [sys.executable, "-m", "tenure", *([] if color else ["--no-color"]), *args],
            cwd=self.place,
            env=os.environ | {"PYTHONPATH": str(Path(tenure.__file__).parents[1]), "TERM": "dumb"} | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        ):
            os.close(theirs)
            shown = b""
            # Linux raises an error once the other end is closed.
            with contextlib.suppress(OSError):
                while part := os.read(ours, 4096):
                    shown += part
        os.close(ours)
        return shown.decode().replace("\r\n", "\n")

    def write(self, name: str, text: str) -> None:
        """Write a module into the working directory."""
        (self.place / name).write_text(text)

    def app(self, **options: Any) -> Tenure:
        """Return an app with some tasks, on this directory's storage."""
        app = Tenure(None if "storage" in options else self.url, **options)

        @app.task(name="add")
        async def add(a: int, b: int) -> int:
            return a + b

        @app.task(name="bad", retry=Retry(max_attempts=1))
        async def bad(number: int) -> None:
            raise ValueError(f"not {number}\nreally not")

        @app.task(name="hang")
        async def hang() -> None: ...

        @app.task(name="elsewhere", queue="elsewhere")
        async def elsewhere() -> None: ...

        return app

    def enqueue(self, task: str, *args: Any, work: bool = False, app: Tenure | None = None, **options: Any) -> str:
        """Enqueue a job and return its id; with `work`, after a worker has run all jobs."""
        app = app or self.app()

        async def go() -> str:
            async with app:
                job = await app.find_task(task).options(**options).enqueue(*args)
                if work:
                    worker = app.worker(burst=True)
                    await worker.start()
                    await worker.wait()
                return job.id

        return asyncio.run(go())


def one_line(text: str) -> str:
    """Return the text, if it is one line that begins as an error does."""
    assert text.startswith("error: "), text
    assert text.count("\n") == 1, text
    return text.strip()
