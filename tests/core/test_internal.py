"""Internal queues: which listings include them, and that users cannot name them."""

from typing import Any

import pytest

from tenure import Tenure, Timing, UsageError
from tenure.core.events import JobCancelled, StorageReplaced
from tenure.core.internal import (
    INTERNAL,
    INTERNAL_QUEUES,
    OPS_QUEUE,
    included,
    includes_worker,
    is_internal_event,
    own_name,
)
from tenure.ops.names import known_names
from tenure.ops.views import info_view
from tenure.storage.protocol import Survey


def test_a_listing_without_names_leaves_out_internal_queues() -> None:
    assert included(["mail", OPS_QUEUE], ()) == ["mail"]
    assert included(["mail", OPS_QUEUE], [OPS_QUEUE]) == ["mail", OPS_QUEUE]


@pytest.mark.parametrize(
    ("served", "named", "expected"),
    [
        ((), (), True),
        (("mail",), (), True),
        (("mail", OPS_QUEUE), (), True),
        (INTERNAL_QUEUES, (), False),
        (INTERNAL_QUEUES, ("mail",), False),
        (INTERNAL_QUEUES, (OPS_QUEUE,), True),
    ],
)
def test_workers_of_internal_queues_alone_are_left_out(
    served: tuple[str, ...], named: tuple[str, ...], expected: bool
) -> None:
    assert includes_worker(served, named) is expected


def test_paused_internal_tasks_are_neither_listed_nor_known() -> None:
    survey = Survey(now=0, queues=(), workers=(), schedules=(), paused_tasks=("mail.send", f"{INTERNAL}webhook.alerts"))

    assert info_view(survey, url="memory://", timing=Timing()).paused_tasks == ("mail.send",)
    assert known_names(survey, {}).tasks == {"mail.send"}


def test_events_of_internal_queues_are_internal() -> None:
    def event(queue: str) -> JobCancelled:
        return JobCancelled(queue=queue, id="job", task="add", was="waiting")

    assert is_internal_event(event(OPS_QUEUE))
    assert not is_internal_event(event("mail"))
    assert not is_internal_event(StorageReplaced(partition="", old="", new=""))


@pytest.mark.parametrize("name", ["tenure.internal.", "tenure.internal.mine", OPS_QUEUE])
def test_users_cannot_use_a_reserved_name(name: str) -> None:
    def act() -> None:
        """Do nothing."""

    app = Tenure("memory:")
    with pytest.raises(UsageError, match="is reserved; choose another name"):
        own_name(name, field="queue")
    options: list[dict[str, Any]] = [{"queue": name}, {"name": name}]
    for option in options:
        with pytest.raises(UsageError, match="reserved"):
            app.task(**option)(act)
    with pytest.raises(UsageError, match="reserved"):
        app.task(act).options(queue=name).call()
