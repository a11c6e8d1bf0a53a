"""Our own processes: their configuration, what is known of one while it runs, and how it ended."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure.processes.process import EXTRA_OOM_SCORE, Process, ProcessExit, is_stopped

pytestmark = pytest.mark.system

VARIABLE = "TENURE_TEST_LINE"

OPENED = f"import os, socket, sys, time\nline = socket.socket(fileno=int(os.environ['{VARIABLE}'].partition(':')[0]))\n"


def start(script: str, *, config: str = "") -> Process:
    return Process.start(
        [sys.executable, "-c", OPENED + script], variable=VARIABLE, config=config, env=dict(os.environ)
    )


async def heard(process: Process) -> bytes:
    async with asyncio.timeout(20):
        return await asyncio.get_running_loop().sock_recv(process.socket, 1000)


async def ended(process: Process) -> ProcessExit:
    async with asyncio.timeout(20):
        return await process.wait()


ORPHANS = """
import ctypes, os, subprocess, time
from tenure.processes.process import reap_orphans

# As the first process of a container: orphans become our children.
ctypes.CDLL(None).prctl(36, 1)
subprocess.run(["sh", "-c", "sleep 0.1 & sleep 0.2 & exit 0"])
reaped, until = 0, time.monotonic() + 20
while reaped < 2 and time.monotonic() < until:
    reaped += reap_orphans({7})
    time.sleep(0.01)
known = subprocess.Popen(["sh", "-c", "exit 3"])
os.waitid(os.P_PID, known.pid, os.WEXITED | os.WNOWAIT)
print(reaped, reap_orphans({known.pid}), known.wait())
"""


def test_orphans_are_reaped_and_own_children_are_left_to_their_waiters() -> None:
    done = subprocess.run([sys.executable, "-c", ORPHANS], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout, done.stderr) == ("2 0 3\n", "")


async def test_a_process_gets_its_config_and_writes_to_its_socket() -> None:
    process = start(f"line.sendall(os.environ['{VARIABLE}'].partition(':')[2].encode())", config="a config")

    assert await heard(process) == b"a config"
    assert (await ended(process)).status == 0
    process.kill_group()


@pytest.mark.parametrize(
    ("script", "status", "message"),
    [
        ("sys.exit(3)", 3, "exit status 3"),
        ("os._exit(0)", 0, "exit status 0"),
        ("os.kill(os.getpid(), 9)", -9, "signal 9 (SIGKILL)"),
        ("import ctypes; ctypes.string_at(0)", -11, "signal 11 (SIGSEGV)"),
    ],
)
async def test_how_a_process_ended_is_known_and_described(script: str, status: int, message: str) -> None:
    process = start(script)
    death = await ended(process)

    assert (death.status, str(death)) == (status, message)
    assert process.exit == death
    process.kill_group()


PARENT_OF_A_KILLED_CHILD = """
import asyncio, os, sys
from tenure.processes.process import Process

async def main():
    child = "much = b'x' * 150_000_000; import os; os.kill(os.getpid(), 9)"
    process = Process.start([sys.executable, "-c", child], variable="LINE", env=dict(os.environ))
    print((await process.wait()).peak_memory)

