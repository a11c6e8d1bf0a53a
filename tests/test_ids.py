"""Job ids: they have the form of UUIDs, are in the order of their creation, and are all different."""

import ctypes
import os
from collections.abc import Callable
from random import Random
from uuid import RFC_4122, UUID

import pytest

from tenure import Tenure
from tenure.clock import SystemClock, entropy
from tenure.ids import JobIds
from tenure.testing.clock import ManualClock


def test_ids_are_uuids_of_version_seven_in_the_order_of_their_creation() -> None:
    ids = JobIds(SystemClock(), Random(1))
    made = [ids.make() for _ in range(10_000)]

    assert made == sorted(made)
    assert len(set(made)) == len(made)
    for text in made:
        read = UUID(text)
        assert (str(read), read.version, read.variant) == (text, 7, RFC_4122)


def test_an_app_may_create_its_own_ids_which_the_repr_of_a_call_shows() -> None:
    class Numbered(Tenure):
        def new_id(self) -> str:
            return "mine-1"

    app = Numbered("memory://")

    @app.task(name="pay")
    async def pay(card: str) -> None: ...

    assert repr(pay.call("4111 1111")) == "Call(task='pay', queue='default', id='mine-1')"


def test_ids_hold_their_millisecond_and_rise_when_the_clock_steps_back() -> None:
    clock = ManualClock()
    ids = JobIds(clock, Random(2))
    at = clock.now() // 1000
    made = [ids.make() for _ in range(5_000)]

    assert UUID(made[0]).int >> 80 == at
    # Within one millisecond there are 4,096 of them; further ones use the next millisecond.
    assert UUID(made[-1]).int >> 80 == at + 1
    assert made == sorted(made)
    assert ids.make() > made[-1]


@pytest.mark.parametrize("fork", [os.fork, ctypes.PyDLL(None).fork], ids=["by Python", "by a server in C"])
def test_a_child_process_shares_no_random_bytes_with_its_parent(fork: Callable[[], int]) -> None:
    rng = entropy()
    # From here on more bytes are buffered than were requested.
    rng.randbytes(8)
    reader, writer = os.pipe()
    pid = fork()
    if not pid:
        os.write(writer, b"".join(rng.randbytes(8) for _ in range(200)))
        os._exit(0)
    mine = [rng.randbytes(8) for _ in range(200)]
    os.waitpid(pid, 0)
    its = os.read(reader, 1600)
    os.close(reader)
    os.close(writer)

    assert len(its) == 1600
    assert len({*mine, *(its[at : at + 8] for at in range(0, 1600, 8))}) == 400
