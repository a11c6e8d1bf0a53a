"""A process that is asked for its stack returns it, even if it holds its interpreter; one that cannot is given up."""

import asyncio
import os
import signal
import sys
import time

import pytest

from tenure.processes.process import Process
from tenure.worker.stacks.positions import Dump
from tenure.worker.stacks.stack_file import ANSWER_TIMEOUT, StackFile

pytestmark = pytest.mark.system

VARIABLE = "TENURE_TEST_LINE"

ANSWERING = f"""
import ctypes, os, signal, socket, sys, time
from tenure.worker.stacks.stack_file import StackFile

fd, _, stack_fd = os.environ["{VARIABLE}"].partition(":")
line = socket.socket(fileno=int(fd))
StackFile(int(stack_fd)).register()

def hold(seconds):
    library, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(256)
    library.pthread_mutex_init(lock, None)
    library.pthread_mutex_lock(lock)
    line.sendall(b"up")
    library.pthread_mutex_timedlock(lock, (ctypes.c_long * 2)(int(time.time() + seconds), 0))

"""


async def start(stacks: StackFile, script: str) -> Process:
    child = Process.start(
        [sys.executable, "-c", ANSWERING + script],
        variable=VARIABLE,
        config=str(stacks.descriptor),
        pass_fds=[stacks.descriptor],
        env=dict(os.environ),
    )
    async with asyncio.timeout(20):
        assert await asyncio.get_running_loop().sock_recv(child.socket, 2) == b"up"
    return child


async def end(child: Process, stacks: StackFile) -> None:
    child.send_signal(signal.SIGKILL)
    async with asyncio.timeout(20):
        await child.wait()
    child.kill_group()
    stacks.close()


async def test_a_process_that_holds_its_gil_returns_its_stack_each_time() -> None:
    stacks = StackFile.new()
    child = await start(stacks, "hold(60)\n")
    for _ in range(3):
        said = await stacks.read_from(child)

        assert said.count("Current thread") == 1
        assert "in hold" in said
    await end(child, stacks)


async def test_a_stopped_process_is_not_asked_for_its_stack() -> None:
    stacks = StackFile.new()
    child = await start(stacks, "line.sendall(b'up')\nos.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(60)\n")
    async with asyncio.timeout(20):
        while not child.stopped:  # noqa: ASYNC110 - the kernel does not notify
            await asyncio.sleep(0.01)

    assert await stacks.read_from(child) == ""
    await end(child, stacks)


async def test_a_process_that_does_not_answer_is_waited_for_briefly() -> None:
    stacks = StackFile.new()
    child = await start(stacks, "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])\nhold(60)\n")
    began = time.monotonic()

    assert await stacks.read_from(child) == ""
    assert time.monotonic() - began < ANSWER_TIMEOUT + 2
    await end(child, stacks)


def test_a_dump_without_a_handler_names_none() -> None:
    assert Dump("").on_loop() is None
    assert Dump("").in_threads() == []
