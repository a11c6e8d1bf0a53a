"""The calls without a loop, on a machine that refuses them a thread."""

import threading

import pytest

from tenure import StorageUnavailableError
from tenure.background_loop import Portal


async def answer() -> int:
    return 42


@pytest.mark.filterwarnings("error")
def test_a_sync_call_without_a_thread_raises_and_the_next_one_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    portal = Portal()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StorageUnavailableError, match=r"answer_sync\(\) needs a thread .*can't start new thread"):
            portal.call(answer(), verb="answer")

    assert portal.call(answer(), verb="answer") == 42
