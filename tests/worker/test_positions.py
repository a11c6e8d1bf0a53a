"""The position of a handler in a stack: its own line, and how far the call on that line has got."""

import asyncio
from pathlib import Path

import pytest

from tenure import threads
from tenure.handlers import middleware
from tenure.worker import run
from tenure.worker.stacks.positions import CodeLine, Dump, on_loop

RUN, THREADS, MIDDLEWARE = str(run.__file__), str(threads.__file__), str(middleware.__file__)
STEP = str(Path(asyncio.__file__).parent / "events.py")
BUS = str(Path(RUN).parent.parent / "events" / "bus.py")


def dumped(*threads: list[tuple[str, int, str]]) -> Dump:
    return Dump(
        "\n".join(
            f"Thread 0x{number:016x} (most recent call first):\n"
            + "".join(f'  File "{file}", line {line} in {function}\n' for file, line, function in thread)
            for number, thread in enumerate(threads, 1)
        )
    )


MAIN = [(STEP, 80, "_run"), ("/app/main.py", 3, "<module>")]
THREAD = [(THREADS, 160, "_work"), ("/usr/lib/python3.11/threading.py", 1002, "_bootstrap")]


@pytest.mark.parametrize(
    ("stack", "position"),
    [
        ([("/app/a.py", 7, "send"), (RUN, 150, "_call"), *MAIN], "/app/a.py:7 in send"),
        (
            [("/lib/ssl.py", 9, "read"), ("/app/a.py", 7, "send"), (RUN, 150, "_call"), *MAIN],
            "/app/a.py:7 in send (now at /lib/ssl.py:9 in read)",
        ),
        (
            [("/app/a.py", 7, "send"), (MIDDLEWARE, 40, "around"), (RUN, 150, "_call"), *MAIN],
            "/app/a.py:7 in send",
        ),
        # A task that a handler has started has no frame of ours below it.
        ([("/app/a.py", 12, "part"), *MAIN], "/app/a.py:12 in part"),
        ([(BUS, 181, "_follow"), *MAIN], "None"),
        ([("/usr/lib/python3.11/selectors.py", 468, "select"), ("/app/main.py", 3, "<module>")], "None"),
    ],
)
def test_own_frames_do_not_count_as_the_handlers_position(stack: list[tuple[str, int, str]], position: str) -> None:
    assert str(on_loop([CodeLine(*item) for item in stack])) == position
    assert str(dumped(THREAD, stack).on_loop()) == position


def test_handlers_in_threads_are_found_and_idle_threads_are_ignored() -> None:
    working = [("/app/b.py", 3, "resize"), *THREAD]
    of_an_event = [("/app/d.py", 4, "notify"), (BUS, 300, "call"), *THREAD]
    foreign = [("/app/c.py", 5, "own_thread"), ("/usr/lib/python3.11/threading.py", 1002, "_bootstrap")]

    assert list(map(str, dumped(THREAD, working, of_an_event, foreign, MAIN).in_threads())) == ["/app/b.py:3 in resize"]