asyncio.run(main())
"""


LARGER = "import subprocess, sys; much = b'x' * 400_000_000; subprocess.run([sys.executable, '-c', sys.argv[1]])"


@pytest.mark.parametrize("command", [["-c"], ["-c", LARGER]], ids=["small", "large"])
def test_the_peak_memory_is_known_of_a_killed_process(command: list[str]) -> None:
    # A parent that has occupied more than its child does not know the child's peak. It is a process of its own, because
    # what the process of these tests has occupied depends on the tests before.
    done = subprocess.run(
        [sys.executable, *command, PARENT_OF_A_KILLED_CHILD], capture_output=True, text=True, timeout=60, check=False
    )

    assert 150_000_000 < int(done.stdout) < 300_000_000


async def test_a_stopped_process_is_seen_as_stopped_until_it_continues() -> None:
    process = start("line.sendall(b'up'); line.recv(1); line.sendall(b'still here'); time.sleep(600)")
    assert await heard(process) == b"up"
    assert [process.stopped for _ in range(2)] == [False, False]

    process.send_signal(signal.SIGSTOP)
    await until(lambda: process.stopped)
    # The answer stays the same, however often it is read.
    assert [process.stopped for _ in range(2)] == [True, True]

    process.send_signal(signal.SIGCONT)
    await until(lambda: not process.stopped)
    process.write(b".")

    assert await heard(process) == b"still here"
    process.send_signal(signal.SIGKILL)
    assert (await ended(process)).signal == 9
    assert [process.stopped] == [False]
    process.kill_group()


async def test_kill_group_ends_the_processes_that_the_process_started() -> None:
    process = start("pid = os.fork()\nline.sendall(str(pid).encode() + b' ') if pid else time.sleep(600)\n")
    child = int((await heard(process)).split()[0])
    await ended(process)
    process.kill_group()

    await until(
        lambda: not Path(f"/proc/{child}").exists() or "\nState:\tZ" in Path(f"/proc/{child}/status").read_text()
    )


async def test_a_process_that_cannot_start_is_an_os_error_and_leaks_nothing() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(OSError, match="no-such-program"):
            Process.start(["/no-such-program"], variable=VARIABLE, env=dict(os.environ))

    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_process_without_a_waiting_thread_is_an_os_error_and_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    started, before = list[int](), len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    # The error names which process it was.
    monkeypatch.setattr("tenure.processes.process._prefer_as_oom_victim", started.append)
    with pytest.raises(OSError, match="no thread can wait for its end"):
        start("time.sleep(600)")

    assert str(started[0]) not in os.listdir("/proc")
    assert len(os.listdir("/proc/self/fd")) == before


async def test_an_exit_is_noticed_although_other_code_waited_for_it() -> None:
    popen = subprocess.Popen(["/bin/sh", "-c", "exit 3"])  # noqa: ASYNC220 - as we start them
    os.waitpid(popen.pid, 0)  # noqa: ASYNC222 - a handler may do that
    ours, theirs = socket.socketpair()
    process = Process(popen, ours)
    death = await ended(process)
    process.kill_group()
    theirs.close()

    assert (death.status, death.signal, str(death)) == (None, None, "exit status unknown")
    assert process.has_exited


async def test_an_exit_is_noticed_although_sigchld_is_ignored() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = start("os._exit(3)")
        death = await ended(process)
    finally:
        signal.signal(signal.SIGCHLD, before)
    process.kill_group()

    assert death == ProcessExit(None)


async def test_a_hundred_deaths_leave_no_zombie_and_no_descriptor() -> None:
    async def die() -> int:
        process = Process.start(["/bin/sh", "-c", "kill -9 $$"], variable=VARIABLE, env=dict(os.environ))
        death = await ended(process)
        process.kill_group()
        assert death.signal == 9
        return process.pid

    await die()
    before = len(os.listdir("/proc/self/fd"))
    pids = [await die() for _ in range(100)]

    assert not [pid for pid in pids if str(pid) in os.listdir("/proc")]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_missing_process_does_not_count_as_stopped() -> None:
    assert not is_stopped(2**22 + 1)


async def until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not there():
        assert time.monotonic() < deadline, "the condition did not become true"
        await asyncio.sleep(0.01)


def offered(pid: int) -> int:
    """Return by how much the kernel's size of a process exceeds its real size."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
async def test_the_oom_killer_prefers_a_child_to_its_parent() -> None:
    process = start("print(line.recv(1))")

    assert offered(process.pid) == min(1000, offered(os.getpid()) + EXTRA_OOM_SCORE)

    process.send_signal(signal.SIGKILL)
    await ended(process)
    process.kill_group()
