"""Helpers for the tests of this folder: jobs and owners, child processes."""

import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

from tenure.core.job import NewJob, Owner

SOURCE = Path(__file__).resolve().parents[2] / "src"


def job(id_: str, queue: str = "q", **fields: Any) -> NewJob:
    return NewJob(queue=queue, id=id_, task=fields.pop("task", "t"), payload=fields.pop("payload", b"[]"), **fields)


def owner(dice: Random | None = None, **fields: Any) -> Owner:
    return Owner(f"{(dice or Random()).getrandbits(64):016x}", **fields)


def child(script: str, *args: object) -> "subprocess.Popen[str]":
    """Start a Python process with pipes to its stdin and its stdout."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(SOURCE)},
    )


def script(body: str) -> str:
    """Return the program of a child with this `main()`. The program ends when `main()` returns."""
    return _PROGRAM + body + "\nasyncio.run(main())\n"


_PROGRAM = """
import asyncio, sys, time
from tenure.core.job import NewJob, Owner, Ref
from tenure.storage.protocol import ClaimRequest, LeaseRenewal, RenewRequest, SweepRequest, WorkerInfo
from tenure.storage.sqlite import SQLiteStorage

def say(word):
    print(word, flush=True)

async def resumed():
    return (await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)).strip()

storage = SQLiteStorage(sys.argv[1])
"""


def next_line(process: "subprocess.Popen[str]") -> str:
    """Return the next line that a child prints; empty if the child ended."""
    assert process.stdout is not None

    return process.stdout.readline().strip()


def resume(process: "subprocess.Popen[str]") -> None:
    """Let a child that waits in `resumed` continue."""
    assert process.stdin is not None

    print("go", file=process.stdin, flush=True)


def end(process: "subprocess.Popen[str]") -> None:
    """Kill a child and wait for it."""
    process.kill()
    process.communicate()
