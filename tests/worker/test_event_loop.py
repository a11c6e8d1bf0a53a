"""Which event loop a worker process uses."""

import asyncio
import sys

import pytest
import uvloop

from tenure.errors import UsageError
from tenure.worker.event_loop import LOOP_VARIABLE, LOOPS, Loop, loop_from_environment, loop_runner


async def here() -> asyncio.AbstractEventLoop:
    """Return the loop that runs this."""
    return asyncio.get_running_loop()


@pytest.mark.parametrize("name", LOOPS)
def test_a_requested_loop_is_used_and_uvloop_by_default(name: Loop) -> None:
    with loop_runner(name) as runner:
        assert isinstance(runner.run(here()), uvloop.Loop) == (name != "asyncio")


def test_without_uvloop_only_a_request_for_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with loop_runner("auto") as runner:
        assert not isinstance(runner.run(here()), uvloop.Loop)
    with pytest.raises(UsageError, match=r"--loop uvloop .* pip install 'tenure\[uvloop\]'"):
        loop_runner("uvloop")


@pytest.mark.parametrize(
    ("variable", "loop"), [("asyncio", "asyncio"), ("uvloop", "uvloop"), ("bun", "auto"), (None, "auto")]
)
def test_the_processes_of_a_worker_get_their_loop_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, loop: str
) -> None:
    if variable is None:
        monkeypatch.delenv(LOOP_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(LOOP_VARIABLE, variable)
    assert loop_from_environment() == loop
